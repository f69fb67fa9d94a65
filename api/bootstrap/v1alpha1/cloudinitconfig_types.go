// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

const (
	// ConfigFinalizer holds a CloudInitConfig until its bootstrap token is gone from the workload
	// cluster.
	ConfigFinalizer = "cloudinitconfig.bootstrap.cluster.x-k8s.io"
	// MachineSecretLabel, with any value, permits that a Secret is put onto machines. Without it,
	// whoever may write a CloudInitConfig could have all Secrets of the namespace sent to a machine
	// of his.
	MachineSecretLabel = "bootstrap.cluster.x-k8s.io/machine-data"
)

// Reasons of the Ready condition of a CloudInitConfig. docs/conditions.md gives the remedy for
// each.
const (
	// ReadyReason says that the user data is written.
	ReadyReason = "Ready"
	// WaitingForOwnerReason says that no Machine owns this config yet.
	WaitingForOwnerReason = "WaitingForOwner"
	// WaitingForClusterReason says that the Cluster's infrastructure is not provisioned yet.
	WaitingForClusterReason = "WaitingForCluster"
	// WaitingForControlPlaneReason says that the Cluster's control plane is not initialized yet,
	// has no endpoint, can't be reached, or lacks what a join by kubeadm needs.
	WaitingForControlPlaneReason = "WaitingForControlPlane"
	// KubeconfigInvalidReason says that the Cluster's kubeconfig Secret is missing or can't be
	// used.
	KubeconfigInvalidReason = "KubeconfigInvalid"
	// NotPermittedReason says that the workload cluster refuses what is needed to let machines
	// join.
	NotPermittedReason = "NotPermitted"
	// WaitingForSecretReason says that a Secret which the config names is missing, lacks the key
	// that is asked for, or lacks the label that permits its use.
	WaitingForSecretReason = "WaitingForSecret"
	// WaitingForInfrastructureReason says that the machine's provider ID, which the kubelet is to
	// register with, is made of an object that does not exist yet: its infrastructure machine, or
	// that one's account.
	WaitingForInfrastructureReason = "WaitingForInfrastructure"
	// InvalidSpecReason says that the config can't be rendered.
	InvalidSpecReason = "InvalidSpec"
	// DeletingReason says that the config's bootstrap token is being removed.
	DeletingReason = "Deleting"
	// InternalErrorReason says that Drover failed at something that is no one else's fault. Look at
	// its logs.
	InternalErrorReason = "InternalError"
)

// NodeNaming says after what a Node is called.
// +kubebuilder:validation:Enum=Machine;Hostname
type NodeNaming string

const (
	// NodeNameMachine calls the Node as its Machine.
	NodeNameMachine NodeNaming = "Machine"
	// NodeNameHostname calls the Node as the cloud calls its host.
	NodeNameHostname NodeNaming = "Hostname"
)

