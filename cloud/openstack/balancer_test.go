// SPDX-License-Identifier: Apache-2.0

package openstack

import (
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gophercloud/gophercloud/v2/openstack/loadbalancer/v2/listeners"
	"github.com/gophercloud/gophercloud/v2/openstack/loadbalancer/v2/loadbalancers"
	"github.com/gophercloud/gophercloud/v2/openstack/loadbalancer/v2/monitors"
	"github.com/gophercloud/gophercloud/v2/openstack/loadbalancer/v2/pools"
	. "github.com/onsi/gomega"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
)

const (
	subnetOfBalancer = "8a49c438-848f-467b-9655-ea1548708154"
	balancerID       = "c331058c-6a40-4144-948e-b9fb1df9db4b"
	balancersPool    = "2ba6f9d8-0d0e-4bb6-8f8c-f0f9e1c8e7a1"
)

// octavia plays Octavia and the floating IPs of Neutron for one load balancer.
// test/clouds/openstack has the real ones.
type octavia struct {
	*playback
	g Gomega

	there      map[string]any // the load balancer; nil: none
	members    []map[string]any
	floatingIP []map[string]any
	made       int
	// lose loses the answer of the next call of the operation, after its effect; drop loses the
	// call itself.
	lose, drop string
}

var withRequestID = http.Header{"X-Openstack-Request-Id": {"req-1"}}

func newOctavia(t *testing.T) *octavia {
	g := NewWithT(t)
	o := &octavia{playback: ordinary(t), g: g}
	token := recorded(t, "token")
	o.play("CreateToken", func() (*http.Response, error) { // the catalog gets an Octavia
		resp, err := token()
		body, _ := io.ReadAll(resp.Body)
		entry := regexp.MustCompile(`"catalog": ?\[`).ReplaceAllString(string(body),
			`"catalog": [{"type": "load-balancer", "name": "octavia", "id": "1", "endpoints": [{"interface": "public", "region": "RegionOne", "region_id": "RegionOne", "url": "http://127.0.0.1:29876", "id": "2"}]}, `)
		resp.Body = io.NopCloser(strings.NewReader(entry))
		return resp, err
	})
	return o
}

func (o *octavia) status(now string) { o.there["provisioning_status"] = now }

func (o *octavia) RoundTrip(req *http.Request) (*http.Response, error) {
	op := cloud.OperationOf(req.Context()).Name
	if o.drop == op {
		o.drop = ""
		return lost()
	}
	answer := o.answer(op, req)
	if answer == nil {
		return o.playback.RoundTrip(req)
	}
	o.calls = append(o.calls, call{op: op, req: req})
	if o.lose == op {
		o.lose = ""
		return lost()
	}
	return answer()
}

