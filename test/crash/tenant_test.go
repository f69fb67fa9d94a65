// SPDX-License-Identifier: Apache-2.0

package crash

import (
	"context"
	"fmt"
	"sync"

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
	trap  *trap
	calls map[string]int // in this step, by whom they go to and their kind
}

// set sets the trap for all of the tenant's calls; nil takes it away.
func (x *tenant) set(t *trap) {
	x.mu.Lock()
	x.trap = t
	x.mu.Unlock()
	x.Rule(x.rule)
}

// arm sets the trap for the first point of a chain.
func (x *tenant) arm(chain []point) *trap {
	t := newTrap(chain)
	x.set(t)
	x.died = chain[0]
	return t
}

func (x *tenant) armed() *trap {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.trap
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
	t, nth := x.trap, x.calls[key]
	x.mu.Unlock()
	if t == nil {
		return faultproxy.Verdict{}
	}
	return t.rule(ctx, c, at, nth)
}

// begin counts calls from here on.
func (x *tenant) begin() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.calls = map[string]int{}
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
