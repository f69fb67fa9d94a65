// SPDX-License-Identifier: Apache-2.0

package azure

import (
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/azure/armstub"
	"github.com/drover-io/drover/cloud/conformance"
	"github.com/drover-io/drover/cloud/conformance/faults"
)

func balancerRequest(internal bool, targets ...string) cloud.BalancerRequest {
	return cloud.BalancerRequest{Token: "balancer", OwnershipID: "owner", Namespace: "ns", Name: "blue", Port: 6443, Targets: targets,
		Spec: testBalancer(internal)}
}

var balancerRef = []cloud.Reference{{Token: "balancer", OwnershipID: "owner"}}

// targets makes machines and returns their addresses, sorted.
func targets(t *testing.T, d *driver, n int) (addresses []string) {
	t.Helper()
	for i := range n {
		if _, err := d.Ensure(t.Context(), testRequest(fmt.Sprintf("cp-%d", i), nil)); err != nil {
			t.Fatal(err)
		}
	}
	all, err := d.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range all {
		addresses = append(addresses, r.Addresses[1].Address)
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

// deleted deletes the load balancer and its address until a read shows nothing.
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

// listed returns the load balancer in a listing; nil: there is none.
func listed(t *testing.T, d *driver) *cloud.Resource {
	t.Helper()
	all, err := d.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i := range all {
		if all[i].Kind == cloud.KindBalancer {
			return &all[i]
		}
	}
	return nil
}

// balancerCalls returns how many calls the stub has answered for load balancers and addresses that
// are read alone.
func balancerCalls(stub *armstub.Cloud) (n int) {
	for op, calls := range stub.Calls() {
		switch op {
		case "POST token", "GET token", "PUT virtualMachines", "GET virtualMachines", "GET allVirtualMachines", "GET networkInterfaces",
			"GET disks":
		default:
			n += calls
		}
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

// TestBalancerCalls counts the calls in the life of a load balancer of three machines, where Azure
// takes no time.
func TestBalancerCalls(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		internal bool
		create   int
		address  string
		remove   int
	}{
		"public":   {false, 5, "198.51.", 12}, // both are deleted, and each read lists the addresses, too
		"internal": {true, 3, "10.", 5},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g, ctx := NewWithT(t), t.Context()
			stub := start(t, armstub.Options{})
			d := connect(t, stub)
			ips := targets(t, d, 4)
			count := func(do func()) int {
				before := balancerCalls(stub)
				do()
				return balancerCalls(stub) - before
			}
			change := func(req cloud.BalancerRequest) int {
				return count(func() {
					made, err := d.EnsureBalancer(ctx, req)
					g.Expect(err).NotTo(HaveOccurred())
					g.Expect(addressesOf(made)).To(Equal(req.Targets))
				})
			}
			g.Expect(stub.Calls()["GET loadBalancers"]).To(Equal(1), "the first listing of a process looks for load balancers")
			g.Expect(count(func() { listed(t, d) })).To(BeZero(), "a group without load balancers")

			req := balancerRequest(test.internal, ips[0])
			g.Expect(change(req)).To(Equal(test.create))
			req.Recorded = true
			for _, want := range [][]string{ips[:2], ips[:3], ips, ips[1:]} {
				req.Targets = want
				g.Expect(change(req)).To(Equal(2), "a read and a write")
			}
			g.Expect(change(req)).To(Equal(1), "nothing changes")
			var is *cloud.Resource
			g.Expect(count(func() { is = listed(t, d) })).To(Equal(3))
			g.Expect(is.State).To(Equal(cloud.StateRunning))
			g.Expect(is.Balancer.Targets).To(HaveLen(3))
			g.Expect(is.Balancer.Targets).To(HaveEach(HaveField("Healthy", true)))
			g.Expect(is.Balancer.Port).To(BeEquivalentTo(6443))
			g.Expect(is.Balancer.Address).To(HavePrefix(test.address))
			g.Expect(is.Balancer.Zones).To(BeEmpty(), "a target may be in any")

			g.Expect(count(func() { deleted(t, d) })).To(BeNumerically("<=", test.remove))
			g.Expect(stub.Left(cloud.TagToken, "balancer")).To(BeEmpty())
			g.Expect(stub.BalancersMade()).To(Equal(1))
		})
	}
}

// TestBalancerSettings: what is made is what the settings say, in all zones of the location.
func TestBalancerSettings(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	stub := start(t, armstub.Options{})
	d := connect(t, stub)
	req := balancerRequest(true, "10.0.0.4", "10.0.0.5")
	req.Spec.Azure.Address = "10.0.0.100"
	made, err := d.EnsureBalancer(ctx, req)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(made.Balancer.Address).To(Equal("10.0.0.100"))
	lb, err := d.getBalancer(ctx, req)
	g.Expect(err).NotTo(HaveOccurred())
	p := lb.Properties
	g.Expect(lb.Tags).To(Equal(map[string]string{cloud.TagOwnership: "owner", cloud.TagToken: "balancer", cloud.TagMachine: "ns/blue"}))
	g.Expect(*lb.SKU).To(Equal(publicSKU{"Standard", "Regional"}))
	g.Expect(p.Frontends[0].Zones).To(Equal([]string{"1", "2", "3"}))
	g.Expect(p.Pools[0].Properties.VirtualNetwork.ID).To(Equal(armstub.VirtualNetwork))
	g.Expect(p.Probes[0].Properties).To(Equal(healthProbe{"Https", 6443, "/readyz", 10, 2}))
	g.Expect(p.Rules[0].Properties.DisableOutboundSNAT).To(BeFalse())

	req = balancerRequest(false)
	req.Token = "public"
	_, err = d.EnsureBalancer(ctx, req)
	g.Expect(err).NotTo(HaveOccurred())
	lb, err = d.getBalancer(ctx, req)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(lb.Properties.Frontends[0].Zones).To(BeEmpty(), "they are the address's")
	g.Expect(lb.Properties.Rules[0].Properties.DisableOutboundSNAT).To(BeTrue())
	var ip publicAddress
	g.Expect(d.read(ctx, "GetPublicIPAddress", pathOf(d.account, publicAddresses)+"/"+balancerName("public"), networkVersion, nil,
		&ip)).To(Succeed())
	g.Expect(ip.Zones).To(Equal([]string{"1", "2", "3"}))
	g.Expect(tag(ip.Tags, cloud.TagToken)).To(Equal("public"))

	req.Spec, req.Token = nil, "another"
	_, err = d.EnsureBalancer(ctx, req)
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.InvalidSpec), "%v", err)
}

