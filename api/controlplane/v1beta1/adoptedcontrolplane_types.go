// SPDX-License-Identifier: Apache-2.0

package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// Reasons of the Available condition of an AdoptedControlPlane. docs/conditions.md gives the remedy
// for each.
const (
	// AvailableReason says that the API server answers.
	AvailableReason = "Available"
	// WaitingForOwnerReason says that no Cluster owns this control plane yet.
	WaitingForOwnerReason = "WaitingForOwner"
	// KubeconfigMissingReason says that the Secret in spec.kubeconfigRef, or its key, does not
	// exist.
	KubeconfigMissingReason = "KubeconfigMissing"
	// KubeconfigRefusedReason says that the kubeconfig can't be parsed, asks for something that
	// Drover never does for a tenant (to run a program, to read a file, or to skip verification),
	// or reaches its server in a way that machines can't: by a path, or by another name.
	KubeconfigRefusedReason = "KubeconfigRefused"
	// KubeconfigConflictReason says that the Cluster's kubeconfig Secret exists and has another
	// owner.
	KubeconfigConflictReason = "KubeconfigConflict"
	// UnreachableReason says that the API server does not answer, or that the answer is not from
	// Kubernetes.
	UnreachableReason = "Unreachable"
	// UnauthorizedReason says that the API server refuses the kubeconfig's credentials.
	UnauthorizedReason = "Unauthorized"
	// CertificateRefusedReason says that the API server's certificate is not signed by the
	// kubeconfig's CA.
	CertificateRefusedReason = "CertificateRefused"
	// EndpointMismatchReason says that spec.controlPlaneEndpoint contradicts the Cluster's
	// endpoint.
	EndpointMismatchReason = "EndpointMismatch"
)

// KubeconfigReference names a key of a Secret in the same namespace.
type KubeconfigReference struct {
	// name is the name of the Secret, in this object's namespace.
	// Example: "production-admin".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	Name string `json:"name,omitempty"`

	// key is the key in the Secret's data. Default: "value".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[-._a-zA-Z0-9]+$`
	Key string `json:"key,omitempty"`
}

