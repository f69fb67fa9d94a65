// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/test/scenario"
)

// TestTakeover takes two pools over, with the command killed after each of its writes: there, back,
// and there again. No machine is made or deleted, and the Nodes are not touched until the commit.
// Then the pools are Drover's: one rolls, both go, and nothing is left.
func TestTakeover(t *testing.T) {
	s := start(t, "takeover", pool{name: "a", replicas: 2, labels: map[string]any{"pool": "a"}}, pool{name: "b", replicas: 1})
	s.AWS.SetKeep(false)
	g := NewWithT(t)
	lease := s.old.lease(time.Now())
	before := s.picture()
	began := s.AWS.Calls()

	status := func(want string) {
		t.Helper()
		out, errs, code := s.run("status")
		g.Expect(code).To(Equal(0), errs)
		g.Expect(out).To(HaveSuffix(want))
	}
	status("Tagged: VM 0\nnothing is staged\n")
	s.done("stage")
	status("Tagged: VM 3\nit is staged, completely or in part: check says which\n")
	s.renew(lease, time.Now()) // it has renewed it all the time
	out, _, code := s.run("check")
	g.Expect(code).To(Equal(1))
	g.Expect(out).To(MatchRegexp(`Refused +Lease machine-controller +spec.renewTime`))
	s.renew(lease, time.Now())
	_, _, code = s.run("switch")
	g.Expect(code).To(Equal(1), "the other system runs")
	s.renew(lease, time.Now().Add(-time.Hour))
	out, errs, code := s.run("check")
	g.Expect(code).To(Equal(0), out+errs)

	s.done("rollback")
	g.Expect(s.picture()).To(Equal(before), "rolled back before the switch")

	s.done("stage")
	s.done("switch")
	s.still(before, 3)
	victim := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Tenant.Name + "-a-6d4f5-0"}}
	s.Do(s.Rig.Client.Delete(s.Ctx, victim)) // by mistake
	s.Until("the deletion is held", func(ctx context.Context) (string, error) {
		if err := s.Rig.Client.Get(ctx, client.ObjectKeyFromObject(victim), victim); err != nil {
			return "", err
		}
		for _, c := range victim.Status.Conditions {
			if c.Type == clusterv1.MachineDeletingCondition && c.Reason == clusterv1.MachineDeletingWaitingForPreDrainHookReason {
				return "", nil
			}
		}
		return "it is not", nil
	})
	s.done("rollback")
	g.Expect(s.picture()).To(Equal(before), "rolled back after the switch and a mistake")

	s.done("stage")
	s.done("switch")
	s.still(before, 3)
	made := s.AWS.Calls()
	for _, op := range []string{"RunInstances", "TerminateInstances"} {
		g.Expect(made[op]).To(Equal(began[op]), op)
	}
	g.Expect(s.killed("commit")).To(BeTrue())
	s.done("rollback")
	g.Expect(s.picture()).To(Equal(before), "rolled back from a commit that has made only a MachineHealthCheck")
	s.done("stage")
	s.done("switch")
	status("it is switched: commit completes it, rollback undoes it\n")
	for range 3 { // both MachineHealthChecks, and the tags
		g.Expect(s.killed("commit")).To(BeTrue())
	}
	_, errs, code = s.run("rollback")
	g.Expect(code).To(Equal(1))
	g.Expect(errs).To(ContainSubstring("a commit has begun"))
	status("a commit has begun, so there is no way back: run commit again\n")
	s.done("commit")
	_, errs, code = s.run("rollback")
	g.Expect(errs).To(BeEmpty())
	g.Expect(code).To(Equal(0), "nothing is staged, so it does nothing")
	made = s.AWS.Calls()
	for _, op := range []string{"RunInstances", "TerminateInstances"} {
		g.Expect(made[op]).To(Equal(began[op]), op)
	}
	g.Expect(made["CreateTags"]).To(Equal(4*3), "one for each machine in each of four stages")
	g.Expect(made["DeleteTags"]).To(Equal(3+1), "one in each of three rollbacks, and one for the pools' common key")
	s.committed(before)
	g.Expect(s.count(&clusterv1.MachineHealthCheckList{})).To(Equal(2))
	for _, e := range s.AWS.Books() {
		if slices.Contains(s.old.vms, e.ID) {
			g.Expect(e.Tags).To(HaveKeyWithValue("kubernetes.io/cluster/"+s.Tenant.Name, "1"), "the cloud controller needs it")
		}
	}
	status("it is complete\n")

	a := &clusterv1.MachineDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Tenant.Name + "-a"}}
	b := &clusterv1.MachineDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Tenant.Name + "-b"}}
	template := &infrav1.CloudMachineTemplate{ObjectMeta: a.ObjectMeta}
	s.Do(s.Rig.Client.Get(s.Ctx, client.ObjectKeyFromObject(template), template))
	next := &infrav1.CloudMachineTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: a.Name + "-2"}, Spec: *template.Spec.DeepCopy()}
	next.Spec.Template.Spec.AWS.DetailedMonitoring = true
	s.Do(s.Rig.Client.Create(s.Ctx, next))
	s.Do(scenario.Patch(s.Ctx, s.Rig.Client, a, func() { a.Spec.Template.Spec.InfrastructureRef.Name = next.Name }))
	s.Until("pool a has rolled", func(ctx context.Context) (string, error) {
		list := &clusterv1.MachineList{}
		if err := s.Rig.Client.List(ctx, list, client.InNamespace(s.Namespace), client.MatchingLabels{clusterv1.MachineDeploymentNameLabel: a.Name}); err != nil {
			return "", err
		}
		for _, m := range list.Items {
			if strings.Contains(m.Name, "-6d4f5-") {
				return m.Name + " is there", nil
			}
		}
		err := s.Rig.Client.Get(ctx, client.ObjectKeyFromObject(a), a)
		if n := ptr.Deref(a.Status.AvailableReplicas, 0); len(list.Items) != 2 || n != 2 {
			return fmt.Sprintf("%d machines, %d available", len(list.Items), n), err
		}
		return "", err
	})
	for _, d := range []*clusterv1.MachineDeployment{a, b} {
		s.Do(scenario.Patch(s.Ctx, s.Rig.Client, d, func() { d.Spec.Replicas = ptr.To[int32](0) }))
	}
	s.Empty()
}