// TestBalancerOfAnotherProcess: a process that knows nothing finds the load balancer, in a listing
// and by its token, and changes and deletes it.
func TestBalancerOfAnotherProcess(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	stub := start(t, armstub.Options{Parts: 10 * time.Millisecond})
	first := connect(t, stub)
	ips := targets(t, first, 3)
	made := balanced(t, first, balancerRequest(false, ips[:2]...))
	g.Expect(made.Balancer.Address).NotTo(BeEmpty())
	g.Eventually(func() *cloud.Resource { return listed(t, connect(t, stub)) }).Should(And(
		HaveField("ID", made.ID), HaveField("State", cloud.StateRunning), HaveField("Token", "balancer"), HaveField("OwnershipID", "owner"),
		HaveField("Balancer.Address", made.Balancer.Address), HaveField("Balancer.Targets", HaveLen(2))))

	req := balancerRequest(false, ips[2])
	req.Recorded = true
	changed := balanced(t, connect(t, stub), req)
	g.Expect(addressesOf(changed)).To(Equal(ips[2:]))
	found, err := connect(t, stub).Describe(ctx, balancerRef)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(found).To(HaveLen(1))
	g.Expect(addressesOf(found[0])).To(Equal(ips[2:]))
	deleted(t, connect(t, stub))
	g.Expect(stub.Left(cloud.TagToken, "balancer")).To(BeEmpty())
	g.Expect(stub.BalancersMade()).To(Equal(1))
}

