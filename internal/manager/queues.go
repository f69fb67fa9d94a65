// SPDX-License-Identifier: Apache-2.0

package manager

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/internal/fairqueue"
)

// workers limits the reconciles at the same time, and the backoff after an error that does not come
// from the cloud: 100 milliseconds at first, and at most 30 seconds. The default of
// controller-runtime is at most 1,000 seconds.
func workers[request comparable](count int) controller.TypedOptions[request] {
	return controller.TypedOptions[request]{
		MaxConcurrentReconciles: count,
		RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[request](100*time.Millisecond, 30*time.Second),
		RecoverPanic:            ptr.To(true),
	}
}

// fairWorkers are the workers of a controller that waits for clusters or accounts of tenants.
// targetOf returns the cluster or account that a request is about, and hangs whether it hangs.
func fairWorkers[request comparable](
	count int, targetOf func(request) types.NamespacedName, hangs func(types.NamespacedName) bool,
) controller.TypedOptions[request] {
	return fair(fairqueue.Rules[request]{Workers: count, TargetOf: targetOf, Hangs: hangs})
}

// connectWorkers are the workers of the cluster cache. It waits for the first list of a cluster's
// Nodes until the reconcile ends, after a minute, and nobody knows before that the cluster hangs.
// So a quarter of the workers is kept for other namespaces than the one whose clusters are first.
func connectWorkers(count int, hangs func(types.NamespacedName) bool) controller.TypedOptions[reconcile.Request] {
	return fair(fairqueue.Rules[reconcile.Request]{Workers: count, Reserve: min((count+3)/4, count-1), TargetOf: itself, Hangs: hangs})
}

func fair[request comparable](rules fairqueue.Rules[request]) controller.TypedOptions[request] {
	o := workers[request](rules.Workers)
	o.NewQueue = func(name string, limiter workqueue.TypedRateLimiter[request]) workqueue.TypedRateLimitingInterface[request] {
		return fairqueue.New(name, limiter, rules)
	}
	return o
}

// itself is the target of requests that name a cluster or account.
func itself(r reconcile.Request) types.NamespacedName { return r.NamespacedName }

// readTarget returns a function that reads the name of a request's target in the object, from the
// cache. An object that is gone has no target.
func readTarget[O any, P interface {
	*O
	client.Object
}](cache client.Reader, name func(P) string) func(reconcile.Request) types.NamespacedName {
	return func(r reconcile.Request) types.NamespacedName {
		target := types.NamespacedName{Namespace: r.Namespace}
		object := P(new(O))
		if cache.Get(context.Background(), r.NamespacedName, object) == nil {
			target.Name = name(object)
		}
		return target
	}
}

// clusterOf returns the name of an object's Cluster. Cluster API writes the label later than the
// owner reference.
func clusterOf[P client.Object](o P) string {
	if name := o.GetLabels()[clusterv1.ClusterNameLabel]; name != "" {
		return name
	}
	for _, owner := range o.GetOwnerReferences() {
		if owner.Kind == "Cluster" {
			return owner.Name
		}
	}
	return ""
}

func accountOfMachine(m *infrav1.DroverMachine) string { return m.Spec.AccountRef.Name }

func accountOfTemplate(t *infrav1.DroverMachineTemplate) string {
	return t.Spec.Template.Spec.AccountRef.Name
}

func accountOfEndpoint(c *infrav1.DroverCluster) string {
	return c.Spec.Endpoint.LoadBalancer.AccountRef.Name
}
