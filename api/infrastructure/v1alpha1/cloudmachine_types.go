// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// CloudMachineFields are what a user says of a machine. Exactly one cloud must be set, the
// CloudAccount's.
// +kubebuilder:validation:XValidation:rule="[has(self.aws), has(self.kubevirt), has(self.openstack), has(self.simulated), has(self.vsphere)].filter(x, x).size() == 1",message="exactly one cloud must be set: aws, kubevirt, openstack, simulated or vsphere"
type CloudMachineFields struct {
	// accountRef names the CloudAccount, in this namespace, that makes the machine.
	// +required
	AccountRef LocalReference `json:"accountRef"`

	// aws is an EC2 instance.
	// +optional
	AWS *AWSMachine `json:"aws,omitempty"`

	// kubevirt is a VirtualMachine in a Kubernetes cluster with KubeVirt.
	// +optional
	KubeVirt *KubeVirtMachine `json:"kubevirt,omitempty"`

	// openstack is a server of Nova's.
	// +optional
	OpenStack *OpenStackMachine `json:"openstack,omitempty"`

	// simulated is a machine of the embedded simulated cloud.
	// +optional
	Simulated *SimulatedMachine `json:"simulated,omitempty"`

	// vsphere is a VM in a vCenter Server's datacenter.
	// +optional
	VSphere *VSphereMachine `json:"vsphere,omitempty"`
}

// CloudMachineSpec is one machine. It can't be changed, apart from providerID and creationToken,
// which Drover sets once, and where the VM is tried to be made until it is: a changed machine is a
// new machine.
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.providerID) || (has(self.providerID) && self.providerID == oldSelf.providerID)",message="providerID is set once"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.creationToken) || (has(self.creationToken) && self.creationToken == oldSelf.creationToken)",message="creationToken is set once: it is in the tags of the VM"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.providerID) || (has(self.creationDomain) == has(oldSelf.creationDomain) && (!has(self.creationDomain) || self.creationDomain == oldSelf.creationDomain))",message="creationDomain is settled once the VM is made"
// +kubebuilder:validation:XValidation:rule="self.accountRef == oldSelf.accountRef",message="accountRef can't be changed: make a new machine"
// +kubebuilder:validation:XValidation:rule="has(self.aws) == has(oldSelf.aws) && (!has(self.aws) || self.aws == oldSelf.aws)",message="the machine's cloud fields can't be changed: make a new machine"
// +kubebuilder:validation:XValidation:rule="has(self.kubevirt) == has(oldSelf.kubevirt) && (!has(self.kubevirt) || self.kubevirt == oldSelf.kubevirt)",message="the machine's cloud fields can't be changed: make a new machine"
// +kubebuilder:validation:XValidation:rule="has(self.openstack) == has(oldSelf.openstack) && (!has(self.openstack) || self.openstack == oldSelf.openstack)",message="the machine's cloud fields can't be changed: make a new machine"
// +kubebuilder:validation:XValidation:rule="has(self.simulated) == has(oldSelf.simulated) && (!has(self.simulated) || self.simulated == oldSelf.simulated)",message="the machine's cloud fields can't be changed: make a new machine"
// +kubebuilder:validation:XValidation:rule="has(self.vsphere) == has(oldSelf.vsphere) && (!has(self.vsphere) || self.vsphere == oldSelf.vsphere)",message="the machine's cloud fields can't be changed: make a new machine"
type CloudMachineSpec struct {
	CloudMachineFields `json:",inline"`

	// providerID is the VM's name for Kubernetes, equal to its Node's spec.providerID. Drover sets
	// it once. Example: "simulated:///sim-1a/i-0a1b2c3d".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	ProviderID string `json:"providerID,omitempty"`

	// creationToken is the machine's identity in the cloud: written here before the first call,
	// sent with the create so that a repeated one makes nothing, and put in the tags of the VM and
	// of all that belongs to it. Drover makes it up at random, once; it is in spec so that it
	// survives "clusterctl move".
	// +optional
	// +kubebuilder:validation:MinLength=16
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	CreationToken string `json:"creationToken,omitempty"`

	// creationDomain is the failure domain that the VM is asked for in, on a cloud that would make
	// a second VM for the same creationToken in another domain. Drover writes it before the create
	// is sent, and another one only after the cloud has refused the machine there. Example:
	// "eu-central-1a".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	CreationDomain string `json:"creationDomain,omitempty"`

	// creationAttempt counts the creates that such a cloud has refused. It goes into the next one's
	// token for the cloud, which is another then. Default: 0.
	// +optional
	// +kubebuilder:validation:Minimum=0
	CreationAttempt int32 `json:"creationAttempt,omitempty"`
}

