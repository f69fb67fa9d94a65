// SPDX-License-Identifier: Apache-2.0

// Command drover is the manager of Drover's infrastructure, bootstrap and control plane providers
// for Cluster API, and, as "drover simulate", the simulated cloud that they can be tried out on.
// This package holds flags and wiring only.
package main

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/logs"
	logsv1 "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register" // --logging-format=json
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/apiwarnings"
	capiflags "sigs.k8s.io/cluster-api/util/flags"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1alpha1"
	controlplanev1 "github.com/drover-io/drover/api/controlplane/v1alpha1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
	"github.com/drover-io/drover/bootstrap"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/fleet"
	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/controllers"
)

// version is set at build time: -ldflags "-X main.version=v0.1.0".
var version = "dev"

// options are the manager's flags.
type options struct {
	kubeconfig      string
	namespace       string
	watchFilter     string
	healthAddress   string
	profilerAddress string
	webhookPort     int
	webhookCertDir  string
	otherManagers   []string
	leaderElect     bool
	leaderNamespace string
	leaseDuration   time.Duration
	renewDeadline   time.Duration
	retryPeriod     time.Duration
	qps             float32
	burst           int
	cloudCall       time.Duration
	remoteQPS       float32
	remoteBurst     int
	concurrency     int
	machines        int
	accounts        int
	controlPlanes   int
	clusters        int
	endpoints       endpointOptions
	ambient         []string
	simulated       string
	simulatedCloud  bool
	probeInterval   time.Duration
	nodeLate        time.Duration
	shutdownTimeout time.Duration
	part            string
	safety          safetyOptions
	diagnostics     capiflags.ManagerOptions
	logs            *logs.Options
}

func main() {
	if err := command().Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "drover:", err)
		os.Exit(1)
	}
}

// command returns the command line: the manager, with subcommands for the simulated cloud and for
// orphans.
func command() *cobra.Command {
	o := &options{logs: logs.NewOptions()}
	cmd := &cobra.Command{
		Use:           "drover",
		Short:         "Gives Kubernetes clusters their machines on any cloud, by Cluster API",
		Long:          "drover runs the manager: Drover's infrastructure, bootstrap and control plane providers for Cluster API.",
		Version:       version,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(*cobra.Command, []string) error { return run(o) },
	}
	cmd.CompletionOptions.DisableDefaultCmd = true
	o.addFlags(cmd)
	cmd.AddCommand(simulator.Command(), orphansCommand())
	return cmd
}

