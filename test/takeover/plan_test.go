// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"maps"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1alpha1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
)

// TestPlan plans two pools: one in order, and one with a label that new Nodes can't have. A plan
// changes nothing, anywhere.
func TestPlan(t *testing.T) {
	s := start(t, "plan", Pool{Name: "a", Replicas: 2, Labels: map[string]any{"pool": "a"}})
	g := NewWithT(t)
	before := s.AWS.Calls()
	out, errs, code := s.Run("plan")
	g.Expect(errs).To(BeEmpty(), out)
	g.Expect(code).To(Equal(0), out)
	for _, id := range s.Old.vms {
		g.Expect(out).To(ContainSubstring(id))
	}
	g.Expect(out).To(ContainSubstring("Machine 2, MachineDeployment 1"))
	out, _, code = s.Run("plan", "--output=yaml")
	g.Expect(code).To(Equal(0))
	g.Expect(strings.Count(out, "\nkind: CloudMachine\n")).To(Equal(2))

	s.Old.AddMCM(Pool{Name: "b", Replicas: 1, Labels: map[string]any{"node-restriction.kubernetes.io/pool": "b", "kubernetes.io/pool": "b"}})
	versions := s.Old.versions()
	out, errs, code = s.Run("plan")
	g.Expect(code).To(Equal(1))
	g.Expect(errs).To(Equal("drover: findings that stop the takeover: 1\n"))
	g.Expect(out).To(MatchRegexp(`Lost +MachineDeployment plan-b +spec.template.spec.nodeTemplate.metadata.labels .*labels kubernetes.io/pool,`), out)

	calls := s.AWS.Calls()
	maps.DeleteFunc(calls, func(op string, n int) bool {
		return before[op] == n || strings.HasPrefix(op, "Describe") || op == "GetCallerIdentity"
	})
	g.Expect(calls).To(BeEmpty(), "only reads")
	g.Expect(s.Count(&clusterv1.MachineDeploymentList{})).To(Equal(0))
	g.Expect(s.Count(&clusterv1.MachineList{})).To(Equal(0))
	g.Expect(s.Count(&infrav1.CloudMachineList{})).To(Equal(0))
	g.Expect(s.Count(&infrav1.CloudMachineTemplateList{})).To(Equal(0))
	g.Expect(s.Count(&bootstrapv1.CloudInitConfigTemplateList{})).To(Equal(1), "the one that the user has made")
	g.Expect(s.Old.versions()).To(Equal(versions))
}
