// SPDX-License-Identifier: Apache-2.0

package safety

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/internal/fairqueue"
)

// clusters is a ClusterCache whose clusters answer as list says. It knows which hang, as the
// forwarder does.
type clusters struct {
	clustercache.ClusterCache
	list  func(ctx context.Context, cluster client.ObjectKey) error
	hangs *sync.Map // client.ObjectKey → true
}

func (c clusters) GetUncachedClient(_ context.Context, key client.ObjectKey) (client.Client, error) {
	return interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
		List: func(ctx context.Context, _ client.WithWatch, _ client.ObjectList, _ ...client.ListOption) error {
			ctx, cancel := context.WithTimeout(ctx, 10*time.Second) // ClusterCache's clients
			defer cancel()
			err := c.list(ctx, key)
			if errors.Is(err, context.DeadlineExceeded) {
				c.hangs.Store(key, true)
			} else {
				c.hangs.Delete(key)
			}
			return err
		},
	}), nil
}

// TestAnOutageIsNoticedInTime: connected clusters whose Nodes can't be read hold a worker of the
// outage watch for ten seconds at a time. Another tenant's outage is noticed long before a
// MachineHealthCheck, of 5 minutes by habit, would replace its machines.
func TestAnOutageIsNoticedInTime(t *testing.T) {
	for _, test := range []struct{ hanging, namespaces int }{
		{0, 1},
		{300, 1},   // one tenant's
		{300, 300}, // each in a namespace of its own
	} {
		t.Run(fmt.Sprintf("beside %d hanging clusters in %d namespaces", test.hanging, test.namespaces), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if took := noticed(t, test.hanging, test.namespaces); took > 2*time.Minute {
					t.Errorf("the outage of another tenant's API server was noticed after %s", took.Round(time.Second))
				}
			})
		})
	}
}

// noticed returns how long an outage of a cluster is not noticed beside others that hang.
func noticed(t *testing.T, hanging, namespaces int) time.Duration {
	const workers = 10
	victim := types.NamespacedName{Namespace: "victim", Name: "prod"}
	keys := []types.NamespacedName{}
	for i := range hanging {
		keys = append(keys, types.NamespacedName{Namespace: fmt.Sprintf("hanging-%d", i%namespaces), Name: fmt.Sprintf("slow-%d", i)})
	}
	keys = append(keys, victim)
	down := time.Now().Add(5 * time.Minute)
	all := clusters{hangs: &sync.Map{}, list: func(ctx context.Context, key client.ObjectKey) error {
		switch {
		case key != victim:
			<-ctx.Done() // it answers everything else
			return ctx.Err()
		case time.Now().After(down):
			return errors.New("connection refused")
		}
		return nil
	}}
	management := connected(t, keys)
	watch, err := controller.NewUnmanaged(t.Name(), controller.Options{
		SkipNameValidation:      ptr.To(true),
		MaxConcurrentReconciles: workers,
		Reconciler: &ReachabilityReconciler{
			Client: management, ClusterCache: all, Recorder: events.NewFakeRecorder(100000), Metrics: NewMetrics(prometheus.NewRegistry()),
			Period: time.Minute, Timeout: 30 * time.Second,
		},
		NewQueue: func(
			name string, limiter workqueue.TypedRateLimiter[reconcile.Request],
		) workqueue.TypedRateLimitingInterface[reconcile.Request] {
			return fairqueue.New(name, limiter, fairqueue.Rules[reconcile.Request]{
				Workers:  workers,
				TargetOf: func(r reconcile.Request) types.NamespacedName { return r.NamespacedName },
				Hangs:    func(cluster types.NamespacedName) bool { _, ok := all.hangs.Load(cluster); return ok },
			})
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	err = watch.Watch(source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		for _, key := range keys {
			queue.Add(reconcile.Request{NamespacedName: key})
		}
		return nil
	}))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = watch.Start(ctx) })
	defer running.Wait()
	defer stop()
	for time.Since(down) < time.Hour {
		time.Sleep(time.Second)
		infra := &infrav1.DroverCluster{}
		if err := management.Get(t.Context(), victim, infra); err != nil {
			t.Fatal(err)
		}
		if infra.Annotations[infrav1.UnreachableAnnotation] != "" {
			break
		}
	}
	return time.Since(down)
}

// connected returns a management cluster with clusters whose API servers have answered once.
func connected(t *testing.T, keys []types.NamespacedName) client.Client {
	t.Helper()
	var objects []client.Object
	for _, key := range keys {
		cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name,
			UID: types.UID("uid-" + key.String())}}
		cluster.Status.Conditions = []metav1.Condition{{
			Type: clusterv1.ClusterControlPlaneInitializedCondition, Status: metav1.ConditionTrue, Reason: "Initialized",
			LastTransitionTime: metav1.Now(),
		}}
		infra := &infrav1.DroverCluster{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: "Cluster", Name: key.Name,
				UID: cluster.UID}}}}
		objects = append(objects, cluster, infra)
	}
	return fake.NewClientBuilder().WithScheme(newScheme(t)).WithObjects(objects...).WithStatusSubresource(&infrav1.DroverCluster{}).Build()
}
