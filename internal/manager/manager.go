// SPDX-License-Identifier: Apache-2.0

// Package manager is Drover's manager: manager.go has its flags and lists its controllers, setup.go
// sets up each of them, and queues.go has their work queues. Options are plain structs that are
// passed down by value.
package manager

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/logs"
	logsv1 "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register" // --logging-format=json
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	capiflags "sigs.k8s.io/cluster-api/util/flags"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/drover-io/drover/internal/options"
)

// managerOptions are the manager's flags.
type managerOptions struct {
	management  options.Management
	clouds      options.Clouds
	leader      leaderOptions
	servers     serverOptions
	limits      limitOptions
	controllers controllerOptions
	orphans     options.Orphans
	safety      safetyOptions
	diagnostics capiflags.ManagerOptions
	logs        *logs.Options
}

func (o *managerOptions) flags(f *pflag.FlagSet) {
	o.management.AddFlags(f)
	o.clouds.AddFlags(f)
	o.leader.flags(f)
	o.servers.flags(f)
	o.limits.flags(f)
	o.controllers.flags(f)
	o.orphans.AddFlags(f)
	o.safety.flags(f)
	capiflags.AddManagerOptions(f, &o.diagnostics)
	logsv1.AddFlags(o.logs, f)
}

// leaderOptions are the flags of the leader election.
type leaderOptions struct {
	elect                                     bool
	namespace                                 string
	leaseDuration, renewDeadline, retryPeriod time.Duration
}

func (o *leaderOptions) flags(f *pflag.FlagSet) {
	f.BoolVar(&o.elect, "leader-elect", true, "Elect a leader, so that only one of several managers works at a time.")
	f.StringVar(&o.namespace, "leader-elect-namespace", "", "Namespace of the leader election Lease. Default: the Pod's namespace.")
	f.DurationVar(&o.leaseDuration, "leader-elect-lease-duration", 15*time.Second,
		"How long the other managers wait after the leader's last renewal before one of them takes over.")
	f.DurationVar(&o.renewDeadline, "leader-elect-renew-deadline", 10*time.Second,
		"How long the leader tries to renew its Lease before it stops.")
	f.DurationVar(&o.retryPeriod, "leader-elect-retry-period", 2*time.Second, "Interval between two attempts to acquire or renew the Lease.")
}

// serverOptions are the flags of the manager's own servers, and of its end.
type serverOptions struct {
	healthAddress   string
	profilerAddress string
	webhookPort     int
	webhookCertDir  string
	shutdownTimeout time.Duration
}

func (o *serverOptions) flags(f *pflag.FlagSet) {
	f.StringVar(&o.healthAddress, "health-addr", ":9440", "Address that serves /healthz and /readyz.")
	f.StringVar(&o.profilerAddress, "profiler-address", "",
		"Address that serves the pprof profiler, for example localhost:6060. Default: no profiler.")
	f.IntVar(&o.webhookPort, "webhook-port", 9443, "Port of the webhook server. 0 turns the webhooks off.")
	f.StringVar(&o.webhookCertDir, "webhook-cert-dir", "/tmp/k8s-webhook-server/serving-certs",
		"Directory with the webhook server's tls.crt and tls.key.")
	f.DurationVar(&o.shutdownTimeout, "shutdown-timeout", 45*time.Second,
		"How long calls in flight may take to finish when the manager stops.")
}

// limitOptions limit the calls to API servers, and the reconciles at the same time.
type limitOptions struct {
	qps, remoteQPS                                        float32
	burst, remoteBurst                                    int
	machines, accounts, controlPlanes, clusters, allOther int
}

func (o *limitOptions) flags(f *pflag.FlagSet) {
	f.Float32Var(&o.qps, "kube-api-qps", 200, "Maximum number of calls per second to the management cluster's API server.")
	f.IntVar(&o.burst, "kube-api-burst", 400, "Maximum number of calls to the management cluster's API server in a burst.")
	f.Float32Var(&o.remoteQPS, "clustercache-client-qps", 100,
		"Maximum number of calls per second to the API server of each workload cluster.")
	f.IntVar(&o.remoteBurst, "clustercache-client-burst", 200,
		"Maximum number of calls to the API server of each workload cluster in a burst.")
	f.IntVar(&o.machines, "drovermachine-concurrency", 50,
		"Maximum number of machines, of machines' Nodes, and of bootstrap configs, that are reconciled at the same time.")
	f.IntVar(&o.accounts, "droveraccount-concurrency", 100,
		"Maximum number of DroverAccounts that are reconciled at the same time. An endpoint that does not answer occupies a worker until the timeout of the call.")
	f.IntVar(&o.controlPlanes, "adoptedcontrolplane-concurrency", 100,
		"Maximum number of AdoptedControlPlanes that are reconciled at the same time. An API server that does not answer occupies a worker for 10 seconds.")
	f.IntVar(&o.clusters, "clustercache-concurrency", 100,
		"Maximum number of workload clusters that the manager connects to, and of those that it watches for outages, at the same time.")
	f.IntVar(&o.allOther, "concurrency", 10, "Maximum number of objects of each other kind that are reconciled at the same time.")
}