func (o *octavia) answer(op string, req *http.Request) func() (*http.Response, error) {
	var body map[string]any
	if strings.Contains(op, "LoadBalancer") || strings.Contains(op, "Members") {
		o.g.Expect(req.URL.Path).To(HavePrefix("/v2.0/lbaas/"))
	}
	read := func() { o.g.Expect(json.NewDecoder(req.Body).Decode(&body)).To(Succeed()) }
	say := func(status int, is any) func() (*http.Response, error) {
		raw, _ := json.Marshal(is)
		return madeUp(status, withRequestID, string(raw))
	}
	refuse := func(status int, text string) func() (*http.Response, error) {
		return say(status, map[string]any{"faultcode": "Client", "faultstring": text, "debuginfo": nil})
	}
	mutable := func() bool { return o.there["provisioning_status"] == "ACTIVE" }
	switch op {
	case "CreateLoadBalancer":
		read()
		o.made++
		asked := body["loadbalancer"].(map[string]any)
		pool := asked["listeners"].([]any)[0].(map[string]any)["default_pool"].(map[string]any)
		o.setMembers(pool["members"].([]any))
		o.there = map[string]any{
			"id": balancerID, "name": asked["name"], "description": asked["description"], "vip_address": "10.0.0.7", "vip_port_id": "2a22e552-a347-44fd-b530-1f2b1b2a6735",
			"provisioning_status": "PENDING_CREATE",
			"operating_status":    "OFFLINE", "created_at": "2026-11-26T04:15:37", "tags": asked["tags"],
			"listeners": []any{map[string]any{"id": "l"}},
			"pools":     []any{map[string]any{"id": balancersPool}},
		}
		return say(http.StatusCreated, map[string]any{"loadbalancer": o.there})
	case "ListLoadBalancers":
		all := []any{}
		if o.there != nil && o.matches(req) {
			all = append(all, o.there)
		}
		return say(http.StatusOK, map[string]any{"loadbalancers": all})
	case "ListMembers":
		o.g.Expect(req.URL.Path).To(ContainSubstring(balancersPool))
		return say(http.StatusOK, map[string]any{"members": append([]map[string]any{}, o.members...)})
	case "UpdateMembers":
		if !mutable() {
			return refuse(http.StatusConflict, "Load Balancer "+balancerID+" is immutable and cannot be updated.")
		}
		read()
		o.setMembers(body["members"].([]any))
		o.status("PENDING_UPDATE")
		return madeUp(http.StatusAccepted, withRequestID, "")
	case "DeleteLoadBalancer":
		o.g.Expect(req.URL.Query().Get("cascade")).To(Equal("true"))
		if !mutable() && o.there["provisioning_status"] != "ERROR" {
			return refuse(http.StatusConflict, "Invalid state "+o.there["provisioning_status"].(string)+" of loadbalancer resource "+balancerID)
		}
		o.g.Expect(o.floatingIP).To(BeEmpty(), "a floating IP is left")
		o.status("PENDING_DELETE")
		return madeUp(http.StatusNoContent, withRequestID, "")
	case "CreateFloatingIP":
		read()
		asked := body["floatingip"].(map[string]any)
		o.floatingIP = append(o.floatingIP, map[string]any{"id": "f", "port_id": asked["port_id"], "description": asked["description"],
			"floating_ip_address": "192.0.2.9"})
		return say(http.StatusCreated, map[string]any{"floatingip": o.floatingIP[len(o.floatingIP)-1]})
	case "ListFloatingIPs":
		return say(http.StatusOK, map[string]any{"floatingips": append([]map[string]any{}, o.floatingIP...)})
	case "DeleteFloatingIP":
		o.floatingIP = nil
		return madeUp(http.StatusNoContent, withRequestID, "")
	}
	return nil
}

func (o *octavia) setMembers(all []any) {
	o.members = nil
	for _, m := range all {
		is := m.(map[string]any)
		o.members = append(o.members, map[string]any{"id": "m", "address": is["address"], "protocol_port": is["protocol_port"],
			"operating_status": "ONLINE", "provisioning_status": "ACTIVE"})
	}
}

// matches reports whether the load balancer has the description of a listing, or its tags: all of
// "tags", or one of "tags-any".
func (o *octavia) matches(req *http.Request) bool {
	q, has := req.URL.Query(), func(tag string) bool { return slices.Contains(o.there["tags"].([]any), any(tag)) }
	if is := q.Get("description"); is != "" {
		return o.there["description"] == is
	}
	if some := q.Get("tags-any"); some != "" {
		return slices.ContainsFunc(strings.Split(some, ","), has)
	}
	o.g.Expect(q.Get("tags")).NotTo(BeEmpty(), "a listing without tags reads others' load balancers")
	return has(q.Get("tags"))
}

func balancerRequest(targets ...string) cloud.BalancerRequest {
	return cloud.BalancerRequest{
		Token: "balancer-token-0001", OwnershipID: "owner-1", Namespace: "team-a", Name: "blue", Port: 6443, Targets: targets,
		Spec: &infrav1.LoadBalancerCloud{OpenStack: &infrav1.OpenStackLoadBalancer{Subnet: subnetOfBalancer}},
	}
}