// AdoptedControlPlaneSpec specifies where an existing API server is.
type AdoptedControlPlaneSpec struct {
	// kubeconfigRef names the Secret with a kubeconfig of the existing cluster. The kubeconfig must
	// contain its credentials: a client certificate or token, and the CA. Programs, auth provider
	// plugins and file paths are rejected. Drover picks up a change of the Secret immediately.
	// +required
	KubeconfigRef KubeconfigReference `json:"kubeconfigRef,omitempty,omitzero"`

	// controlPlaneEndpoint is the address at which machines reach the API server. Default: the
	// kubeconfig's server.
	// +optional
	ControlPlaneEndpoint clusterv1.APIEndpoint `json:"controlPlaneEndpoint,omitempty,omitzero"` //nolint:kubeapilinter // The type has MinProperties=1, which the linter does not see in another module.

	// version is the Kubernetes version that the control plane is expected to run. Only
	// ClusterClass needs it. If empty, status.version still has the version that the API server
	// reports.
	// Example: "v1.36.3".
	// +optional
	// +kubebuilder:validation:MinLength=2
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^v[0-9]+\.[0-9]+\.[0-9]+([-+].+)?$`
	Version string `json:"version,omitempty"`
}

// AdoptedControlPlaneInitialization holds the fields that Cluster API reads only once.
// +kubebuilder:validation:MinProperties=1
type AdoptedControlPlaneInitialization struct {
	// controlPlaneInitialized is true once the API server has answered.
	// +optional
	ControlPlaneInitialized *bool `json:"controlPlaneInitialized,omitempty"` //nolint:kubeapilinter // Cluster API's contract has a bool.
}

// AdoptedControlPlaneStatus is the observed state of the API server.
// +kubebuilder:validation:MinProperties=1
type AdoptedControlPlaneStatus struct {
	// conditions are Available, which reports whether the API server answers, and Paused.
	// docs/conditions.md lists every reason.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// initialization is what Cluster API reads while the cluster is provisioned.
	// +optional
	Initialization AdoptedControlPlaneInitialization `json:"initialization,omitempty,omitzero"`

	// externalManagedControlPlane is always true: Cluster API manages no machine of this control
	// plane. It makes Cluster API drain worker machines although there are no control plane
	// machines.
	// +optional
	ExternalManagedControlPlane *bool `json:"externalManagedControlPlane,omitempty"` //nolint:kubeapilinter // Cluster API's contract has a bool.

	// version is the Kubernetes version that the API server reported.
	// Example: "v1.36.3".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Version string `json:"version,omitempty"`

	// observedGeneration is the generation of the spec that this status reflects.
	// +optional
	// +kubebuilder:validation:Minimum=1
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
}

// AdoptedControlPlane is an existing API server. Drover neither creates nor deletes it: when this
// object is deleted, Drover releases the cluster, which continues to run.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=adoptedcontrolplanes,scope=Namespaced,categories=cluster-api,shortName=acp
// +kubebuilder:metadata:labels="cluster.x-k8s.io/v1beta2=v1beta1"
// +kubebuilder:printcolumn:name="Cluster",type="string",JSONPath=".metadata.labels['cluster\\.x-k8s\\.io/cluster-name']",description="The Cluster it belongs to"
// +kubebuilder:printcolumn:name="Available",type="string",JSONPath=".status.conditions[?(@.type=='Available')].status"
// +kubebuilder:printcolumn:name="Reason",type="string",JSONPath=".status.conditions[?(@.type=='Available')].reason",description="Why it is available or not"
// +kubebuilder:printcolumn:name="Version",type="string",JSONPath=".status.version"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
// +kubebuilder:printcolumn:name="Message",type="string",JSONPath=".status.conditions[?(@.type=='Available')].message",description="What keeps it from being available",priority=1
type AdoptedControlPlane struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec specifies where the API server is.
	// +required
	Spec AdoptedControlPlaneSpec `json:"spec,omitempty,omitzero"`

	// status is the observed state of the API server.
	// +optional
	Status AdoptedControlPlaneStatus `json:"status,omitempty,omitzero"`
}

// GetConditions returns the conditions, for Cluster API's condition utilities.
func (c *AdoptedControlPlane) GetConditions() []metav1.Condition { return c.Status.Conditions }

// SetConditions replaces the conditions, for Cluster API's condition utilities.
func (c *AdoptedControlPlane) SetConditions(conds []metav1.Condition) { c.Status.Conditions = conds }

// AdoptedControlPlaneList is a list of AdoptedControlPlanes.
// +kubebuilder:object:root=true
type AdoptedControlPlaneList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard list's metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// items are the AdoptedControlPlanes.
	Items []AdoptedControlPlane `json:"items"`
}

// AdoptedControlPlaneTemplateResource is the template from which a ClusterClass creates
// AdoptedControlPlanes.
type AdoptedControlPlaneTemplateResource struct {
	// metadata is copied to each AdoptedControlPlane that is created from the template.
	// +optional
	ObjectMeta clusterv1.ObjectMeta `json:"metadata,omitempty,omitzero"` //nolint:kubeapilinter // The type has MinProperties=1, which the linter does not see in another module.

	// spec is the spec of the AdoptedControlPlanes. version must not be set: it comes from the
	// Cluster's spec.topology.version.
	// +required
	// +kubebuilder:validation:XValidation:rule="!has(self.version)",message="version can't be set in a template: it is the Cluster's, in spec.topology.version"
	Spec AdoptedControlPlaneSpec `json:"spec,omitempty,omitzero"`
}

// AdoptedControlPlaneTemplateSpec wraps the template.
type AdoptedControlPlaneTemplateSpec struct {
	// template is the template from which AdoptedControlPlanes are created. It is immutable. To
	// change it, create a new template and refer to it in the ClusterClass.
	// +required
	Template AdoptedControlPlaneTemplateResource `json:"template,omitempty,omitzero"`
}

// AdoptedControlPlaneTemplate is the template from which a ClusterClass creates
// AdoptedControlPlanes. Each of them needs its own kubeconfig, so a patch of the ClusterClass must
// set its name from a variable.
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=adoptedcontrolplanetemplates,scope=Namespaced,categories=cluster-api,shortName=acpt
// +kubebuilder:metadata:labels="cluster.x-k8s.io/v1beta2=v1beta1"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
type AdoptedControlPlaneTemplate struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec holds the template.
	// +required
	Spec AdoptedControlPlaneTemplateSpec `json:"spec,omitempty,omitzero"`
}

// AdoptedControlPlaneTemplateList is a list of AdoptedControlPlaneTemplates.
// +kubebuilder:object:root=true
type AdoptedControlPlaneTemplateList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard list's metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// items are the AdoptedControlPlaneTemplates.
	Items []AdoptedControlPlaneTemplate `json:"items"`
}
