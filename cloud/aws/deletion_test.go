// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"context"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/aws/ec2stub"
)

// TestDeletionOfAFleet counts what it costs to delete 300 machines, however young, that are asked to go one after the other within half a
// minute, as Cluster API does.
func TestDeletionOfAFleet(t *testing.T) {
	t.Parallel()
	const machines, span = 300, 30 * time.Second
	g, ctx := NewWithT(t), t.Context()
	stub := ec2stub.New(t, ec2stub.Options{Keys: testKeys(), Stop: 5 * time.Second})
	accounts := cloud.NewAccounts(cloud.Options{Clouds: []cloud.Cloud{Cloud()}, Times: cloud.TimesFor(cloud.DefaultCall)})
	running, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = accounts.Start(running)
	}()
	t.Cleanup(func() {
		stop()
		<-ended
	})
	spec := testAccount(stub.URL)
	fast := &infrav1.RateLimit{PerSecond: "1000", Burst: 1000}
	spec.RateLimits = &infrav1.RateLimits{Create: fast}
	account, err := accounts.Set(types.NamespacedName{Name: "a"}, cloud.AccountConfig{Spec: *spec, Credentials: testCredentials()})
	g.Expect(err).NotTo(HaveOccurred())
	var refs []cloud.Reference
	for i := range machines {
		req := request(fmt.Sprintf("token-%03d", i), nil)
		made, err := account.Ensure(ctx, req, []string{req.FailureDomain})
		g.Expect(err).NotTo(HaveOccurred())
		ref := cloud.Reference{Token: req.Token, OwnershipID: req.OwnershipID, ProviderID: made.ProviderID}
		account.Observe(ref)
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
		account.Delete(ref)
		<-turn.C
	}
	g.Eventually(func() (left int) {
		for _, ref := range refs {
			if !account.Delete(ref).Gone {
				left++
			}
		}
		return left
	}, 2*time.Minute, 100*time.Millisecond).Should(BeZero())
	t.Logf("%d calls, all gone after %s: %v", calls()-before, time.Since(begin).Round(time.Second), stub.Calls())
	// Each batch is a call to terminate it and one to look at it, and two more for what those that are terminated may have left.
	g.Expect(stub.Calls()["TerminateInstances"]).To(BeNumerically("<=", machines*3/100), "%v", stub.Calls())
	g.Expect(calls()-before).To(BeNumerically("<=", machines/10), "%v", stub.Calls())
	g.Expect(stub.Left(cloud.TagOwnership, "owner")).To(BeEmpty())
}
