// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"

	. "github.com/onsi/gomega"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
)

// TestHangingClusterHoldsNoOther: a workload cluster that hangs occupies only some of the workers,
// and machines that find no free worker come back.
func TestHangingClusterHoldsNoOther(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		const machines = maxNodeWorkers + 5
		var names []string
		for i := range machines {
			names = append(names, fmt.Sprintf("m%d", i+1))
		}
		b := newBench(t, fleetOf(names...)...)
		for _, name := range names {
			b.reconcile(name)
		}
		hang, hanging := make(chan struct{}), 0
		b.node.LateAfter = 0 // each machine is late, so that the workload cluster is asked why
		var mu sync.Mutex
		b.node.Progress = func(context.Context, *clusterv1.Cluster, *clusterv1.Machine) (string, string, error) {
			mu.Lock()
			hanging++
			mu.Unlock()
			<-hang
			return infrav1.NodeMissingReason, "", nil
		}
		var workers sync.WaitGroup
		back := 0
		for _, name := range names {
			workers.Go(func() {
				result, err := b.node.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKey{Namespace: "team-a", Name: name}})
				mu.Lock()
				defer mu.Unlock()
				if err == nil && result.RequeueAfter > 0 {
					back++
				}
			})
		}
		synctest.Wait()
		mu.Lock()
		b.Expect(hanging).To(Equal(maxNodeWorkers))
		b.Expect(back).To(Equal(machines - maxNodeWorkers))
		mu.Unlock()
		b.Expect(b.node.workers.begin(client.ObjectKey{Namespace: "team-b", Name: "other"})).To(BeTrue())
		b.node.workers.end(client.ObjectKey{Namespace: "team-b", Name: "other"})
		close(hang)
		workers.Wait()
		b.Expect(b.node.workers.busy).To(BeEmpty())
	})
}

// TestNodeInputs: the status writes that the work on a Node depends on enqueue the machine.
func TestNodeInputs(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*infrav1.CloudMachine)
		want   bool
	}{
		"nothing":             {func(*infrav1.CloudMachine) {}, false},
		"the VM runs":         {func(m *infrav1.CloudMachine) { setReady(m) }, true},
		"the VM does not run": {func(m *infrav1.CloudMachine) { setNotReady(m, infrav1.InstanceStoppedReason, "") }, false},
		"addresses":           {func(m *infrav1.CloudMachine) { m.Status.Addresses = []clusterv1.MachineAddress{{Address: "10.0.0.1"}} }, true},
		"provisioned":         {func(m *infrav1.CloudMachine) { m.Status.Initialization.Provisioned = ptr.To(true) }, true},
		"no Node": {func(m *infrav1.CloudMachine) {
			setNodeJoined(m, nodeLink{issue: nodeIssue{infrav1.NodeMissingReason, ""}})
		}, true},
		"a Node": {func(m *infrav1.CloudMachine) { setNodeJoined(m, nodeLink{joined: true}) }, false},
	} {
		after := &infrav1.CloudMachine{}
		c.change(after)
		NewWithT(t).Expect(nodeInputsChanged(&infrav1.CloudMachine{}, after)).To(Equal(c.want), name)
	}
}
