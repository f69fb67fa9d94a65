// SPDX-License-Identifier: Apache-2.0

package manager

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"sync"
	"time"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/bootstrap"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/fleet"
	"github.com/drover-io/drover/controllers"
	"github.com/drover-io/drover/controllers/safety"
	"github.com/drover-io/drover/internal/connection"
	"github.com/drover-io/drover/internal/egress"
	"github.com/drover-io/drover/internal/forwarder"
	"github.com/drover-io/drover/internal/kubeconfig"
	"github.com/drover-io/drover/internal/options"
	"github.com/drover-io/drover/internal/record"
)

// shared is what several controllers use.
type shared struct {
	clouds       []cloud.Cloud
	dialer       *egress.Dialer
	forwarder    *forwarder.Forwarder
	accounts     *fleet.Accounts
	clusterCache clustercache.ClusterCache
	watches      connection.Watches // in workload clusters
	identity     string
	// machines is nil in a process that runs only the safety controllers.
	machines                         *controllers.DroverMachineReconciler
	endpoints                        *controllers.EndpointReconciler // as machines
	machinesChanged, accountsChanged *controllers.EventQueue
	endpointsChanged                 *controllers.EventQueue
	unsentBalancers                  sync.Map
	nodes                            *controllers.NodeHandover
}

// newShared checks the management cluster's CRDs, declares the indexes, and makes what the
// controllers share.
func newShared(ctx context.Context, mgr ctrl.Manager, o managerOptions, version string) (*shared, error) {
	if err := controllers.CheckKinds(ctx, mgr.GetConfig(), mgr.GetScheme()); err != nil {
		return nil, err
	}
	if err := controllers.SetupIndexes(ctx, mgr.GetFieldIndexer()); err != nil {
		return nil, err
	}
	identity, err := controllers.Identity(ctx, mgr.GetAPIReader())
	if err != nil {
		return nil, err
	}
	dialer, err := o.clouds.Dialer()
	if err != nil {
		return nil, err
	}
	s := &shared{
		clouds: o.clouds.Offered(), dialer: dialer, identity: identity,
		machinesChanged: &controllers.EventQueue{}, accountsChanged: &controllers.EventQueue{}, endpointsChanged: &controllers.EventQueue{},
	}
	s.nodes = &controllers.NodeHandover{Machines: s.machinesChanged, Nodes: &controllers.EventQueue{}}
	accounts := o.clouds.Accounts(dialer)
	accounts.Metrics, accounts.Workers = metrics.Registry, o.limits.machines
	var indexes []clustercache.CacheOptionsIndex
	if o.controllers.run != runSafety {
		indexes = controllers.NodeIndexes()
		accounts.OnMachines = func(account types.NamespacedName, tokens []string) {
			s.machines.InstancesChanged(ctx, account.Namespace, tokens)
			s.endpoints.BalancersChanged(ctx, account.Namespace, tokens)
		}
		accounts.OnAccount = func(account types.NamespacedName) { s.accountsChanged.Add(reconcile.Request{NamespacedName: account}) }
	}
	if s.forwarder, err = forwarder.New(forwarder.Options{Dial: dialer.DialContext, Proxy: egress.Proxy, OnRefuse: sayRefused(ctx, mgr),
		Metrics: metrics.Registry}); err != nil {
		return nil, err
	}
	if s.clusterCache, err = newClusterCache(ctx, mgr, o, version, s.forwarder, indexes); err != nil {
		return nil, err
	}
	s.accounts = fleet.NewAccounts(accounts)
	return s, errors.Join(mgr.Add(s.forwarder), mgr.Add(s.accounts))
}

// sayRefused returns a function that says on a Cluster why its API server is not asked.
func sayRefused(ctx context.Context, mgr ctrl.Manager) func(key client.ObjectKey, message string) {
	recorder := mgr.GetEventRecorder("drover-forwarder")
	return func(key client.ObjectKey, message string) {
		cluster := &clusterv1.Cluster{}
		if err := mgr.GetClient().Get(ctx, key, cluster); err != nil {
			return // the log has it
		}
		recorder.Eventf(cluster, nil, corev1.EventTypeWarning, "AnswerRefused", "Connect", "%s; Drover does not ask it for a while", message)
	}
}

