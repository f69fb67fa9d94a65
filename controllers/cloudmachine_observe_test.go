// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/fleet"
)

func running() fleet.Observation {
	return fleet.Observation{Instance: &cloud.Resource{Kind: cloud.KindInstance, ID: "vm-1", ProviderID: testVM, State: cloud.StateRunning}}
}

func gone() fleet.Observation { return fleet.Observation{Gone: true} }

// TestGoneIsUndone: a machine whose VM was reported gone becomes ready again when the VM is seen.
func TestGoneIsUndone(t *testing.T) {
	t.Parallel()
	b := newBench(t, fleetOf("m")...)
	b.account.seen = gone()
	b.reconcile("m")
	b.Expect(readyReason(b.machine("m"))).To(Equal(infrav1.InstanceGoneReason))
	b.Expect(b.machine("m").Status.InstanceState).To(Equal(stateGone))

	b.account.seen = fleet.Observation{} // a new process that has not seen the VM yet
	b.createNode("m", testVM)
	b.reconcile("m")
	b.Expect(readyReason(b.machine("m"))).To(Equal(infrav1.InstanceGoneReason), "as it was last known")
	b.Expect(b.countNodes()).To(Equal(1), "what the account does not say removes no Node")

	b.account.seen = running()
	b.reconcile("m")
	b.Expect(readyReason(b.machine("m"))).To(Equal(infrav1.ReadyReason))
	b.Expect(b.machine("m").Status.InstanceState).To(Equal(string(cloud.StateRunning)))
	b.Expect(b.countNodes()).To(Equal(1))
}

// TestNodeRemovalsHaveARate: if all VMs of a cluster are reported gone, some Nodes are removed at
// once and the others at a limited rate. Deletions by users do not wait.
func TestNodeRemovalsHaveARate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const machines = 45
		var names []string
		for i := range machines {
			names = append(names, fmt.Sprintf("m%d", i+1))
		}
		b := newBench(t, fleetOf(names...)...)
		for i, name := range names {
			b.createNode(name, fmt.Sprintf("test:///vm-%d", i+1))
		}
		b.account.seen = gone()
		held := ""
		for _, name := range names {
			if b.reconcile(name).RequeueAfter > 0 && held == "" {
				held = name
			}
		}
		b.Expect(machines-b.countNodes()).To(Equal(4), "10 %% of the cluster's machines at once")
		b.Expect(held).To(Equal("m5"))
		b.Expect(readyMessage(b.machine(held))).To(ContainSubstring("Node"), "it says why its Node is still there")
		b.Expect(readyReason(b.machine(held))).To(Equal(infrav1.InstanceGoneReason))

		b.account.deletion = fleet.Deletion{Gone: true}
		b.remove(b.machine("m45"))
		b.reconcile("m45")
		b.Expect(machines-b.countNodes()).To(Equal(5), "a user's deletion waits for nothing")

		time.Sleep(time.Minute)
		for _, name := range names[4:44] {
			b.reconcile(name)
		}
		b.Expect(machines-b.countNodes()).To(Equal(9), "and as many a minute")
		b.Expect(readyMessage(b.machine("m5"))).NotTo(ContainSubstring("Node"))

		b.account.seen = running()
		b.reconcile("m20")
		b.Expect(readyReason(b.machine("m20"))).To(Equal(infrav1.ReadyReason), "a mistake is undone where the Node is still there")
	})
}

// TestNeverSeen: a VM that the account has never seen is not gone, and its Node is not removed.
func TestNeverSeen(t *testing.T) {
	t.Parallel()
	b := newBench(t, fleetOf("m")...)
	b.createNode("m", testVM)
	b.account.seen = fleet.Observation{NeverSeen: true}
	b.reconcile("m")
	m := b.machine("m")
	b.Expect(readyReason(m)).To(Equal(infrav1.NeverSeenReason))
	b.Expect(readyMessage(m)).To(And(
		ContainSubstring(cloud.TagOwnership+"=owner-1"), ContainSubstring(cloud.TagToken+"="+testToken+"0")))
	b.Expect(m.Status.InstanceState).To(BeEmpty())
	b.Expect(b.countNodes()).To(Equal(1))
	b.account.seen = running()
	b.reconcile("m")
	b.Expect(readyReason(b.machine("m"))).To(Equal(infrav1.ReadyReason))
}

// TestGuestReported: addresses that only the guest reports are marked.
func TestGuestReported(t *testing.T) {
	t.Parallel()
	b := newBench(t, fleetOf("m")...)
	b.account.seen = running()
	b.account.seen.Instance.Addresses = []clusterv1.MachineAddress{
		{Type: clusterv1.MachineInternalIP, Address: "10.0.0.1"}, {Type: clusterv1.MachineInternalIP, Address: "10.96.0.1"}}
	b.account.seen.Instance.GuestReported = []string{"10.96.0.1"}
	b.reconcile("m")
	b.Expect(b.machine("m").Status.GuestReportedAddresses).To(Equal([]string{"10.96.0.1"}))
	b.account.seen.Instance.GuestReported = nil
	b.reconcile("m")
	b.Expect(b.machine("m").Status.GuestReportedAddresses).To(BeEmpty())
}
