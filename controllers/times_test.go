// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	clusterctlv1 "sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
)

// one is a cache that holds one CloudMachine.
type one struct {
	client.Reader
	*infrav1.CloudMachine
}

func (o one) Get(_ context.Context, _ client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	o.DeepCopyInto(into.(*infrav1.CloudMachine))
	return nil
}

// TestMachineTimes: each part of a machine's life is measured once, when it ends, and nothing else
// is measured. (test/monitoring counts them for real machines.)
func TestMachineTimes(t *testing.T) {
	ago := func(d time.Duration) metav1.Time { return metav1.NewTime(time.Now().Add(-d)) }
	fresh := &infrav1.CloudMachine{}
	fresh.Name, fresh.Generation, fresh.CreationTimestamp, fresh.Spec.Creation.Token = "m", 3, ago(100*time.Second), "token"
	running := fresh.DeepCopy()
	running.Status.Initialization.Provisioned = ptr.To(true)
	running.Status.Conditions = []metav1.Condition{{Type: clusterv1.ReadyCondition, Status: metav1.ConditionTrue, LastTransitionTime: ago(40 * time.Second)}}
	moved := running.DeepCopy()
	moved.Generation = 1
	changed := func(m *infrav1.CloudMachine, change func(*infrav1.CloudMachine)) *infrav1.CloudMachine {
		m = m.DeepCopy()
		change(m)
		return m
	}
	gone := changed(running, func(m *infrav1.CloudMachine) { m.DeletionTimestamp = ptr.To(ago(7 * time.Second)) })

	owner := &clusterv1.Machine{}
	owner.Spec.InfrastructureRef = clusterv1.ContractVersionedObjectReference{APIGroup: infrav1.GroupVersion.Group, Kind: "CloudMachine", Name: "m"}
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
	other := joined.DeepCopy()
	other.Spec.InfrastructureRef.Kind = "OtherMachine"

	for name, c := range map[string]struct {
		happens func(*MachineTimes)
		cached  *infrav1.CloudMachine
		metric  string // "" for none
		seconds float64
	}{
		"a VM runs":  {func(t *MachineTimes) { t.machineChanged(fresh, running) }, nil, "create", 100},
		"it goes on": {func(t *MachineTimes) { t.machineChanged(running, running) }, nil, "", 0},
		"it was moved here": {func(t *MachineTimes) {
			t.machineChanged(changed(moved, func(m *infrav1.CloudMachine) { m.Status = infrav1.CloudMachineStatus{} }), moved)
		}, nil, "", 0},
		"a Node is known":    {func(t *MachineTimes) { t.ownerChanged(context.Background(), owner, joined) }, running, "join", 40},
		"a moved machine's":  {func(t *MachineTimes) { t.ownerChanged(context.Background(), owner, joined) }, moved, "", 0},
		"another provider's": {func(t *MachineTimes) { t.ownerChanged(context.Background(), owner, other) }, running, "", 0},
		"a drain begins":     {func(t *MachineTimes) { t.ownerChanged(context.Background(), joined, drained) }, running, "", 0},
		"a drain has ended":  {func(t *MachineTimes) { t.ownerChanged(context.Background(), drained, released) }, running, "drain", 25},
		"there was none":     {func(t *MachineTimes) { t.ownerChanged(context.Background(), joined, undrained) }, running, "", 0},
		"the VM is gone":     {func(t *MachineTimes) { t.machineGone(gone) }, nil, "delete", 7},
		"it never was": {func(t *MachineTimes) {
			t.machineGone(changed(gone, func(m *infrav1.CloudMachine) { m.Spec.Creation.Token = "" }))
		}, nil, "", 0},
		"it was moved away": {func(t *MachineTimes) {
			t.machineGone(changed(gone, func(m *infrav1.CloudMachine) {
				m.Annotations = map[string]string{clusterctlv1.DeleteForMoveAnnotation: ""}
			}))
		}, nil, "", 0},
		"it was abandoned": {func(t *MachineTimes) {
			t.machineGone(changed(gone, func(m *infrav1.CloudMachine) {
				m.Name = "m"
				m.Annotations = map[string]string{infrav1.AbandonAnnotation: "m"}
			}))
		}, nil, "", 0},
		"another manager's VM is gone": {func(t *MachineTimes) { t.WatchFilterValue = "mine"; t.machineGone(gone) }, nil, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			registry := prometheus.NewPedanticRegistry()
			clouds := []cloud.Cloud{
				{Name: "right", Union: driverkit.Fields[infrav1.AWSAccount, infrav1.SimulatedMachine]{Machine: func(*infrav1.CloudMachineFields) *infrav1.SimulatedMachine { return &infrav1.SimulatedMachine{} }}},
				{Name: "wrong", Union: driverkit.Fields[infrav1.AWSAccount, infrav1.SimulatedMachine]{Machine: func(*infrav1.CloudMachineFields) *infrav1.SimulatedMachine { return nil }}},
			}
			c.happens(NewMachineTimes(one{CloudMachine: c.cached}, clouds, "", registry))
			families, err := registry.Gather()
			g.Expect(err).NotTo(HaveOccurred())
			if c.metric == "" {
				g.Expect(families).To(BeEmpty())
				return
			}
			g.Expect(families).To(HaveLen(1))
			g.Expect(families[0].GetName()).To(Equal(fmt.Sprintf("drover_machine_%s_seconds", c.metric)))
			g.Expect(families[0].GetMetric()).To(HaveLen(1))
			m := families[0].GetMetric()[0]
			g.Expect(m.GetLabel()).To(ConsistOf(&dto.LabelPair{Name: ptr.To("cloud"), Value: ptr.To("right")}))
			g.Expect(m.GetHistogram().GetSampleCount()).To(BeEquivalentTo(1))
			g.Expect(m.GetHistogram().GetSampleSum()).To(BeNumerically("~", c.seconds, 5))
		})
	}
}
