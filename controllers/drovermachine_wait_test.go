// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/fleet"
)

// TestOwnershipIDOfAnExternallyManagedCluster: another controller manages the DroverCluster. The
// machine says that this controller must set the ownership ID, and gets its VM with one.
func TestOwnershipIDOfAnExternallyManagedCluster(t *testing.T) {
	t.Parallel()
	for name, id := range map[string]string{"none": "", "one of the other controller": "0a1b2c3d4e5f"} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				objects := edit(fleetOf("m"), "m", unmade)
				for _, o := range objects {
					if infra, ok := o.(*infrav1.DroverCluster); ok {
						infra.Annotations = map[string]string{clusterv1.ManagedByAnnotation: "their-terraform"}
						infra.Spec.Creation.OwnershipID = id
					}
				}
				b := newBench(t, objects...)
				b.wait(time.Minute)
				b.reconcile("m")
				if id != "" {
					b.Expect(b.vms()).To(HaveLen(1))
					return
				}
				b.Expect(readyReason(b.machine("m"))).To(Equal(infrav1.WaitingForClusterReason))
				b.Expect(conditions.GetMessage(b.machine("m"), clusterv1.ReadyCondition)).To(ContainSubstring("must set spec.creation.ownershipID"))
			})
		})
	}
}

// TestAccountThatIsNoHelp: a machine without a VM says what is wrong with its account, in the
// account's own words. No VM is created in an account that is being deleted.
func TestAccountThatIsNoHelp(t *testing.T) {
	t.Parallel()
	refused := &infrav1.DroverAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "refused"}}
	setNotReady(refused, infrav1.UnauthorizedReason, "DescribeCatalog: AuthFailure: the token is not valid")
	deleted := &infrav1.DroverAccount{ObjectMeta: metav1.ObjectMeta{
		Namespace: "team-a", Name: "deleted", Finalizers: []string{infrav1.AccountFinalizer}, DeletionTimestamp: &metav1.Time{Time: time.Now()}}}
	setReady(deleted)
	for name, c := range map[string]struct {
		account   *infrav1.DroverAccount
		connected bool // it has a client, which has proved nothing
		reason    string
		says      []string
	}{
		"missing": {reason: infrav1.WaitingForAccountReason, says: []string{`Waiting for DroverAccount "missing" to exist in this namespace`}},
		"refused": {account: refused, connected: true, reason: infrav1.WaitingForAccountReason,
			says: []string{`DroverAccount "refused" is not ready: Unauthorized: DescribeCatalog: AuthFailure: the token is not valid`}},
		"deleted": {account: deleted, connected: true, reason: infrav1.AccountDeletingReason,
			says: []string{`DroverAccount "deleted" is being deleted`, "create another DroverAccount and a DroverMachineTemplate"}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				objects := edit(fleetOf("m"), "m", func(m *infrav1.DroverMachine) {
					m.Spec.ProviderID, m.Spec.Creation.Token, m.Spec.AccountRef.Name = "", "", name
				})
				if c.account != nil {
					objects = append(objects, c.account.DeepCopy())
				}
				b := newBench(t, objects...)
				if c.connected {
					_, err := b.r.Accounts.Set(client.ObjectKey{Namespace: "team-a", Name: name}, fleet.AccountConfig{
						Spec:        infrav1.DroverAccountSpec{Cloud: infrav1.AccountCloud{Simulated: &infrav1.SimulatedAccount{Region: "sim-1"}}},
						Credentials: map[string][]byte{"token": []byte("wrong")},
					})
					b.Expect(err).NotTo(HaveOccurred())
				}
				b.wait(time.Minute)
				b.reconcile("m")
				b.reconcile("m")
				b.Expect(readyReason(b.machine("m"))).To(Equal(c.reason))
				for _, words := range c.says {
					b.Expect(readyMessage(b.machine("m"))).To(ContainSubstring(words))
				}
				b.Expect(b.machine("m").Spec.Creation.Token).To(BeEmpty())
				b.Expect(b.vms()).To(BeEmpty())
			})
		})
	}
}

// TestDeletedAccountCreatesNothing: the account works, and the machine has its token. Nothing is
// created, because the account is being deleted.
func TestDeletedAccountCreatesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		objects := edit(fleetOf("m"), "m", unmade)
		for _, o := range objects {
			if account, ok := o.(*infrav1.DroverAccount); ok {
				account.Finalizers, account.DeletionTimestamp = []string{infrav1.AccountFinalizer}, &metav1.Time{Time: time.Now()}
			}
		}
		b := newBench(t, objects...)
		b.wait(time.Minute)
		b.follow("m", time.Hour)
		b.Expect(readyReason(b.machine("m"))).To(Equal(infrav1.AccountDeletingReason))
		b.Expect(b.vms()).To(BeEmpty())
	})
}

// TestAccountGotWorse: machines without a VM hear of each problem of their account, and of its
// deletion. Its recovery enqueues them by itself.
func TestAccountGotWorse(t *testing.T) {
	account := func(change func(*infrav1.DroverAccount)) *infrav1.DroverAccount {
		a := &infrav1.DroverAccount{}
		change(a)
		return a
	}
	unknown := account(func(*infrav1.DroverAccount) {})
	ready := account(func(a *infrav1.DroverAccount) { setReady(a) })
	refused := account(func(a *infrav1.DroverAccount) { setNotReady(a, infrav1.UnauthorizedReason, "the token is not valid") })
	silent := account(func(a *infrav1.DroverAccount) { setNotReady(a, infrav1.CloudUnavailableReason, "no answer") })
	deleted := account(func(a *infrav1.DroverAccount) { a.DeletionTimestamp = &metav1.Time{Time: time.Now()} })
	for name, c := range map[string]struct {
		before, after *infrav1.DroverAccount
		worse         bool
	}{
		"refused at first": {unknown, refused, true},
		"refused":          {ready, refused, true},
		"another problem":  {refused, silent, true},
		"the same problem": {refused, refused, false},
		"works":            {refused, ready, false},
		"being deleted":    {unknown, deleted, true},
	} {
		NewWithT(t).Expect(accountGotWorse(c.before, c.after)).To(Equal(c.worse), name)
	}
}
