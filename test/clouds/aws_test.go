// SPDX-License-Identifier: Apache-2.0

package clouds

import (
	"context"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/test/internal/rig"
	"github.com/drover-io/drover/test/internal/scenario"
)

// onAWS is a stand-in for EC2. TestCallsOfAFleet counts its calls.
var onAWS = row{
	start:   rig.StartOnAWS,
	standIn: func(s *rig.Stage) standIn { return s.AWS },
	prefix:  func(*rig.Stage) string { return "aws:///us-east-1" },
	disks:   1,
	lose:    func(s *stage, id string) { s.AWS.Interrupt(id) },
	endpoint: &endpoint{
		spec:  infrav1.LoadBalancerCloud{AWS: &infrav1.AWSLoadBalancer{Subnets: &infrav1.AWSSelector{IDs: []string{"subnet-0a2", "subnet-0b1"}}}},
		host:  `\.amazonaws\.com$`,
		zones: []string{"us-east-1a", "us-east-1b"},
		once:  []string{"RegisterTargets"},
	},
}

// TestNodeNames tests Nodes with the host names that EC2 assigns.
func TestNodeNames(t *testing.T) {
	s := startOn(t, "aws", "names")
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