// TestBalancer makes a load balancer, changes its targets and deletes it, and counts the calls.
func TestBalancer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		o := newOctavia(t)
		d := connected(t, o)
		during := func(do func()) []string {
			before := len(o.calls)
			do()
			return slices.DeleteFunc(o.ops()[before:], func(op string) bool { return op == "CreateToken" })
		}
		none := during(func() { g.Expect(d.List(t.Context())).To(BeEmpty()) })
		g.Expect(none).To(Equal([]string{"ListServers", "ListPorts", "ListLoadBalancers"}), "the first listing searches for load balancers")
		g.Expect(during(func() { g.Expect(d.List(t.Context())).To(BeEmpty()) })).To(Equal([]string{"ListServers", "ListPorts"}))

		req := balancerRequest("10.0.0.1")
		ensure := func() (r cloud.Resource) {
			r, err := d.EnsureBalancer(t.Context(), req)
			g.Expect(err).NotTo(HaveOccurred())
			return r
		}
		var r cloud.Resource
		g.Expect(during(func() { r = ensure() })).To(Equal([]string{"ListLoadBalancers", "ListLoadBalancers", "CreateLoadBalancer"}),
			"by its tags, and by its description")
		g.Expect(r).To(Equal(cloud.Resource{
			Kind: cloud.KindBalancer, ID: balancerID, Token: req.Token, OwnershipID: req.OwnershipID, State: cloud.StatePending,
			CreatedAt: time.Date(2026, 11, 26, 4, 15, 37, 0, time.UTC),
			Balancer:  &cloud.BalancerState{Address: "10.0.0.7", Port: 6443, Targets: []cloud.BalancerTarget{{Address: "10.0.0.1"}}},
		}))

		req.Recorded, req.Targets = true, []string{"10.0.0.1", "10.0.0.2"}
		_, err := d.EnsureBalancer(t.Context(), req)
		var queued *cloud.Queued
		g.Expect(err).To(BeAssignableToTypeOf(queued), "Octavia is busy, which is no failure")
		o.status("ACTIVE")
		g.Expect(during(func() { r = ensure() })).To(Equal([]string{"ListLoadBalancers", "ListMembers", "UpdateMembers"}))
		g.Expect(r.Balancer.Targets).To(Equal([]cloud.BalancerTarget{{Address: "10.0.0.1", Healthy: true}, {Address: "10.0.0.2"}}))
		g.Expect(during(func() { ensure() })).To(Equal([]string{"ListLoadBalancers", "ListMembers"}))
		o.status("ACTIVE")
		g.Expect(during(func() {
			g.Expect(d.List(t.Context())).To(ConsistOf(And(HaveField("State", cloud.StateRunning),
				HaveField("Balancer.Targets", HaveEach(HaveField("Healthy", true))))))
		})).To(Equal([]string{"ListServers", "ListPorts", "ListLoadBalancers", "ListMembers"}))

		ref := cloud.Reference{Token: req.Token, OwnershipID: req.OwnershipID}
		time.Sleep(consistency)
		o.status("PENDING_UPDATE")
		g.Expect(d.Delete(t.Context(), []cloud.Resource{r})[0]).To(BeAssignableToTypeOf(queued))
		o.status("ACTIVE")
		g.Expect(during(func() {
			g.Expect(d.Delete(t.Context(),
				[]cloud.Resource{r})).To(HaveEach(BeNil()))
		})).To(Equal([]string{"ListFloatingIPs", "DeleteLoadBalancer"}))
		g.Expect(d.Describe(t.Context(), []cloud.Reference{ref})).To(HaveLen(1), "until Octavia has deleted it")
		_, err = d.EnsureBalancer(t.Context(), req)
		g.Expect(cloud.CodeOf(err)).To(Equal(cloud.NotFound))
		o.there = nil
		g.Expect(d.Describe(t.Context(), []cloud.Reference{ref})).To(BeEmpty())
		_, err = d.EnsureBalancer(t.Context(), req)
		g.Expect(cloud.CodeOf(err)).To(Equal(cloud.NotFound))
		g.Expect(o.made).To(Equal(1))
	})
}

