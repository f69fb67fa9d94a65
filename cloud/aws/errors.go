// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"errors"
	"strings"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/smithy-go"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
)

// Error codes of AWS that the driver handles itself.
const (
	parameterMismatch  = "IdempotentParameterMismatch"
	instanceTerminated = "IdempotentInstanceTerminated"
	notPermitted       = "OperationNotPermitted"
	invalidInstance    = "InvalidInstanceID"
	imageNotFound      = "InvalidAMIID.NotFound"
	subnetFull         = "InsufficientFreeAddressesInSubnet"
	dryRunOperation    = "DryRunOperation"
	// unsupportedOperation is the answer of instances without the Nitro hypervisor to calls that
	// need it.
	unsupportedOperation = "UnsupportedOperation"
)

// codes maps AWS's error codes, from "Error codes for the Amazon EC2 API" in the EC2 API Reference,
// the errors of Elastic Load Balancing, and the common errors of STS, Systems Manager and SQS.
// codeOf maps codes that are not in the table by their form.
var codes = map[string]cloud.Code{
	"RequestLimitExceeded":      cloud.Throttled,
	"Throttling":                cloud.Throttled,
	"ThrottlingException":       cloud.Throttled,
	"RequestThrottled":          cloud.Throttled,
	"TooManyRequestsException":  cloud.Throttled,
	"EC2ThrottledException":     cloud.Throttled,
	"RequestThrottledException": cloud.Throttled,

	"InstanceLimitExceeded":         cloud.QuotaExceeded,
	"VcpuLimitExceeded":             cloud.QuotaExceeded,
	"MaxSpotInstanceCountExceeded":  cloud.QuotaExceeded,
	"VolumeLimitExceeded":           cloud.QuotaExceeded,
	"MaxIOPSLimitExceeded":          cloud.QuotaExceeded,
	"NetworkInterfaceLimitExceeded": cloud.QuotaExceeded,
	"AddressLimitExceeded":          cloud.QuotaExceeded,
	"HostLimitExceeded":             cloud.QuotaExceeded,
	"ResourceLimitExceeded":         cloud.QuotaExceeded,
	"PrivateIpAddressLimitExceeded": cloud.QuotaExceeded,
	"RequestResourceCountExceeded":  cloud.QuotaExceeded,
	"ResourceCountExceeded":         cloud.QuotaExceeded,

	"TooManyLoadBalancers":                     cloud.QuotaExceeded,
	"TooManyTargetGroups":                      cloud.QuotaExceeded,
	"TooManyTargets":                           cloud.QuotaExceeded,
	"TooManyListeners":                         cloud.QuotaExceeded,
	"TooManyRegistrationsForTargetId":          cloud.QuotaExceeded,
	"TooManyUniqueTargetGroupsPerLoadBalancer": cloud.QuotaExceeded,
	"TargetGroupAssociationLimit":              cloud.QuotaExceeded,

	"InsufficientInstanceCapacity":          cloud.NoCapacity,
	"InsufficientCapacity":                  cloud.NoCapacity,
	"InsufficientHostCapacity":              cloud.NoCapacity,
	"InsufficientCapacityOnHost":            cloud.NoCapacity,
	"InsufficientReservedInstanceCapacity":  cloud.NoCapacity, // EC2 uses both names
	"InsufficientReservedInstancesCapacity": cloud.NoCapacity,
	"IncompatibleHostRequirements":          cloud.NoCapacity,
	"InsufficientVolumeCapacity":            cloud.NoCapacity,
	subnetFull:                              cloud.NoCapacity,
	"InsufficientAddressCapacity":           cloud.NoCapacity,
	"ReservationCapacityExceeded":           cloud.NoCapacity,
	"UnavailableHostRequirements":           cloud.NoCapacity,
	"UnfulfillableCapacity":                 cloud.NoCapacity,
	"SpotMaxPriceTooLow":                    cloud.NoCapacity,
	// The zone does not have this type of machine or disk, or is not the zone of the dedicated host
	// or the placement group. Another zone may work.
	"Unsupported":                  cloud.NoCapacity,
	"VolumeTypeNotAvailableInZone": cloud.NoCapacity,
	"ZonesMismatched":              cloud.NoCapacity,
	"InvalidPlacementGroup.InUse":  cloud.NoCapacity,
	// A Capacity Block that has not started.
	"InvalidCapacityReservationState.PendingActivation": cloud.NoCapacity,

	"AuthFailure":                       cloud.Unauthorized,
	"UnauthorizedOperation":             cloud.Unauthorized,
	"SignatureDoesNotMatch":             cloud.Unauthorized,
	"RequestExpired":                    cloud.Unauthorized,
	"InvalidSecurity.RequestHasExpired": cloud.Unauthorized,
	"ExpiredToken":                      cloud.Unauthorized,
	"ExpiredTokenException":             cloud.Unauthorized,
	"InvalidClientTokenId":              cloud.Unauthorized,
	"UnrecognizedClientException":       cloud.Unauthorized,
	"InvalidSignatureException":         cloud.Unauthorized,
	"IncompleteSignature":               cloud.Unauthorized,
	"MissingAuthenticationToken":        cloud.Unauthorized,
	"AccessDenied":                      cloud.Unauthorized,
	"AccessDeniedException":             cloud.Unauthorized,
	"InvalidIdentityToken":              cloud.Unauthorized,
	"IDPRejectedClaim":                  cloud.Unauthorized,
	"RegionDisabledException":           cloud.Unauthorized,
	"OptInRequired":                     cloud.Unauthorized,
	"PendingVerification":               cloud.Unauthorized,
	"Blocked":                           cloud.Unauthorized,
	"AccountDisabled":                   cloud.Unauthorized,

	"MissingParameter":                        cloud.InvalidSpec,
	"UnknownParameter":                        cloud.InvalidSpec,
	unsupportedOperation:                      cloud.InvalidSpec,
	"UnsupportedTenancy":                      cloud.InvalidSpec,
	"UnsupportedInstanceAttribute":            cloud.InvalidSpec,
	"AttachmentLimitExceeded":                 cloud.InvalidSpec,
	"SecurityGroupsPerInstanceLimitExceeded":  cloud.InvalidSpec,
	"SecurityGroupsPerInterfaceLimitExceeded": cloud.InvalidSpec,
	"SecurityGroupLimitExceeded":              cloud.InvalidSpec,
	"TagLimitExceeded":                        cloud.InvalidSpec,
	"TagPolicyViolation":                      cloud.InvalidSpec,
	"BootForVolumeTypeUnsupported":            cloud.InvalidSpec,
	"EncryptedVolumesNotSupported":            cloud.InvalidSpec,
	"NonEBSInstance":                          cloud.InvalidSpec,
	"UnknownVolumeType":                       cloud.InvalidSpec,
	"VolumeIOPSLimit":                         cloud.InvalidSpec,
	"UnsupportedException":                    cloud.InvalidSpec,
	"UnsupportedHibernationConfiguration":     cloud.InvalidSpec,
	"UnsupportedHostConfiguration":            cloud.InvalidSpec,
	"UnsupportedInstanceTypeOnHost":           cloud.InvalidSpec,
	"ClientInvalidParameterValue":             cloud.InvalidSpec,
	"MissingInput":                            cloud.InvalidSpec,
	"ValidationError":                         cloud.InvalidSpec,
	"VPCResourceNotSpecified":                 cloud.InvalidSpec,
	"VPCIdNotSpecified":                       cloud.InvalidSpec,
	imageNotFound:                             cloud.InvalidSpec,

	// An image that is still being created, a key that may be restored, and the like.
	"InvalidAMIID.Unavailable":  cloud.NotFound,
	"ParameterNotFound":         cloud.NotFound,
	"CustomerKeyHasBeenRevoked": cloud.NotFound,
	"DefaultVpcDoesNotExist":    cloud.NotFound,

	"LoadBalancerNotFound": cloud.NotFound,
	"TargetGroupNotFound":  cloud.NotFound,
	"ListenerNotFound":     cloud.NotFound,
	"SubnetNotFound":       cloud.NotFound,

	// SQS's code, by both names.
	"QueueDoesNotExist":                       cloud.NotFound,
	"AWS.SimpleQueueService.NonExistentQueue": cloud.NotFound,
	"OverLimit":       cloud.Throttled,
	"KmsThrottled":    cloud.Throttled,
	"KmsAccessDenied": cloud.Unauthorized,

	parameterMismatch:               cloud.Conflict,
	instanceTerminated:              cloud.Conflict,
	notPermitted:                    cloud.Conflict,
	duplicateGroup:                  cloud.Conflict,
	duplicateRule:                   cloud.Conflict,
	duplicateTargetGroup:            cloud.Conflict,
	duplicateLoadBalancer:           cloud.Conflict,
	"DuplicateListener":             cloud.Conflict,
	resourceInUse:                   cloud.Conflict,
	"IncorrectInstanceState":        cloud.Conflict,
	"IncorrectState":                cloud.Conflict,
	dependencyViolation:             cloud.Conflict,
	"VolumeInUse":                   cloud.Conflict,
	"InvalidNetworkInterface.InUse": cloud.Conflict,
	"InvalidIPAddress.InUse":        cloud.Conflict,
	"InvalidAddress.Locked":         cloud.Conflict,
	"InvalidHostState":              cloud.Conflict,
	"InvalidInstanceState":          cloud.Conflict,
	"InvalidState":                  cloud.Conflict,
	"Resource.AlreadyAssigned":      cloud.Conflict,
	"Resource.AlreadyAssociated":    cloud.Conflict,

	"HealthUnavailable":       cloud.Unavailable,
	"PriorRequestNotComplete": cloud.Unavailable,
	"InternalError":           cloud.Unavailable,
	"InternalFailure":         cloud.Unavailable,
	"InternalServerError":     cloud.Unavailable,
	"ServiceUnavailable":      cloud.Unavailable,
	"Unavailable":             cloud.Unavailable,
	"RequestTimeout":          cloud.Unavailable,
	"ConcurrentTagAccess":     cloud.Unavailable,
	"RetryableError":          cloud.Unavailable,
	// The token of an interrupted listing expired. The listing starts again.
	"InvalidNextToken":       cloud.Unavailable,
	"InvalidPaginationToken": cloud.Unavailable,
}