// newClusterCache connects to the workload clusters, through the forwarder alone. It reads their
// kubeconfig Secrets live. Of each Node and certificate request it caches only what Drover reads,
// because a machine chooses how large its own Node and requests are. Without indexes it caches no
// Nodes.
func newClusterCache(
	ctx context.Context, mgr ctrl.Manager, o managerOptions, version string, forwarder *forwarder.Forwarder,
	indexes []clustercache.CacheOptionsIndex,
) (clustercache.ClusterCache, error) {
	// The cluster cache bypasses the kubeconfig if it knows the Pod in which it runs, and finds it
	// in the workload cluster. No option turns that off.
	if err := os.Unsetenv("POD_UID"); err != nil {
		return nil, fmt.Errorf("hiding the Pod from the cluster cache: %w", err)
	}
	clusterCache, err := clustercache.SetupWithManager(ctx, mgr, clustercache.Options{
		SecretClient:     kubeconfig.Reader{Live: mgr.GetAPIReader(), Write: forwarder.Kubeconfig},
		WatchFilterValue: o.controllers.watchFilter,
		Cache: clustercache.CacheOptions{
			DefaultTransform: slim,
			ByObject: map[client.Object]cache.ByObject{
				&corev1.Node{}: {Transform: slimNode},
				&certificatesv1.CertificateSigningRequest{}: {Transform: bootstrap.SlimRequest},
			},
			Indexes: indexes,
		},
		Client: clustercache.ClientOptions{
			UserAgent: options.UserAgent(version),
			QPS:       o.limits.remoteQPS,
			Burst:     o.limits.remoteBurst,
			Cache:     clustercache.ClientCacheOptions{DisableFor: []client.Object{&corev1.Secret{}, &corev1.ConfigMap{}}},
		},
	}, connectWorkers(o.limits.clusters, forwarder.Hangs))
	if err != nil {
		return nil, fmt.Errorf("making the cluster cache: %w", err)
	}
	return clusterCache, nil
}

// setupBootstrap sets up the controllers of DroverConfigs and of kubelets' certificates. The
// result says how far a machine has come.
func setupBootstrap(ctx context.Context, mgr ctrl.Manager, s *shared, o managerOptions) (bootstrap.Joining, error) {
	configs := &bootstrap.ConfigReconciler{
		Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), ClusterCache: s.clusterCache,
		Recorder: mgr.GetEventRecorder("drover-droverconfig"), WatchFilterValue: o.controllers.watchFilter,
		Host: hosts(mgr.GetClient(), s.clouds),
	}
	requests := &bootstrap.CSRReconciler{
		Client: mgr.GetClient(), ClusterCache: s.clusterCache, APIServer: s.forwarder.Host, Watches: &s.watches,
		Recorder: mgr.GetEventRecorder("drover-csr"), Log: record.Logger(), WatchFilterValue: o.controllers.watchFilter,
	}
	return bootstrap.Joining{Configs: configs, Requests: requests}, errors.Join(
		configs.SetupWithManager(ctx, mgr, fairWorkers(
			o.limits.machines, readTarget(mgr.GetClient(), clusterOf[*bootstrapv1.DroverConfig]), s.forwarder.Hangs)),
		requests.SetupWithManager(ctx, mgr, fairWorkers(
			o.limits.machines, func(r bootstrap.CSRRequest) types.NamespacedName { return r.Cluster }, s.forwarder.Hangs)),
	)
}

// hosts returns a function that gives the bootstrap provider a machine's provider ID and the user
// data limits of its cloud. It is here because bootstrap does not know the clouds.
func hosts(c client.Client, clouds []cloud.Cloud) func(context.Context, *clusterv1.Machine) (bootstrap.Host, error) {
	return func(ctx context.Context, machine *clusterv1.Machine) (bootstrap.Host, error) {
		none := bootstrap.Host{}
		ref := machine.Spec.InfrastructureRef
		if ref.GroupKind() != infrav1.DroverMachineKind {
			return none, nil
		}
		droverMachine := &infrav1.DroverMachine{}
		if err := c.Get(ctx, client.ObjectKey{Namespace: machine.Namespace, Name: ref.Name}, droverMachine); err != nil {
			return none, fmt.Errorf("reading the DroverMachine: %w", err)
		}
		for _, row := range clouds {
			if !row.Union.InMachine(&droverMachine.Spec.DroverMachineFields) {
				continue
			}
			host := bootstrap.Host{Takes: row.CheckUserData}
			if row.ProviderID == nil {
				return host, nil
			}
			account := &infrav1.DroverAccount{}
			if err := c.Get(ctx, client.ObjectKey{Namespace: machine.Namespace, Name: droverMachine.Spec.AccountRef.Name}, account); err != nil {
				return none, fmt.Errorf("reading the DroverMachine's account: %w", err)
			}
			if row.Union.InAccount(&account.Spec) {
				host.ProviderID = row.ProviderID(&account.Spec)
			}
			return host, nil
		}
		return none, nil
	}
}

