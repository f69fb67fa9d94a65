// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/drover-io/drover/cloud"
)

// interruptionCheck is how soon a machine that waits to be replaced is checked again. The check
// reads only the cache.
const interruptionCheck = 15 * time.Second

// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=machinesets;machinedeployments,verbs=get;list;watch

// interruption deletes the Machine of a VM that the cloud is about to reclaim, so that Cluster API
// drains the Node and creates a replacement while the VM still runs.
//
// It deletes only a Machine whose MachineSet creates a replacement. As with all deletions that no
// user requested, it deletes nothing that is paused, and nothing while the workload cluster's API
// server does not answer. An announcement that leaves time, such as a rebalance recommendation or
// the drain of a KubeVirt node, comes for many VMs at once. For such announcements it replaces no
// more Machines of a pool at the same time than the pool's own limits allow.
func (r *DroverMachineReconciler) interruption(ctx context.Context, s *machineScope) (*reconcile.Result, error) {
	switch {
	case s.instance.Reclaim == "", s.isReplaced():
		return nil, nil
	case s.unreachable != "", s.cluster == nil, annotations.IsPaused(s.cluster, s.owner):
		return &reconcile.Result{RequeueAfter: jitter(interruptionCheck)}, nil // the end of an outage or a pause wakes no machine with a VM
	}
	p, err := r.pool(ctx, s.owner)
	if err != nil {
		return nil, err
	}
	if p == nil || !p.createsReplacements() || !r.replacements.begin(p, s.owner, s.instance.Reclaim == cloud.ReclaimCertain) {
		return &reconcile.Result{RequeueAfter: jitter(interruptionCheck)}, nil
	}
	// Delete only the version that was checked: a user may have paused the Machine since.
	err = r.Client.Delete(ctx, s.owner, client.Preconditions{UID: &s.owner.UID, ResourceVersion: &s.owner.ResourceVersion})
	if err != nil {
		r.replacements.cancel(p, s.owner)
	}
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("deleting the Machine whose VM the cloud is about to reclaim: %w", err)
	}
	r.recordReplacement(s)
	return nil, nil // the deletion comes as an event
}

// isReplaced reports whether nothing is left to do for a VM that the cloud is about to reclaim: its
// Machine is being deleted, or nothing would replace it.
func (s *machineScope) isReplaced() bool {
	return s.owner == nil || !s.owner.DeletionTimestamp.IsZero() || machineSetOf(s.owner) == nil
}

// acknowledge tells the account that the object records what the cloud has announced about the VM.
// Until then, the cloud repeats the announcement. That a VM will be reclaimed is on record once its
// Machine is being deleted.
func (s *machineScope) acknowledge() {
	if i := s.instance; i != nil && (i.Notice != "" || i.Reclaim != "") && (i.Reclaim == "" || s.isReplaced()) {
		s.account.AckEvent(s.Spec.Creation.Token, i)
	}
}

// machineSetOf returns a reference to the MachineSet that replaces a deleted Machine, or nil.
func machineSetOf(machine *clusterv1.Machine) *metav1.OwnerReference {
	return controllerOfKind(machine, "MachineSet")
}

// controllerOfKind returns the controlling owner if it is of that Cluster API kind, else nil.
func controllerOfKind(o metav1.Object, kind string) *metav1.OwnerReference {
	owner := metav1.GetControllerOf(o)
	if owner == nil || schema.FromAPIVersionAndKind(owner.APIVersion,
		owner.Kind).GroupKind() != clusterv1.GroupVersion.WithKind(kind).GroupKind() {
		return nil
	}
	return owner
}

// pool is a MachineSet with its Machines.
type pool struct {
	set *clusterv1.MachineSet
	// deployment is nil if the MachineSet does not belong to a MachineDeployment.
	deployment *clusterv1.MachineDeployment
	machines   []clusterv1.Machine
}

