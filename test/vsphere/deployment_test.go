// SPDX-License-Identifier: Apache-2.0

package vsphere

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/drover-io/drover/test/scenario"
)

// TestMachineDeployment: a MachineDeployment comes to Ready Nodes by what their guestinfo variables hold, rolls and goes. A VM that
// somebody destroys is replaced; and nothing is left in the end.
func TestMachineDeployment(t *testing.T) {
	s := start(t, "blue")
	pool := s.NewPool("md", 3)
	s.do(scenario.Create(s.ctx, s.rig.Client, pool.Objects()...))
	s.do(scenario.Create(s.ctx, s.rig.Client, pool.HealthCheck(30)))
	s.until("three machines are ready", scenario.All(pool.Ready(s.rig.Client, 3), s.nodes(3)))

	s.do(pool.Roll(s.ctx, s.rig.Client, pool.Name+"-2", pool.Machine))
	s.until("all have rolled", scenario.All(pool.Ready(s.rig.Client, 3), pool.Current(s.rig.Client), s.nodes(3)))

	lost := s.Live(s.books())[0].ID
	s.do(s.VCenter.Destroy(lost))
	s.until("the one that was destroyed is replaced", func(ctx context.Context) (string, error) {
		for _, r := range s.Live(s.books()) { // which are asked for anew only now and then
			if r.ID == lost {
				return lost + " is there", nil
			}
		}
		return scenario.All(pool.Ready(s.rig.Client, 3), s.nodes(3))(ctx)
	})

	s.do(pool.Scale(s.ctx, s.rig.Client, 0))
	s.empty()
	calls := map[string]int{}
	for _, c := range s.Cloud.Calls() {
		calls[c.Verb]++
	}
	t.Logf("calls of vCenter: %v", calls)
	if calls["Login"] != 1 || calls["CloneVM_Task"] != 7 {
		t.Errorf("%d logins and %d clones, want one login for all, and 7 machines: three, three that took their places, and one", calls["Login"], calls["CloneVM_Task"])
	}
}

// nodes checks that so many Nodes are Ready, each by the provider ID of a VM that lives, and that no other VM does.
func (s *stage) nodes(n int) scenario.Check {
	return func(ctx context.Context) (string, error) {
		list := &corev1.NodeList{}
		if err := s.rig.Nodes.List(ctx, list); err != nil {
			return "", err
		}
		alive := map[string]bool{}
		for _, r := range s.Live(s.books()) {
			alive["vsphere://"+r.ID] = true
		}
		all, ready := 0, 0
		for _, node := range list.Items {
			if !strings.HasPrefix(node.Name, s.Tenant.Name+"-") {
				continue
			}
			all++
			for _, c := range node.Status.Conditions {
				if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue && alive[node.Spec.ProviderID] {
					ready++
				}
			}
		}
		if ready != n || all != n || len(alive) != n {
			return fmt.Sprintf("of %d Nodes and %d VMs, %d are Ready", all, len(alive), ready), nil
		}
		return "", nil
	}
}
