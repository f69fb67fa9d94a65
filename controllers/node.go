// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/events"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/cluster-api/util"
	"sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/cluster-api/util/index"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/fleet"
	"github.com/drover-io/drover/internal/conflict"
	"github.com/drover-io/drover/internal/connection"
	"github.com/drover-io/drover/internal/predicates"
)

// NodeReconciler does the work of DroverMachines in their workload clusters: it links each machine
// with its Node, says why there is none, and removes the Node of a VM that is gone. It has workers
// of its own, so that a workload cluster that hangs holds up no VM. It writes no DroverMachine:
// NodeHandover hands its results to DroverMachineReconciler.
type NodeReconciler struct {
	Client       client.Client
	ClusterCache clustercache.ClusterCache
	Accounts     *fleet.Accounts
	Recorder     events.EventRecorder
	Handover     *NodeHandover
	// LateAfter is how long a VM may run before NodeJoined says why it is not a ready Node.
	LateAfter time.Duration
	// Progress returns how far a machine without a Node has come, as a reason and the end of a
	// sentence about its VM. Both are empty if the bootstrap provider is unknown.
	Progress         func(context.Context, *clusterv1.Cluster, *clusterv1.Machine) (reason, message string, err error)
	WatchFilterValue string
	// Watches are those of all controllers in workload clusters.
	Watches *connection.Watches

	controller controller.Controller
	removals   nodeRemovals
	consoles   consoles
}

// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=drovermachines;droverclusters,verbs=get;list;watch
// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=clusters;machines,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch
// +kubebuilder:rbac:groups="",resources=events,verbs=create;patch

// SetupWithManager registers the reconciler.
func (r *NodeReconciler) SetupWithManager(mgr ctrl.Manager, options controller.Options) error {
	c, err := builder.ControllerManagedBy(mgr).
		Named("node").
		For(&infrav1.DroverMachine{}, builder.WithPredicates(predicate.Or(predicates.SpecOrMetadataChanged(), onUpdate(nodeInputsChanged)))).
		Watches(&clusterv1.Cluster{}, handler.EnqueueRequestsFromMapFunc(clusterToMachines(r.Client)),
			builder.WithPredicates(onUpdate(clusterInputsChanged))).
		WatchesRawSource(r.Handover.Nodes.Source()).
		WatchesRawSource(r.ClusterCache.GetClusterSource("node", r.clusterToMachinesWithoutNode)).
		WithOptions(options).
		Build(conflict.Retried(r))
	r.controller = c
	return err
}

// Reconcile does what is to do for one machine in its workload cluster.
func (r *NodeReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	s, err := readMachine(ctx, r.Client, r.Accounts, req.NamespacedName)
	if apierrors.IsNotFound(err) {
		r.consoles.forget(req.NamespacedName)
		r.Handover.forget(req.NamespacedName)
		return reconcile.Result{}, nil
	}
	if err != nil || !predicates.Watched(s.DroverMachine, r.WatchFilterValue) || s.cluster == nil || isPaused(s.DroverMachine, s.cluster) {
		return reconcile.Result{}, err
	}
	tasks := r.Handover.open(s.DroverMachine)
	if len(tasks) == 0 {
		return r.link(ctx, s)
	}
	for _, task := range tasks {
		result, err := r.run(ctx, s, task)
		if result.RequeueAfter > 0 || err != nil {
			return result, err
		}
	}
	return reconcile.Result{}, nil
}

// run takes a step of a task.
func (r *NodeReconciler) run(ctx context.Context, s *machineScope, task nodeTask) (reconcile.Result, error) {
	switch task.kind {
	case removeGoneNode:
		return r.removeGone(ctx, s, task)
	case adoptNode:
		return r.attempt(s, task, r.adopt(ctx, s, task)), nil
	default:
		return r.attempt(s, task, r.removeDeleted(ctx, s)), nil
	}
}

