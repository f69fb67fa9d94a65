// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/test/internal/scenario"
)

// rows returns the current machines, oldest first. nodes is nil while their cluster has no API
// server.
func rows(ctx context.Context, namespace string, view, nodes *scenario.View) ([]row, error) {
	machines := &clusterv1.MachineList{}
	if err := view.List(ctx, machines, client.InNamespace(namespace)); err != nil {
		return nil, err
	}
	slices.SortFunc(machines.Items, func(a, b clusterv1.Machine) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	all := make([]row, 0, len(machines.Items))
	for i := range machines.Items {
		all = append(all, rowOf(ctx, &machines.Items[i], view, nodes))
	}
	return all, nil
}

// rowOf returns the state of a machine, and in one sentence what it waits for.
func rowOf(ctx context.Context, machine *clusterv1.Machine, view, nodes *scenario.View) row {
	r := row{machine: machine.Name, phase: machine.Status.Phase}
	key := client.ObjectKeyFromObject(machine) // all three objects have the same name
	vm, config := &infrav1.DroverMachine{}, &bootstrapv1.DroverConfig{}
	vmErr, configErr := view.Get(ctx, key, vm), view.Get(ctx, key, config)
	r.vm, r.zone = string(vm.Status.InstanceState), vm.Status.FailureDomain
	if machine.Status.NodeRef.IsDefined() && nodes != nil {
		node := &corev1.Node{}
		switch err := nodes.Get(ctx, client.ObjectKey{Name: machine.Status.NodeRef.Name}, node); {
		case err != nil:
			r.node = "gone"
		case nodeReady(node):
			r.node = "Ready"
		default:
			r.node = "not Ready"
		}
	}
	switch {
	case !machine.DeletionTimestamp.IsZero():
		r.waitsFor = deletionWaitsFor(machine, vm, vmErr)
	case configErr == nil && conditions.IsFalse(config, clusterv1.ReadyCondition):
		r.waitsFor = message(config, clusterv1.ReadyCondition)
	case vmErr == nil && !conditions.IsTrue(vm, clusterv1.ReadyCondition):
		r.waitsFor = message(vm, clusterv1.ReadyCondition)
	case !conditions.IsTrue(machine, clusterv1.MachineNodeReadyCondition):
		r.waitsFor = message(machine, clusterv1.MachineNodeReadyCondition)
	}
	return r
}

// deletionWaitsFor returns the progress of the drain, and then of the VM's deletion.
func deletionWaitsFor(machine *clusterv1.Machine, vm *infrav1.DroverMachine, vmErr error) string {
	if vmErr == nil && !vm.DeletionTimestamp.IsZero() {
		return message(vm, clusterv1.ReadyCondition)
	}
	return message(machine, clusterv1.MachineDeletingCondition)
}

// message returns the message of a condition that is not True, on one line.
func message(o conditions.Getter, condition string) string {
	c := conditions.Get(o, condition)
	if c == nil || c.Status == metav1.ConditionTrue && condition != clusterv1.MachineDeletingCondition {
		return ""
	}
	return strings.Join(strings.Fields(c.Message), " ")
}
