// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	elb "github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2"
	. "github.com/onsi/gomega"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/aws/ec2stub"
	"github.com/drover-io/drover/cloud/conformance"
	"github.com/drover-io/drover/cloud/conformance/faults"
)

func balancerRequest(targets ...string) cloud.BalancerRequest {
	return cloud.BalancerRequest{Token: "balancer", OwnershipID: "owner", Namespace: "ns", Name: "blue", Port: 6443, Targets: targets,
		Spec: testBalancer()}
}

var balancerRef = []cloud.Reference{{Token: "balancer", OwnershipID: "owner"}}

// stubCalls returns how many calls the stub has answered in all.
func stubCalls(stub *ec2stub.Cloud) (n int) {
	for _, calls := range stub.Calls() {
		n += calls
	}
	return n
}

// TestBalancerCalls counts the calls of a cluster of three machines: 12 to make its load balancer
// and register all targets, listings included, 2 for a machine that is replaced by another, and 1 a
// listing while nothing happens. DescribeInstances and the leftovers are the machines'.
func TestBalancerCalls(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	stub := ec2stub.New(t, ec2stub.Options{Keys: testKeys(), Drain: time.Hour})
	d := connect(t, stub, nil)
	var ips []string
	for _, token := range []string{"a", "b", "c", "d"} {
		made, err := d.Ensure(ctx, request(token, nil))
		g.Expect(err).NotTo(HaveOccurred())
		ips = append(ips, made.Addresses[0].Address)
	}
	slices.Sort(ips)
	balancerOf := func(all []cloud.Resource) *cloud.BalancerState {
		for _, r := range all {
			if r.Kind == cloud.KindBalancer {
				g.Expect(r.State).To(Equal(cloud.StateRunning))
				return r.Balancer
			}
		}
		return nil
	}
	list := func() (state *cloud.BalancerState, calls int) {
		before := stub.Calls()
		all, err := d.List(ctx)
		g.Expect(err).NotTo(HaveOccurred())
		for op, n := range stub.Calls() {
			if !slices.Contains([]string{"DescribeInstances", "DescribeInstanceStatus", "DescribeVolumes", "DescribeNetworkInterfaces",
				"DescribeAddresses"}, op) {
				calls += n - before[op]
			}
		}
		return balancerOf(all), calls
	}
	change := func(req cloud.BalancerRequest) int {
		before := stubCalls(stub)
		_, err := d.EnsureBalancer(ctx, req)
		g.Expect(err).NotTo(HaveOccurred())
		return stubCalls(stub) - before
	}

	_, calls := list()
	g.Expect(calls).To(Equal(1), "the first listing of a process looks for security groups")
	_, calls = list()
	g.Expect(calls).To(BeZero(), "an account without load balancers")

	req := balancerRequest(ips[0])
	making := change(req)
	req.Recorded = true
	req.Targets = ips[:2]
	making += change(req)
	req.Targets = ips[:3]
	making += change(req)
	state, calls := list()
	g.Expect(state.Targets).To(HaveLen(3))
	g.Expect(state.Targets).To(HaveEach(HaveField("Healthy", true)))
	g.Expect(making + calls).To(BeNumerically("<=", 12))

	req.Targets = ips
	rolling := change(req)
	req.Targets = ips[1:]
	rolling += change(req)
	g.Expect(rolling).To(Equal(2))
	state, calls = list()
	g.Expect(state.Targets).To(HaveLen(3), "a target that drains is none")
	g.Expect(calls).To(Equal(1), "nothing happens")
}

