// SPDX-License-Identifier: Apache-2.0

package v1beta1

// VSphereAccount is a datacenter of a vCenter Server. Its credentials Secret has the keys
// "username" and "password". There are no ambient credentials.
// +kubebuilder:validation:XValidation:rule="!has(self.failureDomains) || !has(self.zoneCategory)",message="failureDomains and zoneCategory are two answers to one question: set one of them"
type VSphereAccount struct {
	// server is the vCenter's host name or address, with the port if it is not 443. Drover connects
	// with TLS and always verifies the certificate. It is immutable.
	// Example: "vcenter.example.com".
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="server can't be changed, because the account's machines would look gone: make a new DroverAccount"
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=260
	// +kubebuilder:validation:Pattern=`^([A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?$`
	Server string `json:"server,omitempty"`

	// caBundle holds the PEM certificates with which vCenter's certificate is verified: that of its
	// authority, which vCenter offers at https://SERVER/certs/download.zip, or its own if it is
	// self-signed. Default: the authorities of the manager's system.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=65536
	CABundle string `json:"caBundle,omitempty"`

	// thumbprint is the SHA-256 thumbprint of vCenter's certificate: 64 hexadecimal digits, with or
	// without colons between the pairs. Drover compares it on every connection, and needs nothing
	// else to trust the certificate: it ignores all authorities, including caBundle, and the names
	// and dates in the certificate. The thumbprint changes with each renewal of the certificate.
	// SHA-1, as older tools print it, is rejected. Default: none.
	// Example: "openssl x509 -noout -fingerprint -sha256" prints it.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=95
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9A-Fa-f]{64}|([0-9A-Fa-f]{2}:){31}[0-9A-Fa-f]{2})$')",message="thumbprint must be the SHA-256 one, 64 hexadecimal digits; SHA-1 can be forged"
	Thumbprint string `json:"thumbprint,omitempty"`

	// datacenter is the inventory path of the datacenter. All names in the machine's fields are
	// looked up in it. It is immutable.
	// Example: "dc1", "europe/dc1".
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="datacenter can't be changed, because the account's machines would look gone: make a new DroverAccount"
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^[^/]+(/[^/]+)*$`
	Datacenter string `json:"datacenter,omitempty"`

	// failureDomains are parts of the datacenter that fail independently of each other. Default:
	// none, and each machine specifies where it is placed.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=100
	FailureDomains []VSphereFailureDomain `json:"failureDomains,omitempty"`

	// zoneCategory finds the failure domains by vSphere tags instead. It is the name of the
	// category whose tags are on the datacenter's compute clusters, one cluster for each tag. Each
	// failure domain has the name of its tag, and uses a datastore of the datacenter with the same
	// tag, if there is one.
	// Example: "k8s-zone".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	ZoneCategory string `json:"zoneCategory,omitempty"`

	// nodeAddresses selects from the addresses that VMware Tools report for a machine. Default: all
	// of them, except loopback and link-local addresses.
	// +optional
	NodeAddresses *VSphereNodeAddresses `json:"nodeAddresses,omitempty"` //nolint:kubeapilinter // The struct is not comparable, and has no member that is always set.
}

// VSphereNodeAddresses selects a machine's addresses.
// +kubebuilder:validation:MinProperties=1
type VSphereNodeAddresses struct {
	// network is the network whose addresses come first, by the name that vCenter shows for the
	// adapter's network.
	// Example: "node-network".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=80
	Network string `json:"network,omitempty"`

	// exclude are address ranges that do not belong to a machine, such as that of a virtual address
	// that moves between the machines of a control plane.
	// Example: ["192.0.2.100/32"].
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=50
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=64
	Exclude []string `json:"exclude,omitempty"`
}

// VSphereFailureDomain is a part of a datacenter that fails independently, such as a compute
// cluster with its storage.
type VSphereFailureDomain struct {
	// name is the name of the failure domain, as in a Machine's failureDomain.
	// Example: "rack-a".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name,omitempty"`

	// resourcePool is the resource pool of machines in this domain. It replaces that of the
	// machine.
	// Example: "cluster-a/Resources".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^[^/]+(/[^/]+)*$`
	ResourcePool string `json:"resourcePool,omitempty"`

	// datastore is the datastore of machines in this domain. It replaces that of the machine.
	// Example: "san-a".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^[^/]+(/[^/]+)*$`
	Datastore string `json:"datastore,omitempty"`
}

