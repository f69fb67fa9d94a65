// SPDX-License-Identifier: Apache-2.0

package v1beta1

// AzureCloudName is a cloud of Microsoft.
// +kubebuilder:validation:Enum=AzurePublic;AzureGovernment;AzureChina
type AzureCloudName string

const (
	// AzurePublic is the public cloud.
	AzurePublic AzureCloudName = "AzurePublic"
	// AzureGovernment is the cloud of the government of the United States.
	AzureGovernment AzureCloudName = "AzureGovernment"
	// AzureChina is the cloud in China.
	AzureChina AzureCloudName = "AzureChina"
)

// AzureAccount is a resource group of an Azure subscription, in one location. Its credentials
// Secret has the keys "tenantID" and "clientID", and one of "clientSecret", "clientCertificate" (PEM,
// with its private key) and "federatedToken".
// +kubebuilder:validation:XValidation:rule="has(self.custom) == has(oldSelf.custom) && (!has(self.custom) || self.custom.endpoint == oldSelf.custom.endpoint)",message="custom.endpoint can't be changed, because the account's machines would look gone: make a new DroverAccount"
// +kubebuilder:validation:XValidation:rule="!has(self.custom) || !has(self.cloud) || self.cloud == 'AzurePublic'",message="custom replaces Microsoft's clouds: leave out cloud, or custom"
// +kubebuilder:validation:XValidation:rule="(has(self.cloud) ? self.cloud : 'AzurePublic') == (has(oldSelf.cloud) ? oldSelf.cloud : 'AzurePublic')",message="cloud can't be changed: make a new DroverAccount"
type AzureAccount struct {
	// subscriptionID is the ID of the subscription. It is immutable: in a listing of another
	// subscription, all machines of this account would be gone.
	// Example: "00000000-1111-2222-3333-444444444444".
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="subscriptionID can't be changed: make a new DroverAccount"
	// +kubebuilder:validation:MinLength=36
	// +kubebuilder:validation:MaxLength=36
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`
	SubscriptionID string `json:"subscriptionID,omitempty"`

	// location is the Azure region in which machines are created. It is immutable.
	// Example: "westeurope".
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="location can't be changed: make a new DroverAccount"
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[a-z0-9]+$`
	Location string `json:"location,omitempty"`

	// resourceGroup is the resource group in which machines are created, with their network
	// interfaces, disks and public addresses. It must exist. It is immutable.
	// Example: "nodes".
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="resourceGroup can't be changed: make a new DroverAccount"
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=90
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9_().-]*[A-Za-z0-9_()-]$`
	ResourceGroup string `json:"resourceGroup,omitempty"`

	// cloud is the cloud of Microsoft that has the subscription. It is immutable.
	// Default: "AzurePublic".
	// +optional
	Cloud AzureCloudName `json:"cloud,omitempty"`

	// custom is a cloud other than these, such as one of Microsoft that is cut off from the
	// Internet. It needs credentialsRef. Its endpoint is immutable. Default: none.
	// +optional
	Custom AzureCustomCloud `json:"custom,omitempty,omitzero"`
}

// AzureCustomCloud is a cloud with endpoints of its own.
type AzureCustomCloud struct {
	// endpoint is the URL of Azure Resource Manager. It is immutable.
	// Example: "https://management.cloud.example".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^https://[^\s/?#@]+$`
	Endpoint string `json:"endpoint,omitempty"`

	// authorityHost is the URL of the service that issues tokens.
	// Example: "https://login.example".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^https://[^\s/?#@]+/?$`
	AuthorityHost string `json:"authorityHost,omitempty"`

	// audience is the audience of the tokens. Default: the endpoint.
	// Example: "https://management.example.onmicrosoft.com/4711".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	Audience string `json:"audience,omitempty"`

	// caBundle holds the PEM certificates of the authorities with which the services' certificates
	// are verified. Default: the authorities of the manager's system.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=65536
	CABundle string `json:"caBundle,omitempty"`
}

// AzureDiskController is how a machine accesses its disks.
// +kubebuilder:validation:Enum=SCSI;NVMe
type AzureDiskController string

const (
	// AzureDiskControllerSCSI is SCSI.
	AzureDiskControllerSCSI AzureDiskController = "SCSI"
	// AzureDiskControllerNVMe is NVMe.
	AzureDiskControllerNVMe AzureDiskController = "NVMe"
)

