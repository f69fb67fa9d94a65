// SPDX-License-Identifier: Apache-2.0

package v1beta1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

const (
	// ConfigFinalizer keeps a DroverConfig until its bootstrap token is deleted from the
	// workload cluster.
	ConfigFinalizer = "drover.io/droverconfig"
	// MachineSecretLabel, with any value, permits a Secret to be written to machines. Without the
	// label, a user who may write DroverConfigs could send any Secret of the namespace to a
	// machine of their own.
	MachineSecretLabel = "drover.io/machine-data"
)

// Reasons of the Ready condition of a DroverConfig. docs/conditions.md gives the remedy for
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
	// NotPermittedReason says that the workload cluster denies a request that Drover needs to let
	// machines join.
	NotPermittedReason = "NotPermitted"
	// WaitingForSecretReason says that a Secret that the config names is missing, lacks the
	// requested key, or lacks the label that permits its use.
	WaitingForSecretReason = "WaitingForSecret"
	// WaitingForInfrastructureReason says that the machine's provider ID, with which the kubelet
	// registers, depends on an object that does not exist yet: the infrastructure machine or its
	// account.
	WaitingForInfrastructureReason = "WaitingForInfrastructure"
	// InvalidSpecReason says that the config can't be rendered.
	InvalidSpecReason = "InvalidSpec"
	// DeletingReason says that the config's bootstrap token is being removed.
	DeletingReason = "Deleting"
	// InternalErrorReason says that Drover itself failed. See Drover's logs.
	InternalErrorReason = "InternalError"
)

// NodeNameSource specifies where the name of a Node comes from.
// +kubebuilder:validation:Enum=Machine;Hostname
type NodeNameSource string

const (
	// NodeNameMachine gives the Node the name of its Machine.
	NodeNameMachine NodeNameSource = "Machine"
	// NodeNameHostname gives the Node the host name that the cloud uses.
	NodeNameHostname NodeNameSource = "Hostname"
)

