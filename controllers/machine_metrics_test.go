// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	clusterctlv1 "sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
	"github.com/drover-io/drover/cloud/registry"
)

// one is a cache that holds one DroverMachine.
type one struct {
	client.Reader
	*infrav1.DroverMachine
}

func (o one) Get(_ context.Context, _ client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	if m, ok := into.(*infrav1.DroverMachine); ok {
		o.DeepCopyInto(m)
	}
	return nil // every other object exists
}

// TestMachineMetrics: each part of a machine's life is measured once, when it ends, each mishap is
// counted once, when it becomes known, and nothing else is. (test/tools/monitoring counts them
// for real machines.)
func TestMachineMetrics(t *testing.T) {
	ago := func(d time.Duration) metav1.Time { return metav1.NewTime(time.Now().Add(-d)) }
	fresh := &infrav1.DroverMachine{}
	fresh.Name, fresh.Generation, fresh.CreationTimestamp, fresh.Spec.Creation.Token = "m", 3, ago(100*time.Second), "token"
	fresh.Namespace, fresh.Labels = "team", map[string]string{clusterv1.MachineDeploymentNameLabel: "pool"}
	fresh.Spec.Cloud.Simulated = &infrav1.SimulatedMachine{InstanceType: "small"}
	fresh.Status.FailureDomain = "sim-1a"
	running := fresh.DeepCopy()
	running.Status.Initialization.Provisioned = ptr.To(true)
	running.Status.Conditions = []metav1.Condition{{Type: clusterv1.ReadyCondition, Status: metav1.ConditionTrue,
		LastTransitionTime: ago(40 * time.Second)}}
	moved := running.DeepCopy()
	moved.Generation = 1
	changed := func(m *infrav1.DroverMachine, change func(*infrav1.DroverMachine)) *infrav1.DroverMachine {
		m = m.DeepCopy()
		change(m)
		return m
	}
	gone := changed(running, func(m *infrav1.DroverMachine) { m.DeletionTimestamp = ptr.To(ago(7 * time.Second)) })

	owner := &clusterv1.Machine{}
	owner.Spec.InfrastructureRef = clusterv1.ContractVersionedObjectReference{APIGroup: infrav1.GroupVersion.Group, Kind: "DroverMachine",
		Name: "m"}
	joined := owner.DeepCopy()
	joined.Status.NodeRef.Name = "m"
	drained := joined.DeepCopy()
	drained.Status.Deletion = &clusterv1.MachineDeletionStatus{NodeDrainStartTime: ago(25 * time.Second)}
	released := drained.DeepCopy()
	released.Status.Conditions = []metav1.Condition{{
		Type: clusterv1.MachineDeletingCondition, Reason: clusterv1.MachineDeletingWaitingForInfrastructureDeletionReason,
	}}
	undrained := released.DeepCopy()
	undrained.Status.Deletion.NodeDrainStartTime = metav1.Time{}
	condition := func(m *infrav1.DroverMachine, condition string, status metav1.ConditionStatus, reason string) *infrav1.DroverMachine {
		return changed(m, func(m *infrav1.DroverMachine) { setCondition(m, condition, status, reason, "") })
	}
	waiting := condition(running, infrav1.MachineNodeJoinedCondition, metav1.ConditionUnknown, infrav1.WaitingForNodeReason)
	late := condition(waiting, infrav1.MachineNodeJoinedCondition, metav1.ConditionFalse, infrav1.NodeMissingReason)
	later := condition(waiting, infrav1.MachineNodeJoinedCondition, metav1.ConditionFalse, infrav1.NodeNotReadyReason)
	well := condition(running, infrav1.MachineInstanceHealthyCondition, metav1.ConditionTrue, infrav1.InstanceHealthyReason)
	ending := condition(well, infrav1.MachineInstanceHealthyCondition, metav1.ConditionFalse, infrav1.CloudNoticeReason)
	stopped := condition(well, infrav1.MachineInstanceHealthyCondition, metav1.ConditionFalse, infrav1.InstanceStoppedReason)
	sick := joined.DeepCopy()
	sick.Status.Conditions = []metav1.Condition{
		{Type: clusterv1.MachineHealthCheckSucceededCondition, Status: metav1.ConditionFalse,
			Reason: clusterv1.MachineHealthCheckNodeDeletedReason},
		{Type: clusterv1.MachineOwnerRemediatedCondition, Status: metav1.ConditionFalse,
			Reason: clusterv1.MachineOwnerRemediatedWaitingForRemediationReason},
	}
	remediated := sick.DeepCopy()
	remediated.DeletionTimestamp = ptr.To(ago(0))
	byHand := joined.DeepCopy()
	byHand.DeletionTimestamp = ptr.To(ago(0))
	other := joined.DeepCopy()
	other.Spec.InfrastructureRef.Kind = "OtherMachine"

	for name, c := range map[string]struct {
		happens func(*MachineMetrics)
		cached  *infrav1.DroverMachine
		metric  string // "" for none
		seconds float64
	}{
		"a VM runs":  {func(t *MachineMetrics) { t.machineChanged(fresh, running) }, nil, "create", 100},
		"it goes on": {func(t *MachineMetrics) { t.machineChanged(running, running) }, nil, "", 0},
		"it was moved here": {func(t *MachineMetrics) {
			t.machineChanged(changed(moved, func(m *infrav1.DroverMachine) { m.Status = infrav1.DroverMachineStatus{} }), moved)
		}, nil, "", 0},
		"a Node is known":    {func(t *MachineMetrics) { t.ownerChanged(context.Background(), owner, joined) }, running, "join", 40},
		"a moved machine's":  {func(t *MachineMetrics) { t.ownerChanged(context.Background(), owner, joined) }, moved, "", 0},
		"another provider's": {func(t *MachineMetrics) { t.ownerChanged(context.Background(), owner, other) }, running, "", 0},
		"a drain begins":     {func(t *MachineMetrics) { t.ownerChanged(context.Background(), joined, drained) }, running, "", 0},
		"a drain has ended":  {func(t *MachineMetrics) { t.ownerChanged(context.Background(), drained, released) }, running, "drain", 25},
		"there was none":     {func(t *MachineMetrics) { t.ownerChanged(context.Background(), joined, undrained) }, running, "", 0},
		"the VM is gone":     {func(t *MachineMetrics) { t.machineGone(gone) }, nil, "delete", 7},
		"it never was": {func(t *MachineMetrics) {
			t.machineGone(changed(gone, func(m *infrav1.DroverMachine) { m.Spec.Creation.Token = "" }))
		}, nil, "", 0},
		"it was moved away": {func(t *MachineMetrics) {
			t.machineGone(changed(gone, func(m *infrav1.DroverMachine) {
				m.Annotations = map[string]string{clusterctlv1.DeleteForMoveAnnotation: ""}
			}))
		}, nil, "", 0},
		"it was abandoned": {func(t *MachineMetrics) {
			t.machineGone(changed(gone, func(m *infrav1.DroverMachine) {
				m.Name = "m"
				m.Annotations = map[string]string{infrav1.AbandonAnnotation: "m"}
			}))
		}, nil, "", 0},
		"it joins late":               {func(t *MachineMetrics) { t.machineChanged(waiting, late) }, nil, "join_failures", 0},
		"it is still late":            {func(t *MachineMetrics) { t.machineChanged(late, later) }, nil, "", 0},
		"it comes late from a backup": {func(t *MachineMetrics) { t.machineChanged(running, late) }, nil, "", 0},
		"its end is announced":        {func(t *MachineMetrics) { t.machineChanged(well, ending) }, nil, "interruptions", 0},
		"somebody stopped it":         {func(t *MachineMetrics) { t.machineChanged(well, stopped) }, nil, "", 0},
		"it is remediated": {func(t *MachineMetrics) { t.ownerChanged(context.Background(), sick, remediated) }, running,
			"remediations", 0},
		"it is being remediated": {func(t *MachineMetrics) { t.ownerChanged(context.Background(), remediated, remediated) }, running, "", 0},
		"somebody deleted it":    {func(t *MachineMetrics) { t.ownerChanged(context.Background(), joined, byHand) }, running, "", 0},
		"its pool has ended": {func(t *MachineMetrics) {
			t.machineGone(gone)
			t.machineChanged(waiting, late)
			t.endSeries(client.ObjectKey{Namespace: "team", Name: "pool"})
		}, nil, "", 0},
		"another manager's VM is gone": {func(t *MachineMetrics) { t.WatchFilterValue = "mine"; t.machineGone(gone) }, nil, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			registry := prometheus.NewPedanticRegistry()
			clouds := []cloud.Cloud{
				{Name: "right", Union: driverkit.Fields[infrav1.AWSAccount,
					infrav1.SimulatedMachine]{Machine: func(*infrav1.DroverMachineFields) *infrav1.SimulatedMachine {
					return &infrav1.SimulatedMachine{}
				}}},
				{Name: "wrong", Union: driverkit.Fields[infrav1.AWSAccount,
					infrav1.SimulatedMachine]{Machine: func(*infrav1.DroverMachineFields) *infrav1.SimulatedMachine { return nil }}},
			}
			c.happens(NewMachineMetrics(one{DroverMachine: c.cached}, clouds, "", registry))
			families, err := registry.Gather()
			g.Expect(err).NotTo(HaveOccurred())
			if c.metric == "" {
				g.Expect(families).To(BeEmpty())
				return
			}
			g.Expect(families).To(HaveLen(1))
			g.Expect(families[0].GetMetric()).To(HaveLen(1))
			m := families[0].GetMetric()[0]
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			want := map[string]string{"cloud": "right", "namespace": "team", "pool": "pool", "instance_type": "small", "zone": "sim-1a"}
			if reason, ok := map[string]string{"join_failures": infrav1.NodeMissingReason,
				"remediations": clusterv1.MachineHealthCheckNodeDeletedReason}[c.metric]; ok {
				want["reason"] = reason
			}
			g.Expect(labels).To(Equal(want))
			if families[0].GetType() == dto.MetricType_COUNTER {
				g.Expect(families[0].GetName()).To(Equal(fmt.Sprintf("drover_machine_%s_total", c.metric)))
				g.Expect(m.GetCounter().GetValue()).To(BeEquivalentTo(1))
				return
			}
			g.Expect(families[0].GetName()).To(Equal(fmt.Sprintf("drover_machine_%s_seconds", c.metric)))
			g.Expect(m.GetHistogram().GetSampleCount()).To(BeEquivalentTo(1))
			g.Expect(m.GetHistogram().GetSampleSum()).To(BeNumerically("~", c.seconds, 5))
		})
	}
}

