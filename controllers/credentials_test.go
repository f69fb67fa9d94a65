// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
)

// release reconciles the Secret, and reports whether it is gone.
func (x *accountTest) release(t *testing.T) (gone bool) {
	t.Helper()
	key := client.ObjectKeyFromObject(x.secret)
	r := &CredentialsReconciler{Client: x.Client, APIReader: x.Client}
	_, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: key})
	x.Expect(err).NotTo(HaveOccurred())
	return apierrors.IsNotFound(x.Client.Get(t.Context(), key, x.secret))
}

// TestSecretOutlivesMachines: a Secret, its account and its machines are deleted in this order, as
// "kubectl delete -f" does. The Secret stays until the last VM or load balancer, which can be
// deleted only with it, is gone.
func TestSecretOutlivesMachines(t *testing.T) {
	t.Parallel()
	cluster := &infrav1.DroverCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "c",
		Finalizers: []string{infrav1.EndpointFinalizer}}}
	cluster.Spec.Endpoint.LoadBalancer.AccountRef.Name = "prod"
	for name, more := range map[string]client.Object{"a machine": nil, "and a load balancer": cluster} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x, machine := newAccountInUse(t)
			x.Expect(x.Client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team"}})).To(Succeed())
			users := []client.Object{machine}
			if more != nil {
				x.Expect(x.Client.Create(t.Context(), more)).To(Succeed())
				users = append(users, more)
			}
			x.Expect(x.Client.Delete(t.Context(), x.secret)).To(Succeed())
			x.Expect(x.release(t)).To(BeFalse())
			x.reconcile()
			x.Expect(x.Client.Delete(t.Context(), x.account)).To(Succeed())
			for _, o := range users {
				x.Expect(x.Client.Delete(t.Context(), o)).To(Succeed())
				x.reconcile()
				x.Expect(x.live()).NotTo(BeNil())
				x.Expect(x.release(t)).To(BeFalse())
				reason, _ := x.ready()
				x.Expect(reason).To(Equal(infrav1.InUseReason))

				x.Expect(x.Client.Get(t.Context(), client.ObjectKeyFromObject(o), o)).To(Succeed())
				o.SetFinalizers(nil)
				x.Expect(x.Client.Update(t.Context(), o)).To(Succeed())
			}
			x.Expect(x.release(t)).To(BeTrue())
		})
	}
}

// TestSecretIsTakenAway: without its label, Drover lets the Secret go and the account stops, even
// while machines need them.
func TestSecretIsTakenAway(t *testing.T) {
	t.Parallel()
	x, _ := newAccountInUse(t)
	x.Expect(x.Client.Delete(t.Context(), x.secret)).To(Succeed())
	x.Expect(x.release(t)).To(BeFalse())
	delete(x.secret.Labels, infrav1.CredentialsLabel)
	x.Expect(x.Client.Update(t.Context(), x.secret)).To(Succeed())
	x.reconcile()
	x.Expect(x.live()).To(BeNil())
	reason, _ := x.ready()
	x.Expect(reason).To(Equal(infrav1.SecretInvalidReason))
	x.Expect(x.release(t)).To(BeTrue())
}

// TestSecretIsMissing: somebody removed the finalizer and the Secret. VMs are still deleted with
// the credentials that Drover has, and those of a new Secret replace them.
func TestSecretIsMissing(t *testing.T) {
	t.Parallel()
	x, _ := newAccountInUse(t)
	live := x.live()
	x.Expect(x.Client.Get(t.Context(), client.ObjectKeyFromObject(x.secret), x.secret)).To(Succeed())
	x.secret.Finalizers = nil
	x.Expect(x.Client.Update(t.Context(), x.secret)).To(Succeed())
	x.Expect(x.Client.Delete(t.Context(), x.secret)).To(Succeed())
	x.reconcile()
	x.Expect(x.live()).To(BeIdenticalTo(live))
	reason, message := x.ready()
	x.Expect(reason).To(Equal(infrav1.SecretInvalidReason))
	x.Expect(message).To(HaveSuffix("to exist in this namespace; until then, the account keeps its previous credentials"))

	x.secret.ResourceVersion, x.secret.Data["more"] = "", []byte("x")
	x.Expect(x.Client.Create(t.Context(), x.secret)).To(Succeed())
	x.reconcile()
	x.Expect(x.live()).NotTo(BeIdenticalTo(live))
	reason, _ = x.ready()
	x.Expect(reason).To(Equal(infrav1.ReadyReason))
}

// TestSecretIsReconciled: the end of a machine or load balancer brings the Secret that it needed.
func TestSecretIsReconciled(t *testing.T) {
	t.Parallel()
	x, machine := newAccountInUse(t)
	toSecret := ofAccount(x.Client, accountToSecret)
	want := []reconcile.Request{{NamespacedName: client.ObjectKeyFromObject(x.secret)}}
	x.Expect(toSecret(t.Context(), machine)).To(Equal(want))
	before := &infrav1.DroverCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team",
		Finalizers: []string{infrav1.ClusterFinalizer, infrav1.EndpointFinalizer}}}
	x.Expect(toSecret(t.Context(), before)).To(BeEmpty())
	before.Spec.Endpoint.LoadBalancer.AccountRef.Name, before.Spec.Endpoint.LoadBalancer.Port = "prod", 6443
	x.Expect(toSecret(t.Context(), before)).To(Equal(want))
	after := before.DeepCopy()
	passes := onUpdate(endpointReleased)
	x.Expect(passes.Update(event.UpdateEvent{ObjectOld: before, ObjectNew: after})).To(BeFalse())
	after.Finalizers = after.Finalizers[:1]
	x.Expect(passes.Update(event.UpdateEvent{ObjectOld: before, ObjectNew: after})).To(BeTrue())
}
