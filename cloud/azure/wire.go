// SPDX-License-Identifier: Apache-2.0

package azure

import "time"

// The kinds of resources, and the versions of their APIs. The version of the virtual machines' API
// is the oldest that has everything that Drover sends: tags of inline network interfaces came with
// it. Sovereign clouds get new versions later.
const (
	virtualMachines   = "Microsoft.Compute/virtualMachines"
	disks             = "Microsoft.Compute/disks"
	networkInterfaces = "Microsoft.Network/networkInterfaces"
	publicAddresses   = "Microsoft.Network/publicIPAddresses"
	loadBalancers     = "Microsoft.Network/loadBalancers"

	machinesVersion  = "2025-04-01"
	disksVersion     = "2024-03-02"
	networkVersion   = "2024-05-01"
	sizesVersion     = "2021-07-01"
	locationsVersion = "2022-12-01"
	galleriesVersion = "2023-07-03"

	tagsVersion        = "2021-04-01"
	permissionsVersion = "2022-04-01"
	termsVersion       = "2021-01-01"
	// inlineVersion is the only newer version that Azure accepts for inline network interfaces.
	inlineVersion = "2022-11-01"
)

// What follows are the members of Azure's models that Drover sends or reads, as "Azure REST API
// reference" names them. A test compares them with the models of the Azure SDK for Go.

type reference struct {
	ID string `json:"id"`
}

type virtualMachine struct {
	ID         string            `json:"id,omitempty"`
	Name       string            `json:"name,omitempty"`
	Location   string            `json:"location"`
	Tags       map[string]string `json:"tags,omitempty"`
	Zones      []string          `json:"zones,omitempty"`
	Plan       *plan             `json:"plan,omitempty"`
	Identity   *identity         `json:"identity,omitempty"`
	Properties machineProperties `json:"properties"`
}

type plan struct {
	Name      string `json:"name"`
	Product   string `json:"product"`
	Publisher string `json:"publisher"`
}

type identity struct {
	Type                   string              `json:"type"`
	UserAssignedIdentities map[string]struct{} `json:"userAssignedIdentities,omitempty"`
}

type machineProperties struct {
	HardwareProfile         *hardwareProfile     `json:"hardwareProfile,omitempty"`
	StorageProfile          *storageProfile      `json:"storageProfile,omitempty"`
	OSProfile               *osProfile           `json:"osProfile,omitempty"`
	NetworkProfile          *networkProfile      `json:"networkProfile,omitempty"`
	SecurityProfile         *securityProfile     `json:"securityProfile,omitempty"`
	DiagnosticsProfile      *diagnosticsProfile  `json:"diagnosticsProfile,omitempty"`
	CapacityReservation     *capacityReservation `json:"capacityReservation,omitempty"`
	AdditionalCapabilities  *capabilities        `json:"additionalCapabilities,omitempty"`
	AvailabilitySet         *reference           `json:"availabilitySet,omitempty"`
	VirtualMachineScaleSet  *reference           `json:"virtualMachineScaleSet,omitempty"`
	ProximityPlacementGroup *reference           `json:"proximityPlacementGroup,omitempty"`
	Host                    *reference           `json:"host,omitempty"`
	HostGroup               *reference           `json:"hostGroup,omitempty"`
	PlatformFaultDomain     *int32               `json:"platformFaultDomain,omitempty"`
	Priority                string               `json:"priority,omitempty"`
	EvictionPolicy          string               `json:"evictionPolicy,omitempty"`
	BillingProfile          *billingProfile      `json:"billingProfile,omitempty"`
	LicenseType             string               `json:"licenseType,omitempty"`

	// Azure's answers only.
	ProvisioningState string        `json:"provisioningState,omitempty"`
	TimeCreated       *time.Time    `json:"timeCreated,omitempty"`
	InstanceView      *instanceView `json:"instanceView,omitempty"`
}

type hardwareProfile struct {
	VMSize string `json:"vmSize"`
}

type storageProfile struct {
	ImageReference     *imageReference `json:"imageReference,omitempty"`
	OSDisk             *disk           `json:"osDisk,omitempty"`
	DataDisks          []disk          `json:"dataDisks,omitempty"`
	DiskControllerType string          `json:"diskControllerType,omitempty"`
}

type imageReference struct {
	ID                      string `json:"id,omitempty"`
	Publisher               string `json:"publisher,omitempty"`
	Offer                   string `json:"offer,omitempty"`
	SKU                     string `json:"sku,omitempty"`
	Version                 string `json:"version,omitempty"`
	ExactVersion            string `json:"exactVersion,omitempty"`
	CommunityGalleryImageID string `json:"communityGalleryImageId,omitempty"`
	SharedGalleryImageID    string `json:"sharedGalleryImageId,omitempty"`
}