// TestBalancerWithoutTags: a load balancer whose tags somebody took off is neither gone nor made
// again, and is not deleted.
func TestBalancerWithoutTags(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		o := newOctavia(t)
		req := balancerRequest("10.0.0.1")
		_, err := connected(t, o).EnsureBalancer(t.Context(), req)
		g.Expect(err).NotTo(HaveOccurred())
		o.status("ACTIVE")
		time.Sleep(time.Hour)
		tags := o.there["tags"]
		ref := cloud.Reference{Token: req.Token, OwnershipID: req.OwnershipID, Balancer: true}
		for name, left := range map[string][]any{
			"none": {}, "no owner": {cloud.TagToken + "=" + req.Token}, "another token": {cloud.TagToken + "=b", cloud.TagOwnership + "=o"},
		} {
			o.there["tags"] = left
			d := connected(t, o) // after a restart
			g.Expect(d.List(t.Context())).To(BeEmpty())
			_, err = d.Describe(t.Context(), []cloud.Reference{ref})
			g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Conflict), "%s: %v", name, err)
			g.Expect(err).To(MatchError(ContainSubstring(balancerID + " exists without its tags")))
			for _, req.Recorded = range []bool{true, false} {
				_, err = d.EnsureBalancer(t.Context(), req)
				g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Conflict), "%s: %v", name, err)
			}
		}
		o.there["tags"] = tags
		d := connected(t, o)
		g.Expect(d.Describe(t.Context(), []cloud.Reference{ref})).To(HaveLen(1))
		o.status("DELETED")
		g.Expect(d.Describe(t.Context(), []cloud.Reference{ref})).To(BeEmpty())
		g.Expect(o.made).To(Equal(1))
	})
}

// TestBalancerIsReplaced: a load balancer that Octavia failed to create is deleted and created again
// while nobody has its address.
func TestBalancerIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		o := newOctavia(t)
		d := connected(t, o)
		req := balancerRequest()
		req.Spec.OpenStack.FloatingNetwork = poolID
		_, err := d.EnsureBalancer(t.Context(), req)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(o.floatingIP).To(HaveLen(1))
		o.status("ERROR")
		var queued *cloud.Queued
		_, err = d.EnsureBalancer(t.Context(), req)
		g.Expect(err).To(BeAssignableToTypeOf(queued), "what was created may not be shown yet")
		time.Sleep(consistency)
		_, err = d.EnsureBalancer(t.Context(), req)
		g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unavailable))
		g.Expect(err).To(MatchError(ContainSubstring("another one is created")))
		g.Expect(o.floatingIP).To(BeEmpty())
		g.Expect(o.there).To(HaveKeyWithValue("provisioning_status", "PENDING_DELETE"))
		_, err = d.EnsureBalancer(t.Context(), req)
		g.Expect(err).To(MatchError(ContainSubstring("is being deleted")))
		o.there = nil
		g.Expect(d.EnsureBalancer(t.Context(), req)).To(HaveField("State", cloud.StatePending))
		g.Expect(o.made).To(Equal(2))
	})
}

// TestBalancerLost: if somebody else deletes a load balancer, Neutron keeps its floating IP, on no
// port. The deletion finds it, until it is gone, and machines do not pay for that.
func TestBalancerLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		o := newOctavia(t)
		req := balancerRequest("10.0.0.1")
		req.Spec.OpenStack.FloatingNetwork = poolID
		_, err := connected(t, o).EnsureBalancer(t.Context(), req)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(o.floatingIP).To(HaveLen(1))

		d := connected(t, o) // another process, which reconciles the cluster
		time.Sleep(inheritedPending)
		o.there = nil
		req.Recorded = true
		_, err = d.EnsureBalancer(t.Context(), req)
		g.Expect(cloud.CodeOf(err)).To(Equal(cloud.NotFound))
		refs := []cloud.Reference{{Token: "machine", OwnershipID: "owner-1"}, {Token: req.Token, OwnershipID: req.OwnershipID}}
		g.Expect(d.Describe(t.Context(), refs)).To(BeEmpty(), "somebody uses it on another port")
		_, err = d.EnsureBalancer(t.Context(), req)
		g.Expect(cloud.CodeOf(err)).To(Equal(cloud.NotFound))
		o.floatingIP[0]["port_id"] = nil
		want := cloud.Resource{Kind: cloud.KindAddress, ID: "f", Token: req.Token, OwnershipID: req.OwnershipID}
		for range 2 { // as long as it is there
			g.Expect(d.Describe(t.Context(), refs)).To(ConsistOf(want))
		}
		for _, c := range o.calls {
			if c.op == "ListFloatingIPs" {
				g.Expect(c.req.URL.Query()["description"]).To(Equal([]string{portName(req.Token)}), "not the machine's")
			}
		}
		g.Expect(d.Delete(t.Context(), []cloud.Resource{want})).To(HaveEach(BeNil()))
		g.Expect(o.floatingIP).To(BeEmpty())
		g.Expect(d.Describe(t.Context(), refs)).To(BeEmpty())
		before := o.count("ListFloatingIPs")
		g.Expect(d.Describe(t.Context(), refs)).To(BeEmpty())
		g.Expect(o.count("ListFloatingIPs")).To(Equal(before), "it is forgotten")
	})
}

