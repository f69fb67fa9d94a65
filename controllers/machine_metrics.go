// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	toolscache "k8s.io/client-go/tools/cache"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	clusterctlv1 "sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/cluster-api/util/labels/format"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/internal/predicates"
)

// MachineMetrics measures how long the parts of machines' lives take, and counts what goes wrong in
// them. It only observes updates and deletions: each part ends with one, and the objects record its
// beginning. So it keeps no state, and a part that ends while no manager runs is not counted. It
// runs only in the leader, so that nothing is counted twice.
type MachineMetrics struct {
	Client           client.Reader
	Clouds           []cloud.Cloud
	WatchFilterValue string

	create, join, drain, delete               *prometheus.HistogramVec
	joinFailures, interruptions, remediations *prometheus.CounterVec
	informers                                 ctrl.Manager
	series                                    machineSeries
	ending                                    sync.Map // client.ObjectKey of a pool whose series may end soon
}

// machineLabels are bounded by machineSeries. The series of a pool end soon after its last machine.
var machineLabels = []string{"cloud", "namespace", "pool", "instance_type", "zone"}

// lifeBuckets are seconds, from a VM on a fast cloud to a drain that a PodDisruptionBudget delays.
var lifeBuckets = []float64{1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 7200}

// NewMachineMetrics returns a MachineMetrics and registers its metrics. Times are accurate to a
// second, as Kubernetes' timestamps are.
func NewMachineMetrics(reader client.Reader, clouds []cloud.Cloud, watchFilter string, registry prometheus.Registerer) *MachineMetrics {
	histogram := func(name, help string) *prometheus.HistogramVec {
		h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: lifeBuckets}, machineLabels)
		registry.MustRegister(h)
		return h
	}
	counter := func(name, help string, more ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, slices.Concat(machineLabels, more))
		registry.MustRegister(c)
		return c
	}
	return &MachineMetrics{
		Client: reader, Clouds: clouds, WatchFilterValue: watchFilter,
		create: histogram("drover_machine_create_seconds", "Time from the creation of a DroverMachine until its VM ran."),
		join:   histogram("drover_machine_join_seconds", "Time from a VM's start until Cluster API knew its Node."),
		drain: histogram("drover_machine_drain_seconds",
			"Time from the beginning of a Node's drain until nothing held its VM any more: eviction, detachment of volumes and pre-terminate hooks."),
		delete: histogram("drover_machine_delete_seconds", "Time from the deletion of a DroverMachine until nothing was left of its VM."),
		joinFailures: counter("drover_machine_join_failures_total",
			"Machines whose VM ran and did not become a ready Node in time, by the reason in the condition NodeJoined.", "reason"),
		interruptions: counter("drover_machine_interruptions_total",
			"Machines for which the cloud announced maintenance or the end of the VM."),
		remediations: counter("drover_machine_remediations_total",
			"Machines that were deleted because a MachineHealthCheck found them unhealthy, by its reason.", "reason"),
	}
}

// SetupWithManager adds t to the manager.
func (t *MachineMetrics) SetupWithManager(mgr ctrl.Manager) error {
	t.informers = mgr
	return mgr.Add(t)
}

// Start implements manager.Runnable. It starts to observe when this manager has become the leader.
func (t *MachineMetrics) Start(ctx context.Context) error {
	machines, err := t.informers.GetCache().GetInformer(ctx, &infrav1.DroverMachine{})
	if err != nil {
		return fmt.Errorf("watching DroverMachines for their metrics: %w", err)
	}
	owners, err := t.informers.GetCache().GetInformer(ctx, &clusterv1.Machine{})
	if err != nil {
		return fmt.Errorf("watching Machines for their metrics: %w", err)
	}
	if _, err := machines.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		UpdateFunc: func(before, after any) {
			t.machineChanged(before.(*infrav1.DroverMachine), after.(*infrav1.DroverMachine))
		},
		DeleteFunc: func(o any) {
			if m, ok := o.(*infrav1.DroverMachine); ok { // otherwise the deletion event was missed, and with it the time
				t.machineGone(m)
			} else if last, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
				o = last.Obj
			}
			if m, ok := o.(*infrav1.DroverMachine); ok {
				t.endLater(ctx, client.ObjectKey{Namespace: m.Namespace, Name: poolLabel(m)})
			}
		},
	}); err != nil {
		return fmt.Errorf("watching DroverMachines for their metrics: %w", err)
	}
	if _, err := owners.AddEventHandler(toolscache.ResourceEventHandlerFuncs{UpdateFunc: func(before, after any) {
		t.ownerChanged(ctx, before.(*clusterv1.Machine), after.(*clusterv1.Machine))
	}}); err != nil {
		return fmt.Errorf("watching Machines for their metrics: %w", err)
	}
	<-ctx.Done()
	return nil
}