// attempt reports the result of an attempt, and returns when to repeat it.
func (r *NodeReconciler) attempt(s *machineScope, task nodeTask, err error) reconcile.Result {
	r.Handover.report(s.DroverMachine, task, nodeTaskResult{done: err == nil, err: err})
	if err != nil {
		return reconcile.Result{RequeueAfter: nodeRetry}
	}
	return reconcile.Result{}
}

// nodeByMissingID indexes the Nodes that have no provider ID yet, under "true".
const nodeByMissingID = "spec.providerID==''"

// NodeIndexes returns the indexes that NodeReconciler needs in workload clusters' caches.
func NodeIndexes() []clustercache.CacheOptionsIndex {
	return []clustercache.CacheOptionsIndex{
		clustercache.NodeProviderIDIndex,
		{Object: &corev1.Node{}, Field: nodeByMissingID, ExtractValue: func(o client.Object) []string {
			if node, ok := o.(*corev1.Node); ok && node.Spec.ProviderID == "" {
				return []string{"true"}
			}
			return nil
		}},
	}
}

// nodes returns a client of the workload cluster, and watches its Nodes for this controller.
func (r *NodeReconciler) nodes(ctx context.Context, s *machineScope) (client.Client, error) {
	cluster := client.ObjectKeyFromObject(s.cluster)
	err := r.ClusterCache.Watch(ctx, cluster, clustercache.NewWatcher(clustercache.WatcherOptions{
		Name:         "nodes",
		Watcher:      connection.Until(r.Watches, cluster, "nodes", r.controller),
		Kind:         &corev1.Node{},
		EventHandler: handler.EnqueueRequestsFromMapFunc(r.nodeToMachines(cluster)),
		Predicates:   []predicate.TypedPredicate[client.Object]{nodeIdentityChanged()},
	}))
	if err != nil {
		return nil, fmt.Errorf("watching the Nodes of Cluster %s: %w", cluster, err)
	}
	nodes, err := r.ClusterCache.GetClient(ctx, cluster)
	if err != nil {
		return nil, fmt.Errorf("connecting to Cluster %s: %w", cluster, err)
	}
	return nodes, nil
}

// nodeIdentityChanged passes every event except updates that change neither the provider ID nor,
// while it is empty, the addresses. So it never passes a heartbeat.
func nodeIdentityChanged() predicate.Predicate {
	return predicate.Funcs{
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, after := e.ObjectOld.(*corev1.Node), e.ObjectNew.(*corev1.Node)
			return before.Spec.ProviderID != after.Spec.ProviderID ||
				(after.Spec.ProviderID == "" && !sameAddresses(before.Status.Addresses, after.Status.Addresses))
		},
	}
}

func sameAddresses(a, b []corev1.NodeAddress) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// nodeInputsChanged passes the status writes that the work on a Node depends on. A VM that runs
// again may be late again. The other writes are those that other events need to find a machine: a
// Node without provider ID finds its machine by the addresses, a connection to the workload cluster
// finds provisioned machines, and a deleted Node finds machines whose NodeJoined reports a problem.
// Events before these writes were in the cache found no machine, so it must be reconciled again.
func nodeInputsChanged(before, after *infrav1.DroverMachine) bool {
	return isProvisioned(before) != isProvisioned(after) || !slices.Equal(before.Status.Addresses, after.Status.Addresses) ||
		conditions.IsTrue(before, clusterv1.ReadyCondition) != conditions.IsTrue(after, clusterv1.ReadyCondition) ||
		!conditions.IsFalse(before, infrav1.MachineNodeJoinedCondition) && conditions.IsFalse(after, infrav1.MachineNodeJoinedCondition)
}

