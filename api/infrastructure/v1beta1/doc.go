// SPDX-License-Identifier: Apache-2.0

// Package v1beta1 holds Drover's infrastructure kinds: DroverAccount is a place where machines can
// be created, DroverCluster is a cluster's identity there, and DroverMachine is one machine. Each
// cloud's own fields are in a separate file. The package contains only data: it has no behavior
// and imports no other package of Drover. The kinds follow Cluster API's v1beta2 contract for
// InfraCluster, InfraMachine and their templates.
//
// +kubebuilder:object:generate=true
// +groupName=infrastructure.cluster.x-k8s.io
package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the API group and version of the kinds in this package.
var GroupVersion = schema.GroupVersion{Group: "infrastructure.cluster.x-k8s.io", Version: "v1beta1"}

// The kinds that the infrastructureRef of a Cluster, of a Machine and of a Machine's template names
// if Drover provides the infrastructure. Other providers use the same API group.
var (
	DroverClusterKind         = GroupVersion.WithKind("DroverCluster").GroupKind()
	DroverMachineKind         = GroupVersion.WithKind("DroverMachine").GroupKind()
	DroverMachineTemplateKind = GroupVersion.WithKind("DroverMachineTemplate").GroupKind()
)

// AddToScheme registers the kinds of this package.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion,
		&DroverAccount{}, &DroverAccountList{},
		&DroverCluster{}, &DroverClusterList{},
		&DroverClusterTemplate{}, &DroverClusterTemplateList{},
		&DroverMachine{}, &DroverMachineList{},
		&DroverMachineTemplate{}, &DroverMachineTemplateList{},
	)
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