// VSphereCloneMode specifies what a clone shares with its template.
// +kubebuilder:validation:Enum=Full;Linked
type VSphereCloneMode string

const (
	// VSphereCloneFull copies the disks.
	VSphereCloneFull VSphereCloneMode = "Full"
	// VSphereCloneLinked creates new disks on top of those of a snapshot of the template.
	VSphereCloneLinked VSphereCloneMode = "Linked"
)

// VSpherePowerOffMode specifies how a machine is powered off before it is deleted.
// +kubebuilder:validation:Enum=Hard;TrySoft;Soft
type VSpherePowerOffMode string

const (
	// VSpherePowerOffHard cuts the power.
	VSpherePowerOffHard VSpherePowerOffMode = "Hard"
	// VSpherePowerOffTrySoft asks the guest to shut down, and cuts the power if the guest does not
	// do so in time.
	VSpherePowerOffTrySoft VSpherePowerOffMode = "TrySoft"
	// VSpherePowerOffSoft asks the guest to shut down, repeatedly, and never cuts the power of a
	// running guest.
	VSpherePowerOffSoft VSpherePowerOffMode = "Soft"
)

// VSphereMachine is a VM that is cloned from a template. Paths are inventory paths, below the
// datacenter's folder for that kind of object. A slash in a name is written as "%2f".
// +kubebuilder:validation:XValidation:rule="has(self.template) != has(self.contentLibrary)",message="set template or contentLibrary, and not both"
// +kubebuilder:validation:XValidation:rule="!has(self.cloneMode) || self.cloneMode != 'Linked' || !has(self.diskGiB)",message="a linked clone has its template's disk: leave diskGiB out"
// +kubebuilder:validation:XValidation:rule="!has(self.snapshot) || (has(self.cloneMode) && self.cloneMode == 'Linked')",message="snapshot is for linked clones: set cloneMode to Linked"
// +kubebuilder:validation:XValidation:rule="!has(self.datastore) || !has(self.datastoreCluster)",message="datastore and datastoreCluster are two answers to one question: set one of them"
// +kubebuilder:validation:XValidation:rule="!has(self.coresPerSocket) || (has(self.cpus) && self.cpus % self.coresPerSocket == 0)",message="cpus must be set, and a multiple of coresPerSocket"
// +kubebuilder:validation:XValidation:rule="!has(self.secureBoot) || self.secureBoot != 'Enabled' || !has(self.bootOptions) || !has(self.bootOptions.firmware) || self.bootOptions.firmware == 'EFI'",message="secure boot is EFI's: set bootOptions.firmware to EFI, or leave it out"
type VSphereMachine struct {
	// template is the path of the VM or template to clone. It must contain VMware Tools, and either
	// cloud-init with the VMware data source or Ignition. Default: the template in contentLibrary.
	// Example: "templates/ubuntu-2404-kube-v1.36.3".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^[^/]+(/[^/]+)*$`
	Template string `json:"template,omitempty"`

	// contentLibrary names the template as an item of a content library, instead of by its path.
	// Example: {library: images, item: ubuntu-2404-kube-v1.36.3}.
	// +optional
	ContentLibrary VSphereLibraryItem `json:"contentLibrary,omitempty,omitzero"`

	// cloneMode is "Full", which copies the template's disks, or "Linked", which takes seconds but
	// depends on the template's snapshot as long as the machine exists. Default: "Full".
	// +optional
	CloneMode VSphereCloneMode `json:"cloneMode,omitempty"`

	// snapshot is the snapshot of the template from which a linked clone is created. It is the name
	// of the snapshot, or the end of its path in the snapshot tree if several have that name.
	// Default: the current snapshot.
	// Example: "v1.36.3", "base/v1.36.3".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^[^/]+(/[^/]+)*$`
	Snapshot string `json:"snapshot,omitempty"`

	// folder is the folder of the VM. Default: the datacenter's folder for VMs.
	// Example: "clusters/blue".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^[^/]+(/[^/]+)*$`
	Folder string `json:"folder,omitempty"`

	// resourcePool is the resource pool of the VM. The root pool of a cluster is
	// "CLUSTER/Resources". It is required unless the failure domain has a resource pool.
	// Example: "cluster-a/Resources/workers".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^[^/]+(/[^/]+)*$`
	ResourcePool string `json:"resourcePool,omitempty"`

	// host is the host of the VM, which must belong to the resource pool. It is for a device that
	// only one host has, and for clusters without DRS: a host that fails or is full has no
	// substitute, and DRS may move the VM later. A failure domain's resource pool takes precedence.
	// Default: vCenter's choice.
	// Example: "cluster-a/esx-7.example.com".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^[^/]+(/[^/]+)*$`
	Host string `json:"host,omitempty"`

	// datastore is the datastore of the VM's disks. Default: the failure domain's datastore,
	// otherwise the template's.
	// Example: "san-a".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^[^/]+(/[^/]+)*$`
	Datastore string `json:"datastore,omitempty"`

	// datastoreCluster is the datastore cluster of the VM's disks, instead of a datastore. Storage
	// DRS chooses a datastore in it for each machine. A failure domain's datastore takes
	// precedence.
	// Example: "san".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^[^/]+(/[^/]+)*$`
	DatastoreCluster string `json:"datastoreCluster,omitempty"`

	// storagePolicy is the name of the VM storage policy for the VM's home and all its disks. The
	// datastore must satisfy it. Default: the datastore's policy.
	// Example: "vSAN Default Storage Policy".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=80
	StoragePolicy string `json:"storagePolicy,omitempty"`

	// cpus is the number of virtual CPUs. Default: the template's number.
	// Example: 4.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=768
	CPUs int32 `json:"cpus,omitempty"`

	// coresPerSocket is the number of CPUs that share a socket. Default: the template's number.
	// Example: 2.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=768
	CoresPerSocket int32 `json:"coresPerSocket,omitempty"`

	// memoryMiB is the memory in MiB. Must be a multiple of 4. Default: the template's memory.
	// Example: 8192.
	// +optional
	// +kubebuilder:validation:Minimum=128
	// +kubebuilder:validation:Maximum=25165824
	// +kubebuilder:validation:MultipleOf=4
	MemoryMiB int64 `json:"memoryMiB,omitempty"`

	// diskGiB is the size of the first disk in GiB. Must be at least the size in the template.
	// Default: the template's size.
	// Example: 40.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=63488
	DiskGiB int32 `json:"diskGiB,omitempty"`

	// dataDisks are additional, thin-provisioned disks. They are deleted with the machine. Default:
	// none.
	// Example: [{"sizeGiB": 100}].
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	DataDisks []VSphereDataDisk `json:"dataDisks,omitempty"`

	// networks are the machine's network adapters, in order. They replace those of the template.
	// Default: the template's adapters, with DHCP.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=10
	Networks []VSphereNetwork `json:"networks,omitempty"`

	// pciDevices are passed through to the guest, in order. All of the machine's memory is then
	// reserved. Default: the template's devices.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	PCIDevices []VSpherePCIDevice `json:"pciDevices,omitempty"`

	// hardwareVersion is the minimum hardware version of the VM. If the template's version is
	// older, the VM is upgraded when it is powered on for the first time. The version is never
	// lowered. A device that needs the newer version can't be added in the same clone: upgrade the
	// template instead. Default: the template's version.
	// Example: "vmx-21".
	// +optional
	// +kubebuilder:validation:MinLength=6
	// +kubebuilder:validation:MaxLength=6
	// +kubebuilder:validation:Pattern=`^vmx-[0-9]{2}$`
	HardwareVersion string `json:"hardwareVersion,omitempty"`

	// bootOptions are the options of the firmware. Default: the template's options.
	// +optional
	BootOptions VSphereBootOptions `json:"bootOptions,omitempty,omitzero"`

	// secureBoot is "Enabled" to make the firmware start only signed code, for which the template's
	// firmware must be EFI, and "Disabled" to make it start any code. Default: the template's
	// setting.
	// +optional
	SecureBoot FeatureState `json:"secureBoot,omitempty"`

	// tpm is "Virtual" for a new virtual TPM. If the template has one, the machine gets a new
	// identity in its place. vCenter needs a key provider, and the template needs EFI firmware.
	// Default: a copy of what the template has.
	// +optional
	TPM VSphereTPM `json:"tpm,omitempty"`

	// antiAffinityGroup makes DRS keep the machines of the same cluster and group on different
	// hosts if possible. Drover creates and maintains the rule in each compute cluster in which the
	// group has two machines. Default: none.
	// Example: "workers".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	AntiAffinityGroup string `json:"antiAffinityGroup,omitempty"`

	// extraConfig are additional options of the VM. Drover's options ("drover-…") and those that
	// carry the user data ("guestinfo.userdata", "guestinfo.metadata", "guestinfo.ignition" and
	// what follows) can't be set. Default: the template's options.
	// +optional
	// +listType=map
	// +listMapKey=key
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=50
	ExtraConfig []VSphereOption `json:"extraConfig,omitempty"`

	// tags are the vSphere tags that are attached to the VM, by category and name. They are
	// attached when the VM is first seen running. They are for people and for other software:
	// Drover does not use them. Default: none.
	// Example: [{category: team, name: blue}].
	// +optional
	// +listType=map
	// +listMapKey=category
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=20
	Tags []VSphereTag `json:"tags,omitempty"`

	// customAttributes are the vSphere custom attributes that are set on the VM, by name, when it
	// is first seen running. The attributes must exist. Default: none.
	// Example: [{name: cost-center, value: "4711"}].
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=10
	CustomAttributes []VSphereAttribute `json:"customAttributes,omitempty"`

	// powerOffMode specifies how the VM is powered off before it is deleted. "Hard" cuts the power.
	// "TrySoft" asks the guest to shut down first. "Soft" waits until the guest has shut down,
	// however long that takes. The Node has been drained before. Default: "Hard".
	// +optional
	PowerOffMode VSpherePowerOffMode `json:"powerOffMode,omitempty"`

	// guestShutdownSeconds is the time that the guest has to shut down, in seconds. After it,
	// "TrySoft" cuts the power, and "Soft" asks the guest again. Default: 300.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=3600
	GuestShutdownSeconds int32 `json:"guestShutdownSeconds,omitempty"`
}

