// SPDX-License-Identifier: Apache-2.0

package gcp

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/conformance/faults"
	"github.com/drover-io/drover/cloud/gcp/gcpstub"
)

func balancerRequest(targets ...string) cloud.BalancerRequest {
	return cloud.BalancerRequest{Token: "balancer", OwnershipID: "owner", Namespace: "ns", Name: "blue", Port: 6443, Targets: targets,
		Spec: testBalancer()}
}

var balancerRef = []cloud.Reference{{Token: "balancer", OwnershipID: "owner"}}

// targets makes machines, one in each zone in turn, and returns their addresses, sorted.
func targets(t *testing.T, d *driver, n int) (addresses []string) {
	t.Helper()
	for i := range n {
		req := testRequest(fmt.Sprintf("cp-%d", i), nil)
		req.FailureDomain = gcpstub.Zones()[i%3]
		made, err := ensured(t, d, req)
		if err != nil {
			t.Fatal(err)
		}
		addresses = append(addresses, made.Addresses[1].Address)
	}
	slices.Sort(addresses)
	return addresses
}

// balanced repeats a step until it succeeds.
func balanced(t *testing.T, d *driver, req cloud.BalancerRequest) (made cloud.Resource) {
	t.Helper()
	NewWithT(t).Eventually(func() (err error) {
		made, err = d.EnsureBalancer(t.Context(), req)
		return err
	}, "10s", "5ms").Should(Succeed())
	return made
}

// deleted deletes the load balancer until a read shows nothing.
func deleted(t *testing.T, d *driver) {
	t.Helper()
	NewWithT(t).Eventually(func() []cloud.Resource {
		found, err := d.Describe(t.Context(), balancerRef)
		if err != nil {
			return []cloud.Resource{{}}
		}
		d.Delete(t.Context(), found)
		return found
	}, "10s", "5ms").Should(BeEmpty())
}

func stubCalls(stub *gcpstub.Cloud) (n int) {
	for _, calls := range stub.Calls() {
		n += calls
	}
	return n
}

// addressesOf returns the addresses of the load balancer's targets.
func addressesOf(r cloud.Resource) (all []string) {
	for _, t := range r.Balancer.Targets {
		all = append(all, t.Address)
	}
	return all
}

// TestBalancerCalls counts the calls of a cluster of three machines in a region of three zones,
// where Compute Engine makes each part at once: 12 to make its load balancer, two for each target
// that is added, one for each that is removed, and five a listing.
func TestBalancerCalls(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	stub := start(t, gcpstub.Options{})
	d := connect(t, stub)
	d.readLag = 0
	ips := targets(t, d, 4)
	list := func() (state *cloud.BalancerState, calls int) {
		before := stub.Calls()
		all, err := d.List(ctx)
		g.Expect(err).NotTo(HaveOccurred())
		for op, n := range stub.Calls() {
			if op != "GET aggregated/instances" && op != "GET aggregated/disks" {
				calls += n - before[op]
			}
		}
		for _, r := range all {
			if r.Kind == cloud.KindBalancer {
				g.Expect(r.State).To(Equal(cloud.StateRunning))
				state = r.Balancer
			}
		}
		return state, calls
	}
	change := func(req cloud.BalancerRequest) int {
		before := stubCalls(stub)
		made, err := d.EnsureBalancer(ctx, req)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(addressesOf(made)).To(Equal(req.Targets))
		return stubCalls(stub) - before
	}

	_, calls := list()
	g.Expect(calls).To(Equal(1), "the first listing of a process looks for health checks")
	_, calls = list()
	g.Expect(calls).To(BeZero(), "a project without load balancers")

	req := balancerRequest(ips[0])
	_, err := d.zones.Get(ctx, "", d.readRegion) // is known to the engine's driver for an hour
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(change(req)).To(Equal(12 + 2))
	req.Recorded = true
	req.Targets = ips[:2]
	g.Expect(change(req)).To(Equal(2))
	req.Targets = ips[:3]
	g.Expect(change(req)).To(Equal(2))
	g.Expect(change(req)).To(BeZero(), "nothing changes")
	state, calls := list()
	g.Expect(state.Targets).To(HaveLen(3))
	g.Expect(state.Targets).To(HaveEach(HaveField("Healthy", true)))
	g.Expect(state.Zones).To(Equal(gcpstub.Zones()))
	g.Expect(state.Port).To(BeEquivalentTo(6443))
	g.Expect(calls).To(Equal(2 + len(gcpstub.Zones())))

	req.Targets = ips
	rolling := change(req)
	req.Targets = ips[1:]
	rolling += change(req)
	g.Expect(rolling).To(Equal(3))
	state, _ = list()
	g.Expect(state.Targets).To(HaveLen(3))

	before := stubCalls(stub)
	deleted(t, d)
	g.Expect(stubCalls(stub)-before).To(BeNumerically("<=", 2*7+11), "each part is read and deleted, and the whole before and after")
	g.Expect(stub.BalancersMade()).To(Equal(1))
}

