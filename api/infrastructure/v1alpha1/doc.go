// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 holds Drover's infrastructure kinds: CloudAccount is a place where machines can
// be created, CloudCluster is a cluster's identity there, and CloudMachine is one machine. Each
// cloud's own fields are in a separate file. The package contains only data: it has no behavior
// and imports no other package of Drover. The kinds follow Cluster API's v1beta2 contract for
// InfraCluster, InfraMachine and their templates.
//
// +kubebuilder:object:generate=true
// +groupName=infrastructure.cluster.x-k8s.io
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the API group and version of the kinds in this package.
var GroupVersion = schema.GroupVersion{Group: "infrastructure.cluster.x-k8s.io", Version: "v1alpha1"}

// CloudClusterKind is the kind that a Cluster's infrastructureRef names if Drover provides its
// infrastructure.
var CloudClusterKind = GroupVersion.WithKind("CloudCluster").GroupKind()

// AddToScheme registers the kinds of this package.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion,
		&CloudAccount{}, &CloudAccountList{},
		&CloudCluster{}, &CloudClusterList{},
		&CloudClusterTemplate{}, &CloudClusterTemplateList{},
		&CloudMachine{}, &CloudMachineList{},
		&CloudMachineTemplate{}, &CloudMachineTemplateList{},
	)
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
