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

func withTrunk(m *infrav1.OpenStackMachine) {
	ownPorts(m)
	m.Ports[1].Trunk = infrav1.FeatureEnabled
}

// portsOfTrunk returns the machine's two ports. The second has the trunk id, or none if id is "".
func portsOfTrunk(id string) []port {
	req := requested(withTrunk)
	return []port{
		{ID: "first", Name: portName(req.Token), Description: portDescription(req, 0)},
		{ID: "second", Name: portName(req.Token), Description: portDescription(req, 1), Trunk: trunk{id}},
	}
}

// TestTrunk: a trunk is created once for a port that requires it, before the server.
func TestTrunk(t *testing.T) {
	g := NewWithT(t)
	p := ordinary(t)
	p.play("CreatePorts", listing(g, "ports", portsOfTrunk(""), false))
	_, err := connected(t, p).Ensure(t.Context(), requested(withTrunk))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(slices.DeleteFunc(p.ops(), func(op string) bool {
		return !slices.Contains([]string{"CreatePorts", "CreateTrunk", "CreateServer"}, op)
	})).To(Equal([]string{"CreatePorts", "CreateTrunk", "CreateServer"}))
	var sent struct{ Trunk map[string]string }
	p.sent("CreateTrunk", &sent)
	g.Expect(sent.Trunk).To(Equal(map[string]string{"port_id": "second", "name": portName("recorded-token-0001")}))

	for id, made := range map[string]int{"": 1, "there": 0} {
		p := ordinary(t)
		p.play("ListPorts", listing(g, "ports", portsOfTrunk(id), false))
		_, err := connected(t, p).Ensure(t.Context(), requested(withTrunk))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(p.count("CreateTrunk")).To(Equal(made))
	}
}

// TestTrunkRefused: a refused machine leaves no trunk. The error for a Neutron without trunks says
// so.
func TestTrunkRefused(t *testing.T) {
	g := NewWithT(t)
	p := ordinary(t)
	p.play("ListPorts", listing(g, "ports", portsOfTrunk(""), false))
	p.play("CreateServer", recorded(t, "server-over-quota"))
	_, err := connected(t, p).Ensure(t.Context(), requested(withTrunk))
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.QuotaExceeded), "%v", err)
	ops := p.ops()
	g.Expect(ops[len(ops)-3:]).To(Equal([]string{"DeleteTrunk", "DeletePort", "DeletePort"}))

	p = ordinary(t)
	p.play("CreateTrunk", madeUp(http.StatusNotFound, http.Header{"X-Openstack-Request-Id": {"req-1"}},
		`{"message": "The resource could not be found."}`))
	_, err = connected(t, p).Ensure(t.Context(), requested(withTrunk))
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.InvalidSpec))
	g.Expect(err).To(MatchError(ContainSubstring("does not have the service plugin")))
	g.Expect(p.count("DeletePort")).To(Equal(2))

	p = ordinary(t)
	p.play("CreateTrunk", lost)
	_, err = connected(t, p).Ensure(t.Context(), requested(withTrunk))
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unavailable))
	g.Expect(p.count("DeletePort")).To(BeZero(), "whether there is a trunk is open")
}

// TestTrunkGoes: a port is reported only after its trunk is gone, so that it is deleted later.
func TestTrunkGoes(t *testing.T) {
	g := NewWithT(t)
	p := ordinary(t)
	d := connected(t, p)
	p.play("ListPorts", listing(g, "ports", portsOfTrunk("there"), false))
	found, err := d.List(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(found).To(ConsistOf(
		cloud.Resource{Kind: cloud.KindNIC, ID: "first", Token: "recorded-token-0001", OwnershipID: "owner-1"},
		cloud.Resource{Kind: cloud.KindNIC, ID: "trunk/there", Token: "recorded-token-0001", OwnershipID: "owner-1"},
	))
	g.Expect(d.Delete(t.Context(), found)).To(HaveEach(BeNil()))
	g.Expect(p.count("DeleteTrunk")).To(Equal(1))
	g.Expect(p.count("DeletePort")).To(Equal(1))
	p.play("ListPorts", listing(g, "ports", portsOfTrunk(""), false))
	g.Expect(d.List(t.Context())).To(ConsistOf(HaveField("ID", "first"), HaveField("ID", "second")))
}
