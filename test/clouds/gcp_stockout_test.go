// SPDX-License-Identifier: Apache-2.0

package clouds

import (
	"context"
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-io/drover/cloud/gcp/gcpstub"
	"github.com/drover-io/drover/test/internal/scenario"
)

// TestStockout tests machines that Compute Engine accepts in zones without capacity, and then takes
// back without a trace. The same Machines are made in the zone that has capacity.
func TestStockout(t *testing.T) {
	s := startOn(t, "gcp", "full")
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
	s.Until("all machines are ready", scenario.All(pool.Ready(s.Rig.Client, n), s.parts(n)))
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
