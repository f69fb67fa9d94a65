// SPDX-License-Identifier: Apache-2.0

package v1beta1

// GCPAccount is a Google Cloud project, in one region. Its credentials Secret has the key
// "credentials": the JSON of a service account key, or of a workload identity federation whose
// token is in the key "subjectToken".
// +kubebuilder:validation:XValidation:rule="has(self.endpoint) == has(oldSelf.endpoint) && (!has(self.endpoint) || self.endpoint == oldSelf.endpoint)",message="endpoint can't be changed, because the account's machines would look gone: make a new DroverAccount"
// +kubebuilder:validation:XValidation:rule="(has(self.universeDomain) ? self.universeDomain : 'googleapis.com') == (has(oldSelf.universeDomain) ? oldSelf.universeDomain : 'googleapis.com')",message="universeDomain can't be changed: make a new DroverAccount"
type GCPAccount struct {
	// projectID is the ID of the project. It is immutable: in a listing of another project, all
	// machines of this account would be gone.
	// Example: "nodes-4711".
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="projectID can't be changed: make a new DroverAccount"
	// +kubebuilder:validation:MinLength=6
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^([a-z0-9][-a-z0-9.]*:)?[a-z][-a-z0-9]*[a-z0-9]$`
	ProjectID string `json:"projectID,omitempty"`

	// region is the region in whose zones machines are created. It is immutable.
	// Example: "europe-west4".
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="region can't be changed: make a new DroverAccount"
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=60
	// +kubebuilder:validation:Pattern=`^[a-z][-a-z0-9]*[a-z0-9]$`
	Region string `json:"region,omitempty"`

	// universeDomain is the domain of the services of a sovereign cloud by Google. It needs
	// credentialsRef unless it is Google's own. It is immutable. Default: "googleapis.com".
	// Example: "s3nsapis.fr".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	UniverseDomain string `json:"universeDomain,omitempty"`

	// endpoint is the URL of the Compute Engine API, for example at a Private Service Connect
	// endpoint. It needs credentialsRef. It is immutable. Default: that of universeDomain.
	// Example: "https://compute-nodes.p.googleapis.com".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^https://[^\s/?#@]+$`
	Endpoint string `json:"endpoint,omitempty"`

	// caBundle holds the PEM certificates of the authorities with which the certificates of the
	// services are verified. It needs credentialsRef. Default: the authorities of the manager's
	// system.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=65536
	CABundle string `json:"caBundle,omitempty"`
}

// GCPProvisioningModel is how Compute Engine provides a machine.
// +kubebuilder:validation:Enum=STANDARD;SPOT;FLEX_START;RESERVATION_BOUND
type GCPProvisioningModel string

const (
	// GCPProvisioningStandard is a machine that Compute Engine does not take back.
	GCPProvisioningStandard GCPProvisioningModel = "STANDARD"
	// GCPProvisioningSpot is spare capacity that Compute Engine may take back.
	GCPProvisioningSpot GCPProvisioningModel = "SPOT"
	// GCPProvisioningFlexStart is a machine that waits for capacity, and runs for a limited time.
	GCPProvisioningFlexStart GCPProvisioningModel = "FLEX_START"
	// GCPProvisioningReservationBound is a machine that runs as long as its reservation.
	GCPProvisioningReservationBound GCPProvisioningModel = "RESERVATION_BOUND"
)

// GCPTerminationAction is what happens to a machine that Compute Engine takes back.
// +kubebuilder:validation:Enum=DELETE;STOP
type GCPTerminationAction string

const (
	// GCPTerminationDelete deletes the machine.
	GCPTerminationDelete GCPTerminationAction = "DELETE"
	// GCPTerminationStop stops the machine.
	GCPTerminationStop GCPTerminationAction = "STOP"
)

// GCPHostMaintenance is what happens to a machine when its host is maintained.
// +kubebuilder:validation:Enum=MIGRATE;TERMINATE
type GCPHostMaintenance string

const (
	// GCPHostMaintenanceMigrate moves the machine to another host while it runs.
	GCPHostMaintenanceMigrate GCPHostMaintenance = "MIGRATE"
	// GCPHostMaintenanceTerminate ends the machine.
	GCPHostMaintenanceTerminate GCPHostMaintenance = "TERMINATE"
)

// GCPConfidentialType is how the memory of a machine is encrypted.
// +kubebuilder:validation:Enum=SEV;SEV_SNP;TDX
type GCPConfidentialType string

