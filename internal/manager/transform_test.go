// SPDX-License-Identifier: Apache-2.0

package manager

import (
	"encoding/json"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
)

// TestNoSecretInTheCache: "kubectl apply" writes an object's content into an annotation. The
// manager's cache keeps none of it, of no kind.
func TestNoSecretInTheCache(t *testing.T) {
	secret := &metav1.PartialObjectMetadata{}
	secret.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
	for name, o := range map[string]client.Object{
		"Secret": secret, "DroverConfig": &bootstrapv1.DroverConfig{}, "DroverMachine": &infrav1.DroverMachine{},
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
		OwnerReferences: []metav1.OwnerReference{{Kind: "DroverAccount", Name: "a", Controller: ptr.To(true)}},
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
	machine := &infrav1.DroverMachine{}
	machine.Annotations = map[string]string{corev1.LastAppliedConfigAnnotation: "{}", "own": "1"}
	_, err := slim(machine)
	g.Expect(err).NotTo(HaveOccurred())
	before := machine.DeepCopy()
	delete(machine.Annotations, "own")
	patch, err := client.MergeFrom(before).Data(machine)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(patch)).To(MatchJSON(`{"metadata":{"annotations":{"own":null}}}`))
}

// TestSlimNode: a Node keeps what Drover reads, and little of it, whatever its kubelet writes.
func TestSlimNode(t *testing.T) {
	small := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "1", ResourceVersion: "2", CreationTimestamp: metav1.Now()}}
	small.Spec.ProviderID = "aws:///eu-1a/i-1"
	small.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.7"},
		{Type: corev1.NodeHostName, Address: "n"}}
	for name, c := range map[string]struct{ change, want func(*corev1.Node) }{
		"as it is": {func(*corev1.Node) {}, func(*corev1.Node) {}},
		"with what nothing reads": {func(n *corev1.Node) {
			n.Labels, n.Annotations = map[string]string{"a": strings.Repeat("b", 1<<20)}, map[string]string{"a": "b"}
			n.Spec.Taints = make([]corev1.Taint, 100_000)
			n.Status.Images = make([]corev1.ContainerImage, 1000)
		}, func(*corev1.Node) {}},
		"with many addresses": {func(n *corev1.Node) {
			n.Status.Addresses = append(n.Status.Addresses, make([]corev1.NodeAddress, 100_000)...)
		}, func(n *corev1.Node) {
			n.Status.Addresses = append(n.Status.Addresses, make([]corev1.NodeAddress, 62)...)
		}},
		"with a long address": {func(n *corev1.Node) {
			n.Status.Addresses = append([]corev1.NodeAddress{{Address: strings.Repeat("1", 1<<20)}}, n.Status.Addresses...)
		}, func(*corev1.Node) {}},
		"with many long addresses": {func(n *corev1.Node) {
			for range 64 {
				n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeHostName, Address: strings.Repeat("a", 900)})
			}
		}, func(n *corev1.Node) {
			n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeHostName, Address: strings.Repeat("a", 900)})
		}},
		"with long metadata": {func(n *corev1.Node) {
			text := strings.Repeat("a", 1<<20)
			n.Name, n.UID, n.ResourceVersion, n.GenerateName, n.Namespace = text, types.UID(text), text, text, text
		}, func(n *corev1.Node) {
			text := strings.Repeat("a", 600)
			n.Name, n.UID, n.ResourceVersion = text, types.UID(text), text
		}},
		"with a long provider ID": {func(n *corev1.Node) { n.Spec.ProviderID = "x" + strings.Repeat("1", 1<<20) },
			func(n *corev1.Node) { n.Spec.ProviderID = "x" + strings.Repeat("1", 1023) }},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			node, want := small.DeepCopy(), small.DeepCopy()
			c.change(node)
			c.want(want)
			kept, err := slimNode(node)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(kept).To(Equal(want))
		})
	}
}
