// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// KubeVirtAccount is a namespace of a Kubernetes cluster with KubeVirt. Its credentials Secret has
// the key "kubeconfig", which is taken as data: one server with its authority, and a token or
// client certificate. Without a Secret the VMs are made in the management cluster itself, in the
// CloudAccount's own namespace, by the manager's service account.
type KubeVirtAccount struct {
	// namespace in which the VMs are made. Provider IDs are names in it. It can't be changed.
	// Example: "blue-machines".
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="namespace can't be changed, because the account's machines would look gone: make a new CloudAccount"
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Namespace string `json:"namespace,omitempty"`

	// failureDomains are groups of the cluster's nodes that fail apart from each other. Left out,
	// each machine says itself where it goes.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=100
	FailureDomains []KubeVirtFailureDomain `json:"failureDomains,omitempty"`
}

// KubeVirtFailureDomain is a group of nodes of the cluster that runs the VMs.
type KubeVirtFailureDomain struct {
	// name of the failure domain, as a Machine's failureDomain has it. Example: "zone-a".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name,omitempty"`

	// nodeSelector has the labels of its nodes, added to the machine's own. Example:
	// {"topology.kubernetes.io/zone": "zone-a"}.
	// +required
	// +kubebuilder:validation:MinProperties=1
	// +kubebuilder:validation:MaxProperties=16
	// +kubebuilder:validation:XValidation:rule="self.all(k, k.size() <= 317 && self[k].size() <= 63)",message="a label's key has at most 317 characters, its value 63"
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
}

// KubeVirtRunStrategy says what becomes of a VM whose guest has ended.
// +kubebuilder:validation:Enum=Always;RerunOnFailure;Once
type KubeVirtRunStrategy string

const (
	// KubeVirtAlways starts the guest again whenever it ends.
	KubeVirtAlways KubeVirtRunStrategy = "Always"
	// KubeVirtRerunOnFailure starts it again unless it was shut down from within.
	KubeVirtRerunOnFailure KubeVirtRunStrategy = "RerunOnFailure"
	// KubeVirtOnce never starts it again.
	KubeVirtOnce KubeVirtRunStrategy = "Once"
)

// KubeVirtEvictionStrategy says what happens when the node that a VM runs on is drained.
// +kubebuilder:validation:Enum=None;LiveMigrate;LiveMigrateIfPossible;External
type KubeVirtEvictionStrategy string

// KubeVirtCloudInit says by which data source the guest reads its user data.
// +kubebuilder:validation:Enum=NoCloud;ConfigDrive
type KubeVirtCloudInit string

const (
	// KubeVirtNoCloud is cloud-init's own.
	KubeVirtNoCloud KubeVirtCloudInit = "NoCloud"
	// KubeVirtConfigDrive is OpenStack's, which Ignition reads too.
	KubeVirtConfigDrive KubeVirtCloudInit = "ConfigDrive"
)

// KubeVirtArchitecture is a CPU architecture in Go's words.
// +kubebuilder:validation:Enum=amd64;arm64;s390x
type KubeVirtArchitecture string