// TestBalancerBody: Drover sends what gophercloud's types for Octavia make of the same settings.
func TestBalancerBody(t *testing.T) {
	for provider, want := range map[string]struct {
		method  pools.LBMethod
		monitor monitors.CreateOpts
	}{
		"ovn": {pools.LBMethodSourceIpPort, monitors.CreateOpts{Type: monitors.TypeTCP}},
		"amphora": {pools.LBMethodRoundRobin, monitors.CreateOpts{Type: monitors.TypeHTTPS, HTTPMethod: "GET", URLPath: "/readyz",
			ExpectedCodes: "200"}},
	} {
		t.Run(provider, func(t *testing.T) {
			g := NewWithT(t)
			req := balancerRequest("10.0.0.1")
			*req.Spec.OpenStack = infrav1.OpenStackLoadBalancer{Subnet: subnetOfBalancer, Provider: provider, FlavorID: "f",
				AvailabilityZone: "az-1", FloatingNetwork: poolID}
			body, err := connected(t, newOctavia(t)).balancerBody(t.Context(), req)
			g.Expect(err).NotTo(HaveOccurred())
			const name = "team-a/blue"
			monitor := want.monitor
			monitor.Name, monitor.Delay, monitor.Timeout, monitor.MaxRetries, monitor.MaxRetriesDown = name, 10, 5, 2, 2
			expected, err := loadbalancers.CreateOpts{
				Name: name, Description: portName(req.Token), VipSubnetID: subnetOfBalancer,
				Provider: provider, FlavorID: "f", AvailabilityZone: "az-1",
				Tags: []string{"drover", cloud.TagOwnership + "=owner-1", cloud.TagToken + "=" + req.Token, "drover-port=6443", "drover-floating-ip"},
				Listeners: []listeners.CreateOpts{{Name: name, Protocol: listeners.ProtocolTCP, ProtocolPort: 6443, DefaultPool: &pools.CreateOpts{
					Name: name, Protocol: pools.ProtocolTCP, LBMethod: want.method, Monitor: monitor,
					Members: []pools.CreateMemberOpts{{Address: "10.0.0.1", ProtocolPort: 6443}},
				}}},
			}.ToLoadBalancerCreateMap()
			g.Expect(err).NotTo(HaveOccurred())
			theirs, _ := json.Marshal(expected)
			ours, _ := json.Marshal(map[string]any{"loadbalancer": body})
			g.Expect(ours).To(MatchJSON(theirs))
		})
	}
}

// TestBalancerCrash: wherever a process ends, the next ones make one load balancer with one
// floating IP, and delete both.
func TestBalancerCrash(t *testing.T) {
	for _, op := range []string{"ListLoadBalancers", "CreateLoadBalancer", "CreateFloatingIP", "ListMembers", "UpdateMembers",
		"ListFloatingIPs", "DeleteFloatingIP", "DeleteLoadBalancer"} {
		for _, happened := range []bool{true, false} {
			t.Run(op, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					g := NewWithT(t)
					o := newOctavia(t)
					if happened {
						o.lose = op
					} else {
						o.drop = op
					}
					d := connected(t, o)
					restart := func() { d = connected(t, o) } // for three minutes, a create of the former may still take effect
					req := balancerRequest("10.0.0.1")
					req.MaybeSent, req.Spec.OpenStack.FloatingNetwork = true, poolID
					until := func(what string, is func() error) {
						for range 60 {
							if err := is(); err == nil {
								return
							} else if cloud.CodeOf(err) == cloud.Unavailable && (o.lose == "" && o.drop == "") {
								restart()
								for cloud.CodeOf(is()) == cloud.Unavailable {
									time.Sleep(minPending)
								}
							}
							time.Sleep(busy)
							if o.there != nil && o.there["provisioning_status"] == "PENDING_DELETE" {
								o.there = nil
							} else if o.there != nil {
								o.status("ACTIVE")
							}
						}
						t.Fatalf("%s: not after five minutes", what)
					}
					for _, req.Targets = range [][]string{{"10.0.0.1"}, {"10.0.0.1", "10.0.0.2"}} {
						until("is as requested", func() error {
							r, err := d.EnsureBalancer(t.Context(), req)
							if err == nil && (r.Balancer.Address != "192.0.2.9" || len(r.Balancer.Targets) != len(req.Targets)) {
								err = io.EOF
							}
							return err
						})
						req.Recorded = true
					}
					g.Expect(o.made).To(Equal(1))
					g.Expect(o.floatingIP).To(HaveLen(1))
					until("is gone", func() error {
						found, err := d.Describe(t.Context(), []cloud.Reference{{Token: req.Token, OwnershipID: req.OwnershipID}})
						if err != nil {
							return err
						}
						if len(found) == 0 {
							return nil
						}
						if err := d.Delete(t.Context(), found)[0]; err != nil {
							return err
						}
						return io.EOF
					})
					g.Expect(o.there).To(BeNil())
					g.Expect(o.floatingIP).To(BeEmpty())
					g.Expect(o.lose+o.drop).To(BeEmpty(), "the call was made")
				})
			})
		}
	}
}

