// SPDX-License-Identifier: Apache-2.0

package gcp

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-io/drover/cloud/gcp/gcpstub"
	"github.com/drover-io/drover/cloud/simulated/wire"
	"github.com/drover-io/drover/test/internal/rig"
	"github.com/drover-io/drover/test/internal/scenario"
)

// TestMachineDeployment tests that the machines of a MachineDeployment become Ready Nodes, roll and
// are deleted. A machine that somebody deletes is replaced. In the end nothing is left, although
// the stand-in leaves disks behind. Each Node has the name of its instance, and its provider ID is
// as in Google's cloud controller.
func TestMachineDeployment(t *testing.T) {
	s := house.Stage(t, "blue")
	prefix := "gce://" + rig.GCPProject(s.Tenant) + "/" + gcpstub.Region + "-"
	s.Life(s.NewPool("md", 3), scenario.All(s.Nodes(3, prefix), named(s, prefix), parts(s, 3)), s.GCP.Remove)
	t.Logf("calls of Compute Engine: %v", s.GCP.Calls())
	if objections := s.GCP.Objections(); len(objections) > 0 {
		t.Errorf("Google's discovery document: %v", objections)
	}
}

// named checks that the Nodes are named as their instances.
func named(s *rig.Stage, prefix string) scenario.Check {
	return func(ctx context.Context) (string, error) {
		list := &corev1.NodeList{}
		if err := s.Rig.Nodes.List(ctx, list); err != nil {
			return "", err
		}
		for i := range list.Items {
			node := &list.Items[i]
			_, name, _ := strings.Cut(strings.TrimPrefix(node.Spec.ProviderID, prefix), "/")
			if strings.HasPrefix(node.Name, s.Tenant.Name+"-") && name != node.Name {
				return "Node " + node.Name + " has provider ID " + node.Spec.ProviderID, nil
			}
		}
		return "", nil
	}
}

// parts checks that n instances exist, each with its disk, and nothing else.
func parts(s *rig.Stage, n int) scenario.Check {
	return func(context.Context) (string, error) {
		count := map[wire.Kind]int{}
		for _, r := range s.Live(s.Books()) {
			count[r.Kind]++
		}
		if count[wire.Instance] != n || count[wire.Disk] != n {
			return fmt.Sprintf("there are %v", count), nil
		}
		return "", nil
	}
}

// TestStockout tests machines that Compute Engine accepts in zones without capacity, and then takes
// back without a trace. The same Machines are made in the zone that has capacity.
func TestStockout(t *testing.T) {
	s := house.Stage(t, "full")
	for _, zone := range gcpstub.Zones()[:2] {
		defer s.GCP.Exhaust(zone)()
	}
	const n = 8 // the Machines' tokens choose the first zone: one in 6,500 runs would not see a stockout
	pool := s.NewPool("md", n)
	s.Do(scenario.Create(s.Ctx, s.Rig.Client, pool.Objects()...))
	machines := &clusterv1.MachineList{}
	s.Until("there are Machines", func(ctx context.Context) (string, error) {
		if err := s.Rig.Client.List(ctx, machines, client.InNamespace(s.Namespace)); err != nil || len(machines.Items) == n {
			return "", err
		}
		return fmt.Sprintf("there are %d", len(machines.Items)), nil
	})
	first := map[types.UID]bool{}
	for i := range machines.Items {
		first[machines.Items[i].UID] = true
	}
	s.Until("all machines are ready", scenario.All(pool.Ready(s.Rig.Client, n), parts(s, n)))
	s.Do(s.Rig.Client.List(s.Ctx, machines, client.InNamespace(s.Namespace)))
	for i := range machines.Items {
		if m := &machines.Items[i]; !first[m.UID] || m.Status.FailureDomain != gcpstub.Zones()[2] {
			t.Errorf("%s is in zone %q, or a replacement: %t", m.Name, m.Status.FailureDomain, !first[m.UID])
		}
	}
	refused := 0
	for _, e := range s.GCP.Books() {
		if e.State == "Refused" {
			refused++
		}
	}
	if refused == 0 {
		t.Error("no create was accepted and taken back")
	}
	t.Logf("%d creates were accepted and taken back", refused)
	s.Do(pool.Scale(s.Ctx, s.Rig.Client, 0))
	s.Empty()
}