// KubeVirtMachine is a VirtualMachine. Either an instancetype gives it CPU and memory, or cpu and
// memoryMiB do.
// +kubebuilder:validation:XValidation:rule="has(self.instancetype) != (has(self.cpu) || has(self.memoryMiB))",message="give either instancetype, or cpu and memoryMiB"
// +kubebuilder:validation:XValidation:rule="has(self.instancetype) || (has(self.cpu) && has(self.memoryMiB))",message="cpu and memoryMiB are needed together"
// +kubebuilder:validation:XValidation:rule="!has(self.firmware) || !has(self.firmware.secureBoot) || !self.firmware.secureBoot || self.firmware.bootloader == 'UEFI'",message="secureBoot needs the bootloader UEFI"
type KubeVirtMachine struct {
	// instancetype gives the machine its CPU and memory. Default: none, and cpu and memoryMiB are
	// needed.
	// +optional
	Instancetype *KubeVirtInstancetype `json:"instancetype,omitempty"`

	// preference gives the machine what an operating system likes best: buses, firmware, features.
	// Default: none.
	// +optional
	Preference *KubeVirtPreference `json:"preference,omitempty"`

	// cpu is what the guest sees of CPUs. Default: the instancetype's.
	// +optional
	CPU *KubeVirtCPU `json:"cpu,omitempty"`

	// memoryMiB is the guest's memory in MiB. Default: the instancetype's. Example: 8192.
	// +optional
	// +kubebuilder:validation:Minimum=64
	// +kubebuilder:validation:Maximum=25165824
	MemoryMiB int64 `json:"memoryMiB,omitempty"`

	// architecture of the guest. Default: "amd64".
	// +optional
	// +kubebuilder:default=amd64
	Architecture KubeVirtArchitecture `json:"architecture,omitempty"`

	// rootDisk holds the operating system.
	// +required
	RootDisk KubeVirtRootDisk `json:"rootDisk,omitzero"`

	// dataDisks are further disks, in the order in which the guest sees them. They are deleted with
	// the machine. Default: none.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	DataDisks []KubeVirtDataDisk `json:"dataDisks,omitempty"`

	// networks are the machine's network interfaces, in order. Default: the pod network, by
	// masquerade.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=10
	Networks []KubeVirtNetwork `json:"networks,omitempty"`

	// cloudInit is the data source of the guest's user data: "NoCloud" for cloud-init,
	// "ConfigDrive" for Ignition. Default: "NoCloud".
	// +optional
	// +kubebuilder:default=NoCloud
	CloudInit KubeVirtCloudInit `json:"cloudInit,omitempty"`

	// networkData is the guest's network configuration, in a form that its data source knows.
	// Default: the guest's own, which is DHCP. Example: "version: 2\nethernets: {enp1s0: {dhcp4:
	// true}}".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=16384
	NetworkData string `json:"networkData,omitempty"`

	// runStrategy is "Always", "RerunOnFailure" or "Once". Default: "Once" where the root disk is
	// an image that is fresh at every start (containerDisk), because a guest that starts anew can't
	// join anew; otherwise "Always".
	// +optional
	RunStrategy KubeVirtRunStrategy `json:"runStrategy,omitempty"`

	// evictionStrategy is what happens when the node that the VM runs on is drained: "LiveMigrate",
	// "LiveMigrateIfPossible", "None", which ends the guest, or "External", which leaves it to
	// others. Default: KubeVirt's own.
	// +optional
	EvictionStrategy KubeVirtEvictionStrategy `json:"evictionStrategy,omitempty"`

	// terminationGraceSeconds is how long the guest has to shut down when the machine is deleted,
	// in seconds. Default: 30.
	// +optional
	// +kubebuilder:default=30
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=3600
	TerminationGraceSeconds *int64 `json:"terminationGraceSeconds,omitempty"`

	// nodeSelector has the labels that a node must have to run the VM. Default: none. Example:
	// {"pool": "vms"}.
	// +optional
	// +kubebuilder:validation:MinProperties=1
	// +kubebuilder:validation:MaxProperties=16
	// +kubebuilder:validation:XValidation:rule="self.all(k, k.size() <= 317 && self[k].size() <= 63)",message="a label's key has at most 317 characters, its value 63"
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`

	// requiredNodes are conditions that a node must meet, all of them, to run the VM. Default:
	// none.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	RequiredNodes []KubeVirtNodeCondition `json:"requiredNodes,omitempty"`

	// preferredNodes are conditions of nodes that are chosen rather than others: the more of them
	// are met, the better. Default: none.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	PreferredNodes []KubeVirtNodeCondition `json:"preferredNodes,omitempty"`

	// spread keeps the cluster's machines apart from each other. Default: not at all.
	// +optional
	// +listType=map
	// +listMapKey=topologyKey
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	Spread []KubeVirtSpread `json:"spread,omitempty"`

	// tolerations let the VM run on nodes with these taints. Default: none.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	Tolerations []KubeVirtToleration `json:"tolerations,omitempty"`

	// priorityClassName of the VM's pod. Default: the cluster's default. Example: "vms".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	PriorityClassName string `json:"priorityClassName,omitempty"`

	// firmware that boots the guest. Default: the preference's, else BIOS.
	// +optional
	Firmware *KubeVirtFirmware `json:"firmware,omitempty"`

	// tpm gives the guest a TPM 2.0: "Ephemeral", which forgets at every start, or "Persistent".
	// Default: none.
	// +optional
	TPM KubeVirtTPM `json:"tpm,omitempty"`

	// gpus are devices that the guest sees as GPUs, by the names of the resources that nodes offer.
	// Default: none. Example: ["nvidia.com/TU104GL_Tesla_T4"].
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=3
	// +kubebuilder:validation:items:MaxLength=317
	GPUs []string `json:"gpus,omitempty"`

	// hostDevices are further devices of the node, by the names of the resources that nodes offer.
	// Default: none. Example: ["intel.com/qat"].
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=3
	// +kubebuilder:validation:items:MaxLength=317
	HostDevices []string `json:"hostDevices,omitempty"`

	// labels of the VM and its pod. Keys that begin with "drover-" are not permitted. Default:
	// none. Example: {"team": "blue"}.
	// +optional
	// +kubebuilder:validation:MinProperties=1
	// +kubebuilder:validation:MaxProperties=32
	// +kubebuilder:validation:XValidation:rule="self.all(k, k.size() <= 317 && self[k].size() <= 63)",message="a label's key has at most 317 characters, its value 63"
	Labels map[string]string `json:"labels,omitempty"`

	// annotations of the VM and its pod. Keys that begin with "drover-" are not permitted. Default:
	// none. Example: {"example.com/cost-centre": "42"}.
	// +optional
	// +kubebuilder:validation:MinProperties=1
	// +kubebuilder:validation:MaxProperties=32
	// +kubebuilder:validation:XValidation:rule="self.all(k, k.size() <= 317 && self[k].size() <= 4096)",message="an annotation's key has at most 317 characters, its value 4096"
	Annotations map[string]string `json:"annotations,omitempty"`
}

// KubeVirtInstancetype names a VirtualMachineClusterInstancetype or VirtualMachineInstancetype.
type KubeVirtInstancetype struct {
	// name of the instancetype. Example: "u1.large".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	Name string `json:"name,omitempty"`

	// kind of the instancetype: the cluster's, or the account's namespace's. Default:
	// "VirtualMachineClusterInstancetype".
	// +optional
	// +kubebuilder:default=VirtualMachineClusterInstancetype
	// +kubebuilder:validation:Enum=VirtualMachineClusterInstancetype;VirtualMachineInstancetype
	Kind string `json:"kind,omitempty"`
}

// KubeVirtPreference names a VirtualMachineClusterPreference or VirtualMachinePreference.
type KubeVirtPreference struct {
	// name of the preference. Example: "ubuntu".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	Name string `json:"name,omitempty"`

	// kind of the preference: the cluster's, or the account's namespace's. Default:
	// "VirtualMachineClusterPreference".
	// +optional
	// +kubebuilder:default=VirtualMachineClusterPreference
	// +kubebuilder:validation:Enum=VirtualMachineClusterPreference;VirtualMachinePreference
	Kind string `json:"kind,omitempty"`
}

// KubeVirtCPU is a guest's CPUs: sockets × cores × threads of them.
type KubeVirtCPU struct {
	// cores in each socket. Example: 4.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1024
	Cores int32 `json:"cores,omitempty"`

	// sockets of the machine. Default: 1.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=64
	Sockets int32 `json:"sockets,omitempty"`

	// threads of each core. Default: 1.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=8
	Threads int32 `json:"threads,omitempty"`

	// dedicated pins each CPU to one of the node's, which nobody else uses. The node needs the CPU
	// manager's static policy. Default: false.
	// +optional
	Dedicated *bool `json:"dedicated,omitempty"`

	// model of the CPU. Default: KubeVirt's, which can be migrated between like nodes. Example:
	// "host-passthrough".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9][-A-Za-z0-9_.]*$`
	Model string `json:"model,omitempty"`
}