const (
	// GCPConfidentialSEV is AMD SEV.
	GCPConfidentialSEV GCPConfidentialType = "SEV"
	// GCPConfidentialSEVSNP is AMD SEV-SNP.
	GCPConfidentialSEVSNP GCPConfidentialType = "SEV_SNP"
	// GCPConfidentialTDX is Intel TDX.
	GCPConfidentialTDX GCPConfidentialType = "TDX"
)

// GCPMachine is a virtual machine of Compute Engine. Drover creates it with one call, together with
// its network interfaces, ephemeral addresses and disks. All of them are deleted with it. Its name
// is the name of the DroverMachine, if Compute Engine accepts that name.
// +kubebuilder:validation:XValidation:rule="!has(self.terminationAction) || (has(self.provisioningModel) && self.provisioningModel != 'STANDARD') || has(self.maxRunSeconds)",message="terminationAction is for machines that Compute Engine takes back: set provisioningModel or maxRunSeconds"
// +kubebuilder:validation:XValidation:rule="!has(self.provisioningModel) || self.provisioningModel != 'RESERVATION_BOUND' || (has(self.reservation) && self.reservation.type == 'SPECIFIC_RESERVATION')",message="provisioningModel RESERVATION_BOUND needs a reservation of type SPECIFIC_RESERVATION"
type GCPMachine struct {
	// machineType is the machine type.
	// Example: "n2-standard-4", "n2-custom-6-20480".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z][-a-z0-9]*[a-z0-9]$`
	MachineType string `json:"machineType,omitempty"`

	// image is what the boot disk is made from.
	// +required
	Image GCPImage `json:"image,omitempty,omitzero"`

	// networkInterfaces are the network interfaces of the machine. The first one is the primary
	// one.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	NetworkInterfaces []GCPNetworkInterface `json:"networkInterfaces,omitempty"`

	// bootDisk is the disk that the machine boots from. Default: the image's size, of the type that
	// Compute Engine chooses for the machine type.
	// +optional
	BootDisk GCPDisk `json:"bootDisk,omitempty,omitzero"`

	// disks are additional disks. Default: none.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	Disks []GCPDataDisk `json:"disks,omitempty"`

	// localSSDs are disks on the host. Machine types that include such disks have them without this
	// field. Default: none.
	// +optional
	LocalSSDs GCPLocalSSDs `json:"localSSDs,omitempty,omitzero"`

	// serviceAccount is the service account that software on the machine can use. Default: none.
	// +optional
	ServiceAccount *GCPServiceAccount `json:"serviceAccount,omitempty"`

	// networkTags are the tags by which firewall rules and routes select the machine. Default:
	// none.
	// Example: ["nodes"].
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:Pattern=`^[a-z]([-a-z0-9]*[a-z0-9])?$`
	NetworkTags []string `json:"networkTags,omitempty"`

	// labels are added to the instance and its disks, in addition to Drover's labels. Keys must not
	// begin with "drover-".
	// Example: {"cost-center": "4711"}.
	// +optional
	// +kubebuilder:validation:MinProperties=1
	// +kubebuilder:validation:MaxProperties=60
	// +kubebuilder:validation:XValidation:rule="self.all(k, size(k) <= 63 && size(self[k]) <= 63)",message="keys and values have at most 63 characters"
	Labels map[string]string `json:"labels,omitempty"`

	// resourceManagerTags are bound to the instance and its disks, by the IDs of their keys and
	// values. Default: none.
	// Example: {"tagKeys/123": "tagValues/456"}.
	// +optional
	// +kubebuilder:validation:MinProperties=1
	// +kubebuilder:validation:MaxProperties=50
	// +kubebuilder:validation:XValidation:rule="self.all(k, size(k) <= 256 && size(self[k]) <= 256)",message="keys and values have at most 256 characters"
	ResourceManagerTags map[string]string `json:"resourceManagerTags,omitempty"`

	// metadata are entries for the metadata server, in addition to the user data. Default: none.
	// Example: {"serial-port-logging-enable": "true"}.
	// +optional
	// +kubebuilder:validation:MinProperties=1
	// +kubebuilder:validation:MaxProperties=64
	// +kubebuilder:validation:XValidation:rule="self.all(k, size(k) <= 128 && size(self[k]) <= 16384)",message="a key has at most 128 characters, a value 16384"
	// +kubebuilder:validation:XValidation:rule="self.all(k, !(k in ['user-data', 'user-data-encoding']))",message="Drover sets user-data and user-data-encoding"
	Metadata map[string]string `json:"metadata,omitempty"`

	// ipForwarding is "Enabled" to permit the machine to send and receive packets of other
	// addresses. Default: "Disabled".
	// +optional
	IPForwarding FeatureState `json:"ipForwarding,omitempty"`

	// provisioningModel is how the machine is bought. Compute Engine takes a SPOT machine back at
	// any time. Default: "STANDARD".
	// +optional
	ProvisioningModel GCPProvisioningModel `json:"provisioningModel,omitempty"`

	// terminationAction is what happens to a machine that Compute Engine takes back: "DELETE"
	// removes it, "STOP" stops it, and its disks continue to cost money. Default: "DELETE", for
	// machines that Compute Engine takes back.
	// +optional
	TerminationAction GCPTerminationAction `json:"terminationAction,omitempty"`

	// maxRunSeconds is how long the machine may run before Compute Engine takes it back. Default:
	// no limit of its own.
	// Example: 86400.
	// +optional
	// +kubebuilder:validation:Minimum=30
	// +kubebuilder:validation:Maximum=10368000
	MaxRunSeconds int64 `json:"maxRunSeconds,omitempty"`

	// automaticRestart is "Enabled" to start the machine again after a crash of its host. Default:
	// "Enabled" for machines of provisioningModel STANDARD, and "Disabled" for others.
	// +optional
	AutomaticRestart FeatureState `json:"automaticRestart,omitempty"`

	// onHostMaintenance is what happens to the machine when its host is maintained. Default:
	// Compute Engine's, by the machine type.
	// +optional
	OnHostMaintenance GCPHostMaintenance `json:"onHostMaintenance,omitempty"`

	// shielded specifies measured boot. Default: Compute Engine's.
	// +optional
	Shielded GCPShielded `json:"shielded,omitempty,omitzero"`

	// confidentialType encrypts the memory of the machine with the named technology. Default: none.
	// +optional
	ConfidentialType GCPConfidentialType `json:"confidentialType,omitempty"`

	// minCPUPlatform is the oldest CPU that the machine may have. Default: any.
	// Example: "Intel Ice Lake".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	MinCPUPlatform string `json:"minCPUPlatform,omitempty"`

	// accelerators are GPUs that are attached to the machine. Machine types that include GPUs have
	// them without this field. Default: none.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=4
	Accelerators []GCPAccelerator `json:"accelerators,omitempty"`

	// nestedVirtualization is "Enabled" to permit virtual machines in the machine. Default:
	// "Disabled".
	// +optional
	NestedVirtualization FeatureState `json:"nestedVirtualization,omitempty"`

	// threadsPerCore is 1 to switch simultaneous multithreading off. Default: the machine type's.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2
	ThreadsPerCore int32 `json:"threadsPerCore,omitempty"`

	// visibleCores is how many physical cores the guest sees. Default: the machine type's.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1024
	VisibleCores int32 `json:"visibleCores,omitempty"`

	// reservation is the reservation that the machine uses. Default: any that matches.
	// +optional
	Reservation GCPReservation `json:"reservation,omitempty,omitzero"`

	// nodeAffinities select the sole-tenant nodes of the machine. Default: hosts that others share.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	NodeAffinities []GCPNodeAffinity `json:"nodeAffinities,omitempty"`

	// placementPolicy is the name of the resource policy, in the account's region, that places the
	// machine. Default: none.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z]([-a-z0-9]*[a-z0-9])?$`
	PlacementPolicy string `json:"placementPolicy,omitempty"`
}

