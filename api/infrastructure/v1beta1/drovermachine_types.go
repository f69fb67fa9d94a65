// SPDX-License-Identifier: Apache-2.0

package v1beta1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// DroverMachineFields are the fields of a machine that a user sets.
type DroverMachineFields struct {
	// accountRef names the DroverAccount, in this namespace, that creates the machine.
	// +required
	AccountRef LocalReference `json:"accountRef,omitzero"`

	// cloud specifies the machine in the cloud of its DroverAccount.
	// +required
	Cloud MachineCloud `json:"cloud,omitzero"`
}

// MachineCloud specifies a machine in one cloud. Exactly one member must be set.
// +kubebuilder:validation:ExactlyOneOf=aws;azure;gcp;kubevirt;openstack;simulated;vsphere
type MachineCloud struct {
	// aws specifies an EC2 instance.
	// +optional
	AWS *AWSMachine `json:"aws,omitempty"` //nolint:kubeapilinter // A pointer, because a union's member is set or nil.

	// azure specifies an Azure virtual machine.
	// +optional
	Azure *AzureMachine `json:"azure,omitempty"` //nolint:kubeapilinter // A pointer, because a union's member is set or nil.

	// gcp specifies a virtual machine of Compute Engine.
	// +optional
	GCP *GCPMachine `json:"gcp,omitempty"` //nolint:kubeapilinter // A pointer, because a union's member is set or nil.

	// kubevirt specifies a VirtualMachine in a Kubernetes cluster with KubeVirt.
	// +optional
	KubeVirt *KubeVirtMachine `json:"kubevirt,omitempty"` //nolint:kubeapilinter // A pointer, because a union's member is set or nil.

	// openstack specifies a Nova server.
	// +optional
	OpenStack *OpenStackMachine `json:"openstack,omitempty"` //nolint:kubeapilinter // A pointer, because a union's member is set or nil.

	// simulated specifies a machine of the embedded simulated cloud.
	// +optional
	Simulated *SimulatedMachine `json:"simulated,omitempty"`

	// vsphere specifies a VM in a datacenter of a vCenter Server.
	// +optional
	VSphere *VSphereMachine `json:"vsphere,omitempty"`
}

// DroverMachineSpec specifies one machine. It is immutable, except for providerID and creation,
// which Drover writes. A changed machine is a new machine.
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.providerID) || (has(self.providerID) && self.providerID == oldSelf.providerID)",message="providerID is set once"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.creation) || (has(self.creation) && self.creation.token == oldSelf.creation.token)",message="creation.token is set once: it is in the tags of the VM"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.creation) || !has(oldSelf.creation.attempt) || (has(self.creation) && has(self.creation.attempt) && self.creation.attempt >= oldSelf.creation.attempt)",message="creation.attempt never falls: a cloud may know the token of a lower one"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.providerID) || !has(oldSelf.creation) || (has(self.creation) && self.creation == oldSelf.creation)",message="creation can't be changed once the VM is made"
// +kubebuilder:validation:XValidation:rule="self.accountRef == oldSelf.accountRef",message="accountRef can't be changed: make a new machine"
// +kubebuilder:validation:XValidation:rule="self.cloud == oldSelf.cloud",message="cloud can't be changed: make a new machine"
type DroverMachineSpec struct {
	DroverMachineFields `json:",inline"`

	// providerID is the VM's ID in Kubernetes, equal to spec.providerID of its Node. Drover sets it
	// once.
	// Example: "simulated:///sim-1a/i-0a1b2c3d".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	ProviderID string `json:"providerID,omitempty"`

	// creation is Drover's record of how it creates the VM. Drover writes it before the first call
	// to the cloud, and until the VM exists. Leave it to Drover: its token is set once, and a copy
	// of another machine's is refused. It is in spec so that it survives "clusterctl move".
	// +optional
	Creation DroverMachineCreation `json:"creation,omitempty,omitzero"`
}

