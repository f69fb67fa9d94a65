// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/simulated/wire"
)

// copyOf returns a copy of a machine as "kubectl apply" of an export makes it, in any namespace.
func copyOf(objects []client.Object, name, namespace, as string) *infrav1.DroverMachine {
	for _, o := range objects {
		if m, ok := o.(*infrav1.DroverMachine); ok && m.Name == name {
			c := m.DeepCopy()
			c.ObjectMeta = metav1.ObjectMeta{Namespace: namespace, Name: as, UID: uid("copy", as), Finalizers: m.Finalizers, Labels: m.Labels}
			return c
		}
	}
	return nil
}

// TestCopyDeletesNothing: a copy of a DroverMachine has the original's token. Deleting either of
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

// clusterIn returns the cluster "prod" of a namespace, with this ownership ID.
func clusterIn(namespace, ownershipID string) []client.Object {
	all := fleetOf()[:2]
	for _, o := range all {
		o.SetNamespace(namespace)
		if infra, ok := o.(*infrav1.DroverCluster); ok {
			infra.Spec.Creation.OwnershipID = ownershipID
		}
	}
	return all
}

// TestRestoredClusterStopsBoth: a cluster that is restored into another namespace has the
// original's ownership ID, so its machines claim the same VMs.
func TestRestoredClusterStopsBoth(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		objects := fleetOf("original")
		b := newBench(t, append(append(objects, clusterIn("team-b", "owner-1")...), copyOf(objects, "original", "team-b", "copy"))...)
		b.remove(b.machine("original"))
		b.reconcile("original")
		b.wait(time.Minute)
		b.Expect(b.vms()).To(HaveLen(1))
		b.Expect(readyReason(b.machine("original"))).To(Equal(infrav1.DuplicateTokenReason))
	})
}

// TestTokenOfAnotherStopsNobody: a tenant who knows the token of another tenant's machine stops
// neither its creation nor its deletion, and the import of a machine is not refused.
func TestTokenOfAnotherStopsNobody(t *testing.T) {
	t.Parallel()
	underDeletion := func(m *infrav1.DroverMachine) {
		now := metav1.Now()
		m.DeletionTimestamp = &now
	}
	for name, c := range map[string]struct {
		cluster []client.Object
		change  func(*infrav1.DroverMachine)
	}{
		"of another cluster":                 {clusterIn("team-b", "owner-2"), func(*infrav1.DroverMachine) {}},
		"of another cluster, under deletion": {clusterIn("team-b", "owner-2"), underDeletion},
		"without a cluster, under deletion":  {nil, underDeletion},
		"without Drover's finalizer":         {nil, func(m *infrav1.DroverMachine) { m.Finalizers = nil }},
		"with a finalizer of the tenant's": {nil, func(m *infrav1.DroverMachine) {
			m.Finalizers = []string{
				"example.com/keep"}
			underDeletion(m)
		}},
		"without label, with other finalizer": {nil, func(m *infrav1.DroverMachine) {
			m.Finalizers, m.Labels = []string{"example.com/keep"},
				nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			with := func(objects []client.Object) []client.Object {
				forged := copyOf(objects, "original", "team-b", "forged")
				c.change(forged)
				return append(append(objects, c.cluster...), forged)
			}
			inBubble(t, func(t *testing.T) {
				b := newBench(t, with(edit(fleetOf("original"), "original", unmade))...)
				b.reconcile("original")
				b.Expect(b.vms()).To(HaveLen(1), "the machine is made")
				b.remove(b.machine("original"))
				b.reconcile("original")
				b.wait(time.Minute)
				b.Expect(b.isGone("original")).To(BeTrue())
				b.Expect(b.vms()).To(BeEmpty())

				objects := with(fleetOf("original"))
				imported := copyOf(objects, "original", "team-a", "original")
				errs, err := Webhooks{Reader: newManagement(t, slices.DeleteFunc(objects, func(o client.Object) bool {
					return o.GetName() == "original" && o.GetNamespace() == "team-a"
				})...)}.checkUnique(t.Context(), imported)
				b.Expect(err).NotTo(HaveOccurred())
				b.Expect(errs).To(BeEmpty())
			})
		})
	}
}

