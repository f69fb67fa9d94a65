// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"context"
	"testing"

	"github.com/drover-io/drover/cloud/simulated/wire"
	"github.com/drover-io/drover/test/scenario"
)

// TestMachineDeployment: a MachineDeployment comes to Ready Nodes, rolls and goes. A machine that AWS takes back is replaced; and nothing
// is left in the end, the volumes of the image included.
func TestMachineDeployment(t *testing.T) {
	s := start(t, "blue")
	pool := s.NewPool("md", 3)
	s.Do(scenario.Create(s.Ctx, s.Rig.Client, pool.Objects()...))
	s.Do(scenario.Create(s.Ctx, s.Rig.Client, pool.HealthCheck(30)))
	s.Until("three machines are ready", scenario.All(pool.Ready(s.Rig.Client, 3), s.nodes(3)))
	s.instances(3)

	s.Do(pool.Roll(s.Ctx, s.Rig.Client, pool.Name+"-2", pool.Machine))
	s.Until("all have rolled", scenario.All(pool.Ready(s.Rig.Client, 3), pool.Current(s.Rig.Client), s.nodes(3)))
	s.instances(3)

	lost := s.Live(s.Books())[0]
	if lost.Kind != wire.Instance {
		lost.ID = lost.AttachedTo
	}
	s.AWS.Interrupt(lost.ID)
	s.Until("the one that was taken back is replaced", func(ctx context.Context) (string, error) {
		for _, r := range s.Live(s.Books()) {
			if r.ID == lost.ID {
				return lost.ID + " is there", nil
			}
		}
		return scenario.All(pool.Ready(s.Rig.Client, 3), s.nodes(3))(ctx)
	})

	s.Do(pool.Scale(s.Ctx, s.Rig.Client, 0))
	s.Empty()
	t.Logf("calls of EC2: %v", s.AWS.Calls())
}

// instances wants so many that live, each with its volume.
func (s *stage) instances(n int) {
	s.Helper()
	count := map[wire.Kind]int{}
	for _, r := range s.Live(s.Books()) {
		count[r.Kind]++
	}
	if count[wire.Instance] != n || count[wire.Disk] != n {
		s.Errorf("there are %v, want %d instances with a volume each", count, n)
	}
}

// nodes checks that so many Nodes are Ready, and no other instance lives.
func (s *stage) nodes(n int) scenario.Check { return s.Nodes(n, "aws:///us-east-1") }
