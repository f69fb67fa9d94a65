// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/drover-io/drover/cloud/simulated/wire"
	"github.com/drover-io/drover/test/scenario"
)

// TestMachineDeployment: a MachineDeployment comes to Ready Nodes, rolls and goes. A machine that AWS takes back is replaced; and nothing
// is left in the end, the volumes of the image included.
func TestMachineDeployment(t *testing.T) {
	s := start(t, "blue")
	pool := s.NewPool("md", 3)
	s.do(scenario.Create(s.ctx, s.rig.Client, pool.Objects()...))
	s.do(scenario.Create(s.ctx, s.rig.Client, pool.HealthCheck(30)))
	s.until("three machines are ready", scenario.All(pool.Ready(s.rig.Client, 3), s.nodes(3)))
	s.instances(3)

	s.do(pool.Roll(s.ctx, s.rig.Client, pool.Name+"-2", pool.Machine))
	s.until("all have rolled", scenario.All(pool.Ready(s.rig.Client, 3), pool.Current(s.rig.Client), s.nodes(3)))
	s.instances(3)

	lost := s.Live(s.books())[0]
	if lost.Kind != wire.Instance {
		lost.ID = lost.AttachedTo
	}
	s.AWS.Interrupt(lost.ID)
	s.until("the one that was taken back is replaced", func(ctx context.Context) (string, error) {
		for _, r := range s.Live(s.books()) {
			if r.ID == lost.ID {
				return lost.ID + " is there", nil
			}
		}
		return scenario.All(pool.Ready(s.rig.Client, 3), s.nodes(3))(ctx)
	})

	s.do(pool.Scale(s.ctx, s.rig.Client, 0))
	s.empty()
	t.Logf("calls of EC2: %v", s.AWS.Calls())
}

// instances wants so many that live, each with its volume.
func (s *stage) instances(n int) {
	s.Helper()
	count := map[wire.Kind]int{}
	for _, r := range s.Live(s.books()) {
		count[r.Kind]++
	}
	if count[wire.Instance] != n || count[wire.Disk] != n {
		s.Errorf("there are %v, want %d instances with a volume each", count, n)
	}
}

// nodes checks that so many Nodes are Ready, each by the name and provider ID of an instance that lives.
func (s *stage) nodes(n int) scenario.Check {
	return func(ctx context.Context) (string, error) {
		list := &corev1.NodeList{}
		if err := s.rig.Nodes.List(ctx, list); err != nil {
			return "", err
		}
		alive := map[string]bool{}
		for _, r := range s.Live(s.books()) {
			alive[r.ID] = true
		}
		all, ready := 0, 0
		for _, node := range list.Items {
			if !strings.HasPrefix(node.Name, s.Tenant.Name+"-") {
				continue
			}
			all++
			id := node.Spec.ProviderID[strings.LastIndex(node.Spec.ProviderID, "/")+1:]
			for _, c := range node.Status.Conditions {
				if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue && alive[id] && strings.HasPrefix(node.Spec.ProviderID, "aws:///us-east-1") {
					ready++
				}
			}
		}
		if ready != n || all != n {
			return fmt.Sprintf("of %d Nodes, %d are Ready", all, ready), nil
		}
		return "", nil
	}
}
