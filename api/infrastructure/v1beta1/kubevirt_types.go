// SPDX-License-Identifier: Apache-2.0

package v1beta1

import (
	corev1 "k8s.io/api/core/v1"
)

// KubeVirtAccount is a namespace of a Kubernetes cluster with KubeVirt. Its credentials Secret has
// the key "kubeconfig", which Drover reads as data only: one server with its certificate authority,
// and a token or client certificate. Without a Secret, the manager's service account creates the
// VMs in the management cluster, in the DroverAccount's own namespace.
type KubeVirtAccount struct {
	// namespace is the namespace in which the VMs are created. Provider IDs are names in it. It is
	// immutable.
	// Example: "blue-machines".
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="namespace can't be changed, because the account's machines would look gone: make a new DroverAccount"
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Namespace string `json:"namespace,omitempty"`

	// failureDomains are groups of the cluster's nodes that fail independently of each other.
	// Default: none, and each machine specifies where it is placed.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=100
	FailureDomains []KubeVirtFailureDomain `json:"failureDomains,omitempty"`
}

// KubeVirtFailureDomain is a group of nodes of the cluster that runs the VMs.
type KubeVirtFailureDomain struct {
	// name is the name of the failure domain, as in a Machine's failureDomain.
	// Example: "zone-a".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name,omitempty"`

	// nodeSelector is the set of labels of the domain's nodes. It is added to the machine's own
	// nodeSelector.
	// Example: {"topology.kubernetes.io/zone": "zone-a"}.
	// +required
	// +kubebuilder:validation:MinProperties=1
	// +kubebuilder:validation:MaxProperties=16
	// +kubebuilder:validation:XValidation:rule="self.all(k, k.size() <= 317 && self[k].size() <= 63)",message="a label's key has at most 317 characters, its value 63"
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
}

// KubeVirtRunStrategy specifies what happens to a VM whose guest has ended.
// +kubebuilder:validation:Enum=Always;RerunOnFailure;Once
type KubeVirtRunStrategy string

const (
	// KubeVirtAlways always restarts the guest when it ends.
	KubeVirtAlways KubeVirtRunStrategy = "Always"
	// KubeVirtRerunOnFailure restarts the guest unless it was shut down from within.
	KubeVirtRerunOnFailure KubeVirtRunStrategy = "RerunOnFailure"
	// KubeVirtOnce never restarts the guest.
	KubeVirtOnce KubeVirtRunStrategy = "Once"
)

// KubeVirtEvictionStrategy specifies what happens when the node that a VM runs on is drained.
// +kubebuilder:validation:Enum=None;LiveMigrate;LiveMigrateIfPossible;External
type KubeVirtEvictionStrategy string

const (
	// KubeVirtEvictionNone ends the VM.
	KubeVirtEvictionNone KubeVirtEvictionStrategy = "None"
	// KubeVirtLiveMigrate moves the VM to another node, and keeps the node from being drained until
	// then.
	KubeVirtLiveMigrate KubeVirtEvictionStrategy = "LiveMigrate"
	// KubeVirtLiveMigrateIfPossible moves the VM to another node if it can be moved. Otherwise it
	// ends the VM.
	KubeVirtLiveMigrateIfPossible KubeVirtEvictionStrategy = "LiveMigrateIfPossible"
	// KubeVirtEvictionExternal leaves the VM to another controller.
	KubeVirtEvictionExternal KubeVirtEvictionStrategy = "External"
)

// KubeVirtCloudInit specifies the data source from which the guest reads its user data.
// +kubebuilder:validation:Enum=NoCloud;ConfigDrive
type KubeVirtCloudInit string

const (
	// KubeVirtNoCloud is the data source of cloud-init itself.
	KubeVirtNoCloud KubeVirtCloudInit = "NoCloud"
	// KubeVirtConfigDrive is the data source of OpenStack, which Ignition supports too.
	KubeVirtConfigDrive KubeVirtCloudInit = "ConfigDrive"
)

// KubeVirtArchitecture is a CPU architecture, as a GOARCH value.
// +kubebuilder:validation:Enum=amd64;arm64;s390x
type KubeVirtArchitecture string