// DroverConfigSpec specifies how a machine image becomes a node.
// +kubebuilder:validation:XValidation:rule="!has(self.install) || !has(self.install.mode) || self.install.mode == 'Prebuilt' || has(self.operatingSystem)",message="operatingSystem must be given where Drover installs the node's software"
// +kubebuilder:validation:XValidation:rule="!has(self.install) || !has(self.install.binaries) || has(self.install.binaries.kubeadm) == (has(self.join) && has(self.join.method) && self.join.method == 'Kubeadm')",message="install.binaries.kubeadm and the method Kubeadm go together"
type DroverConfigSpec struct {
	// operatingSystem is the operating system of the image. docs/bootstrap.md lists the supported
	// systems and what each can do. For an unsupported system, the Ready condition is False with
	// reason InvalidSpec, and its message lists the supported ones. Default: none. The image can
	// then be of any system, but must contain containerd and a kubelet whose unit reads the same
	// files as kubeadm's unit, as image-builder's images do.
	// Example: "ubuntu-24.04".
	// +optional
	OperatingSystem OperatingSystem `json:"operatingSystem,omitempty"`

	// format is the format of the user data, which the image must understand. Default: "Ignition"
	// for Flatcar, and "CloudConfig" for all others.
	// +optional
	Format Format `json:"format,omitempty"`

	// install specifies where containerd and the kubelet come from. Default: mode Prebuilt, they
	// are in the image.
	// +optional
	Install Install `json:"install,omitempty,omitzero"`

	// join specifies how the machine joins the cluster. Default: method Kubelet, the kubelet's own
	// TLS bootstrap.
	// +optional
	Join Join `json:"join,omitempty,omitzero"`

	// kubelet holds settings of the kubelet. Default: the kubelet's defaults, and those that
	// docs/bootstrap.md lists.
	// +optional
	Kubelet Kubelet `json:"kubelet,omitempty,omitzero"`

	// containerd holds settings of the container runtime. Default: no mirrors of registries and no
	// credentials.
	// +optional
	Containerd Containerd `json:"containerd,omitempty,omitzero"`

	// host holds settings of the operating system. Default: the image's settings.
	// +optional
	Host Host `json:"host,omitempty,omitzero"`

	// nodeNameSource specifies where the name of the Node comes from. "Machine" gives the Node and
	// the host the name of the Machine. "Hostname" uses the host name in the cloud's instance data
	// (local_hostname: on AWS the private DNS name or the resource name, depending on the subnet),
	// for cloud controllers that find Nodes by that name. "Hostname" needs the format
	// "CloudConfig", and a cloud that reports the name among the machine's addresses. Default:
	// "Machine".
	// +optional
	NodeNameSource NodeNameSource `json:"nodeNameSource,omitempty"`

	// nodeLabels are the labels that the Node registers with. Only labels that the NodeRestriction
	// admission plugin allows a kubelet to set on itself are accepted. Default: none.
	// Example: {"pool":"blue"}.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	// +kubebuilder:validation:XValidation:rule="self.all(k, size(k) <= 317 && size(self[k]) <= 63)",message="a key has at most 317 characters, a value 63"
	NodeLabels map[string]string `json:"nodeLabels,omitempty"`

	// nodeTaints are the taints that the Node registers with. Cluster API's taint
	// "node.cluster.x-k8s.io/uninitialized:NoSchedule" is added to them, and Cluster API removes
	// it. Default: none.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	NodeTaints []corev1.Taint `json:"nodeTaints,omitempty"`

	// clusterDNS is the address of the cluster's DNS service. Default: the tenth address of the
	// Cluster's first service network, or 10.96.0.10 if the Cluster specifies none.
	// +optional
	// +kubebuilder:validation:MinLength=2
	// +kubebuilder:validation:MaxLength=45
	ClusterDNS string `json:"clusterDNS,omitempty"`

	// clusterDomain is the cluster's DNS domain. Default: the Cluster's domain, or "cluster.local".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	ClusterDomain string `json:"clusterDomain,omitempty"`

	// files are written before the kubelet starts. If the cloud's user data has no room for them,
	// the machine fetches them from its cluster's API server with its bootstrap token. Default:
	// none.
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

	// postKubeletCommands are run by a shell, in order, after the kubelet is started. Default:
	// none.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=8192
	PostKubeletCommands []string `json:"postKubeletCommands,omitempty"`

	// sshAuthorizedKeys are the SSH public keys that can log in as the image's default user.
	// Default: none.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=16
	// +kubebuilder:validation:items:MaxLength=8192
	SSHAuthorizedKeys []string `json:"sshAuthorizedKeys,omitempty"`

	// tokenTTLSeconds is how long the machine's bootstrap token is valid, in seconds. Drover renews
	// the token until the machine has joined, and then deletes it. Default: 1800.
	// +optional
	// +kubebuilder:validation:Minimum=600
	// +kubebuilder:validation:Maximum=86400
	TokenTTLSeconds int32 `json:"tokenTTLSeconds,omitempty"`

	// maxCertificateSeconds is the longest lifetime, in seconds, that the machine's kubelet may
	// request for a certificate. Drover does not approve a request for more. A kubelet that
	// requests no lifetime gets the signer's: see --cluster-signing-duration of
	// kube-controller-manager. Default: no limit.
	// +optional
	// +kubebuilder:validation:Minimum=600
	// +kubebuilder:validation:Maximum=315360000
	MaxCertificateSeconds int32 `json:"maxCertificateSeconds,omitempty"`
}

// DroverConfigInitialization holds the fields that Cluster API reads only once.
// +kubebuilder:validation:MinProperties=1
type DroverConfigInitialization struct {
	// dataSecretCreated is true once the Secret with the user data exists.
	// +optional
	DataSecretCreated *bool `json:"dataSecretCreated,omitempty"` //nolint:kubeapilinter // Cluster API's contract has a bool.
}