// AzureMachine is a virtual machine. Drover creates it with one call, together with its network
// interfaces, public addresses and disks. All of them are deleted with it. Its name is the name of
// the DroverMachine, if Azure accepts that name.
// +kubebuilder:validation:XValidation:rule="[has(self.availabilitySetID), has(self.scaleSetID), has(self.hostID), has(self.hostGroupID)].filter(x, x).size() <= 1",message="at most one of availabilitySetID, scaleSetID, hostID and hostGroupID can be set"
// +kubebuilder:validation:XValidation:rule="!has(self.faultDomain) || has(self.scaleSetID)",message="faultDomain needs scaleSetID"
// +kubebuilder:validation:XValidation:rule="!has(self.spot) || !has(self.availabilitySetID)",message="Azure has no spot machines in availability sets"
type AzureMachine struct {
	// vmSize is the size of the virtual machine.
	// Example: "Standard_D4s_v5".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9_-]+$`
	VMSize string `json:"vmSize,omitempty"`

	// image is the image to boot.
	// +required
	Image AzureImage `json:"image,omitempty,omitzero"`

	// networkInterfaces are the network interfaces of the machine. The first one is the primary
	// one.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	NetworkInterfaces []AzureNetworkInterface `json:"networkInterfaces,omitempty"`

	// osDisk is the disk that the machine boots from. Default: the image's size, as Standard HDD.
	// +optional
	OSDisk *AzureOSDisk `json:"osDisk,omitempty"`

	// dataDisks are additional disks. Default: none.
	// +optional
	// +listType=map
	// +listMapKey=lun
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	DataDisks []AzureDataDisk `json:"dataDisks,omitempty"`

	// availabilitySetID is the resource ID of the availability set of the machine. Such a machine
	// is in no zone. Default: none.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^/subscriptions/[^\s?#]+$`
	AvailabilitySetID string `json:"availabilitySetID,omitempty"`

	// scaleSetID is the resource ID of a scale set with flexible orchestration to which the machine
	// is attached. Drover does not change the scale set's capacity. Default: none.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^/subscriptions/[^\s?#]+$`
	ScaleSetID string `json:"scaleSetID,omitempty"`

	// faultDomain is the fault domain of the scale set. Default: Azure chooses.
	// Example: 1.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=4
	FaultDomain *int32 `json:"faultDomain,omitempty"`

	// proximityPlacementGroupID is the resource ID of the proximity placement group of the machine.
	// Default: none.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^/subscriptions/[^\s?#]+$`
	ProximityPlacementGroupID string `json:"proximityPlacementGroupID,omitempty"`

	// capacityReservationGroupID is the resource ID of the group of capacity reservations that the
	// machine uses. Default: none.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^/subscriptions/[^\s?#]+$`
	CapacityReservationGroupID string `json:"capacityReservationGroupID,omitempty"`

	// hostID is the resource ID of the dedicated host of the machine. Default: a host that others
	// share.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^/subscriptions/[^\s?#]+$`
	HostID string `json:"hostID,omitempty"`

	// hostGroupID is the resource ID of a group of dedicated hosts in which Azure chooses a host.
	// Default: none.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^/subscriptions/[^\s?#]+$`
	HostGroupID string `json:"hostGroupID,omitempty"`

	// identity is the managed identity that software on the machine can use. Default: none.
	// +optional
	Identity *AzureIdentity `json:"identity,omitempty"` //nolint:kubeapilinter // The struct is not comparable, and has no member that is always set.

	// spot makes the machine a cheaper one that Azure may evict at any time. Default: not a spot
	// machine.
	// +optional
	Spot *AzureSpot `json:"spot,omitempty"`

	// security specifies encryption and measured boot.
	// +optional
	Security AzureSecurity `json:"security,omitempty,omitzero"`

	// ultraSSD is "Enabled" to permit disks of type UltraSSD_LRS. Default: "Disabled".
	// +optional
	UltraSSD FeatureState `json:"ultraSSD,omitempty"`

	// diskController is the interface of the disks, "SCSI" or "NVMe". Default: SCSI.
	// +optional
	DiskController AzureDiskController `json:"diskController,omitempty"`

	// licenseType applies a license that you have.
	// Example: "RHEL_BYOS", "SLES_BYOS".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	LicenseType string `json:"licenseType,omitempty"`

	// bootDiagnostics is "Enabled" to keep the output of the serial console, so that Drover can
	// show it. Default: "Enabled".
	// +optional
	BootDiagnostics FeatureState `json:"bootDiagnostics,omitempty"`

	// bootDiagnosticsStorageURI is the blob endpoint of the storage account that keeps the boot
	// diagnostics. Drover can't show them then. Default: storage that Azure manages.
	// Example: "https://diagnostics.blob.core.windows.net/".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^https://[^\s?#@]+$`
	BootDiagnosticsStorageURI string `json:"bootDiagnosticsStorageURI,omitempty"`

	// adminUsername is the name of the user for logins. Default: "azureuser".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[a-z_][a-z0-9_-]*$`
	AdminUsername string `json:"adminUsername,omitempty"`

	// sshKeys are the public keys that may log in. Default: a key that nobody has, because Azure
	// requires one.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=2048
	SSHKeys []string `json:"sshKeys,omitempty"`

	// extensions is "Enabled" to permit that others install VM extensions on the machine. Default:
	// "Disabled".
	// +optional
	Extensions FeatureState `json:"extensions,omitempty"`

	// tags are added to the virtual machine, its network interfaces, its public addresses and its
	// disks, in addition to Drover's tags. Keys must not begin with "drover-".
	// Example: {"cost-center": "4711"}.
	// +optional
	// +kubebuilder:validation:MinProperties=1
	// +kubebuilder:validation:MaxProperties=40
	// +kubebuilder:validation:XValidation:rule="self.all(k, size(k) <= 512 && size(self[k]) <= 256)",message="a key has at most 512 characters, a value 256"
	Tags map[string]string `json:"tags,omitempty"`
}