const (
	// KubeVirtArchitectureAMD64 is 64-bit x86.
	KubeVirtArchitectureAMD64 KubeVirtArchitecture = "amd64"
	// KubeVirtArchitectureARM64 is 64-bit Arm.
	KubeVirtArchitectureARM64 KubeVirtArchitecture = "arm64"
	// KubeVirtArchitectureS390X is IBM Z.
	KubeVirtArchitectureS390X KubeVirtArchitecture = "s390x"
)

// KubeVirtMachine is a VirtualMachine. CPU and memory come either from an instancetype, or from cpu
// and memoryMiB.
// +kubebuilder:validation:XValidation:rule="has(self.instancetype) != (has(self.cpu) || has(self.memoryMiB))",message="give either instancetype, or cpu and memoryMiB"
// +kubebuilder:validation:XValidation:rule="has(self.instancetype) || (has(self.cpu) && has(self.memoryMiB))",message="cpu and memoryMiB are needed together"
// +kubebuilder:validation:XValidation:rule="!has(self.firmware) || !has(self.firmware.secureBoot) || self.firmware.secureBoot == 'Disabled' || self.firmware.bootloader == 'UEFI'",message="secureBoot needs the bootloader UEFI"
type KubeVirtMachine struct {
	// instancetype specifies the machine's CPU and memory. Default: none, and cpu and memoryMiB are
	// required.
	// +optional
	Instancetype KubeVirtInstancetype `json:"instancetype,omitempty,omitzero"`

	// preference specifies what an operating system prefers: buses, firmware and features. Default:
	// none.
	// +optional
	Preference KubeVirtPreference `json:"preference,omitempty,omitzero"`

	// cpu specifies the CPUs that the guest sees. Default: the instancetype's CPUs.
	// +optional
	CPU KubeVirtCPU `json:"cpu,omitempty,omitzero"`

	// memoryMiB is the guest's memory in MiB. Default: the instancetype's memory.
	// Example: 8192.
	// +optional
	// +kubebuilder:validation:Minimum=64
	// +kubebuilder:validation:Maximum=25165824
	MemoryMiB int64 `json:"memoryMiB,omitempty"`

	// architecture is the CPU architecture of the guest. Default: "amd64".
	// +optional
	Architecture KubeVirtArchitecture `json:"architecture,omitempty"`

	// rootDisk is the disk with the operating system.
	// +required
	RootDisk KubeVirtRootDisk `json:"rootDisk,omitempty,omitzero"`

	// dataDisks are additional disks, in the order in which the guest sees them. They are deleted
	// with the machine. Default: none.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	DataDisks []KubeVirtDataDisk `json:"dataDisks,omitempty"`

	// networks are the machine's network interfaces, in order. Default: the pod network, with
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
	CloudInit KubeVirtCloudInit `json:"cloudInit,omitempty"`

	// networkData is the guest's network configuration, in a format that its data source supports.
	// Default: the guest's own configuration, which is DHCP.
	// Example: "version: 2\nethernets: {enp1s0: {dhcp4: true}}".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=16384
	NetworkData string `json:"networkData,omitempty"`

	// runStrategy is "Always", "RerunOnFailure" or "Once". Default: "Once" if the root disk is a
	// containerDisk, which is new at every start, because a guest that starts from scratch can't
	// join again; otherwise "Always".
	// +optional
	RunStrategy KubeVirtRunStrategy `json:"runStrategy,omitempty"`

	// evictionStrategy specifies what happens when the node that the VM runs on is drained:
	// "LiveMigrate", "LiveMigrateIfPossible", "None", which ends the guest, or "External", which
	// leaves the VM to another controller. Default: KubeVirt's default.
	// +optional
	EvictionStrategy KubeVirtEvictionStrategy `json:"evictionStrategy,omitempty"`

	// terminationGraceSeconds is the time that the guest has to shut down when the machine is
	// deleted, in seconds. Default: 30.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=3600
	TerminationGraceSeconds *int64 `json:"terminationGraceSeconds,omitempty"`

	// nodeSelector is the set of labels that a node must have to run the VM. Default: none.
	// Example: {"pool": "vms"}.
	// +optional
	// +kubebuilder:validation:MinProperties=1
	// +kubebuilder:validation:MaxProperties=16
	// +kubebuilder:validation:XValidation:rule="self.all(k, k.size() <= 317 && self[k].size() <= 63)",message="a label's key has at most 317 characters, its value 63"
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`

	// requiredNodes are the conditions that a node must meet, all of them, to run the VM. Default:
	// none.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	RequiredNodes []KubeVirtNodeCondition `json:"requiredNodes,omitempty"`

	// preferredNodes are the conditions of preferred nodes. The more conditions a node meets, the
	// more it is preferred. Default: none.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	PreferredNodes []KubeVirtNodeCondition `json:"preferredNodes,omitempty"`

	// spread keeps the cluster's machines apart from each other. Default: none, the machines are
	// not spread.
	// +optional
	// +listType=map
	// +listMapKey=topologyKey
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	Spread []KubeVirtSpread `json:"spread,omitempty"`

	// tolerations allow the VM to run on nodes with these taints. Default: none.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	Tolerations []KubeVirtToleration `json:"tolerations,omitempty"`

	// priorityClassName is the name of the PriorityClass of the VM's pod. Default: the cluster's
	// default.
	// Example: "vms".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	PriorityClassName string `json:"priorityClassName,omitempty"`

	// firmware is the firmware that boots the guest. Default: the preference's firmware, otherwise
	// BIOS.
	// +optional
	Firmware KubeVirtFirmware `json:"firmware,omitempty,omitzero"`

	// tpm is the guest's TPM 2.0: "Ephemeral", which loses its state at every start, or
	// "Persistent". Default: none.
	// +optional
	TPM KubeVirtTPM `json:"tpm,omitempty"`

	// gpus are devices that the guest sees as GPUs. Default: none.
	// Example: [{"deviceName": "nvidia.com/TU104GL_Tesla_T4"}].
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	GPUs []KubeVirtDevice `json:"gpus,omitempty"`

	// hostDevices are additional devices of the node. Default: none.
	// Example: [{"deviceName": "intel.com/qat"}].
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	HostDevices []KubeVirtDevice `json:"hostDevices,omitempty"`

	// labels are added to the VM and its pod. Keys must not begin with "drover-". Default: none.
	// Example: {"team": "blue"}.
	// +optional
	// +kubebuilder:validation:MinProperties=1
	// +kubebuilder:validation:MaxProperties=32
	// +kubebuilder:validation:XValidation:rule="self.all(k, k.size() <= 317 && self[k].size() <= 63)",message="a label's key has at most 317 characters, its value 63"
	Labels map[string]string `json:"labels,omitempty"`

	// annotations are added to the VM and its pod. Keys must not begin with "drover-". Default:
	// none.
	// Example: {"example.com/cost-center": "42"}.
	// +optional
	// +kubebuilder:validation:MinProperties=1
	// +kubebuilder:validation:MaxProperties=32
	// +kubebuilder:validation:XValidation:rule="self.all(k, k.size() <= 317 && self[k].size() <= 4096)",message="an annotation's key has at most 317 characters, its value 4096"
	Annotations map[string]string `json:"annotations,omitempty"`
}

// KubeVirtInstancetypeKind is the kind of an instancetype.
// +kubebuilder:validation:Enum=VirtualMachineClusterInstancetype;VirtualMachineInstancetype
type KubeVirtInstancetypeKind string

const (
	// KubeVirtClusterInstancetype is an instancetype of the cluster.
	KubeVirtClusterInstancetype KubeVirtInstancetypeKind = "VirtualMachineClusterInstancetype"
	// KubeVirtNamespacedInstancetype is an instancetype of the account's namespace.
	KubeVirtNamespacedInstancetype KubeVirtInstancetypeKind = "VirtualMachineInstancetype"
)

// KubeVirtInstancetype names a VirtualMachineClusterInstancetype or VirtualMachineInstancetype.
type KubeVirtInstancetype struct {
	// name is the name of the instancetype.
	// Example: "u1.large".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	Name string `json:"name,omitempty"`

	// kind is the kind of the instancetype: that of the cluster, or that of the account's
	// namespace. Default: "VirtualMachineClusterInstancetype".
	// +optional
	Kind KubeVirtInstancetypeKind `json:"kind,omitempty"`
}

// KubeVirtPreferenceKind is the kind of a preference.
// +kubebuilder:validation:Enum=VirtualMachineClusterPreference;VirtualMachinePreference
type KubeVirtPreferenceKind string

const (
	// KubeVirtClusterPreference is a preference of the cluster.
	KubeVirtClusterPreference KubeVirtPreferenceKind = "VirtualMachineClusterPreference"
	// KubeVirtNamespacedPreference is a preference of the account's namespace.
	KubeVirtNamespacedPreference KubeVirtPreferenceKind = "VirtualMachinePreference"
)

// KubeVirtPreference names a VirtualMachineClusterPreference or VirtualMachinePreference.
type KubeVirtPreference struct {
	// name is the name of the preference.
	// Example: "ubuntu".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	Name string `json:"name,omitempty"`

	// kind is the kind of the preference: that of the cluster, or that of the account's namespace.
	// Default: "VirtualMachineClusterPreference".
	// +optional
	Kind KubeVirtPreferenceKind `json:"kind,omitempty"`
}

// KubeVirtCPUPlacement specifies which CPUs of the node run those of a guest.
// +kubebuilder:validation:Enum=Shared;Dedicated
type KubeVirtCPUPlacement string

const (
	// KubeVirtCPUShared lets others use the CPUs, too.
	KubeVirtCPUShared KubeVirtCPUPlacement = "Shared"
	// KubeVirtCPUDedicated pins each CPU to one that nothing else uses.
	KubeVirtCPUDedicated KubeVirtCPUPlacement = "Dedicated"
)

// KubeVirtCPU specifies a guest's CPUs. Their number is sockets × cores × threads.
type KubeVirtCPU struct {
	// cores is the number of cores of each socket.
	// Example: 4.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1024
	Cores int32 `json:"cores,omitempty"`

	// sockets is the number of sockets. Default: 1.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=64
	Sockets int32 `json:"sockets,omitempty"`

	// threads is the number of threads of each core. Default: 1.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=8
	Threads int32 `json:"threads,omitempty"`

	// placement is "Dedicated" to pin each CPU to a CPU of the node that nothing else uses, or
	// "Shared". A dedicated CPU needs the CPU manager's static policy on the node. Default:
	// "Shared".
	// +optional
	Placement KubeVirtCPUPlacement `json:"placement,omitempty"`

	// model is the model of the CPU. Default: KubeVirt's default, with which the VM can migrate
	// between similar nodes.
	// Example: "host-passthrough".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9][-A-Za-z0-9_.]*$`
	Model string `json:"model,omitempty"`
}

