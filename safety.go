// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/fleet"
	"github.com/drover-io/drover/controllers"
	"github.com/drover-io/drover/controllers/safety"
	"github.com/drover-io/drover/internal/egress"
)

// The values of --run.
const (
	runAll      = "all"
	runMachines = "machines"
	runSafety   = "safety"
)

// safetyOptions are the flags of the safety controllers. Flags that mean the same as in
// machine-controller-manager have the same name.
type safetyOptions struct {
	orphanPeriod, orphanGrace    time.Duration
	orphanDeletions, orphanShare int
	overshootPeriod              time.Duration
	up, down                     int
	reachPeriod, reachTimeout    time.Duration
}

func (o *safetyOptions) addFlags(f *pflag.FlagSet) {
	o.addOrphanFlags(f)
	f.DurationVar(&o.orphanPeriod, "machine-safety-orphan-vms-period", 30*time.Minute, "Time between two passes of the orphan collector over an account; 0 switches it off.")
	f.DurationVar(&o.overshootPeriod, "machine-safety-overshooting-period", time.Minute, "Time between two looks whether a pool has too many machines; 0 switches that off.")
	f.IntVar(&o.up, "safety-up", 2, "How many machines more than desired and surge a pool may have before it is frozen.")
	f.IntVar(&o.down, "safety-down", 1, "How many machines fewer than that bound a frozen pool must have before it is thawed.")
	f.DurationVar(&o.reachPeriod, "machine-safety-apiserver-statuscheck-period", time.Minute, "Time between two questions to a workload cluster's API server; 0 switches that off.")
	f.DurationVar(&o.reachTimeout, "machine-safety-apiserver-statuscheck-timeout", 30*time.Second, "How long a workload cluster's API server may fail to answer before nothing of its cluster is replaced any more. Not longer than the period.")
}

// addOrphanFlags adds the flags that define an orphan. A dry run uses them too.
func (o *safetyOptions) addOrphanFlags(f *pflag.FlagSet) {
	f.DurationVar(&o.orphanGrace, "machine-safety-orphan-vms-grace", 30*time.Minute, "How long a resource must have been without a machine, in all listings, to be an orphan. It must be longer than the longest create.")
	f.IntVar(&o.orphanDeletions, "machine-safety-orphan-vms-max-deletions", 10, "Of how many machines one pass over an account may begin to delete what is left.")
	f.IntVar(&o.orphanShare, "machine-safety-orphan-vms-max-share", 20, "Share of an account's fleet, in percent, beyond which orphans (of 3 machines at least) are not believed, and a person must confirm them.")
}

// registerSafety adds only the safety controllers, with their own accounts.
func (o *options) registerSafety(ctx context.Context, mgr ctrl.Manager, clouds []cloud.Cloud, dialer *egress.Dialer, identity string) error {
	accounts := fleet.NewAccounts(fleet.Options{
		Clouds: clouds, Times: fleet.TimesFor(o.cloudCall), Metrics: metrics.Registry, Transport: fleet.NewTransport(dialer.DialContext), Ambient: fleet.NewTransport(nil),
	})
	connect := o.accountReconciler(mgr, clouds, accounts, &controllers.Trigger{}, &controllers.Trigger{})
	connect.ConnectOnly = true
	o.webhookPort = 0 // the process that makes the machines serves them
	clusterCache, err := o.clusterCache(ctx, mgr)
	if err != nil {
		return err
	}
	return errors.Join(
		mgr.Add(accounts),
		connect.SetupWithManager(mgr, controllerOptions[reconcile.Request](o.accounts)),
		o.watchOver(mgr, accounts, clusterCache, identity),
		o.checks(mgr),
	)
}

// watchOver registers the safety controllers, if this process runs them.
func (o *options) watchOver(mgr ctrl.Manager, accounts *fleet.Accounts, clusters clustercache.ClusterCache, identity string) error {
	if o.part == runMachines {
		return nil
	}
	counted, few := safety.NewMetrics(metrics.Registry), controllerOptions[reconcile.Request](o.concurrency)
	var errs []error
	if o.safety.orphanPeriod != 0 {
		errs = append(errs, (&safety.OrphanReconciler{
			Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Accounts: accounts,
			Recorder: mgr.GetEventRecorder("drover-orphans"), Identity: identity, Namespace: o.namespace,
			Period: o.safety.orphanPeriod, Grace: o.safety.orphanGrace, MaxDeletions: o.safety.orphanDeletions, MaxShare: o.safety.orphanShare,
			Metrics: counted, WatchFilterValue: o.watchFilter,
		}).SetupWithManager(mgr, few))
	}
	if o.safety.overshootPeriod != 0 {
		errs = append(errs, (&safety.OvershootReconciler{
			Client: mgr.GetClient(), Accounts: accounts, Recorder: mgr.GetEventRecorder("drover-overshoot"),
			Period: o.safety.overshootPeriod, Up: o.safety.up, Down: o.safety.down, Metrics: counted, WatchFilterValue: o.watchFilter,
		}).SetupWithManager(mgr, few))
	}
	if o.safety.reachPeriod != 0 {
		errs = append(errs, (&safety.ReachabilityReconciler{
			Client: mgr.GetClient(), ClusterCache: clusters, Recorder: mgr.GetEventRecorder("drover-reachability"),
			Period: o.safety.reachPeriod, Timeout: o.safety.reachTimeout, Metrics: counted, WatchFilterValue: o.watchFilter,
		}).SetupWithManager(mgr, few))
	}
	return errors.Join(errs...)
}