// The values of --run.
const (
	runAll      = "all"
	runMachines = "machines"
	runSafety   = "safety"
)

// controllerOptions say which controllers run, on which objects, and how.
type controllerOptions struct {
	run           string
	watchFilter   string
	probeInterval time.Duration
	nodeLate      time.Duration
	otlpEndpoint  string
}

func (o *controllerOptions) flags(f *pflag.FlagSet) {
	f.StringVar(&o.run, "run", runAll, "Controllers that this process runs: all; machines, which is all except the safety controllers; or safety, which is only the safety controllers, with listings of their own.")
	f.StringVar(&o.watchFilter, "watch-filter", "",
		fmt.Sprintf("Handle only objects whose label %s has this value. Default: all objects.", clusterv1.WatchLabel))
	f.DurationVar(&o.probeInterval, "control-plane-probe-interval", time.Minute,
		"Interval between two checks of an adopted control plane. A check sends a request only for a kubeconfig that it has not seen working, if Cluster API's connection has not answered since the last check, and every tenth time for the version.")
	f.DurationVar(&o.nodeLate, "node-late-after", 5*time.Minute,
		"How long a VM may run before its DroverMachine reports why it is not a ready Node. The flag has no other effect.")
	f.StringVar(&o.otlpEndpoint, "otlp-endpoint", "",
		"URL of an OpenTelemetry collector that gets a trace of each machine by OTLP/gRPC, for example http://collector.monitoring:4317. Default: $OTEL_EXPORTER_OTLP_TRACES_ENDPOINT or $OTEL_EXPORTER_OTLP_ENDPOINT; without any, there are no traces.")
}

// safetyOptions are the flags of the safety controllers, except those that define an orphan. Flags
// that mean the same as in machine-controller-manager have the same name.
type safetyOptions struct {
	orphanPeriod              time.Duration
	overshootPeriod           time.Duration
	up, down                  int
	reachPeriod, reachTimeout time.Duration
}

func (o *safetyOptions) flags(f *pflag.FlagSet) {
	f.DurationVar(&o.orphanPeriod, "machine-safety-orphan-vms-period", 30*time.Minute,
		"Interval between two passes of the orphan collector over an account. 0 turns the collector off.")
	f.DurationVar(&o.overshootPeriod, "machine-safety-overshooting-period", time.Minute,
		"Interval between two checks for pools with too many machines. 0 turns the checks off.")
	f.IntVar(&o.up, "safety-up", 2, "How many machines a pool may have beyond its desired replicas and surge before Drover freezes it.")
	f.IntVar(&o.down, "safety-down", 1, "How many machines below that limit a frozen pool must be before Drover unfreezes it.")
	f.DurationVar(&o.reachPeriod, "machine-safety-apiserver-statuscheck-period", time.Minute,
		"Interval between two checks of a workload cluster's API server. 0 turns the checks off.")
	f.DurationVar(&o.reachTimeout, "machine-safety-apiserver-statuscheck-timeout", 30*time.Second,
		"How long a workload cluster's API server may fail to answer before Drover stops replacing the cluster's machines. It must not be longer than the period.")
}

// New returns the command that runs the manager. The commit is empty if the build does not name it.
func New(version, commit string) *cobra.Command {
	o := managerOptions{logs: logs.NewOptions()}
	cmd := &cobra.Command{
		Use:           "manager",
		Short:         "Gives Kubernetes clusters their machines on any cloud, by Cluster API",
		Long:          "manager runs Drover's infrastructure, bootstrap and control plane providers for Cluster API.",
		Version:       version,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(*cobra.Command, []string) error { return runManager(o, version, commit) },
	}
	cmd.CompletionOptions.DisableDefaultCmd = true
	o.flags(cmd.Flags())
	return cmd
}

// runManager runs the manager until a signal stops it.
func runManager(o managerOptions, version, commit string) error {
	if err := logsv1.ValidateAndApply(o.logs, nil); err != nil {
		return fmt.Errorf("log flags: %w", err)
	}
	lease, err := leaseName(o)
	if err != nil {
		return err
	}
	ctrl.SetLogger(klog.Background())
	config, err := o.management.Config(version)
	if err != nil {
		return err
	}
	config.QPS, config.Burst = o.limits.qps, o.limits.burst
	mgr, err := newManager(config, lease, o)
	if err != nil {
		return err
	}
	ctx := ctrl.SetupSignalHandler()
	if err := register(ctx, mgr, o, version); err != nil {
		return err
	}
	if err := metrics.Registry.Register(NewBuildInfo(version, commit)); err != nil {
		return fmt.Errorf("registering the metric of the build: %w", err)
	}
	klog.InfoS("Starting Drover", "version", version)
	return mgr.Start(ctx)
}

// leaseName returns the name of the leader election Lease. Managers that divide the work by
// namespace or label each elect a leader for their own part.
func leaseName(o managerOptions) (string, error) {
	name := map[string]string{runAll: "drover-leader", runMachines: "drover-leader", runSafety: "drover-safety-leader"}[o.controllers.run]
	switch {
	case name == "":
		return "", fmt.Errorf("--run=%s: want %s, %s or %s", o.controllers.run, runAll, runMachines, runSafety)
	case o.management.Namespace == "" && o.controllers.watchFilter == "":
		return name, nil
	}
	part := sha256.Sum256([]byte(o.management.Namespace + "/" + o.controllers.watchFilter))
	return fmt.Sprintf("%s-%x", name, part[:5]), nil
}

