// SPDX-License-Identifier: Apache-2.0

package openstack

import (
	"net/http"
	"strings"
	"testing"

	"github.com/gophercloud/gophercloud/v2"
	. "github.com/onsi/gomega"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
)

// TestBadRequests: what Nova answers to a create with status 400, and the code that it becomes.
// The messages are those of nova.api.openstack.compute.servers and of the reports beside them.
func TestBadRequests(t *testing.T) {
	for name, c := range map[string]struct {
		words string
		want  cloud.Code
	}{
		"a zone that is down": {"The requested availability zone is not available", cloud.NoCapacity},
		// https://github.com/rcbops/chef-cookbooks/issues/809
		"a zone without the flavor": {"The requested availability zone is not suitable for the requested instance type", cloud.NoCapacity},
		// https://github.com/selectel/terraform-examples/issues/2
		"a zone that Cinder lacks": {"Invalid input received: Availability zone 'region1-1' is invalid.", cloud.NoCapacity},
		// https://github.com/Ubuntu-Solutions-Engineering/openstack-installer/issues/829
		"a key pair to come":         {"Invalid key_name provided.", cloud.NotFound},
		"a network to come":          {"Network 9b1c3a0e-0000-4000-8000-000000000001 could not be found.", cloud.NotFound},
		"a server group to come":     {"Instance group 9b1c3a0e-0000-4000-8000-000000000002 could not be found.", cloud.NotFound},
		"a security group to come":   {"Unable to find security_group with name or id 'nothing'", cloud.NotFound},
		"an image that is uploading": {"Image 9b1c3a0e-0000-4000-8000-000000000003 is not active.", cloud.NotFound},
		"an image that was deleted":  {"Can not find requested image", cloud.NotFound},
		"a field":                    {"Flavor's disk is too small for requested image.", cloud.InvalidSpec},
	} {
		t.Run(name, func(t *testing.T) {
			p := ordinary(t)
			p.play("CreateServer", madeUp(http.StatusBadRequest, http.Header{"X-Openstack-Request-Id": {"req-1"}},
				`{"badRequest": {"code": 400, "message": "`+c.words+`"}}`))
			req := requested(func(m *infrav1.OpenStackMachine) { m.KeyName, m.AvailabilityZone = "operators", "az2" })
			_, err := connected(t, p).Ensure(t.Context(), req)
			NewWithT(t).Expect(cloud.CodeOf(err)).To(Equal(c.want), "%v", err)
		})
	}
}

// TestFaults: the words of Nova's fault when its scheduler has tried several hosts in vain, or
// another service has refused a part.
func TestFaults(t *testing.T) {
	const id = "43d47d19-0000-4000-8000-000000000001"
	for fault, want := range map[string]cloud.Code{
		"No valid host was found. There are not enough hosts available.": cloud.NoCapacity,
		"Exceeded maximum number of retries. Exceeded max scheduling attempts 3 for instance " + id +
			". Last exception: Insufficient compute resources: Free memory 512.00 MB < requested 8192 MB.": cloud.NoCapacity,
		"Exceeded maximum number of retries. Exhausted all hosts available for retrying build failures for instance " + id +
			".": cloud.NoCapacity,
		"Exceeded maximum number of retries. Exceeded max scheduling attempts 3 for instance " + id +
			". Last exception: Maximum number of ports exceeded": cloud.QuotaExceeded,
		"Build of instance " + id + " was re-scheduled: Insufficient compute resources: Free vcpu 0.00 VCPUs < requested 8 VCPUs.":                                             cloud.NoCapacity,
		"Build of instance " + id + " aborted: Invalid input received: Availability zone 'az2' is invalid.":                                                                    cloud.NoCapacity,
		"Build of instance " + id + " aborted: VolumeSizeExceedsAvailableQuota: Requested volume or snapshot exceeds allowed gigabytes quota. Requested 100G, quota is 1000G.": cloud.QuotaExceeded,
		"Build of instance " + id + " aborted: Failed to allocate the network(s), not rescheduling.":                                                                           "",
	} {
		t.Run(fault, func(t *testing.T) { NewWithT(t).Expect(faultCode(fault)).To(Equal(want)) })
	}
}

// TestRefusalKeepsLittle: an error may be remembered, so it keeps no more of an answer than it
// shows or acts on.
func TestRefusalKeepsLittle(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("x", 1<<20)
	err := classify(driverkit.NewRedactor(), "Op", cloud.ClassCreate, gophercloud.ErrUnexpectedResponseCode{Actual: http.StatusConflict,
		Body: []byte(`{"NeutronError": {"type": "` + large + `", "message": "` + large + `"}}`)})
	NewWithT(t).Expect(driverkit.SizeOf(err)).To(BeNumerically("<", 4<<10))
}