// orphansCommand returns the command "drover orphans".
func orphansCommand() *cobra.Command {
	o := &options{}
	cmd := &cobra.Command{
		Use:   "orphans",
		Short: "Say what a pass of the orphan collector would do now, and do nothing",
		Long: `Connect each CloudAccount with its own credentials, list it once, read clusters and machines, and print what a pass
of the orphan collector would find and do now. Nothing is deleted and nothing is written. How long something has been
without a machine is known from the status that the manager has written.`,
		Args:         cobra.NoArgs,
		SilenceUsage: true,
		RunE:         func(cmd *cobra.Command, _ []string) error { return o.dryRun(cmd.Context(), cmd.OutOrStdout()) },
	}
	f := cmd.Flags()
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "Path of the management cluster's kubeconfig. Default: the Pod's service account, or $KUBECONFIG.")
	f.StringVar(&o.namespace, "namespace", "", "Namespace to look at. Default: all namespaces.")
	f.StringSliceVar(&o.ambient, "ambient-credentials-namespaces", nil, "Namespaces whose CloudAccounts may use this process's own credentials. Default: none.")
	f.StringVar(&o.simulated, "simulated-endpoint", "", "The operator's simulated cloud, for CloudAccounts that name no endpoint. Turns --simulated-cloud on. Default: none.")
	f.BoolVar(&o.simulatedCloud, "simulated-cloud", false, "Offer the simulated cloud to CloudAccounts. For trying Drover out: an account of it may send a Secret of its namespace to any endpoint.")
	f.DurationVar(&o.cloudCall, "cloud-call-timeout", fleet.DefaultCall, "How long one call to a cloud may take.")
	o.endpoints.addFlags(f)
	o.safety.addOrphanFlags(f)
	return cmd
}

// patience limits the wait for one account's complete listing.
const patience = 2 * time.Minute

// dryRun prints what a pass over each account would do.
func (o *options) dryRun(ctx context.Context, out io.Writer) error {
	config, err := o.restConfig()
	if err != nil {
		return err
	}
	scheme, err := newScheme()
	if err != nil {
		return err
	}
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return fmt.Errorf("making a client of the management cluster: %w", err)
	}
	identity, err := controllers.Identity(ctx, c)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	dialer, err := o.endpoints.dialer()
	if err != nil {
		return err
	}
	clouds := o.clouds()
	accounts := fleet.NewAccounts(fleet.Options{
		Clouds: clouds, Times: fleet.TimesFor(o.cloudCall), Transport: fleet.NewTransport(dialer.DialContext), Ambient: fleet.NewTransport(nil),
	})
	go func() { _ = accounts.Start(ctx) }()
	connect := &controllers.CloudAccountReconciler{
		Client: c, APIReader: c, Accounts: accounts, Clouds: clouds, AmbientNamespaces: o.ambient, ConnectOnly: true,
	}
	collector := &safety.OrphanReconciler{
		Client: c, APIReader: c, Accounts: accounts, Identity: identity, Namespace: o.namespace,
		Grace: o.safety.orphanGrace, MaxDeletions: o.safety.orphanDeletions, MaxShare: o.safety.orphanShare,
	}
	list := &infrav1.CloudAccountList{}
	if err := c.List(ctx, list, client.InNamespace(o.namespace)); err != nil {
		return fmt.Errorf("listing the CloudAccounts: %w", err)
	}
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "ACCOUNT\tKIND\tID\tSINCE\tNEXT")
	var failed []error
	for i := range list.Items {
		account := &list.Items[i]
		one, done := context.WithTimeout(ctx, patience)
		err := connect.Connect(one, account)
		if err == nil {
			err = collector.DryRun(one, account)
		}
		done()
		key := client.ObjectKeyFromObject(account)
		if err != nil {
			failed = append(failed, fmt.Errorf("CloudAccount %s: %w", key, err))
			continue
		}
		for _, x := range account.Status.Orphans.Observed {
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", key, x.Kind, x.ID, x.Since.UTC().Format(time.RFC3339), x.Next)
		}
		fmt.Fprintf(table, "%s\t\t\t\t%s, %d strangers: %s\n", key, conditions.GetReason(account, infrav1.AccountOrphansResolvedCondition),
			ptr.Deref(account.Status.Orphans.Strangers, 0), conditions.GetMessage(account, infrav1.AccountOrphansResolvedCondition))
	}
	return errors.Join(append(failed, table.Flush())...)
}
