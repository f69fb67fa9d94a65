// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"testing"

	. "github.com/onsi/gomega"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
	"github.com/drover-io/drover/cloud"
)

// zonalBench has one machine that is claimed for a zone that its own fields do not allow.
func zonalBench(t *testing.T, answer error) *bench {
	t.Helper()
	b := newBench(t, edit(fleetOf("m"), "m", func(m *infrav1.CloudMachine) {
		unmade(m)
		m.Spec.Creation.FailureDomain = "zone-d"
	})...)
	b.account.row.Traits.ZonalIdempotency = true
	b.account.allowed = []string{"zone-a"}
	b.account.answers = []error{answer}
	return b
}

// TestOpenAttemptIsSettled: an earlier process may have sent a create, and the cloud refuses the
// attempt now. The machine leaves the attempt once live reads have proved that nothing was made.
func TestOpenAttemptIsSettled(t *testing.T) {
	t.Parallel()
	for _, code := range []cloud.Code{cloud.InvalidSpec, cloud.NotFound, cloud.Conflict, cloud.NoCapacity, cloud.QuotaExceeded} {
		t.Run(string(code), func(t *testing.T) {
			t.Parallel()
			b := zonalBench(t, cloud.Errorf(code, "it can't be there"))
			b.reconcile("m")
			b.Expect(b.account.requests).To(HaveLen(1))
			b.Expect(b.account.requests[0].MaybeSent).To(BeTrue())
			m := b.machine("m")
			b.Expect(m.Spec.Creation.FailureDomain).To(Equal("zone-d"), "while the attempt is open the machine stays")
			b.Expect(m.Spec.Creation.Attempt).To(BeZero())
			b.Expect(readyReason(m)).To(Equal(cloudReason(code)))

			b.reconcile("m")
			b.Expect(b.account.requests).To(HaveLen(1), "asked again, it would be open for longer")

			b.account.settled = true
			b.reconcile("m")
			m = b.machine("m")
			b.Expect(m.Spec.Creation.FailureDomain).To(Equal("zone-a"))
			b.Expect(m.Spec.Creation.Attempt).To(BeEquivalentTo(1), "another token of the cloud's")

			b.account.answers = nil
			b.reconcile("m")
			b.Expect(b.account.domains[len(b.account.domains)-1]).To(Equal([]string{"zone-a"}))
			b.Expect(b.machine("m").Spec.ProviderID).To(Equal(testVM))
		})
	}
}

// TestOpenAttemptIsFound: the create of an earlier process made a VM, and the machine adopts it.
func TestOpenAttemptIsFound(t *testing.T) {
	t.Parallel()
	b := zonalBench(t, cloud.Errorf(cloud.NotFound, "it can't be there"))
	b.reconcile("m")
	b.account.seen = running()
	b.account.answers = nil
	b.reconcile("m")
	b.Expect(b.account.requests).To(HaveLen(2))
	b.Expect(b.account.requests[1].MaybeSent).To(BeTrue())
	m := b.machine("m")
	b.Expect(m.Spec.ProviderID).To(Equal(testVM))
	b.Expect(m.Spec.Creation.FailureDomain).To(Equal("zone-d"))
}

// TestOpenAttemptIsAskedAgain: without a definite answer, the attempt stays on record.
func TestOpenAttemptIsAskedAgain(t *testing.T) {
	t.Parallel()
	for _, code := range []cloud.Code{cloud.Unavailable, cloud.Unknown, cloud.Throttled, cloud.Unauthorized} {
		t.Run(string(code), func(t *testing.T) {
			t.Parallel()
			b := zonalBench(t, cloud.Errorf(code, "who knows"))
			b.account.settled = true // for an earlier create; this one may be in progress
			b.reconcile("m")
			b.reconcile("m")
			m := b.machine("m")
			b.Expect(m.Spec.Creation.FailureDomain).To(Equal("zone-d"))
			b.Expect(m.Spec.Creation.Attempt).To(BeZero())
		})
	}
}

// TestRefusedAttemptIsCounted: after a definite refusal, the next create has a new attempt number,
// because the cloud may bind a token to its first request. The number is raised at the next
// attempt, not at once.
func TestRefusedAttemptIsCounted(t *testing.T) {
	t.Parallel()
	b := zonalBench(t, nil)
	b.account.allowed = []string{"zone-d"}
	b.r.attempts.set(b.machine("m"), attemptNotSent)
	b.account.answers = []error{cloud.Errorf(cloud.QuotaExceeded, "no room"), cloud.Errorf(cloud.Throttled, "slowly"), nil}

	b.Expect(b.reconcile("m").RequeueAfter).NotTo(BeZero())
	b.Expect(b.machine("m").Spec.Creation.Attempt).To(BeZero(), "it is written when it is needed")
	b.reconcile("m")
	b.Expect(b.machine("m").Spec.Creation.Attempt).To(BeEquivalentTo(1))
	b.reconcile("m")
	b.Expect(b.account.requests[1].Attempt).To(Equal(1))
	b.Expect(b.account.requests[1].MaybeSent).To(BeFalse())
	b.Expect(readyReason(b.machine("m"))).To(Equal(infrav1.ThrottledReason))
	b.reconcile("m")
	b.Expect(b.account.requests).To(HaveLen(3))
	b.Expect(b.account.requests[2].Attempt).To(Equal(1), "a throttled create was not looked at")
	b.Expect(b.account.requests[2].MaybeSent).To(BeFalse())
	b.Expect(b.machine("m").Spec.ProviderID).To(Equal(testVM))
}
