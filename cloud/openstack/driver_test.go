// SPDX-License-Identifier: Apache-2.0

package openstack

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
)

// TestCreate: one request creates the whole machine, and names are resolved once.
func TestCreate(t *testing.T) {
	g := NewWithT(t)
	p := ordinary(t)
	d := connected(t, p)
	req := requested(func(m *infrav1.OpenStackMachine) {
		m.Ports[0].SecurityGroups, m.KeyName, m.ConfigDrive = []string{"default"}, "operators", infrav1.FeatureEnabled
		m.ServerGroupID, m.SchedulerHints = "616fb98f-46ca-475e-917e-2563e5a8cd19", map[string]string{"near": "x"}
		m.Metadata, m.Tags = map[string]string{"cost-center": "4711"}, []string{"worker"}
	})
	req.FailureDomain = "az-2"
	made, err := d.Ensure(t.Context(), req)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(p.ops()).To(Equal([]string{"CreateToken", "ListServers", "ListFlavors", "ListImages", "ListNetworks", "CreateServer"}))
	g.Expect(made.ProviderID).To(Equal("openstack:///" + made.ID))
	g.Expect(made).To(And(HaveField("State", cloud.StatePending), HaveField("FailureDomain", "az-2"), HaveField("Token", req.Token)))

	var sent struct {
		Server map[string]any    `json:"server"`
		Hints  map[string]string `json:"OS-SCH-HNT:scheduler_hints"`
	}
	p.sent("CreateServer", &sent)
	g.Expect(sent.Server).To(And(
		HaveKeyWithValue("name", "blue-1"),
		HaveKeyWithValue("availability_zone", "az-2"),
		HaveKeyWithValue("key_name", "operators"),
		HaveKeyWithValue("config_drive", true),
		HaveKeyWithValue("user_data", "I2Nsb3VkLWNvbmZpZwo="),
		HaveKeyWithValue("tags", ConsistOf("drover", "drover-creation-token=recorded-token-0001", "worker")),
		HaveKeyWithValue("metadata", Equal(map[string]any{
			"drover-ownership-id": "owner-1", "drover-creation-token": "recorded-token-0001", "drover-machine": "team-a/blue-1",
			"cost-center": "4711",
		})),
		HaveKeyWithValue("networks", HaveExactElements(HaveKey("uuid"))),
		HaveKeyWithValue("security_groups", HaveExactElements(HaveKeyWithValue("name", "default"))),
	))
	g.Expect(sent.Hints).To(Equal(map[string]string{"group": "616fb98f-46ca-475e-917e-2563e5a8cd19", "near": "x"}))

	before := len(p.ops())
	req = requested(nil)
	req.Token = "recorded-token-0002"
	_, err = d.Ensure(t.Context(), req)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(p.ops()[before:]).To(Equal([]string{"ListServers", "CreateServer"}), "two calls for each further machine")
}

// TestRegionalProviderIDs: if the account enables it, the provider IDs of a create, a listing and
// the user data include the region.
func TestRegionalProviderIDs(t *testing.T) {
	g := NewWithT(t)
	p := ordinary(t)
	d := connected(t, p)
	d.account.Region, d.account.RegionalProviderIDs = "RegionOne", infrav1.FeatureEnabled
	made, err := d.Ensure(t.Context(), requested(nil))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(made.ProviderID).To(Equal("openstack://RegionOne/" + made.ID))
	p.play("ListServers", recorded(t, "servers"))
	found, err := d.List(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(found[0].ProviderID).To(Equal("openstack://RegionOne/" + found[0].ID))
	g.Expect(Cloud().ProviderID(&infrav1.DroverAccountSpec{Cloud: infrav1.AccountCloud{OpenStack: d.account}})).To(
		Equal("openstack://RegionOne/{{ v1.instance_id }}"))
}

// TestDryRun: what a machine names is looked up, and nothing is created.
func TestDryRun(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*infrav1.OpenStackMachine)
		none   string // the operation that finds nothing
		want   cloud.Code
	}{
		"all there":       {},
		"unknown flavor":  {change: func(m *infrav1.OpenStackMachine) { m.Flavor = "enormous" }, want: cloud.InvalidSpec},
		"no such image":   {none: "ListImages", want: cloud.NotFound},
		"no such network": {none: "ListNetworks", want: cloud.NotFound},
		"no such group": {none: "ListSecurityGroups",
			change: func(m *infrav1.OpenStackMachine) { m.Ports[0].SecurityGroups = []string{"nobody"} }, want: cloud.NotFound},
	} {
		t.Run(name, func(t *testing.T) {
			g, p := NewWithT(t), ordinary(t)
			if c.none != "" {
				p.play(c.none, madeUp(http.StatusOK, http.Header{"Content-Type": {"application/json"}},
					`{"images": [], "networks": [], "security_groups": []}`))
			}
			err := connected(t, p).DryRun(t.Context(), requested(c.change))
			g.Expect(cloud.CodeOf(err)).To(Equal(c.want), "%v", err)
			for _, op := range p.ops() {
				g.Expect(op).To(Or(HavePrefix("List"), HavePrefix("Get"), Equal("CreateToken")))
			}
		})
	}
}