// KubeVirtDevice is a device of the node that the guest uses.
type KubeVirtDevice struct {
	// deviceName is the name of the node resource that provides the device.
	// Example: "nvidia.com/TU104GL_Tesla_T4".
	// +required
	// +kubebuilder:validation:MinLength=3
	// +kubebuilder:validation:MaxLength=317
	DeviceName string `json:"deviceName,omitempty"`
}

// KubeVirtBinding specifies how a guest is connected to a network.
// +kubebuilder:validation:Enum=Masquerade;Bridge;SRIOV
type KubeVirtBinding string

const (
	// KubeVirtMasquerade puts the guest behind the address of its pod.
	KubeVirtMasquerade KubeVirtBinding = "Masquerade"
	// KubeVirtBridge gives the guest the address of its pod, or connects it to the network itself.
	KubeVirtBridge KubeVirtBinding = "Bridge"
	// KubeVirtSRIOV gives the guest a virtual function of a network card.
	KubeVirtSRIOV KubeVirtBinding = "SRIOV"
)

// KubeVirtNICModel is the model of a network card.
// +kubebuilder:validation:Enum=virtio;e1000;e1000e;rtl8139;igb
type KubeVirtNICModel string

const (
	// KubeVirtNICVirtio is virtio.
	KubeVirtNICVirtio KubeVirtNICModel = "virtio"
	// KubeVirtNICE1000 is Intel's 82540.
	KubeVirtNICE1000 KubeVirtNICModel = "e1000"
	// KubeVirtNICE1000E is Intel's 82574.
	KubeVirtNICE1000E KubeVirtNICModel = "e1000e"
	// KubeVirtNICRTL8139 is Realtek's 8139.
	KubeVirtNICRTL8139 KubeVirtNICModel = "rtl8139"
	// KubeVirtNICIGB is Intel's 82576.
	KubeVirtNICIGB KubeVirtNICModel = "igb"
)

