// SPDX-License-Identifier: Apache-2.0

package gcp

import (
	"fmt"
	"net/http"
	"testing"

	. "github.com/onsi/gomega"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/fleet"
	"github.com/drover-io/drover/cloud/gcp/gcpstub"
	"github.com/drover-io/drover/internal/test/engine"
)

// TestZoneRefuses: what a zone lacks, another zone of the region may have, whether Google says so
// at once or by the operation. The answers are those of the reports beside them.
func TestZoneRefuses(t *testing.T) {
	t.Parallel()
	const zone = "projects/nodes-4711/zones/europe-west4-a/"
	failed := func(status int, code, message string) gcpstub.Fault {
		return gcpstub.Fault{Status: http.StatusOK, Body: fmt.Sprintf(
			`{"name":"o","targetId":"1","status":"DONE","httpErrorStatusCode":%d,"error":{"errors":[{"code":%q,"message":%q}]}}`, status, code,
			message)}
	}
	refused := func(status int, reason, message string) gcpstub.Fault {
		return gcpstub.Fault{Status: status, Reason: reason, Message: message}
	}
	for name, test := range map[string]struct {
		fault gcpstub.Fault
		want  cloud.Code
	}{
		"machine type": {refused(400, "invalid", "Invalid value for field 'resource.machineType': 'zones/europe-west4-a/machineTypes/n2-rare-4'. "+
			"Machine type with name 'n2-rare-4' does not exist in zone 'europe-west4-a'."), cloud.NoCapacity},
		// https://github.com/dstackai/dstack/issues/696
		"accelerator": {refused(404, "notFound", "The resource '"+zone+"acceleratorTypes/nvidia-tesla-p4' was not found"),
			cloud.NoCapacity}, // https://github.com/fastai/course-v3/pull/430
		"accelerator by 400": {refused(400, "badRequest", "The resource '"+zone+"acceleratorTypes/nvidia-tesla-k80' was not found"),
			cloud.NoCapacity}, // https://github.com/hashicorp/terraform-provider-google/issues/5860
		"disk type":    {refused(404, "notFound", "The resource '"+zone+"diskTypes/hyperdisk-ml' was not found"), cloud.NoCapacity},
		"storage pool": {failed(404, "RESOURCE_NOT_FOUND", "The resource '"+zone+"storagePools/fast' was not found"), cloud.NoCapacity},
		"reservation":  {failed(404, "RESOURCE_NOT_FOUND", "The resource '"+zone+"reservations/blue' was not found"), cloud.NoCapacity},
		"full reservation": {failed(412, "CONDITION_NOT_MET",
			"Specified reservation 'projects/88945870421/reservations/blue' does not have available resources for the request."),
			cloud.NoCapacity}, // https://github.com/skypilot-org/skypilot/pull/2352
		// TestErrors and regexReservationErrors of
		// https://github.com/kubernetes/autoscaler/tree/master/cluster-autoscaler/cloudprovider/gce
		"no reservation":  {failed(412, "CONDITION_NOT_MET", "Specified reservation 'blue' does not exist."), cloud.NoCapacity},
		"no reservations": {failed(412, "CONDITION_NOT_MET", "Specified reservations [blue] do not exist. (when acting as"), cloud.NoCapacity},
		"new reservation": {failed(412, "CONDITION_NOT_MET",
			"Cannot insert instance to a reservation with status: CREATING, as it requires reservation to be in READY state."), cloud.NoCapacity},
		"reservations without room": {failed(412, "CONDITION_NOT_MET", "No available resources in specified reservations 'blue'"),
			cloud.NoCapacity},
		"zone without capacity": {failed(412, "CONDITION_NOT_MET",
			"Zone does not currently have sufficient capacity for the requested resources."), cloud.NoCapacity},
		"no such reservation": {refused(400, "invalid", "Could not find the given reservation with the following name: blue"),
			cloud.NoCapacity},
		// https://cloud.google.com/colab/docs/troubleshooting
		"reservations without room by 400": {refused(400, "invalid", "Invalid value for field 'resource.reservationAffinity': "+
			"'{\"consumeReservationType\": \"SPECIFIC_ALLOCATION\", \"key\": \"compute.googleapis.com/reservation-name\"}'. "+
			"No available resources in specified reservations."), cloud.NoCapacity},
		"resources of nothing that is named": {failed(412, "CONDITION_NOT_MET", "blue does not have available resources for the request."),
			cloud.NoCapacity},
		"disk of another zone": {refused(400, "invalid",
			"Invalid value for field 'resource.source': 'zones/europe-west4-b/disks/d'. Disk must be in the same zone as the instance."),
			cloud.NoCapacity}, // https://github.com/GoogleCloudPlatform/google-cloud-powershell/issues/237
		"nodes": {failed(400, "INVALID_USAGE",
			"No feasible nodes found for the instance given its node affinities and other scheduling constraints."), cloud.NoCapacity},
		"policy on locations": {refused(412, "conditionNotMet",
			"Location ZONE:europe-west4-a violates constraint constraints/gcp.resourceLocations on the resource m-1."), cloud.NoCapacity},

		"an image": {refused(404, "notFound", "The resource 'projects/nodes-4711/global/images/ubuntu' was not found"),
			cloud.NotFound},
		"a subnetwork": {refused(404, "notFound",
			"The resource 'projects/nodes-4711/regions/europe-west4/subnetworks/nodes' was not found"), cloud.NotFound},
		"a subnetwork by 400": {refused(400, "invalid",
			"Invalid value for field 'resource.networkInterfaces[0].subnetwork': 'regions/europe-west4/subnetworks/n'. The referenced subnetwork resource cannot be found."), cloud.NotFound},
		"a field": {refused(400, "invalid", "Invalid value for field 'resource.minCpuPlatform': 'x'. Unknown CPU platform."),
			cloud.InvalidSpec},
		"a wrong reservation": {refused(400, "invalid",
			"Specified reservations [projects/p/reservations/auto] can not be targeted as specificReservationRequired is not set"),
			cloud.InvalidSpec}, // https://github.com/skypilot-org/skypilot/issues/3327
		"a reservation of another project": {failed(412, "CONDITION_NOT_MET",
			"Instance 'm-1' creation failed: The reservation must exist in the same project as the instance."), cloud.Unauthorized},
		"another policy": {refused(412, "conditionNotMet",
			"Constraint constraints/compute.vmExternalIpAccess violated for project 4711."), cloud.Unauthorized},
		"a quota": {failed(403, "QUOTA_EXCEEDED", "Quota 'GPUS_ALL_REGIONS' exceeded in zone europe-west4-a."),
			cloud.QuotaExceeded},
		"a permission": {refused(403, "forbidden", "Required 'compute.instances.create' permission for '"+zone+"instances/m-1'"),
			cloud.Unauthorized},
		"a zone without answers": {refused(503, "backendError", "The zone 'europe-west4-a' does not respond."), cloud.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stub := start(t, gcpstub.Options{})
			test.fault.Operation = "POST instances"
			stub.Inject(test.fault)
			_, err := connect(t, stub).Ensure(t.Context(), testRequest("m-1", nil))
			NewWithT(t).Expect(cloud.CodeOf(err)).To(Equal(test.want), "%v", err)
		})
	}
}