// TestForgedTokenStopsItself: who has no ownership ID does not delete by the token alone what
// another machine has.
func TestForgedTokenStopsItself(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		objects := fleetOf("forged")
		original := copyOf(objects, "forged", "team-b", "original")
		for _, o := range objects {
			if infra, ok := o.(*infrav1.DroverCluster); ok {
				infra.Spec.Creation.OwnershipID = ""
			}
		}
		b := newBench(t, append(append(objects, clusterIn("team-b", "owner-1")...), original)...)
		b.remove(b.machine("forged"))
		b.reconcile("forged")
		b.wait(time.Minute)
		b.Expect(b.vms()).To(HaveLen(1))
		b.Expect(readyReason(b.machine("forged"))).To(Equal(infrav1.DuplicateTokenReason))
	})
}

// TestBalancerTokenOfAnother: the token of a load balancer counts only in a DroverCluster that may
// change the load balancer.
func TestBalancerTokenOfAnother(t *testing.T) {
	t.Parallel()
	with := func(namespace, ownershipID string, finalizers ...string) *infrav1.DroverCluster {
		return &infrav1.DroverCluster{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "c-" + ownershipID, Finalizers: finalizers},
			Spec: infrav1.DroverClusterSpec{Creation: infrav1.DroverClusterCreation{OwnershipID: ownershipID,
				LoadBalancerToken: testToken + "0"}},
		}
	}
	original := with("team-a", "owner-1", infrav1.EndpointFinalizer)
	for name, c := range map[string]struct {
		other *infrav1.DroverCluster
		want  bool
	}{
		"a copy":                             {with("team-a", "owner-2", infrav1.EndpointFinalizer), true},
		"a restored copy":                    {with("team-b", "owner-1", infrav1.EndpointFinalizer), true},
		"of another tenant":                  {with("team-b", "owner-2", infrav1.EndpointFinalizer), false},
		"of another tenant, not of Drover's": {with("team-b", "owner-1", "example.com/keep"), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			c.other.UID = uid("copy", c.other.Name)
			management, original := newManagement(t, c.other), original.DeepCopy() // isCopied sets a condition
			copied, err := (&EndpointReconciler{Client: management}).isCopied(t.Context(), &endpointScope{DroverCluster: original})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(copied).To(Equal(c.want))
			errs, err := Webhooks{Reader: management}.checkUniqueCluster(t.Context(), original)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(len(errs) > 0).To(Equal(c.want))
		})
	}
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
		left   []infrav1.DroverMachine
		needed bool
	}{
		"alone":           {nil, false},
		"same account":    {[]infrav1.DroverMachine{*copyOf(objects, "original", "team-a", "original")}, true},
		"another account": {[]infrav1.DroverMachine{*copyOf(objects, "original", "team-b", "original")}, false},
	} {
		NewWithT(t).Expect(isTokenNeeded(deleted, c.left)).To(Equal(c.needed), name)
	}
}

// TestWebhookRefusesCopy: the webhook refuses to create a copy. It accepts objects from a move or a
// restore, because the original is not there.
func TestWebhookRefusesCopy(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*infrav1.DroverMachine)
		words  string
	}{
		"same token":            {func(*infrav1.DroverMachine) {}, "spec.creation.token"},
		"same token, elsewhere": {func(m *infrav1.DroverMachine) { m.Namespace = "team-b" }, "spec.creation.token"},
		"same provider ID":      {func(m *infrav1.DroverMachine) { m.Spec.Creation.Token = "" }, "spec.providerID"},
		"same provider ID, another account": {func(m *infrav1.DroverMachine) {
			m.Spec.Creation.Token, m.Spec.AccountRef.Name = "",
				"other"
		}, ""},
		"same provider ID, elsewhere":        {func(m *infrav1.DroverMachine) { m.Spec.Creation.Token, m.Namespace = "", "team-b" }, ""},
		"its own":                            {func(m *infrav1.DroverMachine) { m.Spec.Creation.Token, m.Spec.ProviderID = "", "" }, ""},
		"restored while the old one lingers": {func(m *infrav1.DroverMachine) { m.Name = "original" }, ""},
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
