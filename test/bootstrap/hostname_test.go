// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"net"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/bootstrap/token"
)

// TestHostname tests a machine whose Node has the host name that the cloud assigns. It gets a
// certificate for that name once the cloud has reported it, and for no other: neither the Machine's
// name nor another machine's.
func TestHostname(t *testing.T) {
	e := newEnvironment(t)
	g := NewWithT(t)
	stop := e.manager(t)
	cluster := e.cluster(t, "host", nil)
	machine, config := e.machineWith(t, cluster, "host-1", "", bootstrapv1.DroverConfigSpec{NodeNameSource: bootstrapv1.NodeNameHostname})
	data := e.data(t, config)
	g.Expect(strings.Count(string(data.Data["value"]), "--hostname-override={{ ds.meta_data.local_hostname }}")).To(Equal(1))
	secret := tokenOf(data)
	g.Expect(e.Get(t.Context(), clientKey(secret), secret)).To(Succeed())
	g.Expect(secret.Annotations).NotTo(HaveKey(token.NodeAnnotation))

	const name = "ip-10-1-2-4.ec2.internal"
	booting := kubeletFrom(t, data, name)
	first, key := booting.ask(t, clientSigner, name, nil)
	g.Consistently(func(g Gomega) { e.leftAlone(g, first) }, quiet).Should(Succeed(), "the cloud has not told the name")
	dns := func(name string) clusterv1.MachineAddress {
		return clusterv1.MachineAddress{Type: clusterv1.MachineInternalDNS, Address: name}
	}
	e.droverMachine(t, machine, "10.1.2.4", dns(name))
	other, _ := e.machine(t, cluster, "host-2")
	e.droverMachine(t, other, "10.1.2.5", dns("ip-10-1-2-5.ec2.internal"))
	node := booting.become(t, e.certificate(t, first), key)
	e.says(t, machine, infrav1.NodeMissingReason, first)

	for _, not := range []string{"host-1", "ip-10-1-2-5.ec2.internal", "10.1.2.4"} {
		request, _ := booting.ask(t, clientSigner, not, nil)
		g.Consistently(func(g Gomega) { e.leftAlone(g, request) }, quiet).Should(Succeed(), not)
	}

	// Cluster API copies the addresses to the Machine later than the kubelet asks.
	node.register(t, "simulated:///host-1")
	serving, _ := node.ask(t, servingSigner, name, []string{name}, net.ParseIP("10.1.2.4"))
	g.Consistently(func(g Gomega) { e.leftAlone(g, serving) }, quiet).Should(Succeed())
	e.patchStatus(g, machine, func() { machine.Status.Addresses = []clusterv1.MachineAddress{dns(name)} })
	e.certificate(t, serving)

	// A machine that has joined gets no new token, even if its Node's name is unknown because
	// "clusterctl move" dropped the status.
	stop()
	g.Expect(e.Delete(t.Context(), secret)).To(Succeed())
	e.patch(g, machine, func() { machine.Spec.ProviderID = "simulated:///host-1" })
	e.patchStatus(g, machine, func() { machine.Status.Addresses = nil })
	e.manager(t)
	g.Consistently(func() error { return e.Get(t.Context(), clientKey(secret), secret) },
		quiet).Should(MatchError(ContainSubstring("not found")))
}
