// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"context"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
)

// TestTakeover takes two pools over, with the command killed after each of its writes: there, back,
// and there again. No machine is made or deleted, and the Nodes are not touched until the commit.
// Then the pools are Drover's: one rolls, both go, and nothing is left.
func TestTakeover(t *testing.T) {
	s := start(t, "takeover", Pool{Name: "a", Replicas: 2, Labels: map[string]any{"pool": "a"}}, Pool{Name: "b", Replicas: 1})
	s.AWS.SetKeep(false)
	g := NewWithT(t)
	lease := s.Old.Lease(time.Now())
	before := s.Picture()
	began := s.AWS.Calls()

	status := func(want string) {
		t.Helper()
		out, errs, code := s.Run("status")
		g.Expect(code).To(Equal(0), errs)
		g.Expect(out).To(HaveSuffix(want))
	}
	status("Tagged: VM 0\nnothing is staged\n")
	s.Done("stage")
	status("Tagged: VM 3\nit is staged, completely or in part: check says which\n")
	s.Renew(lease, time.Now().Add(time.Hour)) // as if it renewed it all the time
	out, _, code := s.Run("check")
	g.Expect(code).To(Equal(1))
	g.Expect(out).To(MatchRegexp(`Refused +Lease machine-controller +spec.renewTime`))
	_, _, code = s.Run("switch")
	g.Expect(code).To(Equal(1), "the other system runs")
	s.Renew(lease, time.Now().Add(-time.Hour))
	out, errs, code := s.Run("check")
	g.Expect(code).To(Equal(0), out+errs)

	s.Done("rollback")
	g.Expect(s.Picture()).To(Equal(before), "rolled back before the switch")

	s.Done("stage")
	s.Done("switch")
	s.Still(before, 3)
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
	s.Done("rollback")
	g.Expect(s.Picture()).To(Equal(before), "rolled back after the switch and a mistake")

	s.Done("stage")
	s.Done("switch")
	s.Still(before, 3)
	made := s.AWS.Calls()
	for _, op := range []string{"RunInstances", "TerminateInstances"} {
		g.Expect(made[op]).To(Equal(began[op]), op)
	}
	g.Expect(s.Killed("commit")).To(BeTrue())
	s.Done("rollback")
	g.Expect(s.Picture()).To(Equal(before), "rolled back from a commit that has made only a MachineHealthCheck")
	s.Done("stage")
	s.Done("switch")
	status("it is switched: commit completes it, rollback undoes it\n")
	for range 3 { // both MachineHealthChecks, and the annotation of a commit that has begun
		g.Expect(s.Killed("commit")).To(BeTrue())
	}
	_, errs, code = s.Run("rollback")
	g.Expect(code).To(Equal(1))
	g.Expect(errs).To(ContainSubstring("a commit has begun"))
	status("a commit has begun, so there is no way back: run commit again\n")
	s.Done("commit")
	_, errs, code = s.Run("rollback")
	g.Expect(errs).To(BeEmpty())
	g.Expect(code).To(Equal(0), "nothing is staged, so it does nothing")
	made = s.AWS.Calls()
	for _, op := range []string{"RunInstances", "TerminateInstances"} {
		g.Expect(made[op]).To(Equal(began[op]), op)
	}
	g.Expect(made["CreateTags"]).To(Equal(4*3), "one for each machine in each of four stages")
	g.Expect(made["DeleteTags"]).To(Equal(3+1), "one in each of three rollbacks, and one for the pools' common key")
	s.Committed(before)
	g.Expect(s.Count(&clusterv1.MachineHealthCheckList{})).To(Equal(2))
	for _, e := range s.AWS.Books() {
		if slices.Contains(s.Old.vms, e.ID) {
			g.Expect(e.Tags).To(HaveKeyWithValue("kubernetes.io/cluster/"+s.Tenant.Name, "1"), "the cloud controller needs it")
		}
	}
	status("it is complete\n")

	s.Roll(Pool{Name: "a", Replicas: 2}, func(m *infrav1.DroverMachineFields) { m.Cloud.AWS.DetailedMonitoring = infrav1.FeatureEnabled })
	s.Scale("a", 0)
	s.Scale("b", 0)
	s.Empty()
}
