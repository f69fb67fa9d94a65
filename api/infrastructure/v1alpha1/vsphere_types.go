// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// VSphereAccount is a datacenter of a vCenter Server. Its credentials Secret has the keys
// "username" and "password"; there are no ambient credentials.
// +kubebuilder:validation:XValidation:rule="!has(self.failureDomains) || !has(self.zoneCategory)",message="failureDomains and zoneCategory are two answers to one question: set one of them"
type VSphereAccount struct {
	// server is the vCenter's host name or address, with a port if it is not 443. It is spoken to
	// over TLS, and its certificate is always verified. It can't be changed. Example:
	// "vcenter.example.com".
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="server can't be changed, because the account's machines would look gone: make a new CloudAccount"
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=260
	// +kubebuilder:validation:Pattern=`^([A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?$`
	Server string `json:"server,omitempty"`

	// caBundle holds the certificates, as PEM, that vCenter's certificate is verified against: its
	// authority's, which vCenter offers at https://SERVER/certs/download.zip, or its own if that is
	// self-signed. Default: the authorities of the manager's system.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=65536
	CABundle string `json:"caBundle,omitempty"`

	// thumbprint is the SHA-256 thumbprint of vCenter's certificate: 64 hexadecimal digits, with
	// colons between the pairs or without. It is compared on every connection, and suffices alone:
	// no authority is asked then, caBundle's neither, and the names and dates in the certificate
	// mean nothing. It changes with each renewal of the certificate. SHA-1, as older tools print
	// it, is refused. Default: none. Example: "openssl x509 -noout -fingerprint -sha256" prints it.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=95
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9A-Fa-f]{64}|([0-9A-Fa-f]{2}:){31}[0-9A-Fa-f]{2})$')",message="thumbprint must be the SHA-256 one, 64 hexadecimal digits; SHA-1 can be forged"
	Thumbprint string `json:"thumbprint,omitempty"`

	// datacenter is the inventory path of the datacenter, in which all names of a machine are
	// looked for. It can't be changed. Example: "dc1", "europe/dc1".
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="datacenter can't be changed, because the account's machines would look gone: make a new CloudAccount"
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^[^/]+(/[^/]+)*$`
	Datacenter string `json:"datacenter,omitempty"`

	// failureDomains are parts of the datacenter that fail apart from each other. Left out, each
	// machine says itself where it goes.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=100
	FailureDomains []VSphereFailureDomain `json:"failureDomains,omitempty"`

	// zoneCategory finds the failure domains by vSphere tags instead: it is the name of the
	// category whose tags are on the datacenter's compute clusters, one cluster for each tag. The
	// failure domains are called as the tags are. A datastore of the datacenter with the same tag
	// is the domain's. Example: "k8s-zone".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	ZoneCategory string `json:"zoneCategory,omitempty"`

	// nodeAddresses chooses among the addresses that VMware Tools tell of a machine. Left out, all
	// of them are the machine's but loopback and link-local ones.
	// +optional
	NodeAddresses *VSphereNodeAddresses `json:"nodeAddresses,omitempty"`
}

// VSphereNodeAddresses chooses a machine's addresses.
// +kubebuilder:validation:MinProperties=1
type VSphereNodeAddresses struct {
	// network whose addresses come first, by the name that vCenter shows for the adapter's network.
	// Example: "node-network".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=80
	Network string `json:"network,omitempty"`

	// exclude are address ranges that are no machine's own, such as that of a virtual address,
	// which moves among the machines of a control plane. Example: ["192.0.2.100/32"].
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=50
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=64
	Exclude []string `json:"exclude,omitempty"`
}

// VSphereFailureDomain is a part of a datacenter that fails by itself, such as a compute cluster
// with its storage.
type VSphereFailureDomain struct {
	// name of the failure domain, as a Machine's failureDomain has it. Example: "rack-a".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name,omitempty"`

	// resourcePool that the machines of this domain go to, instead of their own. Example:
	// "cluster-a/Resources".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^[^/]+(/[^/]+)*$`
	ResourcePool string `json:"resourcePool,omitempty"`

	// datastore that the machines of this domain go to, instead of their own. Example: "san-a".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^[^/]+(/[^/]+)*$`
	Datastore string `json:"datastore,omitempty"`
}