// TestAdopt: a server with the token is the machine, whatever its spec. Two servers are a conflict.
func TestAdopt(t *testing.T) {
	g := NewWithT(t)
	p := ordinary(t)
	p.play("ListServers", recorded(t, "servers"))
	d := connected(t, p)
	req := requested(func(m *infrav1.OpenStackMachine) { m.Flavor = "gone-since" })
	found, err := d.Describe(t.Context(), []cloud.Reference{{Token: req.Token}})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(found).To(HaveLen(1))
	req.OwnershipID = found[0].OwnershipID
	made, err := d.Ensure(t.Context(), req)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(made).To(Equal(found[0]))
	g.Expect(p.count("CreateServer")).To(BeZero())

	req.OwnershipID = "another"
	_, err = d.Ensure(t.Context(), req)
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Conflict))

	twin := server{ID: "twin", Status: "ACTIVE", Metadata: map[string]string{cloud.TagToken: req.Token, cloud.TagOwnership: "owner-1"}}
	other := twin
	other.ID = "other"
	p.play("ListServers", listing(g, "servers", []server{twin, other}, false))
	_, err = d.Ensure(t.Context(), requested(nil))
	g.Expect(err).To(MatchError(ContainSubstring("twin, other")))
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Conflict))
	g.Expect(p.count("CreateServer")).To(BeZero())
}

// listing returns a page in the format of Nova and Neutron.
func listing(g Gomega, kind string, items any, more bool) func() (*http.Response, error) {
	page := map[string]any{kind: items}
	if more {
		page[kind+"_links"] = []map[string]string{{"rel": "next", "href": "http://elsewhere.example/"}}
	}
	body, err := json.Marshal(page)
	g.Expect(err).NotTo(HaveOccurred())
	return madeUp(http.StatusOK, nil, string(body))
}

// TestLostCreate: after a create with a lost answer, no other is sent while the first may take
// effect.
func TestLostCreate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		p := ordinary(t)
		p.play("CreateServer", lost)
		d := connected(t, p)
		for range 3 {
			_, err := d.Ensure(t.Context(), requested(nil))
			g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unavailable))
		}
		g.Expect(p.count("CreateServer")).To(Equal(1))
		g.Expect(p.count("ListServers")).To(Equal(3), "each time it is looked for")

		other := requested(nil)
		other.Token = "recorded-token-0002"
		p.play("CreateServer", recorded(t, "server-made"))
		_, err := d.Ensure(t.Context(), other)
		g.Expect(err).NotTo(HaveOccurred(), "no other machine waits")
		_, err = d.Ensure(t.Context(), other)
		g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unavailable), "what was made may be hidden for a moment")
		time.Sleep(minPending)
		_, err = d.Ensure(t.Context(), requested(nil))
		g.Expect(err).NotTo(HaveOccurred())
		time.Sleep(consistency)
		_, err = d.Ensure(t.Context(), other)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(d.creating.byToken).To(HaveLen(1), "what has ended is forgotten")
		g.Expect(p.count("CreateServer")).To(Equal(4))
	})
}

