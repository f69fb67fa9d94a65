// SPDX-License-Identifier: Apache-2.0

package safety

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
)

// outage is a Cluster whose API server does not answer.
type outage struct {
	*WithT
	t     *testing.T
	api   client.Client
	r     *ReachabilityReconciler
	infra *infrav1.DroverCluster
	pool  *clusterv1.MachineDeployment
}

// newOutage must be called in a bubble of testing/synctest.
func newOutage(t *testing.T, edit func(*infrav1.DroverCluster)) *outage {
	t.Helper()
	o := &outage{WithT: NewWithT(t), t: t}
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "blue", UID: "blue"}}
	cluster.Status.Conditions = []metav1.Condition{{Type: clusterv1.ClusterControlPlaneInitializedCondition, Status: metav1.ConditionTrue}}
	o.infra = &infrav1.DroverCluster{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "blue", Labels: map[string]string{clusterv1.ClusterNameLabel: "blue"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: "Cluster", Name: "blue", UID: "blue"}},
	}}
	edit(o.infra)
	o.pool = &clusterv1.MachineDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pool"}}
	o.pool.Spec.ClusterName = "blue"
	o.pool.Spec.Template.Spec.InfrastructureRef = clusterv1.ContractVersionedObjectReference{APIGroup: infrav1.GroupVersion.Group,
		Kind: "DroverMachineTemplate", Name: "pool"}
	scheme := newScheme(t)
	o.Expect(corev1.AddToScheme(scheme)).To(Succeed())
	o.api = fake.NewClientBuilder().WithScheme(scheme).WithObjects(cluster, o.infra, o.pool).WithStatusSubresource(o.infra).Build()
	down := fake.NewClientBuilder().WithScheme(scheme).WithInterceptorFuncs(interceptor.Funcs{
		List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
			return errors.New("no answer")
		},
	}).Build()
	o.r = &ReachabilityReconciler{
		Client: o.api, ClusterCache: clustercache.NewFakeClusterCache(down, client.ObjectKeyFromObject(cluster)),
		Recorder: events.NewFakeRecorder(10), Period: time.Minute, Timeout: time.Minute, Metrics: NewMetrics(prometheus.NewRegistry()),
	}
	o.read()
	return o
}

// lasts lets the outage last for some minutes.
func (o *outage) lasts() {
	o.t.Helper()
	for begun := time.Now(); time.Since(begun) < 10*time.Minute; {
		result, err := o.r.Reconcile(o.t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(o.infra)})
		o.Expect(err).NotTo(HaveOccurred())
		o.Expect(result.RequeueAfter).To(BeNumerically(">", 0))
		time.Sleep(result.RequeueAfter)
	}
	o.read()
}

func (o *outage) read() {
	o.t.Helper()
	for _, object := range []client.Object{o.infra, o.pool} {
		o.Expect(o.api.Get(o.t.Context(), client.ObjectKeyFromObject(object), object)).To(Succeed())
	}
}

func manage(o *infrav1.DroverCluster) {
	metav1.SetMetaDataAnnotation(&o.ObjectMeta, clusterv1.ManagedByAnnotation, "their-terraform")
}

// TestExternallyManagedIsNotTouched: nothing is written to a DroverCluster that another controller
// manages, whether or not its API server answers.
func TestExternallyManagedIsNotTouched(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := newOutage(t, manage)
		before, pool := o.infra.ResourceVersion, o.pool.ResourceVersion
		o.lasts()
		o.Expect(o.infra.ResourceVersion).To(Equal(before))
		o.Expect(o.pool.ResourceVersion).To(Equal(pool))
	})
}

// TestHandoverInAnOutage: a freeze from before the handover ends with it, because nobody would end
// it later.
func TestHandoverInAnOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := newOutage(t, func(*infrav1.DroverCluster) {})
		o.lasts()
		o.Expect(o.infra.Annotations).To(HaveKey(infrav1.UnreachableAnnotation))
		o.Expect(o.pool.Annotations).To(HaveKey(clusterv1.PausedAnnotation))

		manage(o.infra)
		o.Expect(o.api.Update(t.Context(), o.infra)).To(Succeed())
		o.lasts()
		o.Expect(o.infra.Annotations).NotTo(HaveKey(infrav1.UnreachableAnnotation))
		o.Expect(o.pool.Annotations).NotTo(HaveKey(clusterv1.PausedAnnotation))
		o.Expect(testutil.CollectAndCount(o.r.Metrics.unreachable)).To(BeZero())
		before := o.infra.ResourceVersion
		o.lasts()
		o.Expect(o.infra.ResourceVersion).To(Equal(before))
	})
}

// TestConditionNamesTheNodes: the condition names the Nodes that have not reported now. An Event
// says once that the cluster waits for them.
func TestConditionNamesTheNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOutage(t, func(*infrav1.DroverCluster) {})
		versions := map[string]bool{}
		for _, message := range []string{"waiting for a and b", "waiting for b", "waiting for b"} {
			o.Expect(o.r.setCondition(t.Context(), o.infra, metav1.ConditionFalse, infrav1.WaitingForNodesReason, message)).To(Succeed())
			o.read()
			o.Expect(conditions.GetMessage(o.infra, infrav1.ClusterReachableCondition)).To(Equal(message))
			versions[o.infra.ResourceVersion] = true
		}
		o.Expect(versions).To(HaveLen(2), "nothing is written again")
		o.Expect(o.r.Recorder.(*events.FakeRecorder).Events).To(HaveLen(1))
	})
}
