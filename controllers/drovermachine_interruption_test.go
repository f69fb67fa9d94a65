// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
)

// poolOf puts a fleet's Machines, all available, into a MachineSet of a MachineDeployment.
func poolOf(objects []client.Object, change func(*clusterv1.MachineSet, *clusterv1.MachineDeployment)) []client.Object {
	set := &clusterv1.MachineSet{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "pool-1", UID: "set"}}
	deployment := &clusterv1.MachineDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "pool", UID: "deployment"}}
	set.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(deployment, clusterv1.GroupVersion.WithKind("MachineDeployment"))}
	replicas := int32(0)
	for _, o := range objects {
		if m, ok := o.(*clusterv1.Machine); ok {
			m.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(set, clusterv1.GroupVersion.WithKind("MachineSet"))}
			m.Finalizers = []string{clusterv1.MachineFinalizer} // keeps it while it is drained
			m.Status.Conditions = []metav1.Condition{{Type: clusterv1.MachineAvailableCondition, Status: metav1.ConditionTrue}}
			replicas++
		}
	}
	set.Spec.Replicas = ptr.To(replicas)
	change(set, deployment)
	return append(objects, set, deployment)
}

// ending is the view of a cloud that recommends to leave all VMs.
func ending(all []cloud.Resource) []cloud.Resource {
	for i := range all {
		all[i].Interruptible, all[i].Reclaim, all[i].Notice = true, cloud.ReclaimAdvised, "the cloud recommends to leave it"
	}
	return all
}

// newEndingBench has running VMs, of which the cloud then recommends to leave all.
func newEndingBench(t *testing.T, names []string, objects []client.Object) *bench {
	t.Helper()
	b := newBench(t, objects...)
	for _, name := range names {
		b.reconcile(name)
	}
	b.wait(time.Minute)
	b.show(ending)
	b.wait(2 * time.Minute)
	return b
}

// deletedMachines returns the names of the Machines that are being deleted.
func (b *bench) deletedMachines() (names []string) {
	b.t.Helper()
	list := &clusterv1.MachineList{}
	b.Expect(b.r.Client.List(b.t.Context(), list)).To(Succeed())
	for _, m := range list.Items {
		if !m.DeletionTimestamp.IsZero() {
			names = append(names, m.Name)
		}
	}
	return names
}

// TestInterruptionWave: the cloud recommends to leave all VMs of a pool at once. Only as many
// Machines are replaced at a time as the pool's limits allow. No Machine is deleted without a
// replacement.
func TestInterruptionWave(t *testing.T) {
	t.Parallel()
	type md = clusterv1.MachineDeployment
	for name, c := range map[string]struct {
		change  func(*clusterv1.MachineSet, *md)
		deleted int
	}{
		"nothing says otherwise": {func(*clusterv1.MachineSet, *md) {}, 1},
		"a MachineSet by itself": {func(s *clusterv1.MachineSet, _ *md) { s.OwnerReferences = nil }, 1},
		"maxUnavailable": {func(_ *clusterv1.MachineSet, d *md) {
			d.Spec.Rollout.Strategy.RollingUpdate.MaxUnavailable = ptr.To(intstr.FromString("50%"))
		}, 3},
		"maxUnavailable 0": {func(_ *clusterv1.MachineSet, d *md) {
			d.Spec.Rollout.Strategy.RollingUpdate.MaxUnavailable = ptr.To(intstr.FromInt32(0))
		}, 1},
		"maxInFlight comes first": {func(_ *clusterv1.MachineSet, d *md) {
			d.Spec.Rollout.Strategy.RollingUpdate.MaxUnavailable = ptr.To(intstr.FromInt32(4))
			d.Spec.Remediation.MaxInFlight = ptr.To(intstr.FromInt32(2))
		}, 2},
		"not frozen, said by the MachineDeployment": {func(s *clusterv1.MachineSet, _ *md) {
			s.Annotations = map[string]string{clusterv1.DisableMachineCreateAnnotation: "false"}
		}, 1},
		"frozen": {func(s *clusterv1.MachineSet, _ *md) {
			s.Annotations = map[string]string{clusterv1.DisableMachineCreateAnnotation: "true"}
		}, 0},
		"MachineSet paused": {func(s *clusterv1.MachineSet, _ *md) {
			s.Annotations = map[string]string{clusterv1.PausedAnnotation: ""}
		}, 0},
		"paused":                     {func(_ *clusterv1.MachineSet, d *md) { d.Spec.Paused = ptr.To(true) }, 0},
		"another group's MachineSet": {func(*clusterv1.MachineSet, *md) {}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				names := []string{"m1", "m2", "m3", "m4", "m5", "m6"}
				objects := poolOf(fleetOf(names...), c.change)
				foreign := name == "another group's MachineSet"
				for _, o := range objects {
					if m, ok := o.(*clusterv1.Machine); ok && foreign {
						m.OwnerReferences[0].APIVersion = "example.com/v1"
					}
				}
				b := newEndingBench(t, names, objects)
				deleted := b.deletedMachines()
				b.Expect(deleted).To(HaveLen(c.deleted))
				for _, name := range names {
					again := b.reconcile(name).RequeueAfter > 0
					b.Expect(again).To(Equal(!foreign && !slices.Contains(deleted, name)), "%s waits for its turn", name)
				}
			})
		})
	}
}

