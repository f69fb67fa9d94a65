// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	admissionv1 "k8s.io/api/admission/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1alpha1"
)

func admit(operation admissionv1.Operation, dryRun bool) context.Context {
	return admission.NewContextWithRequest(context.Background(), admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
		Operation: operation, DryRun: ptr.To(dryRun),
	}})
}

func spec(pool string) bootstrapv1.CloudInitConfigSpec {
	return bootstrapv1.CloudInitConfigSpec{NodeLabels: map[string]string{"pool": pool}}
}

func TestConfigWebhook(t *testing.T) {
	g := NewWithT(t)
	config := &bootstrapv1.CloudInitConfig{Spec: spec("blue")}
	g.Expect(ConfigWebhook{}.Default(admit(admissionv1.Update, false), config)).To(Succeed())
	g.Expect(config.Finalizers).To(BeEmpty())
	g.Expect(ConfigWebhook{}.Default(admit(admissionv1.Create, false), config)).To(Succeed())
	g.Expect(config.Finalizers).To(Equal([]string{bootstrapv1.ConfigFinalizer}))

	_, err := ConfigWebhook{}.ValidateCreate(t.Context(), config)
	g.Expect(err).NotTo(HaveOccurred())
	bad := &bootstrapv1.CloudInitConfig{Spec: spec("not a value")}
	_, err = ConfigWebhook{}.ValidateCreate(t.Context(), bad)
	g.Expect(apierrors.IsInvalid(err)).To(BeTrue())
	_, err = ConfigWebhook{}.ValidateUpdate(t.Context(), config, bad)
	g.Expect(apierrors.IsInvalid(err)).To(BeTrue())
	_, err = ConfigWebhook{}.ValidateUpdate(t.Context(), bad, bad)
	g.Expect(err).NotTo(HaveOccurred(), "what is there already stays")
	bad.DeletionTimestamp = ptr.To(metav1.Now())
	_, err = ConfigWebhook{}.ValidateUpdate(t.Context(), config, bad)
	g.Expect(err).NotTo(HaveOccurred(), "a finalizer can always be removed")
}

// TestFinalizerWhereWatched: a config gets its finalizer only if the controller that removes it
// watches the config.
func TestFinalizerWhereWatched(t *testing.T) {
	for name, c := range map[string]struct {
		webhook          ConfigWebhook
		namespace, label string
		want             bool
	}{
		"everything is watched":         {ConfigWebhook{}, "a", "", true},
		"our namespace":                 {ConfigWebhook{Namespace: "a"}, "a", "", true},
		"another namespace":             {ConfigWebhook{Namespace: "a"}, "b", "", false},
		"our label":                     {ConfigWebhook{WatchFilterValue: "x"}, "a", "x", true},
		"no label":                      {ConfigWebhook{WatchFilterValue: "x"}, "a", "", false},
		"another label":                 {ConfigWebhook{WatchFilterValue: "x"}, "a", "y", false},
		"our label, another namespace":  {ConfigWebhook{WatchFilterValue: "x", Namespace: "a"}, "b", "x", false},
		"a label that is not looked at": {ConfigWebhook{Namespace: "a"}, "a", "y", true},
	} {
		config := &bootstrapv1.CloudInitConfig{ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace}}
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

func TestTemplateWebhook(t *testing.T) {
	g := NewWithT(t)
	template := func(pool string) *bootstrapv1.CloudInitConfigTemplate {
		out := &bootstrapv1.CloudInitConfigTemplate{}
		out.Spec.Template.Spec = spec(pool)
		return out
	}
	update := func(dryRun bool, old, changed *bootstrapv1.CloudInitConfigTemplate) error {
		_, err := TemplateWebhook{}.ValidateUpdate(admit(admissionv1.Update, dryRun), old, changed)
		return err
	}
	marked := template("green")
	marked.Annotations = map[string]string{clusterv1.TopologyDryRunAnnotation: ""}
	relabelled := template("blue")
	relabelled.Labels = map[string]string{"a": "b"}

	g.Expect(update(false, template("blue"), relabelled)).To(Succeed())
	g.Expect(apierrors.IsInvalid(update(false, template("blue"), template("green")))).To(BeTrue())
	g.Expect(apierrors.IsInvalid(update(true, template("blue"), template("green")))).To(BeTrue(), "a user's dry run tells the truth")
	g.Expect(apierrors.IsInvalid(update(false, template("blue"), marked))).To(BeTrue())
	g.Expect(update(true, template("blue"), marked)).To(Succeed(), "ClusterClass's dry run")
	_, err := TemplateWebhook{}.ValidateCreate(t.Context(), template("not a value"))
	g.Expect(apierrors.IsInvalid(err)).To(BeTrue())
}
