// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"context"
	"maps"
	"testing"
	"time"

	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
	"github.com/drover-io/drover/cloud/simulated/wire"
	"github.com/drover-io/drover/test/scenario"
)

// TestCallsOfAFleet counts what 300 machines cost through Cluster API and Drover: to make, to keep while nothing happens, to delete. Nothing runs
// in them: what a Node does costs no call of EC2.
func TestCallsOfAFleet(t *testing.T) {
	const (
		machines = 300
		// A listing a minute is EC2's share of an idle account; here it is one in five seconds, for ten of them.
		period, periods = 5, 10
	)
	s := start(t, "fleet")
	s.AWS.SetPower(nil)
	s.AWS.SetKeep(false) // the driver leaves nothing behind
	account := s.Account()
	s.do(s.rig.Client.Get(s.ctx, client.ObjectKeyFromObject(account), account))
	before := account.DeepCopy()
	account.Spec.Inventory = infrav1.InventorySpec{IdleSeconds: period, ActiveSeconds: period}
	s.do(s.rig.Client.Patch(s.ctx, account, client.MergeFrom(before)))

	calls := s.counter()
	pool := s.NewPool("md", machines)
	s.do(scenario.Create(s.ctx, s.rig.Client, pool.Objects()...))
	begin := time.Now()
	s.until("all run", func(ctx context.Context) (string, error) {
		list := &infrav1.CloudMachineList{}
		if err := s.rig.View.List(ctx, list, client.InNamespace(s.Namespace)); err != nil {
			return "", err
		}
		running := 0
		for _, m := range list.Items {
			if ptr.Deref(m.Status.Initialization.Provisioned, false) {
				running++
			}
		}
		return missing(machines, running), nil
	})
	// Listings belong to the time that it took, which the computer decides: EC2 sees a create for each machine, and what they name is looked up once.
	made := calls()
	listings := int(time.Since(begin).Seconds())/period + 2
	t.Logf("to make them: %v", made)
	atMost(t, "creates", made["RunInstances"], machines)
	atMost(t, "listings meanwhile", made["DescribeInstances"], listings)
	atMost(t, "calls to make them", sum(made)-made["DescribeInstances"], machines*11/10)
	s.do(s.Twice(s.books()))

	calls()
	rest(s.ctx, period*periods*time.Second)
	idle := calls()
	t.Logf("in %d periods of listing: %v", periods, idle)
	atMost(t, "calls in ten idle minutes", sum(idle), machines/10)

	s.do(scenario.Delete(s.ctx, s.rig.Client, pool.Deployment()))
	begin = time.Now()
	s.until("all instances are gone", func(context.Context) (string, error) {
		n := 0
		for _, r := range s.Live(s.books()) {
			if r.Kind == wire.Instance {
				n++
			}
		}
		return missing(0, n), nil
	})
	gone := time.Since(begin)
	s.empty()
	s.until("the Machines are gone", scenario.Empty(s.rig.Client, &clusterv1.MachineList{}, s.Namespace))
	deleted := calls()
	t.Logf("to delete them, which took %s: %v", gone.Round(time.Second), deleted)
	// How many come together is up to Cluster API; each second that it takes may be a batch.
	atMost(t, "terminating calls", deleted["TerminateInstances"], machines*5/100+int(gone.Seconds()))
}

// counter returns a function that says how many calls of EC2 came since it was last asked.
func (s *stage) counter() func() map[string]int {
	last := s.AWS.Calls()
	return func() map[string]int {
		now, since := s.AWS.Calls(), map[string]int{}
		for op, n := range now {
			if n -= last[op]; n > 0 {
				since[op] = n
			}
		}
		last = maps.Clone(now)
		return since
	}
}

func sum(calls map[string]int) (n int) {
	for _, of := range calls {
		n += of
	}
	return n
}

func atMost(t *testing.T, what string, got, most int) {
	t.Helper()
	if got > most {
		t.Errorf("%s: %d, want at most %d", what, got, most)
	}
}

// rest lets time pass.
func rest(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