// TestSlowCreate: after a slow Nova, which may also act slowly, the next create waits longer. It
// also waits if an earlier process may have sent one. Meanwhile the driver looks for the server.
func TestSlowCreate(t *testing.T) {
	for name, c := range map[string]struct {
		open  bool
		waits time.Duration
	}{
		"of this process":   {false, 150 * time.Second},
		"of an earlier one": {true, inheritedPending},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := NewWithT(t)
				p := ordinary(t)
				p.play("CreateServer", func() (*http.Response, error) { time.Sleep(30 * time.Second); return lost() })
				d := connected(t, p)
				req := requested(nil)
				req.MaybeSent = c.open
				if !c.open {
					_, err := d.Ensure(t.Context(), req)
					g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unavailable))
				}
				sent, until := p.count("CreateServer"), time.Now().Add(c.waits)
				for time.Now().Before(until) {
					_, err := d.Ensure(t.Context(), req)
					var waits *cloud.Error
					g.Expect(errors.As(err, &waits)).To(BeTrue())
					g.Expect(waits.RetryAfter).To(Equal(min(minPending, time.Until(until))))
					time.Sleep(waits.RetryAfter - time.Nanosecond)
					_, err = d.Ensure(t.Context(), req)
					g.Expect(err).To(HaveOccurred())
					time.Sleep(time.Nanosecond)
				}
				g.Expect(p.count("CreateServer")).To(Equal(sent))
				p.play("CreateServer", recorded(t, "server-made"))
				_, err := d.Ensure(t.Context(), req)
				g.Expect(err).NotTo(HaveOccurred())
			})
		})
	}
}

// TestRefusedCreate: a refused create with ports returns the reason, and its ports are deleted.
func TestRefusedCreate(t *testing.T) {
	for name, want := range map[string]struct {
		code cloud.Code
		text string
	}{
		"server-over-quota": {cloud.QuotaExceeded, "Quota exceeded for instances"},
		"server-refused":    {cloud.NotFound, "00000000-0000-4000-8000-000000000000"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			p := ordinary(t)
			p.play("CreateServer", recorded(t, name))
			_, err := connected(t, p).Ensure(t.Context(), requested(ownPorts))
			g.Expect(cloud.CodeOf(err)).To(Equal(want.code))
			g.Expect(err).To(MatchError(ContainSubstring(want.text)))
			g.Expect(p.count("CreatePorts")).To(Equal(1))
			g.Expect(p.count("DeletePort")).To(Equal(2))
		})
	}
}

func ownPorts(m *infrav1.OpenStackMachine) {
	m.Ports = []infrav1.OpenStackPort{
		{Network: "nodes", SecurityGroups: []string{"default"},
			AllowedAddressPairs: []infrav1.OpenStackAddressPair{{IPAddress: "10.244.0.0/16", MACAddress: "fa:16:3e:00:00:01"}}, VNICType: "normal",
			Tags: []string{"team-a"}},
		{Network: "nodes", PortSecurity: infrav1.FeatureDisabled,
			FixedIPs: []infrav1.OpenStackFixedIP{{SubnetID: "616fb98f-46ca-475e-917e-2563e5a8cd19"}, {IPAddress: "10.0.0.10"}}},
	}
}

// TestNovaCreatesPorts: Nova creates ports that its request can describe, because that costs no
// call. It can describe a network for each port, and the same security groups for all.
func TestNovaCreatesPorts(t *testing.T) {
	groups, others := []string{"default"}, []string{"others"}
	for name, test := range map[string]struct {
		ports []infrav1.OpenStackPort
		root  infrav1.OpenStackVolume
		nova  bool
	}{
		"no ports":  {nova: true},
		"a network": {ports: []infrav1.OpenStackPort{{Network: "nodes"}}, nova: true},
		"networks and groups": {ports: []infrav1.OpenStackPort{{Network: "nodes", SecurityGroups: groups},
			{Network: "storage", SecurityGroups: groups}}, nova: true},
		"a volume of Nova": {ports: []infrav1.OpenStackPort{{Network: "nodes"}}, root: infrav1.OpenStackVolume{SizeGiB: 1}, nova: true},
		"a volume with a zone": {ports: []infrav1.OpenStackPort{{Network: "nodes"}},
			root: infrav1.OpenStackVolume{SizeGiB: 1, InMachineZone: infrav1.FeatureEnabled}},
		"groups of each": {ports: []infrav1.OpenStackPort{{Network: "nodes", SecurityGroups: groups},
			{Network: "storage", SecurityGroups: others}}},
		"groups of one": {ports: []infrav1.OpenStackPort{{Network: "nodes"}, {Network: "storage", SecurityGroups: groups}}},
		"an address": {ports: []infrav1.OpenStackPort{{Network: "nodes",
			FixedIPs: []infrav1.OpenStackFixedIP{{IPAddress: "10.0.0.10"}}}}},
		"a setting of the second": {ports: []infrav1.OpenStackPort{{Network: "nodes"},
			{Network: "storage", PortSecurity: infrav1.FeatureEnabled}}},
	} {
		machine := &infrav1.OpenStackMachine{Ports: test.ports, RootVolume: test.root}
		NewWithT(t).Expect(novaCreatesPorts(machine)).To(Equal(test.nova), name)
	}
}