// CloudInitConfigSpec says how a machine image becomes a node.
// +kubebuilder:validation:XValidation:rule="!has(self.install) || !has(self.install.mode) || self.install.mode == 'Prebuilt' || has(self.operatingSystem)",message="operatingSystem must be given where Drover installs the node's software"
// +kubebuilder:validation:XValidation:rule="!has(self.install) || !has(self.install.binaries) || has(self.install.binaries.kubeadm) == (has(self.join) && has(self.join.method) && self.join.method == 'Kubeadm')",message="install.binaries.kubeadm and the method Kubeadm go together"
type CloudInitConfigSpec struct {
	// operatingSystem of the image. docs/bootstrap.md has the list, with what each can do. Default:
	// none, which means an image of any system that holds containerd and a kubelet whose unit reads
	// the files that kubeadm's unit reads (image-builder's images do). Example: "ubuntu-24.04".
	// +optional
	OperatingSystem OperatingSystem `json:"operatingSystem,omitempty"`

	// format of the user data: what the image understands. Default: "ignition" for Flatcar, and
	// "cloud-config" for all others.
	// +optional
	Format Format `json:"format,omitempty"`

	// install says where containerd and the kubelet come from. Default: mode Prebuilt, they are in
	// the image.
	// +optional
	Install Install `json:"install,omitempty,omitzero"`

	// join says how the machine joins the cluster. Default: method Kubelet, the kubelet's own TLS
	// bootstrap.
	// +optional
	Join Join `json:"join,omitempty,omitzero"`

	// kubelet holds settings of the kubelet. Default: the kubelet's own, and what docs/bootstrap.md
	// lists.
	// +optional
	Kubelet Kubelet `json:"kubelet,omitempty,omitzero"`

	// containerd holds settings of the container runtime. Default: registries as they are, without
	// credentials.
	// +optional
	Containerd Containerd `json:"containerd,omitempty,omitzero"`

	// host holds settings of the operating system. Default: the image's.
	// +optional
	Host Host `json:"host,omitempty,omitzero"`

	// nodeName says what the Node is called. "Machine": as the Machine, and the host as well.
	// "Hostname": as the cloud's instance data name the host (local_hostname: on AWS the private
	// DNS name or the resource name, as the subnet has it), for cloud controllers that find Nodes
	// by that name. That needs the format "cloud-config", and a cloud that tells Drover the name
	// among the machine's addresses. Default: "Machine".
	// +optional
	NodeName NodeNaming `json:"nodeName,omitempty"`

	// nodeLabels are put on the Node when it registers. Only labels that the NodeRestriction
	// admission plugin lets a kubelet set on itself are taken. Default: none. Example:
	// {"pool":"blue"}.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	NodeLabels map[string]string `json:"nodeLabels,omitempty"`

	// nodeTaints are put on the Node when it registers. Default: none. Cluster API's taint
	// "node.cluster.x-k8s.io/uninitialized:NoSchedule" comes in addition, and Cluster API removes
	// it.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	NodeTaints []corev1.Taint `json:"nodeTaints,omitempty"`

	// clusterDNS is the address of the cluster's DNS service. Default: the tenth address of the
	// Cluster's first service network, or 10.96.0.10 where the Cluster names none.
	// +optional
	// +kubebuilder:validation:MinLength=2
	// +kubebuilder:validation:MaxLength=45
	ClusterDNS string `json:"clusterDNS,omitempty"`

	// clusterDomain is the cluster's DNS domain. Default: the Cluster's, or "cluster.local".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	ClusterDomain string `json:"clusterDomain,omitempty"`

	// files are written before the kubelet starts. Where the cloud's user data has no room for
	// them, the machine fetches them from its cluster's API server, with its bootstrap token.
	// Default: none.
	// +optional
	// +listType=map
	// +listMapKey=path
	// +kubebuilder:validation:MaxItems=64
	Files []File `json:"files,omitempty"`

	// preKubeletCommands are run by a shell, in order, before the kubelet starts. Default: none.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=8192
	PreKubeletCommands []string `json:"preKubeletCommands,omitempty"`

	// postKubeletCommands are run by a shell, in order, after the kubelet was started. Default:
	// none.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=8192
	PostKubeletCommands []string `json:"postKubeletCommands,omitempty"`

	// sshAuthorizedKeys are accepted for the image's default user. Default: none.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=16
	// +kubebuilder:validation:items:MaxLength=8192
	SSHAuthorizedKeys []string `json:"sshAuthorizedKeys,omitempty"`

	// tokenTTLSeconds is how long the machine's bootstrap token is good, in seconds. It is renewed
	// while the machine has not joined, and deleted once it has. Default: 1800.
	// +optional
	// +kubebuilder:default=1800
	// +kubebuilder:validation:Minimum=600
	// +kubebuilder:validation:Maximum=86400
	TokenTTLSeconds int32 `json:"tokenTTLSeconds,omitempty"`
}

