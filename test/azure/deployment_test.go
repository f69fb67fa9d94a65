// SPDX-License-Identifier: Apache-2.0

package azure

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-io/drover/cloud/azure/armstub"
	"github.com/drover-io/drover/cloud/simulated/wire"
	"github.com/drover-io/drover/test/internal/rig"
	"github.com/drover-io/drover/test/internal/scenario"
)

// TestMachineDeployment tests that the machines of a MachineDeployment become Ready Nodes, roll and
// are deleted. A machine that somebody deletes is replaced. In the end nothing is left, although
// Azure leaves network interfaces and disks behind. Each Node has the name of its VM, and its
// provider ID is as in Azure's cloud controller.
func TestMachineDeployment(t *testing.T) {
	s := house.Stage(t, "blue")
	prefix := "azure:///subscriptions/" + armstub.Subscription + "/resourceGroups/nodes-blue/providers/Microsoft.Compute/virtualMachines/"
	s.Life(s.NewPool("md", 3), scenario.All(s.Nodes(3, prefix), named(s, prefix), parts(s, 3)), s.Azure.Remove)
	t.Logf("calls of Azure: %v", s.Azure.Calls())
	if objections := s.Azure.Objections(); len(objections) > 0 {
		t.Errorf("Microsoft's models: %v", objections)
	}
}

// named checks that the Nodes are named as their VMs.
func named(s *rig.Stage, prefix string) scenario.Check {
	return func(ctx context.Context) (string, error) {
		list := &corev1.NodeList{}
		if err := s.Rig.Nodes.List(ctx, list); err != nil {
			return "", err
		}
		for i := range list.Items {
			node := &list.Items[i]
			if strings.HasPrefix(node.Name, s.Tenant.Name+"-") && node.Spec.ProviderID != prefix+node.Name {
				return "Node " + node.Name + " has provider ID " + node.Spec.ProviderID, nil
			}
		}
		return "", nil
	}
}

// parts checks that n machines exist, each with its network interface and disk, and nothing else.
func parts(s *rig.Stage, n int) scenario.Check {
	return func(context.Context) (string, error) {
		count := map[wire.Kind]int{}
		for _, r := range s.Live(s.Books()) {
			count[r.Kind]++
		}
		if count[wire.Instance] != n || count[wire.Disk] != 2*n {
			return fmt.Sprintf("there are %v", count), nil
		}
		return "", nil
	}
}

// TestLateRefusal tests machines that Azure accepts, and then fails for lack of capacity in their
// zone. They are replaced without a health check, in the zone that has capacity in the end, and
// nothing is left of them.
func TestLateRefusal(t *testing.T) {
	s := house.Stage(t, "full")
	for _, zone := range []string{"1", "2"} {
		defer s.Azure.Exhaust(zone)()
	}
	empty := s.Azure.Exhaust("3")
	pool := s.NewPool("md", 2)
	s.Do(scenario.Create(s.Ctx, s.Rig.Client, pool.Objects()...))
	s.Until("a machine has failed", func(context.Context) (string, error) {
		for _, r := range s.Instances(s.Books()) {
			if r.State == wire.Stopped {
				return "", nil
			}
		}
		return "none has", nil
	})
	empty()
	s.Until("two machines are ready", scenario.All(pool.Ready(s.Rig.Client, 2), parts(s, 2)))
	machines := &clusterv1.MachineList{}
	s.Do(s.Rig.Client.List(s.Ctx, machines, client.InNamespace(s.Namespace)))
	for i := range machines.Items {
		if m := &machines.Items[i]; m.Status.FailureDomain != "3" {
			t.Errorf("%s is in zone %q, which has no capacity", m.Name, m.Status.FailureDomain)
		}
	}
	t.Logf("%d machines were made in all", len(s.Instances(s.Books())))
	s.Do(pool.Scale(s.Ctx, s.Rig.Client, 0))
	s.Empty()
}