// AzureImage names an image in one of four ways.
// +kubebuilder:validation:XValidation:rule="[has(self.id), has(self.marketplace), has(self.communityGalleryImageID), has(self.sharedGalleryImageID)].filter(x, x).size() == 1",message="exactly one of id, marketplace, communityGalleryImageID and sharedGalleryImageID must be set"
// +kubebuilder:validation:XValidation:rule="!has(self.plan) || !has(self.marketplace)",message="plan is for an image that was made from one of the marketplace: with marketplace, set marketplace.plan"
// +kubebuilder:validation:MinProperties=1
type AzureImage struct {
	// id is the resource ID of a managed image, or of an image or image version in a compute
	// gallery.
	// Example:
	// "/subscriptions/…/resourceGroups/images/providers/Microsoft.Compute/galleries/nodes/images/ubuntu/versions/1.36.0".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^/subscriptions/[^\s?#]+$`
	ID string `json:"id,omitempty"`

	// marketplace is an image of Azure's marketplace.
	// +optional
	Marketplace *AzureMarketplaceImage `json:"marketplace,omitempty"` //nolint:kubeapilinter // A pointer, because a union's member is set or nil.

	// communityGalleryImageID is the ID of an image or image version in a community gallery.
	// Example:
	// "/CommunityGalleries/ClusterAPI-f72ceb4f-5159-4c26-a0fe-2ea738f0d019/Images/capi-ubun2-2404/Versions/1.34.0".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^/[Cc]ommunity[Gg]alleries/[^\s?#]+$`
	CommunityGalleryImageID string `json:"communityGalleryImageID,omitempty"`

	// sharedGalleryImageID is the ID of an image or image version in a gallery that another
	// subscription or tenant shares with this one.
	// Example: "/SharedGalleries/4711-nodes/Images/ubuntu/Versions/latest".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^/[Ss]hared[Gg]alleries/[^\s?#]+$`
	SharedGalleryImageID string `json:"sharedGalleryImageID,omitempty"`

	// plan is the plan of the marketplace's image from which this image was made.
	// +optional
	Plan AzurePlan `json:"plan,omitempty,omitzero"`
}

// AzureMarketplaceImage is an image of Azure's marketplace.
type AzureMarketplaceImage struct {
	// publisher is the publisher of the image.
	// Example: "Canonical".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	Publisher string `json:"publisher,omitempty"`

	// offer is the offer of the publisher.
	// Example: "ubuntu-24_04-lts".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	Offer string `json:"offer,omitempty"`

	// sku is the image of the offer.
	// Example: "server".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	SKU string `json:"sku,omitempty"`

	// version is the version of the image; "latest" is the one when the machine is created.
	// Default: "latest".
	// Example: "24.04.202605010".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	Version string `json:"version,omitempty"`

	// plan is "Required" if the image has a purchase plan, which has the names of the image.
	// Somebody must have accepted its terms for the subscription. Default: "None".
	// +optional
	Plan AzurePlanUse `json:"plan,omitempty"`
}

