// SPDX-License-Identifier: Apache-2.0

package azure

import (
	"net/http"
	"strings"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
)

// Error codes of Azure that the driver handles itself.
const (
	preconditionFailed   = "PreconditionFailed"
	resourceNotFound     = "ResourceNotFound"
	notFound             = "NotFound"
	badRequest           = "BadRequest"
	operationNotAllowed  = "OperationNotAllowed"
	propertyChange       = "PropertyChangeNotAllowed"
	conflictingUserInput = "ConflictingUserInput"
	anotherOperation     = "AnotherOperationInProgress"
	invalidZone          = "InvalidAvailabilityZone"
	noZones              = "ResourceTypeNotSupportAvailabilityZones"
	zoneNotSupported     = "AvailabilityZoneNotSupported"
)

// codes maps Azure's error codes, of the answers to calls and of failed operations.
var codes = map[string]cloud.Code{
	"TooManyRequests":               cloud.Throttled,
	"SubscriptionRequestsThrottled": cloud.Throttled,

	"QuotaExceeded":                   cloud.QuotaExceeded,
	"ResourceQuotaExceeded":           cloud.QuotaExceeded,
	"PublicIPCountLimitReached":       cloud.QuotaExceeded,
	"MaxPublicIpCountLimitReached":    cloud.QuotaExceeded,
	"PublicIPPrefixCountLimitReached": cloud.QuotaExceeded,
	// Addresses are also limited by allocation and SKU:
	// https://github.com/coreos/tectonic-installer/issues/1454
	"StaticPublicIPCountLimitReached":          cloud.QuotaExceeded,
	"StandardSkuPublicIPCountLimitReached":     cloud.QuotaExceeded,
	"IPv4StandardSkuPublicIpCountLimitReached": cloud.QuotaExceeded,
	"NetworkInterfaceCountLimitReached":        cloud.QuotaExceeded,

	"SkuNotAvailable":                           cloud.NoCapacity,
	"AllocationFailed":                          cloud.NoCapacity,
	"ZonalAllocationFailed":                     cloud.NoCapacity,
	"OverconstrainedAllocationRequest":          cloud.NoCapacity,
	"OverconstrainedZonalAllocationRequest":     cloud.NoCapacity,
	"SubnetIsFull":                              cloud.NoCapacity,
	"CapacityReservationGroupOverallocated":     cloud.NoCapacity,
	"DedicatedHostAllocationFailed":             cloud.NoCapacity,
	"SpotEvicted":                               cloud.NoCapacity,
	"AllocationTimeout":                         cloud.NoCapacity,
	"VMSizeNotSupportedByDedicatedHostCapacity": cloud.NoCapacity,
	// The zone is not one for this kind of resource, size or subscription; another one may be.
	invalidZone:      cloud.NoCapacity,
	zoneNotSupported: cloud.NoCapacity,

	"AuthorizationFailed":              cloud.Unauthorized,
	"LinkedAuthorizationFailed":        cloud.Unauthorized,
	"RequestDisallowedByPolicy":        cloud.Unauthorized,
	"ReadOnlyDisabledSubscription":     cloud.Unauthorized,
	"SubscriptionNotFound":             cloud.Unauthorized,
	"InvalidAuthenticationToken":       cloud.Unauthorized,
	"InvalidAuthenticationTokenTenant": cloud.Unauthorized,
	"ExpiredAuthenticationToken":       cloud.Unauthorized,
	"AuthenticationFailed":             cloud.Unauthorized,
	"AccountIsDisabled":                cloud.Unauthorized,
	"DisallowedOperation":              cloud.Unauthorized,

	"ResourceGroupNotFound":     cloud.NotFound,
	resourceNotFound:            cloud.NotFound,
	notFound:                    cloud.NotFound,
	"ParentResourceNotFound":    cloud.NotFound,
	"GalleryImageNotFound":      cloud.NotFound,
	"DiskEncryptionSetNotFound": cloud.NotFound,
	// A subnet, a security group or the like that does not exist (yet):
	// https://github.com/Azure/azure-cli/issues/8569
	"InvalidResourceReference": cloud.NotFound,

	"InvalidParameter":                    cloud.InvalidSpec,
	"InvalidRequestContent":               cloud.InvalidSpec,
	"InvalidRequestFormat":                cloud.InvalidSpec,
	badRequest:                            cloud.InvalidSpec,
	"PlatformImageNotFound":               cloud.InvalidSpec,
	"ImageNotFound":                       cloud.InvalidSpec,
	"VMMarketplaceInvalidInput":           cloud.InvalidSpec,
	"LinkedInvalidPropertyId":             cloud.InvalidSpec,
	"InvalidTagNameCharacters":            cloud.InvalidSpec,
	"NoRegisteredProviderFound":           cloud.InvalidSpec,
	"InvalidApiVersionParameter":          cloud.InvalidSpec,
	"LocationNotAvailableForResourceType": cloud.InvalidSpec,
	// https://github.com/kubernetes-sigs/cluster-api-provider-azure/issues/294
	noZones: cloud.InvalidSpec,

	preconditionFailed:   cloud.Conflict,
	propertyChange:       cloud.Conflict,
	conflictingUserInput: cloud.Conflict,
	operationNotAllowed:  cloud.Conflict,
	"ScopeLocked":        cloud.Conflict,
	// What somebody does for the subscription ends these, as their remedies say. Those of the
	// marketplace also pass by themselves.
	"MarketplacePurchaseEligibilityFailed": cloud.Conflict,
	"ResourcePurchaseValidationFailed":     cloud.Conflict,
	"MissingSubscriptionRegistration":      cloud.Conflict,
	anotherOperation:                       cloud.Conflict,
	"NicReservedForAnotherVm":              cloud.Conflict,
	"NicInUse":                             cloud.Conflict,
	"ResourceGroupBeingDeleted":            cloud.Conflict,
	"InUseNetworkInterfaceCannotBeDeleted": cloud.Conflict,
	"PublicIPAddressCannotBeDeleted":       cloud.Conflict,

	"RetryableError":                      cloud.Unavailable,
	"RetryableErrorDueToAnotherOperation": cloud.Unavailable,
	"InternalExecutionError":              cloud.Unavailable,
	"InternalServerError":                 cloud.Unavailable,
	"NetworkingInternalOperationError":    cloud.Unavailable,
	"ReferencedResourceNotProvisioned":    cloud.Unavailable,

	"CanceledAndSupersededDueToAnotherOperation": cloud.Unavailable,

	"ServerTimeout":               cloud.Unavailable,
	"GatewayTimeout":              cloud.Unavailable,
	"VMStartTimedOut":             cloud.Unavailable,
	"OSProvisioningTimedOut":      cloud.Unavailable,
	"OSProvisioningInternalError": cloud.Unavailable,
	"OSProvisioningClientError":   cloud.InvalidSpec,
}

