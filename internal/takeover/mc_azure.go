// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"maps"
	"strings"

	"k8s.io/utils/ptr"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
)

// mcAzureSpec has the fields of a cloudProviderSpec for Azure, v1.62.
type mcAzureSpec struct {
	SubscriptionID        mcVar    `json:"subscriptionID"`
	TenantID              mcVar    `json:"tenantID"`
	ClientID              mcVar    `json:"clientID"`
	ClientSecret          mcVar    `json:"clientSecret"`
	Location              mcVar    `json:"location"`
	ResourceGroup         mcVar    `json:"resourceGroup"`
	VNetResourceGroup     mcVar    `json:"vnetResourceGroup"`
	VMSize                mcVar    `json:"vmSize"`
	VNetName              mcVar    `json:"vnetName"`
	SubnetName            mcVar    `json:"subnetName"`
	LoadBalancerSKU       mcVar    `json:"loadBalancerSku"`
	RouteTableName        mcVar    `json:"routeTableName"`
	AvailabilitySet       mcVar    `json:"availabilitySet"`
	AssignAvailabilitySet *bool    `json:"assignAvailabilitySet"`
	SecurityGroupName     mcVar    `json:"securityGroupName"`
	Zones                 []string `json:"zones"`
	ImagePlan             *struct {
		Name      string `json:"name"`
		Publisher string `json:"publisher"`
		Product   string `json:"product"`
	} `json:"imagePlan"`
	ImageReference *struct {
		Publisher string `json:"publisher"`
		Offer     string `json:"offer"`
		SKU       string `json:"sku"`
		Version   string `json:"version"`
	} `json:"imageReference"`
	ImageID               mcVar             `json:"imageID"`
	OSDiskSize            int32             `json:"osDiskSize"`
	OSDiskSKU             *string           `json:"osDiskSKU"`
	DataDiskSize          int32             `json:"dataDiskSize"`
	DataDiskSKU           *string           `json:"dataDiskSKU"`
	AssignPublicIP        mcVar             `json:"assignPublicIP"`
	PublicIPSKU           *string           `json:"publicIPSKU"`
	AcceleratedNetworking *bool             `json:"enableAcceleratedNetworking"`
	BootDiagnostics       *bool             `json:"enableBootDiagnostics"`
	Tags                  map[string]string `json:"tags"`
	Security              *struct {
		Type       string `json:"securityType"`
		SecureBoot *bool  `json:"secureBootEnabled"`
		VTPM       *bool  `json:"vTpmEnabled"`
	} `json:"securityProfile"`
}

// mcCleanups are the finalizers of Machines on Azure, one for each kind of their resources.
var mcCleanups = []string{
	"kubermatic.io/cleanup-azure-public-ip", "kubermatic.io/cleanup-azure-public-ipv6", "kubermatic.io/cleanup-azure-nic",
	"kubermatic.io/cleanup-azure-disks", "kubermatic.io/cleanup-azure-vm",
}

// mcAzure maps a cloudProviderSpec to the fields of a machine. Credentials are the DroverAccount's,
// and load balancers and routes are the cloud controller's.
func (s findings) mcAzure(pool *Pool, from map[string]any, system, family string, target *Target) {
	const at = "spec.template.spec.providerSpec.value.cloudProviderSpec"
	spec := &mcAzureSpec{}
	if !s.decode(map[string]any{at: from}, at, spec) {
		return
	}
	text := func(field string, v mcVar) string { return s.text(at+"."+field, v) }
	s.azureAccount(at+".", text("location", spec.Location), text("resourceGroup", spec.ResourceGroup), target)
	if id := spec.SubscriptionID.value; id != "" && id != target.Account.Spec.Cloud.Azure.SubscriptionID {
		s.addRefused(at+".subscriptionID", "it is %q, and the DroverAccount's is %q", id, target.Account.Spec.Cloud.Azure.SubscriptionID)
	}
	nic := infrav1.AzureNetworkInterface{
		SubnetID: target.onAzure(text("vnetResourceGroup", spec.VNetResourceGroup), "Microsoft.Network/virtualNetworks",
			text("vnetName", spec.VNetName)+"/subnets/"+text("subnetName", spec.SubnetName)),
		AcceleratedNetworking: enabledIf(ptr.Deref(spec.AcceleratedNetworking, false)), IPv6: enabledIf(strings.Contains(family, "IPv6")),
	}
	if name := text("securityGroupName", spec.SecurityGroupName); name != "" {
		nic.SecurityGroupID = target.onAzure("", "Microsoft.Network/networkSecurityGroups", name)
	}
	if text("assignPublicIP", spec.AssignPublicIP) == "true" {
		nic.PublicIP = &infrav1.AzurePublicIP{}
		if !strings.EqualFold(ptr.Deref(spec.PublicIPSKU, "Basic"), "Standard") {
			s.addNote(at+".publicIPSKU", "the public addresses of new machines are of the SKU Standard, which lets nothing in that no security group permits")
		}
	}
	m := &infrav1.AzureMachine{
		VMSize: text("vmSize", spec.VMSize), Image: infrav1.AzureImage{ID: text("imageID", spec.ImageID)},
		NetworkInterfaces: []infrav1.AzureNetworkInterface{nic},
		OSDisk:            &infrav1.AzureOSDisk{SizeGiB: spec.OSDiskSize},
		Tags:              maps.Clone(spec.Tags),
		BootDiagnostics:   stateOf(ptr.Deref(spec.BootDiagnostics, false)),
	}
	// getStorageProfile in pkg/cloudprovider/provider/azure/provider.go of
	// https://github.com/kubermatic/machine-controller
	switch sku := ptr.Deref(spec.OSDiskSKU, ""); {
	case spec.OSDiskSize > 0:
		m.OSDisk.Type = infrav1.AzureOSDiskType(sku)
	case sku != "":
		s.addNote(at+".osDiskSKU", "machine-controller ignores it without osDiskSize, and so do new machines")
	}
	s.mcAzureImage(pool, m, spec, system)
	s.mcAzurePlace(pool, m, spec, target)
	if spec.DataDiskSize > 0 {
		sku := infrav1.AzureDataDiskType(ptr.Deref(spec.DataDiskSKU, ""))
		m.DataDisks = []infrav1.AzureDataDisk{{LUN: ptr.To[int32](0), SizeGiB: spec.DataDiskSize, Type: sku}}
		m.UltraSSD = enabledIf(sku == infrav1.AzureDataDiskUltraSSDLRS)
	}
	if security := spec.Security; security != nil {
		m.Security = infrav1.AzureSecurity{Type: infrav1.AzureSecurityType(security.Type), SecureBoot: stateIfSet(security.SecureBoot),
			VTPM: stateIfSet(security.VTPM)}
	}
	pool.Machine, pool.Keys = target.fields(infrav1.DroverMachineFields{Cloud: infrav1.MachineCloud{Azure: m}}), []string{mcKey}
}

