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
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/cloud/simulated/wire"
	"github.com/drover-io/drover/test/scenario"
)

// TestCallsOfAFleet counts what 300 machines cost through Cluster API and Drover: to make, to keep
// while nothing happens, to delete. Nothing runs in them: what a Node does costs no call of EC2.
func TestCallsOfAFleet(t *testing.T) {
	const (
		machines = 300
		// A listing a minute is EC2's share of an idle account; here it is one in five seconds, for
		// ten of them.
		period, periods = 5, 10
	)
	s := start(t, "fleet")
	s.AWS.SetPower(nil)
	s.AWS.SetKeep(false) // the driver leaves nothing behind
	account := s.Account()
	list := func(often infrav1.InventorySpec) {
		s.Do(s.Rig.Client.Get(s.Ctx, client.ObjectKeyFromObject(account), account))
		before := account.DeepCopy()
		account.Spec.Inventory = often
		s.Do(s.Rig.Client.Patch(s.Ctx, account, client.MergeFrom(before)))
	}
	list(infrav1.InventorySpec{IdleSeconds: period, ActiveSeconds: period})

	calls := s.counter()
	pool := s.NewPool("md", machines)
	s.Do(scenario.Create(s.Ctx, s.Rig.Client, pool.Objects()...))
	begin := time.Now()
	s.Until("all run", func(ctx context.Context) (string, error) {
		list := &infrav1.CloudMachineList{}
		if err := s.Rig.View.List(ctx, list, client.InNamespace(s.Namespace)); err != nil {
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
	// Listings belong to the time that it took, which the computer decides: EC2 sees a create for
	// each machine, and what they name is looked up once.
	made := calls()
	most := int(time.Since(begin).Seconds())/period + 2
	t.Logf("to make them: %v", made)
	// On a busy computer Cluster API's cache may be too old for a MachineSet to know what it has
	// made: it makes one more, and deletes it.
	asked := len(owners(s.Books()))
	atMost(t, "creates", made["RunInstances"], asked)
	atMost(t, "listings meanwhile", made["DescribeInstances"], most)
	atMost(t, "calls to make them", sum(made)-made["DescribeInstances"], machines*11/10)
	s.Do(s.Twice(s.Books()))

	calls()
	scenario.Pause(s.Ctx, period*periods*time.Second)
	idle := calls()
	t.Logf("in %d periods of listing: %v", periods, idle)
	atMost(t, "calls in ten idle minutes", sum(idle), machines/10)

	list(infrav1.InventorySpec{}) // as users have it
	s.Until("the account has been looked at anew", func(context.Context) (string, error) { return missing(1, calls()["DescribeInstances"]), nil })
	scenario.Pause(s.Ctx, period*time.Second) // what kinds of machines are is asked anew, too
	calls()
	s.Do(scenario.Delete(s.Ctx, s.Rig.Client, pool.Deployment()))
	begin = time.Now()
	s.Until("all instances are gone", func(context.Context) (string, error) {
		n := 0
		for _, r := range s.Live(s.Books()) {
			if r.Kind == wire.Instance {
				n++
			}
		}
		return missing(0, n), nil
	})
	gone := time.Since(begin)
	s.Empty()
	s.Until("the Machines are gone", scenario.Empty(s.Rig.Client, &clusterv1.MachineList{}, s.Namespace))
	whole := time.Since(begin)
	deleted := calls()
	t.Logf("to delete them, which took %s, and %s until all was known: %v", gone.Round(time.Second), whole.Round(time.Second), deleted)
	// Cluster API deletes one Machine after the other. What it asks for is collected for some
	// seconds at a time, and looked at together. The account is listed meanwhile, once a minute,
	// until all are being deleted: only that asks for volumes, network interfaces and addresses, of
	// which there are none.
	listings := deleted["DescribeVolumes"]
	atMost(t, "listings meanwhile", listings, int(whole.Minutes())+1)
	beside := listings
	for _, op := range []string{"DescribeVolumes", "DescribeNetworkInterfaces", "DescribeAddresses", "DescribeInstanceStatus"} {
		beside += deleted[op]
	}
	atMost(t, "calls to delete them", sum(deleted)-beside, machines*5/100)
}

// owners are the machines that the instances were made for, by their tokens.
func owners(books simulator.Snapshot) map[string]bool {
	all := map[string]bool{}
	for _, i := range books.Instances() {
		all[i.Tags[cloud.TagToken]] = true
	}
	return all
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