// TestMissingGroup: a missing security group is NotFound, whether Nova or Drover creates the
// port, and whether the machine has its name or its ID.
func TestMissingGroup(t *testing.T) {
	const missing = "00000000-0000-4000-8000-000000000000"
	for name, test := range map[string]struct {
		group, op, want string
		answer          func() (*http.Response, error)
	}{
		"by name": {"nodes", "ListSecurityGroups", `security group "nodes" does not exist in the project`,
			madeUp(http.StatusOK, nil, `{"security_groups": []}`)},
		"by ID": {missing, "CreatePorts", "Security group " + missing + " does not exist",
			madeUp(http.StatusNotFound, nil, `{"NeutronError": {"type": "SecurityGroupNotFound", "message": "Security group `+missing+` does not exist", "detail": ""}}`)},
		"of Nova's port": {missing, "CreateServer", "Security group " + missing + " not found",
			madeUp(http.StatusBadRequest, nil, `{"badRequest": {"code": 400, "message": "Security group `+missing+` not found for project p."}}`)},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			p := ordinary(t)
			p.play(test.op, test.answer)
			_, err := connected(t, p).Ensure(t.Context(), requested(func(m *infrav1.OpenStackMachine) {
				m.Ports[0].SecurityGroups = []string{test.group}
				if test.op != "CreateServer" {
					m.Ports[0].VNICType = "normal"
				}
			}))
			g.Expect(cloud.CodeOf(err)).To(Equal(cloud.NotFound))
			g.Expect(err).To(MatchError(ContainSubstring(test.want)))
		})
	}
}

// TestPorts: all ports have the machine's token and ownership ID from the start. Existing ports are
// adopted, and only missing ones are created.
func TestPorts(t *testing.T) {
	g := NewWithT(t)
	p := ordinary(t)
	d := connected(t, p)
	_, err := d.Ensure(t.Context(), requested(ownPorts))
	g.Expect(err).NotTo(HaveOccurred())
	var sent struct {
		Ports []map[string]any `json:"ports"`
	}
	p.sent("CreatePorts", &sent)
	g.Expect(sent.Ports).To(HaveLen(2))
	g.Expect(sent.Ports[0]).To(And(
		HaveKeyWithValue("name", "drover-creation-token=recorded-token-0001"),
		HaveKeyWithValue("description", "drover-ownership-id=owner-1 drover-port=0 drover-machine=team-a/blue-1"),
		HaveKeyWithValue("allowed_address_pairs", ConsistOf(map[string]any{"ip_address": "10.244.0.0/16", "mac_address": "fa:16:3e:00:00:01"})),
		HaveKeyWithValue("security_groups", HaveLen(1)),
		HaveKeyWithValue("binding:vnic_type", "normal"),
		HaveKeyWithValue("tags", ConsistOf("team-a")),
		Not(HaveKey("port_security_enabled")),
	))
	g.Expect(sent.Ports[1]).To(And(
		HaveKeyWithValue("port_security_enabled", false), Not(HaveKey("security_groups")),
		HaveKeyWithValue("fixed_ips", HaveExactElements(
			map[string]any{"subnet_id": "616fb98f-46ca-475e-917e-2563e5a8cd19"}, map[string]any{"ip_address": "10.0.0.10"})),
	))

	there := port{ID: "second", Name: portName("recorded-token-0001"), Description: portDescription(requested(ownPorts), 1)}
	p.play("ListPorts", listing(g, "ports", []port{there}, false))
	first := port{ID: "first", Name: there.Name, Description: portDescription(requested(ownPorts), 0)}
	p.play("CreatePorts", func() (*http.Response, error) {
		body, err := json.Marshal(map[string]any{"ports": []port{first}})
		g.Expect(err).NotTo(HaveOccurred())
		return madeUp(http.StatusCreated, nil, string(body))()
	})
	_, err = connected(t, p).Ensure(t.Context(), requested(ownPorts))
	g.Expect(err).NotTo(HaveOccurred())
	p.sent("CreatePorts", &sent)
	g.Expect(sent.Ports).To(ConsistOf(HaveKeyWithValue("description", first.Description)))
	var server struct {
		Server struct{ Networks []networkRef }
	}
	p.sent("CreateServer", &server)
	g.Expect(server.Server.Networks).To(Equal([]networkRef{{Port: "first"}, {Port: "second"}}))

	twin := there
	twin.ID = "twin"
	p.play("ListPorts", listing(g, "ports", []port{there, twin}, false))
	_, err = connected(t, p).Ensure(t.Context(), requested(ownPorts))
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Conflict))

	p.play("ListPorts", recorded(t, "ports-none"))
	p.play("CreatePorts", recorded(t, "ports-over-quota"))
	_, err = connected(t, p).Ensure(t.Context(), requested(ownPorts))
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.QuotaExceeded))
}

