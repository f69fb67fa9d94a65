// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"testing"

	. "github.com/onsi/gomega"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
)

func spec(pool string) bootstrapv1.DroverConfigSpec {
	return bootstrapv1.DroverConfigSpec{NodeLabels: map[string]string{"pool": pool}}
}

func TestChecks(t *testing.T) {
	g := NewWithT(t)
	g.Expect(checkConfig(&bootstrapv1.DroverConfig{Spec: spec("blue")})).To(BeEmpty())
	g.Expect(checkConfig(&bootstrapv1.DroverConfig{Spec: spec("not a value")})).NotTo(BeEmpty())
	g.Expect(checkConfig(&bootstrapv1.DroverConfig{Spec: bootstrapv1.DroverConfigSpec{OperatingSystem: "beos"}})).To(BeEmpty(),
		"the controller judges it")
	template := &bootstrapv1.DroverConfigTemplate{}
	template.Spec.Template.Spec = spec("blue")
	g.Expect(checkTemplate(template)).To(BeEmpty())
	template.Spec.Template.Spec.OperatingSystem = "ubuntu-26.04"
	g.Expect(checkTemplate(template)).To(BeEmpty(), "the controller judges it")
	template.Spec.Template.Spec = spec("not a value")
	g.Expect(checkTemplate(template)).NotTo(BeEmpty())
}

// TestFinalizerOnCreation: an update does not set the finalizer, which the controller may just have
// removed.
func TestFinalizerOnCreation(t *testing.T) {
	g := NewWithT(t)
	for operation, want := range map[admissionv1.Operation]int{admissionv1.Create: 1, admissionv1.Update: 0} {
		config := &bootstrapv1.DroverConfig{}
		ctx := admission.NewContextWithRequest(t.Context(),
			admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{Operation: operation}})
		g.Expect(Webhooks{}.Default(ctx, config)).To(Succeed())
		g.Expect(config.Finalizers).To(HaveLen(want), "%s", operation)
	}
}

// TestFinalizerWhereWatched: a config gets its finalizer only if the controller that removes it
// watches the config.
func TestFinalizerWhereWatched(t *testing.T) {
	for name, c := range map[string]struct {
		webhook          Webhooks
		namespace, label string
		want             bool
	}{
		"everything is watched":         {Webhooks{}, "a", "", true},
		"our namespace":                 {Webhooks{Namespace: "a"}, "a", "", true},
		"another namespace":             {Webhooks{Namespace: "a"}, "b", "", false},
		"our label":                     {Webhooks{WatchFilterValue: "x"}, "a", "x", true},
		"no label":                      {Webhooks{WatchFilterValue: "x"}, "a", "", false},
		"another label":                 {Webhooks{WatchFilterValue: "x"}, "a", "y", false},
		"our label, another namespace":  {Webhooks{WatchFilterValue: "x", Namespace: "a"}, "b", "x", false},
		"a label that is not looked at": {Webhooks{Namespace: "a"}, "a", "y", true},
	} {
		config := &bootstrapv1.DroverConfig{ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace}}
		if c.label != "" {
			config.Labels = map[string]string{clusterv1.WatchLabel: c.label}
		}
		ctx := admission.NewContextWithRequest(t.Context(), admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
			Operation: admissionv1.Create, Namespace: c.namespace,
		}})
		if err := c.webhook.Default(ctx, config); err != nil {
			t.Fatal(err)
		}
		if got := len(config.Finalizers) > 0; got != c.want {
			t.Errorf("%s: finalizer %t, want %t", name, got, c.want)
		}
	}
}