// TestLostBalancer: a load balancer that somebody deleted is not made again. Its address is shown
// until it is deleted.
func TestLostBalancer(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	stub := start(t, armstub.Options{})
	d := connect(t, stub)
	req := balancerRequest(false)
	balanced(t, d, req)
	stub.RemoveBalancers()
	all, err := d.Describe(ctx, balancerRef)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(all).To(ConsistOf(HaveField("Kind", cloud.KindAddress)))
	req.Recorded = true
	for _, d := range []*driver{d, connect(t, stub)} {
		_, err = d.EnsureBalancer(ctx, req)
		g.Expect(cloud.CodeOf(err)).To(Equal(cloud.NotFound), "%v", err)
	}
	g.Expect(stub.BalancersMade()).To(Equal(1))
	deleted(t, d)
	g.Expect(stub.Left(cloud.TagToken, "balancer")).To(BeEmpty())
}

// TestBalancerWithoutTags: a load balancer whose tags somebody took off is not taken for gone. That
// takes no call more than for one that is gone.
func TestBalancerWithoutTags(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	stub := start(t, armstub.Options{})
	req := balancerRequest(true)
	balanced(t, connect(t, stub), req)
	d := connect(t, stub)
	count := func(refs []cloud.Reference) (n int, err error) {
		before := balancerCalls(stub)
		_, err = d.Describe(ctx, refs)
		return balancerCalls(stub) - before, err
	}
	gone, err := count([]cloud.Reference{{Token: "other", OwnershipID: "owner"}})
	g.Expect(err).NotTo(HaveOccurred())

	keys := []string{cloud.TagToken, cloud.TagOwnership}
	g.Expect(d.removeTags(ctx, tagged{path: d.balancerPath(req.Token), tags: balancerTags(req)}, keys)).To(Succeed())
	for range 2 {
		calls, err := count(balancerRef)
		g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Conflict), "%v", err)
		g.Expect(err).To(MatchError(ContainSubstring(balancerName(req.Token) + " exists without its tags")))
		g.Expect(calls).To(BeNumerically("<=", gone))
	}
	g.Expect(d.addTags(ctx, tagged{path: d.balancerPath(req.Token)}, balancerTags(req))).To(Succeed())
	deleted(t, d)
}

// TestBalancerRefusals: each error of Azure, at once or of an operation, has the code that tells
// the engine what to do. The same load balancer is made afterwards.
func TestBalancerRefusals(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		fault armstub.Fault
		want  cloud.Code
	}{
		"address: quota": {armstub.Fault{Operation: "PUT publicIPAddresses", Status: 400, Code: "PublicIPCountLimitReached"},
			cloud.QuotaExceeded},
		"address: permission":  {armstub.Fault{Operation: "PUT publicIPAddresses", Status: 403, Code: "AuthorizationFailed"}, cloud.Unauthorized},
		"address: fails later": {armstub.Fault{Operation: "PUT publicIPAddresses", Birth: "InternalServerError"}, cloud.Unavailable},
		"subnet: permission": {armstub.Fault{Operation: "PUT loadBalancers", Status: 403, Code: "LinkedAuthorizationFailed"},
			cloud.Unauthorized},
		"busy": {armstub.Fault{Operation: "PUT loadBalancers", Status: 409, Code: anotherOperation}, cloud.Unavailable},
		"superseded": {armstub.Fault{Operation: "PUT loadBalancers", Status: 429, Code: "CanceledAndSupersededDueToAnotherOperation"},
			cloud.Unavailable},
		"throttled":       {armstub.Fault{Operation: "PUT loadBalancers", Status: 429, Code: "TooManyRequests"}, cloud.Throttled},
		"no such network": {armstub.Fault{Operation: "PUT loadBalancers", Status: 404, Code: "NotFound"}, cloud.NotFound},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			stub := start(t, armstub.Options{Parts: 10 * time.Millisecond})
			d := connect(t, stub)
			undo := stub.Inject(test.fault)
			g.Eventually(func() cloud.Code {
				_, err := d.EnsureBalancer(t.Context(), balancerRequest(false, "10.0.0.4"))
				return cloud.CodeOf(err)
			}).Should(Equal(test.want))
			undo()
			g.Expect(addressesOf(balanced(t, d, balancerRequest(false, "10.0.0.4")))).To(Equal([]string{"10.0.0.4"}))
		})
	}
}