// VSphereCloneMode says what a clone shares with its template.
// +kubebuilder:validation:Enum=Full;Linked
type VSphereCloneMode string

const (
	// VSphereCloneFull copies the disks.
	VSphereCloneFull VSphereCloneMode = "Full"
	// VSphereCloneLinked puts new disks above those of a snapshot of the template.
	VSphereCloneLinked VSphereCloneMode = "Linked"
)

// VSpherePowerOffMode says how a machine is switched off before it is deleted.
// +kubebuilder:validation:Enum=Hard;TrySoft;Soft
type VSpherePowerOffMode string

const (
	// VSpherePowerOffHard cuts the power.
	VSpherePowerOffHard VSpherePowerOffMode = "Hard"
	// VSpherePowerOffTrySoft asks the guest to shut down, and cuts the power when it has not done
	// so in time.
	VSpherePowerOffTrySoft VSpherePowerOffMode = "TrySoft"
	// VSpherePowerOffSoft asks the guest to shut down, again and again, and never cuts the power of
	// one that runs.
	VSpherePowerOffSoft VSpherePowerOffMode = "Soft"
)

// VSphereMachine is a VM that is cloned from a template. Paths are those of the inventory, below
// the datacenter's folder for that kind of object; a slash in a name is written as "%2f".
// +kubebuilder:validation:XValidation:rule="has(self.template) != has(self.contentLibrary)",message="set template or contentLibrary, and not both"
// +kubebuilder:validation:XValidation:rule="!has(self.cloneMode) || self.cloneMode != 'Linked' || !has(self.diskGiB)",message="a linked clone has its template's disk: leave diskGiB out"
// +kubebuilder:validation:XValidation:rule="!has(self.snapshot) || (has(self.cloneMode) && self.cloneMode == 'Linked')",message="snapshot is for linked clones: set cloneMode to Linked"
// +kubebuilder:validation:XValidation:rule="!has(self.datastore) || !has(self.datastoreCluster)",message="datastore and datastoreCluster are two answers to one question: set one of them"
// +kubebuilder:validation:XValidation:rule="!has(self.coresPerSocket) || (has(self.cpus) && self.cpus % self.coresPerSocket == 0)",message="cpus must be set, and a multiple of coresPerSocket"
// +kubebuilder:validation:XValidation:rule="!has(self.secureBoot) || !self.secureBoot || !has(self.bootOptions) || !has(self.bootOptions.firmware) || self.bootOptions.firmware == 'EFI'",message="secure boot is EFI's: set bootOptions.firmware to EFI, or leave it out"
type VSphereMachine struct {
	// template is the path of the VM or template to clone. It needs VMware Tools, and cloud-init
	// with the VMware data source or Ignition. Default: the one in contentLibrary. Example:
	// "templates/ubuntu-2404-kube-v1.36.3".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^[^/]+(/[^/]+)*$`
	Template string `json:"template,omitempty"`

	// contentLibrary names the template as an item of a content library, instead of by its path.
	// Example: {library: images, item: ubuntu-2404-kube-v1.36.3}.
	// +optional
	ContentLibrary *VSphereLibraryItem `json:"contentLibrary,omitempty"`

	// cloneMode is "Full", which copies the template's disks, or "Linked", which is made in seconds
	// and depends on the template's snapshot as long as the machine lives. Default: "Full".
	// +optional
	// +kubebuilder:default=Full
	CloneMode VSphereCloneMode `json:"cloneMode,omitempty"`

	// snapshot of the template that a linked clone is made from, by its name, or by the end of its
	// path in the tree of snapshots where several have that name. Default: the current one.
	// Example: "v1.36.3", "base/v1.36.3".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^[^/]+(/[^/]+)*$`
	Snapshot string `json:"snapshot,omitempty"`

	// folder to put the VM in. Default: the datacenter's folder for VMs. Example: "clusters/blue".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^[^/]+(/[^/]+)*$`
	Folder string `json:"folder,omitempty"`

	// resourcePool to put the VM in. A cluster's own is "CLUSTER/Resources". It may be left out
	// only where the failure domain has one. Example: "cluster-a/Resources/workers".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^[^/]+(/[^/]+)*$`
	ResourcePool string `json:"resourcePool,omitempty"`

	// host to put the VM on, one of the resource pool's. It is for a device that one host has, and
	// for clusters without DRS: a host that fails or is full has no substitute, and DRS may move
	// the VM later. A failure domain's resource pool goes before it. Default: vCenter's choice.
	// Example: "cluster-a/esx-7.example.com".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^[^/]+(/[^/]+)*$`
	Host string `json:"host,omitempty"`

	// datastore to put the VM's disks on. Default: the failure domain's, else the template's.
	// Example: "san-a".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^[^/]+(/[^/]+)*$`
	Datastore string `json:"datastore,omitempty"`

	// datastoreCluster to put the VM's disks on, instead of a datastore: Storage DRS chooses one in
	// it for each machine. A failure domain's datastore goes before it. Example: "san".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^[^/]+(/[^/]+)*$`
	DatastoreCluster string `json:"datastoreCluster,omitempty"`

	// storagePolicy is the name of the VM storage policy for the VM's home and all its disks. The
	// datastore must satisfy it. Default: the datastore's. Example: "vSAN Default Storage Policy".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=80
	StoragePolicy string `json:"storagePolicy,omitempty"`

	// cpus is the number of virtual CPUs. Default: the template's. Example: 4.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=768
	CPUs int32 `json:"cpus,omitempty"`

	// coresPerSocket is how many of the CPUs share a socket. Default: the template's. Example: 2.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=768
	CoresPerSocket int32 `json:"coresPerSocket,omitempty"`

	// memoryMiB is the memory in MiB, a multiple of 4. Default: the template's. Example: 8192.
	// +optional
	// +kubebuilder:validation:Minimum=128
	// +kubebuilder:validation:Maximum=25165824
	// +kubebuilder:validation:MultipleOf=4
	MemoryMiB int64 `json:"memoryMiB,omitempty"`

	// diskGiB is the size of the first disk in GiB, at least the template's. Default: the
	// template's. Example: 40.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=63488
	DiskGiB int32 `json:"diskGiB,omitempty"`

	// dataDisksGiB are the sizes of further disks, in GiB, thin. They are deleted with the machine.
	// Example: [100].
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:Minimum=1
	// +kubebuilder:validation:items:Maximum=63488
	DataDisksGiB []int32 `json:"dataDisksGiB,omitempty"`

	// networks are the machine's network adapters, in order, in place of the template's. Default:
	// the template's, by DHCP.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=10
	Networks []VSphereNetwork `json:"networks,omitempty"`

	// pciDevices are passed through to the guest, in order. All of the machine's memory is reserved
	// for it then. Default: the template's.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	PCIDevices []VSpherePCIDevice `json:"pciDevices,omitempty"`

	// hardwareVersion that the VM has at least: an older template's is upgraded when the VM is
	// switched on for the first time. It is never lowered. A device that only the newer version has
	// can't come with the same clone: upgrade the template for it. Default: the template's.
	// Example: "vmx-21".
	// +optional
	// +kubebuilder:validation:MinLength=6
	// +kubebuilder:validation:MaxLength=6
	// +kubebuilder:validation:Pattern=`^vmx-[0-9]{2}$`
	HardwareVersion string `json:"hardwareVersion,omitempty"`

	// bootOptions are the firmware's. Default: the template's.
	// +optional
	BootOptions *VSphereBootOptions `json:"bootOptions,omitempty"`

	// secureBoot has the firmware start signed code alone. The template's firmware must be EFI.
	// Default: the template's.
	// +optional
	SecureBoot *bool `json:"secureBoot,omitempty"`

	// tpm is "Virtual" for a virtual TPM of the machine's own: a new one, and a new identity in
	// place of the template's if that has one. vCenter needs a key provider, the template EFI
	// firmware. Default: what the template has, copied.
	// +optional
	TPM VSphereTPM `json:"tpm,omitempty"`

	// antiAffinityGroup has DRS keep the machines of one cluster and one group on different hosts
	// where it can. The rule is made and kept by Drover in each compute cluster that the group has
	// two machines in. Default: none. Example: "workers".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	AntiAffinityGroup string `json:"antiAffinityGroup,omitempty"`

	// extraConfig are further options of the VM. Those of Drover ("drover-…") and those that carry
	// the user data ("guestinfo.userdata", "guestinfo.metadata", "guestinfo.ignition" and what
	// follows) can't be set. Default: the template's.
	// +optional
	// +listType=map
	// +listMapKey=key
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=50
	ExtraConfig []VSphereOption `json:"extraConfig,omitempty"`

	// tags of vSphere that are attached to the VM, by their categories and names. They are attached
	// when it is first seen to run, and are for people and for what goes by tags; Drover does not.
	// Default: none. Example: [{category: team, name: blue}].
	// +optional
	// +listType=map
	// +listMapKey=category
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=20
	Tags []VSphereTag `json:"tags,omitempty"`

	// customAttributes of vSphere that are set on the VM, by name, when it is first seen to run.
	// They must be there. Default: none. Example: [{name: cost-center, value: "4711"}].
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=10
	CustomAttributes []VSphereAttribute `json:"customAttributes,omitempty"`

	// powerOffMode is "Hard", which cuts the power before the VM is deleted, "TrySoft", which asks
	// the guest to shut down first, or "Soft", which waits until it has done so, however long. The
	// Node has been drained before. Default: "Hard".
	// +optional
	// +kubebuilder:default=Hard
	PowerOffMode VSpherePowerOffMode `json:"powerOffMode,omitempty"`

	// guestShutdownSeconds is how long the guest has to shut down, in seconds, before its power is
	// cut with powerOffMode "TrySoft", and before it is asked again with "Soft". Default: 300.
	// +optional
	// +kubebuilder:default=300
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=3600
	GuestShutdownSeconds int32 `json:"guestShutdownSeconds,omitempty"`
}

