// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/cluster-api/util/index"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
	"github.com/drover-io/drover/naming"
)

// nodeByMissingID indexes the Nodes that have no provider ID yet, under "true".
const nodeByMissingID = "spec.providerID==''"

// NodeIndexes returns the indexes that CloudMachineReconciler needs in workload clusters' caches.
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

// link ensures that exactly one Node carries the machine's provider ID. Usually the kubelet has set
// it, and there is nothing to do. Otherwise link finds the Node by the VM's own addresses and sets
// the ID. Cluster API then matches Machine and Node. NodeJoined reports what prevents this.
func (r *CloudMachineReconciler) link(ctx context.Context, s *machineScope) (reconcile.Result, error) {
	if s.cluster == nil || s.owner == nil {
		return reconcile.Result{}, nil
	}
	if !isProvisioned(s.CloudMachine) {
		return reconcile.Result{}, r.requestEarlyListing(ctx, s)
	}
	joined, issue, again, err := r.findNode(ctx, s)
	if errors.Is(err, clustercache.ErrClusterNotConnected) {
		return reconcile.Result{}, nil // the connection comes as an event
	}
	if err == nil || issue.reason != "" {
		setNodeJoined(s.CloudMachine, joined, issue)
	}
	return reconcile.Result{RequeueAfter: again}, err
}

// requestEarlyListing tells the account that a machine has its Node although the VM was not seen
// running yet.
func (r *CloudMachineReconciler) requestEarlyListing(ctx context.Context, s *machineScope) error {
	nodes, err := r.nodes(ctx, s)
	if errors.Is(err, clustercache.ErrClusterNotConnected) {
		return nil // the account is listed soon in any case
	}
	if err != nil {
		return err
	}
	linked, err := linkedNodes(ctx, s, nodes)
	if len(linked) > 0 {
		s.account.NodeJoined(s.reference().Token)
	}
	return err
}

// linkedNodes returns the Nodes that carry the machine's provider ID.
func linkedNodes(ctx context.Context, s *machineScope, nodes client.Reader) ([]corev1.Node, error) {
	list := &corev1.NodeList{}
	if err := nodes.List(ctx, list, client.MatchingFields{index.NodeProviderIDField: s.Spec.ProviderID}); err != nil {
		return nil, fmt.Errorf("listing the Nodes of the machine: %w", err)
	}
	return list.Items, nil
}

// findNode reports whether the machine has its Node. It returns what prevents the link between the
// two, and when to check again, 0 for never.
func (r *CloudMachineReconciler) findNode(ctx context.Context, s *machineScope) (joined bool, issue nodeIssue, again time.Duration, err error) {
	nodes, err := r.nodes(ctx, s)
	if err != nil {
		return false, nodeIssue{}, 0, err
	}
	linked, err := linkedNodes(ctx, s, nodes)
	if err != nil {
		return false, nodeIssue{}, 0, err
	}
	switch len(linked) {
	case 0:
		return r.setProviderID(ctx, s, nodes)
	case 1:
		issue, again, err = r.diagnoseNode(ctx, s, true)
		return true, issue, again, err
	}
	return false, duplicateNodes("Nodes %q and %q both have provider ID %s: delete the one that does not belong to this machine",
		linked[0].Name, linked[1].Name, s.Spec.ProviderID), 0, nil
}

func duplicateNodes(format string, args ...any) nodeIssue {
	return nodeIssue{infrav1.DuplicateNodesReason, fmt.Sprintf(format, args...)}
}

// setProviderID sets the machine's provider ID on the one Node without one that has a VM address.
// Its results are those of findNode.
func (r *CloudMachineReconciler) setProviderID(ctx context.Context, s *machineScope, nodes client.Client) (joined bool, issue nodeIssue, again time.Duration, err error) {
	node, issue, err := r.nodeWithoutProviderID(ctx, s, nodes)
	switch {
	case err != nil:
		return false, nodeIssue{}, 0, err
	case issue.reason != "":
		return false, issue, jitter(deletionRecheck), nil // the deletion of a machine with the same address triggers no event
	case node == nil:
		issue, again, err = r.diagnoseNode(ctx, s, false) // the Node comes as an event
		return false, issue, again, err
	}
	if err := patchProviderID(ctx, nodes, node, s.Spec.ProviderID); err != nil {
		return false, nodeIssue{}, 0, err
	}
	issue, again, err = r.diagnoseNode(ctx, s, true)
	return true, issue, again, err
}