// TestReplacementEnds: the next Machine is deleted only once the first replacement is available.
func TestReplacementEnds(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		names := []string{"m1", "m2", "m3"}
		b := newEndingBench(t, names, poolOf(fleetOf(names...), func(*clusterv1.MachineSet, *clusterv1.MachineDeployment) {}))
		b.Expect(b.deletedMachines()).To(HaveLen(1))
		gone := b.deletedMachines()[0]
		other := names[(slices.Index(names, gone)+1)%3]

		first := &clusterv1.Machine{}
		b.Expect(b.r.Client.Get(t.Context(), client.ObjectKey{Namespace: "team-a", Name: gone}, first)).To(Succeed())
		next := first.DeepCopy()
		first.Finalizers = nil
		b.Expect(b.r.Client.Update(t.Context(), first)).To(Succeed())
		b.reconcile(other)
		b.Expect(b.deletedMachines()).To(BeEmpty(), "the successor is not there yet")

		next.ObjectMeta = metav1.ObjectMeta{Namespace: "team-a", Name: "m4", UID: "m4", Labels: next.Labels,
			OwnerReferences: next.OwnerReferences}
		next.Status.Conditions[0].Status = metav1.ConditionFalse
		b.Expect(b.r.Client.Create(t.Context(), next)).To(Succeed())
		b.reconcile(other)
		b.Expect(b.deletedMachines()).To(BeEmpty(), "the successor is not available yet")

		next.Status.Conditions[0].Status = metav1.ConditionTrue
		b.Expect(b.r.Client.Update(t.Context(), next)).To(Succeed())
		b.reconcile(other)
		b.Expect(b.deletedMachines()).To(Equal([]string{other}))
	})
}

// TestReplacementsOfStaleCache: a Machine that was just deleted counts as missing before the cache
// shows the deletion. An imminent interruption does not wait.
func TestReplacementsOfStaleCache(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	p := &pool{set: &clusterv1.MachineSet{ObjectMeta: metav1.ObjectMeta{UID: "set"},
		Spec: clusterv1.MachineSetSpec{Replicas: ptr.To[int32](3)}}}
	for _, uid := range []string{"a", "b", "c"} {
		m := clusterv1.Machine{}
		m.SetUID(types.UID(uid))
		m.Status.Conditions = []metav1.Condition{{Type: clusterv1.MachineAvailableCondition, Status: metav1.ConditionTrue}}
		p.machines = append(p.machines, m)
	}
	var r replacements
	g.Expect(r.begin(p, &p.machines[0], false)).To(BeTrue())
	g.Expect(r.begin(p, &p.machines[1], false)).To(BeFalse())
	g.Expect(r.begin(p, &p.machines[1], true)).To(BeTrue(), "it ends in any case")
	r.cancel(p, &p.machines[0])
	r.cancel(p, &p.machines[1])
	g.Expect(r.begin(p, &p.machines[2], false)).To(BeTrue())
	p.machines = nil
	g.Expect(r.begin(p, &clusterv1.Machine{}, false)).To(BeFalse())
	g.Expect(r.begun).To(BeEmpty(), "nothing is remembered for ever")
}

