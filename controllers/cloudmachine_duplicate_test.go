// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
	"github.com/drover-io/drover/cloud/simulated/wire"
)

// copyOf returns a copy of a machine as "kubectl apply" of an export makes it, in any namespace.
func copyOf(objects []client.Object, name, namespace, as string) *infrav1.CloudMachine {
	for _, o := range objects {
		if m, ok := o.(*infrav1.CloudMachine); ok && m.Name == name {
			c := m.DeepCopy()
			c.ObjectMeta = metav1.ObjectMeta{Namespace: namespace, Name: as, UID: uid("copy", as), Finalizers: m.Finalizers, Labels: m.Labels}
			return c
		}
	}
	return nil
}

// TestCopyDeletesNothing: a copy of a CloudMachine has the original's token. Deleting either of
// them does not delete the VM until one is abandoned.
func TestCopyDeletesNothing(t *testing.T) {
	t.Parallel()
	for name, namespace := range map[string]string{"in the same namespace": "team-a", "in another namespace": "team-b"} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) { testCopyDeletesNothing(t, namespace) })
		})
	}
}

func testCopyDeletesNothing(t *testing.T, namespace string) {
	t.Helper()
	objects := fleetOf("original")
	duplicate := copyOf(objects, "original", namespace, "copy")
	b := newBench(t, append(objects, duplicate)...)

	b.remove(b.machine("original"))
	b.reconcile("original")
	b.wait(time.Minute)
	b.Expect(b.vms()).To(HaveLen(1), "the account was asked to delete a VM that two objects claim")
	m := b.machine("original")
	b.Expect(readyReason(m)).To(Equal(infrav1.DuplicateTokenReason))
	b.Expect(readyMessage(m)).To(And(ContainSubstring(namespace+"/copy"), ContainSubstring(infrav1.AbandonAnnotation)))

	if namespace != "team-a" {
		return
	}
	b.remove(b.machine("copy"))
	b.reconcile("copy")
	b.wait(time.Minute)
	b.Expect(b.vms()).To(HaveLen(1))
	b.Expect(readyReason(b.machine("copy"))).To(Equal(infrav1.DuplicateTokenReason))

	abandoned := b.machine("copy")
	abandoned.Annotations = map[string]string{infrav1.AbandonAnnotation: "copy"}
	b.Expect(b.r.Client.Update(t.Context(), abandoned)).To(Succeed())
	b.reconcile("copy")
	b.Expect(b.isGone("copy")).To(BeTrue())
	b.reconcile("original")
	b.wait(time.Minute)
	b.Expect(b.isGone("original")).To(BeTrue(), "the original goes once it is alone")
	b.Expect(b.vms()).To(BeEmpty())
}

// TestCopyMakesNothing: no VM is created or adopted while two objects have the same token.
func TestCopyMakesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		objects := edit(fleetOf("original"), "original", unmade)
		b := newBench(t, append(objects, copyOf(objects, "original", "team-b", "copy"))...)
		b.reconcile("original")
		b.Expect(b.calls(wire.RunInstances)).To(BeZero(), "a VM was asked for by one of two objects with the same token")
		m := b.machine("original")
		b.Expect(readyReason(m)).To(Equal(infrav1.DuplicateTokenReason))
		b.Expect(m.Spec.ProviderID).To(BeEmpty())
	})
}

// TestWakesWithSameToken: the deletion of a copy enqueues the original.
func TestWakesWithSameToken(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		objects := fleetOf("original")
		duplicate := copyOf(objects, "original", "team-b", "copy")
		b := newBench(t, objects...)
		b.Expect(b.r.machineDeleted(t.Context(), duplicate)).To(HaveLen(1))
	})
}

// TestDeletedIsForgotten: the account forgets a deleted machine, even if a user removed its
// finalizer, unless another machine of the same account has the same token.
func TestDeletedIsForgotten(t *testing.T) {
	t.Parallel()
	objects := fleetOf("original")
	deleted := copyOf(objects, "original", "team-a", "copy")
	for name, c := range map[string]struct {
		left   []infrav1.CloudMachine
		needed bool
	}{
		"alone":           {nil, false},
		"same account":    {[]infrav1.CloudMachine{*copyOf(objects, "original", "team-a", "original")}, true},
		"another account": {[]infrav1.CloudMachine{*copyOf(objects, "original", "team-b", "original")}, false},
	} {
		NewWithT(t).Expect(isTokenNeeded(deleted, c.left)).To(Equal(c.needed), name)
	}
}

// TestWebhookRefusesCopy: the webhook refuses to create a copy. It accepts objects from a move or a
// restore, because the original is not there.
func TestWebhookRefusesCopy(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*infrav1.CloudMachine)
		words  string
	}{
		"same token":                         {func(*infrav1.CloudMachine) {}, "spec.creation.token"},
		"same token, elsewhere":              {func(m *infrav1.CloudMachine) { m.Namespace = "team-b" }, "spec.creation.token"},
		"same provider ID":                   {func(m *infrav1.CloudMachine) { m.Spec.Creation.Token = "" }, "spec.providerID"},
		"same provider ID, another account":  {func(m *infrav1.CloudMachine) { m.Spec.Creation.Token, m.Spec.AccountRef.Name = "", "other" }, ""},
		"same provider ID, elsewhere":        {func(m *infrav1.CloudMachine) { m.Spec.Creation.Token, m.Namespace = "", "team-b" }, ""},
		"its own":                            {func(m *infrav1.CloudMachine) { m.Spec.Creation.Token, m.Spec.ProviderID = "", "" }, ""},
		"restored while the old one lingers": {func(m *infrav1.CloudMachine) { m.Name = "original" }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, objects := NewWithT(t), fleetOf("original")
			duplicate := copyOf(objects, "original", "team-a", "copy")
			c.change(duplicate)
			errs, err := Webhooks{Reader: newManagement(t, objects...)}.checkUnique(t.Context(), duplicate)
			b.Expect(err).NotTo(HaveOccurred())
			if c.words == "" {
				b.Expect(errs).To(BeEmpty())
				return
			}
			b.Expect(errs).To(HaveLen(1))
			b.Expect(errs[0].Error()).To(And(ContainSubstring(c.words), ContainSubstring("team-a/original")))
			b.Expect(strings.Contains(errs[0].Error(), testToken)).To(BeFalse(), "who sends a token learns no more than who has it")
		})
	}
}
