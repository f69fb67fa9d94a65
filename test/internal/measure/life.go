// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"context"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/test/internal/scenario"
)

// patience returns how long a fleet may take before it counts as stuck.
func (f *fleet) patience() time.Duration {
	return 3*time.Minute + time.Duration(f.Machines)*time.Second
}

// quiet is how long Drover must have written nothing before the idle phase begins.
const quiet = 10 * time.Second

// measure runs all phases of the fleet.
func (f *fleet) measure(ctx context.Context) (*Result, error) {
	r := &Result{Cloud: f.Cloud, Machines: f.Machines, Bare: f.Bare, Clusters: f.Clusters, Throttle: f.Throttle}
	start, err := f.mark(ctx)
	if err != nil {
		return nil, err
	}
	profiles := f.profile(ctx)
	create, remove := f.create, f.delete
	if f.Bare {
		create, remove = f.createBare, f.deleteBare
	}
	if err := create(ctx); err != nil {
		return nil, err
	}
	ready, err := f.mark(ctx)
	if err != nil {
		return nil, err
	}
	r.Create = ready.since(start)
	if r.LastVM, err = f.lastVM(ctx, start.at); err != nil {
		return nil, err
	}
	f.Say("%d machines: the last VM was made after %.1f s, all Ready after %.1f s", f.Machines, r.LastVM, r.Create.Seconds)
	r.Profiles = profiles()
	if f.Idle > 0 {
		if err := f.idle(ctx, r); err != nil {
			return nil, err
		}
	}
	if f.Bare {
		if r.Restart, err = f.restart(ctx); err != nil {
			return nil, err
		}
		f.Say("%d machines: a restarted Drover had reconciled all after %.1f s", f.Machines, r.Restart)
	}
	before, err := f.mark(ctx)
	if err != nil {
		return nil, err
	}
	if err := remove(ctx); err != nil {
		return nil, err
	}
	gone, err := f.mark(ctx)
	if err != nil {
		return nil, err
	}
	r.Delete = gone.since(before)
	f.Say("%d machines: all gone after %.1f s", f.Machines, r.Delete.Seconds)
	if err := f.prove(ctx); err != nil {
		return nil, err
	}
	usage, err := f.drover.Usage()
	if err != nil {
		return nil, err
	}
	r.PeakMemory = max(f.peakMemory, usage.PeakMemory)
	return r, nil
}

// create creates all pools, and waits until all their machines are Ready.
func (f *fleet) create(ctx context.Context) error {
	size := (f.Machines + f.Clusters - 1) / f.Clusters
	if f.PoolSize > 0 {
		size = min(size, f.PoolSize)
	}
	for left, n := f.Machines, 0; left > 0; left, n = left-size, n+1 {
		f.pools = append(f.pools, scenario.Pool{Cluster: f.clusters[n%f.Clusters], Name: fmt.Sprintf("pool-%d", n),
			Replicas: int32(min(left, size))})
	}
	for _, p := range f.pools {
		if err := scenario.Create(ctx, f.client, p.Objects()...); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, f.patience())
	defer cancel()
	checks := make([]scenario.Check, 0, len(f.pools))
	for _, p := range f.pools {
		checks = append(checks, p.Ready(f.view, p.Replicas))
	}
	return f.view.Until(ctx, "all machines are Ready", f.progress(scenario.All(checks...)))
}

// progress reports how many machines are Ready every 10 seconds.
func (f *fleet) progress(check scenario.Check) scenario.Check {
	const every = 10 * time.Second
	next := time.Now().Add(every)
	return func(ctx context.Context) (string, error) {
		missing, err := check(ctx)
		if err != nil || missing == "" || time.Now().Before(next) {
			return missing, err
		}
		next = time.Now().Add(every)
		all := &clusterv1.MachineDeploymentList{}
		if err := f.view.List(ctx, all, client.InNamespace(namespace)); err != nil {
			return missing, err
		}
		ready := int32(0)
		for i := range all.Items {
			ready += ptr.Deref(all.Items[i].Status.ReadyReplicas, 0)
		}
		machines := machineNames() // a MachineSet updates its counts only after it has finished scaling
		if err := f.view.List(ctx, machines, client.InNamespace(namespace)); err != nil {
			return missing, err
		}
		f.Say("%d machines: %d there, %d Ready", f.Machines, len(machines.Items), ready)
		return missing, nil
	}
}

