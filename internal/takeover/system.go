// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"context"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Source is what another system has.
type Source interface {
	// Plan plans the takeover of all pools into target. drop are the fields that the user gives up.
	Plan(target *Target, drop []string) *Plan
}

// System is one of the other systems: how the steps find it, and what they take off its objects.
type System struct {
	// Name is its program's, as its image has it.
	Name string
	// Cluster is the name of the Cluster that has the pools, for Cluster API. While it is paused,
	// nothing acts on them. nil: the other system has no Clusters, and must not run.
	Cluster *string
	// Read reads its objects in a namespace of its own cluster, and the Nodes of the cluster that
	// its machines are in.
	Read func(ctx context.Context, old client.Reader, namespace string, workload client.Reader) (Source, error)

	// leases are those that its processes hold.
	leases []string
	api    schema.GroupVersion
	// kinds are those of its objects, from the bottom to the top. Those of clouds that the other
	// system does not use may be missing.
	kinds []schema.GroupVersionKind
	// finalizers are those that it puts on its objects; the others on Secrets and Nodes.
	finalizers                     []string
	secretFinalizer, nodeFinalizer string
	nodeLabel, nodeAnnotation      string
}

// MachineControllerManager is Gardener's.
func MachineControllerManager() System {
	return System{
		Name: "machine-controller-manager", Read: ReadMCM,
		leases: []string{"machine-controller", "machine-controller-manager"}, api: mcmAPI,
		kinds:           kindsOf(mcmAPI, "Machine", "MachineSet", "MachineDeployment", "MachineClass"),
		finalizers:      []string{"machine.sapcloud.io/machine-controller-manager"},
		secretFinalizer: "machine.sapcloud.io/machine-controller",
		nodeFinalizer:   "node.machine.sapcloud.io/machine-controller",
		nodeLabel:       "node.gardener.cloud/machine-name",
		nodeAnnotation:  "node.machine.sapcloud.io/last-applied-anno-labels-taints",
	}
}

// MachineController is Kubermatic's.
func MachineController() System {
	return System{
		Name: "machine-controller", Read: ReadMC,
		leases: []string{"machine-controller"}, api: mcAPI,
		kinds: kindsOf(mcAPI, "Machine", "MachineSet", "MachineDeployment"),
		finalizers: append([]string{"machine-delete-finalizer", "machine-node-delete-finalizer", mcAddress, "foregroundDeletion"},
			mcCleanups...),
		nodeLabel:      "machine-controller/owned-by",
		nodeAnnotation: "cluster.k8s.io/machine",
	}
}

func kindsOf(api schema.GroupVersion, kinds ...string) (all []schema.GroupVersionKind) {
	for _, kind := range kinds {
		all = append(all, api.WithKind(kind))
	}
	return all
}

// listOf returns an empty list of a kind.
func listOf(api schema.GroupVersion, kind string) *unstructured.UnstructuredList {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(api.WithKind(kind + "List"))
	return list
}
