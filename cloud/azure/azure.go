// SPDX-License-Identifier: Apache-2.0

// Package azure is the driver for Azure virtual machines. It makes its own calls of Azure Resource
// Manager; the Azure SDK only obtains tokens. It imports no Kubernetes client and no other driver.
// All its traffic goes through the account's transport.
package azure

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
)

const (
	// maxCustomData is Azure's limit for customData in bytes, before base64.
	maxCustomData = 65535
	// maxDelete is how many deletions one Delete carries: at deletesAtOnce, they end within the
	// time of one call.
	maxDelete, deletesAtOnce = 100, 20
	// maxDescribe is how many machines one Describe carries: more than a few are read by a listing.
	maxDescribe = 300

	maxTagKey, maxTagValue = 512, 256
)

const (
	// listLag is how long a listing of a resource group may miss a new resource. Azure documents no
	// figure; users have seen seconds.
	listLag = 30 * time.Second
	// shutdown is how long a virtual machine usually takes to be deleted.
	shutdown = 20 * time.Second
	// leftoversTTL is how often a listing looks for network interfaces, disks and addresses without
	// a machine.
	leftoversTTL = 5 * time.Minute
	// powerTTL is how often a listing asks which machines are stopped.
	powerTTL = 3 * time.Minute
	// failureTTL is how long the reason of a failed creation is cached. It does not change.
	failureTTL = time.Hour
	// zonesTTL is how long the location's zones are cached, and frontendTTL is that of a load
	// balancer's public address, which is static.
	zonesTTL, frontendTTL = time.Hour, 24 * time.Hour
	// sizesTTL is how long the catalog of sizes is cached. It has megabytes. rereadTTL is how often
	// it is read again for a size that it lacks: as often as such a machine is tried again.
	sizesTTL, rereadTTL = 24 * time.Hour, 10 * time.Minute
	// tokenTTL is how long a token is used without asking the SDK, which renews a token five
	// minutes before it ends.
	tokenTTL = time.Minute
	// creationPeriod is after how long a running machine in state Failed is one whose update
	// failed, not its creation.
	creationPeriod = 20 * time.Minute
)

// union selects Azure's members of DroverAccount and DroverMachine.
var union = driverkit.Fields[infrav1.AzureAccount, infrav1.AzureMachine]{
	Account:      func(a *infrav1.DroverAccountSpec) *infrav1.AzureAccount { return a.Cloud.Azure },
	Machine:      func(m *infrav1.DroverMachineFields) *infrav1.AzureMachine { return m.Cloud.Azure },
	CheckAccount: validateAccount,
	CheckMachine: validateMachine,
}

// Cloud returns Azure's entry in the registry.
func Cloud() cloud.Cloud {
	return cloud.Cloud{
		Name:  "azure",
		Union: union,
		New:   newDriver,
		Endpoint: func(spec *infrav1.DroverAccountSpec) string {
			if c := spec.Cloud.Azure.Custom; c != (infrav1.AzureCustomCloud{}) {
				return strings.Join([]string{c.Endpoint, c.AuthorityHost, c.Audience, c.CABundle}, "\n")
			}
			return ""
		},
		// "Understand throttling at Microsoft.Compute": 500 creates and 500 deletes, but only 300
		// lists, a minute for each subscription and location. Others share them.
		Limits: cloud.Limits{
			Create: cloud.Limit{PerSecond: 5, Burst: 150},
			Delete: cloud.Limit{PerSecond: 5, Burst: 150},
			Read:   cloud.Limit{PerSecond: 4, Burst: 100},
		},
		Traits:        cloud.Traits{ReadLag: listLag, TerminationTime: shutdown, Named: true},
		CheckUserData: driverkit.MaxUserData(maxCustomData),
		Batch:         cloud.Batch{Read: maxDescribe, Delete: maxDelete},
		ProviderID: func(spec *infrav1.DroverAccountSpec) string {
			return providerID(pathOf(spec.Cloud.Azure, virtualMachines) + "/{{ ds.meta_data.imds.compute.name }}")
		},
	}
}

// providerID returns the provider ID as Azure's cloud controller writes it.
func providerID(id string) string { return "azure://" + id }

// pathOf returns the path of a kind's resources in the account's resource group. The cloud
// controller writes the group in lower case, and Azure accepts it in any case.
func pathOf(account *infrav1.AzureAccount, kind string) string {
	return "/subscriptions/" + account.SubscriptionID + "/resourceGroups/" + strings.ToLower(account.ResourceGroup) + "/providers/" + kind
}

func validateAccount(spec *infrav1.DroverAccountSpec, path *field.Path) field.ErrorList {
	if spec.Cloud.Azure.Custom != (infrav1.AzureCustomCloud{}) && spec.CredentialsRef.Name == "" {
		return field.ErrorList{field.Forbidden(path.Child("cloud", "azure", "custom"),
			"a custom endpoint needs its own credentials: set credentialsRef")}
	}
	return nil
}

func validateMachine(m *infrav1.AzureMachine, path *field.Path) field.ErrorList {
	path = path.Child("cloud", "azure")
	var all field.ErrorList
	for key, value := range m.Tags {
		switch {
		case key == "" || len(key) > maxTagKey || len(value) > maxTagValue || strings.ContainsAny(key, `<>%&\?/`):
			all = append(all, field.Invalid(path.Child("tags").Key(cloud.Clip(key, maxTagKey)), cloud.Clip(value, maxTagValue),
				fmt.Sprintf(`a tag must have a key of 1 to %d bytes without <>%%&\?/ and a value of at most %d bytes`, maxTagKey, maxTagValue)))
		case strings.HasPrefix(strings.ToLower(key), "drover-"):
			all = append(all, field.Forbidden(path.Child("tags").Key(key), "the prefix \"drover-\" is reserved"))
		}
	}
	if m.OSDisk != nil && m.OSDisk.SecurityEncryptionType != "" && m.Security.Type != infrav1.AzureSecurityConfidentialVM {
		all = append(all, field.Forbidden(path.Child("osDisk", "securityEncryptionType"), "needs security.type ConfidentialVM"))
	}
	for i := range m.DataDisks {
		if m.DataDisks[i].Type == infrav1.AzureDataDiskUltraSSDLRS && m.UltraSSD != infrav1.FeatureEnabled {
			all = append(all, field.Required(path.Child("ultraSSD"), fmt.Sprintf("dataDisks[%d] is of type UltraSSD_LRS", i)))
		}
	}
	if m.BootDiagnosticsStorageURI != "" && m.BootDiagnostics == infrav1.FeatureDisabled {
		all = append(all, field.Forbidden(path.Child("bootDiagnosticsStorageURI"), "needs bootDiagnostics"))
	}
	return all
}
