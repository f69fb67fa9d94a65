// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/test/internal/scenario"
)

// TestPoolComesUpAndGoes takes a pool through its whole life, as the integration suite of
// machine-controller-manager does: zero, one, six and two machines, an update that also scales to
// four, and the deletion. A Node that belongs to no machine exists throughout and must not change.
func TestPoolComesUpAndGoes(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.until("the cluster is available", s.Available(env.view))
	other := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "other-to-" + s.Name}, Spec: corev1.NodeSpec{ProviderID: "other://" + s.Name}}
	s.create(other)
	pool := scenario.Pool{Cluster: s.Adopted, Name: "pool"}
	s.create(pool.Objects()...)
	for _, n := range []int32{0, 1, 6, 2} {
		if err := pool.Scale(s.ctx, env.client, n); err != nil {
			t.Fatal(err)
		}
		s.soon(fmt.Sprintf("%d machines are ready", n), pool.Ready(env.client, n))
		s.counts(int(n))
	}
	if made := s.creates(); made != 6 {
		t.Errorf("%d VMs were made on the way to six", made)
	}
	if err := pool.Roll(s.ctx, env.client, "second", infrav1.SimulatedMachine{InstanceType: "large"}); err != nil {
		t.Fatal(err)
	}
	if err := pool.Scale(s.ctx, env.client, 4); err != nil {
		t.Fatal(err)
	}
	s.soon("four machines of the new kind are ready", scenario.All(pool.Current(env.client), pool.Ready(env.client, 4)))
	s.counts(4)
	if err := scenario.Delete(s.ctx, env.client, pool.Deployment()); err != nil {
		t.Fatal(err)
	}
	s.until("nothing is left", s.gone())
	s.counts(0)
	if err := env.client.Get(s.ctx, client.ObjectKeyFromObject(other), other); err != nil || other.Spec.Unschedulable {
		t.Errorf("the Node that is of another provider is %+v (%v)", other.Spec, err)
	}
	if err := scenario.Delete(s.ctx, env.client, other); err != nil {
		t.Fatal(err)
	}
}

// counts asserts that the test has n VMs, and as many Nodes.
func (s *stage) counts(n int) {
	s.Helper()
	if have := len(s.live()); have != n {
		s.Errorf("the cloud has %d VMs, want %d", have, n)
	}
	nodes := &corev1.NodeList{}
	if err := env.client.List(s.ctx, nodes); err != nil {
		s.Fatal(err)
	}
	ours := 0
	for i := range nodes.Items {
		if nodes.Items[i].Annotations[clusterv1.ClusterNamespaceAnnotation] == s.Namespace {
			ours++
		}
	}
	if ours != n {
		s.Errorf("the cluster has %d Nodes, want %d", ours, n)
	}
}

// TestWhichMachineGoes checks that a scale-down deletes the machine that its owner or the deletion
// order names.
func TestWhichMachineGoes(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	pool := scenario.Pool{Cluster: s.Adopted, Name: "pool", Replicas: 1}
	s.create(pool.Objects()...)
	var ages []string // names, oldest first
	for n := int32(1); n <= 5; n++ {
		if err := pool.Scale(s.ctx, env.client, n); err != nil {
			t.Fatal(err)
		}
		ages = append(ages, s.nextOf(ages))
	}
	s.soon("five machines are ready", pool.Ready(env.client, 5))
	for _, step := range []struct {
		order  clusterv1.MachineSetDeletionOrder
		marked int // by the annotation, as an index of ages; -1 for none
		goes   int
	}{
		{clusterv1.NewestMachineSetDeletionOrder, -1, 4},
		{clusterv1.OldestMachineSetDeletionOrder, -1, 0},
		{clusterv1.OldestMachineSetDeletionOrder, 2, 2},
		{clusterv1.RandomMachineSetDeletionOrder, 3, 3},
	} {
		if step.marked >= 0 {
			m := &clusterv1.Machine{ObjectMeta: s.meta(ages[step.marked])}
			if err := s.change(m, func() { metav1.SetMetaDataAnnotation(&m.ObjectMeta, clusterv1.DeleteMachineAnnotation, "") }); err != nil {
				t.Fatal(err)
			}
		}
		deployment := pool.Deployment()
		if err := s.change(deployment, func() { deployment.Spec.Deletion.Order = step.order }); err != nil {
			t.Fatal(err)
		}
		s.soon("the MachineSet knows the order, without another in its place", func(context.Context) (string, error) {
			if have := s.onlySet().Spec.Deletion.Order; have != step.order {
				return "it has " + string(have), nil
			}
			return "", nil
		})
		before := s.owners()
		if err := pool.Scale(s.ctx, env.client, int32(len(before)-1)); err != nil {
			t.Fatal(err)
		}
		s.soon("one machine goes", func(context.Context) (string, error) {
			if len(s.owners()) == len(before) {
				return "none does", nil
			}
			return "", nil
		})
		now := s.owners()
		for uid, name := range before {
			if _, stays := now[uid]; stays == (name == ages[step.goes]) {
				t.Errorf("order %s, %d marked: of %v, %v are left; want %s gone", step.order, step.marked, before, now, ages[step.goes])
				break
			}
		}
		s.soon("the others are ready", pool.Ready(env.client, int32(len(before)-1)))
	}
	if n := len(s.live()); n != 1 {
		t.Errorf("the cloud has %d VMs, want 1", n)
	}
	if err := scenario.Delete(s.ctx, env.client, pool.Deployment()); err != nil {
		t.Fatal(err)
	}
	s.until("nothing is left", s.gone())
}

// nextOf waits for a Machine that is not among the older ones, and until it is a second old:
// Cluster API compares ages in whole seconds.
func (s *stage) nextOf(older []string) (name string) {
	s.Helper()
	s.soon("there is another machine, of an age of its own", func(ctx context.Context) (string, error) {
		list := &clusterv1.MachineList{}
		if err := env.client.List(ctx, list, client.InNamespace(s.Namespace)); err != nil {
			return "", err
		}
		if len(list.Items) != len(older)+1 {
			return fmt.Sprintf("there are %d", len(list.Items)), nil
		}
		i := slices.IndexFunc(list.Items, func(m clusterv1.Machine) bool { return !slices.Contains(older, m.Name) })
		if name = list.Items[i].Name; time.Since(list.Items[i].CreationTimestamp.Time) < time.Second {
			return name + " is not a second old", nil
		}
		return "", nil
	})
	return name
}