// CloudMachineInitialization holds what Cluster API reads once.
// +kubebuilder:validation:MinProperties=1
type CloudMachineInitialization struct {
	// provisioned is true once the VM has been seen running.
	// +optional
	Provisioned *bool `json:"provisioned,omitempty"`
}

// CloudMachineStatus is what is known of the machine. All of it can be found again from spec and
// the cloud.
// +kubebuilder:validation:MinProperties=1
type CloudMachineStatus struct {
	// conditions: Ready says whether the VM runs, and else what it waits for; Paused; NodeLinked
	// appears when the Node can't be told apart or does not come. docs/conditions.md lists every
	// reason and its remedy.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// initialization is read by Cluster API while the machine comes up.
	// +optional
	Initialization CloudMachineInitialization `json:"initialization,omitempty,omitzero"`

	// addresses of the VM, as the cloud tells them.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=128
	Addresses []clusterv1.MachineAddress `json:"addresses,omitempty"`

	// guestReportedAddresses are those of addresses that only the guest itself vouches for, such as
	// what VMware Tools or KubeVirt's guest agent report. A kubelet gets a serving certificate for
	// one of them only if its Node reports the same address and no other machine or Node of the
	// cluster has it. Example: "10.0.0.7".
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=256
	GuestReportedAddresses []string `json:"guestReportedAddresses,omitempty"`

	// failureDomain is the zone that the VM is in. Example: "sim-1a".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	FailureDomain string `json:"failureDomain,omitempty"`

	// imageID is the image that the VM was made from, by the cloud's own ID, where the cloud tells:
	// what a name or a search in spec became. Example: "ami-0123456789abcdef0".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	ImageID string `json:"imageID,omitempty"`

	// interruptible is true when the cloud may take the VM back (spot). Cluster API labels the Node
	// accordingly.
	// +optional
	Interruptible *bool `json:"interruptible,omitempty"`

	// instanceState is the VM's state as last seen: Pending, Running, Stopping, Stopped, Terminated
	// or Gone.
	// +optional
	// +kubebuilder:validation:Enum=Pending;Running;Stopping;Stopped;Failed;Terminated;Gone
	InstanceState string `json:"instanceState,omitempty"`
}

// MachineNodeLinkedCondition is False when the machine's Node can't be told apart, or is late, with
// how far it came; absent otherwise. It is apart from Ready, which speaks of the VM: a
// MachineHealthCheck counts a Node's time from there.
const MachineNodeLinkedCondition = "NodeLinked"

// MachineUntroubledCondition is False when the cloud announces something of the VM that runs, or
// finds something wrong with it; absent otherwise. It is apart from Ready, because the VM runs.
const MachineUntroubledCondition = "Untroubled"

// CloudMachine is one VM, on any cloud.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=cloudmachines,scope=Namespaced,categories=cluster-api
// +kubebuilder:selectablefield:JSONPath=`.spec.creationToken`
// +kubebuilder:selectablefield:JSONPath=`.spec.providerID`
// +kubebuilder:metadata:labels="cluster.x-k8s.io/v1beta2=v1alpha1"
// +kubebuilder:printcolumn:name="Cluster",type="string",JSONPath=".metadata.labels['cluster\\.x-k8s\\.io/cluster-name']",description="The Cluster it belongs to"
// +kubebuilder:printcolumn:name="Account",type="string",JSONPath=".spec.accountRef.name",description="The CloudAccount that makes it"
// +kubebuilder:printcolumn:name="State",type="string",JSONPath=".status.instanceState",description="The VM's state"
// +kubebuilder:printcolumn:name="Zone",type="string",JSONPath=".status.failureDomain",description="The zone it is in"
// +kubebuilder:printcolumn:name="Ready",type="string",JSONPath=".status.conditions[?(@.type=='Ready')].status"
// +kubebuilder:printcolumn:name="Waiting for",type="string",JSONPath=".status.conditions[?(@.message!=\"\")].message",description="What keeps it from being ready, or from being a Node"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
// +kubebuilder:printcolumn:name="ProviderID",type="string",JSONPath=".spec.providerID",priority=1
type CloudMachine struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the machine as it was asked for.
	// +required
	Spec CloudMachineSpec `json:"spec,omitempty"`

	// status is what Drover knows of it.
	// +optional
	Status CloudMachineStatus `json:"status,omitempty,omitzero"`
}

