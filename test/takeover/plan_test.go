// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"context"
	"maps"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
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
	g.Expect(strings.Count(out, "\nkind: DroverMachine\n")).To(Equal(2))

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
	g.Expect(s.Count(&infrav1.DroverMachineList{})).To(Equal(0))
	g.Expect(s.Count(&infrav1.DroverMachineTemplateList{})).To(Equal(0))
	g.Expect(s.Count(&bootstrapv1.DroverConfigTemplateList{})).To(Equal(1), "the one that the user has made")
	g.Expect(s.Old.versions()).To(Equal(versions))
}

// TestPlanIsRefused tests that a plan has what the management cluster's own admission refuses,
// before anything is made: here a policy of the operator's.
func TestPlanIsRefused(t *testing.T) {
	s := start(t, "refused", Pool{Name: "a", Replicas: 1})
	g := NewWithT(t)
	policy := &admissionregistrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "refused"},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionregistrationv1.MatchResources{
				NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: s.Namespace}},
				ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: admissionregistrationv1.RuleWithOperations{
					Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
					Rule: admissionregistrationv1.Rule{
						APIGroups: []string{infrav1.GroupVersion.Group}, APIVersions: []string{"*"}, Resources: []string{"drovermachinetemplates"},
					},
				}}},
			},
			Validations: []admissionregistrationv1.Validation{{Expression: "false", Message: "templates come from the catalog"}},
		},
	}
	binding := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: policy.Name},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: policy.Name, ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
		},
	}
	for _, o := range []client.Object{policy, binding} {
		s.Do(s.Rig.Client.Create(s.Ctx, o))
		t.Cleanup(func() { s.Do(s.Rig.Client.Delete(context.WithoutCancel(s.Ctx), o)) })
	}
	g.Eventually(func(g Gomega) { // the API server learns of a policy later
		out, errs, code := s.Run("plan")
		g.Expect(code).To(Equal(1), out)
		g.Expect(errs).To(Equal("drover: findings that stop the takeover: 1\n"))
		g.Expect(out).To(MatchRegexp(`Refused +DroverMachineTemplate refused-a.* templates come from the catalog`))
	}).WithTimeout(2 * time.Minute).WithPolling(time.Second).Should(Succeed())
	g.Expect(s.Count(&infrav1.DroverMachineTemplateList{})).To(Equal(0))
}
