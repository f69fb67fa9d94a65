// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/spf13/pflag"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
	"github.com/drover-io/drover/bootstrap"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/registry"
	"github.com/drover-io/drover/controllers"
	"github.com/drover-io/drover/internal/egress"
)

// clusterCache connects to the workload clusters. It reads their kubeconfig Secrets live. Of each
// Node it caches only what Drover reads, because thousands of Nodes with their images and
// conditions would waste memory. Without indexes it caches no Nodes at all.
func (o *options) clusterCache(ctx context.Context, mgr ctrl.Manager, indexes ...clustercache.CacheOptionsIndex) (clustercache.ClusterCache, error) {
	clusterCache, err := clustercache.SetupWithManager(ctx, mgr, clustercache.Options{
		SecretClient:     mgr.GetAPIReader(),
		WatchFilterValue: o.watchFilter,
		Cache: clustercache.CacheOptions{
			DefaultTransform: cache.TransformStripManagedFields(),
			ByObject:         map[client.Object]cache.ByObject{&corev1.Node{}: {Transform: slimNode}},
			Indexes:          indexes,
		},
		Client: clustercache.ClientOptions{
			UserAgent: "drover/" + version,
			QPS:       o.remoteQPS,
			Burst:     o.remoteBurst,
			Cache:     clustercache.ClientCacheOptions{DisableFor: []client.Object{&corev1.Secret{}, &corev1.ConfigMap{}}},
		},
	}, controllerOptions[reconcile.Request](o.clusters))
	if err != nil {
		return nil, fmt.Errorf("making the cluster cache: %w", err)
	}
	return clusterCache, nil
}

// slimNode drops the fields of a Node that Drover never reads.
func slimNode(object any) (any, error) {
	node, ok := object.(*corev1.Node)
	if !ok {
		return object, nil
	}
	node.ManagedFields = nil
	node.Annotations = nil
	node.Status = corev1.NodeStatus{Addresses: node.Status.Addresses}
	return node, nil
}

// controllerOptions limits the concurrency, and the backoff after an error that does not come from
// the cloud: 100 milliseconds at first, and at most 30 seconds. The default of controller-runtime
// is at most 1,000 seconds.
func controllerOptions[request comparable](concurrency int) controller.TypedOptions[request] {
	return controller.TypedOptions[request]{
		MaxConcurrentReconciles: concurrency,
		RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[request](100*time.Millisecond, 30*time.Second),
		RecoverPanic:            ptr.To(true),
	}
}

// endpointOptions are the flags that limit where tenants' endpoints may lead.
type endpointOptions struct{ allow, deny []string }

func (o *endpointOptions) addFlags(f *pflag.FlagSet) {
	f.StringSliceVar(&o.allow, "allow-endpoints", nil, "CIDRs in which endpoints that users name may be although they are denied: by --deny-endpoints, or because they are loopback, link-local or a cloud's metadata service. Default: none.")
	f.StringSliceVar(&o.deny, "deny-endpoints", nil, "CIDRs in which endpoints that users name may not be, beside loopback, link-local and multicast addresses and the clouds' metadata services. Default: none.")
}

func (o *endpointOptions) dialer() (*egress.Dialer, error) {
	dialer, err := egress.New(o.allow, o.deny)
	if err != nil {
		return nil, fmt.Errorf("--allow-endpoints, --deny-endpoints: %w", err)
	}
	return dialer, nil
}

// reconcileTimeout returns the timeout of every reconcile of every controller: a minute, as in
// Cluster API's own controllers, or the time of two of the longest cloud calls.
func (o *options) reconcileTimeout() time.Duration { return max(time.Minute, 2*o.cloudCall) }

// webhooks registers the admission webhooks, unless they are switched off.
func (o *options) webhooks(ctx context.Context, mgr ctrl.Manager, clouds []cloud.Cloud) error {
	if o.webhookPort == 0 {
		return nil
	}
	self := &authenticationv1.SelfSubjectReview{}
	if err := mgr.GetClient().Create(ctx, self); err != nil {
		return fmt.Errorf("asking the API server for this manager's user: %w", err)
	}
	return errors.Join(
		(&controllers.Webhooks{
			Clouds: clouds, Reader: mgr.GetAPIReader(), Namespace: o.namespace, Managers: append(o.otherManagers, self.Status.UserInfo.Username),
		}).SetupWithManager(mgr),
		bootstrap.ConfigWebhook{WatchFilterValue: o.watchFilter, Namespace: o.namespace}.SetupWebhookWithManager(mgr),
		bootstrap.TemplateWebhook{}.SetupWebhookWithManager(mgr),
	)
}

// checks adds the health check (the webhook server answers) and the readiness check (the caches are
// synced as well).
func (o *options) checks(mgr ctrl.Manager) error {
	synced := func(req *http.Request) error {
		ctx, cancel := context.WithTimeout(req.Context(), time.Second)
		defer cancel()
		if !mgr.GetCache().WaitForCacheSync(ctx) {
			return errors.New("the caches are not filled yet")
		}
		return nil
	}
	errs := []error{mgr.AddReadyzCheck("caches", synced)}
	if o.webhookPort != 0 {
		started := mgr.GetWebhookServer().StartedChecker()
		errs = append(errs, mgr.AddReadyzCheck("webhook", started), mgr.AddHealthzCheck("webhook", started))
	}
	return errors.Join(errs...)
}

// hosts returns a function that gives the bootstrap provider a machine's provider ID and the user
// data limits of its cloud. It is here because bootstrap does not know the clouds.
func hosts(c client.Client, clouds []cloud.Cloud) func(context.Context, *clusterv1.Machine) (bootstrap.Host, error) {
	return func(ctx context.Context, machine *clusterv1.Machine) (bootstrap.Host, error) {
		none := bootstrap.Host{}
		ref := machine.Spec.InfrastructureRef
		if ref.APIGroup != infrav1.GroupVersion.Group || ref.Kind != "CloudMachine" {
			return none, nil
		}
		cloudMachine := &infrav1.CloudMachine{}
		if err := c.Get(ctx, client.ObjectKey{Namespace: machine.Namespace, Name: ref.Name}, cloudMachine); err != nil {
			return none, fmt.Errorf("reading the CloudMachine: %w", err)
		}
		for _, row := range clouds {
			if !row.Union.InMachine(&cloudMachine.Spec.CloudMachineFields) {
				continue
			}
			host := bootstrap.Host{Takes: row.CheckUserData}
			if row.ProviderID == nil {
				return host, nil
			}
			account := &infrav1.CloudAccount{}
			if err := c.Get(ctx, client.ObjectKey{Namespace: machine.Namespace, Name: cloudMachine.Spec.AccountRef.Name}, account); err != nil {
				return none, fmt.Errorf("reading the CloudMachine's account: %w", err)
			}
			if row.Union.InAccount(&account.Spec) {
				host.ProviderID = row.ProviderID(&account.Spec)
			}
			return host, nil
		}
		return none, nil
	}
}

// clouds returns the clouds that this process offers.
func (o *options) clouds() []cloud.Cloud {
	if o.simulated == "" && !o.simulatedCloud {
		return registry.Clouds()
	}
	return registry.WithSimulated(o.simulated)
}
