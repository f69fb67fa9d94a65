// SPDX-License-Identifier: Apache-2.0

package main

import (
	"time"

	"github.com/spf13/pflag"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/controllers/safety"
)

// safetyOptions are the safety controllers' flags. They have the names of machine-controller-manager's where they mean
// the same.
type safetyOptions struct {
	orphanPeriod, orphanGrace    time.Duration
	orphanDeletions, orphanShare int
}

func (o *safetyOptions) addFlags(f *pflag.FlagSet) {
	f.DurationVar(&o.orphanPeriod, "machine-safety-orphan-vms-period", 30*time.Minute, "Time between two passes of the orphan collector over an account; 0 switches it off.")
	f.DurationVar(&o.orphanGrace, "machine-safety-orphan-vms-grace", 30*time.Minute, "How long a resource must have been without a machine, in all listings, to be an orphan. It must be longer than the longest create.")
	f.IntVar(&o.orphanDeletions, "machine-safety-orphan-vms-max-deletions", 10, "Of how many machines one pass over an account may begin to delete what is left.")
	f.IntVar(&o.orphanShare, "machine-safety-orphan-vms-max-share", 20, "Share of an account's fleet, in percent, beyond which orphans (of 3 machines at least) are not believed, and a person must confirm them.")
}

// setup registers the safety controllers.
func (o *safetyOptions) setup(mgr ctrl.Manager, all *options, accounts *cloud.Accounts, identity string) error {
	if o.orphanPeriod == 0 {
		return nil
	}
	return (&safety.OrphanReconciler{
		Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Accounts: accounts,
		Recorder: mgr.GetEventRecorder("drover-orphans"), Identity: identity, Namespace: all.namespace,
		Period: o.orphanPeriod, Grace: o.orphanGrace, MaxDeletions: o.orphanDeletions, MaxShare: o.orphanShare,
		Metrics: safety.NewMetrics(metrics.Registry), WatchFilterValue: all.watchFilter,
	}).SetupWithManager(mgr, controllerOptions[reconcile.Request](all.concurrency))
}
