// SPDX-License-Identifier: Apache-2.0

package clouds

import (
	"testing"

	"github.com/drover-io/drover/test/internal/rig"
	"github.com/drover-io/drover/test/takeover"
)

// handover is a cloud as an old system sees it.
type handover struct {
	place func(*rig.Stage) takeover.Place
	// writes are the calls to the cloud by which two machines are taken over: in three stages, two
	// rollbacks and, where something of the old system must go, a commit.
	writes map[string]int
}

// TestTakeover takes VMs over that were made as machine-controller-manager makes them, with the
// command killed after each of its writes: there, back, and there again. Rolled back, each VM has
// the tags that it had. Then the pool is Drover's: it rolls, goes, and nothing is left.
func TestTakeover(t *testing.T) {
	takenOver(t, "taken", here.mcm, takeover.MachineControllerManager(), (*takeover.Old).AddMCM)
}

// TestTakeoverFromMachineController is TestTakeover for VMs of machine-controller.
func TestTakeoverFromMachineController(t *testing.T) {
	takenOver(t, "mc", here.mc, takeover.MachineController(), (*takeover.Old).AddMC)
}

// takenOver takes a pool of two machines over, which add makes.
func takenOver(t *testing.T, name string, how *handover, of takeover.System, add func(*takeover.Old, takeover.Pool)) {
	t.Helper()
	needs(t, how != nil)
	s := start(t, name)
	taken := takeover.Start(s.Stage, of, how.place(s.Stage))
	if keeps, ok := s.standIn.(interface{ SetKeep(bool) }); ok {
		keeps.SetKeep(false)
	}
	pool := takeover.Pool{Name: "a", Replicas: 2, Labels: map[string]any{"pool": "a"}}
	add(taken.Old, pool)
	taken.Whole(pool, here.change, how.writes)
	if here.end != nil {
		here.end(s)
	} else {
		s.Empty()
	}
	unobjected(t, s.standIn)
}