// DroverMachineCreation is the record of how a VM is created.
type DroverMachineCreation struct {
	// token is the machine's identity in the cloud. Drover sets it once, to a random value. The
	// create call contains it, so that a repeated call creates nothing, and it is in the tags of
	// the VM and of all its dependants.
	// Example: "5f0c2a91d3b84e6f7a90c1d2e3f40516".
	// +required
	// +kubebuilder:validation:MinLength=16
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Token string `json:"token,omitempty"`

	// failureDomain is the failure domain in which the VM is requested, on a cloud that would
	// create a second VM for the same token in another domain. Drover sets it before the create
	// call, and changes it only after the cloud has refused the machine there.
	// Example: "eu-central-1a".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	FailureDomain string `json:"failureDomain,omitempty"`

	// attempt is the number of create calls that such a cloud has refused. It is part of the token
	// that the next call sends to the cloud, so that this token is a new one. Default: 0.
	// +optional
	// +kubebuilder:validation:Minimum=1
	Attempt int32 `json:"attempt,omitempty"`
}

// DroverMachineInitialization holds the fields that Cluster API reads only once.
// +kubebuilder:validation:MinProperties=1
type DroverMachineInitialization struct {
	// provisioned is true once the VM has been seen running.
	// +optional
	Provisioned *bool `json:"provisioned,omitempty"` //nolint:kubeapilinter // Cluster API's contract has a bool.
}

// InstanceState is the state of a VM.
// +kubebuilder:validation:Enum=Pending;Running;Stopping;Stopped;Failed;Terminated;Gone
type InstanceState string

const (
	// InstanceStatePending is the state of a VM that starts.
	InstanceStatePending InstanceState = "Pending"
	// InstanceStateRunning is the state of a VM that runs.
	InstanceStateRunning InstanceState = "Running"
	// InstanceStateStopping is the state of a VM that stops.
	InstanceStateStopping InstanceState = "Stopping"
	// InstanceStateStopped is the state of a VM that exists and does not run.
	InstanceStateStopped InstanceState = "Stopped"
	// InstanceStateFailed is the state of a VM that the cloud could not start.
	InstanceStateFailed InstanceState = "Failed"
	// InstanceStateTerminated is the state of a VM that the cloud still shows, and that will never
	// run again.
	InstanceStateTerminated InstanceState = "Terminated"
	// InstanceStateGone is the state of a VM whose absence a live read confirmed.
	InstanceStateGone InstanceState = "Gone"
)

// DroverMachineStatus is the observed state of the machine. All of it can be restored from spec and
// the cloud.
// +kubebuilder:validation:MinProperties=1
type DroverMachineStatus struct {
	// conditions are Ready, which reports whether the VM runs, or what it waits for; Paused;
	// InstanceHealthy, which reports what the cloud announces; and NodeJoined, which reports
	// whether the VM has become a Node. docs/conditions.md lists every reason and its remedy.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// initialization is what Cluster API reads while the machine is provisioned.
	// +optional
	Initialization DroverMachineInitialization `json:"initialization,omitempty,omitzero"`

	// addresses are the addresses of the VM, as the cloud reports them.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=128
	Addresses []clusterv1.MachineAddress `json:"addresses,omitempty"`

	// guestReportedAddresses are those of addresses that only the guest itself reports, such as by
	// VMware Tools or KubeVirt's guest agent. A kubelet gets a serving certificate for one of them
	// only if its Node reports the same address and no other machine or Node of the cluster has it.
	// Example: "10.0.0.7".
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=256
	GuestReportedAddresses []string `json:"guestReportedAddresses,omitempty"`

	// failureDomain is the zone of the VM.
	// Example: "sim-1a".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	FailureDomain string `json:"failureDomain,omitempty"`

	// imageID is the cloud's own ID of the image that the VM was created from, if the cloud reports
	// it. It is the result of a name or a search in spec.
	// Example: "ami-0123456789abcdef0".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	ImageID string `json:"imageID,omitempty"`

	// interruptible is true if the cloud may interrupt the VM (spot). Cluster API labels the Node
	// accordingly.
	// +optional
	Interruptible *bool `json:"interruptible,omitempty"` //nolint:kubeapilinter // Cluster API's contract has a bool.

	// cloud is the cloud of the machine's account, as its field in spec is named.
	// Example: "aws".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	Cloud string `json:"cloud,omitempty"`

	// instanceState is the VM's last observed state: Pending, Running, Stopping, Stopped, Failed,
	// Terminated or Gone.
	// +optional
	InstanceState InstanceState `json:"instanceState,omitempty"`
}

