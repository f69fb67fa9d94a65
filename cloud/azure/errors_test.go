// SPDX-License-Identifier: Apache-2.0

package azure

import (
	"net/http"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/azure/armstub"
)

// TestRefusalsThatEnd: what somebody makes or permits outside of the machine's fields is looked for
// again within minutes. The answers are those of the reports beside them.
func TestRefusalsThatEnd(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		body string
		code cloud.Code
		text string
	}{
		"a subnet to come": { // https://github.com/Azure/azure-cli/issues/8569
			`{"code":"InvalidResourceReference","message":"Resource /subscriptions/s/resourceGroups/net/providers/Microsoft.Network/virtualNetworks/v/subnets/nodes referenced by resource ` +
				`/subscriptions/s/resourceGroups/r/providers/Microsoft.Network/networkInterfaces/m-1-nic0 was not found.","details":[]}`,
			cloud.NotFound, "subnets/nodes"},
		"a network to come": { // https://github.com/fortinetsolutions/Azure-Templates/issues/1
			`{"code":"InvalidResourceReference","message":"Resource a referenced by resource b was not found.","details":[{"code":"NotFound","message":"Resource a not found."}]}`, cloud.NotFound, "not found"},
		"terms": { // https://github.com/MicrosoftDocs/azure-docs/issues/12998
			`{"code":"ResourcePurchaseValidationFailed","message":"User failed validation to purchase resources. Error message: 'Legal terms have not been accepted for this item on this subscription.'"}`,
			cloud.Conflict, "az vm image terms accept"},
		"terms of a wrapped refusal": { // https://github.com/MicrosoftDocs/azure-docs/pull/25359
			`{"code":"MarketplacePurchaseEligibilityFailed","message":"Marketplace purchase eligibilty check returned errors. See inner errors for details. ","details":[{"code":"BadRequest",` +
				`"message":"Offer with PublisherId: bitnami, OfferId: rabbitmq cannot be purchased due to validation errors."}]}`, cloud.Conflict,
			"OfferId: rabbitmq cannot be purchased"},
		"a provider to register": {`{"code":"MissingSubscriptionRegistration","message":"The subscription is not registered to use namespace 'Microsoft.Compute'."}`, cloud.Conflict, "az provider register"},
		"an identity to come": { // https://github.com/Azure/azure-policy/issues/1311
			`{"code":"FailedIdentityOperation","message":"Identity operation for resource 'm-1' failed with error 'Failed to perform resource identity operation. Status: 'BadRequest'. ` +
				`Response: '{\"error\":{\"code\":\"BadRequest\",\"message\":\"Resource 'nodes' was not found.\"}}'."}`, cloud.NotFound,
			"FailedIdentityOperation"},
		"a lock": {`{"code":"ScopeLocked","message":"The scope cannot perform write operation because following scope(s) are locked"}`,
			cloud.Conflict, "remove the lock"},
		"a policy": {`{"code":"RequestDisallowedByPolicy","message":"Resource was disallowed by policy."}`, cloud.Unauthorized, "policy"},
		"a field": {`{"code":"InvalidParameter","message":"The value of parameter osDisk.diskSizeGB is invalid."}`, cloud.InvalidSpec,
			"diskSizeGB"},
		"a field of a wrapped refusal": {`{"code":"DeploymentFailed","message":"x","details":[{"code":"BadRequest","message":"The selected VM size cannot boot Hypervisor Generation '1'."}]}`,
			cloud.InvalidSpec, "Hypervisor"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			stub := start(t, armstub.Options{})
			stub.Inject(armstub.Fault{Operation: "PUT virtualMachines", Status: http.StatusBadRequest, Body: `{"error":` + test.body + `}`})
			_, err := connect(t, stub).Ensure(t.Context(), testRequest("m-1", nil))
			g.Expect(cloud.CodeOf(err)).To(Equal(test.code), "%v", err)
			g.Expect(err.Error()).To(ContainSubstring(test.text))
		})
	}
}

// TestZoneRefuses: what a zone lacks, another zone may have. A zone that the location does not have
// is a mistake.
func TestZoneRefuses(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		zone, code, message string
		want                cloud.Code
	}{
		"not for the resource": {"2", "InvalidAvailabilityZone",
			"The zone(s) '2' for resource 'm-1' is not supported. The supported zones for location 'westeurope' are '1,3'", cloud.NoCapacity},
		"not supported": {"3", "AvailabilityZoneNotSupported", "The zone(s) '3' for resource 'm-1' is not supported.", cloud.NoCapacity},
		"no such zone":  {"7", "InvalidAvailabilityZone", "The zone(s) '7' for resource 'm-1' is not supported.", cloud.InvalidSpec},
		"a feature": {"2", "InvalidParameter", "Ultra disks are not supported for this VM size in availability zone '2'.",
			cloud.NoCapacity},
		"a new code": {"2", "HostGroupZoneMismatch", "The dedicated host group is not in zone '2'.", cloud.NoCapacity},
		"any zone": { // https://github.com/hashicorp/terraform-provider-azurerm/pull/3860
			"", "InvalidParameter", "UltraSSD can be used only with Virtual Machine in an Availability Zone.", cloud.InvalidSpec},
		"a location without zones": { // https://github.com/kubernetes-sigs/cluster-api-provider-azure/issues/294
			"2", "ResourceTypeNotSupportAvailabilityZones",
			"The resource type 'virtualMachines' does not support availability zones at location 'southcentralus'.", cloud.InvalidSpec},
		"a quota":         {"2", "QuotaExceeded", "The quota of cores in zone '2' is used up.", cloud.QuotaExceeded},
		"an open outcome": {"2", "ZoneTrouble", "An error in zone '2'.", cloud.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stub := start(t, armstub.Options{})
			status := http.StatusBadRequest
			if test.want == cloud.Unavailable {
				status = http.StatusInternalServerError
			}
			stub.Inject(armstub.Fault{Operation: "PUT virtualMachines", Status: status, Code: test.code, Message: test.message})
			req := testRequest("m-1", nil)
			req.FailureDomain = test.zone
			_, err := connect(t, stub).Ensure(t.Context(), req)
			NewWithT(t).Expect(cloud.CodeOf(err)).To(Equal(test.want), "%v", err)
		})
	}
}

// TestLimitsOfSubscriptions: a limit on how many a subscription may have is a quota, whatever the
// answer's status. Those of addresses are found inside of another refusal, too.
func TestLimitsOfSubscriptions(t *testing.T) {
	t.Parallel()
	for code, wrapped := range map[string]bool{
		"PublicIPCountLimitReached":                true, // https://github.com/evgenyb/aks-workshops/issues/22
		"StaticPublicIPCountLimitReached":          true, // https://github.com/coreos/tectonic-installer/issues/1454
		"StandardSkuPublicIPCountLimitReached":     true,
		"IPv4StandardSkuPublicIpCountLimitReached": true,
		"NetworkInterfaceCountLimitReached":        true,
		"InvalidThingsCountLimitReached":           false, // of a kind that the driver does not know
	} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			limit := failure{Code: code, Message: "Cannot create more than 10 for this subscription in this region."}
			for _, status := range []int{0, http.StatusBadRequest, http.StatusForbidden, http.StatusConflict} {
				g.Expect(codeOf(limit, status)).To(Equal(cloud.QuotaExceeded), "%d", status)
			}
			if wrapped {
				g.Expect(failure{Code: "DeploymentFailed", Details: []failure{limit}}.cause()).To(Equal(limit))
			}
		})
	}
}
