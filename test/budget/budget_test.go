// SPDX-License-Identifier: Apache-2.0

// Package budget holds what machines cost to its goals: calls of the cloud, Kubernetes writes and
// reconciles are counted by the other side, the cloud's and the API server's audit logs. Seconds
// are for the benchmark alone.
package budget

import (
	"testing"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
	"github.com/drover-io/drover/cloud/simulated/wire"
	"github.com/drover-io/drover/test/measure"
	"github.com/drover-io/drover/test/playground"
)

const (
	machines      = 30
	activeSeconds = 1
	idleSeconds   = 5
	idle          = 20 * time.Second
)

// TestCallBudget brings 30 machines up, lets them idle, has one VM vanish, and takes them down.
func TestCallBudget(t *testing.T) {
	log.SetLogger(logr.Discard())
	binary, err := playground.Build(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	r, err := measure.Run(t.Context(), measure.Options{
		Machines: machines, Latency: 20 * time.Millisecond, Joins: time.Second, Binary: binary, Dir: t.TempDir(), Say: t.Logf,
		Inventory: infrav1.InventorySpec{IdleSeconds: idleSeconds, ActiveSeconds: activeSeconds}, Idle: idle, Vanish: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("to Ready: calls %v, writes %v, reconciles %v", r.Create.CloudCalls, r.Create.Writes, r.Create.Reconciles)
	t.Logf("idle: calls %v, writes %v, reconciles %v", r.Idle.CloudCalls, r.Idle.Writes, r.Idle.Reconciles)
	t.Logf("delete: calls %v, writes %v, reconciles %v", r.Delete.CloudCalls, r.Delete.Writes, r.Delete.Reconciles)

	// One create for each machine, and shared listings: one for each interval, and those that begin
	// and end a pace.
	exactly(t, "RunInstances to Ready", r.Create.CloudCalls[wire.RunInstances], machines)
	listings := int(r.Create.Seconds)/activeSeconds + 2
	atMost(t, "other calls of the cloud to Ready", r.Create.Calls()-machines, listings+2)
	// Six writes each are the goal. A busy API server has now and then one of them repeated; a
	// seventh for each machine would be ten times as many as these.
	const repeated = machines / 10
	atMost(t, "infrastructure writes to Ready", r.Create.Writes.Side(measure.Infrastructure), 6*machines+repeated)
	atMost(t, "bootstrap writes to Ready", r.Create.Writes.Side(measure.Bootstrap), 6*machines+repeated)

	// A fleet at rest costs its account's listings, and nothing else.
	exactly(t, "calls of the cloud while idle, listings apart", r.Idle.Calls()-r.Idle.CloudCalls[wire.DescribeResources], 0)
	atMost(t, "listings while idle", r.Idle.CloudCalls[wire.DescribeResources], int(idle/time.Second)/idleSeconds+1)
	exactly(t, "writes while idle", r.Idle.Writes.Total(), 0)
	for _, controller := range []string{"cloudmachine", "cloudinitconfig", "cloudmachinetemplate", "csr"} {
		exactly(t, "reconciles of "+controller+" while idle", r.Idle.Reconciles[controller], 0)
	}

	// Deletions are collected for a second at least, and each such batch is one delete and the
	// reads that see its end. How many come in a second is up to Cluster API; on the busiest
	// computer at least a third come together.
	batches := int(r.Delete.Seconds) + 2
	atMost(t, "deleting calls", r.Delete.CloudCalls[wire.TerminateInstances]+r.Delete.CloudCalls[wire.DeleteResources], min(batches, 2*machines/3))
	atMost(t, "all calls to delete", r.Delete.Calls(), 3*batches)
	atMost(t, "refused calls", r.Create.Throttled+r.Idle.Throttled+r.Delete.Throttled, 0)
}

func exactly(t *testing.T, what string, got, want int) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %d, want %d", what, got, want)
	}
}

func atMost(t *testing.T, what string, got, most int) {
	t.Helper()
	if got > most {
		t.Errorf("%s: %d, want at most %d", what, got, most)
	}
}