// machineChanged measures a create that has ended, and counts a join that failed and an
// announcement of the cloud when they become known. A reason that changes while the condition stays
// False is the same failure.
func (t *MachineMetrics) machineChanged(before, after *infrav1.DroverMachine) {
	if !isProvisioned(before) && isProvisioned(after) && isCreatedHere(after) {
		t.observe(t.create, after, time.Since(after.CreationTimestamp.Time))
	}
	if turnedFalse(before, after, infrav1.MachineNodeJoinedCondition) {
		t.count(t.joinFailures, after, conditions.GetReason(after, infrav1.MachineNodeJoinedCondition))
	}
	const healthy = infrav1.MachineInstanceHealthyCondition
	if turnedFalse(before, after, healthy) && conditions.GetReason(after, healthy) == infrav1.CloudNoticeReason {
		t.count(t.interruptions, after)
	}
}

// turnedFalse reports whether a condition that was known before has become False. After a move or a
// restore, the object's first status is nothing new.
func turnedFalse(before, after *infrav1.DroverMachine, condition string) bool {
	return conditions.Has(before, condition) && !conditions.IsFalse(before, condition) && conditions.IsFalse(after, condition)
}

// machineGone measures a deletion, unless the machine had no token, or was moved or abandoned.
func (t *MachineMetrics) machineGone(m *infrav1.DroverMachine) {
	_, moved := m.Annotations[clusterctlv1.DeleteForMoveAnnotation]
	if m.DeletionTimestamp.IsZero() || m.Spec.Creation.Token == "" || moved || m.Annotations[infrav1.AbandonAnnotation] == m.Name {
		return
	}
	t.observe(t.delete, m, time.Since(m.DeletionTimestamp.Time))
}

// ownerChanged measures a join when a Machine's Node becomes known. When nothing holds the VM any
// more, it measures the drain and everything that follows the drain. It counts a remediation when
// the Machine is deleted.
func (t *MachineMetrics) ownerChanged(ctx context.Context, before, after *clusterv1.Machine) {
	joined := !before.Status.NodeRef.IsDefined() && after.Status.NodeRef.IsDefined()
	drained := !isVMDeletionRequested(before) && isVMDeletionRequested(after) && !after.Status.Deletion.NodeDrainStartTime.IsZero()
	remediated := before.DeletionTimestamp.IsZero() && !after.DeletionTimestamp.IsZero() && isRemediated(after)
	if !joined && !drained && !remediated || after.Spec.InfrastructureRef.GroupKind() != infrav1.DroverMachineKind {
		return
	}
	m := &infrav1.DroverMachine{}
	if err := t.Client.Get(ctx, client.ObjectKey{Namespace: after.Namespace, Name: after.Spec.InfrastructureRef.Name}, m); err != nil {
		return // the DroverMachine was deleted in the meantime
	}
	if running := runningSince(m); joined && !running.IsZero() && isCreatedHere(m) {
		t.observe(t.join, m, time.Since(running))
	}
	if drained {
		t.observe(t.drain, m, time.Since(after.Status.Deletion.NodeDrainStartTime.Time))
	}
	if remediated {
		t.count(t.remediations, m, conditions.GetReason(after, clusterv1.MachineHealthCheckSucceededCondition))
	}
}

// seriesStay is how long the series of a pool outlive it, so that Prometheus reads the last values:
// the deletion of its last machine is the end of the pool, too.
const seriesStay = time.Hour

// endLater ends the series of a pool after seriesStay, if it has no machine then.
func (t *MachineMetrics) endLater(ctx context.Context, pool client.ObjectKey) {
	if _, soon := t.ending.LoadOrStore(pool, true); soon || !t.series.knows(pool.Namespace, pool.Name) {
		if !soon {
			t.ending.Delete(pool)
		}
		return
	}
	time.AfterFunc(seriesStay, func() {
		t.ending.Delete(pool)
		machines := &infrav1.DroverMachineList{}
		if err := t.Client.List(ctx, machines, client.InNamespace(pool.Namespace), client.UnsafeDisableDeepCopy); err != nil {
			return // the manager stops
		}
		if !slices.ContainsFunc(machines.Items, func(m infrav1.DroverMachine) bool { return poolLabel(&m) == pool.Name }) {
			t.endSeries(pool)
		}
	})
}

// endSeries removes the series of a pool without machines.
func (t *MachineMetrics) endSeries(pool client.ObjectKey) {
	t.series.forget(pool.Namespace, pool.Name)
	series := prometheus.Labels{"namespace": pool.Namespace, "pool": pool.Name}
	for _, h := range []*prometheus.HistogramVec{t.create, t.join, t.drain, t.delete} {
		h.DeletePartialMatch(series)
	}
	for _, c := range []*prometheus.CounterVec{t.joinFailures, t.interruptions, t.remediations} {
		c.DeletePartialMatch(series)
	}
}