// GCPImage names what a disk is made from.
// +kubebuilder:validation:XValidation:rule="[has(self.name), has(self.family), has(self.snapshot)].filter(x, x).size() == 1",message="exactly one of name, family and snapshot must be set"
// +kubebuilder:validation:MinProperties=1
type GCPImage struct {
	// name is the name of an image.
	// Example: "ubuntu-2404-noble-amd64-v20260501".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name,omitempty"`

	// family is the name of a family of images. Its newest image that is not deprecated is used
	// when the machine is created.
	// Example: "ubuntu-2404-lts-amd64".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z]([-a-z0-9]*[a-z0-9])?$`
	Family string `json:"family,omitempty"`

	// snapshot is the name of a snapshot.
	// Example: "nodes-20260501".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z]([-a-z0-9]*[a-z0-9])?$`
	Snapshot string `json:"snapshot,omitempty"`

	// project is the project that has the image or snapshot. Default: the account's.
	// Example: "ubuntu-os-cloud".
	// +optional
	// +kubebuilder:validation:MinLength=6
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^([a-z0-9][-a-z0-9.]*:)?[a-z][-a-z0-9]*[a-z0-9]$`
	Project string `json:"project,omitempty"`
}

// GCPStackType specifies which families of addresses a network interface has.
// +kubebuilder:validation:Enum=IPV4_ONLY;IPV4_IPV6;IPV6_ONLY
type GCPStackType string

const (
	// GCPStackIPv4Only is IPv4 only.
	GCPStackIPv4Only GCPStackType = "IPV4_ONLY"
	// GCPStackIPv4IPv6 is IPv4 and IPv6.
	GCPStackIPv4IPv6 GCPStackType = "IPV4_IPV6"
	// GCPStackIPv6Only is IPv6 only.
	GCPStackIPv6Only GCPStackType = "IPV6_ONLY"
)

// GCPNICType is the model of a network card.
// +kubebuilder:validation:Enum=VIRTIO_NET;GVNIC;IDPF
type GCPNICType string

const (
	// GCPNICVirtio is virtio.
	GCPNICVirtio GCPNICType = "VIRTIO_NET"
	// GCPNICGVNIC is Google's Virtual NIC.
	GCPNICGVNIC GCPNICType = "GVNIC"
	// GCPNICIDPF is Intel's Infrastructure Data Path Function.
	GCPNICIDPF GCPNICType = "IDPF"
)

// GCPNetworkInterface is a network interface.
// +kubebuilder:validation:XValidation:rule="has(self.network) || has(self.subnetwork)",message="network or subnetwork must be set"
// +kubebuilder:validation:XValidation:rule="!has(self.publicIPv6) || self.publicIPv6 == 'Disabled' || (has(self.stackType) && self.stackType != 'IPV4_ONLY')",message="publicIPv6 needs stackType IPV4_IPV6 or IPV6_ONLY"
type GCPNetworkInterface struct {
	// network is the name of the VPC network. Default: that of subnetwork.
	// Example: "nodes".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z]([-a-z0-9]*[a-z0-9])?$`
	Network string `json:"network,omitempty"`

	// subnetwork is the name of the subnet, in the account's region. Default: that of a network in
	// auto mode.
	// Example: "nodes-europe-west4".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z]([-a-z0-9]*[a-z0-9])?$`
	Subnetwork string `json:"subnetwork,omitempty"`

	// hostProject is the project that has the network, for Shared VPC. Default: the account's.
	// +optional
	// +kubebuilder:validation:MinLength=6
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^([a-z0-9][-a-z0-9.]*:)?[a-z][-a-z0-9]*[a-z0-9]$`
	HostProject string `json:"hostProject,omitempty"`

	// publicIP gives the interface an ephemeral public IPv4 address. Default: none.
	// +optional
	PublicIP *GCPPublicIP `json:"publicIP,omitempty"`

	// publicIPv6 is "Enabled" to give the interface a public IPv6 address. Default: "Disabled".
	// +optional
	PublicIPv6 FeatureState `json:"publicIPv6,omitempty"`

	// stackType is which IP versions the interface has. Default: "IPV4_ONLY".
	// +optional
	StackType GCPStackType `json:"stackType,omitempty"`

	// aliasIPRanges are ranges of addresses for the machine's Pods. Default: none.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	AliasIPRanges []GCPAliasIPRange `json:"aliasIPRanges,omitempty"`

	// nicType is the type of the interface. Default: Compute Engine's, by the machine type.
	// +optional
	NICType GCPNICType `json:"nicType,omitempty"`

	// queueCount is the number of queues. Default: Compute Engine's, by the machine type.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=256
	QueueCount int32 `json:"queueCount,omitempty"`
}

// GCPNetworkTier specifies how the traffic of a public address travels.
// +kubebuilder:validation:Enum=PREMIUM;STANDARD
type GCPNetworkTier string

const (
	// GCPNetworkTierPremium is Google's own network.
	GCPNetworkTierPremium GCPNetworkTier = "PREMIUM"
	// GCPNetworkTierStandard is the public Internet.
	GCPNetworkTierStandard GCPNetworkTier = "STANDARD"
)

// GCPPublicIP is an ephemeral public address.
type GCPPublicIP struct {
	// networkTier is the network tier of the address. Default: the project's.
	// +optional
	NetworkTier GCPNetworkTier `json:"networkTier,omitempty"`
}

// GCPAliasIPRange is a range of addresses that Compute Engine takes from a subnet.
type GCPAliasIPRange struct {
	// range is a prefix length, or an address range in CIDR notation.
	// Example: "/24".
	// +required
	// +kubebuilder:validation:MinLength=2
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[0-9a-f.:]*/[0-9]{1,3}$`
	Range string `json:"range,omitempty"`

	// secondaryRange is the name of the subnet's secondary range that the addresses are from.
	// Default: the primary range.
	// Example: "pods".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z]([-a-z0-9]*[a-z0-9])?$`
	SecondaryRange string `json:"secondaryRange,omitempty"`
}

