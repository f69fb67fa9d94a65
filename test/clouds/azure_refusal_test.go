// SPDX-License-Identifier: Apache-2.0

package clouds

import (
	"context"
	"testing"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-io/drover/cloud/simulated/wire"
	"github.com/drover-io/drover/test/internal/scenario"
)

// TestLateRefusal tests machines that Azure accepts, and then fails for lack of capacity in their
// zone. They are replaced without a health check, in the zone that has capacity in the end, and
// nothing is left of them.
func TestLateRefusal(t *testing.T) {
	s := startOn(t, "azure", "full")
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
	s.Until("two machines are ready", scenario.All(pool.Ready(s.Rig.Client, 2), s.parts(2)))
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