// codeOf maps an error code of AWS: by the table, else by its form, which EC2 keeps consistent,
// else by the HTTP status.
func codeOf(code string, status int) cloud.Code {
	if c, ok := codes[code]; ok {
		return c
	}
	switch {
	case strings.HasSuffix(code, ".NotFound"), strings.HasSuffix(code, ".Unknown"):
		return cloud.NotFound
	case strings.HasPrefix(code, "Invalid"):
		return cloud.InvalidSpec
	case status >= 500:
		return cloud.Unavailable
	}
	return cloud.Unknown
}

// runInstances is the call that creates a machine.
const runInstances = "RunInstances"

// creationCode returns the code of a refusal to create a machine. Some of EC2's codes say less than
// its words.
func creationCode(code, words string, status int) cloud.Code {
	words = strings.ToLower(words)
	known := codeOf(code, status)
	unknown := known == cloud.InvalidSpec || known == cloud.NotFound || known == cloud.Unknown
	switch {
	case unknown && (strings.Contains(words, "availability zone") || code == "InvalidZone.NotFound"):
		return cloud.NoCapacity // what this zone lacks, or is not, another one may have or be
	case code == imageNotFound:
		return cloud.NotFound // a lookup has just shown it: it is being copied, shared or replaced
	case code == "InvalidParameterValue" && (strings.Contains(words, "iam instance profile") || strings.Contains(words, "iaminstanceprofile")):
		// EC2 knows a new profile only after a while:
		// https://github.com/hashicorp/terraform/issues/15341
		return cloud.NotFound
	}
	return known
}