// MachineNodeJoinedCondition is True once one Node has the machine's provider ID. It is False if
// the Node can't be identified or is late, and then says how far the Node came. Until then it is
// Unknown. It is separate from Ready, which describes the VM, because a MachineHealthCheck measures
// the Node's startup time from Ready.
const MachineNodeJoinedCondition = "NodeJoined"

// MachineInstanceHealthyCondition is True while the VM runs and the cloud announces nothing about
// it. It is False if the cloud announces something, or detects a problem, or if the VM does not run
// any more. Until the VM has run it is Unknown. It is separate from Ready, because a VM that the
// cloud announces something about still runs.
const MachineInstanceHealthyCondition = "InstanceHealthy"

// DroverMachine is one VM, on any cloud.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=drovermachines,scope=Namespaced,categories=cluster-api,shortName=drm
// +kubebuilder:selectablefield:JSONPath=`.spec.creation.token`
// +kubebuilder:selectablefield:JSONPath=`.spec.providerID`
// +kubebuilder:selectablefield:JSONPath=`.spec.accountRef.name`
// +kubebuilder:metadata:labels="cluster.x-k8s.io/v1beta2=v1beta1"
// +kubebuilder:printcolumn:name="Cloud",type="string",JSONPath=".status.cloud",description="The cloud of its account"
// +kubebuilder:printcolumn:name="Type",type="string",JSONPath=".spec..['instanceType','flavor']",description="The instance type, on clouds that have types"
// +kubebuilder:printcolumn:name="Zone",type="string",JSONPath=".status.failureDomain",description="The zone that the VM is in"
// +kubebuilder:printcolumn:name="State",type="string",JSONPath=".status.instanceState",description="The state of the VM"
// +kubebuilder:printcolumn:name="Ready",type="string",JSONPath=".status.conditions[?(@.type=='Ready')].status"
// +kubebuilder:printcolumn:name="Reason",type="string",JSONPath=".status.conditions[?(@.type=='Ready')].reason",description="Why it is ready or not"
// +kubebuilder:printcolumn:name="Node",type="string",JSONPath=".status.conditions[?(@.type=='NodeJoined')].reason",description="Whether the VM has become a Node, or why not"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
// +kubebuilder:printcolumn:name="Cluster",type="string",JSONPath=".metadata.labels['cluster\\.x-k8s\\.io/cluster-name']",description="The Cluster it belongs to",priority=1
// +kubebuilder:printcolumn:name="Account",type="string",JSONPath=".spec.accountRef.name",description="The DroverAccount that creates it",priority=1
// +kubebuilder:printcolumn:name="ProviderID",type="string",JSONPath=".spec.providerID",priority=1
// +kubebuilder:printcolumn:name="Message",type="string",JSONPath=".status.conditions[?(@.message!=\"\")].message",description="What keeps it from being ready, or from being a Node",priority=1
type DroverMachine struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the desired state of the machine.
	// +required
	Spec DroverMachineSpec `json:"spec,omitzero"`

	// status is the observed state of the machine.
	// +optional
	Status DroverMachineStatus `json:"status,omitempty,omitzero"`
}

// GetConditions returns the conditions, for Cluster API's condition utilities.
func (m *DroverMachine) GetConditions() []metav1.Condition { return m.Status.Conditions }

// SetConditions replaces the conditions, for Cluster API's condition utilities.
func (m *DroverMachine) SetConditions(c []metav1.Condition) { m.Status.Conditions = c }

// DroverMachineList is a list of DroverMachines.
// +kubebuilder:object:root=true
type DroverMachineList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard list's metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// items are the DroverMachines.
	Items []DroverMachine `json:"items"`
}

// DroverMachineTemplateResource is the template from which DroverMachines are created.
type DroverMachineTemplateResource struct {
	// metadata is copied to each DroverMachine that is created from the template.
	// +optional
	ObjectMeta clusterv1.ObjectMeta `json:"metadata,omitempty,omitzero"` //nolint:kubeapilinter // The type has MinProperties=1, which the linter does not see in another module.

	// spec is the spec of the DroverMachines.
	// +required
	Spec DroverMachineFields `json:"spec,omitzero"`
}

// DroverMachineTemplateSpec wraps the template.
type DroverMachineTemplateSpec struct {
	// template is the template from which DroverMachines are created. It is immutable. To change
	// it, create a new template and point the MachineDeployment at it, which rolls out new
	// machines.
	// +required
	Template DroverMachineTemplateResource `json:"template,omitzero"`
}