// GCPDisk specifies a disk.
// +kubebuilder:validation:MinProperties=1
type GCPDisk struct {
	// sizeGiB is the size of the disk in GiB. Default: that of what the disk is made from.
	// Example: 64.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65536
	SizeGiB int64 `json:"sizeGiB,omitempty"`

	// type is the disk type. Default: Compute Engine's, by the machine type.
	// Example: "pd-balanced", "hyperdisk-balanced".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z][-a-z0-9]*[a-z0-9]$`
	// +kubebuilder:validation:XValidation:rule="self != 'local-ssd'",message="use localSSDs"
	Type string `json:"type,omitempty"`

	// iops is the number of I/O operations per second, for types that let you choose it.
	// Example: 5000.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	IOPS int64 `json:"iops,omitempty"`

	// throughputMiBps is the throughput in MiB per second, for types that let you choose it.
	// Example: 200.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100000
	ThroughputMiBps int64 `json:"throughputMiBps,omitempty"`

	// storagePool is the name of the Hyperdisk storage pool, in the machine's zone, that has the
	// disk. Default: none.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z]([-a-z0-9]*[a-z0-9])?$`
	StoragePool string `json:"storagePool,omitempty"`

	// kmsKey is the key that encrypts the disk. Default: a key of Google's.
	// +optional
	KMSKey GCPKMSKey `json:"kmsKey,omitempty,omitzero"`
}