// AzurePlanUse specifies whether an image of the marketplace has a purchase plan.
// +kubebuilder:validation:Enum=None;Required
type AzurePlanUse string

const (
	// AzurePlanNone is for an image without a plan.
	AzurePlanNone AzurePlanUse = "None"
	// AzurePlanRequired is for an image with a plan, which has the image's names.
	AzurePlanRequired AzurePlanUse = "Required"
)

// AzurePlan is a purchase plan of the marketplace.
type AzurePlan struct {
	// publisher is the publisher of the plan.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	Publisher string `json:"publisher,omitempty"`

	// product is the offer.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	Product string `json:"product,omitempty"`

	// name is the name of the plan.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	Name string `json:"name,omitempty"`
}

// AzureNetworkInterface is a network interface.
type AzureNetworkInterface struct {
	// subnetID is the resource ID of the subnet.
	// Example:
	// "/subscriptions/…/resourceGroups/net/providers/Microsoft.Network/virtualNetworks/vnet/subnets/nodes".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^/subscriptions/[^\s?#]+/subnets/[^\s/?#]+$`
	SubnetID string `json:"subnetID,omitempty"`

	// acceleratedNetworking is "Enabled" to bypass the host's virtual switch, if the size supports
	// it. Default: "Disabled".
	// +optional
	AcceleratedNetworking FeatureState `json:"acceleratedNetworking,omitempty"`

	// ipForwarding is "Enabled" to permit traffic of other addresses, such as those of Pods.
	// Default: "Disabled".
	// +optional
	IPForwarding FeatureState `json:"ipForwarding,omitempty"`

	// ipv6 is "Enabled" to add an IPv6 address of the subnet. Default: "Disabled".
	// +optional
	IPv6 FeatureState `json:"ipv6,omitempty"`

	// publicIP gives the interface a public IPv4 address. Default: none.
	// +optional
	PublicIP *AzurePublicIP `json:"publicIP,omitempty"`

	// securityGroupID is the resource ID of the network security group. Default: the subnet's.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^/subscriptions/[^\s?#]+$`
	SecurityGroupID string `json:"securityGroupID,omitempty"`

	// applicationSecurityGroupIDs are the resource IDs of application security groups. Default:
	// none.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=20
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=512
	// +kubebuilder:validation:items:Pattern=`^/subscriptions/[^\s?#]+$`
	ApplicationSecurityGroupIDs []string `json:"applicationSecurityGroupIDs,omitempty"`

	// loadBalancerBackendPoolIDs are the resource IDs of the load balancers' backend pools to which
	// the interface is added. Default: none.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=512
	// +kubebuilder:validation:items:Pattern=`^/subscriptions/[^\s?#]+$`
	LoadBalancerBackendPoolIDs []string `json:"loadBalancerBackendPoolIDs,omitempty"`

	// applicationGatewayBackendPoolIDs are the resource IDs of the application gateways' backend
	// pools to which the interface is added. Default: none.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=512
	// +kubebuilder:validation:items:Pattern=`^/subscriptions/[^\s?#]+$`
	ApplicationGatewayBackendPoolIDs []string `json:"applicationGatewayBackendPoolIDs,omitempty"`

	// dnsServers are the addresses of the DNS servers. Default: those of the virtual network.
	// Example: ["10.0.0.10"].
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=10
	// +kubebuilder:validation:items:MinLength=2
	// +kubebuilder:validation:items:MaxLength=64
	DNSServers []string `json:"dnsServers,omitempty"`
}

// AzurePublicIP is a public address of SKU Standard.
type AzurePublicIP struct {
	// prefixID is the resource ID of the prefix that the address is from. Default: any address.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^/subscriptions/[^\s?#]+$`
	PrefixID string `json:"prefixID,omitempty"`
}

// AzureOSDiskType is the storage of an operating system disk.
// +kubebuilder:validation:Enum=Standard_LRS;StandardSSD_LRS;StandardSSD_ZRS;Premium_LRS;Premium_ZRS
type AzureOSDiskType string

