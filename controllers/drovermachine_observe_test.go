// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/simulated/simulator"
)

// TestGoneIsUndone: a machine whose VM was reported gone becomes ready again when the VM is seen.
func TestGoneIsUndone(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBench(t, fleetOf("m")...)
		b.reconcile("m")
		b.wait(time.Minute)
		b.Expect(readyReason(b.machine("m"))).To(Equal(infrav1.ReadyReason))
		b.show(hidden)
		b.wait(5 * time.Minute)
		b.Expect(readyReason(b.machine("m"))).To(Equal(infrav1.InstanceGoneReason))
		b.Expect(b.machine("m").Status.InstanceState).To(Equal(infrav1.InstanceStateGone))

		b.start() // a new process that has not seen the VM yet
		b.createNode("m")
		b.reconcile("m")
		b.Expect(readyReason(b.machine("m"))).To(Equal(infrav1.InstanceGoneReason), "as it was last known")
		b.Expect(b.countNodes()).To(Equal(1), "what the account does not say removes no Node")

		b.view.Store(nil)
		b.wait(5 * time.Minute)
		b.Expect(readyReason(b.machine("m"))).To(Equal(infrav1.ReadyReason))
		b.Expect(b.machine("m").Status.InstanceState).To(Equal(infrav1.InstanceStateRunning))
		b.Expect(b.countNodes()).To(Equal(1))
	})
}

// TestVirtualIPIsNoAddress: what VMware Tools report of a machine of the control plane includes the
// API server's virtual address while the machine has it.
func TestVirtualIPIsNoAddress(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBench(t, fleetOf("m")...)
		b.reconcile("m")
		b.wait(time.Minute)
		all := b.machine("m").Status.Addresses
		b.Expect(all[1].Type).To(Equal(clusterv1.MachineInternalIP))
		infra := &infrav1.DroverCluster{}
		b.Expect(b.management.Get(t.Context(), client.ObjectKey{Namespace: "team-a", Name: "prod"}, infra)).To(Succeed())
		infra.Spec.Endpoint.VirtualIP.Port = 6443
		infra.Spec.ControlPlaneEndpoint.Host = all[1].Address
		b.Expect(b.management.Update(t.Context(), infra)).To(Succeed())
		b.reconcile("m")
		b.Expect(b.machine("m").Status.Addresses).To(Equal(append(all[:1], all[2:]...)))
	})
}

// TestNodeRemovalsHaveARate: if all VMs of a cluster end, some Nodes are removed at once and the
// others at a limited rate. Deletions by users do not wait.
func TestNodeRemovalsHaveARate(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		const machines = 20
		var names []string
		for i := range machines {
			names = append(names, fmt.Sprintf("m%d", i+1))
		}
		b := newBench(t, fleetOf(names...)...)
		for _, name := range names {
			b.createNode(name)
			b.reconcile(name)
		}
		b.wait(time.Minute)
		b.act(simulator.ActTerminate)
		for b.countNodes() == machines {
			b.wait(time.Second)
		}
		b.Expect(machines-b.countNodes()).To(Equal(3), "a few at once")
		held := heldMachine(b, names)
		b.Expect(readyReason(b.machine(held))).To(Equal(infrav1.InstanceGoneReason))

		b.remove(b.machine(held))
		b.reconcile(held)
		b.wait(time.Minute)
		b.Expect(b.isGone(held)).To(BeTrue())
		b.Expect(machines-b.countNodes()).To(Equal(4), "a user's deletion waits for nothing")

		time.Sleep(time.Minute)
		for _, name := range names {
			b.reconcileNode(reconcile.Request{NamespacedName: client.ObjectKey{Namespace: "team-a", Name: name}})
		}
		b.settle()
		b.Expect(machines-b.countNodes()).To(Equal(7), "and as many a minute")
	})
}

// heldMachine returns a machine that says why its Node is still there.
func heldMachine(b *bench, names []string) string {
	b.t.Helper()
	said := map[bool][]string{}
	for _, name := range names {
		held := b.r.Nodes.request(b.machine(name), nodeTask{kind: removeGoneNode, providerID: b.machine(name).Spec.ProviderID}).held
		said[held] = append(said[held], name)
		match := ContainSubstring("Node")
		if !held {
			match = Not(match)
		}
		b.Expect(readyMessage(b.machine(name))).To(match, name)
	}
	b.Expect(said[true]).NotTo(BeEmpty())
	return said[true][0]
}

// TestNeverSeen: a VM that the account has never seen is not gone, and its Node is not removed.
func TestNeverSeen(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBench(t, fleetOf("m")...)
		b.createNode("m")
		b.show(hidden)
		b.reconcile("m")
		b.wait(10 * time.Minute)
		m := b.machine("m")
		b.Expect(readyReason(m)).To(Equal(infrav1.NeverSeenReason))
		b.Expect(readyMessage(m)).To(And(
			ContainSubstring(cloud.TagOwnership+"=owner-1"), ContainSubstring(cloud.TagToken+"="+testToken+"0")))
		b.Expect(m.Status.InstanceState).To(BeEmpty())
		b.Expect(b.countNodes()).To(Equal(1))
		b.view.Store(nil)
		b.wait(5 * time.Minute)
		b.Expect(readyReason(b.machine("m"))).To(Equal(infrav1.ReadyReason))
	})
}

// TestGuestReported: addresses that only the guest reports are marked.
func TestGuestReported(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBench(t, fleetOf("m")...)
		b.show(func(all []cloud.Resource) []cloud.Resource {
			for i := range all {
				all[i].Addresses = append(all[i].Addresses, clusterv1.MachineAddress{Type: clusterv1.MachineInternalIP, Address: "10.96.0.1"})
				all[i].GuestReported = []string{"10.96.0.1"}
			}
			return all
		})
		b.reconcile("m")
		b.wait(time.Minute)
		b.Expect(b.machine("m").Status.GuestReportedAddresses).To(Equal([]string{"10.96.0.1"}))
		b.view.Store(nil)
		b.wait(5 * time.Minute)
		b.Expect(b.machine("m").Status.GuestReportedAddresses).To(BeEmpty())
	})
}

// TestStatusWrites: until a machine is Ready and has its Node, its status is written when the VM is
// first seen, when it runs and when the Node has joined. A Node that is there before the VM is seen
// running saves the last write.
func TestStatusWrites(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		early  bool
		writes int
	}{"the Node comes first": {true, 2}, "the Node comes last": {false, 3}} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				b := newBench(t, edit(fleetOf("m"), "m", unmade)...)
				request := reconcile.Request{NamespacedName: client.ObjectKey{Namespace: "team-a", Name: "m"}}
				b.reconcile("m") // creates
				b.reconcile("m") // sees the VM start
				b.Expect(readyReason(b.machine("m"))).To(Equal(infrav1.StartingReason))
				if c.early {
					b.createNode("m")
					b.reconcileNode(request)
				}
				for !conditions.IsTrue(b.machine("m"), clusterv1.ReadyCondition) {
					b.wait(time.Second)
				}
				b.Expect(conditions.IsTrue(b.machine("m"), infrav1.MachineNodeJoinedCondition)).To(Equal(c.early))
				if !c.early {
					b.createNode("m")
				}
				for range 3 {
					b.reconcileNode(request)
					b.reconcile("m")
				}
				b.Expect(conditions.IsTrue(b.machine("m"), infrav1.MachineNodeJoinedCondition)).To(BeTrue())
				b.Expect(b.statusWrites.Load()).To(BeEquivalentTo(c.writes))
			})
		})
	}
}
