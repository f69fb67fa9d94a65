// SPDX-License-Identifier: Apache-2.0

package safety

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
)

// TestWatchLabelComes: a DroverCluster that gets the watch label is reconciled. Its own status
// changes trigger no reconcile.
func TestWatchLabelComes(t *testing.T) {
	t.Parallel()
	before := &infrav1.DroverCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "blue", Generation: 1}}
	labeled, changed, told := before.DeepCopy(), before.DeepCopy(), before.DeepCopy()
	labeled.Labels = map[string]string{clusterv1.WatchLabel: "drover"}
	changed.Generation = 2
	told.Status.Conditions = []metav1.Condition{{Type: infrav1.ClusterReachableCondition}}
	for what, c := range map[string]struct {
		after *infrav1.DroverCluster
		want  bool
	}{"the label": {labeled, true}, "the spec": {changed, true}, "the status": {told, false}} {
		if got := specOrLabelsChanged.Update(event.UpdateEvent{ObjectOld: before, ObjectNew: c.after}); got != c.want {
			t.Errorf("%s changed: reconciled is %v, want %v", what, got, c.want)
		}
	}
}

// TestWatchLabelGoes: a DroverCluster that loses the watch label has no time series.
func TestWatchLabelGoes(t *testing.T) {
	t.Parallel()
	infra := &infrav1.DroverCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "blue"}}
	r := &ReachabilityReconciler{
		Client:           fake.NewClientBuilder().WithScheme(newScheme(t)).WithObjects(infra).Build(),
		Metrics:          NewMetrics(prometheus.NewRegistry()),
		WatchFilterValue: "drover",
	}
	r.Metrics.reachable(infra, false)
	if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(infra)}); err != nil {
		t.Fatal(err)
	}
	if n := testutil.CollectAndCount(r.Metrics.unreachable); n != 0 {
		t.Errorf("%d clusters are said to be unreachable, which nobody looks at", n)
	}
}