// setupMachines sets up the controller of DroverMachines.
func setupMachines(mgr ctrl.Manager, s *shared, o managerOptions) error {
	s.machines = &controllers.DroverMachineReconciler{
		Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Accounts: s.accounts,
		Recorder: mgr.GetEventRecorder("drover-drovermachine"), Identity: s.identity, Namespace: o.management.Namespace,
		Log: record.Logger(), Changed: s.machinesChanged, Nodes: s.nodes, WatchFilterValue: o.controllers.watchFilter,
	}
	return s.machines.SetupWithManager(mgr, fairWorkers(o.limits.machines, readTarget(mgr.GetClient(), accountOfMachine), s.accounts.Hangs))
}

// setupNodes sets up the controller of DroverMachines' Nodes. progress says how far a machine
// without a Node has come: the packages controllers and bootstrap do not import each other.
func setupNodes(
	mgr ctrl.Manager, s *shared, o managerOptions,
	progress func(context.Context, *clusterv1.Cluster, *clusterv1.Machine) (reason, message string, err error),
) error {
	return (&controllers.NodeReconciler{
		Client: mgr.GetClient(), ClusterCache: s.clusterCache, Watches: &s.watches, Accounts: s.accounts,
		Recorder: mgr.GetEventRecorder("drover-node"), Handover: s.nodes,
		LateAfter: o.controllers.nodeLate, Progress: progress, WatchFilterValue: o.controllers.watchFilter,
	}).SetupWithManager(mgr, fairWorkers(o.limits.machines, readTarget(mgr.GetClient(), clusterOf[*infrav1.DroverMachine]), s.forwarder.Hangs))
}

func setupMachineMetrics(mgr ctrl.Manager, s *shared, o managerOptions) error {
	return controllers.NewMachineMetrics(mgr.GetClient(), s.clouds, o.controllers.watchFilter, metrics.Registry).SetupWithManager(mgr)
}

// setupStartups sets up what says how long machines take to become ready Nodes: the budgets of pools
// and the traces. certificates says when their kubelets asked for certificates, as progress does for
// setupNodes.
func setupStartups(
	mgr ctrl.Manager, s *shared, o managerOptions,
	certificates func(context.Context, client.ObjectKey) (map[string][2]time.Time, error),
) error {
	startups := controllers.Startups{Accounts: s.accounts, ClusterCache: s.clusterCache, Certificates: certificates}
	return errors.Join(
		(&controllers.PoolBudgets{
			Client: mgr.GetClient(), Startups: startups, Recorder: mgr.GetEventRecorder("drover-budget"), Metrics: metrics.Registry,
			WatchFilterValue: o.controllers.watchFilter,
		}).SetupWithManager(mgr),
		setupTraces(mgr, startups, o),
	)
}

// setupTraces sets up the traces of machines if they are turned on.
func setupTraces(mgr ctrl.Manager, startups controllers.Startups, o managerOptions) error {
	endpoint := cmp.Or(o.controllers.otlpEndpoint, os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"), os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT"))
	if endpoint == "" {
		return nil
	}
	if u, err := url.Parse(endpoint); err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return fmt.Errorf("--otlp-endpoint=%s: want a URL such as http://collector.monitoring:4317, or https for TLS", endpoint)
	}
	collector := otlptracegrpc.NewClient(otlptracegrpc.WithEndpointURL(endpoint),
		otlptracegrpc.WithRetry(otlptracegrpc.RetryConfig{Enabled: false})) // the controller retries
	if err := collector.Start(context.Background()); err != nil { // it does not connect yet
		return fmt.Errorf("--otlp-endpoint=%s: %w", endpoint, err)
	}
	return (&controllers.TraceReconciler{
		Client: mgr.GetClient(), Startups: startups, Upload: collector.UploadTraces, WatchFilterValue: o.controllers.watchFilter,
	}).SetupWithManager(mgr, workers[reconcile.Request](o.limits.allOther))
}

func setupAccounts(mgr ctrl.Manager, s *shared, o managerOptions) error {
	if o.controllers.run != runSafety {
		credentials := &controllers.CredentialsReconciler{Client: mgr.GetClient(), APIReader: mgr.GetAPIReader()}
		if err := credentials.SetupWithManager(mgr, workers[reconcile.Request](o.limits.allOther)); err != nil {
			return err
		}
	}
	return (&controllers.DroverAccountReconciler{
		Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Accounts: s.accounts, Clouds: s.clouds,
		Changed: s.accountsChanged, Machines: s.machinesChanged, Endpoints: s.endpointsChanged,
		Recorder:          mgr.GetEventRecorder("drover-droveraccount"),
		Log:               record.Logger(),
		AmbientNamespaces: o.clouds.AmbientNamespaces, WatchFilterValue: o.controllers.watchFilter,
		ConnectOnly: o.controllers.run == runSafety,
	}).SetupWithManager(mgr, fairWorkers(o.limits.accounts, itself, s.accounts.Hangs))
}