func (o *options) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.SortFlags = true
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "Path of the management cluster's kubeconfig. Default: the Pod's service account, or $KUBECONFIG.")
	f.StringVar(&o.namespace, "namespace", "", "Namespace to work in. Default: all namespaces.")
	f.StringVar(&o.watchFilter, "watch-filter", "", fmt.Sprintf("Work only on objects whose label %s has this value. Default: on all.", clusterv1.WatchLabel))
	f.StringVar(&o.healthAddress, "health-addr", ":9440", "Address of /healthz and /readyz.")
	f.StringVar(&o.profilerAddress, "profiler-address", "", "Address of the pprof profiler, such as localhost:6060. Default: none.")
	f.IntVar(&o.webhookPort, "webhook-port", 9443, "Port of the webhook server; 0 serves no webhooks.")
	f.StringVar(&o.webhookCertDir, "webhook-cert-dir", "/tmp/k8s-webhook-server/serving-certs", "Folder of the webhook server's tls.crt and tls.key.")
	f.StringSliceVar(&o.otherManagers, "other-managers", nil, "Users, such as system:serviceaccount:team-a:drover-manager, of the other managers in this management cluster. Like this manager, they may change spec.creation. Default: none.")
	f.BoolVar(&o.leaderElect, "leader-elect", true, "Have only one of several managers work at a time.")
	f.StringVar(&o.leaderNamespace, "leader-elect-namespace", "", "Namespace of the leader's lease. Default: the Pod's.")
	f.DurationVar(&o.leaseDuration, "leader-elect-lease-duration", 15*time.Second, "How long a leader that fell silent is waited for.")
	f.DurationVar(&o.renewDeadline, "leader-elect-renew-deadline", 10*time.Second, "How long a leader tries to renew its lease before it stops.")
	f.DurationVar(&o.retryPeriod, "leader-elect-retry-period", 2*time.Second, "Time between two attempts at the lease.")
	f.Float32Var(&o.qps, "kube-api-qps", 200, "Calls per second to the management cluster's API server, at most.")
	f.IntVar(&o.burst, "kube-api-burst", 400, "Calls to the management cluster's API server that may come at once.")
	f.Float32Var(&o.remoteQPS, "clustercache-client-qps", 100, "Calls per second to each workload cluster's API server, at most.")
	f.IntVar(&o.remoteBurst, "clustercache-client-burst", 200, "Calls to each workload cluster's API server that may come at once.")
	f.IntVar(&o.machines, "machine-concurrency", 50, "Machines and bootstrap configs worked on at a time.")
	f.IntVar(&o.accounts, "account-concurrency", 100, "CloudAccounts worked on at a time. An endpoint that hangs holds one for as long as a call may take.")
	f.IntVar(&o.controlPlanes, "control-plane-concurrency", 100, "Adopted control planes worked on at a time. An API server that hangs holds one for 10 seconds.")
	f.IntVar(&o.clusters, "clustercache-concurrency", 100, "Workload clusters connected to at a time.")
	f.IntVar(&o.concurrency, "concurrency", 10, "Objects of each other kind worked on at a time.")
	f.StringSliceVar(&o.ambient, "ambient-credentials-namespaces", nil, "Namespaces whose CloudAccounts may use the manager's own credentials. Default: none.")
	f.StringVar(&o.simulated, "simulated-endpoint", "", "The operator's simulated cloud, for CloudAccounts that name no endpoint. Turns --simulated-cloud on. Default: none.")
	f.BoolVar(&o.simulatedCloud, "simulated-cloud", false, "Offer the simulated cloud to CloudAccounts. For trying Drover out: an account of it may send a Secret of its namespace to any endpoint.")
	f.DurationVar(&o.cloudCall, "cloud-call-timeout", fleet.DefaultCall, "How long one call to a cloud may take. A machine whose creation was not recorded is believed to be absent after twice this time.")
	f.DurationVar(&o.nodeLate, "node-late-after", 5*time.Minute, "How long a VM may run before its CloudMachine says why it is not a ready Node. Nothing else follows from it.")
	f.DurationVar(&o.probeInterval, "control-plane-probe-interval", time.Minute, "Time between two probes of an adopted control plane.")
	f.DurationVar(&o.shutdownTimeout, "shutdown-timeout", 45*time.Second, "How long calls in flight may take to end when the manager is asked to stop.")
	f.StringVar(&o.part, "run", runAll, "What this process does: all; machines, without what watches over them; or safety, which is that alone, and lists each account by itself.")
	o.endpoints.addFlags(f)
	o.safety.addFlags(f)
	capiflags.AddManagerOptions(f, &o.diagnostics)
	logsv1.AddFlags(o.logs, f)
}

// run starts the manager, and returns after it was asked to stop.
func run(o *options) error {
	if err := logsv1.ValidateAndApply(o.logs, nil); err != nil {
		return fmt.Errorf("log flags: %w", err)
	}
	election, err := o.election()
	if err != nil {
		return err
	}
	ctrl.SetLogger(klog.Background())
	config, err := o.restConfig()
	if err != nil {
		return err
	}
	mgr, err := o.manager(config, election)
	if err != nil {
		return err
	}
	ctx := ctrl.SetupSignalHandler()
	if err := o.register(ctx, mgr); err != nil {
		return err
	}
	klog.InfoS("Starting Drover", "version", version)
	return mgr.Start(ctx)
}