// isRemediated reports whether a MachineHealthCheck asked for the Machine's replacement.
func isRemediated(m *clusterv1.Machine) bool {
	return conditions.IsFalse(m, clusterv1.MachineHealthCheckSucceededCondition) &&
		conditions.IsFalse(m, clusterv1.MachineOwnerRemediatedCondition)
}

// isVMDeletionRequested reports whether Cluster API has requested the deletion of a Machine's VM,
// which implies that Status.Deletion is set.
func isVMDeletionRequested(m *clusterv1.Machine) bool {
	return m.Status.Deletion != nil &&
		conditions.GetReason(m, clusterv1.MachineDeletingCondition) == clusterv1.MachineDeletingWaitingForInfrastructureDeletionReason
}

// isCreatedHere reports whether a machine was made under this object. An object that came by a move
// or from a backup has its token from the start, and its times are meaningless.
func isCreatedHere(m *infrav1.DroverMachine) bool { return m.Generation > 1 }

// observe records a duration. Negative ones, from clock skew, count as 0.
func (t *MachineMetrics) observe(h *prometheus.HistogramVec, m *infrav1.DroverMachine, took time.Duration) {
	if values := t.labels(m); values != nil {
		h.WithLabelValues(values...).Observe(max(took, 0).Seconds())
	}
}

// count adds one. reason is the value of the label that some counters have beside machineLabels.
func (t *MachineMetrics) count(c *prometheus.CounterVec, m *infrav1.DroverMachine, reason ...string) {
	if values := t.labels(m); values != nil {
		var more []string
		for _, r := range reason {
			more = append(more, t.series.boundReason(m.Namespace, r))
		}
		c.WithLabelValues(slices.Concat(values, more)...).Inc()
	}
}

// labels returns the values of machineLabels; nil if the machine is another manager's, of no known
// cloud, or never had a VM.
func (t *MachineMetrics) labels(m *infrav1.DroverMachine) []string {
	if !predicates.Watched(m, t.WatchFilterValue) || (m.Spec.ProviderID == "" && !isProvisioned(m)) {
		return nil
	}
	for _, row := range t.Clouds {
		if row.Union.InMachine(&m.Spec.DroverMachineFields) {
			c := t.series.bound(m.Namespace, combination{row.Name, t.pool(m), instanceType(&m.Spec.DroverMachineFields), m.Status.FailureDomain})
			return []string{c.cloud, m.Namespace, c.pool, c.instanceType, c.zone}
		}
	}
	return nil
}

func poolLabel(m *infrav1.DroverMachine) string {
	return cmp.Or(m.Labels[clusterv1.MachineDeploymentNameLabel], m.Labels[clusterv1.MachineControlPlaneNameLabel])
}

// pool returns the name of the machine's MachineDeployment or control plane, or otherValue if its
// label names none that exists, or has existed while its series last.
func (t *MachineMetrics) pool(m *infrav1.DroverMachine) string {
	pool := poolLabel(m)
	if pool == "" || t.series.knows(m.Namespace, pool) {
		return pool
	}
	ctx := context.Background() // read from the cache
	if name := m.Labels[clusterv1.MachineDeploymentNameLabel]; name != "" {
		if t.Client.Get(ctx, client.ObjectKey{Namespace: m.Namespace, Name: name}, &clusterv1.MachineDeployment{}) == nil {
			return pool
		}
		return otherValue
	}
	cluster := &clusterv1.Cluster{}
	if t.Client.Get(ctx, client.ObjectKey{Namespace: m.Namespace, Name: m.Labels[clusterv1.ClusterNameLabel]}, cluster) == nil &&
		format.MustEqualValue(cluster.Spec.ControlPlaneRef.Name, pool) {
		return pool
	}
	return otherValue
}

// instanceType returns the name of the machine's instance type, in whichever cloud's fields; "" if
// they have none. It reads them as the column "Type" of kubectl does.
func instanceType(fields *infrav1.DroverMachineFields) string {
	all, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&fields.Cloud)
	if err != nil {
		return ""
	}
	for _, member := range all {
		of, ok := member.(map[string]any)
		for _, name := range []string{"instanceType", "vmSize", "flavor", "instancetype"} {
			if !ok {
				break
			}
			switch value := of[name].(type) {
			case string:
				return value
			case map[string]any:
				name, _, _ := unstructured.NestedString(value, "name")
				return name
			}
		}
	}
	return ""
}
