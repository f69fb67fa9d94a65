// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/internal/fairqueue"
)

// TestMachinesOfAClusterThatHangsWait: machines of a workload cluster that hangs are reconciled one
// at a time. The others stay in the queue: they are not requeued.
func TestMachinesOfAClusterThatHangsWait(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		const machines, workers = 30, 10
		var names []string
		for i := range machines {
			names = append(names, fmt.Sprintf("m%d", i+1))
		}
		b := newBench(t, fleetOf(names...)...)
		for _, name := range names {
			b.reconcile(name)
		}
		var asked, asking atomic.Int32
		var answers atomic.Bool
		b.node.LateAfter = 0 // each machine is late, so that the workload cluster is asked why
		b.node.Progress = func(ctx context.Context, _ *clusterv1.Cluster, _ *clusterv1.Machine) (string, string, error) {
			asked.Add(1)
			asking.Add(1)
			defer asking.Add(-1)
			time.Sleep(10 * time.Second)
			return infrav1.NodeMissingReason, "", nil
		}
		node, err := controller.NewUnmanaged("node-queue", controller.Options{
			SkipNameValidation:      ptr.To(true),
			MaxConcurrentReconciles: workers, Reconciler: b.node,
			NewQueue: func(
				name string, limiter workqueue.TypedRateLimiter[reconcile.Request],
			) workqueue.TypedRateLimitingInterface[reconcile.Request] {
				return fairqueue.New(name, limiter, fairqueue.Rules[reconcile.Request]{
					Workers: workers,
					TargetOf: func(r reconcile.Request) types.NamespacedName {
						return types.NamespacedName{Namespace: r.Namespace, Name: "prod"}
					},
					Hangs: func(types.NamespacedName) bool { return !answers.Load() },
				})
			},
		})
		b.Expect(err).NotTo(HaveOccurred())
		b.Expect(node.Watch(source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
			for _, name := range names {
				queue.Add(reconcile.Request{NamespacedName: client.ObjectKey{Namespace: "team-a", Name: name}})
			}
			return nil
		}))).To(Succeed())
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = node.Start(ctx) })
		time.Sleep(59 * time.Second)
		b.Expect(asking.Load()).To(BeEquivalentTo(1))
		b.Expect(asked.Load()).To(BeEquivalentTo(6), "one request each 10 seconds")
		answers.Store(true)
		time.Sleep(2 * time.Second)
		b.Expect(asking.Load()).To(BeEquivalentTo(workers), "all go on as soon as the cluster answers")
		stop()
		running.Wait()
	})
}

// TestNodeInputs: the status writes that the work on a Node depends on enqueue the machine.
func TestNodeInputs(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*infrav1.DroverMachine)
		want   bool
	}{
		"nothing":             {func(*infrav1.DroverMachine) {}, false},
		"the VM runs":         {func(m *infrav1.DroverMachine) { setReady(m) }, true},
		"the VM does not run": {func(m *infrav1.DroverMachine) { setNotReady(m, infrav1.InstanceStoppedReason, "") }, false},
		"addresses":           {func(m *infrav1.DroverMachine) { m.Status.Addresses = []clusterv1.MachineAddress{{Address: "10.0.0.1"}} }, true},
		"provisioned":         {func(m *infrav1.DroverMachine) { m.Status.Initialization.Provisioned = ptr.To(true) }, true},
		"no Node": {func(m *infrav1.DroverMachine) {
			setNodeJoined(m, nodeLink{issue: nodeIssue{infrav1.NodeMissingReason, ""}})
		}, true},
		"a Node": {func(m *infrav1.DroverMachine) { setNodeJoined(m, nodeLink{joined: true}) }, false},
	} {
		after := &infrav1.DroverMachine{}
		c.change(after)
		NewWithT(t).Expect(nodeInputsChanged(&infrav1.DroverMachine{}, after)).To(Equal(c.want), name)
	}
}

// TestConnectionFindsMachines: a new connection to a workload cluster finds the machines whose Node
// has a problem, and one machine of any others, which watches the Nodes again.
func TestConnectionFindsMachines(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	var objects []client.Object
	for _, name := range []string{"a", "b", "c"} {
		labels := map[string]string{clusterv1.ClusterNameLabel: "prod"}
		owner := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name, UID: types.UID(name), Labels: labels}}
		owner.Status.NodeRef.Name = name
		m := &infrav1.DroverMachine{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name, Labels: labels,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(owner, clusterv1.GroupVersion.WithKind("Machine"))}}}
		m.Status.Initialization.Provisioned = ptr.To(true)
		link := nodeLink{joined: true}
		if name == "c" {
			link = nodeLink{issue: nodeIssue{infrav1.NodeNotReadyReason, "no network"}}
		}
		setNodeJoined(m, link)
		objects = append(objects, owner, m)
	}
	r := &NodeReconciler{Client: newManagement(t, objects...)}
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "prod"}}
	found := r.clusterToMachinesWithoutNode(t.Context(), cluster)
	g.Expect(found).To(HaveLen(2))
	g.Expect(found).To(ContainElement(reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "team-a", Name: "c"}}))
}