// disk is an OS disk or a data disk. Both have the members that they share.
type disk struct {
	LUN               *int32        `json:"lun,omitempty"`
	CreateOption      string        `json:"createOption"`
	DeleteOption      string        `json:"deleteOption"`
	DiskSizeGB        int32         `json:"diskSizeGB,omitempty"`
	Caching           string        `json:"caching,omitempty"`
	OSType            string        `json:"osType,omitempty"`
	ManagedDisk       *managedDisk  `json:"managedDisk,omitempty"`
	DiffDiskSettings  *diffSettings `json:"diffDiskSettings,omitempty"`
	SourceResource    *reference    `json:"sourceResource,omitempty"`
	DiskIOPSReadWrite int64         `json:"diskIOPSReadWrite,omitempty"`
	DiskMBpsReadWrite int64         `json:"diskMBpsReadWrite,omitempty"`
}

type managedDisk struct {
	ID                 string        `json:"id,omitempty"`
	StorageAccountType string        `json:"storageAccountType,omitempty"`
	DiskEncryptionSet  *reference    `json:"diskEncryptionSet,omitempty"`
	SecurityProfile    *diskSecurity `json:"securityProfile,omitempty"`
}

type diskSecurity struct {
	SecurityEncryptionType string     `json:"securityEncryptionType"`
	DiskEncryptionSet      *reference `json:"diskEncryptionSet,omitempty"`
}

type diffSettings struct {
	Option    string `json:"option"`
	Placement string `json:"placement,omitempty"`
}

type osProfile struct {
	ComputerName             string    `json:"computerName"`
	AdminUsername            string    `json:"adminUsername"`
	CustomData               string    `json:"customData,omitempty"`
	AllowExtensionOperations bool      `json:"allowExtensionOperations"`
	LinuxConfiguration       *linuxSet `json:"linuxConfiguration,omitempty"`
}

type linuxSet struct {
	DisablePasswordAuthentication bool `json:"disablePasswordAuthentication"`
	ProvisionVMAgent              bool `json:"provisionVMAgent"`
	SSH                           *ssh `json:"ssh,omitempty"`
}

type ssh struct {
	PublicKeys []sshKey `json:"publicKeys"`
}

type sshKey struct {
	Path    string `json:"path"`
	KeyData string `json:"keyData"`
}

type networkProfile struct {
	NetworkAPIVersion              string           `json:"networkApiVersion,omitempty"`
	NetworkInterfaceConfigurations []inlineResource `json:"networkInterfaceConfigurations,omitempty"`
	NetworkInterfaces              []nicReference   `json:"networkInterfaces,omitempty"`
}

type nicReference struct {
	ID         string `json:"id"`
	Properties struct {
		DeleteOption string `json:"deleteOption,omitempty"`
	} `json:"properties"`
}

// inlineResource is a network interface, its IP configuration or its public address.
type inlineResource struct {
	Name       string            `json:"name"`
	Tags       map[string]string `json:"tags,omitempty"`
	SKU        *publicSKU        `json:"sku,omitempty"`
	Properties inlineProperties  `json:"properties"`
}

type publicSKU struct {
	Name string `json:"name"`
	Tier string `json:"tier"`
}

type inlineProperties struct {
	Primary      *bool  `json:"primary,omitempty"`
	DeleteOption string `json:"deleteOption,omitempty"`

	// A network interface's.
	EnableAcceleratedNetworking bool             `json:"enableAcceleratedNetworking,omitempty"`
	EnableIPForwarding          bool             `json:"enableIPForwarding,omitempty"`
	NetworkSecurityGroup        *reference       `json:"networkSecurityGroup,omitempty"`
	DNSSettings                 *dnsSettings     `json:"dnsSettings,omitempty"`
	IPConfigurations            []inlineResource `json:"ipConfigurations,omitempty"`

	// An IP configuration's.
	Subnet                                *reference      `json:"subnet,omitempty"`
	PrivateIPAddressVersion               string          `json:"privateIPAddressVersion,omitempty"`
	PublicIPAddressConfiguration          *inlineResource `json:"publicIPAddressConfiguration,omitempty"`
	ApplicationSecurityGroups             []reference     `json:"applicationSecurityGroups,omitempty"`
	LoadBalancerBackendAddressPools       []reference     `json:"loadBalancerBackendAddressPools,omitempty"`
	ApplicationGatewayBackendAddressPools []reference     `json:"applicationGatewayBackendAddressPools,omitempty"`

	// A public address's.
	PublicIPAllocationMethod string     `json:"publicIPAllocationMethod,omitempty"`
	PublicIPPrefix           *reference `json:"publicIPPrefix,omitempty"`
}

