// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
)

// TestOwnershipIDWakes: machines wait for their DroverCluster's ownership ID, which another
// controller may write last.
func TestOwnershipIDWakes(t *testing.T) {
	t.Parallel()
	before := &infrav1.DroverCluster{}
	g := NewWithT(t)
	g.Expect(droverClusterInputsChanged(before, before)).To(BeFalse())
	after := before.DeepCopy()
	after.Spec.Creation.OwnershipID = "owner-1"
	g.Expect(droverClusterInputsChanged(before, after)).To(BeTrue())
	after = before.DeepCopy()
	after.Annotations = map[string]string{infrav1.UnreachableAnnotation: "now"}
	g.Expect(droverClusterInputsChanged(before, after)).To(BeTrue())
}

// TestAccountOfItsUsers: the end of a machine, or of a load balancer, brings the account that waits
// for it, and no other account.
func TestAccountOfItsUsers(t *testing.T) {
	t.Parallel()
	x, machine := newAccountInUse(t)
	cluster := &infrav1.DroverCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "blue"}}
	toAccount := ofAccount(x.Client, accountIfDeleted)
	x.Expect(toAccount(t.Context(), machine)).To(BeEmpty(), "it is not being deleted")

	x.Expect(x.Client.Delete(t.Context(), x.account)).To(Succeed())
	want := []reconcile.Request{{NamespacedName: client.ObjectKeyFromObject(x.account)}}
	x.Expect(toAccount(t.Context(), machine)).To(Equal(want))
	x.Expect(toAccount(t.Context(), cluster)).To(BeEmpty(), "it has no load balancer")
	cluster.Spec.Endpoint.LoadBalancer.AccountRef.Name = "prod"
	x.Expect(toAccount(t.Context(), cluster)).To(Equal(want))
	cluster.Spec.Endpoint.LoadBalancer.AccountRef.Name = "none"
	x.Expect(toAccount(t.Context(), cluster)).To(BeEmpty(), "the account does not exist")
	machine.Namespace = "other"
	x.Expect(toAccount(t.Context(), machine)).To(BeEmpty(), "an account of another namespace")
}

// TestAccountsOfSecret: a Secret brings the accounts whose credentials are in it, and no others.
func TestAccountsOfSecret(t *testing.T) {
	t.Parallel()
	x, _ := newAccountInUse(t)
	toAccounts := secretToAccounts(x.Client)
	x.Expect(toAccounts(t.Context(), x.secret)).To(Equal([]reconcile.Request{{NamespacedName: client.ObjectKeyFromObject(x.account)}}))
	for _, change := range []func(*metav1.ObjectMeta){
		func(m *metav1.ObjectMeta) { m.Name = "another" },
		func(m *metav1.ObjectMeta) { m.Namespace = "other" },
	} {
		other := x.secret.DeepCopy()
		change(&other.ObjectMeta)
		x.Expect(toAccounts(t.Context(), other)).To(BeEmpty())
	}
}
