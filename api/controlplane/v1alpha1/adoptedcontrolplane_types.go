// SPDX-License-Identifier: Apache-2.0

package v1alpha1

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
	// KubeconfigMissingReason says that the Secret in spec.kubeconfigRef, or its key, is not there.
	KubeconfigMissingReason = "KubeconfigMissing"
	// KubeconfigRefusedReason says that the kubeconfig can't be parsed, or asks for something that
	// Drover never does for a tenant: to run a program, to read a file, or to skip verification.
	KubeconfigRefusedReason = "KubeconfigRefused"
	// KubeconfigConflictReason says that the Cluster's kubeconfig Secret exists and belongs to
	// someone else.
	KubeconfigConflictReason = "KubeconfigConflict"
	// UnreachableReason says that the API server does not answer, or answers something else than
	// Kubernetes.
	UnreachableReason = "Unreachable"
	// UnauthorizedReason says that the API server refuses the kubeconfig's credentials.
	UnauthorizedReason = "Unauthorized"
	// CertificateRefusedReason says that the API server's certificate is not signed by the
	// kubeconfig's CA.
	CertificateRefusedReason = "CertificateRefused"
	// EndpointMismatchReason says that spec.controlPlaneEndpoint contradicts the Cluster's.
	EndpointMismatchReason = "EndpointMismatch"
)

// KubeconfigReference names a key of a Secret in the same namespace.
type KubeconfigReference struct {
	// name of the Secret, in this object's own namespace. Example: "production-admin".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	Name string `json:"name"`

	// key in the Secret's data. Default: "value".
	// +optional
	// +kubebuilder:default=value
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[-._a-zA-Z0-9]+$`
	Key string `json:"key,omitempty"`
}

// AdoptedControlPlaneSpec says where an existing API server is.
type AdoptedControlPlaneSpec struct {
	// kubeconfigRef names the Secret with a kubeconfig of the existing cluster. It must hold its
	// credentials in itself: client certificate, or token, and CA; programs, auth provider plugins
	// and file paths are refused. A change of the Secret is picked up at once.
	// +required
	KubeconfigRef KubeconfigReference `json:"kubeconfigRef"`

	// controlPlaneEndpoint is where machines reach the API server. Default: the kubeconfig's
	// server.
	// +optional
	ControlPlaneEndpoint clusterv1.APIEndpoint `json:"controlPlaneEndpoint,omitempty,omitzero"`

	// version of Kubernetes that the control plane is expected to run. Only ClusterClass needs it;
	// left out, what the API server says is reported in status.version. Example: "v1.36.3".
	// +optional
	// +kubebuilder:validation:MinLength=2
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^v[0-9]+\.[0-9]+\.[0-9]+([-+].+)?$`
	Version string `json:"version,omitempty"`
}

// AdoptedControlPlaneInitialization holds what Cluster API reads once.
// +kubebuilder:validation:MinProperties=1
type AdoptedControlPlaneInitialization struct {
	// controlPlaneInitialized is true once the API server answered.
	// +optional
	ControlPlaneInitialized *bool `json:"controlPlaneInitialized,omitempty"`
}

// AdoptedControlPlaneStatus is what is known of the API server.
// +kubebuilder:validation:MinProperties=1
type AdoptedControlPlaneStatus struct {
	// conditions: Available says whether the API server answers; Paused. docs/conditions.md lists
	// every reason.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// initialization is read by Cluster API while the cluster comes up.
	// +optional
	Initialization AdoptedControlPlaneInitialization `json:"initialization,omitempty,omitzero"`

	// externalManagedControlPlane is always true: Cluster API manages no machine of this control
	// plane. It makes Cluster API drain worker machines although it sees no control plane machine.
	// +optional
	ExternalManagedControlPlane *bool `json:"externalManagedControlPlane,omitempty"`

	// version of Kubernetes that the API server reported. Example: "v1.36.3".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Version string `json:"version,omitempty"`

	// observedGeneration is the generation of the spec that this status speaks of.
	// +optional
	// +kubebuilder:validation:Minimum=1
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
}

// AdoptedControlPlane is an API server that exists already. Drover neither makes nor deletes it:
// when this object goes, the cluster is released and runs on.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=adoptedcontrolplanes,scope=Namespaced,categories=cluster-api
// +kubebuilder:metadata:labels="cluster.x-k8s.io/v1beta2=v1alpha1"
// +kubebuilder:printcolumn:name="Cluster",type="string",JSONPath=".metadata.labels['cluster\\.x-k8s\\.io/cluster-name']",description="The Cluster it belongs to"
// +kubebuilder:printcolumn:name="Available",type="string",JSONPath=".status.conditions[?(@.type=='Available')].status"
// +kubebuilder:printcolumn:name="Version",type="string",JSONPath=".status.version"
// +kubebuilder:printcolumn:name="Waiting for",type="string",JSONPath=".status.conditions[?(@.type=='Available')].message",description="What keeps it from being available"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
type AdoptedControlPlane struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec says where the API server is.
	// +required
	Spec AdoptedControlPlaneSpec `json:"spec,omitempty"`

	// status is what Drover knows of it.
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

// AdoptedControlPlaneTemplateResource is what a ClusterClass makes AdoptedControlPlanes from.
type AdoptedControlPlaneTemplateResource struct {
	// metadata is put on each AdoptedControlPlane made from the template.
	// +optional
	ObjectMeta clusterv1.ObjectMeta `json:"metadata,omitempty,omitzero"`

	// spec is the AdoptedControlPlane's. version must be left out: it is the Cluster's, in
	// spec.topology.version.
	// +required
	// +kubebuilder:validation:XValidation:rule="!has(self.version)",message="version can't be set in a template: it is the Cluster's, in spec.topology.version"
	Spec AdoptedControlPlaneSpec `json:"spec"`
}

// AdoptedControlPlaneTemplateSpec wraps the template.
type AdoptedControlPlaneTemplateSpec struct {
	// template is what AdoptedControlPlanes are made from.
	// +required
	Template AdoptedControlPlaneTemplateResource `json:"template"`
}

// AdoptedControlPlaneTemplate is what a ClusterClass makes AdoptedControlPlanes from. Each names a
// kubeconfig of its own, so a patch of the ClusterClass puts a variable there.
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=adoptedcontrolplanetemplates,scope=Namespaced,categories=cluster-api
// +kubebuilder:metadata:labels="cluster.x-k8s.io/v1beta2=v1alpha1"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
type AdoptedControlPlaneTemplate struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec holds the template.
	// +required
	Spec AdoptedControlPlaneTemplateSpec `json:"spec,omitempty"`
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