// DroverConfigStatus is the observed state of the config.
// +kubebuilder:validation:MinProperties=1
type DroverConfigStatus struct {
	// conditions are Ready and Paused. docs/conditions.md lists every reason and its remedy.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// initialization is what Cluster API reads while the machine is provisioned.
	// +optional
	Initialization DroverConfigInitialization `json:"initialization,omitempty,omitzero"`

	// dataSecretName is the name of the Secret that holds the user data.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	DataSecretName string `json:"dataSecretName,omitempty"`
}

// DroverConfig turns a machine image into a node, with user data for cloud-init or Ignition.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=droverconfigs,scope=Namespaced,categories=cluster-api,shortName=drcfg
// +kubebuilder:metadata:labels="cluster.x-k8s.io/v1beta2=v1beta1"
// +kubebuilder:printcolumn:name="Cluster",type="string",JSONPath=".metadata.labels['cluster\\.x-k8s\\.io/cluster-name']",description="The Cluster it belongs to"
// +kubebuilder:printcolumn:name="Ready",type="string",JSONPath=".status.conditions[?(@.type=='Ready')].status"
// +kubebuilder:printcolumn:name="Reason",type="string",JSONPath=".status.conditions[?(@.type=='Ready')].reason",description="Why it is ready or not"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
// +kubebuilder:printcolumn:name="Message",type="string",JSONPath=".status.conditions[?(@.type=='Ready')].message",description="What keeps it from being ready",priority=1
type DroverConfig struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec specifies how the machine is set up.
	// +optional
	Spec DroverConfigSpec `json:"spec,omitempty,omitzero"` //nolint:kubeapilinter // {} is valid: an image may need no settings.

	// status is the observed state of the config.
	// +optional
	Status DroverConfigStatus `json:"status,omitempty,omitzero"`
}

// GetConditions returns the conditions, for Cluster API's condition utilities.
func (c *DroverConfig) GetConditions() []metav1.Condition { return c.Status.Conditions }

// SetConditions replaces the conditions, for Cluster API's condition utilities.
func (c *DroverConfig) SetConditions(conds []metav1.Condition) { c.Status.Conditions = conds }

// DroverConfigList is a list of DroverConfigs.
// +kubebuilder:object:root=true
type DroverConfigList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard list's metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// items are the DroverConfigs.
	Items []DroverConfig `json:"items"`
}

// DroverConfigTemplateResource is the template from which DroverConfigs are created.
type DroverConfigTemplateResource struct {
	// metadata is copied to each DroverConfig that is created from the template.
	// +optional
	ObjectMeta clusterv1.ObjectMeta `json:"metadata,omitempty,omitzero"` //nolint:kubeapilinter // The type has MinProperties=1, which the linter does not see in another module.

	// spec is the spec of the DroverConfigs.
	// +optional
	Spec DroverConfigSpec `json:"spec,omitempty,omitzero"` //nolint:kubeapilinter // {} is valid: an image may need no settings.
}

// DroverConfigTemplateSpec wraps the template.
type DroverConfigTemplateSpec struct {
	// template is the template from which DroverConfigs are created. It is immutable. To change
	// it, create a new template and point the MachineDeployment at it, which rolls out new
	// machines.
	// +required
	Template DroverConfigTemplateResource `json:"template"` //nolint:kubeapilinter // {} is valid: an image may need no settings.
}

// DroverConfigTemplate is the template from which MachineDeployments create DroverConfigs.
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=droverconfigtemplates,scope=Namespaced,categories=cluster-api,shortName=drcfgt
// +kubebuilder:metadata:labels="cluster.x-k8s.io/v1beta2=v1beta1"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
type DroverConfigTemplate struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec holds the template.
	// +required
	Spec DroverConfigTemplateSpec `json:"spec"` //nolint:kubeapilinter // {} is valid: an image may need no settings.
}

// DroverConfigTemplateList is a list of DroverConfigTemplates.
// +kubebuilder:object:root=true
type DroverConfigTemplateList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard list's metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// items are the DroverConfigTemplates.
	Items []DroverConfigTemplate `json:"items"`
}
