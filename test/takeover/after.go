// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/test/internal/scenario"
)

// Whole takes a pool over that the old system has: there, back, and there again, with the command
// killed after each of its writes, before the switch and after it. Each time it goes back, all is
// as it was. writes are the calls to the cloud until then: no VM is made or deleted. Then the pool
// is Drover's: it rolls with a change, and goes.
func (s *Stage) Whole(p Pool, change func(*infrav1.DroverMachineFields), writes map[string]int) {
	s.Helper()
	g := gomega.NewWithT(s.T)
	s.Old.Lease(time.Now().Add(-time.Hour)) // it was stopped
	before, began := s.Picture(), s.Old.Calls()
	made := func() map[string]int {
		all := s.Old.Calls()
		for op := range all {
			all[op] -= began[op]
		}
		maps.DeleteFunc(all, func(_ string, n int) bool { return n == 0 })
		return all
	}
	g.Expect(before.VMs).To(gomega.And(gomega.HaveLen(p.Replicas),
		gomega.HaveEach(gomega.HaveField("Tags", gomega.Not(gomega.HaveKey(gomega.HavePrefix("drover-")))))))
	passes := func(step string) {
		s.Helper()
		out, errs, code := s.Run(step)
		g.Expect(code).To(gomega.Equal(0), out+errs)
	}
	passes("plan")
	g.Expect(s.Picture()).To(gomega.Equal(before), "a plan changes nothing")
	s.Done("stage")
	passes("check")
	s.Done("rollback")
	g.Expect(s.Picture()).To(gomega.Equal(before), "rolled back before the switch")
	s.Done("stage")
	s.Done("switch")
	s.Still(before, p.Replicas)
	s.Done("rollback")
	g.Expect(s.Picture()).To(gomega.Equal(before), "rolled back after the switch")
	s.Done("stage")
	s.Done("switch")
	s.Still(before, p.Replicas)
	s.Done("commit")
	s.Committed(before)
	g.Expect(made()).To(gomega.Equal(writes))

	s.Roll(p, change)
	for _, id := range s.Old.vms {
		g.Expect(s.Old.VMs()[id].State).NotTo(gomega.Equal(running), "it was replaced")
	}
	s.Scale(p.Name, 0)
}

// pool returns namespace and name of what a pool has become.
func (s *Stage) pool(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Tenant.Name + "-" + name}
}

// Roll gives a pool that was taken over a template that is changed, and waits until all of its
// machines are new.
func (s *Stage) Roll(p Pool, change func(*infrav1.DroverMachineFields)) {
	s.Helper()
	d := &clusterv1.MachineDeployment{ObjectMeta: s.pool(p.Name)}
	template := &infrav1.DroverMachineTemplate{ObjectMeta: d.ObjectMeta}
	s.Do(s.Rig.Client.Get(s.Ctx, client.ObjectKeyFromObject(template), template))
	next := &infrav1.DroverMachineTemplate{ObjectMeta: s.pool(p.Name + "-2"), Spec: *template.Spec.DeepCopy()}
	change(&next.Spec.Template.Spec)
	machines := func(ctx context.Context) (names []string, err error) {
		list := &clusterv1.MachineList{}
		err = s.Rig.Client.List(ctx, list, client.InNamespace(s.Namespace), client.MatchingLabels{clusterv1.MachineDeploymentNameLabel: d.Name})
		for _, m := range list.Items {
			names = append(names, m.Name)
		}
		return names, err
	}
	old, err := machines(s.Ctx)
	s.Do(err)
	s.Do(s.Rig.Client.Create(s.Ctx, next))
	s.Do(scenario.Patch(s.Ctx, s.Rig.Client, d, func() { d.Spec.Template.Spec.InfrastructureRef.Name = next.Name }))
	s.Until("pool "+p.Name+" has rolled", func(ctx context.Context) (string, error) {
		now, err := machines(ctx)
		if err != nil {
			return "", err
		}
		for _, name := range now {
			if slices.Contains(old, name) {
				return name + " is there", nil
			}
		}
		err = s.Rig.Client.Get(ctx, client.ObjectKeyFromObject(d), d)
		if n := ptr.Deref(d.Status.AvailableReplicas, 0); len(now) != p.Replicas || int(n) != p.Replicas {
			return fmt.Sprintf("%d machines, %d available", len(now), n), err
		}
		return "", err
	})
}

// Scale sets how many machines a pool that was taken over has.
func (s *Stage) Scale(pool string, replicas int32) {
	s.Helper()
	d := &clusterv1.MachineDeployment{ObjectMeta: s.pool(pool)}
	s.Do(s.Rig.Client.Get(s.Ctx, client.ObjectKeyFromObject(d), d))
	s.Do(scenario.Patch(s.Ctx, s.Rig.Client, d, func() { d.Spec.Replicas = ptr.To(replicas) }))
}