// GCPDataDisk is a disk in addition to the one that the machine boots from.
// +kubebuilder:validation:XValidation:rule="has(self.sizeGiB) || has(self.source)",message="a disk without a source needs sizeGiB"
type GCPDataDisk struct {
	GCPDisk `json:",inline"`

	// source is what the disk is made from. Default: an empty disk.
	// +optional
	Source GCPImage `json:"source,omitempty,omitzero"`

	// deviceName is the name by which the guest finds the disk, as
	// /dev/disk/by-id/google-DEVICENAME. Default: Compute Engine's.
	// Example: "data".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z]([-a-z0-9]*[a-z0-9])?$`
	DeviceName string `json:"deviceName,omitempty"`
}

// GCPKMSKey is a key of Cloud KMS.
type GCPKMSKey struct {
	// name is the resource name of the key.
	// Example: "projects/p/locations/europe-west4/keyRings/r/cryptoKeys/k".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^projects/[^\s/?#]+/locations/[^\s/?#]+/keyRings/[^\s/?#]+/cryptoKeys/[^\s?#]+$`
	Name string `json:"name,omitempty"`

	// serviceAccount is the email address of the service account that uses the key. Default: that
	// of Compute Engine in the project.
	// +optional
	// +kubebuilder:validation:MinLength=3
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^[^\s/?#@]+@[^\s/?#@]+$`
	ServiceAccount string `json:"serviceAccount,omitempty"`
}

// GCPDiskInterface is how a machine accesses its local SSDs.
// +kubebuilder:validation:Enum=NVME;SCSI
type GCPDiskInterface string

const (
	// GCPDiskInterfaceNVMe is NVMe.
	GCPDiskInterfaceNVMe GCPDiskInterface = "NVME"
	// GCPDiskInterfaceSCSI is SCSI.
	GCPDiskInterfaceSCSI GCPDiskInterface = "SCSI"
)

// GCPLocalSSDs are disks on the host. Their data are lost with the machine.
type GCPLocalSSDs struct {
	// count is how many disks there are.
	// Example: 2.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=24
	Count int32 `json:"count,omitempty"`

	// interface is the interface of the disks. Default: "NVME".
	// +optional
	Interface GCPDiskInterface `json:"interface,omitempty"`
}

// GCPServiceAccount is the service account of a machine.
type GCPServiceAccount struct {
	// email is the email address of the service account; "default" is Compute Engine's in the
	// project. Default: "default".
	// Example: "nodes@nodes-4711.iam.gserviceaccount.com".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^(default|[^\s/?#@]+@[^\s/?#@]+)$`
	Email string `json:"email,omitempty"`

	// scopes are the access scopes. Default: cloud-platform, so that the roles of the service
	// account decide.
	// Example: ["https://www.googleapis.com/auth/cloud-platform"].
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=256
	Scopes []string `json:"scopes,omitempty"`
}

// GCPShielded specifies measured boot.
// +kubebuilder:validation:MinProperties=1
type GCPShielded struct {
	// secureBoot is "Enabled" to boot only signed software. Default: Compute Engine's.
	// +optional
	SecureBoot FeatureState `json:"secureBoot,omitempty"`

	// vTPM is "Enabled" to give the machine a virtual TPM. Default: Compute Engine's.
	// +optional
	VTPM FeatureState `json:"vTPM,omitempty"`

	// integrityMonitoring is "Enabled" to compare each boot with the first one. Default: Compute
	// Engine's.
	// +optional
	IntegrityMonitoring FeatureState `json:"integrityMonitoring,omitempty"`
}

// GCPAccelerator is a number of GPUs of one type.
type GCPAccelerator struct {
	// type is the accelerator type.
	// Example: "nvidia-tesla-t4".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z][-a-z0-9]*[a-z0-9]$`
	Type string `json:"type,omitempty"`

	// count is how many GPUs there are.
	// Example: 1.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=16
	Count int32 `json:"count,omitempty"`
}

// GCPReservationType specifies which reservations a machine may use.
// +kubebuilder:validation:Enum=ANY_RESERVATION;NO_RESERVATION;SPECIFIC_RESERVATION
type GCPReservationType string

const (
	// GCPReservationAny is any reservation that fits, or none.
	GCPReservationAny GCPReservationType = "ANY_RESERVATION"
	// GCPReservationNone is no reservation.
	GCPReservationNone GCPReservationType = "NO_RESERVATION"
	// GCPReservationSpecific is the named reservation only.
	GCPReservationSpecific GCPReservationType = "SPECIFIC_RESERVATION"
)

// GCPReservation specifies which reservation a machine uses.
// +kubebuilder:validation:XValidation:rule="has(self.name) == (self.type == 'SPECIFIC_RESERVATION')",message="name is for type SPECIFIC_RESERVATION, and required for it"
type GCPReservation struct {
	// type is which reservations the machine may use.
	// +required
	Type GCPReservationType `json:"type,omitempty"`

	// name is the name of the reservation, or projects/PROJECT/reservations/NAME for one that
	// another project shares.
	// Example: "nodes".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^(projects/[^\s/?#]+/reservations/)?[a-z][^\s?#]*$`
	Name string `json:"name,omitempty"`
}

// GCPNodeAffinityOperator compares the label of a sole-tenant node with values.
// +kubebuilder:validation:Enum=IN;NOT_IN
type GCPNodeAffinityOperator string

const (
	// GCPNodeAffinityIn requires one of the values.
	GCPNodeAffinityIn GCPNodeAffinityOperator = "IN"
	// GCPNodeAffinityNotIn excludes the values.
	GCPNodeAffinityNotIn GCPNodeAffinityOperator = "NOT_IN"
)

// GCPNodeAffinity selects sole-tenant nodes by a label.
type GCPNodeAffinity struct {
	// key is the key of the label.
	// Example: "compute.googleapis.com/node-group-name".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Key string `json:"key,omitempty"`

	// operator is IN or NOT_IN. Default: "IN".
	// +optional
	Operator GCPNodeAffinityOperator `json:"operator,omitempty"`

	// values are the values of the label.
	// +required
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=256
	Values []string `json:"values,omitempty"`
}

// GCPLoadBalancer is a global external proxy Network Load Balancer for the API servers of a
// cluster.
type GCPLoadBalancer struct {
	// network is the name of the VPC network of the control plane's machines.
	// Example: "nodes".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z]([-a-z0-9]*[a-z0-9])?$`
	Network string `json:"network,omitempty"`

	// hostProject is the project that has the network, for Shared VPC. Default: the account's.
	// +optional
	// +kubebuilder:validation:MinLength=6
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^([a-z0-9][-a-z0-9.]*:)?[a-z][-a-z0-9]*[a-z0-9]$`
	HostProject string `json:"hostProject,omitempty"`
}
