// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"net/http"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/aws/ec2stub"
	"github.com/drover-io/drover/cloud/conformance/faults"
)

// TestTroubledCreates injects each of the stub's faults into a create: the error leaves the result
// open, and a retry finds the instance if it was created, and never creates a second one.
func TestTroubledCreates(t *testing.T) {
	t.Parallel()
	const soon = 50 * time.Millisecond
	for name, test := range map[string]struct {
		fault ec2stub.Fault
		made  bool // when the error occurs
		late  bool // some time after the error
	}{
		"cut before":   {fault: ec2stub.Fault{Instead: faults.Cut}},
		"cut after":    {fault: ec2stub.Fault{Instead: faults.Cut, After: true}, made: true},
		"error before": {fault: ec2stub.Fault{Code: "InternalError", Status: http.StatusInternalServerError}},
		"error after":  {fault: ec2stub.Fault{Code: "InternalError", Status: http.StatusInternalServerError, After: true}, made: true},
		"half":         {fault: ec2stub.Fault{Instead: faults.Half, After: true}, made: true},
		"page":         {fault: ec2stub.Fault{Instead: faults.Page, After: true}, made: true},
		"elsewhere":    {fault: ec2stub.Fault{Instead: faults.Elsewhere, After: true}, made: true},
		"late":         {fault: ec2stub.Fault{Late: true, Delay: soon}, late: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g, ctx := NewWithT(t), t.Context()
			stub := ec2stub.New(t, ec2stub.Options{Keys: testKeys()})
			d := connect(t, stub, nil)
			test.fault.Operation, test.fault.Skip, test.fault.Count = "RunInstances", 1, 1
			stub.Inject(test.fault)
			_, err := d.Ensure(ctx, request("skipped", nil))
			g.Expect(err).NotTo(HaveOccurred())
			_, err = d.Ensure(ctx, request("token", nil))
			g.Expect(code(err)).To(BeElementOf(cloud.Unavailable, cloud.Unknown), "%v", err)
			left := func() []string { return stub.Left(cloud.TagToken, "token") }
			if g.Expect(len(left()) == 1).To(Equal(test.made)); test.late {
				g.Eventually(left, 20*soon).Should(HaveLen(1))
			}
			_, err = d.Ensure(ctx, request("token", nil))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(left()).To(HaveLen(1))
		})
	}
}

// TestShortPages: a short or empty page does not end a listing.
func TestShortPages(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	stub := ec2stub.New(t, ec2stub.Options{Keys: testKeys()})
	d := connect(t, stub, nil)
	for _, token := range []string{"a", "b", "c", "d", "e"} {
		_, err := d.Ensure(ctx, request(token, nil))
		g.Expect(err).NotTo(HaveOccurred())
	}
	stub.Inject(ec2stub.Fault{Operation: "DescribeInstances", Short: true, Count: 4})
	all, err := d.List(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(all).To(HaveLen(5))
	g.Expect(stub.Calls()["DescribeInstances"]).To(BeNumerically(">", 3))
}

// TestBadBirths: an instance that ends instead of running is shown as terminated. An instance that
// vanished is not shown.
func TestBadBirths(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	stub := ec2stub.New(t, ec2stub.Options{Keys: testKeys()})
	d := connect(t, stub, nil)
	undo := stub.Inject(ec2stub.Fault{Operation: "RunInstances", Birth: ec2stub.Stillborn})
	_, err := d.Ensure(ctx, request("stillborn", nil))
	g.Expect(err).NotTo(HaveOccurred())
	undo()
	made, err := d.Ensure(ctx, request("vanished", nil))
	g.Expect(err).NotTo(HaveOccurred())
	stub.Vanish(made.ID)
	found, err := d.Describe(ctx, []cloud.Reference{{Token: "stillborn"}, {Token: "vanished"}})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(found).To(HaveExactElements(And(HaveField("Token", "stillborn"), HaveField("State", cloud.StateTerminated))))
	g.Expect(d.Delete(ctx, []cloud.Resource{made})).To(Equal([]error{nil}))
}