// TestReplacedImage: if an image from a lookup is gone, the machine does not fail, and the lookup
// is repeated.
func TestReplacedImage(t *testing.T) {
	g := NewWithT(t)
	p := ordinary(t)
	d := connected(t, p)
	found, err := d.image(t.Context(), infrav1.OpenStackImage{Name: "node-image"})
	g.Expect(err).NotTo(HaveOccurred())
	p.play("CreateServer", madeUp(http.StatusBadRequest, nil,
		fmt.Sprintf(`{"badRequest": {"code": 400, "message": "Image %s could not be found."}}`, found.ID)))
	_, err = d.Ensure(t.Context(), requested(nil))
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.NotFound))
	_, err = d.Ensure(t.Context(), requested(nil))
	g.Expect(err).To(HaveOccurred())
	g.Expect(p.count("ListImages")).To(Equal(2))
}

// TestPages: a listing has all pages in order and uses only the catalog's address. An invalid
// page or an endless listing is an error.
func TestPages(t *testing.T) {
	g := NewWithT(t)
	p := ordinary(t)
	d := connected(t, p)
	d.pageSize = 20
	var answers []func() (*http.Response, error)
	for page := range 5 {
		servers := make([]server, 20)
		for i := range servers {
			servers[i] = server{ID: fmt.Sprintf("s-%03d", 20*page+i), Status: "ACTIVE", Metadata: map[string]string{cloud.TagOwnership: "owner-1"}}
		}
		answers = append(answers, listing(g, "servers", servers, page < 4))
	}
	p.play("ListServers", answers...)
	found, err := d.List(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(found).To(HaveLen(100))
	var markers []string
	for _, c := range p.calls {
		if c.op == "ListServers" {
			g.Expect(c.req.URL.Host).To(Equal("127.0.0.1:25004"))
			g.Expect(c.req.URL.Query().Get("limit")).To(Equal("20"))
			markers = append(markers, c.req.URL.Query().Get("marker"))
		}
	}
	g.Expect(markers).To(Equal([]string{"", "s-019", "s-039", "s-059", "s-079"}))

	p.play("ListServers", answers[0], madeUp(http.StatusOK, nil, "{}"))
	_, err = d.List(t.Context())
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unknown), "a page without servers is no page")
	p.play("ListServers", answers[0])
	before := p.count("ListServers")
	_, err = d.List(t.Context())
	g.Expect(p.count("ListServers") - before).To(Equal(2))
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unknown), "the same page again and again")
	g.Expect(err).To(MatchError(ContainSubstring("does not end")))
}