// TestBalancerThatFails: a load balancer that Azure accepts and then fails to make is made by the
// next request, and a change that fails is shown.
func TestBalancerThatFails(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	stub := start(t, armstub.Options{})
	d := connect(t, stub)
	req := balancerRequest(true, "10.0.0.4")
	undo := stub.Inject(armstub.Fault{Operation: "PUT loadBalancers", Birth: "InternalServerError"})
	made, err := d.EnsureBalancer(ctx, req)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(made.State).To(Equal(cloud.StateFailed))
	undo()
	g.Expect(balanced(t, d, req).State).To(Equal(cloud.StateRunning))

	defer stub.Inject(armstub.Fault{Operation: "PUT loadBalancers/backendAddressPools", Birth: "InternalServerError", Count: 1})()
	req.Recorded, req.Targets = true, []string{"10.0.0.5"}
	balanced(t, d, req)
	g.Expect(listed(t, d).State).To(Equal(cloud.StateFailed))
	req.Targets = nil
	balanced(t, d, req)
	g.Expect(listed(t, d).State).To(Equal(cloud.StateRunning))
}

// TestBalancerChangedByTwo: of two processes that change the targets, the one that has not seen the
// other's change reads first what has become of it.
func TestBalancerChangedByTwo(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	stub := start(t, armstub.Options{})
	d, other := connect(t, stub), connect(t, stub)
	req := balancerRequest(true, "10.0.0.4")
	balanced(t, d, req)
	req.Recorded = true
	seen, err := d.getBalancer(ctx, req)
	g.Expect(err).NotTo(HaveOccurred())
	req.Targets = []string{"10.0.0.5"}
	balanced(t, other, req)
	req.Targets = []string{"10.0.0.6"}
	g.Expect(cloud.CodeOf(d.setTargets(ctx, req, seen))).To(Equal(cloud.Unavailable))
	g.Expect(addressesOf(*listed(t, d))).To(Equal([]string{"10.0.0.5"}))
	g.Expect(addressesOf(balanced(t, d, req))).To(Equal([]string{"10.0.0.6"}))

	seen, err = d.getBalancer(ctx, req)
	g.Expect(err).NotTo(HaveOccurred())
	stub.RemoveBalancers()
	req.Targets = nil
	g.Expect(cloud.CodeOf(d.setTargets(ctx, req, seen))).To(Equal(cloud.Unavailable))
	g.Expect(stub.Left(cloud.TagToken, "balancer")).To(BeEmpty(), "a change makes none")
}

// TestBalancerLostAnswer: after a change without an answer, the driver reads which targets there
// are.
func TestBalancerLostAnswer(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	stub := start(t, armstub.Options{})
	d := connect(t, stub)
	req := balancerRequest(true, "10.0.0.4")
	balanced(t, d, req)
	req.Recorded = true
	for _, after := range []bool{true, false} {
		req.Targets = []string{"10.0.0.4", "10.0.0.5"}
		undo := stub.Inject(armstub.Fault{Operation: "PUT loadBalancers/backendAddressPools", Instead: faults.Cut, After: after})
		_, err := d.EnsureBalancer(ctx, req)
		g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unavailable), "%v", err)
		undo()
		req.Targets = req.Targets[:1]
		g.Expect(addressesOf(balanced(t, d, req))).To(Equal(req.Targets))
		g.Expect(addressesOf(*listed(t, connect(t, stub)))).To(Equal(req.Targets))
	}
}