// TestBalancerOfAnotherProcess: a process that knows nothing finds the load balancer, in a listing
// and by its token, and changes and deletes it.
func TestBalancerOfAnotherProcess(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	stub := ec2stub.New(t, ec2stub.Options{Keys: testKeys()})
	made, err := connect(t, stub, nil).EnsureBalancer(ctx, balancerRequest("10.0.0.1", "10.0.0.2"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(made.Balancer.Address).To(HaveSuffix(".amazonaws.com"))

	listed, err := connect(t, stub, nil).List(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(listed).To(ConsistOf(And(HaveField("ID", made.ID), HaveField("Token", "balancer"), HaveField("OwnershipID", "owner"),
		HaveField("Balancer.Address", made.Balancer.Address), HaveField("Balancer.Targets", HaveLen(2)))))

	req := balancerRequest("10.0.0.3")
	req.Recorded = true
	changed, err := connect(t, stub, nil).EnsureBalancer(ctx, req)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(changed.Balancer.Targets).To(HaveExactElements(HaveField("Address", "10.0.0.3")))

	d := connect(t, stub, nil)
	found, err := d.Describe(ctx, balancerRef)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(found).To(ConsistOf(HaveField("Balancer.Targets", HaveExactElements(HaveField("Address", "10.0.0.3")))))
	g.Expect(d.Delete(ctx, found)).To(Equal([]error{nil}))
	g.Expect(stub.Left(cloud.TagOwnership, "owner")).To(BeEmpty())
	g.Expect(stub.BalancersMade()).To(Equal(1))
}

// TestLostBalancer: a load balancer that somebody deleted is not made again. Its other parts are
// shown until they are deleted.
func TestLostBalancer(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	stub := ec2stub.New(t, ec2stub.Options{Keys: testKeys()})
	d := connect(t, stub, nil)
	req := balancerRequest("10.0.0.1")
	_, err := d.EnsureBalancer(ctx, req)
	g.Expect(err).NotTo(HaveOccurred())
	_, err = d.List(ctx) // learns that it is active
	g.Expect(err).NotTo(HaveOccurred())
	stub.RemoveBalancers()
	all, err := d.List(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(all).To(ConsistOf(And(HaveField("Balancer.Address", ""), HaveField("State", cloud.StatePending))))
	req.Recorded = true
	_, err = d.EnsureBalancer(ctx, req)
	g.Expect(code(err)).To(Equal(cloud.NotFound), "%v", err)
	_, err = connect(t, stub, nil).EnsureBalancer(ctx, req)
	g.Expect(code(err)).To(Equal(cloud.NotFound), "%v", err)
	g.Expect(stub.BalancersMade()).To(Equal(1))
	g.Expect(d.Delete(ctx, all)).To(Equal([]error{nil}))
	g.Expect(stub.Left(cloud.TagOwnership, "owner")).To(BeEmpty())
}

// TestBalancerRefusals: each error of AWS has the code that tells the engine what to do.
func TestBalancerRefusals(t *testing.T) {
	t.Parallel()
	for op, test := range map[string]struct {
		aws  string
		want cloud.Code
	}{
		"CreateSecurityGroup": {"UnauthorizedOperation", cloud.Unauthorized},
		"CreateTargetGroup":   {"TooManyTargetGroups", cloud.QuotaExceeded},
		"CreateLoadBalancer":  {"TooManyLoadBalancers", cloud.QuotaExceeded},
		"CreateListener":      {"PriorRequestNotComplete", cloud.Unavailable},
		"RegisterTargets":     {"InvalidTarget", cloud.InvalidSpec},
	} {
		t.Run(op, func(t *testing.T) {
			t.Parallel()
			g, ctx := NewWithT(t), t.Context()
			stub := ec2stub.New(t, ec2stub.Options{Keys: testKeys()})
			d := connect(t, stub, nil)
			undo := stub.Inject(ec2stub.Fault{Operation: op, Code: test.aws, Status: http.StatusBadRequest})
			_, err := d.EnsureBalancer(ctx, balancerRequest("10.0.0.1"))
			g.Expect(code(err)).To(Equal(test.want), "%v", err)
			undo()
			_, err = d.EnsureBalancer(ctx, balancerRequest("10.0.0.1"))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(stub.BalancersMade()).To(Equal(1))
		})
	}
}

// TestBalancerLostAnswer: after a change without an answer, the driver reads which targets there
// are.
func TestBalancerLostAnswer(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	stub := ec2stub.New(t, ec2stub.Options{Keys: testKeys()})
	d := connect(t, stub, nil)
	_, err := d.EnsureBalancer(ctx, balancerRequest("10.0.0.1"))
	g.Expect(err).NotTo(HaveOccurred())
	undo := stub.Inject(ec2stub.Fault{Operation: "RegisterTargets", Instead: faults.Cut, After: true})
	req := balancerRequest("10.0.0.1", "10.0.0.2")
	req.Recorded = true
	_, err = d.EnsureBalancer(ctx, req)
	g.Expect(code(err)).To(Equal(cloud.Unavailable), "%v", err)
	undo()
	req.Targets = []string{"10.0.0.1"}
	_, err = d.EnsureBalancer(ctx, req)
	g.Expect(err).NotTo(HaveOccurred())
	found, err := d.Describe(ctx, balancerRef)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(found).To(ConsistOf(HaveField("Balancer.Targets", HaveExactElements(HaveField("Address", "10.0.0.1")))))
}

// TestBalancerWithOtherSettings: a repeated create finds the load balancer, even if its settings
// lead elsewhere by now. Another cluster's is never taken.
func TestBalancerWithOtherSettings(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	stub := ec2stub.New(t, ec2stub.Options{Keys: testKeys()})
	first, err := connect(t, stub, nil).EnsureBalancer(ctx, balancerRequest("10.0.0.1"))
	g.Expect(err).NotTo(HaveOccurred())
	req := balancerRequest("10.0.0.2")
	req.Spec = nil // the default VPC's subnets, with public addresses
	second, err := connect(t, stub, nil).EnsureBalancer(ctx, req)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(second.Balancer.Address).To(Equal(first.Balancer.Address))
	g.Expect(second.Balancer.Targets).To(HaveExactElements(HaveField("Address", "10.0.0.2")))
	g.Expect(stub.BalancersMade()).To(Equal(1))
	req.OwnershipID = "another"
	_, err = connect(t, stub, nil).EnsureBalancer(ctx, req)
	g.Expect(code(err)).To(Equal(cloud.Conflict), "%v", err)

	req = balancerRequest()
	req.Token, req.Spec = "mixed", &infrav1.LoadBalancerCloud{
		AWS: &infrav1.AWSLoadBalancer{Subnets: &infrav1.AWSSelector{IDs: []string{"subnet-0b1", "subnet-0d1"}}}}
	_, err = connect(t, stub, nil).EnsureBalancer(ctx, req)
	g.Expect(code(err)).To(Equal(cloud.InvalidSpec), "%v", err)
}

// TestForeignBalancer: a target group that only has the name, and not the token in its tags, is
// neither used nor deleted.
func TestForeignBalancer(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	stub := ec2stub.New(t, ec2stub.Options{Keys: testKeys()})
	others := connect(t, stub, nil)
	_, err := others.elb.CreateTargetGroup(ctx, &elb.CreateTargetGroupInput{
		Name: aws.String(nameOf("balancer")), Port: aws.Int32(443), VpcId: aws.String("vpc-01"), Tags: elbTags(cloud.TagToken, "others"),
	})
	g.Expect(err).NotTo(HaveOccurred())
	d := connect(t, stub, nil)
	_, err = d.EnsureBalancer(ctx, balancerRequest("10.0.0.1"))
	g.Expect(code(err)).To(Equal(cloud.NotFound), "%v", err)
	found, err := d.Describe(ctx, balancerRef)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(d.Delete(ctx, found)).To(Equal([]error{nil}))
	g.Expect(stub.Left(cloud.TagOwnership, "owner")).To(BeEmpty())
	g.Expect(stub.Left(cloud.TagToken, "others")).To(HaveLen(1))
}

// TestBalancerWithoutTags: a load balancer is not gone because somebody took the tags off one of its
// parts. A process that has not seen it finds it by its name.
func TestBalancerWithoutTags(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		part func(balancer) string
		key  string
	}{
		"load balancer":             {func(b balancer) string { return b.loadBalancer }, cloud.TagToken},
		"target group":              {func(b balancer) string { return b.targetGroup }, cloud.TagToken},
		"security group":            {func(b balancer) string { return b.group }, cloud.TagToken},
		"owner of a security group": {func(b balancer) string { return b.group }, cloud.TagOwnership},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g, ctx := NewWithT(t), t.Context()
			stub := ec2stub.New(t, ec2stub.Options{Keys: testKeys()})
			first := connect(t, stub, nil)
			_, err := first.EnsureBalancer(ctx, balancerRequest("10.0.0.1"))
			g.Expect(err).NotTo(HaveOccurred())
			part := test.part(first.balancers.get("balancer"))
			stub.UntagBalancer(part, test.key)
			d, recorded := connect(t, stub, nil), cloud.Reference{Token: "balancer", OwnershipID: "owner", Balancer: true}
			_, err = d.Describe(ctx, []cloud.Reference{recorded})
			g.Expect(code(err)).To(Equal(cloud.Conflict), "%v", err)
			g.Expect(err).To(MatchError(ContainSubstring(part)))
			for _, d := range []*driver{d, connect(t, stub, nil), first} {
				_, err = d.List(ctx)
				g.Expect(err).NotTo(HaveOccurred(), "others are listed")
			}
			if strings.HasPrefix(part, "arn:") { // the process that has seen it, too
				r := cloud.Resource{Kind: cloud.KindBalancer, Token: "balancer", OwnershipID: "owner"}
				g.Expect(code(first.Delete(ctx, []cloud.Resource{r})[0])).To(Equal(cloud.Conflict))
			}
			recorded.Token = "another"
			g.Expect(d.Describe(ctx, []cloud.Reference{recorded})).To(BeEmpty())
		})
	}
}

// TestBalancerThatStays: what keeps a load balancer itself is an error at once, which says what to do.
func TestBalancerThatStays(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		keep func(*ec2stub.Cloud, string) (undo func())
		want string
	}{
		"deletion protection": {want: "switch off the load balancer's deletion protection", keep: func(stub *ec2stub.Cloud, arn string) func() {
			return stub.Protect(arn)
		}},
		"an endpoint service": {want: "ResourceInUse", keep: func(stub *ec2stub.Cloud, _ string) func() {
			return stub.Inject(ec2stub.Fault{Operation: "DeleteLoadBalancer", Code: "ResourceInUse", Status: http.StatusBadRequest})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g, ctx := NewWithT(t), t.Context()
			stub := ec2stub.New(t, ec2stub.Options{Keys: testKeys()})
			d := connect(t, stub, nil)
			_, err := d.EnsureBalancer(ctx, balancerRequest("10.0.0.1"))
			g.Expect(err).NotTo(HaveOccurred())
			undo := test.keep(stub, d.balancers.get("balancer").loadBalancer)
			for range 2 {
				found, err := d.Describe(ctx, balancerRef)
				g.Expect(err).NotTo(HaveOccurred())
				err = d.Delete(ctx, found)[0]
				g.Expect(code(err)).To(Equal(cloud.Conflict), "%v", err)
				g.Expect(err).To(MatchError(ContainSubstring(test.want)))
			}
			undo()
			found, err := d.Describe(ctx, balancerRef)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(d.Delete(ctx, found)).To(Equal([]error{nil}))
			g.Expect(stub.Left(cloud.TagOwnership, "owner")).To(BeEmpty())
		})
	}
}

