// SPDX-License-Identifier: Apache-2.0

package crash

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-io/drover/cloud/simulated/wire"
	"github.com/drover-io/drover/test/faultproxy"
	"github.com/drover-io/drover/test/rig"
	"github.com/drover-io/drover/test/scenario"
)

// tenant is one machine's life, in a namespace of its own.
type tenant struct {
	*rig.Tenant
	rig *rig.Rig
	// pools of one machine each: the first is created and rolled, the second adopted.
	pools []scenario.Pool

	died    point  // the last
	missing string // at the last look

	mu    sync.Mutex
	traps []*trap
	calls map[string]int // in this step, by whom they go to and their kind
}

// set sets traps for all of the tenant's calls, and counts the calls from here on.
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

// held tells for how long a call has been in one of the traps; 0 means that none is.
func (x *tenant) held() (longest time.Duration) {
	for _, t := range x.open() {
		longest = max(longest, t.holds())
	}
	return longest
}

// spring lets the traps know that the manager dies now. Those that hold no call stay set.
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
	return scenario.Create(ctx, x.rig.Client, append(objects, x.pools[0].Objects()...)...)
}

func (x *tenant) roll(ctx context.Context) error {
	pool := x.pools[0]
	return pool.Roll(ctx, x.rig.Client, pool.Name+"-2", pool.Machine)
}

func (x *tenant) delete(ctx context.Context) error {
	for _, p := range x.pools {
		if err := scenario.Delete(ctx, x.rig.Client, p.Deployment()); err != nil {
			return err
		}
	}
	return nil
}

// ready: one Machine in each pool, Ready, and one VM for each.
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
	alive := 0
	for _, r := range x.Live(snapshot) {
		if r.Kind == wire.Instance {
			alive++
		}
	}
	if alive != len(x.pools) {
		return fmt.Sprintf("%d VMs live", alive), nil
	}
	return "", nil
}

// gone: nothing is left of any machine.
func (x *tenant) gone() scenario.Check {
	return func(ctx context.Context) (string, error) { return x.Left(ctx, rig.Except{}) }
}