// maxWords is how many bytes of AWS's words a refusal keeps. They may name all instances of a batch.
const maxWords = 8 << 10

// refusal is the cause of an Error in AWS's own words. The driver acts on the code and words as AWS
// sent them. Only the redacted text is shown.
type refusal struct{ code, message, displayed string }

func (r refusal) Error() string { return r.displayed }

// refusalOf returns AWS's own code and words, or the zero refusal.
func refusalOf(err error) (r refusal) {
	errors.As(err, &r)
	return r
}

// unknownCode is the SDK's code for an error without an AWS code: the answer is not AWS's.
const unknownCode = "UnknownError"

// redactor removes an account's credentials from shown text.
type redactor struct{ driverkit.Redactor }

func newRedactor(secrets ...string) redactor { return redactor{driverkit.NewRedactor(secrets...)} }

// typed converts every SDK error to an error of package cloud. It does not repeat text that is not
// AWS's, because such text may contain anything.
func (r redactor) typed(op string, err error) error {
	var queued *cloud.Queued
	var own *cloud.Error
	var api smithy.APIError
	var answer *awshttp.ResponseError
	status := 0
	if errors.As(err, &answer) {
		status = answer.HTTPStatusCode()
	}
	switch {
	case errors.As(err, &queued), errors.As(err, &own):
		return r.NoResponse(op, err)
	case errors.As(err, &api) && api.ErrorCode() != unknownCode:
		return r.refusal(op, api.ErrorCode(), api.ErrorMessage(), status)
	case status != 0:
		return cloud.Errorf(driverkit.CodeOfStatus(status), "%s: unexpected response with status %d (not AWS): check spec.cloud.aws.endpoint", op,
			status)
	}
	return r.NoResponse(op, err)
}

// refusal classifies AWS's words before redaction, because a short secret may be part of them.
func (r redactor) refusal(op, code, words string, status int) error {
	message := op + ": " + r.Clean(code, 64) + ": " + r.Clean(words, 512)
	if remedy := remedyFor(code, words); remedy != "" {
		message += " (" + remedy + ")"
	}
	classify := codeOf(code, status)
	if op == runInstances {
		classify = creationCode(code, words, status)
	}
	kept := refusal{cloud.Clip(code, 256), cloud.Clip(words, maxWords), r.Clean(code, 64)}
	return &cloud.Error{Code: classify, Message: message, Err: kept}
}