// VSphereLibraryItem is a VM template in a content library of the vCenter, in its latest version.
// It can't be an item of type OVF.
type VSphereLibraryItem struct {
	// library is the name of the content library. It is not case-sensitive.
	// Example: "images".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	Library string `json:"library,omitempty"`

	// item is the name of the template in the library.
	// Example: "ubuntu-2404-kube-v1.36.3".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	Item string `json:"item,omitempty"`
}

// VSphereTag is a tag of vSphere. The tag must exist.
type VSphereTag struct {
	// category is the category of the tag.
	// Example: "team".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Category string `json:"category,omitempty"`

	// name is the name of the tag in its category.
	// Example: "blue".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Name string `json:"name,omitempty"`
}

// VSphereAttribute is the value of a custom attribute that vCenter defines for VMs, or for all
// types.
type VSphereAttribute struct {
	// name is the name of the attribute.
	// Example: "cost-center".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=80
	Name string `json:"name,omitempty"`

	// value is the value of the attribute.
	// Example: "4711".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Value string `json:"value,omitempty"`
}

// VSphereBootOptions specifies how a VM starts.
// +kubebuilder:validation:MinProperties=1
type VSphereBootOptions struct {
	// firmware is the firmware of the VM. The template's disk must be made for it. Default: the
	// template's firmware.
	// Example: "EFI".
	// +optional
	Firmware VSphereFirmware `json:"firmware,omitempty"`

	// delayMilliseconds is the time that the firmware waits before it starts the guest, in
	// milliseconds. Default: 0.
	// Example: 5000.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=60000
	DelayMilliseconds int32 `json:"delayMilliseconds,omitempty"`

	// retryAfterMilliseconds is the time after which a VM that found nothing to boot from tries
	// again, in milliseconds. Default: the template's setting.
	// Example: 10000.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=600000
	RetryAfterMilliseconds int32 `json:"retryAfterMilliseconds,omitempty"`
}