// renew sets when a Lease was renewed.
func (s *stage) renew(lease *coordinationv1.Lease, at time.Time) {
	s.Helper()
	s.Do(scenario.Patch(s.Ctx, s.Rig.Client, lease, func() { lease.Spec.RenewTime = ptr.To(metav1.NewMicroTime(at)) }))
}

// lease makes the Lease of a controller of the old system.
func (o *old) lease(renewed time.Time) *coordinationv1.Lease {
	o.Helper()
	l := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: o.namespace, Name: "machine-controller"},
		Spec:       coordinationv1.LeaseSpec{RenewTime: ptr.To(metav1.NewMicroTime(renewed))},
	}
	o.Do(o.Rig.Client.Create(o.Ctx, l))
	return l
}

// picture is what a rollback restores: tags, Nodes and the old system's objects; and that nothing
// of the target is there.
type picture struct {
	Tags  map[string]map[string]string
	Nodes map[string]string
	Old   map[string]string
	Made  map[string]int
}

func (s *stage) picture() picture {
	s.Helper()
	p := picture{Tags: map[string]map[string]string{}, Nodes: s.nodesNow(), Old: s.old.versions(), Made: map[string]int{}}
	for _, e := range s.AWS.Books() {
		if slices.Contains(s.old.vms, e.ID) {
			p.Tags[e.ID+" "+e.State] = maps.Clone(e.Tags)
		}
	}
	for kind, list := range map[string]client.ObjectList{
		"MachineDeployment": &clusterv1.MachineDeploymentList{}, "MachineSet": &clusterv1.MachineSetList{}, "Machine": &clusterv1.MachineList{},
		"MachineHealthCheck": &clusterv1.MachineHealthCheckList{},
		"CloudMachine":       &infrav1.CloudMachineList{}, "CloudMachineTemplate": &infrav1.CloudMachineTemplateList{},
	} {
		p.Made[kind] = s.count(list)
	}
	return p
}