// KubeVirtNetwork is one network interface.
// +kubebuilder:validation:XValidation:rule="has(self.multus) || !has(self.binding) || self.binding != 'SRIOV'",message="SRIOV needs a multus network"
// +kubebuilder:validation:XValidation:rule="!has(self.multus) || !has(self.binding) || self.binding != 'Masquerade'",message="Masquerade is for the pod network"
type KubeVirtNetwork struct {
	// name is the name of the interface.
	// Example: "default".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name,omitempty"`

	// multus is the name of the NetworkAttachmentDefinition to connect to, as "name" or
	// "namespace/name". Default: the pod network.
	// Example: "nets/vlan-7".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9]*[a-z0-9])?/)?[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	Multus string `json:"multus,omitempty"`

	// binding specifies how the guest is connected: "Masquerade", "Bridge" or "SRIOV". Default:
	// "Masquerade" for the pod network, "Bridge" for multus.
	// +optional
	Binding KubeVirtBinding `json:"binding,omitempty"`

	// model is the model of the network card. Default: the preference's model, otherwise "virtio".
	// +optional
	Model KubeVirtNICModel `json:"model,omitempty"`
}

// KubeVirtNodeCondition is a condition on a node's labels.
// +kubebuilder:validation:XValidation:rule="(self.operator in ['In', 'NotIn']) == has(self.values)",message="values belong to the operators In and NotIn"
type KubeVirtNodeCondition struct {
	// key is the key of the label.
	// Example: "topology.kubernetes.io/zone".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	Key string `json:"key,omitempty"`

	// operator specifies how the label is compared with the values.
	// Example: "In".
	// +required
	// +kubebuilder:validation:Enum=In;NotIn;Exists;DoesNotExist
	Operator corev1.NodeSelectorOperator `json:"operator,omitempty"`

	// values are the values to compare the label with. Default: none.
	// Example: ["zone-a", "zone-b"].
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
	// topologyKey is the node label across whose values the machines are spread evenly.
	// Example: "kubernetes.io/hostname".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	TopologyKey string `json:"topologyKey,omitempty"`

	// maxSkew is the maximum difference between the numbers of machines of two values. Default: 1.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	MaxSkew int32 `json:"maxSkew,omitempty"`

	// whenUnsatisfiable is "ScheduleAnyway" or "DoNotSchedule". Default: "ScheduleAnyway".
	// +optional
	// +kubebuilder:validation:Enum=ScheduleAnyway;DoNotSchedule
	WhenUnsatisfiable corev1.UnsatisfiableConstraintAction `json:"whenUnsatisfiable,omitempty"`

	// matchLabels selects the machines that are counted, by their labels. Default: all machines of
	// the cluster.
	// Example: {"pool": "md-0"}.
	// +optional
	// +kubebuilder:validation:MinProperties=1
	// +kubebuilder:validation:MaxProperties=8
	// +kubebuilder:validation:XValidation:rule="self.all(k, k.size() <= 317 && self[k].size() <= 63)",message="a label's key has at most 317 characters, its value 63"
	MatchLabels map[string]string `json:"matchLabels,omitempty"`
}