const (
	// AzureOSDiskStandardLRS is a standard HDD.
	AzureOSDiskStandardLRS AzureOSDiskType = "Standard_LRS"
	// AzureOSDiskStandardSSDLRS is a standard SSD.
	AzureOSDiskStandardSSDLRS AzureOSDiskType = "StandardSSD_LRS"
	// AzureOSDiskStandardSSDZRS is a standard SSD, replicated over zones.
	AzureOSDiskStandardSSDZRS AzureOSDiskType = "StandardSSD_ZRS"
	// AzureOSDiskPremiumLRS is a premium SSD.
	AzureOSDiskPremiumLRS AzureOSDiskType = "Premium_LRS"
	// AzureOSDiskPremiumZRS is a premium SSD, replicated over zones.
	AzureOSDiskPremiumZRS AzureOSDiskType = "Premium_ZRS"
)

// AzureCaching specifies how the host caches a disk.
// +kubebuilder:validation:Enum=None;ReadOnly;ReadWrite
type AzureCaching string

const (
	// AzureCachingNone caches nothing.
	AzureCachingNone AzureCaching = "None"
	// AzureCachingReadOnly caches reads.
	AzureCachingReadOnly AzureCaching = "ReadOnly"
	// AzureCachingReadWrite caches reads and writes.
	AzureCachingReadWrite AzureCaching = "ReadWrite"
)

// AzureDiskSecurity specifies what of a confidential machine is encrypted.
// +kubebuilder:validation:Enum=DiskWithVMGuestState;VMGuestStateOnly;NonPersistedTPM
type AzureDiskSecurity string

const (
	// AzureDiskWithVMGuestState encrypts the disk and the state of the guest.
	AzureDiskWithVMGuestState AzureDiskSecurity = "DiskWithVMGuestState"
	// AzureVMGuestStateOnly encrypts the state of the guest.
	AzureVMGuestStateOnly AzureDiskSecurity = "VMGuestStateOnly"
	// AzureNonPersistedTPM keeps no state of the TPM.
	AzureNonPersistedTPM AzureDiskSecurity = "NonPersistedTPM"
)

// AzureOSDisk is the disk that a machine boots from.
// +kubebuilder:validation:XValidation:rule="!has(self.ephemeral) || (!has(self.type) || self.type == 'Standard_LRS')",message="an ephemeral disk is on the host: leave out type"
// +kubebuilder:validation:XValidation:rule="!has(self.ephemeral) || !has(self.caching) || self.caching == 'ReadOnly'",message="an ephemeral disk needs caching ReadOnly"
type AzureOSDisk struct {
	// sizeGiB is the size of the disk in GiB. Default: the image's.
	// Example: 64.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=4095
	SizeGiB int32 `json:"sizeGiB,omitempty"`

	// type is the type of the disk. Default: Azure's, "Standard_LRS".
	// Example: "Premium_LRS".
	// +optional
	Type AzureOSDiskType `json:"type,omitempty"`

	// caching is how the host caches the disk. Default: "ReadWrite", or "ReadOnly" for an ephemeral
	// disk.
	// +optional
	Caching AzureCaching `json:"caching,omitempty"`

	// diskEncryptionSetID is the resource ID of the disk encryption set with the key that encrypts
	// the disk. Default: a key of Azure's.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^/subscriptions/[^\s?#]+$`
	DiskEncryptionSetID string `json:"diskEncryptionSetID,omitempty"`

	// securityEncryptionType is what a confidential machine encrypts: the disk together with the
	// state of the guest, the state alone, or nothing that is stored. Default: none, for machines
	// that are not confidential.
	// +optional
	SecurityEncryptionType AzureDiskSecurity `json:"securityEncryptionType,omitempty"`

	// ephemeral puts the disk on the host: faster, and without cost. Default: not ephemeral.
	// +optional
	Ephemeral *AzureEphemeralDisk `json:"ephemeral,omitempty"`
}

// AzureDiskPlacement is where on the host an ephemeral disk is.
// +kubebuilder:validation:Enum=CacheDisk;ResourceDisk;NvmeDisk
type AzureDiskPlacement string

const (
	// AzureCacheDisk is the cache of the host.
	AzureCacheDisk AzureDiskPlacement = "CacheDisk"
	// AzureResourceDisk is the temporary disk.
	AzureResourceDisk AzureDiskPlacement = "ResourceDisk"
	// AzureNVMeDisk is a local NVMe disk.
	AzureNVMeDisk AzureDiskPlacement = "NvmeDisk"
)