type dnsSettings struct {
	DNSServers []string `json:"dnsServers"`
}

type securityProfile struct {
	EncryptionAtHost bool          `json:"encryptionAtHost,omitempty"`
	SecurityType     string        `json:"securityType,omitempty"`
	UEFISettings     *uefiSettings `json:"uefiSettings,omitempty"`
}

type uefiSettings struct {
	SecureBootEnabled *bool `json:"secureBootEnabled,omitempty"`
	VTPMEnabled       *bool `json:"vTpmEnabled,omitempty"`
}

type diagnosticsProfile struct {
	BootDiagnostics bootDiagnostics `json:"bootDiagnostics"`
}

type bootDiagnostics struct {
	Enabled    bool   `json:"enabled"`
	StorageURI string `json:"storageUri,omitempty"`
}

type capacityReservation struct {
	CapacityReservationGroup reference `json:"capacityReservationGroup"`
}

type capabilities struct {
	UltraSSDEnabled bool `json:"ultraSSDEnabled"`
}

type billingProfile struct {
	MaxPrice float64 `json:"maxPrice"`
}

// tagsPatch changes the tags of a resource.
type tagsPatch struct {
	Operation  string `json:"operation"`
	Properties tagSet `json:"properties"`
}

type tagSet struct {
	Tags map[string]string `json:"tags"`
}

// instanceView is what Azure knows of a machine beyond its model.
type instanceView struct {
	Statuses []status `json:"statuses,omitempty"`
}

type status struct {
	Code    string `json:"code"`
	Message string `json:"message,omitempty"`
}

// dependant is a network interface, a disk or a public address.
type dependant struct {
	ID         string              `json:"id"`
	Name       string              `json:"name"`
	ManagedBy  string              `json:"managedBy,omitempty"`
	Tags       map[string]string   `json:"tags,omitempty"`
	Properties dependantProperties `json:"properties"`
}

type dependantProperties struct {
	// A network interface's.
	VirtualMachine   *reference        `json:"virtualMachine,omitempty"`
	IPConfigurations []ipConfiguration `json:"ipConfigurations,omitempty"`
	// A disk's.
	DiskState   string     `json:"diskState,omitempty"`
	TimeCreated *time.Time `json:"timeCreated,omitempty"`
	// A public address's.
	IPConfiguration *reference `json:"ipConfiguration,omitempty"`
	IPAddress       string     `json:"ipAddress,omitempty"`
}

type ipConfiguration struct {
	Properties struct {
		PrivateIPAddress string     `json:"privateIPAddress,omitempty"`
		PublicIPAddress  *reference `json:"publicIPAddress,omitempty"`
	} `json:"properties"`
}

// publicAddress is the public address of a load balancer.
type publicAddress struct {
	Location   string                  `json:"location"`
	Tags       map[string]string       `json:"tags,omitempty"`
	Zones      []string                `json:"zones,omitempty"`
	SKU        *publicSKU              `json:"sku,omitempty"`
	Properties publicAddressProperties `json:"properties"`
}

type publicAddressProperties struct {
	AllocationMethod string `json:"publicIPAllocationMethod,omitempty"`
	Version          string `json:"publicIPAddressVersion,omitempty"`

	// Azure's answers only.
	IPAddress         string `json:"ipAddress,omitempty"`
	ProvisioningState string `json:"provisioningState,omitempty"`
}

type loadBalancer struct {
	Name       string                 `json:"name,omitempty"`
	ETag       string                 `json:"etag,omitempty"`
	Location   string                 `json:"location"`
	Tags       map[string]string      `json:"tags,omitempty"`
	SKU        *publicSKU             `json:"sku,omitempty"`
	Properties loadBalancerProperties `json:"properties"`
}

type loadBalancerProperties struct {
	Frontends         []balancerPart[frontend]      `json:"frontendIPConfigurations"`
	Pools             []balancerPart[backendPool]   `json:"backendAddressPools"`
	Rules             []balancerPart[balancingRule] `json:"loadBalancingRules"`
	Probes            []balancerPart[healthProbe]   `json:"probes"`
	ProvisioningState string                        `json:"provisioningState,omitempty"`
}