func patchProviderID(ctx context.Context, nodes client.Client, node *corev1.Node, providerID string) error {
	patched := node.DeepCopy()
	patched.Spec.ProviderID = providerID
	if err := nodes.Patch(ctx, patched, client.MergeFromWithOptions(node, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("setting the provider ID of Node %q: %w", node.Name, err)
	}
	return nil
}

// nodeWithoutProviderID returns the one Node that has no provider ID and has one of the VM's
// addresses; nil if there is none. Two clouds may give the same private address to two machines of
// one cluster. Then the address identifies no Node, and the kubelet has to set its provider ID.
func (r *CloudMachineReconciler) nodeWithoutProviderID(ctx context.Context, s *machineScope, nodes client.Client) (*corev1.Node, nodeIssue, error) {
	candidates := &corev1.NodeList{}
	if err := nodes.List(ctx, candidates, client.MatchingFields{nodeByMissingID: "true"}); err != nil {
		return nil, nodeIssue{}, fmt.Errorf("listing the Nodes without provider ID: %w", err)
	}
	var match []*corev1.Node
	var address string
	for i := range candidates.Items {
		if ip := sharedIP(&candidates.Items[i], s.CloudMachine); ip != "" {
			match, address = append(match, &candidates.Items[i]), ip
		}
	}
	switch len(match) {
	case 0:
		return nil, nodeIssue{}, nil
	case 1:
	default:
		return nil, duplicateNodes("Nodes %q and %q both have an address of this VM: delete the one that does not belong to this machine",
			match[0].Name, match[1].Name), nil
	}
	same := &infrav1.CloudMachineList{}
	err := r.Client.List(ctx, same, client.InNamespace(s.Namespace), client.MatchingFields{machineByAddress: address},
		client.MatchingLabels{clusterv1.ClusterNameLabel: s.cluster.Name})
	if err != nil {
		return nil, nodeIssue{}, fmt.Errorf("listing the machines at %s: %w", address, err)
	}
	if i := slices.IndexFunc(same.Items, func(m infrav1.CloudMachine) bool { return m.Name != s.Name }); i >= 0 {
		return nil, duplicateNodes("Node %q may belong to this machine or to CloudMachine %q, which has the same address %s: start this machine's kubelet with --provider-id=%s",
			match[0].Name, same.Items[i].Name, address, s.Spec.ProviderID), nil
	}
	return match[0], nodeIssue{}, nil
}

// adoptNode sets the provider ID of a VM that is about to be deleted on its Node, if the Node has
// none. After the VM is gone, another VM may get its address, and the Node to remove could not be
// identified. Like the removal, this is best effort and does not delay the deletion for long. It
// returns when to retry, 0 for never.
func (r *CloudMachineReconciler) adoptNode(ctx context.Context, s *machineScope, providerID string, addresses []clusterv1.MachineAddress) time.Duration {
	if s.cluster == nil || len(addresses) == 0 || (s.owner != nil && s.owner.Status.NodeRef.IsDefined()) {
		return 0
	}
	vm := *s
	vm.CloudMachine = s.DeepCopy()
	vm.Spec.ProviderID, vm.Status.Addresses = providerID, addresses
	nodes, err := r.nodes(ctx, s)
	var node *corev1.Node
	if err == nil {
		node, _, err = r.nodeWithoutProviderID(ctx, &vm, nodes)
	}
	if err == nil && node != nil {
		err = patchProviderID(ctx, nodes, node, providerID)
	}
	if err == nil {
		return 0
	}
	again := r.nodeRetryAfter(ctx, s, providerID, err)
	if again > 0 {
		setNotReady(s.CloudMachine, infrav1.WaitingForAPIServerReason,
			"Waiting up to two minutes for the workload cluster, to find the Node to remove with the VM")
	}
	return again
}

// sharedIP returns an IP address of the Node that the cloud gave to the VM, or "".
func sharedIP(node *corev1.Node, machine *infrav1.CloudMachine) string {
	for _, a := range node.Status.Addresses {
		if a.Type != corev1.NodeInternalIP && a.Type != corev1.NodeExternalIP {
			continue
		}
		for _, b := range machine.Status.Addresses {
			ip := b.Type == clusterv1.MachineInternalIP || b.Type == clusterv1.MachineExternalIP
			if ip && a.Address == b.Address {
				return a.Address
			}
		}
	}
	return ""
}

// removeNode deletes the Node of a VM that is gone for good, as a cloud controller manager does.
// Its pods are moved at once, and Cluster API sees that the Machine has lost its Node, so that a
// MachineHealthCheck can replace it. held means that the removal rate keeps the Node for now.
func (r *CloudMachineReconciler) removeNode(ctx context.Context, s *machineScope) (held bool, again time.Duration, err error) {
	if s.cluster == nil {
		return false, 0, nil
	}
	own, nodes, err := r.ownNodes(ctx, s)
	if errors.Is(err, clustercache.ErrClusterNotConnected) {
		return false, jitter(time.Minute), nil
	}
	if err != nil || len(own) == 0 {
		return false, 0, err
	}
	cluster := client.ObjectKeyFromObject(s.cluster)
	machines := r.list(ctx, nil, client.InNamespace(s.Namespace), client.MatchingLabels{clusterv1.ClusterNameLabel: s.cluster.Name},
		client.UnsafeDisableDeepCopy)
	if wait := r.removals.after(cluster, len(machines)); wait > 0 {
		return true, jitter(max(wait, heldNodeRetry)), nil // all held machines retry, and only one gets the next turn
	}
	return false, 0, r.deleteNodes(ctx, s, nodes, own)
}

// ownNodes returns the Nodes that carry the machine's provider ID, and the Node that has its name
// and no provider ID.
func (r *CloudMachineReconciler) ownNodes(ctx context.Context, s *machineScope) ([]corev1.Node, client.Client, error) {
	nodes, err := r.nodes(ctx, s)
	if err != nil {
		return nil, nil, err
	}
	own, err := linkedNodes(ctx, s, nodes)
	if err != nil {
		return nil, nil, err
	}
	named, err := nodeByMachineName(ctx, s, nodes)
	return append(own, named...), nodes, err
}

func (r *CloudMachineReconciler) deleteNodes(ctx context.Context, s *machineScope, nodes client.Client, own []corev1.Node) error {
	for i := range own {
		node := &own[i]
		err := nodes.Delete(ctx, node, client.Preconditions{UID: &node.UID})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("deleting Node %q, whose VM is gone: %w", node.Name, err)
		}
		r.Recorder.Eventf(s.CloudMachine, nil, corev1.EventTypeNormal, "NodeDeleted", "Observe", "Deleted Node %q, whose VM is gone", node.Name)
	}
	return nil
}

