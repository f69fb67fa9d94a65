// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
)

// documented are the codes of "Error codes for the Amazon EC2 API" (EC2 Developer Guide,
// errors-overview) that the driver's calls can return, by their meaning. Codes of other actions,
// such as VPN connections, are left out.
var documented = map[cloud.Code]string{
	cloud.Throttled: `RequestLimitExceeded`,
	cloud.QuotaExceeded: `AddressLimitExceeded HostLimitExceeded InstanceLimitExceeded MaxIOPSLimitExceeded MaxSpotInstanceCountExceeded
		NetworkInterfaceLimitExceeded PrivateIpAddressLimitExceeded RequestResourceCountExceeded ResourceCountExceeded ResourceLimitExceeded
		VcpuLimitExceeded VolumeLimitExceeded`,
	cloud.NoCapacity: `IncompatibleHostRequirements InsufficientAddressCapacity InsufficientCapacity InsufficientCapacityOnHost
		InsufficientFreeAddressesInSubnet InsufficientHostCapacity InsufficientInstanceCapacity InsufficientReservedInstanceCapacity
		InsufficientReservedInstancesCapacity InsufficientVolumeCapacity InvalidCapacityReservationState.PendingActivation
		InvalidPlacementGroup.InUse ReservationCapacityExceeded SpotMaxPriceTooLow UnavailableHostRequirements UnfulfillableCapacity Unsupported
		VolumeTypeNotAvailableInZone ZonesMismatched`,
	cloud.Unauthorized: `AccountDisabled AuthFailure Blocked IncompleteSignature InvalidClientTokenId InvalidSecurity.RequestHasExpired
		MissingAuthenticationToken OptInRequired PendingVerification RequestExpired SignatureDoesNotMatch UnauthorizedOperation`,
	cloud.InvalidSpec: `AttachmentLimitExceeded BootForVolumeTypeUnsupported ClientInvalidParameterValue EncryptedVolumesNotSupported InvalidAMIID.Malformed
		InvalidAMIID.NotFound InvalidAvailabilityZone InvalidBlockDeviceMapping InvalidCapacityReservationId.Malformed InvalidGroupId.Malformed
		InvalidHostConfiguration InvalidHostID.Malformed InvalidHostId InvalidHostId.Malformed InvalidIamInstanceProfileArn.Malformed
		InvalidInstanceType InvalidInterface.IpAddressLimitExceeded InvalidLaunchTargets InvalidParameter InvalidParameterCombination
		InvalidParameterDependency InvalidParameterValue InvalidSecurityGroupId.Malformed InvalidSnapshotID.Malformed InvalidSubnet
		InvalidSubnetID.Malformed InvalidTagKey.Malformed InvalidTenancy InvalidUserID.Malformed MissingInput MissingParameter NonEBSInstance
		SecurityGroupLimitExceeded SecurityGroupsPerInstanceLimitExceeded SecurityGroupsPerInterfaceLimitExceeded TagLimitExceeded
		TagPolicyViolation UnknownParameter UnknownVolumeType UnsupportedException UnsupportedHibernationConfiguration UnsupportedHostConfiguration
		UnsupportedInstanceAttribute UnsupportedInstanceTypeOnHost UnsupportedOperation UnsupportedTenancy VPCIdNotSpecified
		VPCResourceNotSpecified ValidationError VolumeIOPSLimit`,
	cloud.NotFound: `CustomerKeyHasBeenRevoked DefaultVpcDoesNotExist InvalidAMIID.Unavailable InvalidAddress.NotFound InvalidAddressID.NotFound
		InvalidAllocationID.NotFound InvalidCapacityReservationId.NotFound InvalidGroup.NotFound InvalidHostID.NotFound InvalidHostId.NotFound
		InvalidInstanceID.NotFound InvalidKeyPair.NotFound InvalidNetworkInterface.NotFound InvalidNetworkInterfaceID.NotFound
		InvalidPlacementGroup.Unknown InvalidSecurityGroupID.NotFound InvalidSnapshot.NotFound InvalidSubnetID.NotFound InvalidSubnetId.NotFound
		InvalidVolume.NotFound InvalidZone.NotFound`,
	cloud.Conflict: `DependencyViolation IdempotentInstanceTerminated IdempotentParameterMismatch IncorrectInstanceState IncorrectState
		InvalidAddress.Locked InvalidHostState InvalidIPAddress.InUse InvalidInstanceState InvalidNetworkInterface.InUse InvalidState
		OperationNotPermitted Resource.AlreadyAssigned Resource.AlreadyAssociated VolumeInUse`,
	cloud.Unavailable: `BandwidthLimitExceeded ConcurrentTagAccess InternalError InternalFailure InvalidNextToken InvalidPaginationToken RetryableError
		ServerInternal ServiceUnavailable Unavailable`,
}