// clusterToMachinesWithoutNode returns the machines that wait for a Node, or for the removal of
// one, or whose NodeJoined is not True, when the connection to the workload cluster comes or goes.
// If there is none, it returns a machine that watches the Nodes again: the watch went with the
// connection.
func (r *NodeReconciler) clusterToMachinesWithoutNode(ctx context.Context, o client.Object) []reconcile.Request {
	isWatched := false
	needsNode := func(m *infrav1.DroverMachine) bool {
		if m.Status.InstanceState == infrav1.InstanceStateGone {
			return true
		}
		if !isProvisioned(m) {
			return false
		}
		if !isWatched && m.DeletionTimestamp.IsZero() && !annotations.HasPaused(m) {
			isWatched = true
			return true
		}
		if !conditions.IsTrue(m, infrav1.MachineNodeJoinedCondition) {
			return true
		}
		owner, err := util.GetOwnerMachine(ctx, r.Client, m.ObjectMeta)
		return err == nil && owner != nil && !owner.Status.NodeRef.IsDefined()
	}
	return listMachines(ctx, r.Client, needsNode, client.InNamespace(o.GetNamespace()),
		client.MatchingLabels{clusterv1.ClusterNameLabel: o.GetName()})
}

// nodeToMachines returns the machines that a Node concerns. For a Node without provider ID, these
// are the machines with its name or at its addresses. Otherwise they are the machines with its
// provider ID that were not seen running yet, that have several Nodes or other names, or whose
// NodeJoined is not True; and the machines with its name that have another provider ID.
func (r *NodeReconciler) nodeToMachines(cluster client.ObjectKey) handler.MapFunc {
	return func(ctx context.Context, o client.Object) []reconcile.Request {
		node, ok := o.(*corev1.Node)
		if !ok {
			return nil
		}
		if node.Spec.ProviderID == "" {
			requests := r.findNamed(ctx, cluster, node.Name, nil)
			for _, a := range node.Status.Addresses {
				requests = append(requests, r.find(ctx, cluster, machineByAddress, a.Address, nil)...)
			}
			return requests
		}
		named := r.findNamed(ctx, cluster, node.Name, func(m *infrav1.DroverMachine) bool { return m.Spec.ProviderID != node.Spec.ProviderID })
		return append(named, r.find(ctx, cluster, machineByProviderID, node.Spec.ProviderID, func(m *infrav1.DroverMachine) bool {
			return !isProvisioned(m) || !conditions.IsTrue(m, infrav1.MachineNodeJoinedCondition) ||
				!slices.Contains(append(cloudHostNames(m), namesOfNode(m)...), node.Name) || r.hasDuplicateNodes(ctx, cluster, node.Spec.ProviderID)
		})...)
	}
}

// findNamed returns the machines whose Node may have the name, and for which keep returns true.
func (r *NodeReconciler) findNamed(ctx context.Context, cluster client.ObjectKey, node string,
	keep func(*infrav1.DroverMachine) bool) []reconcile.Request {
	return append(r.find(ctx, cluster, machineByNodeName, node, keep), r.find(ctx, cluster, machineByAddress, node, keep)...)
}

// hasDuplicateNodes reports whether more than one Node carries the provider ID.
func (r *NodeReconciler) hasDuplicateNodes(ctx context.Context, cluster client.ObjectKey, providerID string) bool {
	nodes, err := r.ClusterCache.GetReader(ctx, cluster)
	if err != nil {
		return false
	}
	list := &corev1.NodeList{}
	err = nodes.List(ctx, list, client.MatchingFields{index.NodeProviderIDField: providerID}, client.UnsafeDisableDeepCopy)
	return err == nil && len(list.Items) > 1
}

// find returns the machines of a cluster that match an index and for which keep returns true.
func (r *NodeReconciler) find(ctx context.Context, cluster client.ObjectKey, field, value string,
	keep func(*infrav1.DroverMachine) bool) []reconcile.Request {
	return listMachines(ctx, r.Client, keep, client.InNamespace(cluster.Namespace),
		client.MatchingFields{field: value}, client.MatchingLabels{clusterv1.ClusterNameLabel: cluster.Name})
}