// TestNextZone: an account leaves a zone that lacks an accelerator, for all machines of the kind.
func TestNextZone(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	stub := start(t, gcpstub.Options{})
	a := engine.Start(t, fleet.Options{Clouds: []cloud.Cloud{Cloud()}, Times: fleet.TimesFor(fleet.DefaultCall), Transport: stub.Transport()},
		fleet.AccountConfig{Spec: *testAccount(), Credentials: testCredentials()})
	stub.Inject(gcpstub.Fault{Operation: "POST instances", Status: http.StatusNotFound, Reason: "notFound",
		Message: "The resource 'projects/nodes-4711/zones/europe-west4-a/acceleratorTypes/nvidia-tesla-p4' was not found"})
	gpus := func(name string) cloud.Request {
		return testRequest(name, func(m *infrav1.GCPMachine) {
			m.Accelerators = []infrav1.GCPAccelerator{{Type: "nvidia-tesla-p4", Count: 1}}
		})
	}
	zones := gcpstub.Zones()
	for i, zone := range zones {
		g.Expect(a.Domain(gpus("m-1").Spec, zones)).To(Equal(zone))
		_, err := a.Ensure(t.Context(), gpus("m-1"), []string{zone})
		g.Expect(cloud.CodeOf(err)).To(Equal(cloud.NoCapacity), "%v", err)
		g.Expect(stub.Calls()["POST instances"]).To(Equal(i + 1))
	}
	_, err := a.Domain(gpus("m-2").Spec, zones)
	g.Expect(err).To(MatchError(ContainSubstring("nvidia-tesla-p4")))
	g.Expect(a.Domain(testRequest("m-3", nil).Spec, zones)).To(Equal(zones[0]), "machines without accelerators")
}