// NodeArchitecture is a CPU architecture, as a GOARCH value.
// +kubebuilder:validation:Enum=amd64;arm64;s390x;ppc64le
type NodeArchitecture string

const (
	// NodeArchitectureAMD64 is 64-bit x86.
	NodeArchitectureAMD64 NodeArchitecture = "amd64"
	// NodeArchitectureARM64 is 64-bit Arm.
	NodeArchitectureARM64 NodeArchitecture = "arm64"
	// NodeArchitectureS390X is IBM Z.
	NodeArchitectureS390X NodeArchitecture = "s390x"
	// NodeArchitecturePPC64LE is 64-bit Power, little-endian.
	NodeArchitecturePPC64LE NodeArchitecture = "ppc64le"
)

// NodeInfo describes a Node that is created from this template, for the cluster-autoscaler's scale
// from zero.
// +kubebuilder:validation:MinProperties=1
type NodeInfo struct {
	// architecture is the CPU architecture, as a GOARCH value.
	// Example: "amd64".
	// +optional
	Architecture NodeArchitecture `json:"architecture,omitempty"`

	// operatingSystem is the operating system of the image.
	// Example: "linux".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	OperatingSystem string `json:"operatingSystem,omitempty"`
}

// DroverMachineTemplateStatus is what the cloud reports about the machines of this template.
// +kubebuilder:validation:MinProperties=1
type DroverMachineTemplateStatus struct {
	// conditions include Ready, which reports whether the cloud knows this kind of machine.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// capacity is the capacity of one machine, for the cluster-autoscaler's scale from zero.
	// Example: {"cpu":"2","memory":"4Gi"}.
	// +optional
	Capacity corev1.ResourceList `json:"capacity,omitempty"`

	// nodeInfo describes the Node of one machine, for the cluster-autoscaler's scale from zero.
	// +optional
	NodeInfo NodeInfo `json:"nodeInfo,omitempty,omitzero"`

	// failureDomains are the zones to which the template's own fields limit its machines. Empty if
	// they may be in all zones of the account.
	// Example: ["sim-1a"].
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=256
	FailureDomains []string `json:"failureDomains,omitempty"`
}

// DroverMachineTemplate is the template from which MachineDeployments and control planes create
// DroverMachines.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=drovermachinetemplates,scope=Namespaced,categories=cluster-api,shortName=drmt
// +kubebuilder:metadata:labels="cluster.x-k8s.io/v1beta2=v1beta1"
// +kubebuilder:printcolumn:name="Account",type="string",JSONPath=".spec.template.spec.accountRef.name"
// +kubebuilder:printcolumn:name="Type",type="string",JSONPath=".spec.template.spec..['instanceType','flavor']",description="The instance type, on clouds that have types"
// +kubebuilder:printcolumn:name="CPU",type="string",JSONPath=".status.capacity.cpu"
// +kubebuilder:printcolumn:name="Memory",type="string",JSONPath=".status.capacity.memory"
// +kubebuilder:printcolumn:name="Ready",type="string",JSONPath=".status.conditions[?(@.type=='Ready')].status"
// +kubebuilder:printcolumn:name="Reason",type="string",JSONPath=".status.conditions[?(@.type=='Ready')].reason",description="Why it is ready or not"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
// +kubebuilder:printcolumn:name="Message",type="string",JSONPath=".status.conditions[?(@.type=='Ready')].message",description="What keeps it from being ready",priority=1
type DroverMachineTemplate struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec holds the template.
	// +required
	Spec DroverMachineTemplateSpec `json:"spec,omitzero"`

	// status is what the cloud reports about such machines.
	// +optional
	Status DroverMachineTemplateStatus `json:"status,omitempty,omitzero"`
}

// GetConditions returns the conditions, for Cluster API's condition utilities.
func (t *DroverMachineTemplate) GetConditions() []metav1.Condition { return t.Status.Conditions }

// SetConditions replaces the conditions, for Cluster API's condition utilities.
func (t *DroverMachineTemplate) SetConditions(c []metav1.Condition) { t.Status.Conditions = c }

// DroverMachineTemplateList is a list of DroverMachineTemplates.
// +kubebuilder:object:root=true
type DroverMachineTemplateList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard list's metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// items are the DroverMachineTemplates.
	Items []DroverMachineTemplate `json:"items"`
}