// TestBalancerLostCreate: after a create with a lost answer, no other is sent while the first may
// take effect, not even by another process.
func TestBalancerLostCreate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		o := newOctavia(t)
		o.drop = "CreateLoadBalancer"
		req := balancerRequest()
		for _, d := range []*driver{connected(t, o), connected(t, o)} {
			for range 3 {
				_, err := d.EnsureBalancer(t.Context(), req)
				req.MaybeSent = true
				g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unavailable))
			}
			g.Expect(o.made).To(BeZero())
			time.Sleep(inheritedPending - minPending - time.Second)
		}
		time.Sleep(minPending + time.Second)
		d := connected(t, o)
		time.Sleep(inheritedPending)
		_, err := d.EnsureBalancer(t.Context(), req)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(o.made).To(Equal(1))
	})
}

// TestBalancerRefused: what Octavia refuses, and a cloud without it.
func TestBalancerRefused(t *testing.T) {
	g := NewWithT(t)
	_, err := connected(t, ordinary(t)).EnsureBalancer(t.Context(), balancerRequest())
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.InvalidSpec))
	g.Expect(err).To(MatchError(ContainSubstring("(Octavia)")))
	for _, test := range []struct {
		status int
		text   string
		want   cloud.Code
	}{
		{http.StatusForbidden, "Quota has been met for resources: Load Balancer", cloud.QuotaExceeded},
		{http.StatusForbidden, "Policy does not allow this request to be performed.", cloud.Unauthorized},
		{http.StatusNotFound, "Subnet x not found.", cloud.InvalidSpec},
		{http.StatusBadRequest, "Validation failure: no.", cloud.InvalidSpec},
		{http.StatusNotImplemented, "Provider 'ovn' does not support a requested option: no.", cloud.InvalidSpec},
	} {
		body, _ := json.Marshal(map[string]any{"faultcode": "Client", "faultstring": test.text, "debuginfo": nil})
		r, ok := refusalOf(test.status, withRequestID, body)
		g.Expect(ok).To(BeTrue())
		g.Expect(r.message).To(Equal(test.text))
		if test.status != http.StatusNotFound { // of a create, it becomes InvalidSpec
			g.Expect(r.code(cloud.ClassCreate)).To(Equal(test.want), test.text)
		}
	}

	o := newOctavia(t)
	d := connected(t, o)
	req := balancerRequest("10.0.0.1")
	_, err = d.EnsureBalancer(t.Context(), req)
	g.Expect(err).NotTo(HaveOccurred())
	o.status("ERROR")
	req.Recorded = true
	g.Expect(d.EnsureBalancer(t.Context(), req)).To(HaveField("State", cloud.StateFailed))
	req.Targets = nil
	_, err = d.EnsureBalancer(t.Context(), req)
	g.Expect(err).To(MatchError(ContainSubstring("in ERROR")))
	req.OwnershipID = "owner-2"
	_, err = d.EnsureBalancer(t.Context(), req)
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Conflict), "another cluster's")
}
