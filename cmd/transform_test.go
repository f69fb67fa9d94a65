// SPDX-License-Identifier: Apache-2.0

package cmd

import (
	"encoding/json"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1alpha1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
)

// TestNoSecretInTheCache: "kubectl apply" writes an object's content into an annotation. The
// manager's cache keeps none of it, of no kind.
func TestNoSecretInTheCache(t *testing.T) {
	secret := &metav1.PartialObjectMetadata{}
	secret.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
	for name, o := range map[string]client.Object{
		"Secret": secret, "CloudInitConfig": &bootstrapv1.CloudInitConfig{}, "CloudMachine": &infrav1.CloudMachine{},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			o.SetAnnotations(map[string]string{corev1.LastAppliedConfigAnnotation: `{"data":{"password":"SFVTSA=="}}`})
			o.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: "kubectl", FieldsV1: &metav1.FieldsV1{}}})
			options := cacheOptions("")
			transform := options.DefaultTransform
			if name == "Secret" {
				for _, by := range options.ByObject { // only Secrets have an entry
					transform = by.Transform
				}
			}
			kept, err := transform(o)
			g.Expect(err).NotTo(HaveOccurred())
			text, err := json.Marshal(kept)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(string(text)).NotTo(ContainSubstring("SFVTSA=="))
			g.Expect(kept.(client.Object).GetManagedFields()).To(BeEmpty())
		})
	}
}

// TestSlimSecret: a Secret keeps what its reconciler reads, and nothing whose size a tenant chooses
// for content.
func TestSlimSecret(t *testing.T) {
	g := NewWithT(t)
	now := metav1.Now()
	secret := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Name: "s", Namespace: "tenant", UID: "1", ResourceVersion: "2", DeletionTimestamp: &now,
		Labels: map[string]string{"drover.io/credentials": "aws"}, Finalizers: []string{infrav1.CredentialsFinalizer},
		OwnerReferences: []metav1.OwnerReference{{Kind: "CloudAccount", Name: "a", Controller: ptr.To(true)}},
	}}
	want := secret.DeepCopy()
	secret.Annotations = map[string]string{"note": strings.Repeat("a", 256<<10)}
	secret.GenerateName = strings.Repeat("b", 1000)
	kept, err := slimSecret(secret)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(kept).To(Equal(want))
}

// TestPatchOfASlimObject: a patch that removes the only other annotation of a cached object leaves
// alone what "kubectl apply" wrote.
func TestPatchOfASlimObject(t *testing.T) {
	g := NewWithT(t)
	machine := &infrav1.CloudMachine{}
	machine.Annotations = map[string]string{corev1.LastAppliedConfigAnnotation: "{}", "own": "1"}
	_, err := slim(machine)
	g.Expect(err).NotTo(HaveOccurred())
	before := machine.DeepCopy()
	delete(machine.Annotations, "own")
	patch, err := client.MergeFrom(before).Data(machine)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(patch)).To(MatchJSON(`{"metadata":{"annotations":{"own":null}}}`))
}
