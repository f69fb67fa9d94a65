// SPDX-License-Identifier: Apache-2.0

package cmd

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	// maxNodeText limits the provider ID and each address. No cloud's has more than 300 bytes.
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
	addresses := slices.DeleteFunc(node.Status.Addresses, func(a corev1.NodeAddress) bool { return len(a.Address)+len(a.Type) > maxNodeText })
	id := node.Spec.ProviderID
	return &corev1.Node{
		TypeMeta: node.TypeMeta,
		ObjectMeta: metav1.ObjectMeta{
			Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion,
			CreationTimestamp: node.CreationTimestamp, DeletionTimestamp: node.DeletionTimestamp,
		},
		Spec:   corev1.NodeSpec{ProviderID: strings.Clone(id[:min(len(id), maxNodeText)])},
		Status: corev1.NodeStatus{Addresses: slices.Clone(addresses[:min(len(addresses), maxNodeAddresses)])},
	}, nil
}
