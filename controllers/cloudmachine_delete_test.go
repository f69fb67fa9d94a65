// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"testing"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
	"github.com/drover-io/drover/cloud"
)

func (b *bench) isGone(name string) bool {
	b.t.Helper()
	err := b.r.Client.Get(b.t.Context(), client.ObjectKey{Namespace: "team-a", Name: name}, &infrav1.CloudMachine{})
	b.Expect(client.IgnoreNotFound(err)).To(Succeed())
	return apierrors.IsNotFound(err)
}

// TestUnsentGoesAtOnce: a machine for which this process has sent nothing is released without a
// call of the account.
func TestUnsentGoesAtOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t, edit(fleetOf("m"), "m", func(m *infrav1.CloudMachine) { m.Spec.ProviderID, m.Spec.Creation.Token = "", "" })...)
	b.reconcile("m") // claims
	b.Expect(b.machine("m").Spec.Creation.Token).NotTo(BeEmpty())
	b.remove(b.machine("m"))
	b.reconcile("m")
	b.Expect(b.isGone("m")).To(BeTrue())
	b.Expect(b.account.deleted).To(BeEmpty())
}

// TestSentIsLookedFor: a machine is not released without a check of the cloud if this process or an
// earlier one may have sent a create. This includes a refused create, because its earlier steps may
// have left something.
func TestSentIsLookedFor(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]error{
		"by an earlier process": nil,
		"without an answer":     cloud.Errorf(cloud.Unavailable, "who knows"),
		"refused":               cloud.Errorf(cloud.InvalidSpec, "no"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, edit(fleetOf("m"), "m", unmade)...)
			if answer != nil {
				b.r.attempts.set(b.machine("m"), attemptNotSent)
				b.account.answers = []error{answer}
				b.reconcile("m")
				b.Expect(b.account.requests).To(HaveLen(1))
			}
			b.remove(b.machine("m"))
			b.reconcile("m")
			b.Expect(b.isGone("m")).To(BeFalse())
			m := b.machine("m")
			b.Expect(b.account.deleted).To(HaveLen(1))
			b.Expect(b.account.deleted[0].Equal(m.DeletionTimestamp.Time)).To(BeTrue(), "the account learns when it was asked for")
		})
	}
}
