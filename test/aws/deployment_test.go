// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"context"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	"github.com/drover-io/drover/cloud/simulated/wire"
	"github.com/drover-io/drover/test/internal/scenario"
)

// TestMachineDeployment tests that the machines of a MachineDeployment become Ready Nodes, roll and
// are deleted. A machine that AWS reclaims is replaced. In the end nothing is left, including the
// image's volumes.
func TestMachineDeployment(t *testing.T) {
	s := start(t, "blue")
	s.Life(s.NewPool("md", 3), scenario.All(s.nodes(3), s.instances(3)), s.AWS.Interrupt)
	t.Logf("calls of EC2: %v", s.AWS.Calls())
}

// TestNodeNames tests Nodes with the host names that EC2 assigns.
func TestNodeNames(t *testing.T) {
	s := start(t, "names")
	pool := s.NewPool("md", 2)
	pool.Config.NodeNameSource = bootstrapv1.NodeNameHostname
	s.Do(scenario.Create(s.Ctx, s.Rig.Client, pool.Objects()...))
	s.Until("two machines are ready", pool.Ready(s.Rig.Client, 2))
	machines := &clusterv1.MachineList{}
	s.Do(s.Rig.Client.List(s.Ctx, machines, client.InNamespace(s.Namespace)))
	for i := range machines.Items {
		m := &machines.Items[i]
		name := m.Status.NodeRef.Name
		if !slices.Contains(m.Status.Addresses, clusterv1.MachineAddress{Type: clusterv1.MachineInternalDNS, Address: name}) {
			t.Errorf("the Node of %s is called %q; EC2 calls it %v", m.Name, name, m.Status.Addresses)
		}
		node := &corev1.Node{}
		s.Do(s.Rig.Nodes.Get(s.Ctx, client.ObjectKey{Name: name}, node))
		if node.Labels[corev1.LabelHostname] != name || node.Spec.ProviderID != m.Spec.ProviderID {
			t.Errorf("Node %s: labels %v, provider ID %q, want %q", name, node.Labels, node.Spec.ProviderID, m.Spec.ProviderID)
		}
	}
	s.Do(pool.Scale(s.Ctx, s.Rig.Client, 0))
	s.Empty()
	s.Until("no Node is left", func(ctx context.Context) (string, error) {
		for i := range machines.Items {
			err := s.Rig.Nodes.Get(ctx, client.ObjectKey{Name: machines.Items[i].Status.NodeRef.Name}, &corev1.Node{})
			if !apierrors.IsNotFound(err) {
				return machines.Items[i].Status.NodeRef.Name, client.IgnoreNotFound(err)
			}
		}
		return "", nil
	})
}

// instances checks that n instances are running, each with its volume.
func (s *stage) instances(n int) scenario.Check {
	return func(context.Context) (string, error) {
		count := map[wire.Kind]int{}
		for _, r := range s.Live(s.Books()) {
			count[r.Kind]++
		}
		if count[wire.Instance] != n || count[wire.Disk] != n {
			return fmt.Sprintf("there are %v, want %d instances with a volume each", count, n), nil
		}
		return "", nil
	}
}

// nodes checks that n Nodes are Ready, and that no other instance is running.
func (s *stage) nodes(n int) scenario.Check { return s.Nodes(n, "aws:///us-east-1") }