// TestDocumentedCodes: each documented code maps to its documented meaning. In particular, a
// temporary failure is never InvalidSpec, which is not retried.
func TestDocumentedCodes(t *testing.T) {
	t.Parallel()
	for want, codes := range documented {
		status := 400
		if want == cloud.Unavailable {
			status = 500
		}
		for _, code := range strings.Fields(codes) {
			if got := codeOf(code, status); got != want {
				t.Errorf("%s is %s, want %s", code, got, want)
			}
		}
	}
}

// TestOtherCodes: codes of the other services, and unknown codes.
func TestOtherCodes(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	for code, want := range map[string]cloud.Code{
		"ThrottlingException":             cloud.Throttled,
		"ExpiredToken":                    cloud.Unauthorized,
		"AccessDenied":                    cloud.Unauthorized,
		"ParameterNotFound":               cloud.NotFound,
		"InvalidSomething.NotFound":       cloud.NotFound,
		"InvalidSomething":                cloud.InvalidSpec,
		"SomethingNew":                    cloud.Unknown,
		"DryRunOperation":                 cloud.Unknown, // the driver makes no such call
		"InvalidSomething.ThatIs.Unknown": cloud.NotFound,
	} {
		g.Expect(codeOf(code, 400)).To(Equal(want), code)
	}
	g.Expect(codeOf("SomethingNew", 500)).To(Equal(cloud.Unavailable))
	g.Expect(codeOf("InsufficientInstanceCapacity", 500)).To(Equal(cloud.NoCapacity))
}

// TestRemedies: a refusal's remedy names the field at fault. The messages are AWS's where they are
// known.
func TestRemedies(t *testing.T) {
	t.Parallel()
	for _, r := range []struct{ code, words, field string }{
		{"UnsupportedOperation", "The t2.small instance type does not support specifying CpuOptions.", "cpuOptions"},
		{"InvalidParameterCombination", "Cluster placement groups are not supported by the 't3.xlarge' instance type. Specify a supported instance type or change the placement group strategy, and try again.", "placementGroup"},
		{"InvalidPlacementGroup.InUse", "The placement group 'my-cluster' is in use in another availability zone: us-east-1c",
			"placementGroup: it is in one zone"},
		{"InvalidPlacementGroup.Unknown", "The placement group 'none' is unknown.", "placementGroup"},
		{"AuthFailure", "Not authorized for images: [ami-12cb8f72]", "image"},
		{"AuthFailure", "AWS was not able to validate the provided access credentials", "credentialsRef"},
		{"InvalidParameterCombination", "Iops to volume size ratio of 1250.000000 is too high; maximum is 50.000000", "rootVolume"},
		{"InvalidCapacityReservationState.PendingActivation", "", "capacityReservation"},
		{"InvalidSecurity.RequestHasExpired", "", "the manager's clock"},
		{"OperationNotPermitted", "Load balancer 'arn' cannot be deleted because deletion protection is enabled",
			"switch off the load balancer's deletion protection"},
		{"ResourceInUse", "Load balancer 'arn' cannot be deleted because it is currently associated with another service",
			"remove the load balancer from"},
		{"AccessDenied", "User is not authorized to perform: sts:AssumeRole on resource: arn", "assumeRole"},
	} {
		if got := remedyFor(r.code, r.words); !strings.HasPrefix(got, r.field) {
			t.Errorf("%s: %s: %q, want what to do about %s", r.code, r.words, got, r.field)
		}
	}
	if got := remedyFor("RequestLimitExceeded", "Request limit exceeded."); got != "" {
		t.Errorf("to throttling, people can do: %s", got)
	}
}

// TestRefusalKeepsLittle: an error may be remembered, so it keeps no more of an answer than the
// driver acts on: it looks for the IDs of a batch in the words.
func TestRefusalKeepsLittle(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	large := strings.Repeat("x", 1<<20)
	g.Expect(driverkit.SizeOf(newRedactor().refusal("Op", large, large, 400))).To(BeNumerically("<", 16<<10))
	var ids []string
	for i := range maxBatch {
		ids = append(ids, fmt.Sprintf("i-%017d", i))
	}
	words := "The instance IDs '" + strings.Join(ids, ", ") + "' do not exist"
	err := newRedactor().refusal("TerminateInstances", invalidInstance+".NotFound", words, 400)
	g.Expect(refusalOf(err).message).To(Equal(words))
}