// TestFailedForLackOfCapacity: a VM that the cloud has accepted, and then had no capacity for, is
// replaced, whether the cloud still shows it as failed or as ended.
func TestFailedForLackOfCapacity(t *testing.T) {
	t.Parallel()
	for _, state := range []cloud.State{cloud.StateFailed, cloud.StateTerminated} {
		t.Run(string(state), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				b := newBench(t, poolOf(fleetOf("m1"), func(*clusterv1.MachineSet, *clusterv1.MachineDeployment) {})...)
				b.reconcile("m1")
				b.show(func(all []cloud.Resource) []cloud.Resource {
					for i := range all {
						all[i].State, all[i].Code, all[i].Reason = state, cloud.NoCapacity, "no host has room"
					}
					return all
				})
				b.wait(2 * time.Minute)
				b.Expect(b.deletedMachines()).To(Equal([]string{"m1"}))
			})
		})
	}
}

// TestInterruptionAfterOutage: the cloud announces that it takes a VM away while the workload
// cluster is unreachable, or while the Machine is paused. When that ends, the Machine is replaced.
// Nothing that the controller watches changes a DroverMachine with a VM then, so the reconcile of
// the announcement comes back by itself.
func TestInterruptionAfterOutage(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		begin, end func(b *bench)
	}{
		"workload cluster unreachable": {
			func(b *bench) {
				b.annotateCluster(map[string]string{infrav1.UnreachableAnnotation: "2026-01-01T00:00:00Z"})
			},
			func(b *bench) { b.annotateCluster(nil) },
		},
		"Machine paused": {
			func(b *bench) { b.annotateMachine(map[string]string{clusterv1.PausedAnnotation: ""}) },
			func(b *bench) { b.annotateMachine(nil) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				b := newBench(t, poolOf(fleetOf("m1"), func(*clusterv1.MachineSet, *clusterv1.MachineDeployment) {})...)
				b.reconcile("m1")
				b.wait(time.Minute)
				c.begin(b)
				b.reconcile("m1")
				b.show(ending)
				b.wait(2 * time.Minute)
				b.Expect(b.deletedMachines()).To(BeEmpty(), "not while it is paused or unreachable")
				again := b.reconcile("m1").RequeueAfter
				c.end(b)
				b.Expect(again).To(BeNumerically(">", 0), "nothing brings the machine back")
				b.wait(again)
				b.reconcile("m1")
				b.Expect(b.deletedMachines()).To(ConsistOf("m1"))
			})
		})
	}
}

func (b *bench) annotateCluster(with map[string]string) {
	b.t.Helper()
	o := &infrav1.DroverCluster{}
	b.Expect(b.management.Get(b.t.Context(), client.ObjectKey{Namespace: "team-a", Name: "prod"}, o)).To(Succeed())
	before := o.DeepCopy()
	o.Annotations = with
	b.Expect(b.management.Update(b.t.Context(), o)).To(Succeed())
	// The watch: only machines without a VM are mapped.
	b.Expect(droverClusterInputsChanged(before, o)).To(BeTrue())
	b.Expect(b.r.droverClusterToUncreated(b.t.Context(), o)).To(BeEmpty())
}

func (b *bench) annotateMachine(with map[string]string) {
	b.t.Helper()
	o := &clusterv1.Machine{}
	b.Expect(b.management.Get(b.t.Context(), client.ObjectKey{Namespace: "team-a", Name: "m1"}, o)).To(Succeed())
	before := o.DeepCopy()
	o.Annotations = with
	b.Expect(b.management.Update(b.t.Context(), o)).To(Succeed())
	b.Expect(machineInputsChanged(before, o)).To(BeFalse())
}

// TestReplacementsOfGoneSets: nothing is remembered of a MachineSet that is deleted while one of
// its Machines is about to be replaced.
func TestReplacementsOfGoneSets(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		var r replacements
		for i := range 100 {
			p := &pool{set: &clusterv1.MachineSet{ObjectMeta: metav1.ObjectMeta{UID: types.UID(fmt.Sprint(i))}}}
			g.Expect(r.begin(p, &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{UID: "m"}}, true)).To(BeTrue())
			g.Expect(len(r.begun)).To(BeNumerically("<=", 10))
			time.Sleep(replacementMemory / 10)
		}
	})
}
