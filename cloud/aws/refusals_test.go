// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"fmt"
	"net/http"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/aws/ec2stub"
)

// TestCreationRefused: what EC2 answers to a create, and the code that it becomes. The answers are
// those of the reports beside them.
func TestCreationRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		code, words string
		want        cloud.Code
	}{
		// EC2 does not know them yet.
		"a new instance profile": {"InvalidParameterValue",
			"Value (nodes.blue) for parameter iamInstanceProfile.name is invalid. Invalid IAM Instance Profile name", cloud.NotFound},
		// https://github.com/hashicorp/terraform/issues/15341
		"a new profile's ARN": {"InvalidParameterValue",
			"Value (arn:aws:iam::123456789012:instance-profile/n) for parameter iamInstanceProfile.arn is invalid. Invalid IAM Instance Profile ARN",
			cloud.NotFound},
		"an image that was just copied": {"InvalidAMIID.NotFound", "The image id '[ami-0a1b2c3d4e5f60718]' does not exist", cloud.NotFound},
		"a key pair to come":            {"InvalidKeyPair.NotFound", "The key pair 'operators' does not exist", cloud.NotFound},
		"a subnet to come":              {"InvalidSubnetID.NotFound", "The subnet ID 'subnet-0a1b2c3d4e5f60718' does not exist", cloud.NotFound},

		// Another zone may do.
		"a zone without the type": {"Unsupported", "Your requested instance type (p3.2xlarge) is not supported in your requested Availability Zone (eu-central-1c). Please retry your request by not specifying an Availability Zone or choosing eu-central-1a, eu-central-1b.", cloud.NoCapacity}, // https://github.com/dspace-group/dspace-reference-architecture-aws/issues/100
		"another zone's group": {"InvalidPlacementGroup.InUse",
			"The placement group 'my-cluster' is in use in another availability zone: us-east-1c", cloud.NoCapacity},
		"by words":               {"InvalidParameterValue", "The capacity reservation is in another Availability Zone.", cloud.NoCapacity},
		"by words of a new code": {"NewAndUnknown", "It does not exist in the requested availability zone", cloud.NoCapacity},
		"no such zone":           {"InvalidZone.NotFound", "The zone 'us-east-1z' does not exist.", cloud.NoCapacity},

		// Whatever the zone.
		"a field": {"InvalidParameterValue", "Invalid value 'x' for InstanceType.", cloud.InvalidSpec},
		"a quota": {"VcpuLimitExceeded", "You have requested more vCPU capacity than your current limit in this Availability Zone",
			cloud.QuotaExceeded},
		"other parameters": {"IdempotentParameterMismatch", "The Availability Zone differs", cloud.Conflict},
	} {
		t.Run(name, func(t *testing.T) {
			err := newRedactor().refusal(runInstances, c.code, c.words, http.StatusBadRequest)
			NewWithT(t).Expect(cloud.CodeOf(err)).To(Equal(c.want), "%v", err)
		})
	}
	err := newRedactor().refusal("DescribeImages", imageNotFound, "The image id '[ami-0dead]' does not exist", http.StatusBadRequest)
	NewWithT(t).Expect(cloud.CodeOf(err)).To(Equal(cloud.InvalidSpec), "an image of no lookup")
}

// TestFullSubnet: a full subnet does not close its zone while another subnet of the zone may have
// addresses. Once all are full, the zone is left for a while.
func TestFullSubnet(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	stub := ec2stub.New(t, ec2stub.Options{Keys: testKeys()})
	a := testFleet(t, *testAccount(stub.URL))
	zones := []string{"us-east-1a"} // has two of the machine's subnets
	stub.Inject(ec2stub.Fault{Operation: "RunInstances", Count: 1, Code: subnetFull, Status: http.StatusBadRequest})
	refused := request("one", nil)
	_, err := a.Ensure(t.Context(), refused, zones)
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.NoCapacity))
	g.Expect(err.(*cloud.Error).RetryAfter).To(Equal(nextSubnetDelay))
	g.Expect(a.Domain(refused.Spec, zones)).To(Equal("us-east-1a"))
	refused.Attempt++
	_, err = a.Ensure(t.Context(), refused, zones)
	g.Expect(err).NotTo(HaveOccurred(), "the other subnet")

	stub.Inject(ec2stub.Fault{Operation: "RunInstances", Code: subnetFull, Status: http.StatusBadRequest})
	before := stub.Calls()["RunInstances"]
	for i := range 3 {
		_, err = a.Ensure(t.Context(), request(fmt.Sprint("more-", i), nil), zones)
		g.Expect(cloud.CodeOf(err)).To(Equal(cloud.NoCapacity))
	}
	g.Expect(stub.Calls()["RunInstances"]-before).To(Equal(1), "both are full now")
	_, err = a.Domain(refused.Spec, zones)
	g.Expect(err).To(MatchError(ContainSubstring("none of the failure domains")))
	g.Expect(a.Domain(refused.Spec, []string{"us-east-1a", "us-east-1b"})).To(Equal("us-east-1b"))
}
