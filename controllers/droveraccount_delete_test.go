// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"testing"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
)

// newAccountInUse returns an account that is connected and has a machine.
func newAccountInUse(t *testing.T) (*accountTest, *infrav1.DroverMachine) {
	t.Helper()
	x := newAccountTest(t, infrav1.DroverAccountSpec{Cloud: infrav1.AccountCloud{AWS: &infrav1.AWSAccount{Region: "eu-central-1"}}})
	machine := &infrav1.DroverMachine{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "m",
		Finalizers: []string{infrav1.MachineFinalizer}}}
	machine.Spec.AccountRef.Name = "prod"
	x.Expect(x.Client.Create(t.Context(), machine)).To(Succeed())
	x.reconcile()
	x.reconcile()
	x.Expect(x.live()).NotTo(BeNil())
	return x, machine
}

// TestDeletedAccountTakesNewCredentials: the keys of an account are rotated while machines still
// refer to it. The account takes them whether or not its own deletion was requested: its VMs can be
// deleted only with keys that work.
func TestDeletedAccountTakesNewCredentials(t *testing.T) {
	t.Parallel()
	for name, deleted := range map[string]bool{"in use": false, "being deleted": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x, _ := newAccountInUse(t)
			old := x.live()
			if deleted {
				x.Expect(x.Client.Delete(t.Context(), x.account)).To(Succeed())
				x.reconcile()
				reason, _ := x.ready()
				x.Expect(reason).To(Equal(infrav1.InUseReason))
				x.Expect(x.live()).To(BeIdenticalTo(old), "the driver is kept")
			}

			// The same place, new keys: a watch event of the Secret brings the account here.
			x.Expect(x.Client.Get(t.Context(), client.ObjectKeyFromObject(x.secret), x.secret)).To(Succeed())
			x.secret.Data = map[string][]byte{"leads-to": []byte("aws:111111111111:eu-central-1"), "session-token": []byte("the next hour's")}
			x.Expect(x.Client.Update(t.Context(), x.secret)).To(Succeed())
			for range 3 {
				x.reconcile()
			}
			reason, message := x.ready()
			x.Expect(x.live()).NotTo(BeIdenticalTo(old), "the account still uses the keys of before; Ready is %s: %s", reason, message)
		})
	}
}

// TestDeletedAccountKeepsCredentials: the Secret is deleted after its account, whose machines are
// still there. The VMs are deleted with the credentials that Drover has.
func TestDeletedAccountKeepsCredentials(t *testing.T) {
	t.Parallel()
	x, _ := newAccountInUse(t)
	live := x.live()
	x.Expect(x.Client.Delete(t.Context(), x.account)).To(Succeed())
	x.Expect(x.Client.Get(t.Context(), client.ObjectKeyFromObject(x.secret), x.secret)).To(Succeed())
	x.secret.Finalizers = nil
	x.Expect(x.Client.Update(t.Context(), x.secret)).To(Succeed())
	x.Expect(x.Client.Delete(t.Context(), x.secret)).To(Succeed())
	x.reconcile()
	x.Expect(x.live()).To(BeIdenticalTo(live))
	reason, _ := x.ready()
	x.Expect(reason).To(Equal(infrav1.SecretInvalidReason))
}

// TestDeletedAccountReports: the machines of an account that is being deleted are missing. Its
// conditions say so, and a person can confirm it, or their deletions would never end.
func TestDeletedAccountReports(t *testing.T) {
	t.Parallel()
	x, _ := newAccountInUse(t)
	x.Expect(x.Client.Delete(t.Context(), x.account)).To(Succeed())
	x.reconcile()
	since := conditions.Get(x.account, clusterv1.ReadyCondition).LastTransitionTime
	conditions.Delete(x.account, infrav1.AccountInventoryFreshCondition)
	x.Expect(x.Client.Status().Update(t.Context(), x.account)).To(Succeed())
	x.reconcile()
	x.Expect(conditions.GetReason(x.account, infrav1.AccountInventoryFreshCondition)).To(Equal(infrav1.InventoryFreshReason))
	reason, _ := x.ready()
	x.Expect(reason).To(Equal(infrav1.InUseReason))
	x.Expect(conditions.Get(x.account, clusterv1.ReadyCondition).LastTransitionTime).To(Equal(since), "each reconcile writes nothing")

	before := x.account.ResourceVersion
	x.reconcile()
	x.Expect(x.account.ResourceVersion).To(Equal(before))
}

// TestFinalizersOfOthersStay: Drover removes its finalizer from the account as it is, and drops no
// finalizer that somebody has added since.
func TestFinalizersOfOthersStay(t *testing.T) {
	t.Parallel()
	x := newAccountTest(t, infrav1.DroverAccountSpec{Cloud: infrav1.AccountCloud{AWS: &infrav1.AWSAccount{Region: "eu-central-1"}}})
	key := client.ObjectKeyFromObject(x.account)
	x.Expect(x.Client.Delete(t.Context(), x.account)).To(Succeed())
	x.Expect(x.Client.Get(t.Context(), key, x.account)).To(Succeed())
	stale := x.account.DeepCopy()
	x.account.Finalizers = append(x.account.Finalizers, "example.com/backup")
	x.Expect(x.Client.Update(t.Context(), x.account)).To(Succeed())
	_, err := x.reconcileDelete(t.Context(), stale)
	x.Expect(apierrors.IsConflict(err)).To(BeTrue(), "the next reconcile has the newer object: %v", err)
	x.reconcile()
	x.Expect(x.account.Finalizers).To(Equal([]string{"example.com/backup"}))
}
