// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"context"
	"net/http"
	"testing"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
)

// TestTrySaysWhy tests that whatever the management cluster refuses of a plan is a finding with the
// reason, and that what is no judgement of the plan is an error.
func TestTrySaysWhy(t *testing.T) {
	t.Parallel()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clusterv1.AddToScheme, infrav1.AddToScheme, bootstrapv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	template := schema.GroupResource{Group: infrav1.GroupVersion.Group, Resource: "drovermachinetemplates"}
	denied := apierrors.NewForbidden(template, "spot", nil)
	denied.ErrStatus.Message = `admission webhook "policy.example.com" denied the request: no spot here`
	policy := apierrors.NewForbidden(template, "spot", nil)
	policy.ErrStatus.Message = "ValidatingAdmissionPolicy 'sizes' with binding 'sizes' denied request: too large"
	rights := apierrors.NewForbidden(template, "spot", nil)
	rights.ErrStatus.Message = `drovermachinetemplates is forbidden: User "alice" cannot create`
	bare := &apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid,
		Message: "something is wrong"}}
	for name, c := range map[string]struct {
		err        error
		field, why string // both empty: an error
	}{
		"schema": {apierrors.NewInvalid(infrav1.GroupVersion.WithKind("DroverMachineTemplate").GroupKind(), "spot",
			field.ErrorList{field.Required(field.NewPath("spec", "x"), "it is needed")}), "spec.x", "it is needed"},
		"without causes": {bare, "", "something is wrong"},
		"webhook":        {denied, "", "no spot here"},
		"policy":         {policy, "", "too large"},
		"unknown field":  {apierrors.NewBadRequest(`unknown field "spec.x"`), "", `unknown field "spec.x"`},
		"name":           {apierrors.NewAlreadyExists(template, "spot"), "metadata.name", "already"},
		"rights":         {err: rights},
		"away":           {err: apierrors.NewServiceUnavailable("later")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			w := newMCWorld(t)
			p := w.plan()
			management := fake.NewClientBuilder().WithScheme(scheme).WithInterceptorFuncs(interceptor.Funcs{
				Create: func(_ context.Context, _ client.WithWatch, o client.Object, _ ...client.CreateOption) error {
					if _, is := o.(*infrav1.DroverMachineTemplate); is && o.GetName() == "spot" {
						return c.err
					}
					return nil
				},
			}).Build()
			err := w.target.Try(t.Context(), management, p)
			if c.field == "" && c.why == "" {
				g.Expect(err).To(MatchError(c.err))
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(p.Findings).To(ContainElement(And(
				HaveField("Severity", Refused), HaveField("Object", "DroverMachineTemplate spot"), HaveField("Field", c.field),
				HaveField("Message", ContainSubstring(c.why)),
			)))
			g.Expect(p.Blocked()).To(Equal(1))
		})
	}
}
