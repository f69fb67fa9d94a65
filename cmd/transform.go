// SPDX-License-Identifier: Apache-2.0

package cmd

import (
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
