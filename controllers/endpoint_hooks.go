// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/internal/record"
)

// hookTimeout is how long a Machine that is being deleted is kept while it is a target. After
// that, the load balancer's health check has to do.
const hookTimeout = 2 * time.Minute

// addHooks sets the hook on the Machines that are about to become targets.
func (r *EndpointReconciler) addHooks(ctx context.Context, machines []target, addresses []string) error {
	for i := range machines {
		t := &machines[i]
		if t.isDeleted() || !slices.Contains(addresses, t.address) || metav1.HasAnnotation(t.machine.ObjectMeta, infrav1.EndpointHook) {
			continue
		}
		before := t.machine.DeepCopy()
		metav1.SetMetaDataAnnotation(&t.machine.ObjectMeta, infrav1.EndpointHook, "")
		if err := r.Client.Patch(ctx, t.machine, client.MergeFrom(before)); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("setting the hook of Machine %q: %w", t.machine.Name, err)
		}
		r.recordHook("Set the hook", t.machine)
	}
	return nil
}

// removeHooks removes the hook of the Machines for which may returns true.
func (r *EndpointReconciler) removeHooks(ctx context.Context, machines []target, may func(*target) bool) error {
	for i := range machines {
		if !may(&machines[i]) {
			continue
		}
		if err := r.removeHook(ctx, machines[i].machine); err != nil {
			return err
		}
	}
	return nil
}

func (r *EndpointReconciler) removeHook(ctx context.Context, machine *clusterv1.Machine) error {
	if !metav1.HasAnnotation(machine.ObjectMeta, infrav1.EndpointHook) {
		return nil
	}
	before := machine.DeepCopy()
	delete(machine.Annotations, infrav1.EndpointHook)
	if err := r.Client.Patch(ctx, machine, client.MergeFrom(before)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("removing the hook of Machine %q: %w", machine.Name, err)
	}
	r.recordHook("Removed the hook", machine)
	return nil
}

func (r *EndpointReconciler) recordHook(what string, m *clusterv1.Machine) {
	r.Log.Info(what, record.Cluster, record.Key(m.Namespace, m.Spec.ClusterName), record.Machine,
		record.Key(m.Namespace, m.Spec.InfrastructureRef.Name),
		record.ProviderID, m.Spec.ProviderID, record.Hook, infrav1.EndpointHook)
}

// removeExpiredHooks removes the hooks of the Machines that have waited long enough for a load
// balancer that can't be changed, or for another target to answer, and returns when the next one
// will have.
func (r *EndpointReconciler) removeExpiredHooks(ctx context.Context, machines []target) (result reconcile.Result, err error) {
	isLate := func(t *target) bool { return time.Since(t.machine.DeletionTimestamp.Time) >= hookTimeout }
	for i := range machines {
		t := &machines[i]
		if !t.isDeleted() || !t.mayBeTarget() || !metav1.HasAnnotation(t.machine.ObjectMeta, infrav1.EndpointHook) {
			continue
		}
		if !isLate(t) {
			result = minRequeue(reconcile.Result{RequeueAfter: hookTimeout - time.Since(t.machine.DeletionTimestamp.Time)}, result)
			continue
		}
		r.Recorder.Eventf(t.machine, nil, corev1.EventTypeWarning, "StillTarget", "Delete",
			"The machine still gets connections after %s, because the load balancer can't be changed or no other machine answers. It is deleted now",
			hookTimeout)
	}
	return result, r.removeHooks(ctx, machines, func(t *target) bool { return t.isDeleted() && (!t.mayBeTarget() || isLate(t)) })
}

// handOver leaves a DroverCluster to the controller that manages it from now on. Only a finalizer
// and hooks from before may be ours.
func (r *EndpointReconciler) handOver(ctx context.Context, infra *infrav1.DroverCluster) error {
	if !controllerutil.ContainsFinalizer(infra, infrav1.EndpointFinalizer) {
		return nil
	}
	machines, err := r.controlPlane(ctx, infra.Namespace, infra.Labels[clusterv1.ClusterNameLabel])
	if err != nil {
		return err
	}
	for i := range machines {
		if err := r.removeHook(ctx, &machines[i]); err != nil {
			return err
		}
	}
	return releaseCluster(ctx, r.Client, infra, infrav1.EndpointFinalizer)
}

// releaseMachines removes the hooks that a DroverCluster has left, whose finalizer somebody
// removed.
func (r *EndpointReconciler) releaseMachines(ctx context.Context, gone client.ObjectKey) error {
	clusters := &clusterv1.ClusterList{}
	if err := r.Client.List(ctx, clusters, client.InNamespace(gone.Namespace)); err != nil {
		return fmt.Errorf("listing the Clusters: %w", err)
	}
	for i := range clusters.Items {
		cluster := &clusters.Items[i]
		ref := cluster.Spec.InfrastructureRef
		if ref.GroupKind() != infrav1.DroverClusterKind || ref.Name != gone.Name || annotations.IsPaused(cluster, cluster) {
			continue // a Cluster that moves is paused
		}
		machines, err := r.controlPlane(ctx, cluster.Namespace, cluster.Name)
		if err != nil {
			return err
		}
		for i := range machines {
			if err := r.removeHook(ctx, &machines[i]); err != nil {
				return err
			}
		}
	}
	return nil
}