// CloudInitConfigInitialization holds what Cluster API reads once.
// +kubebuilder:validation:MinProperties=1
type CloudInitConfigInitialization struct {
	// dataSecretCreated is true once the Secret with the user data is there.
	// +optional
	DataSecretCreated *bool `json:"dataSecretCreated,omitempty"`
}

// CloudInitConfigStatus is what became of the config.
// +kubebuilder:validation:MinProperties=1
type CloudInitConfigStatus struct {
	// conditions: Ready and Paused. docs/conditions.md lists every reason and its remedy.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// initialization is read by Cluster API while the machine comes up.
	// +optional
	Initialization CloudInitConfigInitialization `json:"initialization,omitempty,omitzero"`

	// dataSecretName names the Secret that holds the user data.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	DataSecretName string `json:"dataSecretName,omitempty"`
}

// CloudInitConfig turns a machine image into a node by cloud-init.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=cloudinitconfigs,scope=Namespaced,categories=cluster-api
// +kubebuilder:metadata:labels="cluster.x-k8s.io/v1beta2=v1alpha1"
// +kubebuilder:printcolumn:name="Cluster",type="string",JSONPath=".metadata.labels['cluster\\.x-k8s\\.io/cluster-name']",description="The Cluster it belongs to"
// +kubebuilder:printcolumn:name="Ready",type="string",JSONPath=".status.conditions[?(@.type=='Ready')].status"
// +kubebuilder:printcolumn:name="Waiting for",type="string",JSONPath=".status.conditions[?(@.type=='Ready')].message",description="What keeps it from being ready"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
type CloudInitConfig struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec says how the machine is to be set up.
	// +optional
	Spec CloudInitConfigSpec `json:"spec,omitempty,omitzero"`

	// status is what became of it.
	// +optional
	Status CloudInitConfigStatus `json:"status,omitempty,omitzero"`
}

// GetConditions returns the conditions, for Cluster API's condition utilities.
func (c *CloudInitConfig) GetConditions() []metav1.Condition { return c.Status.Conditions }

// SetConditions replaces the conditions, for Cluster API's condition utilities.
func (c *CloudInitConfig) SetConditions(conds []metav1.Condition) { c.Status.Conditions = conds }

// CloudInitConfigList is a list of CloudInitConfigs.
// +kubebuilder:object:root=true
type CloudInitConfigList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard list's metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// items are the CloudInitConfigs.
	Items []CloudInitConfig `json:"items"`
}

// CloudInitConfigTemplateResource is what CloudInitConfigs are made from.
type CloudInitConfigTemplateResource struct {
	// metadata is put on each CloudInitConfig made from the template.
	// +optional
	ObjectMeta clusterv1.ObjectMeta `json:"metadata,omitempty,omitzero"`

	// spec is the CloudInitConfig's.
	// +optional
	Spec CloudInitConfigSpec `json:"spec,omitempty,omitzero"`
}

// CloudInitConfigTemplateSpec wraps the template.
type CloudInitConfigTemplateSpec struct {
	// template is what CloudInitConfigs are made from. It can't be changed: make a new template and
	// point the MachineDeployment at it, which rolls the machines.
	// +required
	Template CloudInitConfigTemplateResource `json:"template"`
}

// CloudInitConfigTemplate is what MachineDeployments make CloudInitConfigs from.
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=cloudinitconfigtemplates,scope=Namespaced,categories=cluster-api
// +kubebuilder:metadata:labels="cluster.x-k8s.io/v1beta2=v1alpha1"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
type CloudInitConfigTemplate struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec holds the template.
	// +required
	Spec CloudInitConfigTemplateSpec `json:"spec,omitempty"`
}

// CloudInitConfigTemplateList is a list of CloudInitConfigTemplates.
// +kubebuilder:object:root=true
type CloudInitConfigTemplateList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard list's metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// items are the CloudInitConfigTemplates.
	Items []CloudInitConfigTemplate `json:"items"`
}
