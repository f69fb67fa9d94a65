// SPDX-License-Identifier: Apache-2.0

package manager

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/drover-io/drover/bootstrap"
)

// slim is the transform of every object in a cache that has none of its own. It drops the managed
// fields, and the content that "kubectl apply" writes into an annotation. It keeps the annotation's
// key: without it, a patch that removes an object's only other annotation would remove all.
func slim(object any) (any, error) {
	o, ok := object.(metav1.Object)
	if !ok {
		return object, nil
	}
	o.SetManagedFields(nil)
	if annotations := o.GetAnnotations(); annotations[corev1.LastAppliedConfigAnnotation] != "" {
		annotations[corev1.LastAppliedConfigAnnotation] = ""
		o.SetAnnotations(annotations)
	}
	return object, nil
}

// slimSecret is the transform of Secrets. The manager caches only their metadata, but annotations
// may hold the content too.
func slimSecret(object any) (any, error) {
	secret, ok := object.(*metav1.PartialObjectMetadata)
	if !ok {
		return slim(object)
	}
	secret.ObjectMeta = metav1.ObjectMeta{
		Name: secret.Name, Namespace: secret.Namespace, UID: secret.UID, ResourceVersion: secret.ResourceVersion,
		Labels: secret.Labels, OwnerReferences: secret.OwnerReferences, Finalizers: secret.Finalizers,
		DeletionTimestamp: secret.DeletionTimestamp,
	}
	return secret, nil
}

const (
	// maxNodeAddresses is more than a Node has: a few of each family, and a few names.
	maxNodeAddresses = 64
	// maxNodeText limits the provider ID, and all addresses together, in bytes. No cloud's provider
	// ID has more than 300, and no name more than 253. The forwarder counts on what a Node takes.
	maxNodeText = 1 << 10
)

// slimNode keeps the fields of a Node that Drover reads. A kubelet writes its own Node, so each has
// a limit. A longer provider ID is cut and not dropped, because a Node without one may be any
// machine's.
func slimNode(object any) (any, error) {
	node, ok := object.(*corev1.Node)
	if !ok {
		return object, nil
	}
	id := node.Spec.ProviderID
	return &corev1.Node{
		TypeMeta:   node.TypeMeta,
		ObjectMeta: bootstrap.SlimMeta(node.ObjectMeta),
		Spec:       corev1.NodeSpec{ProviderID: strings.Clone(id[:min(len(id), maxNodeText)])},
		Status:     corev1.NodeStatus{Addresses: slimAddresses(node.Status.Addresses)},
	}, nil
}

// slimAddresses returns the first addresses, as many as are within the limits. One that is too long
// by itself is left out.
func slimAddresses(all []corev1.NodeAddress) (kept []corev1.NodeAddress) {
	left := maxNodeText
	for _, a := range all {
		size := len(a.Address) + len(a.Type)
		if size > left || len(kept) == maxNodeAddresses {
			continue
		}
		left -= size
		kept = append(kept, a)
	}
	return kept
}
