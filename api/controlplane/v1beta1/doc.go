// SPDX-License-Identifier: Apache-2.0

// Package v1beta1 holds Drover's control plane kind: AdoptedControlPlane, which is an existing API
// server, and its template. The package contains only data: it has no behavior and imports no
// other package of Drover. The kind follows Cluster API's v1beta2 contract for ControlPlane.
//
// +kubebuilder:object:generate=true
// +groupName=controlplane.cluster.x-k8s.io
package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the API group and version of the kinds in this package.
var GroupVersion = schema.GroupVersion{Group: "controlplane.cluster.x-k8s.io", Version: "v1beta1"}

// AdoptedControlPlaneKind is the kind that a Cluster's controlPlaneRef names if it was adopted.
var AdoptedControlPlaneKind = GroupVersion.WithKind("AdoptedControlPlane").GroupKind()

// AddToScheme registers the kinds of this package.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &AdoptedControlPlane{}, &AdoptedControlPlaneList{}, &AdoptedControlPlaneTemplate{},
		&AdoptedControlPlaneTemplateList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
