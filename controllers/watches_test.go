// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"sync"
	"testing"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/fleet"
)

// TestStaleCacheReleasesNothing: a cluster and an account are kept for a machine that the cache
// does not have yet, because its VM can't be deleted without them.
func TestStaleCacheReleasesNothing(t *testing.T) {
	t.Parallel()
	now := metav1.Now()
	meta := func(finalizer string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "team", Name: "prod", Labels: map[string]string{clusterv1.ClusterNameLabel: "prod"},
			Finalizers: []string{finalizer}, DeletionTimestamp: &now}
	}
	machine := &infrav1.DroverMachine{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "new", Labels: map[string]string{clusterv1.ClusterNameLabel: "prod"}},
		Spec:       infrav1.DroverMachineSpec{DroverMachineFields: infrav1.DroverMachineFields{AccountRef: infrav1.LocalReference{Name: "prod"}}},
	}
	withIndex := func() *fake.ClientBuilder {
		return fake.NewClientBuilder().WithScheme(testScheme(t)).WithIndex(machine, machineByAccount, func(o client.Object) []string {
			return []string{o.(*infrav1.DroverMachine).Spec.AccountRef.Name}
		})
	}
	for _, c := range []struct {
		object     client.Object
		reconciler func(cache client.Client, api client.Reader) reconcile.Reconciler
	}{
		{&infrav1.DroverCluster{ObjectMeta: meta(infrav1.ClusterFinalizer)}, func(cache client.Client, api client.Reader) reconcile.Reconciler {
			return &DroverClusterReconciler{Client: cache, APIReader: api, Unsent: &sync.Map{}}
		}},
		{&infrav1.DroverAccount{ObjectMeta: meta(infrav1.AccountFinalizer)}, func(cache client.Client, api client.Reader) reconcile.Reconciler {
			return &DroverAccountReconciler{Client: cache, APIReader: api, Accounts: fleet.NewAccounts(fleet.Options{})}
		}},
	} {
		g := NewWithT(t)
		cache := withIndex().WithObjects(c.object).Build()
		api := withIndex().WithObjects(machine.DeepCopy()).Build()
		r, key := c.reconciler(cache, api), client.ObjectKeyFromObject(c.object)
		_, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: key})
		g.Expect(err).To(MatchError(ContainSubstring(`DroverMachine "new" is not in the cache yet`)))
		g.Expect(cache.Get(t.Context(), key, c.object)).To(Succeed())
		g.Expect(c.object.GetFinalizers()).To(HaveLen(1))

		g.Expect(api.Delete(t.Context(), machine)).To(Succeed())
		_, err = r.Reconcile(t.Context(), reconcile.Request{NamespacedName: key})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(apierrors.IsNotFound(cache.Get(t.Context(), key, c.object))).To(BeTrue())
	}
}
