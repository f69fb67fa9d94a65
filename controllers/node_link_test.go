// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
)

// joining returns a fleet whose Machines have a DroverConfig.
func joining(names ...string) []client.Object {
	all := fleetOf(names...)
	for _, o := range all {
		if m, ok := o.(*clusterv1.Machine); ok {
			m.Spec.Bootstrap.ConfigRef = clusterv1.ContractVersionedObjectReference{
				APIGroup: bootstrapv1.GroupVersion.Group, Kind: "DroverConfig", Name: m.Name,
			}
		}
	}
	return all
}

// TestNodeWithoutProviderID: a Node without provider ID gets a machine's only if its name is the
// machine's. What the Node says of itself, its addresses, is not enough.
func TestNodeWithoutProviderID(t *testing.T) {
	t.Parallel()
	const trusted, own = "trusted", "10.0.0.1"
	at := func(ip string) corev1.NodeAddress {
		return corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip}
	}
	reports := func(kind clusterv1.MachineAddressType, name string) func(*infrav1.DroverMachine) {
		return func(m *infrav1.DroverMachine) {
			m.Status.Addresses = append(m.Status.Addresses, clusterv1.MachineAddress{Type: kind, Address: name})
		}
	}
	guest := func(m *infrav1.DroverMachine) {
		reports(clusterv1.MachineInternalDNS, "host-7")(m)
		m.Status.GuestReportedAddresses = []string{"Host-7"}
	}
	for name, c := range map[string]struct {
		node      string
		addresses []corev1.NodeAddress
		cloud     func(*infrav1.DroverMachine) // what the cloud reports for the machine
		drover    bool                         // the result with a DroverConfig
		other     bool                         // the result with another bootstrap provider
		issue     string                       // the reason
	}{
		"its name and address":               {node: trusted, addresses: []corev1.NodeAddress{at(own)}, drover: true, other: true},
		"its name, and no address yet":       {node: trusted, drover: true},
		"its name, and another address":      {node: trusted, addresses: []corev1.NodeAddress{at("10.0.0.99")}, drover: true},
		"another machine claims its address": {node: "attacker", addresses: []corev1.NodeAddress{at(own)}},
		"another machine claims a subnet":    {node: "attacker", addresses: []corev1.NodeAddress{at("10.0.0.2"), at(own), at("10.0.0.3")}},
		"a Node of nobody claims it":         {node: "elsewhere", addresses: []corev1.NodeAddress{at(own)}},
		"a name that begins so":              {node: "trusted-2", addresses: []corev1.NodeAddress{at(own)}},
		"the cloud's name": {
			node: "ip-10-0-0-1.internal", addresses: []corev1.NodeAddress{at(own)},
			cloud:  reports(clusterv1.MachineInternalDNS, "IP-10-0-0-1.internal"),
			drover: true, other: true,
		},
		"the cloud's name alone": {node: "host-1", cloud: reports(clusterv1.MachineHostName, "host-1"), drover: true},
		"without the domain": {node: "host-1", addresses: []corev1.NodeAddress{at(own)},
			cloud: reports(clusterv1.MachineHostName, "host-1.internal"), other: true},
		"a name of the guest's": {node: "host-7", addresses: []corev1.NodeAddress{at(own)}, cloud: guest},
		"a public name": {node: "public", addresses: []corev1.NodeAddress{at(own)},
			cloud: reports(clusterv1.MachineExternalDNS, "public")},
		"the name of two machines": {
			node: "attacker", addresses: []corev1.NodeAddress{at(own)}, cloud: reports(clusterv1.MachineHostName, "attacker"),
			issue: infrav1.DuplicateNodesReason,
		},
	} {
		for provider, linked := range map[string]bool{"Drover": c.drover, "another provider": c.other} {
			t.Run(name+" with "+provider, func(t *testing.T) {
				inBubble(t, func(t *testing.T) {
					fleet := fleetOf(trusted, "attacker")
					if provider == "Drover" {
						fleet = joining(trusted, "attacker")
					}
					b := newBench(t, fleet...)
					b.reconcile(trusted)
					b.reconcile("attacker")
					machine := b.machine(trusted)
					before := client.MergeFrom(machine.DeepCopy())
					machine.Status.Addresses = []clusterv1.MachineAddress{{Type: clusterv1.MachineInternalIP, Address: own}}
					if c.cloud != nil {
						c.cloud(machine)
					}
					b.Expect(b.management.Status().Patch(t.Context(), machine, before)).To(Succeed())
					node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: c.node}, Status: corev1.NodeStatus{Addresses: c.addresses}}
					b.Expect(b.nodes.Create(t.Context(), node)).To(Succeed())

					s, err := readMachine(t.Context(), b.management, b.r.Accounts, client.ObjectKeyFromObject(machine))
					b.Expect(err).NotTo(HaveOccurred())
					joined, issue, _, err := b.node.findNode(t.Context(), s)
					b.Expect(err).NotTo(HaveOccurred())
					b.Expect(joined).To(Equal(linked))
					b.Expect(issue.reason).To(Equal(c.issue))
					b.Expect(b.nodes.Get(t.Context(), client.ObjectKeyFromObject(node), node)).To(Succeed())
					b.Expect(node.Spec.ProviderID == machine.Spec.ProviderID).To(Equal(linked), node.Spec.ProviderID)
					b.Expect(node.Spec.ProviderID == "").To(Equal(!linked), node.Spec.ProviderID)
				})
			})
		}
	}
}