// KubeVirtToleration allows a VM to run on nodes with a taint.
// +kubebuilder:validation:XValidation:rule="!has(self.operator) || self.operator != 'Exists' || !has(self.value)",message="the operator Exists takes no value"
type KubeVirtToleration struct {
	// key is the key of the taint. Default: every key, with the operator Exists.
	// Example: "dedicated".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	Key string `json:"key,omitempty"`

	// operator is "Equal" or "Exists". Default: "Equal".
	// +optional
	// +kubebuilder:validation:Enum=Equal;Exists
	Operator corev1.TolerationOperator `json:"operator,omitempty"`

	// value is the value of the taint. Default: "".
	// Example: "vms".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Value string `json:"value,omitempty"`

	// effect is the effect of the taint. Default: every effect.
	// +optional
	// +kubebuilder:validation:Enum=NoSchedule;PreferNoSchedule;NoExecute
	Effect corev1.TaintEffect `json:"effect,omitempty"`

	// seconds is how long the VM stays on a node that gets the taint, with the effect NoExecute.
	// Default: forever.
	// Example: 300.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=604800
	Seconds *int64 `json:"seconds,omitempty"`
}

// KubeVirtBootloader is the firmware of a guest.
// +kubebuilder:validation:Enum=BIOS;UEFI
type KubeVirtBootloader string