// KubeVirtNetwork is one network interface.
// +kubebuilder:validation:XValidation:rule="has(self.multus) || !has(self.binding) || self.binding != 'SRIOV'",message="SRIOV needs a multus network"
// +kubebuilder:validation:XValidation:rule="!has(self.multus) || !has(self.binding) || self.binding != 'Masquerade'",message="Masquerade is for the pod network"
type KubeVirtNetwork struct {
	// name of the interface. Example: "default".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name,omitempty"`

	// multus names the NetworkAttachmentDefinition to connect to, as "name" or "namespace/name".
	// Default: the pod network. Example: "nets/vlan-7".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9]*[a-z0-9])?/)?[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	Multus string `json:"multus,omitempty"`

	// binding is how the guest is connected: "Masquerade", "Bridge" or "SRIOV". Default:
	// "Masquerade" for the pod network, "Bridge" for multus.
	// +optional
	// +kubebuilder:validation:Enum=Masquerade;Bridge;SRIOV
	Binding string `json:"binding,omitempty"`

	// model of the network card. Default: the preference's, else "virtio".
	// +optional
	// +kubebuilder:validation:Enum=virtio;e1000;e1000e;rtl8139;igb
	Model string `json:"model,omitempty"`
}

// KubeVirtNodeCondition is a condition on a node's labels.
// +kubebuilder:validation:XValidation:rule="(self.operator in ['In', 'NotIn']) == has(self.values)",message="values belong to the operators In and NotIn"
type KubeVirtNodeCondition struct {
	// key of the label. Example: "topology.kubernetes.io/zone".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	Key string `json:"key,omitempty"`

	// operator that compares the label with the values. Example: "In".
	// +required
	// +kubebuilder:validation:Enum=In;NotIn;Exists;DoesNotExist
	Operator string `json:"operator,omitempty"`

	// values that the label has, or has not. Default: none. Example: ["zone-a", "zone-b"].
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	Values []string `json:"values,omitempty"`
}

