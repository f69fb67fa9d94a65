// SPDX-License-Identifier: Apache-2.0

package crash

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	controlplanev1 "github.com/drover-io/drover/api/controlplane/v1beta1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/simulated/wire"
	"github.com/drover-io/drover/test/internal/faultproxy"
	"github.com/drover-io/drover/test/internal/rig"
	"github.com/drover-io/drover/test/internal/scenario"
)

// tenant is one machine's life, in a namespace of its own.
type tenant struct {
	*rig.Tenant
	rig *rig.Rig
	// pools have one machine each: the first is created and rolled, the second adopted.
	pools []scenario.Pool
	lost  scenario.Pool // the pool whose VM was not recorded

	died    point  // the last point at which the manager was killed
	missing string // at the last check

	mu    sync.Mutex
	traps []*trap
	calls map[string]int // in this step, by peer and kind
}

// set sets traps for the tenant's calls, and restarts the count of calls.
func (x *tenant) set(traps ...*trap) {
	x.mu.Lock()
	x.traps, x.calls = traps, map[string]int{}
	x.mu.Unlock()
	x.Rule(x.rule)
}

// open returns the traps in which the manager has not died yet.
func (x *tenant) open() []*trap {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Clone(x.traps)
}

// held returns how long a call has been in one of the traps, or 0 when none is.
func (x *tenant) held() (longest time.Duration) {
	for _, t := range x.open() {
		longest = max(longest, t.holds())
	}
	return longest
}

// spring tells the traps that the manager dies now. Those that hold no call stay set.
func (x *tenant) spring() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.traps = slices.DeleteFunc(slices.Clone(x.traps), func(t *trap) bool {
		sprung := t.spring()
		if sprung {
			x.died = t.point
		}
		return sprung
	})
}

func (x *tenant) rule(ctx context.Context, c faultproxy.Call, at faultproxy.Point) faultproxy.Verdict {
	if !counts(c) {
		return faultproxy.Verdict{}
	}
	x.mu.Lock()
	key := c.Proxy + c.Kind()
	if at == faultproxy.Before {
		x.calls[key]++
	}
	traps, nth := x.traps, x.calls[key]
	x.mu.Unlock()
	for _, t := range traps {
		if t.catches(c, at, nth) {
			return t.hold(ctx)
		}
	}
	return faultproxy.Verdict{}
}

func (x *tenant) create(ctx context.Context) error {
	objects, err := x.Objects()
	if err != nil {
		return err
	}
	var endpoint clusterv1.APIEndpoint
	for _, o := range objects {
		switch o := o.(type) {
		case *controlplanev1.AdoptedControlPlane:
			endpoint = o.Spec.ControlPlaneEndpoint
		case *infrav1.DroverCluster:
			if hasBalancers() {
				o.Spec.Endpoint.LoadBalancer.AccountRef = o.Spec.AccountRefs[0]
			}
		case *clusterv1.Cluster:
			// The load balancer has no targets. Without this, Cluster API would give its address to
			// the machines whenever it is known before the adopted one's.
			o.Spec.ControlPlaneEndpoint = endpoint
		}
	}
	return scenario.Create(ctx, x.rig.Client, append(objects, x.pools[0].Objects()...)...)
}

func (x *tenant) roll(ctx context.Context) error {
	pool := x.pools[0]
	return pool.Roll(ctx, x.rig.Client, pool.Name+"-2", pool.Machine)
}

// keep keeps the lost pool.
func (x *tenant) keep(context.Context) error {
	x.pools = append(x.pools, x.lost)
	return nil
}

// forget deletes the lost pool, and waits until the deletion has reached the DroverMachine.
func (x *tenant) forget(ctx context.Context) error {
	if err := scenario.Delete(ctx, x.rig.Client, x.lost.Deployment()); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		list := &infrav1.DroverMachineList{}
		err := x.rig.Client.List(ctx, list, client.InNamespace(x.Namespace),
			client.MatchingLabels{clusterv1.MachineDeploymentNameLabel: x.lost.Name})
		return len(list.Items) == 1 && !list.Items[0].DeletionTimestamp.IsZero(), err
	})
}

func (x *tenant) lostNodes(ctx context.Context) (n int, err error) {
	list := &corev1.NodeList{}
	if err := x.rig.Nodes.List(ctx, list); err != nil {
		return 0, err
	}
	for i := range list.Items {
		if strings.HasPrefix(list.Items[i].Name, x.lost.Name+"-") {
			n++
		}
	}
	return n, nil
}

// forgotten checks that nothing is left of the lost pool, and that the other pools are ready.
func (x *tenant) forgotten() scenario.Check {
	return scenario.All(x.ready(), func(ctx context.Context) (string, error) {
		list := &clusterv1.MachineList{}
		err := x.rig.Client.List(ctx, list, client.InNamespace(x.Namespace),
			client.MatchingLabels{clusterv1.MachineDeploymentNameLabel: x.lost.Name})
		if err != nil || len(list.Items) > 0 {
			return "the Machine is there", err
		}
		if n, err := x.lostNodes(ctx); n > 0 || err != nil {
			return "its Node is there", err
		}
		return "", nil
	})
}

func (x *tenant) delete(ctx context.Context) error {
	for _, p := range x.pools {
		if err := scenario.Delete(ctx, x.rig.Client, p.Deployment()); err != nil {
			return err
		}
	}
	return nil
}

// ready checks that each pool has one Machine, Ready, with one VM.
func (x *tenant) ready() scenario.Check {
	pools := x.rig.Confirmed(func(r client.Reader) scenario.Check {
		var checks []scenario.Check
		for _, p := range x.pools {
			checks = append(checks, p.Ready(r, 1), p.Current(r))
		}
		return scenario.All(checks...)
	})
	return scenario.All(pools, x.oneEach)
}

func (x *tenant) oneEach(ctx context.Context) (string, error) {
	snapshot, err := x.rig.Snapshot(ctx)
	if err != nil {
		return "", err
	}
	alive := map[wire.Kind]int{}
	for _, r := range x.Live(snapshot) {
		alive[r.Kind]++
	}
	if alive[wire.Instance] != len(x.pools) {
		return fmt.Sprintf("%d VMs live", alive[wire.Instance]), nil
	}
	if hasBalancers() && alive[wire.Balancer] != 1 {
		return fmt.Sprintf("there are %d load balancers", alive[wire.Balancer]), nil
	}
	return "", nil
}

// hasBalancers reports whether the tenants' clusters have load balancers, too.
func hasBalancers() bool { return *where == "simulated" }

// gone checks that nothing is left of any machine.
func (x *tenant) gone() scenario.Check {
	return func(ctx context.Context) (string, error) {
		snapshot, err := x.rig.Snapshot(ctx)
		if err != nil {
			return "", err
		}
		balancers := map[string]bool{}
		for _, r := range x.Live(snapshot) {
			balancers[r.ID] = r.Kind == wire.Balancer
		}
		return x.Left(ctx, rig.Except{Instances: balancers})
	}
}

// leave deletes the cluster, which has no machines any more.
func (x *tenant) leave(ctx context.Context) error {
	return scenario.Delete(ctx, x.rig.Client, x.Cluster())
}

// left checks that nothing is left of the cluster.
func (x *tenant) left() scenario.Check {
	return scenario.All(
		scenario.Empty(x.rig.Client, &clusterv1.ClusterList{}, x.Namespace),
		scenario.Empty(x.rig.Client, &infrav1.DroverClusterList{}, x.Namespace),
		func(ctx context.Context) (string, error) { return x.Left(ctx, rig.Except{}) },
	)
}
