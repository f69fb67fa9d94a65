// SPDX-License-Identifier: Apache-2.0

package clouds

import (
	"context"
	"maps"
	"testing"
	"time"

	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/cloud/simulated/wire"
	"github.com/drover-io/drover/test/internal/scenario"
)

// TestCallsOfAFleet counts the calls for 300 machines through Cluster API and Drover: to create, to
// idle and to delete. Nothing runs in the machines, because a Node's work makes no EC2 calls.
func TestCallsOfAFleet(t *testing.T) {
	const (
		machines = 300
		// An idle EC2 account is listed once a minute. Here it is listed once in five seconds, and
		// the test lasts ten such periods.
		period, periods = 5, 10
	)
	s := startOn(t, "aws", "fleet")
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
		list := &infrav1.DroverMachineList{}
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
	// The number of listings depends on the time, and so on the computer. EC2 gets one create per
	// machine, and the names in its spec are resolved once.
	made := calls()
	most := int(time.Since(begin).Seconds())/period + 2
	t.Logf("to make them: %v", made)
	// On a busy computer, Cluster API's cache may be too stale for a MachineSet to know its new
	// Machines. It creates one more, and deletes it.
	asked := len(owners(s.Books()))
	atMost(t, "creates", made["RunInstances"], asked)
	atMost(t, "listings meanwhile", made["DescribeInstances"], most)
	atMost(t, "calls to make them", sum(made)-made["DescribeInstances"]-made["GetConsoleOutput"], machines*11/10)
	// No machine here becomes a Node. On a busy computer some are late by now, and each of them has
	// its console read once.
	atMost(t, "consoles read", made["GetConsoleOutput"], asked)
	s.Do(s.Twice(s.Books()))

	calls()
	scenario.Pause(s.Ctx, period*periods*time.Second)
	idle := calls()
	t.Logf("in %d periods of listing: %v", periods, idle)
	atMost(t, "calls in ten idle minutes", sum(idle)-idle["GetConsoleOutput"], machines/10)
	atMost(t, "consoles read", idle["GetConsoleOutput"], asked)

	list(infrav1.InventorySpec{}) // the defaults
	s.Until("the account has been listed again", func(context.Context) (string, error) {
		return missing(1,
			calls()["DescribeInstances"]), nil
	})
	scenario.Pause(s.Ctx, period*time.Second) // instance types are read again too
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
	// Cluster API deletes one Machine after the other. Drover batches the deletions of a few
	// seconds, and reads their results together. Meanwhile the account is listed once a minute
	// until all are being deleted. Only listings read volumes, network interfaces and addresses, of
	// which there are none. On a busy computer, Cluster API's deletions come so slowly that each
	// batch holds few, and machines become old enough that their consoles are read, once each.
	most = machines * 5 / 100
	if whole > time.Minute {
		most += 3 * int((whole-time.Minute)/(4*time.Second))
	}
	atMost(t, "consoles read", deleted["GetConsoleOutput"], asked)
	listings := deleted["DescribeVolumes"]
	atMost(t, "listings meanwhile", listings, int(whole.Minutes())+1)
	beside := listings + deleted["GetConsoleOutput"]
	for _, op := range []string{"DescribeVolumes", "DescribeNetworkInterfaces", "DescribeAddresses", "DescribeInstanceStatus"} {
		beside += deleted[op]
	}
	atMost(t, "calls to delete them", sum(deleted)-beside, most)
}

// owners returns the machines of the instances, by their tokens.
func owners(books simulator.Snapshot) map[string]bool {
	all := map[string]bool{}
	for _, i := range books.Instances() {
		all[i.Tags[cloud.TagToken]] = true
	}
	return all
}

// counter returns a function that returns the number of EC2 calls since its last call.
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