// TestListing: servers and ports are returned with their tokens, and only those that are Drover's.
func TestListing(t *testing.T) {
	g := NewWithT(t)
	p := ordinary(t)
	p.play("ListServers", recorded(t, "server-failed"))
	p.play("GetServer", lost, recorded(t, "server-fault"))
	p.play("ListPorts", recorded(t, "ports"))
	d := connected(t, p)
	found, err := d.Describe(t.Context(), []cloud.Reference{{Token: "recorded-token-0002"}})
	g.Expect(err).NotTo(HaveOccurred(), "without its fault, too")
	g.Expect(found[0].Reason).To(ContainSubstring("gives no reason"))
	found, err = d.Describe(t.Context(), []cloud.Reference{{Token: "recorded-token-0002"}, {}, {Token: "recorded-token-0002"}})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(found).To(HaveLen(3))
	g.Expect(found[0]).To(And(HaveField("State", cloud.StateFailed), HaveField("Code", cloud.NoCapacity),
		HaveField("Reason", HavePrefix("No valid host was found"))))
	g.Expect(found).To(HaveEach(HaveField("Token", "recorded-token-0002")))
	g.Expect(found[1:]).To(HaveEach(And(HaveField("Kind", cloud.KindNIC), HaveField("CreatedAt.IsZero()", false))))

	_, err = d.List(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(p.count("GetServer")).To(Equal(2), "a fault is asked for once")

	p.play("ListServers", listing(g, "servers", []server{{ID: "theirs", Status: "ACTIVE"}}, false))
	p.play("ListPorts", listing(g, "ports", []port{{ID: "theirs", Name: "drover-creation-token=x"}}, false))
	g.Expect(d.List(t.Context())).To(BeEmpty())
}

// TestDescribeMany: many machines are read by tokens, 50 at a time, or with one full listing if
// that is known to be cheaper.
func TestDescribeMany(t *testing.T) {
	g := NewWithT(t)
	p := ordinary(t)
	d := connected(t, p)
	d.inheritedUntil = time.Time{}
	refs := many(101)
	servers := []server{{ID: "one", Metadata: map[string]string{cloud.TagOwnership: "owner-1", cloud.TagToken: "token-100"}},
		{ID: "other", Metadata: map[string]string{cloud.TagOwnership: "owner-1", cloud.TagToken: "other"}}}
	g.Expect(d.Describe(t.Context(), refs)).To(BeEmpty())
	g.Expect(p.count("ListServers")).To(Equal(3))
	g.Expect(p.count("ListPorts")).To(Equal(3))

	p.play("ListServers", listing(g, "servers", servers, false))
	_, err := d.List(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(d.Describe(t.Context(), refs)).To(ConsistOf(HaveField("ID", "one")))
	g.Expect(p.count("ListServers")).To(Equal(3 + 1 + 1))
	g.Expect(p.count("ListPorts")).To(Equal(3 + 1 + 1))

	p.play("ListPorts", append(foreignPorts(g, 2), recorded(t, "ports-none"))...)
	_, err = d.List(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	_, err = d.Describe(t.Context(), refs)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(p.count("ListServers")).To(Equal(3+1+1+1+3), "now that a listing of everything takes more than one page")
}

// TestDelete: a missing resource counts as deleted, a failed deletion is an error, and a
// middlebox's answer is not accepted.
func TestDelete(t *testing.T) {
	g := NewWithT(t)
	p := ordinary(t)
	one := []cloud.Resource{{Kind: cloud.KindInstance, ID: "one"}}
	p.play("DeleteServer", madeUp(http.StatusNoContent, http.Header{"X-Openstack-Request-Id": {"req-1"}}, ""),
		madeUp(http.StatusNoContent, nil, ""))
	d := connected(t, p)
	g.Expect(d.Delete(t.Context(), one)[0]).NotTo(HaveOccurred())
	g.Expect(cloud.CodeOf(d.Delete(t.Context(), one)[0])).To(Equal(cloud.Unknown))
	p.play("DeleteServer", recorded(t, "server-gone"))
	errs := connected(t, p).Delete(t.Context(), []cloud.Resource{
		{Kind: cloud.KindInstance, ID: "gone"}, {Kind: cloud.KindNIC, ID: "gone"}, {Kind: "Strange", ID: "strange"},
	})
	g.Expect(errs).To(HaveLen(3))
	g.Expect(errs[:2]).To(HaveEach(BeNil()))
	g.Expect(cloud.CodeOf(errs[2])).To(Equal(cloud.InvalidSpec))
	p.play("DeleteServer", madeUp(http.StatusConflict, nil, `{"conflictingRequest": {"code": 409, "message": "Instance is locked"}}`))
	g.Expect(cloud.CodeOf(connected(t, p).Delete(t.Context(), one)[0])).To(Equal(cloud.Conflict))
}

// TestDeleteWithoutOwner: a load balancer without a token or an ownership ID is not deleted, and
// nothing is looked for by an empty one: floating IPs of others may have it.
func TestDeleteWithoutOwner(t *testing.T) {
	g := NewWithT(t)
	p := ordinary(t)
	for _, r := range []cloud.Resource{{}, {Token: "token-1"}, {OwnershipID: "owner-1"}} {
		r.Kind, r.ID = cloud.KindBalancer, "one"
		g.Expect(cloud.CodeOf(connected(t, p).Delete(t.Context(), []cloud.Resource{r})[0])).To(Equal(cloud.InvalidSpec))
	}
	g.Expect(p.calls).To(BeEmpty())
}

// slow makes each delete take a second.
type slow struct{ http.RoundTripper }

func (s slow) RoundTrip(req *http.Request) (*http.Response, error) {
	if op := cloud.OperationOf(req.Context()).Name; op == "DeleteServer" {
		time.Sleep(time.Second)
	}
	return s.RoundTripper.RoundTrip(req)
}

// TestDeletesTogether: a full batch ends within one call's time even if each delete takes a second,
// and the deletes do not all run at once.
func TestDeletesTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		p := ordinary(t)
		d := connected(t, slow{p})
		began := time.Now()
		errs := d.Delete(t.Context(), slices.Repeat([]cloud.Resource{{Kind: cloud.KindInstance, ID: "one"}}, maxDelete))
		g.Expect(errs).To(And(HaveLen(maxDelete), HaveEach(BeNil())))
		g.Expect(p.count("DeleteServer")).To(Equal(maxDelete))
		g.Expect(p.count("CreateToken")).To(Equal(1))
		g.Expect(time.Since(began)).To(Equal(5 * time.Second))
	})
}