// TestBalancerOfAnotherProcess: a process that knows nothing finds the load balancer, in a listing
// and by its token, and changes and deletes it.
func TestBalancerOfAnotherProcess(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	stub := start(t, gcpstub.Options{Parts: 10 * time.Millisecond})
	first := connect(t, stub)
	ips := targets(t, first, 3)
	made := balanced(t, first, balancerRequest(ips[:2]...))
	g.Expect(made.Balancer.Address).NotTo(BeEmpty())
	g.Eventually(func() ([]cloud.Resource, error) {
		found, err := connect(t, stub).List(ctx)
		return slices.DeleteFunc(found, func(r cloud.Resource) bool { return r.Kind != cloud.KindBalancer }), err
	}).Should(ConsistOf(And(HaveField("ID", made.ID), HaveField("Token", "balancer"), HaveField("OwnershipID", "owner"),
		HaveField("CreatedAt", Not(BeZero())), HaveField("Balancer.Address", made.Balancer.Address), HaveField("Balancer.Targets", HaveLen(2)))))

	req := balancerRequest(ips[2])
	req.Recorded = true
	changed := balanced(t, connect(t, stub), req)
	g.Expect(addressesOf(changed)).To(Equal(ips[2:]))
	g.Eventually(func() []string {
		found, err := connect(t, stub).Describe(ctx, balancerRef)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(found).To(HaveLen(1))
		return addressesOf(found[0])
	}).Should(Equal(ips[2:]))
	deleted(t, connect(t, stub))
	g.Expect(stub.Left(cloud.TagToken, "balancer")).To(BeEmpty())
	g.Expect(stub.BalancersMade()).To(Equal(1))
}

// TestLostBalancer: a forwarding rule that somebody deleted is not made again. The other parts are
// shown until they are deleted.
func TestLostBalancer(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	stub := start(t, gcpstub.Options{})
	d := connect(t, stub)
	d.readLag = 0
	req := balancerRequest()
	balanced(t, d, req)
	stub.RemoveBalancers()
	all, err := d.List(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(all).To(ConsistOf(And(HaveField("Balancer.Address", ""), HaveField("State", cloud.StatePending))))
	req.Recorded = true
	for _, d := range []*driver{d, connect(t, stub)} {
		_, err = d.EnsureBalancer(ctx, req)
		g.Expect(cloud.CodeOf(err)).To(Equal(cloud.NotFound), "%v", err)
	}
	g.Expect(stub.BalancersMade()).To(Equal(1))
	deleted(t, d)
	g.Expect(stub.Left(cloud.TagToken, "balancer")).To(BeEmpty())
}

// TestBalancerRefusals: each error of Google, at once or of an operation, has the code that tells
// the engine what to do. The same load balancer is made afterwards.
func TestBalancerRefusals(t *testing.T) {
	t.Parallel()
	for op, test := range map[string]struct {
		fault gcpstub.Fault
		want  cloud.Code
	}{
		"POST healthChecks":                                 {gcpstub.Fault{Status: 403, Reason: "forbidden"}, cloud.Unauthorized},
		"POST networkEndpointGroups":                        {gcpstub.Fault{Status: 404, Reason: notFound}, cloud.NotFound},
		"POST backendServices":                              {gcpstub.Fault{Birth: "QUOTA_EXCEEDED"}, cloud.QuotaExceeded},
		"POST targetTcpProxies":                             {gcpstub.Fault{Status: 403, Reason: "quotaExceeded"}, cloud.QuotaExceeded},
		"POST forwardingRules":                              {gcpstub.Fault{Birth: "INTERNAL_ERROR"}, cloud.Unavailable},
		"POST networkEndpointGroups/attachNetworkEndpoints": {gcpstub.Fault{Status: 404, Reason: notFound}, cloud.Unavailable},
	} {
		t.Run(op, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			stub := start(t, gcpstub.Options{Parts: 10 * time.Millisecond})
			d := connect(t, stub)
			ips := targets(t, d, 1)
			test.fault.Operation = op
			undo := stub.Inject(test.fault)
			g.Eventually(func() bool {
				_, err := d.EnsureBalancer(t.Context(), balancerRequest(ips...))
				return cloud.CodeOf(err) == test.want && !strings.Contains(err.Error(), "is creating")
			}).Should(BeTrue())
			undo()
			g.Expect(addressesOf(balanced(t, d, balancerRequest(ips...)))).To(Equal(ips))
		})
	}
}

