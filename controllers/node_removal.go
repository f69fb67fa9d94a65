// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/drover-io/drover/internal/naming"
)

// nodeRetry is how soon work on the Node of a machine under deletion is retried.
const nodeRetry = 5 * time.Second

// adopt sets the provider ID of a VM that is about to be deleted on its Node, if the Node has none.
func (r *NodeReconciler) adopt(ctx context.Context, s *machineScope, task nodeTask) error {
	vm := *s
	vm.DroverMachine = s.DeepCopy()
	vm.Spec.ProviderID, vm.Status.Addresses = task.providerID, task.addresses
	nodes, err := r.nodes(ctx, s)
	if err != nil {
		return err
	}
	node, _, err := r.nodeWithoutProviderID(ctx, &vm, nodes)
	if err != nil || node == nil {
		return err
	}
	return patchProviderID(ctx, nodes, node, task.providerID)
}

// removeDeleted deletes the Node of a VM that was deleted.
func (r *NodeReconciler) removeDeleted(ctx context.Context, s *machineScope) error {
	own, nodes, err := r.ownNodes(ctx, s)
	if err != nil {
		return err
	}
	return r.deleteNodes(ctx, s, nodes, own)
}

// removeGone deletes the Node of a VM that is gone for good, as a cloud controller manager does.
// Its pods are moved at once, and Cluster API sees that the Machine has lost its Node, so that a
// MachineHealthCheck can replace it.
func (r *NodeReconciler) removeGone(ctx context.Context, s *machineScope, task nodeTask) (reconcile.Result, error) {
	own, nodes, err := r.ownNodes(ctx, s)
	if errors.Is(err, clustercache.ErrClusterNotConnected) {
		return reconcile.Result{RequeueAfter: jitter(time.Minute)}, nil
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	if len(own) > 0 {
		machines := listMachines(ctx, r.Client, nil, client.InNamespace(s.Namespace),
			client.MatchingLabels{clusterv1.ClusterNameLabel: s.cluster.Name}, client.UnsafeDisableDeepCopy)
		if wait := r.removals.after(client.ObjectKeyFromObject(s.cluster), len(machines)); wait > 0 {
			r.Handover.report(s.DroverMachine, task, nodeTaskResult{held: true})
			return reconcile.Result{RequeueAfter: jitter(max(wait, heldNodeRetry))}, nil // all held machines retry, and only one gets the next turn
		}
		if err := r.deleteNodes(ctx, s, nodes, own); err != nil {
			return reconcile.Result{}, err
		}
	}
	r.Handover.report(s.DroverMachine, task, nodeTaskResult{done: true})
	return reconcile.Result{}, nil
}

// ownNodes returns the Nodes that carry the machine's provider ID, and the Node that has its name
// and no provider ID.
func (r *NodeReconciler) ownNodes(ctx context.Context, s *machineScope) ([]corev1.Node, client.Client, error) {
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

func (r *NodeReconciler) deleteNodes(ctx context.Context, s *machineScope, nodes client.Client, own []corev1.Node) error {
	for i := range own {
		node := &own[i]
		err := nodes.Delete(ctx, node, client.Preconditions{UID: &node.UID})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("deleting Node %q, whose VM is gone: %w", node.Name, err)
		}
		r.Recorder.Eventf(s.DroverMachine, nil, corev1.EventTypeNormal, "NodeDeleted", "Observe", "Deleted Node %q, whose VM is gone", node.Name)
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

// heldNodeRetry is the minimum time before the removal of a held Node is retried.
const heldNodeRetry = 15 * time.Second

// nodeRemovals limits how fast the Nodes of gone VMs are removed from a cluster. When many VMs
// vanish at once, the cause may not be their end, and a Node that was not removed is unharmed.
// max(3, 10 %) of the cluster's machines per minute is more than clouds lose on an ordinary day. It
// leaves people up to about ten minutes to notice the rest. It does not limit deletions by users.
// The zero value is ready for use.
type nodeRemovals struct {
	mu       sync.Mutex
	limiters map[client.ObjectKey]*rate.Limiter
}

// after returns how long to wait before a Node of a cluster with so many machines may be removed. 0
// means now, and counts the removal.
func (n *nodeRemovals) after(cluster client.ObjectKey, machines int) time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	for key, limiter := range n.limiters {
		if key != cluster && limiter.Tokens() >= float64(limiter.Burst()) {
			delete(n.limiters, key) // no recent removals, so a new limiter is equivalent
		}
	}
	many := max(3, machines/10)
	limiter := n.limiters[cluster]
	if limiter == nil {
		limiter = rate.NewLimiter(rate.Every(time.Minute/time.Duration(many)), many)
		if n.limiters == nil {
			n.limiters = map[client.ObjectKey]*rate.Limiter{}
		}
		n.limiters[cluster] = limiter
	}
	limiter.SetLimit(rate.Every(time.Minute / time.Duration(many)))
	limiter.SetBurst(many)
	turn := limiter.Reserve()
	wait := turn.Delay()
	if wait > 0 {
		turn.Cancel()
	}
	return wait
}