// TestInstanceType tests that the type is found in the fields of each cloud that has types.
func TestInstanceType(t *testing.T) {
	for want, fields := range map[string]infrav1.DroverMachineFields{
		"m7i.large": {Cloud: infrav1.MachineCloud{AWS: &infrav1.AWSMachine{InstanceType: "m7i.large"}}},
		"D4s_v5":    {Cloud: infrav1.MachineCloud{Azure: &infrav1.AzureMachine{VMSize: "D4s_v5"}}},
		"m1.large":  {Cloud: infrav1.MachineCloud{OpenStack: &infrav1.OpenStackMachine{Flavor: "m1.large"}}},
		"u1.medium": {Cloud: infrav1.MachineCloud{KubeVirt: &infrav1.KubeVirtMachine{
			Instancetype: infrav1.KubeVirtInstancetype{Name: "u1.medium"}}}},
		"": {Cloud: infrav1.MachineCloud{VSphere: &infrav1.VSphereMachine{CPUs: 2}}},
	} {
		if got := instanceType(&fields); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// TestSeriesOfATenantAreBounded: whatever a tenant writes into machines, and whether they had a VM,
// its namespace has few series.
func TestSeriesOfATenantAreBounded(t *testing.T) {
	const machines = 2000
	for name, change := range map[string]func(int, *infrav1.DroverMachine){
		"no VM": func(_ int, m *infrav1.DroverMachine) { m.Spec.ProviderID = "" },
		"a VM":  func(int, *infrav1.DroverMachine) {},
		"few of each": func(i int, m *infrav1.DroverMachine) {
			m.Labels[clusterv1.MachineDeploymentNameLabel] = fmt.Sprint(i % 49)
			m.Spec.Cloud.AWS.InstanceType, m.Status.FailureDomain = fmt.Sprint(i%47), fmt.Sprint(i%19)
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			registered := prometheus.NewRegistry()
			metrics := NewMachineMetrics(one{}, registry.Clouds(), "", registered)
			for i := range machines {
				gone := &infrav1.DroverMachine{}
				gone.Namespace, gone.Name, gone.Spec.ProviderID = "tenant", "m", "aws:///eu-1a/i-1"
				gone.Labels = map[string]string{clusterv1.MachineDeploymentNameLabel: fmt.Sprintf("pool-%05d", i)}
				gone.Spec.Creation.Token = "0123456789abcdef"
				gone.Spec.Cloud.AWS = &infrav1.AWSMachine{InstanceType: fmt.Sprintf("x%d.large", i)}
				gone.Status.FailureDomain = fmt.Sprint(i)
				gone.DeletionTimestamp = ptr.To(metav1.Now())
				change(i, gone)
				metrics.machineGone(gone)
				metrics.count(metrics.remediations, gone, fmt.Sprint(i))
			}
			families, err := registered.Gather()
			g.Expect(err).NotTo(HaveOccurred())
			if name == "no VM" {
				g.Expect(families).To(BeEmpty())
			}
			for _, f := range families {
				if f.GetType() == dto.MetricType_HISTOGRAM {
					g.Expect(len(f.GetMetric())).To(BeNumerically("<=", maxCombinations+1))
				} else {
					g.Expect(len(f.GetMetric())).To(BeNumerically("<=", (maxCombinations+1)*(maxReasons+1)))
				}
			}
		})
	}
}

// machines is a cache that holds DroverMachines.
type machines struct {
	one
	items []infrav1.DroverMachine
}

func (m *machines) List(_ context.Context, into client.ObjectList, _ ...client.ListOption) error {
	into.(*infrav1.DroverMachineList).Items = m.items
	return nil
}

// TestSeriesEndWithTheLastMachine: Prometheus can read the series of a pool for a while, and a pool
// that has machines again keeps them.
func TestSeriesEndWithTheLastMachine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		gone := infrav1.DroverMachine{}
		gone.Namespace, gone.Name, gone.Spec.ProviderID, gone.Spec.Creation.Token = "tenant", "m", "aws:///eu-1a/i-1", "token"
		gone.Labels = map[string]string{clusterv1.MachineDeploymentNameLabel: "pool"}
		gone.Spec.Cloud.AWS = &infrav1.AWSMachine{InstanceType: "m7i.large"}
		gone.DeletionTimestamp = ptr.To(metav1.Now())
		registered, cached := prometheus.NewRegistry(), &machines{items: []infrav1.DroverMachine{gone}}
		metrics := NewMachineMetrics(cached, registry.Clouds(), "", registered)
		for _, left := range []int{1, 0} {
			cached.items = cached.items[:left]
			metrics.machineGone(&gone)
			metrics.endLater(t.Context(), client.ObjectKey{Namespace: "tenant", Name: "pool"})
			time.Sleep(seriesStay - time.Second)
			synctest.Wait()
			g.Expect(registered.Gather()).To(HaveLen(1))
			time.Sleep(2 * time.Second)
			synctest.Wait()
			g.Expect(registered.Gather()).To(HaveLen(left))
		}
		g.Expect(metrics.series.knows("tenant", "pool")).To(BeFalse())
	})
}