// mcPlan returns the purchase plan with which machine-controller makes VMs of an operating system,
// whatever their image, or nil.
func mcPlan(system string) *infrav1.AzurePlan {
	switch system {
	case "rhel":
		return &infrav1.AzurePlan{Publisher: "redhat", Product: "rhel-byos", Name: "rhel-lvm95"}
	case "rockylinux":
		return &infrav1.AzurePlan{Publisher: "resf", Product: "rockylinux-x86_64", Name: "9-base"}
	}
	return nil
}

// mcAzureImage maps the image and its purchase plan. Without an image, machine-controller chooses
// by the operating system, and new machines get that of a running VM.
func (s findings) mcAzureImage(pool *Pool, m *infrav1.AzureMachine, spec *mcAzureSpec, system string) {
	const at = "spec.template.spec.providerSpec.value.cloudProviderSpec."
	plan, field := mcPlan(system), at+"imageReference"
	if p := spec.ImagePlan; p != nil && p.Name != "" { // without a name, there as if it were missing
		plan, field = &infrav1.AzurePlan{Publisher: p.Publisher, Product: p.Product, Name: p.Name}, at+"imagePlan"
	}
	if i := spec.ImageReference; i != nil && m.Image.ID == "" {
		m.Image.Marketplace = &infrav1.AzureMarketplaceImage{Publisher: i.Publisher, Offer: i.Offer, SKU: i.SKU, Version: i.Version}
	}
	if m.Image == (infrav1.AzureImage{}) {
		pool.plan = plan
		return
	}
	if !buy(&m.Image, plan) {
		s.addLost(field, "new machines are made without the purchase plan %s %s %s of the old ones, which is not that of their image",
			plan.Publisher, plan.Product, plan.Name)
	}
}

// buy gives an image its purchase plan; nil: it has none. It reports whether the image can have it:
// an image of the marketplace has its own.
func buy(image *infrav1.AzureImage, plan *infrav1.AzurePlan) bool {
	m := image.Marketplace
	switch {
	case plan == nil:
	case m == nil:
		image.Plan = *plan
	case strings.EqualFold(plan.Publisher, m.Publisher) && strings.EqualFold(plan.Product, m.Offer) && strings.EqualFold(plan.Name, m.SKU):
		m.Plan = infrav1.AzurePlanRequired
	default:
		return false
	}
	return true
}

// mcAzurePlace maps where VMs are: in an availability set, or in a zone.
func (s findings) mcAzurePlace(pool *Pool, m *infrav1.AzureMachine, spec *mcAzureSpec, target *Target) {
	const at = "spec.template.spec.providerSpec.value.cloudProviderSpec"
	if name := s.text(at+".availabilitySet", spec.AvailabilitySet); name != "" && ptr.Deref(spec.AssignAvailabilitySet, true) {
		m.AvailabilitySetID = target.onAzure("", "Microsoft.Compute/availabilitySets", name)
		return
	}
	if len(spec.Zones) > 1 {
		s.addRefused(at+".zones", "there are %d, and a machine is in one", len(spec.Zones))
	}
	if len(spec.Zones) > 0 {
		pool.FailureDomain = spec.Zones[0]
	}
}