// election returns the name of the leader election lease. Managers that divide the work by
// namespace or label each elect a leader for their own part.
func (o *options) election() (string, error) {
	name := map[string]string{runAll: "drover-leader", runMachines: "drover-leader", runSafety: "drover-safety-leader"}[o.part]
	switch {
	case name == "":
		return "", fmt.Errorf("--run=%s: want %s, %s or %s", o.part, runAll, runMachines, runSafety)
	case o.namespace == "" && o.watchFilter == "":
		return name, nil
	}
	part := sha256.Sum256([]byte(o.namespace + "/" + o.watchFilter))
	return fmt.Sprintf("%s-%x", name, part[:5]), nil
}

func (o *options) restConfig() (*rest.Config, error) {
	if o.kubeconfig != "" {
		if err := os.Setenv("KUBECONFIG", o.kubeconfig); err != nil {
			return nil, err
		}
	}
	config, err := ctrl.GetConfig()
	if err != nil {
		return nil, fmt.Errorf("finding the management cluster: %w", err)
	}
	config.QPS, config.Burst = o.qps, o.burst
	config.UserAgent = "drover/" + version
	config.WarningHandler = apiwarnings.DefaultHandler(klog.Background().WithName("API server"))
	return config, nil
}

func (o *options) manager(config *rest.Config, election string) (ctrl.Manager, error) {
	tlsOptions, metricsOptions, err := capiflags.GetManagerOptions(o.diagnostics)
	if err != nil {
		return nil, fmt.Errorf("diagnostics flags: %w", err)
	}
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:                        scheme,
		LeaderElection:                o.leaderElect,
		LeaderElectionID:              election,
		LeaderElectionNamespace:       o.leaderNamespace,
		LeaseDuration:                 &o.leaseDuration,
		RenewDeadline:                 &o.renewDeadline,
		RetryPeriod:                   &o.retryPeriod,
		LeaderElectionReleaseOnCancel: true, // nothing runs after mgr.Start has returned
		GracefulShutdownTimeout:       &o.shutdownTimeout,
		HealthProbeBindAddress:        o.healthAddress,
		PprofBindAddress:              o.profilerAddress,
		Metrics:                       *metricsOptions,
		Controller:                    ctrlconfig.Controller{ReconciliationTimeout: o.reconcileTimeout()},
		Cache:                         o.cacheOptions(),
		Client: client.Options{Cache: &client.CacheOptions{
			DisableFor:   []client.Object{&corev1.Secret{}, &corev1.ConfigMap{}}, // read live: must not be stale, or are secret
			Unstructured: false,
		}},
		WebhookServer: o.webhookServer(tlsOptions),
	})
	if err != nil {
		return nil, fmt.Errorf("making the manager: %w", err)
	}
	return mgr, nil
}

// newScheme returns a scheme with all kinds that Drover reads or writes.
func newScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, clusterv1.AddToScheme, infrav1.AddToScheme, bootstrapv1.AddToScheme, controlplanev1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	return scheme, nil
}

// cacheOptions returns options that keep the cache small. There is no resync: every change arrives
// as an event, and an idle machine is never reconciled.
func (o *options) cacheOptions() cache.Options {
	options := cache.Options{DefaultTransform: cache.TransformStripManagedFields()}
	if o.namespace != "" {
		options.DefaultNamespaces = map[string]cache.Config{o.namespace: {}}
	}
	return options
}

func (o *options) webhookServer(tlsOptions []func(*tls.Config)) webhook.Server {
	return webhook.NewServer(webhook.Options{Port: o.webhookPort, CertDir: o.webhookCertDir, TLSOpts: tlsOptions})
}

// accountReconciler returns the reconciler that connects the accounts, for any value of --run.
func (o *options) accountReconciler(
	mgr ctrl.Manager, clouds []cloud.Cloud, accounts *fleet.Accounts, changed, machines *controllers.Trigger,
) *controllers.CloudAccountReconciler {
	return &controllers.CloudAccountReconciler{
		Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Accounts: accounts, Clouds: clouds, Changed: changed, Machines: machines,
		Recorder:          mgr.GetEventRecorder("drover-cloudaccount"),
		AmbientNamespaces: o.ambient, WatchFilterValue: o.watchFilter,
	}
}