// AzureEphemeralDisk is where an ephemeral disk is.
type AzureEphemeralDisk struct {
	// placement is the storage of the host that has the disk. Default: the cache if it is large
	// enough, otherwise the temporary disk.
	// +optional
	Placement AzureDiskPlacement `json:"placement,omitempty"`
}

// AzureDataDiskType is the storage of a data disk.
// +kubebuilder:validation:Enum=Standard_LRS;StandardSSD_LRS;StandardSSD_ZRS;Premium_LRS;Premium_ZRS;PremiumV2_LRS;UltraSSD_LRS
type AzureDataDiskType string

const (
	// AzureDataDiskStandardLRS is a standard HDD.
	AzureDataDiskStandardLRS AzureDataDiskType = "Standard_LRS"
	// AzureDataDiskStandardSSDLRS is a standard SSD.
	AzureDataDiskStandardSSDLRS AzureDataDiskType = "StandardSSD_LRS"
	// AzureDataDiskStandardSSDZRS is a standard SSD, replicated over zones.
	AzureDataDiskStandardSSDZRS AzureDataDiskType = "StandardSSD_ZRS"
	// AzureDataDiskPremiumLRS is a premium SSD.
	AzureDataDiskPremiumLRS AzureDataDiskType = "Premium_LRS"
	// AzureDataDiskPremiumZRS is a premium SSD, replicated over zones.
	AzureDataDiskPremiumZRS AzureDataDiskType = "Premium_ZRS"
	// AzureDataDiskPremiumV2LRS is a premium SSD of the second version.
	AzureDataDiskPremiumV2LRS AzureDataDiskType = "PremiumV2_LRS"
	// AzureDataDiskUltraSSDLRS is an ultra disk.
	AzureDataDiskUltraSSDLRS AzureDataDiskType = "UltraSSD_LRS"
)

// AzureDataDisk is a disk in addition to the one that the machine boots from.
// +kubebuilder:validation:XValidation:rule="has(self.sizeGiB) || has(self.snapshotID)",message="a disk without a snapshot needs sizeGiB"
// +kubebuilder:validation:XValidation:rule="!(has(self.iops) || has(self.mbps)) || (has(self.type) && self.type in ['UltraSSD_LRS', 'PremiumV2_LRS'])",message="iops and mbps are for the types UltraSSD_LRS and PremiumV2_LRS"
type AzureDataDisk struct {
	// lun is the number by which the guest finds the disk.
	// Example: 0.
	// +required
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=63
	LUN *int32 `json:"lun,omitempty"`

	// sizeGiB is the size of the disk in GiB. Default: the snapshot's.
	// Example: 256.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65536
	SizeGiB int32 `json:"sizeGiB,omitempty"`

	// type is the type of the disk. Default: Azure's, "Standard_LRS".
	// Example: "Premium_LRS".
	// +optional
	Type AzureDataDiskType `json:"type,omitempty"`

	// caching is how the host caches the disk. Default: "None".
	// +optional
	Caching AzureCaching `json:"caching,omitempty"`

	// iops is the number of I/O operations per second.
	// Example: 5000.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=400000
	IOPS int64 `json:"iops,omitempty"`

	// mbps is the throughput in MB per second.
	// Example: 200.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	MBPS int64 `json:"mbps,omitempty"`

	// diskEncryptionSetID is the resource ID of the disk encryption set with the key that encrypts
	// the disk. Default: a key of Azure's.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^/subscriptions/[^\s?#]+$`
	DiskEncryptionSetID string `json:"diskEncryptionSetID,omitempty"`

	// snapshotID is the resource ID of the snapshot that the disk is a copy of. Default: an empty
	// disk.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^/subscriptions/[^\s?#]+$`
	SnapshotID string `json:"snapshotID,omitempty"`
}

// AzureIdentity is the managed identity of a machine.
// +kubebuilder:validation:MinProperties=1
type AzureIdentity struct {
	// system is "Enabled" to give the machine an identity of its own. Somebody must give it roles.
	// Default: "Disabled".
	// +optional
	System FeatureState `json:"system,omitempty"`

	// userIDs are the resource IDs of user-assigned identities. Default: none.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=512
	// +kubebuilder:validation:items:Pattern=`^/subscriptions/[^\s?#]+$`
	UserIDs []string `json:"userIDs,omitempty"`
}

