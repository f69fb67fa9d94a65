// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	toolscache "k8s.io/client-go/tools/cache"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	clusterctlv1 "sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/internal/predicates"
)

// MachineTimes measures how long the parts of machines' lives take. It only observes updates and
// deletions: each part ends with one, and the objects record its beginning. So it keeps no state,
// and a part that ends while no manager runs is not counted. It runs only in the leader, so that
// nothing is counted twice.
type MachineTimes struct {
	Client           client.Reader
	Clouds           []cloud.Cloud
	WatchFilterValue string

	create, join, drain, delete *prometheus.HistogramVec
	informers                   ctrl.Manager
}

// lifeBuckets are seconds, from a VM on a fast cloud to a drain that a PodDisruptionBudget delays.
var lifeBuckets = []float64{1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 7200}

// NewMachineTimes returns a MachineTimes and registers its metrics, which are accurate to a second,
// as Kubernetes' timestamps are.
func NewMachineTimes(reader client.Reader, clouds []cloud.Cloud, watchFilter string, registry prometheus.Registerer) *MachineTimes {
	histogram := func(name, help string) *prometheus.HistogramVec {
		h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: lifeBuckets}, []string{"cloud"})
		registry.MustRegister(h)
		return h
	}
	return &MachineTimes{
		Client: reader, Clouds: clouds, WatchFilterValue: watchFilter,
		create: histogram("drover_machine_create_seconds", "Time from the creation of a CloudMachine until its VM ran."),
		join:   histogram("drover_machine_join_seconds", "Time from a VM's start until Cluster API knew its Node."),
		drain: histogram("drover_machine_drain_seconds",
			"Time from the beginning of a Node's drain until nothing held its VM any more: eviction, detachment of volumes and pre-terminate hooks."),
		delete: histogram("drover_machine_delete_seconds", "Time from the deletion of a CloudMachine until nothing was left of its VM."),
	}
}

// SetupWithManager adds t to the manager.
func (t *MachineTimes) SetupWithManager(mgr ctrl.Manager) error {
	t.informers = mgr
	return mgr.Add(t)
}

// Start implements manager.Runnable. It starts to observe when this manager has become the leader.
func (t *MachineTimes) Start(ctx context.Context) error {
	machines, err := t.informers.GetCache().GetInformer(ctx, &infrav1.CloudMachine{})
	if err != nil {
		return fmt.Errorf("watching CloudMachines for their times: %w", err)
	}
	owners, err := t.informers.GetCache().GetInformer(ctx, &clusterv1.Machine{})
	if err != nil {
		return fmt.Errorf("watching Machines for their times: %w", err)
	}
	if _, err := machines.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		UpdateFunc: func(before, after any) {
			t.machineChanged(before.(*infrav1.CloudMachine), after.(*infrav1.CloudMachine))
		},
		DeleteFunc: func(o any) {
			if m, ok := o.(*infrav1.CloudMachine); ok { // otherwise the deletion event was missed, and with it the time
				t.machineGone(m)
			}
		},
	}); err != nil {
		return fmt.Errorf("watching CloudMachines for their times: %w", err)
	}
	_, err = owners.AddEventHandler(toolscache.ResourceEventHandlerFuncs{UpdateFunc: func(before, after any) {
		t.ownerChanged(ctx, before.(*clusterv1.Machine), after.(*clusterv1.Machine))
	}})
	if err != nil {
		return fmt.Errorf("watching Machines for their times: %w", err)
	}
	<-ctx.Done()
	return nil
}

// machineChanged measures a create that has ended.
func (t *MachineTimes) machineChanged(before, after *infrav1.CloudMachine) {
	if !isProvisioned(before) && isProvisioned(after) && isCreatedHere(after) {
		t.observe(t.create, after, time.Since(after.CreationTimestamp.Time))
	}
}

// machineGone measures a deletion, unless the machine had no token, or was moved or abandoned.
func (t *MachineTimes) machineGone(m *infrav1.CloudMachine) {
	_, moved := m.Annotations[clusterctlv1.DeleteForMoveAnnotation]
	if m.DeletionTimestamp.IsZero() || m.Spec.Creation.Token == "" || moved || m.Annotations[infrav1.AbandonAnnotation] == m.Name {
		return
	}
	t.observe(t.delete, m, time.Since(m.DeletionTimestamp.Time))
}

// ownerChanged measures a join when a Machine's Node becomes known. When nothing holds the VM any
// more, it measures the drain and everything that follows the drain.
func (t *MachineTimes) ownerChanged(ctx context.Context, before, after *clusterv1.Machine) {
	joined := !before.Status.NodeRef.IsDefined() && after.Status.NodeRef.IsDefined()
	drained := !isVMDeletionRequested(before) && isVMDeletionRequested(after) && !after.Status.Deletion.NodeDrainStartTime.IsZero()
	if !joined && !drained || after.Spec.InfrastructureRef.GroupKind() != infrav1.GroupVersion.WithKind("CloudMachine").GroupKind() {
		return
	}
	m := &infrav1.CloudMachine{}
	if err := t.Client.Get(ctx, client.ObjectKey{Namespace: after.Namespace, Name: after.Spec.InfrastructureRef.Name}, m); err != nil {
		return // the CloudMachine was deleted in the meantime
	}
	if running := runningSince(m); joined && !running.IsZero() && isCreatedHere(m) {
		t.observe(t.join, m, time.Since(running))
	}
	if drained {
		t.observe(t.drain, m, time.Since(after.Status.Deletion.NodeDrainStartTime.Time))
	}
}

// isVMDeletionRequested reports whether Cluster API has requested the deletion of a Machine's VM,
// which implies that Status.Deletion is set.
func isVMDeletionRequested(m *clusterv1.Machine) bool {
	return m.Status.Deletion != nil &&
		conditions.GetReason(m, clusterv1.MachineDeletingCondition) == clusterv1.MachineDeletingWaitingForInfrastructureDeletionReason
}

// isCreatedHere reports whether a machine was made under this object. An object that came by a move
// or from a backup has its token from the start, and its times are meaningless.
func isCreatedHere(m *infrav1.CloudMachine) bool { return m.Generation > 1 }

// observe records a duration for the machine's cloud. Negative ones, from clock skew, count as 0.
func (t *MachineTimes) observe(h *prometheus.HistogramVec, m *infrav1.CloudMachine, took time.Duration) {
	if !predicates.Watched(m, t.WatchFilterValue) {
		return
	}
	for _, row := range t.Clouds {
		if row.Union.InMachine(&m.Spec.CloudMachineFields) {
			h.WithLabelValues(row.Name).Observe(max(took, 0).Seconds())
		}
	}
}