// register adds every controller, webhook and check to the manager.
func (o *options) register(ctx context.Context, mgr ctrl.Manager) error {
	if err := controllers.CheckKinds(ctx, mgr.GetConfig(), mgr.GetScheme()); err != nil {
		return err
	}
	if err := controllers.SetupIndexes(ctx, mgr.GetFieldIndexer()); err != nil {
		return err
	}
	identity, err := controllers.Identity(ctx, mgr.GetAPIReader())
	if err != nil {
		return err
	}
	dialer, err := o.endpoints.dialer()
	if err != nil {
		return err
	}
	clouds := o.clouds()
	if o.part == runSafety {
		return o.registerSafety(ctx, mgr, clouds, dialer, identity)
	}
	clusterCache, err := o.clusterCache(ctx, mgr, controllers.NodeIndexes()...)
	if err != nil {
		return err
	}
	machinesChanged, accountsChanged := &controllers.Trigger{}, &controllers.Trigger{}
	machines := &controllers.CloudMachineReconciler{
		Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), ClusterCache: clusterCache,
		Recorder: mgr.GetEventRecorder("drover-cloudmachine"), Identity: identity, Namespace: o.namespace, Changed: machinesChanged,
		WatchFilterValue: o.watchFilter,
		LateAfter:        o.nodeLate,
	}
	configs := &bootstrap.ConfigReconciler{
		Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), ClusterCache: clusterCache,
		Recorder: mgr.GetEventRecorder("drover-cloudinitconfig"), WatchFilterValue: o.watchFilter,
		Host: hosts(mgr.GetClient(), clouds),
	}
	requests := &bootstrap.CSRReconciler{
		Client: mgr.GetClient(), ClusterCache: clusterCache,
		Recorder: mgr.GetEventRecorder("drover-csr"), WatchFilterValue: o.watchFilter,
	}
	machines.Progress = bootstrap.Joining{Configs: configs, Requests: requests}.Progress // the two packages do not import each other
	accounts := fleet.NewAccounts(fleet.Options{
		Clouds:    clouds,
		Times:     fleet.TimesFor(o.cloudCall),
		Metrics:   metrics.Registry,
		Transport: fleet.NewTransport(dialer.DialContext), Ambient: fleet.NewTransport(nil),
		OnMachines: func(account types.NamespacedName, tokens []string) {
			machines.InstancesChanged(ctx, account.Namespace, tokens)
		},
		OnAccount: func(account types.NamespacedName) { accountsChanged.Add(reconcile.Request{NamespacedName: account}) },
	})
	machines.Accounts = accounts
	if err := mgr.Add(accounts); err != nil {
		return err
	}

	many, few := controllerOptions[reconcile.Request](o.machines), controllerOptions[reconcile.Request](o.concurrency)
	return errors.Join(
		machines.SetupWithManager(mgr, many),
		controllers.NewMachineTimes(mgr.GetClient(), clouds, o.watchFilter, metrics.Registry).SetupWithManager(mgr),
		o.accountReconciler(mgr, clouds, accounts, accountsChanged, machinesChanged).SetupWithManager(mgr, controllerOptions[reconcile.Request](o.accounts)),
		(&controllers.CloudClusterReconciler{
			Client: mgr.GetClient(), WatchFilterValue: o.watchFilter,
		}).SetupWithManager(mgr, few),
		(&controllers.CloudMachineTemplateReconciler{
			Client: mgr.GetClient(), Accounts: accounts, WatchFilterValue: o.watchFilter,
		}).SetupWithManager(mgr, few),
		(&controllers.AdoptedControlPlaneReconciler{
			Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), ProbeInterval: o.probeInterval, Dial: dialer.DialContext,
			WatchFilterValue: o.watchFilter,
		}).SetupWithManager(mgr, controllerOptions[reconcile.Request](o.controlPlanes)),
		configs.SetupWithManager(ctx, mgr, many),
		requests.SetupWithManager(ctx, mgr, controllerOptions[bootstrap.CSRRequest](o.machines)),
		o.watchOver(mgr, accounts, clusterCache, identity),
		o.webhooks(ctx, mgr, clouds),
		o.checks(mgr),
	)
}