// nodesNow returns what only a user or a controller of machines would change of each Node. Cluster
// API writes annotations and labels of its own.
func (s *stage) nodesNow() map[string]string {
	s.Helper()
	nodes := &corev1.NodeList{}
	s.Do(s.Rig.Nodes.List(s.Ctx, nodes))
	all := map[string]string{}
	for _, n := range nodes.Items {
		if !strings.HasPrefix(n.Name, s.Tenant.Name+"-") {
			continue
		}
		labels := maps.Clone(n.Labels)
		maps.DeleteFunc(labels, func(key, _ string) bool { return strings.Contains(key, "cluster.x-k8s.io") })
		annotations := maps.Clone(n.Annotations)
		maps.DeleteFunc(annotations, func(key, _ string) bool {
			return strings.Contains(key, "cluster.x-k8s.io") || strings.Contains(key, "ttl")
		})
		all[n.Name] = fmt.Sprint(n.UID, n.Spec.ProviderID, n.Spec.Unschedulable, n.Finalizers, labels, annotations)
	}
	return all
}

// still tests that a switch has changed no machine.
func (s *stage) still(before picture, machines int) {
	s.Helper()
	g := NewWithT(s.T)
	g.Expect(s.nodesNow()).To(Equal(before.Nodes))
	g.Expect(s.old.versions()).To(Equal(before.Old))
	g.Expect(s.count(&clusterv1.MachineList{})).To(Equal(machines))
	g.Expect(s.count(&infrav1.CloudMachineList{})).To(Equal(machines))
	g.Expect(s.count(&clusterv1.MachineSetList{})).To(Equal(s.old.pools))
	for _, e := range s.AWS.Books() {
		if e.State != "" {
			g.Expect(e.State).To(Equal("running"), e.ID)
		}
	}
}

// committed tests that the other system has nothing left, and finds no VM.
func (s *stage) committed(before picture) {
	s.Helper()
	g := NewWithT(s.T)
	g.Expect(s.old.versions()).To(BeEmpty())
	for _, e := range s.AWS.Books() {
		if slices.Contains(s.old.vms, e.ID) {
			g.Expect(e.State).To(Equal("running"))
			g.Expect(e.Tags).NotTo(HaveKey(s.old.key))
			g.Expect(e.Tags).To(HaveKey(cloud.TagOwnership))
		}
	}
	nodes := &corev1.NodeList{}
	s.Do(s.Rig.Nodes.List(s.Ctx, nodes))
	for _, n := range nodes.Items {
		if before.Nodes[n.Name] != "" {
			g.Expect(before.Nodes[n.Name]).To(HavePrefix(string(n.UID)))
			g.Expect(n.Finalizers).To(BeEmpty())
			g.Expect(n.Labels).NotTo(HaveKey(s.old.label))
		}
	}
	machines := &clusterv1.MachineList{}
	s.Do(s.Rig.Client.List(s.Ctx, machines, client.InNamespace(s.Namespace)))
	for _, m := range machines.Items {
		g.Expect(m.Annotations).NotTo(Or(HaveKey("drover.io/imported"), HaveKey(ContainSubstring("pre-drain"))))
	}
	s.Until("no MachineSet is marked", func(ctx context.Context) (string, error) {
		sets := &clusterv1.MachineSetList{}
		if err := s.Rig.Client.List(ctx, sets, client.InNamespace(s.Namespace)); err != nil {
			return "", err
		}
		for _, set := range sets.Items {
			if metav1.HasAnnotation(set.ObjectMeta, "drover.io/imported") {
				return set.Name, nil // Cluster API copies it once more from the MachineDeployment
			}
		}
		return "", nil
	})
}