// TestAddressOfAGoneMachine: the address of a VM that is gone may be another VM's now.
func TestAddressOfAGoneMachine(t *testing.T) {
	t.Parallel()
	for state, want := range map[infrav1.InstanceState]string{infrav1.InstanceStateRunning: `DroverMachine "old"`, infrav1.InstanceStateGone: ""} {
		t.Run(string(state), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				b := newBench(t, fleetOf("m", "old")...)
				b.reconcile("m")
				b.reconcile("old")
				old := b.machine("old")
				before := client.MergeFrom(old.DeepCopy())
				old.Status.InstanceState = state
				old.Status.Addresses = []clusterv1.MachineAddress{{Type: clusterv1.MachineInternalIP, Address: "10.0.0.77"}}
				b.Expect(b.management.Status().Patch(t.Context(), old, before)).To(Succeed())
				s, err := readMachine(t.Context(), b.management, b.r.Accounts, client.ObjectKeyFromObject(b.machine("m")))
				b.Expect(err).NotTo(HaveOccurred())
				b.Expect(b.node.otherMachineAt(t.Context(), s, "10.0.0.77")).To(Equal(want))
			})
		})
	}
}

// TestNodeOfTheOldSystem: a machine that Cluster API has matched before, such as one that was taken
// over, keeps the Node of the name that the old system gave it.
func TestNodeOfTheOldSystem(t *testing.T) {
	t.Parallel()
	const old = "vm-of-the-old-system"
	for name, c := range map[string]struct {
		node, address string
		linked        bool
	}{
		"the Node that came back":        {old, "10.0.0.1", true},
		"its name at another address":    {old, "10.0.0.9", false},
		"the Machine's name":             {"m", "10.0.0.1", false},
		"another machine at its address": {"attacker", "10.0.0.1", false},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			s := &machineScope{DroverMachine: &infrav1.DroverMachine{}, owner: &clusterv1.Machine{}}
			s.Name, s.owner.Name, s.owner.Status.NodeRef.Name = "m", "m", old
			s.Status.Addresses = []clusterv1.MachineAddress{{Type: clusterv1.MachineInternalIP, Address: "10.0.0.1"}}
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: c.node}}
			node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: c.address}}
			g.Expect(isNodeOf(node, s)).To(Equal(c.linked))
		})
	}
}

// TestOlderNodeOfTheSameName: a Node that is older than the machine is not taken over by its name
// alone.
func TestOlderNodeOfTheSameName(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	s := &machineScope{DroverMachine: &infrav1.DroverMachine{}, owner: joining("m")[len(joining("m"))-2].(*clusterv1.Machine)}
	s.Name, s.CreationTimestamp = "m", metav1.Now()
	s.Status.Addresses = []clusterv1.MachineAddress{{Type: clusterv1.MachineInternalIP, Address: "10.0.0.1"}}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "m", CreationTimestamp: s.CreationTimestamp}}
	g.Expect(isNodeOf(node, s)).To(BeTrue())
	node.CreationTimestamp.Time = node.CreationTimestamp.Add(-time.Hour)
	g.Expect(isNodeOf(node, s)).To(BeFalse())
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}}
	g.Expect(isNodeOf(node, s)).To(BeTrue())
}