// TestBalancerPartsInUse: AWS deletes a load balancer's network interfaces minutes later than itself,
// and they hold its security group. That is waited for, but not for ever: perhaps something else
// uses the group.
func TestBalancerPartsInUse(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	stub := ec2stub.New(t, ec2stub.Options{Keys: testKeys(), Stop: time.Hour})
	d := connect(t, stub, nil)
	_, err := d.EnsureBalancer(ctx, balancerRequest("10.0.0.1"))
	g.Expect(err).NotTo(HaveOccurred())
	step := func() error {
		found, err := d.Describe(ctx, balancerRef)
		g.Expect(err).NotTo(HaveOccurred())
		return d.Delete(ctx, found)[0]
	}
	undo := stub.Inject(ec2stub.Fault{Operation: "DeleteTargetGroup", Code: "ResourceInUse", Status: http.StatusBadRequest, Count: 2})
	for range 4 {
		err := step()
		g.Expect(errors.As(err, new(*cloud.Queued))).To(BeTrue(), "%v", err)
	}
	undo()
	g.Expect(stub.Left(cloud.TagOwnership, "owner")).To(HaveLen(1), "its security group")
	d.deletedBalancers.Forget("balancer") // as after a while
	err = step()
	g.Expect(code(err)).To(Equal(cloud.Conflict), "%v", err)
	g.Expect(err).To(MatchError(ContainSubstring("DependencyViolation")))

	undo = stub.Inject(ec2stub.Fault{Operation: "DeleteSecurityGroup", Code: "UnauthorizedOperation", Status: http.StatusForbidden})
	d.deletedBalancers.Put("balancer", struct{}{}, time.Hour)
	g.Expect(code(step())).To(Equal(cloud.Unauthorized), "to wait does not help")
	undo()
}

// TestBalancerCrash: whichever call the process dies at while it makes, changes and deletes a load
// balancer, the next process goes on with it, makes no second one, and leaves nothing.
func TestBalancerCrash(t *testing.T) {
	t.Parallel()
	conformance.CrashBalancer(t, 20, func(t *testing.T) *conformance.CrashingBalancer {
		stub := ec2stub.New(t, ec2stub.Options{Keys: testKeys(), Boot: time.Millisecond, Stop: time.Millisecond})
		return &conformance.CrashingBalancer{
			Stub: stub, Wire: http.DefaultTransport, Request: balancerRequest("10.0.0.1"), Next: []string{"10.0.0.2"},
			Connect: func(transport http.RoundTripper) (cloud.Driver, error) {
				return newDriver(cloud.Config{Account: testAccount(stub.URL), Credentials: testCredentials(), Connect: conformance.Through(transport)})
			},
		}
	})
}