// KubeVirtSpread keeps the cluster's machines apart.
type KubeVirtSpread struct {
	// topologyKey is the node label whose values are kept even. Example: "kubernetes.io/hostname".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	TopologyKey string `json:"topologyKey,omitempty"`

	// maxSkew is how many more machines one value may have than another. Default: 1.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	MaxSkew int32 `json:"maxSkew,omitempty"`

	// whenUnsatisfiable is "ScheduleAnyway" or "DoNotSchedule". Default: "ScheduleAnyway".
	// +optional
	// +kubebuilder:default=ScheduleAnyway
	// +kubebuilder:validation:Enum=ScheduleAnyway;DoNotSchedule
	WhenUnsatisfiable string `json:"whenUnsatisfiable,omitempty"`

	// matchLabels choose the machines that are counted, by their labels. Default: all machines of
	// the cluster. Example: {"pool": "md-0"}.
	// +optional
	// +kubebuilder:validation:MinProperties=1
	// +kubebuilder:validation:MaxProperties=8
	// +kubebuilder:validation:XValidation:rule="self.all(k, k.size() <= 317 && self[k].size() <= 63)",message="a label's key has at most 317 characters, its value 63"
	MatchLabels map[string]string `json:"matchLabels,omitempty"`
}

// KubeVirtToleration lets a VM run on nodes with a taint.
// +kubebuilder:validation:XValidation:rule="!has(self.operator) || self.operator != 'Exists' || !has(self.value)",message="the operator Exists takes no value"
type KubeVirtToleration struct {
	// key of the taint. Default: every key, with the operator Exists. Example: "dedicated".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	Key string `json:"key,omitempty"`

	// operator is "Equal" or "Exists". Default: "Equal".
	// +optional
	// +kubebuilder:validation:Enum=Equal;Exists
	Operator string `json:"operator,omitempty"`

	// value of the taint. Default: "". Example: "vms".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Value string `json:"value,omitempty"`

	// effect of the taint. Default: every effect.
	// +optional
	// +kubebuilder:validation:Enum=NoSchedule;PreferNoSchedule;NoExecute
	Effect string `json:"effect,omitempty"`

	// seconds that the VM stays on a node that gets the taint, with the effect NoExecute. Default:
	// for ever. Example: 300.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=604800
	Seconds *int64 `json:"seconds,omitempty"`
}

// KubeVirtFirmware boots a guest.
type KubeVirtFirmware struct {
	// bootloader is "BIOS" or "UEFI".
	// +required
	// +kubebuilder:validation:Enum=BIOS;UEFI
	Bootloader string `json:"bootloader,omitempty"`

	// secureBoot boots what is signed, and nothing else. Default: false.
	// +optional
	SecureBoot *bool `json:"secureBoot,omitempty"`
}

// KubeVirtTPM is a guest's TPM.
// +kubebuilder:validation:Enum=Ephemeral;Persistent
type KubeVirtTPM string

const (
	// KubeVirtTPMEphemeral forgets at every start.
	KubeVirtTPMEphemeral KubeVirtTPM = "Ephemeral"
	// KubeVirtTPMPersistent keeps its state in a volume.
	KubeVirtTPMPersistent KubeVirtTPM = "Persistent"
)