// TestNodeFindsItsMachine: a Node without provider ID enqueues the machines whose name or address
// it has.
func TestNodeFindsItsMachine(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	all := fleetOf("blue.1", "blue-2", "blue-3")
	edit(all, "blue-3", func(m *infrav1.DroverMachine) {
		m.OwnerReferences[0].Name = "machine-of-blue-3"
		m.Status.Addresses = []clusterv1.MachineAddress{
			{Type: clusterv1.MachineInternalIP, Address: "10.0.0.3"}, {Type: clusterv1.MachineHostName, Address: "IP-10-0-0-3.internal"},
		}
	})
	r := &NodeReconciler{Client: newManagement(t, all...)}
	for node, machine := range map[string]string{
		"blue.1": "blue.1", "blue-2": "blue-2", "machine-of-blue-3": "blue-3", "ip-10-0-0-3.internal": "blue-3", "blue-4": "",
	} {
		var names []string
		for _, request := range r.nodeToMachines(client.ObjectKey{Namespace: "team-a",
			Name: "prod"})(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}) {
			names = append(names, request.Name)
		}
		if machine == "" {
			g.Expect(names).To(BeEmpty(), node)
		} else {
			g.Expect(names).To(ContainElement(machine), node)
		}
	}
}

// TestNodeWithAnotherProviderID: both machines say that the Node of one carries the provider ID of
// the other, whether or not Cluster API believes it, until the Node is gone.
func TestNodeWithAnotherProviderID(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		node     string
		believed bool // Cluster API has matched the Node with the machine "trusted"
		reported string
		conflict bool
	}{
		"another machine's name":             {node: "attacker", conflict: true},
		"believed by Cluster API":            {node: "attacker", believed: true, conflict: true},
		"a name that the cloud gave another": {node: "ip-10-0-0-7.internal", reported: "IP-10-0-0-7.internal", conflict: true},
		"its own name":                       {node: "trusted"},
		"a name of no machine":               {node: "vm-of-the-old-system", believed: true},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				b := newBench(t, joining("trusted", "attacker")...)
				b.reconcile("trusted")
				b.reconcile("attacker")
				if c.reported != "" {
					m := b.machine("attacker")
					before := client.MergeFrom(m.DeepCopy())
					m.Status.Addresses = append(m.Status.Addresses, clusterv1.MachineAddress{Type: clusterv1.MachineInternalDNS, Address: c.reported})
					b.Expect(b.management.Status().Patch(t.Context(), m, before)).To(Succeed())
				}
				if c.believed {
					owner := &clusterv1.Machine{}
					b.Expect(b.management.Get(t.Context(), client.ObjectKey{Namespace: "team-a", Name: "trusted"}, owner)).To(Succeed())
					owner.Status.NodeRef.Name = c.node
					b.Expect(b.management.Update(t.Context(), owner)).To(Succeed())
				}
				node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: c.node},
					Spec: corev1.NodeSpec{ProviderID: b.machine("trusted").Spec.ProviderID}}
				b.Expect(b.nodes.Create(t.Context(), node)).To(Succeed())
				requests := b.node.nodeToMachines(client.ObjectKey{Namespace: "team-a", Name: "prod"})(t.Context(), node)
				find := func(of string) (joined bool, issue nodeIssue) {
					s, err := readMachine(t.Context(), b.management, b.r.Accounts, client.ObjectKey{Namespace: "team-a", Name: of})
					b.Expect(err).NotTo(HaveOccurred())
					joined, issue, _, err = b.node.findNode(t.Context(), s)
					b.Expect(err).NotTo(HaveOccurred())
					return joined, issue
				}
				joined, issue := find("trusted")
				b.Expect(joined).To(Equal(!c.conflict))
				if !c.conflict {
					b.Expect(issue).To(BeZero())
					return
				}
				b.Expect(issue.reason).To(Equal(infrav1.ProviderIDConflictReason))
				b.Expect(issue.message).To(And(ContainSubstring(c.node), ContainSubstring(`"attacker"`)))
				_, issue = find("attacker")
				b.Expect(issue.reason).To(Equal(infrav1.ProviderIDConflictReason))
				b.Expect(issue.message).To(And(ContainSubstring(c.node), ContainSubstring(`"trusted"`)))
				for _, of := range []string{"trusted", "attacker"} {
					b.Expect(requests).To(ContainElement(HaveField("Name", of)), "the Node's event")
					b.reconcileNode(requestFor(b.machine(of)))
				}
				b.settle()
				if c.reported == "" { // otherwise the next listing has no such name
					for _, of := range []string{"trusted", "attacker"} {
						joined := conditions.Get(b.machine(of), infrav1.MachineNodeJoinedCondition)
						b.Expect(joined.Status).To(Equal(metav1.ConditionFalse), of)
						b.Expect(joined.Reason).To(Equal(infrav1.ProviderIDConflictReason), of)
					}
				}
				b.Expect(b.nodes.Delete(t.Context(), node)).To(Succeed())
				for _, of := range []string{"trusted", "attacker"} {
					_, issue := find(of)
					b.Expect(issue).To(BeZero(), of)
				}
			})
		})
	}
}