// nodeByMachineName returns the Node without provider ID that has the machine's own name, if there
// is one. It registered after the controller had stopped checking the VM's addresses. This happens
// if a kubelet was approved just before its Machine was deleted. A kubelet gets a certificate for
// that name only with this machine's token (bootstrap.CSRReconciler). A Node that is older than the
// machine does not belong to it, because users have Nodes without provider ID of their own.
func nodeByMachineName(ctx context.Context, s *machineScope, nodes client.Reader) ([]corev1.Node, error) {
	name := s.Name
	if s.owner != nil {
		name = s.owner.Name
	}
	node := &corev1.Node{}
	err := nodes.Get(ctx, client.ObjectKey{Name: naming.NodeName(name)}, node)
	if err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	if node.Spec.ProviderID != "" || node.CreationTimestamp.Before(&s.CreationTimestamp) {
		return nil, nil
	}
	return []corev1.Node{*node}, nil
}

// nodes returns a client of the workload cluster, and watches its Nodes for this controller.
func (r *CloudMachineReconciler) nodes(ctx context.Context, s *machineScope) (client.Client, error) {
	cluster := client.ObjectKeyFromObject(s.cluster)
	err := r.ClusterCache.Watch(ctx, cluster, clustercache.NewWatcher(clustercache.WatcherOptions{
		Name:         "cloudmachine-nodes",
		Watcher:      r.controller,
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

// nodeToMachines returns the machines that a Node concerns. For a Node without provider ID, these
// are the machines at its addresses. Otherwise they are the machines with its provider ID that were
// not seen running yet, that have several Nodes, or whose NodeJoined is not True.
func (r *CloudMachineReconciler) nodeToMachines(cluster client.ObjectKey) handler.MapFunc {
	return func(ctx context.Context, o client.Object) []reconcile.Request {
		node, ok := o.(*corev1.Node)
		if !ok {
			return nil
		}
		if node.Spec.ProviderID == "" {
			var requests []reconcile.Request
			for _, a := range node.Status.Addresses {
				requests = append(requests, r.find(ctx, cluster, machineByAddress, a.Address, nil)...)
			}
			return requests
		}
		return r.find(ctx, cluster, machineByProviderID, node.Spec.ProviderID, func(m *infrav1.CloudMachine) bool {
			return !isProvisioned(m) || r.hasDuplicateNodes(ctx, cluster, node.Spec.ProviderID) || !conditions.IsTrue(m, infrav1.MachineNodeJoinedCondition)
		})
	}
}

// hasDuplicateNodes reports whether more than one Node carries the provider ID.
func (r *CloudMachineReconciler) hasDuplicateNodes(ctx context.Context, cluster client.ObjectKey, providerID string) bool {
	nodes, err := r.ClusterCache.GetReader(ctx, cluster)
	if err != nil {
		return false
	}
	list := &corev1.NodeList{}
	err = nodes.List(ctx, list, client.MatchingFields{index.NodeProviderIDField: providerID}, client.UnsafeDisableDeepCopy)
	return err == nil && len(list.Items) > 1
}

// find returns the machines of a cluster that match an index and for which keep returns true.
func (r *CloudMachineReconciler) find(ctx context.Context, cluster client.ObjectKey, field, value string, keep func(*infrav1.CloudMachine) bool) []reconcile.Request {
	machines := &infrav1.CloudMachineList{}
	err := r.Client.List(ctx, machines, client.InNamespace(cluster.Namespace),
		client.MatchingFields{field: value}, client.MatchingLabels{clusterv1.ClusterNameLabel: cluster.Name})
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Listing CloudMachines failed", "field", field)
		return nil
	}
	var requests []reconcile.Request
	for i := range machines.Items {
		if m := &machines.Items[i]; keep == nil || keep(m) {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(m)})
		}
	}
	return requests
}
