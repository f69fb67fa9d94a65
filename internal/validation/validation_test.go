// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// object returns an object whose spec is one value. The rules refuse the value "bad".
func object(value string) *corev1.ConfigMap {
	return &corev1.ConfigMap{Data: map[string]string{"spec": value}}
}

func kind(template bool) *validator[*corev1.ConfigMap] {
	return &validator[*corev1.ConfigMap]{kind: schema.GroupKind{Kind: "Kind"}, rules: Rules[*corev1.ConfigMap]{
		Spec: func(o *corev1.ConfigMap) any { return o.Data },
		Check: func(o *corev1.ConfigMap) field.ErrorList {
			if o.Data["spec"] == "bad" {
				return field.ErrorList{field.Invalid(field.NewPath("spec"), "bad", "is bad")}
			}
			return nil
		},
		Template: template,
	}}
}

func TestRules(t *testing.T) {
	g := NewWithT(t)
	v := kind(false)
	create := func(o *corev1.ConfigMap) error { _, err := v.ValidateCreate(t.Context(), o); return err }
	update := func(before, after *corev1.ConfigMap) error {
		_, err := v.ValidateUpdate(t.Context(), before, after)
		return err
	}

	g.Expect(create(object("good"))).To(Succeed())
	g.Expect(apierrors.IsInvalid(create(object("bad")))).To(BeTrue())
	g.Expect(update(object("good"), object("better"))).To(Succeed())
	g.Expect(apierrors.IsInvalid(update(object("good"), object("bad")))).To(BeTrue())
	g.Expect(update(object("bad"), object("bad"))).To(Succeed(), "an unchanged spec passes")
	deleted := object("bad")
	deleted.DeletionTimestamp = ptr.To(metav1.Now())
	g.Expect(update(object("good"), deleted)).To(Succeed(), "a finalizer can always be removed")
}

func TestTemplate(t *testing.T) {
	g := NewWithT(t)
	update := func(dryRun bool, before, after *corev1.ConfigMap) error {
		ctx := admission.NewContextWithRequest(context.Background(), admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
			Operation: admissionv1.Update, DryRun: ptr.To(dryRun),
		}})
		_, err := kind(true).ValidateUpdate(ctx, before, after)
		return err
	}
	topology := object("green")
	topology.Annotations = map[string]string{clusterv1.TopologyDryRunAnnotation: ""}
	labeled := object("blue")
	labeled.Labels = map[string]string{"a": "b"}

	g.Expect(update(false, object("blue"), labeled)).To(Succeed())
	g.Expect(apierrors.IsInvalid(update(false, object("blue"), object("green")))).To(BeTrue())
	g.Expect(apierrors.IsInvalid(update(true, object("blue"), object("green")))).To(BeTrue(), "a user's dry run gets the same answer")
	g.Expect(apierrors.IsInvalid(update(false, object("blue"), topology))).To(BeTrue())
	g.Expect(update(true, object("blue"), topology)).To(Succeed(), "ClusterClass's dry run")
	topology.Data["spec"] = "bad"
	g.Expect(apierrors.IsInvalid(update(true, object("blue"), topology))).To(BeTrue())
}