// TestState: all of Nova's statuses, and the two ways into ERROR.
func TestState(t *testing.T) {
	for _, test := range []struct {
		status, task, launched string
		want                   cloud.State
	}{
		{"BUILD", "spawning", "", cloud.StatePending},
		{"ACTIVE", "", "x", cloud.StateRunning},
		{"ACTIVE", "deleting", "x", cloud.StateStopping},
		{"ERROR", "deleting", "", cloud.StateStopping},
		{"REBOOT", "", "x", cloud.StateRunning},
		{"MIGRATING", "", "x", cloud.StateRunning},
		{"ERROR", "", "", cloud.StateFailed},
		{"ERROR", "", "x", cloud.StateStopped},
		{"SHUTOFF", "", "x", cloud.StateStopped},
		{"SHELVED_OFFLOADED", "", "x", cloud.StateStopped},
		{"SOFT_DELETED", "", "x", cloud.StateTerminated},
		{"DELETED", "deleting", "x", cloud.StateTerminated},
	} {
		s := server{Status: test.status, Task: test.task, Launched: test.launched}
		state, _, _ := s.state()
		NewWithT(t).Expect(state).To(Equal(test.want), "%+v", test)
	}
}

func TestAddresses(t *testing.T) {
	s := server{Name: "blue-1", AccessIPv4: "192.0.2.7", Addresses: map[string][]address{
		"storage": {{"10.1.0.5", "fixed"}},
		"nodes":   {{"2001:db8::5", "fixed"}, {"10.0.0.5", "fixed"}, {"192.0.2.7", "floating"}},
	}}
	NewWithT(t).Expect(s.addresses()).To(Equal([]clusterv1.MachineAddress{
		{Type: clusterv1.MachineHostName, Address: "blue-1"},
		{Type: clusterv1.MachineInternalIP, Address: "10.0.0.5"},
		{Type: clusterv1.MachineExternalIP, Address: "192.0.2.7"},
		{Type: clusterv1.MachineInternalIP, Address: "2001:db8::5"},
		{Type: clusterv1.MachineInternalIP, Address: "10.1.0.5"},
	}))
}

