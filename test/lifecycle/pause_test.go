// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"context"
	"fmt"
	"testing"

	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/test/internal/scenario"
)

// TestPausedClusterStandsStill checks that a paused Cluster's machines are neither created nor
// deleted, and that work resumes afterwards.
func TestPausedClusterStandsStill(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	pool := scenario.Pool{Cluster: s.Adopted, Name: "pool", Replicas: 1}
	s.create(pool.Objects()...)
	s.until("a machine is ready", pool.Ready(env.view, 1))
	machine := s.machines()[0]

	s.pause(true)
	s.until("the machine says that it is paused", s.paused(&machine, true))
	if err := env.client.Delete(s.ctx, &machine); err != nil { // not through Cluster API, which is paused as well
		t.Fatal(err)
	}
	s.stays("the VM of a paused machine", func() string {
		if n := len(s.live()); n != 1 {
			return fmt.Sprintf("the cloud has %d VMs, want 1", n)
		}
		return ""
	})
	s.pause(false)
	s.until("the deletion goes on, and the Machine is not left without", s.deleted(&machine))
	if err := scenario.Delete(s.ctx, env.client, pool.Deployment()); err != nil {
		t.Fatal(err)
	}
	s.until("nothing is left", s.gone())
}

// TestPausedObjectIsNotMade checks that the annotation on the object alone is enough, and that a
// machine that is paused before its creation is not created.
func TestPausedObjectIsNotMade(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	pool := scenario.Pool{Cluster: s.Adopted, Name: "pool", Replicas: 1}
	template := pool.Template(pool.Name, pool.Machine)
	template.Spec.Template.ObjectMeta.Annotations = map[string]string{clusterv1.PausedAnnotation: "true"}
	s.create(template, pool.ConfigTemplate(), pool.Deployment())

	s.until("the machine says that it is paused", func(ctx context.Context) (string, error) {
		for _, m := range s.machines() {
			return s.paused(&m, true)(ctx)
		}
		return "there is no DroverMachine yet", nil
	})
	s.stays("the cloud of a paused machine", func() string {
		if n := len(s.live()); n != 0 {
			return fmt.Sprintf("the cloud has %d VMs, want none", n)
		}
		return ""
	})
	machine := s.machines()[0]
	before := machine.DeepCopy()
	delete(machine.Annotations, clusterv1.PausedAnnotation)
	if err := env.client.Patch(s.ctx, &machine, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}
	s.until("the machine is made once it is not paused any more", pool.Ready(env.view, 1))
}

func (s *stage) pause(on bool) {
	s.Helper()
	cluster := s.Cluster()
	if err := env.client.Get(s.ctx, client.ObjectKeyFromObject(cluster), cluster); err != nil {
		s.Fatal(err)
	}
	before := cluster.DeepCopy()
	cluster.Spec.Paused = ptr.To(on)
	if err := env.client.Patch(s.ctx, cluster, client.MergeFrom(before)); err != nil {
		s.Fatal(err)
	}
}

func (s *stage) paused(m *infrav1.DroverMachine, want bool) scenario.Check {
	return func(ctx context.Context) (string, error) {
		have := &infrav1.DroverMachine{}
		if err := env.client.Get(ctx, client.ObjectKeyFromObject(m), have); err != nil {
			return "", err
		}
		if conditions.IsTrue(have, clusterv1.PausedCondition) != want {
			return fmt.Sprintf("DroverMachine %s has Paused %+v", m.Name, conditions.Get(have, clusterv1.PausedCondition)), nil
		}
		return "", nil
	}
}