// remedies say what to do about codes whose message does not.
var remedies = map[string]string{
	"LinkedAuthorizationFailed":            "give the credentials' identity the role that docs/clouds/azure.md shows on the subnet, too",
	"ResourcePurchaseValidationFailed":     "accept the terms once: az vm image terms accept --urn PUBLISHER:OFFER:SKU:VERSION",
	"MarketplacePurchaseEligibilityFailed": "accept the terms once: az vm image terms accept --urn PUBLISHER:OFFER:SKU:VERSION",
	"VMMarketplaceInvalidInput":            "set image.marketplace.plan, or image.plan for an image that was made from one with a plan",
	"MissingSubscriptionRegistration":      "register the resource provider once: az provider register --namespace Microsoft.Compute",
	"ScopeLocked":                          "remove the lock from the resource group",
}

// failure is the error in Azure's answer. Its details hold the cause where the code is a wrapper's.
type failure struct {
	Code    string    `json:"code"`
	Message string    `json:"message"`
	Details []failure `json:"details,omitempty"`
}

// cause returns the most specific failure whose code is known, or the failure itself. A BadRequest
// inside a known failure says less than that, but has the words that explain it
// (https://github.com/MicrosoftDocs/azure-docs/pull/25359).
func (f failure) cause() failure {
	for _, detail := range f.Details {
		switch inner := detail.cause(); {
		case inner.Code == badRequest && codes[f.Code] != "":
			return failure{Code: f.Code, Message: inner.Message}
		case codes[inner.Code] != "":
			return inner
		}
	}
	return f
}

// codeOf maps a failure with the HTTP status of its answer; 0: it is an operation's.
func codeOf(f failure, status int) cloud.Code {
	words := strings.ToLower(f.Message)
	switch {
	case strings.HasPrefix(f.Code, "RetryableError"), codes[f.Code] == cloud.Unavailable: // even with 429
		return cloud.Unavailable
	case status == http.StatusTooManyRequests:
		return cloud.Throttled
	case status == http.StatusUnauthorized:
		return cloud.Unauthorized
	case status == http.StatusPreconditionFailed:
		return cloud.Conflict
	case f.Code == operationNotAllowed && strings.Contains(words, "quota"):
		return cloud.QuotaExceeded
	}
	code := codes[f.Code]
	vague := code == cloud.InvalidSpec || code == "" && status != http.StatusForbidden && status < http.StatusInternalServerError
	switch {
	case vague && f.Code != noZones && ofZone(words):
		return cloud.NoCapacity
	case vague && strings.Contains(words, "was not found"): // an identity, say
		return cloud.NotFound
	case code != "":
		return code
	case strings.HasSuffix(f.Code, notFound):
		return cloud.NotFound
	case strings.HasSuffix(f.Code, "CountLimitReached"): // of another kind of resource
		return cloud.QuotaExceeded
	case strings.HasPrefix(f.Code, "Invalid"):
		return cloud.InvalidSpec
	case status == http.StatusForbidden:
		return cloud.Unauthorized
	case status >= http.StatusInternalServerError:
		return cloud.Unavailable
	}
	return cloud.Unknown
}

// ofZone reports whether a refusal's words, in lower case, are about the zone that the request
// names: what the zone lacks, another zone may have. Azure has no codes of their own for features
// of disks, hosts and reservations in a zone. "In an Availability Zone" is what the words have that
// ask for any zone (https://github.com/hashicorp/terraform-provider-azurerm/pull/3860).
func ofZone(words string) bool {
	return !strings.Contains(words, "in an availability zone") &&
		(strings.Contains(words, "availability zone") || strings.Contains(words, "in zone") || strings.Contains(words, "zone(s)"))
}

// refusal returns the error for an answer with a status that is not a success.
func (d *driver) refusal(a *driverkit.Answer) error {
	var answer struct {
		Error failure `json:"error"`
	}
	if a.Holds(&answer) && answer.Error.Code != "" {
		return d.failed(a.Operation, answer.Error, a.Status, a.Header)
	}
	return a.Foreign()
}

// failed returns the error for a failure.
func (d *driver) failed(op string, f failure, status int, header http.Header) error {
	f = f.cause()
	e := d.api.Secrets.Refused(op, codeOf(f, status), f.Code, f.Message, header)
	if remedy := remedies[f.Code]; remedy != "" {
		e.Message += " (" + remedy + ")"
	}
	if status == http.StatusPreconditionFailed {
		e.Err = driverkit.Refusal{Word: preconditionFailed, Shown: e.Err.Error()}
	}
	return e
}