// balancerPart is a part of a load balancer.
type balancerPart[T any] struct {
	Name       string   `json:"name,omitempty"`
	ETag       string   `json:"etag,omitempty"`
	Zones      []string `json:"zones,omitempty"`
	Properties T        `json:"properties"`
}

type frontend struct {
	PrivateIPAddress          string     `json:"privateIPAddress,omitempty"`
	PrivateIPAllocationMethod string     `json:"privateIPAllocationMethod,omitempty"`
	Subnet                    *reference `json:"subnet,omitempty"`
	PublicIPAddress           *reference `json:"publicIPAddress,omitempty"`
}

type backendPool struct {
	VirtualNetwork *reference                     `json:"virtualNetwork,omitempty"`
	Addresses      []balancerPart[backendAddress] `json:"loadBalancerBackendAddresses"`
}

type backendAddress struct {
	IPAddress string `json:"ipAddress"`
}

type balancingRule struct {
	FrontendIPConfiguration reference `json:"frontendIPConfiguration"`
	BackendAddressPool      reference `json:"backendAddressPool"`
	Probe                   reference `json:"probe"`
	Protocol                string    `json:"protocol"`
	FrontendPort            int32     `json:"frontendPort"`
	BackendPort             int32     `json:"backendPort"`
	IdleTimeoutInMinutes    int32     `json:"idleTimeoutInMinutes"`
	EnableTCPReset          bool      `json:"enableTcpReset"`
	DisableOutboundSNAT     bool      `json:"disableOutboundSnat,omitempty"`
}

type healthProbe struct {
	Protocol          string `json:"protocol"`
	Port              int32  `json:"port"`
	RequestPath       string `json:"requestPath"`
	IntervalInSeconds int32  `json:"intervalInSeconds"`
	ProbeThreshold    int32  `json:"probeThreshold"`
}

// ruleHealth is what the probe of a rule has found.
type ruleHealth struct {
	Addresses []struct {
		IPAddress string `json:"ipAddress"`
		State     string `json:"state"`
	} `json:"loadBalancerBackendAddresses"`
}

// page is one page of a listing. Value is nil if the answer is not a listing.
type page[T any] struct {
	Value    *[]T   `json:"value"`
	NextLink string `json:"nextLink,omitempty"`
}

type location struct {
	ID       string `json:"id"`
	Name     string `json:"name"`
	Mappings []struct {
		LogicalZone string `json:"logicalZone"`
	} `json:"availabilityZoneMappings,omitempty"`
}

// sku is one size in the catalog, or something else that Azure sells.
type sku struct {
	ResourceType string `json:"resourceType"`
	Name         string `json:"name"`
	Family       string `json:"family,omitempty"`
	LocationInfo []struct {
		Location string   `json:"location"`
		Zones    []string `json:"zones,omitempty"`
	} `json:"locationInfo,omitempty"`
	Capabilities []struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	} `json:"capabilities,omitempty"`
	Restrictions []struct {
		Type            string `json:"type"`
		ReasonCode      string `json:"reasonCode,omitempty"`
		RestrictionInfo struct {
			Zones []string `json:"zones,omitempty"`
		} `json:"restrictionInfo"`
	} `json:"restrictions,omitempty"`
}

// permission is what one of the caller's roles grants.
type permission struct {
	Actions    []string `json:"actions"`
	NotActions []string `json:"notActions"`
}

// usage is one of a location's quotas.
type usage struct {
	Name struct {
		Value string `json:"value"`
	} `json:"name"`
	CurrentValue int64 `json:"currentValue"`
	Limit        int64 `json:"limit"`
}

type named struct {
	Name string `json:"name"`
}

type virtualNetwork struct {
	Location   string `json:"location"`
	Properties struct {
		Subnets []named `json:"subnets"`
	} `json:"properties"`
}

// imageFacts are what the models of images have in common. Images of the marketplace have a plan,
// those of galleries a purchasePlan, and the versions of galleries a publishingProfile.
type imageFacts struct {
	Location   string `json:"location"`
	Properties struct {
		Architecture      string `json:"architecture"`
		HyperVGeneration  string `json:"hyperVGeneration"`
		Plan              *plan  `json:"plan"`
		PurchasePlan      *plan  `json:"purchasePlan"`
		PublishingProfile struct {
			TargetRegions []named `json:"targetRegions"`
		} `json:"publishingProfile"`
	} `json:"properties"`
}

type agreement struct {
	Properties struct {
		Accepted bool `json:"accepted"`
	} `json:"properties"`
}
