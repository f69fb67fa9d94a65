// SPDX-License-Identifier: Apache-2.0

package vsphere

import (
	"context"
	"testing"

	"github.com/drover-io/drover/test/scenario"
)

// TestMachineDeployment: a MachineDeployment comes to Ready Nodes by what their guestinfo variables hold, rolls and goes. A VM that
// somebody destroys is replaced; and nothing is left in the end.
func TestMachineDeployment(t *testing.T) {
	s := start(t, "blue")
	pool := s.NewPool("md", 3)
	s.Do(scenario.Create(s.Ctx, s.Rig.Client, pool.Objects()...))
	s.Do(scenario.Create(s.Ctx, s.Rig.Client, pool.HealthCheck(30)))
	s.Until("three machines are ready", scenario.All(pool.Ready(s.Rig.Client, 3), s.nodes(3)))

	s.Do(pool.Roll(s.Ctx, s.Rig.Client, pool.Name+"-2", pool.Machine))
	s.Until("all have rolled", scenario.All(pool.Ready(s.Rig.Client, 3), pool.Current(s.Rig.Client), s.nodes(3)))

	lost := s.Live(s.Books())[0].ID
	s.Do(s.VCenter.Destroy(lost))
	s.Until("the one that was destroyed is replaced", func(ctx context.Context) (string, error) {
		for _, r := range s.Live(s.Books()) { // which are asked for anew only now and then
			if r.ID == lost {
				return lost + " is there", nil
			}
		}
		return scenario.All(pool.Ready(s.Rig.Client, 3), s.nodes(3))(ctx)
	})

	s.Do(pool.Scale(s.Ctx, s.Rig.Client, 0))
	s.Empty()
	calls := map[string]int{}
	for _, c := range s.Cloud.Calls() {
		calls[c.Verb]++
	}
	t.Logf("calls of vCenter: %v", calls)
	if calls["Login"] != 1 || calls["CloneVM_Task"] != 7 {
		t.Errorf("%d logins and %d clones, want one login for all, and 7 machines: three, three that took their places, and one", calls["Login"], calls["CloneVM_Task"])
	}
}

// nodes checks that so many Nodes are Ready, and no other instance lives.
func (s *stage) nodes(n int) scenario.Check { return s.Nodes(n, "vsphere://") }