// GetConditions returns the conditions, for Cluster API's condition utilities.
func (m *CloudMachine) GetConditions() []metav1.Condition { return m.Status.Conditions }

// SetConditions replaces the conditions, for Cluster API's condition utilities.
func (m *CloudMachine) SetConditions(c []metav1.Condition) { m.Status.Conditions = c }

// CloudMachineList is a list of CloudMachines.
// +kubebuilder:object:root=true
type CloudMachineList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard list's metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// items are the CloudMachines.
	Items []CloudMachine `json:"items"`
}

// CloudMachineTemplateResource is what CloudMachines are made from.
type CloudMachineTemplateResource struct {
	// metadata is put on each CloudMachine made from the template.
	// +optional
	ObjectMeta clusterv1.ObjectMeta `json:"metadata,omitempty,omitzero"`

	// spec is the CloudMachine's.
	// +required
	Spec CloudMachineFields `json:"spec"`
}

// CloudMachineTemplateSpec wraps the template.
type CloudMachineTemplateSpec struct {
	// template is what CloudMachines are made from. It can't be changed: make a new template and
	// point the MachineDeployment at it, which rolls the machines.
	// +required
	Template CloudMachineTemplateResource `json:"template"`
}

// NodeInfo is what a Node made from this template will be, for the cluster-autoscaler's scale from
// zero.
// +kubebuilder:validation:MinProperties=1
type NodeInfo struct {
	// architecture of the CPU, in Go's words. Example: "amd64".
	// +optional
	// +kubebuilder:validation:Enum=amd64;arm64;s390x;ppc64le
	Architecture string `json:"architecture,omitempty"`

	// operatingSystem of the image. Example: "linux".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	OperatingSystem string `json:"operatingSystem,omitempty"`
}

// CloudMachineTemplateStatus is what the cloud says of the machines that would be made.
// +kubebuilder:validation:MinProperties=1
type CloudMachineTemplateStatus struct {
	// capacity of one machine, for the cluster-autoscaler's scale from zero. Example:
	// {"cpu":"2","memory":"4Gi"}.
	// +optional
	Capacity corev1.ResourceList `json:"capacity,omitempty"`

	// nodeInfo of one machine, for the cluster-autoscaler's scale from zero.
	// +optional
	NodeInfo NodeInfo `json:"nodeInfo,omitempty,omitzero"`

	// conditions: Ready says whether the cloud knows this kind of machine.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// CloudMachineTemplate is what MachineDeployments and control planes make CloudMachines from.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=cloudmachinetemplates,scope=Namespaced,categories=cluster-api
// +kubebuilder:metadata:labels="cluster.x-k8s.io/v1beta2=v1alpha1"
// +kubebuilder:printcolumn:name="Account",type="string",JSONPath=".spec.template.spec.accountRef.name"
// +kubebuilder:printcolumn:name="CPU",type="string",JSONPath=".status.capacity.cpu"
// +kubebuilder:printcolumn:name="Memory",type="string",JSONPath=".status.capacity.memory"
// +kubebuilder:printcolumn:name="Waiting for",type="string",JSONPath=".status.conditions[?(@.type=='Ready')].message"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
type CloudMachineTemplate struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec holds the template.
	// +required
	Spec CloudMachineTemplateSpec `json:"spec,omitempty"`

	// status is what the cloud says of such machines.
	// +optional
	Status CloudMachineTemplateStatus `json:"status,omitempty,omitzero"`
}

// GetConditions returns the conditions, for Cluster API's condition utilities.
func (t *CloudMachineTemplate) GetConditions() []metav1.Condition { return t.Status.Conditions }

// SetConditions replaces the conditions, for Cluster API's condition utilities.
func (t *CloudMachineTemplate) SetConditions(c []metav1.Condition) { t.Status.Conditions = c }

// CloudMachineTemplateList is a list of CloudMachineTemplates.
// +kubebuilder:object:root=true
type CloudMachineTemplateList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard list's metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// items are the CloudMachineTemplates.
	Items []CloudMachineTemplate `json:"items"`
}