func setupClusters(mgr ctrl.Manager, s *shared, o managerOptions) error {
	return (&controllers.DroverClusterReconciler{
		Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Identity: s.identity, Unsent: &s.unsentBalancers,
		WatchFilterValue: o.controllers.watchFilter,
	}).SetupWithManager(mgr, workers[reconcile.Request](o.limits.allOther))
}

// setupEndpoints sets up the controller of DroverClusters' load balancers.
func setupEndpoints(mgr ctrl.Manager, s *shared, o managerOptions) error {
	s.endpoints = &controllers.EndpointReconciler{
		Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Accounts: s.accounts, Recorder: mgr.GetEventRecorder("drover-endpoint"),
		Log:       record.Logger(),
		Namespace: o.management.Namespace, Changed: s.endpointsChanged, Unsent: &s.unsentBalancers,
		WatchFilterValue: o.controllers.watchFilter,
	}
	return s.endpoints.SetupWithManager(mgr, fairWorkers(o.limits.allOther, readTarget(mgr.GetClient(), accountOfEndpoint), s.accounts.Hangs))
}

func setupTemplates(mgr ctrl.Manager, s *shared, o managerOptions) error {
	return (&controllers.DroverMachineTemplateReconciler{
		Client: mgr.GetClient(), Accounts: s.accounts, WatchFilterValue: o.controllers.watchFilter,
	}).SetupWithManager(mgr, fairWorkers(o.limits.allOther, readTarget(mgr.GetClient(), accountOfTemplate), s.accounts.Hangs))
}

func setupControlPlanes(mgr ctrl.Manager, s *shared, o managerOptions) error {
	r := &controllers.AdoptedControlPlaneReconciler{
		Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), ClusterCache: s.clusterCache, Dial: s.dialer.DialContext,
		ProbeInterval: o.controllers.probeInterval, WatchFilterValue: o.controllers.watchFilter,
	}
	return r.SetupWithManager(mgr, fairWorkers(o.limits.controlPlanes, itself, r.Hangs))
}

// setupSafety sets up the safety controllers whose period is not 0.
func setupSafety(mgr ctrl.Manager, s *shared, o managerOptions) error {
	counted := safety.NewMetrics(metrics.Registry)
	var errs []error
	if o.safety.orphanPeriod != 0 {
		errs = append(errs, (&safety.OrphanReconciler{
			Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Accounts: s.accounts,
			Recorder: mgr.GetEventRecorder("drover-orphans"), Log: record.Logger(), Identity: s.identity, Namespace: o.management.Namespace,
			Period: o.safety.orphanPeriod, Grace: o.orphans.Grace, MaxDeletions: o.orphans.MaxDeletions, MaxShare: o.orphans.MaxShare,
			Metrics: counted, WatchFilterValue: o.controllers.watchFilter,
		}).SetupWithManager(mgr, fairWorkers(o.limits.allOther, itself, s.accounts.Hangs)))
	}
	if o.safety.overshootPeriod != 0 {
		errs = append(errs, (&safety.OvershootReconciler{
			Client: mgr.GetClient(), Accounts: s.accounts, Recorder: mgr.GetEventRecorder("drover-overshoot"), Log: record.Logger(),
			Period: o.safety.overshootPeriod, Up: o.safety.up, Down: o.safety.down,
			Metrics: counted, WatchFilterValue: o.controllers.watchFilter,
		}).SetupWithManager(mgr, workers[reconcile.Request](o.limits.allOther)))
	}
	if o.safety.reachPeriod != 0 {
		errs = append(errs, (&safety.ReachabilityReconciler{
			Client: mgr.GetClient(), ClusterCache: s.clusterCache, Recorder: mgr.GetEventRecorder("drover-reachability"), Log: record.Logger(),
			Period: o.safety.reachPeriod, Timeout: o.safety.reachTimeout,
			Metrics: counted, WatchFilterValue: o.controllers.watchFilter,
		}).SetupWithManager(mgr, fairWorkers(o.limits.clusters, readTarget(mgr.GetClient(), clusterOf[*infrav1.DroverCluster]),
			s.forwarder.Hangs)))
	}
	return errors.Join(errs...)
}

// setupWebhooks sets up the admission webhooks.
func setupWebhooks(mgr ctrl.Manager, s *shared, o managerOptions) error {
	return errors.Join(
		controllers.Webhooks{Clouds: s.clouds, Reader: mgr.GetAPIReader(), Namespace: o.management.Namespace}.SetupWithManager(mgr),
		bootstrap.Webhooks{WatchFilterValue: o.controllers.watchFilter, Namespace: o.management.Namespace}.SetupWithManager(mgr),
	)
}