func (f *fleet) lastVM(ctx context.Context, start time.Time) (float64, error) {
	books, err := f.place.books(ctx)
	if err != nil {
		return 0, err
	}
	if books.vms != f.Machines {
		return 0, fmt.Errorf("the cloud has %d VMs for %d machines", books.vms, f.Machines)
	}
	return books.last.Sub(start).Seconds(), nil
}

// idle waits for Idle without any request, and then makes a VM vanish.
func (f *fleet) idle(ctx context.Context, r *Result) error {
	if err := f.calmDown(ctx); err != nil {
		return err
	}
	f.Say("%d machines: idle for %s", f.Machines, f.Idle)
	before, err := f.mark(ctx)
	if err != nil {
		return err
	}
	if err := wait(ctx, f.Idle); err != nil {
		return err
	}
	after, err := f.mark(ctx)
	if err != nil {
		return err
	}
	phase := after.since(before)
	r.Idle = &phase
	if f.Vanish {
		r.VanishSeen, err = f.vanish(ctx)
		f.Say("%d machines: a VM that vanished was reported after %.1f s", f.Machines, r.VanishSeen)
	}
	return err
}

// calmDown waits until Drover has written nothing for the duration quiet.
func (f *fleet) calmDown(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, f.patience())
	defer cancel()
	last, since := -1, time.Now()
	for time.Since(since) < quiet {
		drover, _, err := f.audit.read()
		if err != nil {
			return err
		}
		if n := drover.Total(); n != last {
			last, since = n, time.Now()
		}
		if err := wait(ctx, time.Second); err != nil {
			return fmt.Errorf("waiting until Drover is at rest: %w; it wrote %v", err, drover)
		}
	}
	return nil
}

// wait waits for d, or until ctx ends.
func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// vanish terminates a VM without Drover's knowledge, and returns the time in seconds until its
// DroverMachine reports this.
func (f *fleet) vanish(ctx context.Context) (float64, error) {
	machines := &infrav1.DroverMachineList{}
	if err := f.client.List(ctx, machines, client.InNamespace(namespace), client.Limit(1)); err != nil {
		return 0, err
	}
	machine := &machines.Items[0]
	view, err := scenario.Follow(ctx, f.management.AdminConfig(), namespace, &infrav1.DroverMachine{})
	if err != nil {
		return 0, err
	}
	start := time.Now()
	if err := f.place.terminate(ctx, machine.Spec.ProviderID[strings.LastIndex(machine.Spec.ProviderID, "/")+1:]); err != nil {
		return 0, err
	}
	limited, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	err = view.Until(limited, "the DroverMachine says that its VM is gone", func(ctx context.Context) (string, error) {
		err := view.Get(ctx, client.ObjectKeyFromObject(machine), machine)
		if apierrors.IsNotFound(err) {
			return "", nil // it has been replaced, because its VM is gone
		}
		if err != nil {
			return "", err
		}
		if c := conditions.Get(machine, clusterv1.ReadyCondition); c == nil || c.Reason != infrav1.InstanceGoneReason {
			return scenario.Message(machine, clusterv1.ReadyCondition), nil
		}
		return "", nil
	})
	return time.Since(start).Seconds(), err
}

// delete scales all pools to 0, and waits until no Machine is left.
func (f *fleet) delete(ctx context.Context) error {
	for _, p := range f.pools {
		if err := p.Scale(ctx, f.client, 0); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, f.patience())
	defer cancel()
	return f.view.Until(ctx, "no machine is left", f.progress(scenario.Empty(f.view, machineNames(), namespace)))
}

// machineNames returns an empty list of the metadata of Machines.
func machineNames() *metav1.PartialObjectMetadataList {
	machines := &metav1.PartialObjectMetadataList{}
	machines.SetGroupVersionKind(clusterv1.GroupVersion.WithKind("MachineList"))
	return machines
}

// prove fails if anything is left in the cloud. It waits up to 2 minutes for Kubernetes' garbage
// collector: kube-controller-manager takes more than ten seconds to delete the Secrets of 300
// machines.
func (f *fleet) prove(ctx context.Context) error {
	books, err := f.place.books(ctx)
	if err != nil {
		return err
	}
	if books.live > 0 {
		return fmt.Errorf("after the last machine, %d resources are left in the cloud", books.live)
	}
	_, err = scenario.Wait(ctx, 2*time.Minute, func(ctx context.Context) (string, error) {
		left, err := f.clusters[0].Left(ctx, f.client, f.client)
		if err != nil || left == (scenario.Left{}) {
			return "", err
		}
		return fmt.Sprintf("after the last machine, %s are left", left), nil
	})
	return err
}
