// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"errors"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/aws/ec2stub"
)

// TestDeletionOfAFleet counts the calls to delete 300 machines of any age, if the deletions are
// requested one by one within half a minute, as Cluster API does.
func TestDeletionOfAFleet(t *testing.T) {
	t.Parallel()
	const machines, span = 300, 30 * time.Second
	g, ctx := NewWithT(t), t.Context()
	stub := ec2stub.New(t, ec2stub.Options{Keys: testKeys(), Stop: 5 * time.Second})
	spec := testAccount(stub.URL)
	fast := infrav1.RateLimit{PerSecond: "1000", Burst: 1000}
	spec.RateLimits = &infrav1.RateLimits{Create: fast}
	account := testFleet(t, *spec)
	var refs []cloud.Reference
	for i := range machines {
		req := request(fmt.Sprintf("token-%03d", i), nil)
		made, err := account.Ensure(ctx, req, []string{req.FailureDomain})
		g.Expect(err).NotTo(HaveOccurred())
		ref := cloud.Reference{Token: req.Token, OwnershipID: req.OwnershipID, ProviderID: made.ProviderID}
		account.Observe(ref, true)
		refs = append(refs, ref)
	}
	calls := func() (all int) {
		for _, n := range stub.Calls() {
			all += n
		}
		return all
	}

	before, begin := calls(), time.Now()
	turn := time.NewTicker(span / machines)
	defer turn.Stop()
	for _, ref := range refs {
		account.Delete(ref, time.Now())
		<-turn.C
	}
	g.Eventually(func() (left int) {
		for _, ref := range refs {
			if !account.Delete(ref, time.Now()).Gone {
				left++
			}
		}
		return left
	}, 2*time.Minute, 100*time.Millisecond).Should(BeZero())
	t.Logf("%d calls, all gone after %s: %v", calls()-before, time.Since(begin).Round(time.Second), stub.Calls())
	g.Expect(calls()-before).To(BeNumerically("<=", machines*5/100), "%v", stub.Calls())
	g.Expect(stub.Left(cloud.TagOwnership, "owner")).To(BeEmpty())
}

// TestDependants: the driver finds all kinds of leftovers of a terminated instance. It ignores tags
// of deleted resources, and makes no call for kinds without tags.
func TestDependants(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		keep, nic, address bool // leaves a volume, leaves a network interface, has an elastic IP address
		want               []cloud.Kind
		calls              map[string]int // to find them
	}{
		"nothing": {calls: map[string]int{"DescribeInstances": 1, "DescribeTags": 1}},
		"a volume": {keep: true, want: []cloud.Kind{cloud.KindDisk},
			calls: map[string]int{"DescribeInstances": 1, "DescribeTags": 1, "DescribeVolumes": 1}},
		"a network interface": {nic: true, want: []cloud.Kind{cloud.KindNIC},
			calls: map[string]int{"DescribeInstances": 1, "DescribeTags": 1, "DescribeNetworkInterfaces": 1}},
		"all": {keep: true, nic: true, address: true, want: []cloud.Kind{cloud.KindDisk, cloud.KindNIC, cloud.KindAddress},
			calls: map[string]int{"DescribeInstances": 1, "DescribeTags": 1, "DescribeVolumes": 1, "DescribeNetworkInterfaces": 1,
				"DescribeAddresses": 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g, ctx := NewWithT(t), t.Context()
			stub := ec2stub.New(t, ec2stub.Options{Keys: testKeys(), Keep: test.keep})
			d := connect(t, stub, nil)
			made, err := d.Ensure(ctx, request("token", nil))
			g.Expect(err).NotTo(HaveOccurred())
			tags := map[string]string{cloud.TagOwnership: "owner", cloud.TagToken: "token"}
			if test.nic {
				stub.Plug(made.ID, tags)
			}
			if test.address {
				stub.Allocate(made.ID, tags)
			}
			g.Expect(d.Delete(ctx, []cloud.Resource{made})).To(Equal([]error{nil}))

			before := stub.Calls()
			left := func() (left []cloud.Resource, kinds []cloud.Kind) {
				found, err := d.Describe(ctx, []cloud.Reference{{Token: "token"}})
				g.Expect(err).NotTo(HaveOccurred())
				for _, r := range found {
					if r.Kind != cloud.KindInstance {
						left, kinds = append(left, r), append(kinds, r.Kind)
					}
				}
				return left, kinds
			}
			found, kinds := left()
			g.Expect(kinds).To(Equal(test.want))
			for op, n := range stub.Calls() {
				g.Expect(n-before[op]).To(Equal(test.calls[op]), op)
			}
			g.Expect(errors.Join(d.Delete(ctx, found)...)).To(Succeed())
			_, kinds = left()
			g.Expect(kinds).To(BeEmpty(), "its tags are still shown")
			g.Expect(stub.Left(cloud.TagToken, "token")).To(BeEmpty())
		})
	}
}