// VSphereLibraryItem is a VM template that a content library of the vCenter keeps, in its latest
// version. An item of type OVF is none.
type VSphereLibraryItem struct {
	// library is the content library's name. Capital letters are not told apart. Example: "images".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	Library string `json:"library,omitempty"`

	// item is the name of the template in the library. Example: "ubuntu-2404-kube-v1.36.3".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	Item string `json:"item,omitempty"`
}

// VSphereTag is a tag of vSphere, which must be there.
type VSphereTag struct {
	// category of the tag. Example: "team".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Category string `json:"category,omitempty"`

	// name of the tag in its category. Example: "blue".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Name string `json:"name,omitempty"`
}

// VSphereAttribute is the value of a custom attribute that vCenter has for VMs, or for everything.
type VSphereAttribute struct {
	// name of the attribute. Example: "cost-center".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=80
	Name string `json:"name,omitempty"`

	// value of the attribute. Example: "4711".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Value string `json:"value,omitempty"`
}

// VSphereBootOptions say how a VM starts.
// +kubebuilder:validation:MinProperties=1
type VSphereBootOptions struct {
	// firmware of the VM. The template's disk must be made for it. Default: the template's.
	// Example: "EFI".
	// +optional
	Firmware VSphereFirmware `json:"firmware,omitempty"`

	// delayMilliseconds is how long the firmware waits before it starts the guest, in milliseconds.
	// Default: 0. Example: 5000.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=60000
	DelayMilliseconds int32 `json:"delayMilliseconds,omitempty"`

	// retryAfterMilliseconds has a VM that found nothing to start from try again after that time,
	// in milliseconds. Default: as the template has it. Example: 10000.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=600000
	RetryAfterMilliseconds int32 `json:"retryAfterMilliseconds,omitempty"`
}