const (
	// KubeVirtBIOS is a BIOS.
	KubeVirtBIOS KubeVirtBootloader = "BIOS"
	// KubeVirtUEFI is UEFI.
	KubeVirtUEFI KubeVirtBootloader = "UEFI"
)

// KubeVirtFirmware is the firmware that boots a guest.
type KubeVirtFirmware struct {
	// bootloader is "BIOS" or "UEFI".
	// +required
	Bootloader KubeVirtBootloader `json:"bootloader,omitempty"`

	// secureBoot is "Enabled" if only signed code may boot. Default: "Disabled".
	// +optional
	SecureBoot FeatureState `json:"secureBoot,omitempty"`
}

// KubeVirtTPM is the kind of a guest's TPM.
// +kubebuilder:validation:Enum=Ephemeral;Persistent
type KubeVirtTPM string

const (
	// KubeVirtTPMEphemeral loses its state at every start.
	KubeVirtTPMEphemeral KubeVirtTPM = "Ephemeral"
	// KubeVirtTPMPersistent keeps its state in a volume.
	KubeVirtTPMPersistent KubeVirtTPM = "Persistent"
)

// KubeVirtLoadBalancer is a Service without a selector, next to the VMs. Drover writes its
// endpoints.
// +kubebuilder:validation:XValidation:rule="has(self.host) == (has(self.type) && self.type == 'NodePort')",message="host is for the type NodePort, which needs it"
type KubeVirtLoadBalancer struct {
	// type is the Service's type. "ClusterIP" is reachable only from within the cluster that runs
	// the VMs. "NodePort" needs a port of the range that this cluster has for node ports. Default:
	// "LoadBalancer".
	// +optional
	// +kubebuilder:validation:Enum=ClusterIP;NodePort;LoadBalancer
	Type corev1.ServiceType `json:"type,omitempty"`

	// host is the IP address or DNS name at which clients reach nodes of the cluster that runs the
	// VMs, for the type NodePort.
	// Example: "nodes.example.com".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-zA-Z0-9]([-a-zA-Z0-9.]*[a-zA-Z0-9])?$|^[0-9a-fA-F:]+$`
	Host string `json:"host,omitempty"`

	// annotations are those of the Service, by which load balancers' controllers are configured.
	// Keys that begin with "drover-" are Drover's. Default: none.
	// Example: {"metallb.io/loadBalancerIPs": "192.0.2.10"}.
	// +optional
	// +kubebuilder:validation:MinProperties=1
	// +kubebuilder:validation:MaxProperties=32
	// +kubebuilder:validation:XValidation:rule="self.all(k, k.size() <= 317 && self[k].size() <= 4096 && !k.startsWith('drover-'))",message="an annotation's key has at most 317 characters and does not begin with 'drover-', its value has 4096"
	Annotations map[string]string `json:"annotations,omitempty"`
}
