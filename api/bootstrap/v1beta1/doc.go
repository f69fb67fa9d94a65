// SPDX-License-Identifier: Apache-2.0

// Package v1beta1 holds Drover's bootstrap kinds: DroverConfig turns a machine image into a
// node of a cluster. The package contains only data: it has no behavior and imports no other
// package of Drover. The kinds follow Cluster API's v1beta2 contract for BootstrapConfig and its
// template.
//
// +kubebuilder:object:generate=true
// +groupName=bootstrap.cluster.x-k8s.io
package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the API group and version of the kinds in this package.
var GroupVersion = schema.GroupVersion{Group: "bootstrap.cluster.x-k8s.io", Version: "v1beta1"}

// AddToScheme registers the kinds of this package.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion,
		&DroverConfig{}, &DroverConfigList{},
		&DroverConfigTemplate{}, &DroverConfigTemplateList{},
	)
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