// VSphereFirmware is the firmware that starts a VM.
// +kubebuilder:validation:Enum=BIOS;EFI
type VSphereFirmware string

const (
	// VSphereFirmwareBIOS is the older firmware.
	VSphereFirmwareBIOS VSphereFirmware = "BIOS"
	// VSphereFirmwareEFI is the newer firmware, which can verify signatures.
	VSphereFirmwareEFI VSphereFirmware = "EFI"
)

// VSphereTPM specifies which TPM a machine has.
// +kubebuilder:validation:Enum=Virtual
type VSphereTPM string

// VSphereTPMVirtual is a TPM that vCenter creates and stores encrypted.
const VSphereTPMVirtual VSphereTPM = "Virtual"

// VSpherePCIDevice is a PCI device of the host: a device with the given IDs, on any host that has
// one, or a share of a graphics card.
// +kubebuilder:validation:XValidation:rule="has(self.vGPUProfile) ? !has(self.vendorID) && !has(self.deviceID) : has(self.vendorID) && has(self.deviceID)",message="set vendorID and deviceID, or vGPUProfile alone"
type VSpherePCIDevice struct {
	// vendorID is the vendor ID of the device.
	// Example: 4318.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	VendorID int32 `json:"vendorID,omitempty"`

	// deviceID is the device ID of the device.
	// Example: 7864.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	DeviceID int32 `json:"deviceID,omitempty"`

	// vGPUProfile is the vendor's name for the share of a graphics card.
	// Example: "grid_t4-8q".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=80
	VGPUProfile string `json:"vGPUProfile,omitempty"`
}