func TestOffering(t *testing.T) {
	g := NewWithT(t)
	p := ordinary(t)
	d := connected(t, p)
	offering, err := d.Offering(t.Context(), requested(nil).Spec)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(offering.Architecture + "/" + offering.OperatingSystem).To(Equal("amd64/linux"))
	for name, want := range map[corev1.ResourceName]string{"cpu": "1", "memory": "512Mi", "ephemeral-storage": "1Gi", "pods": "110"} {
		have := offering.Capacity[name]
		g.Expect(have.String()).To(Equal(want), "%s", name)
	}
	offering, err = d.Offering(t.Context(), requested(func(m *infrav1.OpenStackMachine) { m.Flavor = "gpu" }).Spec)
	g.Expect(err).NotTo(HaveOccurred())
	gpu := offering.Capacity["nvidia.com/gpu"]
	g.Expect(gpu.String()).To(Equal("2"))

	_, err = d.Offering(t.Context(), requested(func(m *infrav1.OpenStackMachine) {
		m.Image = infrav1.OpenStackImage{ID: "00000000-0000-4000-8000-000000000000"}
	}).Spec)
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.InvalidSpec), "Glance's refusal has a form of its own: %v", err)

	for range 2 {
		_, err = d.Offering(t.Context(), requested(func(m *infrav1.OpenStackMachine) { m.Flavor = "enormous" }).Spec)
		g.Expect(cloud.CodeOf(err)).To(Equal(cloud.InvalidSpec))
	}
	g.Expect(p.count("ListFlavors")).To(Equal(2), "a flavor that was not there is looked for again")
}

// TestExtraSpecs: what a flavor's extra specs say about its machines.
func TestExtraSpecs(t *testing.T) {
	for _, test := range []struct {
		extra map[string]string
		arch  string
		gpus  map[corev1.ResourceName]int64
	}{
		{nil, "", nil},
		{map[string]string{"trait:HW_ARCH_AARCH64": "required"}, "aarch64", nil},
		{map[string]string{"trait:HW_ARCH_AARCH64": "forbidden"}, "", nil},
		{map[string]string{"capabilities:cpu_arch": "s== x86_64"}, "x86_64", nil},
		{map[string]string{"cpu_arch": "aarch64"}, "aarch64", nil},
		{map[string]string{"resources:VGPU": "1"}, "", map[corev1.ResourceName]int64{"nvidia.com/gpu": 1}},
		{map[string]string{"pci_passthrough:alias": "gpu-a100:2, nic:1,nvidia-l40s:1"}, "", map[corev1.ResourceName]int64{"nvidia.com/gpu": 3}},
		{map[string]string{"pci_passthrough:alias": "amd-gpu:4"}, "", map[corev1.ResourceName]int64{"amd.com/gpu": 4}},
		{map[string]string{"pci_passthrough:alias": "intel-gpu:1,radeon:2,fpga:1"}, "", map[corev1.ResourceName]int64{"amd.com/gpu": 2}},
		{map[string]string{"pci_passthrough:alias": "gpu:many", "resources:VGPU": "-1"}, "", nil},
	} {
		g := NewWithT(t)
		g.Expect(flavorArchitecture(test.extra)).To(Equal(test.arch), "%v", test.extra)
		if test.gpus == nil {
			test.gpus = map[corev1.ResourceName]int64{}
		}
		g.Expect(gpus(test.extra)).To(Equal(test.gpus), "%v", test.extra)
	}
}

// TestUserData: Nova's maximum is accepted, and one more byte is refused without a call to Nova.
func TestUserData(t *testing.T) {
	g := NewWithT(t)
	p := ordinary(t)
	d := connected(t, p)
	req := requested(nil)
	req.UserData = []byte(strings.Repeat("a", maxUserData))
	_, err := d.Ensure(t.Context(), req)
	g.Expect(err).NotTo(HaveOccurred())
	var sent struct {
		Server struct {
			UserData string `json:"user_data"`
		}
	}
	p.sent("CreateServer", &sent)
	g.Expect(len(sent.Server.UserData)).To(BeNumerically("<=", 65535))
	req.UserData, req.Token = append(req.UserData, 'a'), "recorded-token-0002"
	_, err = d.Ensure(t.Context(), req)
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.InvalidSpec))
	g.Expect(p.count("CreateServer")).To(Equal(1))
}

func TestEndedContext(t *testing.T) {
	g := NewWithT(t)
	p := ordinary(t)
	d := connected(t, p)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := d.Ensure(ctx, requested(nil))
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unavailable))
	g.Expect(p.ops()).To(BeEmpty())
}
