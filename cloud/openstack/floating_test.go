// SPDX-License-Identifier: Apache-2.0

package openstack

import (
	"net/http"
	"slices"
	"testing"

	. "github.com/onsi/gomega"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
)

const poolID = "616fb98f-46ca-475e-917e-2563e5a8cd19"

func withFloatingIP(m *infrav1.OpenStackMachine) {
	ownPorts(m)
	m.Ports[0].FloatingNetwork = poolID
}

// portsThere returns the machine's two ports.
func portsThere() []port {
	req := requested(withFloatingIP)
	return []port{
		{ID: "first", Name: portName(req.Token), Description: portDescription(req, 0)},
		{ID: "second", Name: portName(req.Token), Description: portDescription(req, 1)},
	}
}

func floatingIPsThere(g Gomega, all ...floatingIP) func() (*http.Response, error) {
	return listing(g, "floatingips", append([]floatingIP{}, all...), false)
}

// TestFloatingIP: a floating IP is created for a port whose description announces it. For existing
// ports, their existing floating IPs are found.
func TestFloatingIP(t *testing.T) {
	g := NewWithT(t)
	req := requested(withFloatingIP)
	p := ordinary(t)
	_, err := connected(t, p).Ensure(t.Context(), req)
	g.Expect(err).NotTo(HaveOccurred())
	made := slices.DeleteFunc(p.ops(), func(op string) bool {
		return !slices.Contains([]string{"CreatePorts", "ListFloatingIPs", "CreateFloatingIP", "CreateServer"}, op)
	})
	g.Expect(made).To(Equal([]string{"CreatePorts", "CreateFloatingIP", "CreateServer"}), "ports that were made just now have none")
	var sent struct {
		Ports      []newPort
		FloatingIP map[string]string
	}
	p.sent("CreatePorts", &sent)
	p.sent("CreateFloatingIP", &sent)
	g.Expect(sent.Ports[0].Description).To(ContainSubstring(" drover-floating-ip=yes "))
	g.Expect(sent.Ports[1].Description).NotTo(ContainSubstring("drover-floating-ip"))
	g.Expect(sent.FloatingIP).To(And(HaveKeyWithValue("floating_network_id", poolID), HaveKeyWithValue("description", portName(req.Token)),
		HaveKeyWithValue("port_id", Not(BeEmpty()))))

	for name, test := range map[string]struct {
		there []floatingIP
		made  int
	}{
		"none":    {nil, 1},
		"its own": {[]floatingIP{{ID: "one", PortID: "first", Description: portName(req.Token)}}, 0},
		"loose":   {[]floatingIP{{ID: "one", Description: portName(req.Token)}}, 1},
	} {
		p := ordinary(t)
		p.play("ListPorts", listing(g, "ports", portsThere(), false))
		p.play("ListFloatingIPs", floatingIPsThere(g, test.there...))
		_, err := connected(t, p).Ensure(t.Context(), req)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(p.count("CreatePorts")).To(BeZero())
		g.Expect(p.count("CreateFloatingIP")).To(Equal(test.made), name)
	}
}

// TestFloatingIPRefused: a refused machine leaves neither ports nor floating IPs. But the ports
// stay if their floating IPs are unknown, or if one can't be deleted.
func TestFloatingIPRefused(t *testing.T) {
	unavailable := madeUp(http.StatusServiceUnavailable, nil, "")
	throttled := madeUp(http.StatusTooManyRequests, nil, "")
	for name, test := range map[string]struct {
		prepare        func(g Gomega, p *playback)
		code           cloud.Code
		ports, address int // number of deletions
	}{
		"server": {func(_ Gomega, p *playback) { p.play("CreateServer", recorded(p.t, "server-over-quota")) },
			cloud.QuotaExceeded, 2, 1},
		"floating IP": {func(_ Gomega, p *playback) { p.play("CreateFloatingIP", recorded(p.t, "ports-over-quota")) },
			cloud.QuotaExceeded, 2, 0},
		"floating IP, lost": {func(_ Gomega, p *playback) { p.play("CreateFloatingIP", lost) }, cloud.Unavailable, 0, 0},
		"its deletion": {func(_ Gomega, p *playback) {
			p.play("CreateServer", recorded(p.t, "server-over-quota"))
			p.play("DeleteFloatingIP", unavailable)
		}, cloud.QuotaExceeded, 0, 1},
		"not known which": {func(g Gomega, p *playback) {
			p.play("ListPorts", listing(g, "ports", portsThere(), false))
			p.play("ListFloatingIPs", throttled)
		}, cloud.Throttled, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			p := ordinary(t)
			test.prepare(g, p)
			_, err := connected(t, p).Ensure(t.Context(), requested(withFloatingIP))
			g.Expect(cloud.CodeOf(err)).To(Equal(test.code), "%v", err)
			g.Expect(p.count("DeletePort")).To(Equal(test.ports))
			g.Expect(p.count("DeleteFloatingIP")).To(Equal(test.address))
		})
	}
}

// TestFloatingIPGoes: a port with a floating IP is reported only after that is gone, so that it is
// deleted later. Without floating IPs there is no extra call.
func TestFloatingIPGoes(t *testing.T) {
	g := NewWithT(t)
	req := requested(nil)
	p := ordinary(t)
	d := connected(t, p)
	p.play("ListPorts", listing(g, "ports", portsThere()[1:], false))
	_, err := d.List(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(p.count("ListFloatingIPs")).To(BeZero())

	p.play("ListPorts", listing(g, "ports", portsThere(), false))
	p.play("ListFloatingIPs", floatingIPsThere(g, floatingIP{ID: "one", PortID: "first", Description: portName(req.Token)},
		floatingIP{ID: "theirs"}))
	for _, look := range []func() ([]cloud.Resource, error){
		func() ([]cloud.Resource, error) { return d.List(t.Context()) },
		func() ([]cloud.Resource, error) {
			return d.Describe(t.Context(), []cloud.Reference{{Token: req.Token}})
		},
	} {
		g.Expect(look()).To(ConsistOf(
			cloud.Resource{Kind: cloud.KindAddress, ID: "one", Token: req.Token, OwnershipID: "owner-1"},
			cloud.Resource{Kind: cloud.KindNIC, ID: "second", Token: req.Token, OwnershipID: "owner-1"},
		))
	}
	p.play("ListFloatingIPs", floatingIPsThere(g))
	g.Expect(d.List(t.Context())).To(ConsistOf(HaveField("ID", "first"), HaveField("ID", "second")))
}