// VSphereDataDisk is a disk in addition to the template's.
type VSphereDataDisk struct {
	// sizeGiB is the size of the disk in GiB.
	// Example: 100.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=63488
	SizeGiB int32 `json:"sizeGiB,omitempty"`
}

// VSphereNetwork is one network adapter, and how the guest configures it (with cloud-init's network
// configuration, version 2).
// +kubebuilder:validation:XValidation:rule="!has(self.addresses) || !has(self.dhcp4) || self.dhcp4 != 'Enabled' || self.addresses.all(a, a.contains(':'))",message="an adapter with DHCP for IPv4 has no IPv4 addresses of its own"
type VSphereNetwork struct {
	// name is the path of the network or distributed port group.
	// Example: "VM Network".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^[^/]+(/[^/]+)*$`
	Name string `json:"name,omitempty"`

	// macAddress is the MAC address of the adapter. All machines of a template would have the same
	// address, so it is for a single machine. Default: vCenter's choice.
	// Example: "00:50:56:00:00:07".
	// +optional
	// +kubebuilder:validation:Pattern=`^([0-9a-f]{2}:){5}[0-9a-f]{2}$`
	// +kubebuilder:validation:MinLength=17
	// +kubebuilder:validation:MaxLength=17
	MACAddress string `json:"macAddress,omitempty"`

	// dhcp4 is "Enabled" to request an IPv4 address with DHCP. Default: "Disabled" if addresses are
	// given, otherwise "Enabled".
	// +optional
	DHCP4 FeatureState `json:"dhcp4,omitempty"`

	// dhcp6 is "Enabled" to request an IPv6 address with DHCP. Default: "Disabled".
	// +optional
	DHCP6 FeatureState `json:"dhcp6,omitempty"`

	// addresses are the adapter's addresses with their prefix lengths. All machines of a template
	// would have the same addresses, so they are for a single machine.
	// Example: ["192.0.2.10/24"].
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=64
	Addresses []string `json:"addresses,omitempty"`

	// gateway4 is the default gateway for IPv4.
	// Example: "192.0.2.1".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	Gateway4 string `json:"gateway4,omitempty"`

	// gateway6 is the default gateway for IPv6.
	// Example: "2001:db8::1".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	Gateway6 string `json:"gateway6,omitempty"`

	// nameservers are the addresses of DNS servers.
	// Example: ["192.0.2.53"].
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=64
	Nameservers []string `json:"nameservers,omitempty"`

	// searchDomains are the domains in which DNS names without a dot are looked up.
	// Example: ["example.com"].
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	SearchDomains []string `json:"searchDomains,omitempty"`

	// routes are static routes through this adapter. Default: none.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	Routes []VSphereRoute `json:"routes,omitempty"`

	// mtu is the maximum size of a packet, in bytes. Default: the guest's setting.
	// Example: 9000.
	// +optional
	// +kubebuilder:validation:Minimum=576
	// +kubebuilder:validation:Maximum=9000
	MTU int32 `json:"mtu,omitempty"`
}

// VSphereRoute is a static route.
type VSphereRoute struct {
	// to is the destination.
	// Example: "198.51.100.0/24".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	To string `json:"to,omitempty"`

	// via is the address of the gateway.
	// Example: "192.0.2.254".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	Via string `json:"via,omitempty"`

	// metric orders routes to the same destination. The route with the lowest metric is used.
	// Default: the guest's setting.
	// Example: 100.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Metric int32 `json:"metric,omitempty"`
}

// VSphereOption is one option of a VM's configuration.
type VSphereOption struct {
	// key is the key of the option.
	// Example: "sched.cpu.latencySensitivity".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Key string `json:"key,omitempty"`

	// value is the value of the option.
	// Example: "high".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	Value string `json:"value,omitempty"`
}