// TestBalancerWithoutRole: an account that may not read load balancers has none, unless the driver
// knows one.
func TestBalancerWithoutRole(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	stub := start(t, gcpstub.Options{})
	d := connect(t, stub)
	undo := stub.Inject(gcpstub.Fault{Operation: "GET healthChecks", Status: 403, Reason: "forbidden"})
	g.Expect(d.Describe(ctx, balancerRef)).To(BeEmpty())
	for range 2 {
		g.Expect(d.List(ctx)).To(BeEmpty())
	}
	g.Expect(stub.Calls()["GET healthChecks"]).To(Equal(2), "a listing does not ask again")
	recorded := []cloud.Reference{{Token: "recorded", OwnershipID: "owner", Balancer: true}}
	other := connect(t, stub)
	_, err := other.Describe(ctx, recorded)
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unauthorized), "what was made may be there: %v", err)
	g.Expect(other.List(ctx)).To(BeEmpty(), "that ends no listing")
	g.Expect(other.Describe(ctx, balancerRef)).To(BeEmpty(), "nor the read of a machine")
	undo()
	balanced(t, d, balancerRequest())
	defer stub.Inject(gcpstub.Fault{Operation: "GET healthChecks", Status: 403, Reason: "forbidden"})()
	for _, read := range []func() ([]cloud.Resource, error){
		func() ([]cloud.Resource, error) { return d.List(ctx) },
		func() ([]cloud.Resource, error) { return d.Describe(ctx, balancerRef) },
	} {
		_, err := read()
		g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unauthorized), "%v", err)
	}
}

// TestBalancerWithoutSettings: the network must be named, and a target must be a machine of the
// cluster.
func TestBalancerWithoutSettings(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	d := connect(t, start(t, gcpstub.Options{}))
	req := balancerRequest("192.0.2.1")
	_, err := d.EnsureBalancer(t.Context(), req)
	g.Expect(err).To(MatchError(ContainSubstring("no instance of the cluster has the address 192.0.2.1")))
	req.Spec, req.Token = nil, "another"
	_, err = d.EnsureBalancer(t.Context(), req)
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.InvalidSpec), "%v", err)
}

// TestBalancerLostAnswer: after a change without an answer, the driver reads which targets there
// are. What can't be added keeps nothing from being removed.
func TestBalancerLostAnswer(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	stub := start(t, gcpstub.Options{})
	d := connect(t, stub)
	ips := targets(t, d, 2)
	req := balancerRequest(ips[0])
	balanced(t, d, req)
	req.Recorded, req.Targets = true, ips
	undo := stub.Inject(gcpstub.Fault{Operation: "POST networkEndpointGroups/attachNetworkEndpoints", Instead: faults.Cut, After: true})
	_, err := d.EnsureBalancer(ctx, req)
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unavailable), "%v", err)
	undo()
	req.Targets = ips[:1]
	g.Expect(addressesOf(balanced(t, d, req))).To(Equal(ips[:1]))

	req.Targets = ips
	undo = stub.Inject(gcpstub.Fault{Operation: "POST networkEndpointGroups/attachNetworkEndpoints", Instead: faults.Cut})
	_, err = d.EnsureBalancer(ctx, req)
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unavailable), "%v", err)
	undo()
	g.Expect(addressesOf(balanced(t, d, req))).To(Equal(ips))
	found, err := connect(t, stub).Describe(ctx, balancerRef)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(found).To(ConsistOf(HaveField("Balancer.Targets", HaveLen(2))))

	req.Targets = []string{"192.0.2.1"}
	_, err = d.EnsureBalancer(ctx, req)
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unavailable), "%v", err)
	found, err = connect(t, stub).Describe(ctx, balancerRef)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(found).To(ConsistOf(HaveField("Balancer.Targets", BeEmpty())))
}