func newManager(config *rest.Config, lease string, o managerOptions) (ctrl.Manager, error) {
	tlsOptions, metricsOptions, err := capiflags.GetManagerOptions(o.diagnostics)
	if err != nil {
		return nil, fmt.Errorf("diagnostics flags: %w", err)
	}
	scheme, err := options.NewScheme()
	if err != nil {
		return nil, err
	}
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:                        scheme,
		LeaderElection:                o.leader.elect,
		LeaderElectionID:              lease,
		LeaderElectionNamespace:       o.leader.namespace,
		LeaseDuration:                 &o.leader.leaseDuration,
		RenewDeadline:                 &o.leader.renewDeadline,
		RetryPeriod:                   &o.leader.retryPeriod,
		LeaderElectionReleaseOnCancel: true, // nothing runs after mgr.Start has returned
		GracefulShutdownTimeout:       &o.servers.shutdownTimeout,
		HealthProbeBindAddress:        o.servers.healthAddress,
		PprofBindAddress:              o.servers.profilerAddress,
		Metrics:                       *metricsOptions,
		// As in Cluster API's own controllers, or the time of two of the longest cloud calls.
		Controller: ctrlconfig.Controller{ReconciliationTimeout: max(time.Minute, 2*o.clouds.CallTimeout)},
		Cache:      cacheOptions(o.management.Namespace),
		Client: client.Options{Cache: &client.CacheOptions{
			DisableFor:   []client.Object{&corev1.Secret{}, &corev1.ConfigMap{}}, // read live: must not be stale, or are secret
			Unstructured: false,
		}},
		WebhookServer: webhook.NewServer(webhook.Options{Port: o.servers.webhookPort, CertDir: o.servers.webhookCertDir, TLSOpts: tlsOptions}),
	})
	if err != nil {
		return nil, fmt.Errorf("making the manager: %w", err)
	}
	return mgr, nil
}

// cacheOptions returns options that keep the cache small. Every change arrives as an event. The
// cache repeats each object every ten hours, controller-runtime's default, as an update without a
// change, which the predicates of machines drop: an idle machine is never reconciled.
func cacheOptions(namespace string) cache.Options {
	options := cache.Options{
		DefaultTransform: slim,
		ByObject:         map[client.Object]cache.ByObject{&corev1.Secret{}: {Transform: slimSecret}},
	}
	if namespace != "" {
		options.DefaultNamespaces = map[string]cache.Config{namespace: {}}
	}
	return options
}

// register adds every controller, webhook and check to the manager.
func register(ctx context.Context, mgr ctrl.Manager, o managerOptions, version string) error {
	s, err := newShared(ctx, mgr, o, version)
	if err != nil {
		return err
	}
	errs := []error{registerControllers(ctx, mgr, s, o)}
	// The process that makes the machines serves the webhooks.
	webhooks := o.controllers.run != runSafety && o.servers.webhookPort != 0
	if webhooks {
		errs = append(errs, setupWebhooks(mgr, s, o))
	}
	return errors.Join(append(errs, setupChecks(mgr, webhooks))...)
}

// registerControllers adds every controller that this process runs.
func registerControllers(ctx context.Context, mgr ctrl.Manager, s *shared, o managerOptions) error {
	var errs []error
	if o.controllers.run != runSafety {
		joining, err := setupBootstrap(ctx, mgr, s, o)
		errs = append(errs, err,
			setupMachines(mgr, s, o),
			setupNodes(mgr, s, o, joining.Progress),
			setupMachineMetrics(mgr, s, o),
			setupStartups(mgr, s, o, joining.Certificates),
			setupClusters(mgr, s, o),
			setupEndpoints(mgr, s, o),
			setupTemplates(mgr, s, o),
			setupControlPlanes(mgr, s, o),
		)
	}
	errs = append(errs, setupAccounts(mgr, s, o))
	if o.controllers.run != runMachines {
		errs = append(errs, setupSafety(mgr, s, o))
	}
	return errors.Join(errs...)
}

// setupChecks adds the health check (the webhook server answers) and the readiness check (the
// caches are synced as well).
func setupChecks(mgr ctrl.Manager, webhooks bool) error {
	synced := func(req *http.Request) error {
		ctx, cancel := context.WithTimeout(req.Context(), time.Second)
		defer cancel()
		if !mgr.GetCache().WaitForCacheSync(ctx) {
			return errors.New("the caches are not filled yet")
		}
		return nil
	}
	errs := []error{mgr.AddReadyzCheck("caches", synced)}
	if webhooks {
		started := mgr.GetWebhookServer().StartedChecker()
		errs = append(errs, mgr.AddReadyzCheck("webhook", started), mgr.AddHealthzCheck("webhook", started))
	}
	return errors.Join(errs...)
}
