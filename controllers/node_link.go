// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/cluster-api/util/index"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/internal/naming"
)

// link ensures that exactly one Node carries the machine's provider ID. Usually the kubelet has set
// it, and there is nothing to do. Otherwise link finds the Node by its name, and sets the ID: see
// isNodeOf. Cluster API then matches Machine and Node. NodeJoined reports what prevents this.
func (r *NodeReconciler) link(ctx context.Context, s *machineScope) (reconcile.Result, error) {
	if s.owner == nil || s.Spec.ProviderID == "" || !s.DeletionTimestamp.IsZero() || s.Status.InstanceState == infrav1.InstanceStateGone {
		return reconcile.Result{}, nil
	}
	if !isProvisioned(s.DroverMachine) {
		return reconcile.Result{}, r.requestEarlyListing(ctx, s)
	}
	joined, issue, again, err := r.findNode(ctx, s)
	if errors.Is(err, clustercache.ErrClusterNotConnected) {
		return reconcile.Result{}, nil // the connection comes as an event
	}
	if err == nil || issue.reason != "" {
		r.Handover.reportLink(s.DroverMachine, nodeLink{joined, issue})
	}
	return reconcile.Result{RequeueAfter: again}, err
}

// requestEarlyListing tells the account that a machine has its Node although the VM was not seen
// running yet. NodeJoined is then written together with Ready.
func (r *NodeReconciler) requestEarlyListing(ctx context.Context, s *machineScope) error {
	nodes, err := r.nodes(ctx, s)
	if errors.Is(err, clustercache.ErrClusterNotConnected) {
		return nil // the account is listed soon in any case
	}
	if err != nil {
		return err
	}
	linked, err := linkedNodes(ctx, s, nodes)
	if len(linked) == 1 {
		if issue, err := r.checkNodeName(ctx, s, &linked[0]); issue.reason != "" || err != nil {
			return err // it is reported when the VM runs
		}
		r.Handover.reportLink(s.DroverMachine, nodeLink{joined: true})
	}
	if len(linked) > 0 && s.account != nil {
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
func (r *NodeReconciler) findNode(ctx context.Context, s *machineScope) (joined bool, issue nodeIssue, again time.Duration, err error) {
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
		if issue, err = r.checkNodeName(ctx, s, &linked[0]); issue.reason != "" || err != nil {
			return false, issue, jitter(deletionRecheck), err
		}
		issue, again, err = r.diagnoseNode(ctx, s, true)
		return true, issue, again, err
	}
	return false, duplicateNodes("Nodes %q and %q both have provider ID %s: delete the one that does not belong to this machine",
		linked[0].Name, linked[1].Name, s.Spec.ProviderID), 0, nil
}

func duplicateNodes(format string, args ...any) nodeIssue {
	return nodeIssue{infrav1.DuplicateNodesReason, fmt.Sprintf(format, args...)}
}

// setProviderID sets the machine's provider ID on the one Node without one that is the machine's.
// Its results are those of findNode.
func (r *NodeReconciler) setProviderID(ctx context.Context, s *machineScope,
	nodes client.Client) (joined bool, issue nodeIssue, again time.Duration, err error) {
	if issue, err = r.checkProviderID(ctx, s, nodes); issue.reason != "" || err != nil {
		return false, issue, jitter(deletionRecheck), err
	}
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

// nodeWithoutProviderID returns the one Node that has no provider ID and is the machine's, or nil
// if there is none. It never returns a Node with the name of another machine. Two clouds may give
// the same host name or private address to two machines of one cluster. Then they identify no Node,
// and the kubelet has to set its provider ID.
func (r *NodeReconciler) nodeWithoutProviderID(ctx context.Context, s *machineScope, nodes client.Client) (*corev1.Node, nodeIssue, error) {
	candidates := &corev1.NodeList{}
	if err := nodes.List(ctx, candidates, client.MatchingFields{nodeByMissingID: "true"}); err != nil {
		return nil, nodeIssue{}, fmt.Errorf("listing the Nodes without provider ID: %w", err)
	}
	match := slices.DeleteFunc(candidates.Items, func(n corev1.Node) bool { return !isNodeOf(&n, s) })
	switch len(match) {
	case 0:
		return nil, nodeIssue{}, nil
	case 1:
	default:
		return nil, duplicateNodes("Nodes %q and %q both have a name and an address of this VM: delete the one that does not belong to this machine",
			match[0].Name, match[1].Name), nil
	}
	node := &match[0]
	other, err := r.otherMachineNamed(ctx, s, node.Name)
	if err != nil {
		return nil, nodeIssue{}, err
	}
	if other == "" && node.Name != naming.NodeName(machineName(s)) {
		other, err = r.otherMachineAt(ctx, s, sharedIP(node, s.DroverMachine))
	}
	if err != nil || other == "" {
		return node, nodeIssue{}, err
	}
	return nil, duplicateNodes("Node %q may belong to this machine or to %s, which has the same name or address: start this machine's kubelet with --provider-id=%s",
		node.Name, other, s.Spec.ProviderID), nil
}

// otherMachineAt returns another machine of the cluster that has the address, or "".
func (r *NodeReconciler) otherMachineAt(ctx context.Context, s *machineScope, address string) (string, error) {
	if address == "" {
		return "", nil
	}
	same := &infrav1.DroverMachineList{}
	err := r.Client.List(ctx, same, client.InNamespace(s.Namespace), client.MatchingFields{machineByAddress: address},
		client.MatchingLabels{clusterv1.ClusterNameLabel: s.cluster.Name})
	if err != nil {
		return "", fmt.Errorf("listing the machines at %s: %w", address, err)
	}
	if i := slices.IndexFunc(same.Items, func(m infrav1.DroverMachine) bool {
		return m.Name != s.Name && m.Status.InstanceState != infrav1.InstanceStateGone // its address may be another VM's now
	}); i >= 0 {
		return fmt.Sprintf("DroverMachine %q", same.Items[i].Name), nil
	}
	return "", nil
}

// sharedIP returns an IP address of the Node that the cloud gave to the VM, or "".
func sharedIP(node *corev1.Node, machine *infrav1.DroverMachine) string {
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