// VSphereFirmware is what starts a VM.
// +kubebuilder:validation:Enum=BIOS;EFI
type VSphereFirmware string

const (
	// VSphereFirmwareBIOS is the older one.
	VSphereFirmwareBIOS VSphereFirmware = "BIOS"
	// VSphereFirmwareEFI is the newer one, which can check signatures.
	VSphereFirmwareEFI VSphereFirmware = "EFI"
)

// VSphereTPM says which TPM a machine has.
// +kubebuilder:validation:Enum=Virtual
type VSphereTPM string

// VSphereTPMVirtual is one that vCenter makes and keeps encrypted.
const VSphereTPMVirtual VSphereTPM = "Virtual"

// VSpherePCIDevice is a device of the host's: one of a kind, wherever there is one, or a share of a
// graphics card.
// +kubebuilder:validation:XValidation:rule="has(self.vGPUProfile) ? !has(self.vendorID) && !has(self.deviceID) : has(self.vendorID) && has(self.deviceID)",message="set vendorID and deviceID, or vGPUProfile alone"
type VSpherePCIDevice struct {
	// vendorID of the device. Example: 4318.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	VendorID int32 `json:"vendorID,omitempty"`

	// deviceID of the device. Example: 7864.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	DeviceID int32 `json:"deviceID,omitempty"`

	// vGPUProfile is the share of a graphics card, by its vendor's name for it. Example:
	// "grid_t4-8q".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=80
	VGPUProfile string `json:"vGPUProfile,omitempty"`
}