// TestBalancerJustChanged: while Compute Engine carries out a change, the driver's reads show what
// it has asked for. So the engine does not ask for it again.
func TestBalancerJustChanged(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	stub := start(t, gcpstub.Options{Parts: 300 * time.Millisecond})
	d := connect(t, stub)
	d.readLag = time.Minute
	ips := targets(t, d, 2)
	req := balancerRequest(ips[0])
	balanced(t, d, req)
	req.Recorded = true
	for _, want := range [][]string{ips, ips[1:]} {
		req.Targets = want
		balanced(t, d, req)
		found, err := d.Describe(ctx, balancerRef)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(found).To(HaveLen(1))
		g.Expect(addressesOf(found[0])).To(Equal(want))
	}
}

// TestForeignParts: parts that only have the name, and not the tags, are neither used nor deleted.
func TestForeignParts(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	stub := start(t, gcpstub.Options{})
	d := connect(t, stub)
	d.readLag = 0
	others := d.partBody(balancerRequest(), healthChecks, nil).(*healthCheck)
	others.Description = cloud.TagToken + "=others"
	id := requestID(cloud.Request{Token: "others"}, "", 0)
	_, err := d.change(ctx, request{op: "CreateHealthCheck", method: http.MethodPost, path: healthChecks.path,
		query: url.Values{"requestId": {id}}, in: others})
	g.Expect(err).NotTo(HaveOccurred())
	_, err = d.EnsureBalancer(ctx, balancerRequest())
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Conflict), "%v", err)
	d.Delete(ctx, []cloud.Resource{{Kind: cloud.KindBalancer, ID: partName("balancer"), Token: "balancer", OwnershipID: "owner"}})
	g.Expect(stub.Left(cloud.TagToken, "others")).To(HaveLen(1))
}

// TestBalancerWithoutTags: a load balancer whose tags somebody deleted from the description of its
// health check is not gone.
func TestBalancerWithoutTags(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	stub := start(t, gcpstub.Options{})
	d := connect(t, stub)
	others := d.partBody(balancerRequest(), healthChecks, nil).(*healthCheck)
	others.Description = cloud.TagOwnership + "=owner"
	_, err := d.change(ctx, request{op: "CreateHealthCheck", method: http.MethodPost, path: healthChecks.path,
		query: url.Values{"requestId": {requestID(cloud.Request{Token: "others"}, "", 0)}}, in: others})
	g.Expect(err).NotTo(HaveOccurred())
	_, err = connect(t, stub).Describe(ctx, balancerRef)
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Conflict), "%v", err)
	g.Expect(err).To(MatchError(ContainSubstring(partName("balancer"))))
	g.Expect(connect(t, stub).Describe(ctx, []cloud.Reference{{Token: "another", OwnershipID: "owner"}})).To(BeEmpty())
}

// TestBalancerDeletedEarly: a load balancer that is deleted while a create has no answer leaves
// nothing, although the part appears later.
func TestBalancerDeletedEarly(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	stub := start(t, gcpstub.Options{})
	d := connect(t, stub)
	undo := stub.Inject(gcpstub.Fault{Operation: "POST networkEndpointGroups", Late: true, Delay: 200 * time.Millisecond, Count: 1})
	_, err := d.EnsureBalancer(ctx, balancerRequest())
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unavailable), "%v", err)
	undo()
	found, err := d.Describe(ctx, balancerRef)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(found).To(ConsistOf(HaveField("State", cloud.StatePending)))
	var queued *cloud.Queued
	g.Expect(errors.As(d.Delete(ctx, found)[0], &queued)).To(BeTrue())
	deleted(t, d)
	g.Expect(stub.Left(cloud.TagToken, "balancer")).To(BeEmpty())
}

// TestBalancersAreCopies: an attempt changes its load balancer step by step, while listings and
// other attempts read it. They see no half of a step.
func TestBalancersAreCopies(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	var known balancers
	mine := known.get("t", "owner")
	g.Expect(mine.owner).To(Equal("owner"))
	mine.targets, mine.sent["a"] = map[string]endpoint{"10.0.0.1": {zone: "z"}}, true
	known.put(mine)
	mine.targets["10.0.0.2"], mine.sent["b"] = endpoint{}, true
	other := known.get("t", "else")
	g.Expect(other.owner).To(Equal("owner"))
	g.Expect(other.targets).To(HaveLen(1))
	g.Expect(other.sent).To(HaveLen(1))
	delete(other.targets, "10.0.0.1")
	clear(other.sent)
	g.Expect(known.get("t", "owner").targets).To(HaveLen(1))
	g.Expect(known.get("t", "owner").sent).To(HaveLen(1))
}
