// SPDX-License-Identifier: Apache-2.0

package clouds

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/drover-io/drover/cloud/simulated/wire"
	"github.com/drover-io/drover/test/internal/scenario"
)

// TestMachineDeployment tests that the machines of a MachineDeployment become Ready Nodes, roll and
// are deleted. A machine that somebody deletes, or that the cloud reclaims, is replaced. In the end
// nothing is left, although the stand-ins leave disks and network interfaces behind. The provider
// ID of each Node is as in the cloud's own controller, and so is its name.
func TestMachineDeployment(t *testing.T) {
	s := start(t, "blue")
	good := scenario.All(s.nodes(3), s.parts(3))
	end := func() {}
	if here.deployment != nil {
		var more scenario.Check
		more, end = here.deployment(s)
		good = scenario.All(good, more)
	}
	s.Life(s.NewPool("md", 3), good, func(id string) { here.lose(s, id) })
	t.Logf("calls: %v", s.standIn.Calls())
	unobjected(t, s.standIn)
	end()
}

// nodes checks that n Nodes are Ready, that no other instance is running, and that each has the
// name and the provider ID of its instance.
func (s *stage) nodes(n int) scenario.Check {
	prefix := here.prefix(s.Stage)
	return scenario.All(s.Nodes(n, prefix), func(ctx context.Context) (string, error) {
		list := &corev1.NodeList{}
		if err := s.Rig.Nodes.List(ctx, list); err != nil || here.id == "" {
			return "", err
		}
		for i := range list.Items {
			node := &list.Items[i]
			want := "^" + regexp.QuoteMeta(prefix) + strings.ReplaceAll(here.id, "NAME", regexp.QuoteMeta(node.Name)) + "$"
			if strings.HasPrefix(node.Name, s.Tenant.Name+"-") && !regexp.MustCompile(want).MatchString(node.Spec.ProviderID) {
				return "Node " + node.Name + " has provider ID " + node.Spec.ProviderID, nil
			}
		}
		return "", nil
	})
}

// parts checks that n instances exist, each with its disks and network interfaces, and nothing
// else.
func (s *stage) parts(n int) scenario.Check {
	return func(context.Context) (string, error) {
		count := map[wire.Kind]int{}
		for _, r := range s.Live(s.Books()) {
			count[r.Kind]++
		}
		if count[wire.Instance] != n || count[wire.Disk] != here.disks*n {
			return fmt.Sprintf("there are %v, want %d instances, each with %d parts", count, n, here.disks), nil
		}
		return "", nil
	}
}