// TestBalancerHealth: Azure prepares the health of the targets. Until it has, the health is what it
// was. A failure changes nothing, and a missing permission is told.
func TestBalancerHealth(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	stub := start(t, armstub.Options{Parts: 2 * time.Second})
	d := connect(t, stub)
	req := balancerRequest(true, targets(t, d, 2)...)
	balanced(t, d, req)
	healthy := func() (all []bool) {
		for _, t := range listed(t, d).Balancer.Targets {
			all = append(all, t.Healthy)
		}
		return all
	}
	g.Expect(healthy()).To(Equal([]bool{false, false}), "Azure has not said anything yet")
	g.Eventually(healthy, "1m").Should(Equal([]bool{true, true}))
	asked := stub.Calls()["POST loadBalancers/loadBalancingRules/health"]
	g.Expect(asked).To(Equal(1), "one question, until it is answered")

	stub.SetPower("cp-0", "deallocated")
	g.Expect(healthy()).To(Equal([]bool{true, true}), "Azure is preparing an answer")
	g.Eventually(healthy).Should(ConsistOf(true, false))
	found, err := d.Describe(ctx, balancerRef)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(found[0].Balancer.Targets).To(Equal(listed(t, d).Balancer.Targets))

	for _, op := range []string{"POST loadBalancers/loadBalancingRules/health", "GET operationResults"} {
		undo := stub.Inject(armstub.Fault{Operation: op, Status: 500, Code: "InternalServerError"})
		for range 2 {
			g.Expect(healthy()).To(ConsistOf(true, false))
		}
		undo()
	}
	g.Eventually(healthy).Should(ConsistOf(true, false))

	undo := stub.Inject(armstub.Fault{Operation: "POST loadBalancers/loadBalancingRules/health",
		Header: map[string]string{"Location": "https://elsewhere.test/"}, Body: `{}`, Status: 202})
	asked = stub.Calls()["POST loadBalancers/loadBalancingRules/health"]
	g.Eventually(func() int { healthy(); return stub.Calls()["POST loadBalancers/loadBalancingRules/health"] }).Should(BeNumerically(">",
		asked+1))
	undo()
	defer stub.Inject(armstub.Fault{Operation: "POST loadBalancers/loadBalancingRules/health", Status: 403, Code: "AuthorizationFailed"})()
	_, err = d.List(ctx)
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unauthorized), "%v", err)
}

// TestBalancerWithoutRole: an account that may not read load balancers has none, unless the driver
// knows one.
func TestBalancerWithoutRole(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	stub := start(t, armstub.Options{})
	d := connect(t, stub)
	forbidden := armstub.Fault{Operation: "GET loadBalancers", Status: 403, Code: "AuthorizationFailed"}
	undo := stub.Inject(forbidden)
	g.Expect(d.Describe(ctx, balancerRef)).To(BeEmpty())
	for range 2 {
		g.Expect(d.List(ctx)).To(BeEmpty())
	}
	g.Expect(stub.Calls()["GET loadBalancers"]).To(Equal(2), "a listing does not ask again")
	undo()
	balanced(t, d, balancerRequest(true))
	defer stub.Inject(forbidden)()
	for _, read := range []func() ([]cloud.Resource, error){
		func() ([]cloud.Resource, error) { return d.List(ctx) },
		func() ([]cloud.Resource, error) { return d.Describe(ctx, balancerRef) },
	} {
		_, err := read()
		g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unauthorized), "%v", err)
	}
}

// TestForeignParts: a load balancer or an address that only has the name, and not the tags, is
// neither used nor deleted.
func TestForeignParts(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	for _, internal := range []bool{true, false} {
		stub := start(t, armstub.Options{})
		d := connect(t, stub)
		others := balancerRequest(internal)
		others.OwnershipID = "others"
		if internal {
			balanced(t, d, others)
		} else {
			g.Expect(d.ensureAddress(ctx, others, nil)).To(Succeed())
		}
		_, err := d.EnsureBalancer(ctx, balancerRequest(internal))
		g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Conflict), "%v", err)
		g.Expect(stub.Left(cloud.TagOwnership, "others")).To(HaveLen(1))
		g.Expect(stub.Left(cloud.TagOwnership, "owner")).To(BeEmpty())
	}
}

// TestBalancerCrash: whichever call the process dies at while it makes, changes and deletes a load
// balancer, the next process goes on with it, makes no second one, and leaves nothing.
func TestBalancerCrash(t *testing.T) {
	t.Parallel()
	conformance.CrashBalancer(t, 20, func(t *testing.T) *conformance.CrashingBalancer {
		stub := start(t, armstub.Options{Parts: time.Millisecond})
		return &conformance.CrashingBalancer{
			Stub: stub, Wire: stub.Transport(), Request: balancerRequest(false, "10.0.0.4"), Next: []string{"10.0.0.5"},
			Connect: func(transport http.RoundTripper) (cloud.Driver, error) {
				return newDriver(cloud.Config{Account: testAccount(), Credentials: testCredentials(), Connect: conformance.Through(transport)})
			},
		}
	})
}

// TestBalancerBadPort: Azure has no frontend at the last port.
func TestBalancerBadPort(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	req := balancerRequest(true)
	req.Port = 65535
	_, err := connect(t, start(t, armstub.Options{})).EnsureBalancer(t.Context(), req)
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.InvalidSpec), "%v", err)
}