// VSphereNetwork is one network adapter, and how the guest sets it up (by cloud-init's network
// configuration, version 2).
// +kubebuilder:validation:XValidation:rule="!has(self.addresses) || !has(self.dhcp4) || !self.dhcp4 || self.addresses.all(a, a.contains(':'))",message="an adapter with DHCP for IPv4 has no IPv4 addresses of its own"
type VSphereNetwork struct {
	// name is the path of the network or distributed port group. Example: "VM Network".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^[^/]+(/[^/]+)*$`
	Name string `json:"name,omitempty"`

	// macAddress of the adapter. All machines of a template would have the same: it is for a
	// machine that is alone. Default: vCenter's choice. Example: "00:50:56:00:00:07".
	// +optional
	// +kubebuilder:validation:Pattern=`^([0-9a-f]{2}:){5}[0-9a-f]{2}$`
	MACAddress string `json:"macAddress,omitempty"`

	// dhcp4 asks for an IPv4 address by DHCP. Default: true, unless addresses are given.
	// +optional
	DHCP4 *bool `json:"dhcp4,omitempty"`

	// dhcp6 asks for an IPv6 address by DHCP. Default: false.
	// +optional
	DHCP6 *bool `json:"dhcp6,omitempty"`

	// addresses with their prefix lengths. All machines of a template would have the same: they are
	// for a machine that is alone. Example: ["192.0.2.10/24"].
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=64
	Addresses []string `json:"addresses,omitempty"`

	// gateway4 is the default gateway for IPv4. Example: "192.0.2.1".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	Gateway4 string `json:"gateway4,omitempty"`

	// gateway6 is the default gateway for IPv6. Example: "2001:db8::1".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	Gateway6 string `json:"gateway6,omitempty"`

	// nameservers are the addresses of DNS servers. Example: ["192.0.2.53"].
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=64
	Nameservers []string `json:"nameservers,omitempty"`

	// searchDomains are what DNS names without a dot are looked for in. Example: ["example.com"].
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	SearchDomains []string `json:"searchDomains,omitempty"`

	// routes are static routes over this adapter. Default: none.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	Routes []VSphereRoute `json:"routes,omitempty"`

	// mtu is the largest packet in bytes. Default: the guest's. Example: 9000.
	// +optional
	// +kubebuilder:validation:Minimum=576
	// +kubebuilder:validation:Maximum=9000
	MTU int32 `json:"mtu,omitempty"`
}

// VSphereRoute is a static route.
type VSphereRoute struct {
	// to is the destination. Example: "198.51.100.0/24".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	To string `json:"to,omitempty"`

	// via is the gateway's address. Example: "192.0.2.254".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	Via string `json:"via,omitempty"`

	// metric orders routes to the same destination; the lowest is taken. Default: the guest's.
	// Example: 100.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Metric int32 `json:"metric,omitempty"`
}

// VSphereOption is one option of a VM's configuration.
type VSphereOption struct {
	// key of the option. Example: "sched.cpu.latencySensitivity".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Key string `json:"key,omitempty"`

	// value of the option. Example: "high".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	Value string `json:"value,omitempty"`
}
