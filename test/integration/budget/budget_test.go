// SPDX-License-Identifier: Apache-2.0

// Package budget compares the cost of machines with its goals. It counts cloud calls, Kubernetes
// writes and reconciles from the logs and metrics of the cloud, the API server and Drover. Only the
// benchmark measures seconds.
package budget

import (
	"testing"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/simulated/wire"
	"github.com/drover-io/drover/internal/test/playground"
	"github.com/drover-io/drover/test/internal/measure"
)

const (
	machines      = 30
	activeSeconds = 1
	idleSeconds   = 5
	idle          = 20 * time.Second
)

// TestCallBudget creates 30 machines, lets them idle, makes one VM vanish, and deletes the
// machines.
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

	// Each machine takes one create. Listings are shared: one per interval, plus one at the start
	// and one at the end of a pace.
	exactly(t, "RunInstances to Ready", r.Create.CloudCalls[wire.RunInstances], machines)
	listings := int(r.Create.Seconds)/activeSeconds + 2
	atMost(t, "other calls of the cloud to Ready", r.Create.Calls()-machines, listings+2)
	// The goal is six writes each. A busy API server occasionally causes a repeated write. A
	// seventh write for each machine would be ten times as many as these.
	const repeated = machines / 10
	atMost(t, "infrastructure writes to Ready", r.Create.Writes.Side(measure.Infrastructure), 6*machines+repeated)
	atMost(t, "bootstrap writes to Ready", r.Create.Writes.Side(measure.Bootstrap), 6*machines+repeated)

	// An idle fleet costs only its account's listings.
	exactly(t, "calls of the cloud while idle, listings apart", r.Idle.Calls()-r.Idle.CloudCalls[wire.DescribeResources], 0)
	atMost(t, "listings while idle", r.Idle.CloudCalls[wire.DescribeResources], int(idle/time.Second)/idleSeconds+1)
	exactly(t, "writes while idle", r.Idle.Writes.Total(), 0)
	for _, controller := range []string{"drovermachine", "node", "droverconfig", "drovermachinetemplate", "csr"} {
		exactly(t, "reconciles of "+controller+" while idle", r.Idle.Reconciles[controller], 0)
	}

	// Deletions are batched for at least a second. Each batch takes one delete call and the reads
	// that see its end. Cluster API decides how many deletions arrive in a second. Even on the
	// busiest computer, at least a third of them share a batch.
	batches := int(r.Delete.Seconds) + 2
	atMost(t, "deleting calls", r.Delete.CloudCalls[wire.TerminateInstances]+r.Delete.CloudCalls[wire.DeleteResources],
		min(batches, 2*machines/3))
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