// pool reads the pool of a Machine from the cache; nil if its MachineSet or MachineDeployment no
// longer exists. The Machines are the cache's own: they must not be changed.
func (r *DroverMachineReconciler) pool(ctx context.Context, machine *clusterv1.Machine) (*pool, error) {
	p := &pool{set: &clusterv1.MachineSet{}}
	if err := r.Client.Get(ctx, client.ObjectKey{Namespace: machine.Namespace, Name: machineSetOf(machine).Name}, p.set); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	if owner := controllerOfKind(p.set, "MachineDeployment"); owner != nil {
		p.deployment = &clusterv1.MachineDeployment{}
		if err := r.Client.Get(ctx, client.ObjectKey{Namespace: machine.Namespace, Name: owner.Name}, p.deployment); err != nil {
			return nil, client.IgnoreNotFound(err)
		}
	}
	if !p.createsReplacements() {
		return p, nil // nobody asks for its Machines
	}
	list := &clusterv1.MachineList{}
	if err := r.Client.List(ctx, list, client.InNamespace(machine.Namespace),
		client.MatchingLabels{clusterv1.ClusterNameLabel: machine.Spec.ClusterName}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing the Machines of MachineSet %q: %w", p.set.Name, err)
	}
	for i := range list.Items {
		if metav1.IsControlledBy(&list.Items[i], p.set) {
			p.machines = append(p.machines, list.Items[i])
		}
	}
	return p, nil
}

// createsReplacements reports whether the pool replaces deleted Machines. It does not while Machine
// creation is disabled, or while the pool is paused or being deleted.
func (p *pool) createsReplacements() bool {
	disabled := p.set.Annotations[clusterv1.DisableMachineCreateAnnotation] == "true" // a MachineDeployment also sets "false"
	if disabled || annotations.HasPaused(p.set) || !p.set.DeletionTimestamp.IsZero() {
		return false
	}
	d := p.deployment
	return d == nil || !ptr.Deref(d.Spec.Paused, false) && !annotations.HasPaused(d) && d.DeletionTimestamp.IsZero()
}

// maxUnavailable returns how many Machines of the pool may be missing at once: the limit of its
// remediation, else that of its rollout (at least 1), else 1.
func (p *pool) maxUnavailable() int {
	if p.deployment == nil {
		return 1
	}
	replicas := int(ptr.Deref(p.set.Spec.Replicas, 1))
	if limit := p.deployment.Spec.Remediation.MaxInFlight; limit != nil {
		if n, err := intstr.GetScaledValueFromIntOrPercent(limit, replicas, true); err == nil {
			return n
		}
	}
	if limit := p.deployment.Spec.Rollout.Strategy.RollingUpdate.MaxUnavailable; limit != nil {
		if n, err := intstr.GetScaledValueFromIntOrPercent(limit, replicas, false); err == nil {
			return max(n, 1)
		}
	}
	return 1
}

// replacementMemory is how long a Machine whose replacement has begun counts as missing while the
// cache does not show its deletion. It is many times what a cache lags.
const replacementMemory = 10 * time.Minute

// replacements holds the Machines that this process has begun to replace, by MachineSet. The cache
// shows their deletion a moment later, and until then another worker must not count them as
// available. The zero value is ready for use.
type replacements struct {
	mu    sync.Mutex
	begun map[types.UID]map[types.UID]time.Time // until when
}

// begin reports whether a Machine may be replaced now, and if so counts it as missing.
func (r *replacements) begin(p *pool, machine *clusterv1.Machine, imminent bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forget()
	begun := map[types.UID]time.Time{}
	others := 0 // other Machines that are available
	for i := range p.machines {
		m := &p.machines[i]
		until, known := r.begun[p.set.UID][m.UID]
		switch {
		case !m.DeletionTimestamp.IsZero():
		case known:
			begun[m.UID] = until
		case m.UID != machine.UID && conditions.IsTrue(m, clusterv1.MachineAvailableCondition):
			others++
		}
	}
	missing := int(ptr.Deref(p.set.Spec.Replicas, 1)) - 1 - others
	allowed := imminent || missing < p.maxUnavailable()
	if allowed {
		begun[machine.UID] = time.Now().Add(replacementMemory)
	}
	if r.begun == nil {
		r.begun = map[types.UID]map[types.UID]time.Time{}
	}
	if r.begun[p.set.UID] = begun; len(begun) == 0 {
		delete(r.begun, p.set.UID)
	}
	return allowed
}

// forget drops what is too old, also of MachineSets that no longer exist. The caller must hold the
// lock.
func (r *replacements) forget() {
	now := time.Now()
	maps.DeleteFunc(r.begun, func(_ types.UID, machines map[types.UID]time.Time) bool {
		maps.DeleteFunc(machines, func(_ types.UID, until time.Time) bool { return !now.Before(until) })
		return len(machines) == 0
	})
}

// cancel undoes begin for a Machine that was not deleted.
func (r *replacements) cancel(p *pool, machine *clusterv1.Machine) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.begun[p.set.UID], machine.UID)
}
