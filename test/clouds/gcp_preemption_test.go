// SPDX-License-Identifier: Apache-2.0

package clouds

import (
	"context"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/test/internal/rig"
	"github.com/drover-io/drover/test/internal/scenario"
)

// TestPreemption tests that the Machine of a spot instance that Google has preempted is replaced,
// although there is no MachineHealthCheck, and that one call tells it.
func TestPreemption(t *testing.T) {
	s := startOn(t, "gcp", "spot")
	prefix := "gce://" + rig.GCPProject(s.Tenant) + "/"
	pool := s.NewPool("md", 3)
	for _, o := range pool.Objects() {
		s.Dress(o)
		if template, ok := o.(*infrav1.DroverMachineTemplate); ok {
			template.Spec.Template.Spec.Cloud.GCP.ProvisioningModel = "SPOT"
		}
		s.Do(s.Rig.Client.Create(s.Ctx, o))
	}
	s.Until("three machines are ready", scenario.All(pool.Ready(s.Rig.Client, 3), s.nodes(3)))
	const operations = "GET aggregated/operations"
	if n := s.GCP.Calls()[operations]; n != 0 {
		t.Errorf("%d listings of operations while no machine ends", n)
	}

	list := &infrav1.DroverMachineList{}
	s.Do(s.Rig.Client.List(s.Ctx, list, client.InNamespace(s.Namespace)))
	first := &list.Items[0]
	zone, name, _ := strings.Cut(strings.TrimPrefix(first.Spec.ProviderID, prefix), "/")
	s.GCP.Preempt(zone, name)
	s.Until("it is replaced", scenario.All(func(ctx context.Context) (string, error) {
		err := s.Rig.Client.Get(ctx, client.ObjectKeyFromObject(first), &infrav1.DroverMachine{})
		if err == nil {
			return first.Name + " is there", nil
		}
		return "", client.IgnoreNotFound(err)
	}, pool.Ready(s.Rig.Client, 3), s.nodes(3), s.parts(3)))
	// The instance may first be seen while it is being deleted, and then when it is gone.
	if n := s.GCP.Calls()[operations]; n < 1 || n > 2 {
		t.Errorf("%d listings of operations, want 1 or 2", n)
	}
	s.Do(pool.Scale(s.Ctx, s.Rig.Client, 0))
	s.Empty()
}