// AzureEvictionPolicy specifies what happens to a spot machine that Azure takes back.
// +kubebuilder:validation:Enum=Delete;Deallocate
type AzureEvictionPolicy string

const (
	// AzureEvictionDelete deletes the machine.
	AzureEvictionDelete AzureEvictionPolicy = "Delete"
	// AzureEvictionDeallocate stops the machine, and keeps its disks.
	AzureEvictionDeallocate AzureEvictionPolicy = "Deallocate"
)

// AzureSpot specifies how Azure may take the machine back.
type AzureSpot struct {
	// evictionPolicy is what an eviction does: "Delete" removes the machine, "Deallocate" stops it,
	// and its disks continue to cost money. Default: "Delete".
	// +optional
	EvictionPolicy AzureEvictionPolicy `json:"evictionPolicy,omitempty"`

	// maxPriceUSD is the maximum price per hour, in US dollars. Default: the price of a machine
	// that is not a spot machine.
	// Example: "0.05".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:Pattern=`^[0-9]+(\.[0-9]{1,5})?$`
	MaxPriceUSD string `json:"maxPriceUSD,omitempty"`
}

// AzureSecurityType is the security type of a machine.
// +kubebuilder:validation:Enum=Standard;TrustedLaunch;ConfidentialVM
type AzureSecurityType string

const (
	// AzureSecurityStandard is a machine without measured boot.
	AzureSecurityStandard AzureSecurityType = "Standard"
	// AzureSecurityTrustedLaunch is a machine with secure boot and a virtual TPM.
	AzureSecurityTrustedLaunch AzureSecurityType = "TrustedLaunch"
	// AzureSecurityConfidentialVM is a machine whose memory is encrypted.
	AzureSecurityConfidentialVM AzureSecurityType = "ConfidentialVM"
)

// AzureSecurity specifies encryption and measured boot.
// +kubebuilder:validation:MinProperties=1
// +kubebuilder:validation:XValidation:rule="!(has(self.secureBoot) || has(self.vTPM)) || has(self.type)",message="secureBoot and vTPM need type"
type AzureSecurity struct {
	// encryptionAtHost is "Enabled" to encrypt the disks on the host, caches and temporary disk
	// included. Default: "Disabled".
	// +optional
	EncryptionAtHost FeatureState `json:"encryptionAtHost,omitempty"`

	// type is the security type of the machine. Default: the image's.
	// +optional
	Type AzureSecurityType `json:"type,omitempty"`

	// secureBoot is "Enabled" to boot only signed software. Default: Azure's, by the type.
	// +optional
	SecureBoot FeatureState `json:"secureBoot,omitempty"`

	// vTPM is "Enabled" to give the machine a virtual TPM. Default: Azure's, by the type.
	// +optional
	VTPM FeatureState `json:"vTPM,omitempty"`
}

// AzureLoadBalancer is a Standard Load Balancer for the API servers of a cluster.
// +kubebuilder:validation:XValidation:rule="!has(self.address) || (has(self.scheme) && self.scheme == 'Internal')",message="address needs the scheme Internal"
type AzureLoadBalancer struct {
	// subnetID is the resource ID of a subnet in the virtual network of the control plane's
	// machines. An internal load balancer has its address in it.
	// Example:
	// "/subscriptions/…/resourceGroups/net/providers/Microsoft.Network/virtualNetworks/vnet/subnets/nodes".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^/subscriptions/[^\s?#]+/subnets/[^\s/?#]+$`
	SubnetID string `json:"subnetID,omitempty"`

	// scheme is "Internal" for a load balancer with a private address, or "InternetFacing" for one
	// with a public address, which Drover creates. Default: "InternetFacing".
	// +optional
	Scheme LoadBalancerScheme `json:"scheme,omitempty"`

	// address is the private IPv4 address of an internal load balancer. Default: a free one of the
	// subnet, which Azure chooses.
	// Example: "10.0.0.100".
	// +optional
	// +kubebuilder:validation:MinLength=7
	// +kubebuilder:validation:MaxLength=15
	// +kubebuilder:validation:Pattern=`^[0-9]{1,3}(\.[0-9]{1,3}){3}$`
	Address string `json:"address,omitempty"`
}
