// SPDX-License-Identifier: Apache-2.0

// Package predicates decides which objects and which changes a controller handles. It imports no
// package of Drover.
package predicates

import (
	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/cluster-api/util/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
)

// Watched reports whether this manager is responsible for an object, by Cluster API's watch filter.
// The filter "" matches every object. Reconcilers call it because requests from watches of other
// objects have not passed a filter on this one.
func Watched(o client.Object, filter string) bool {
	return filter == "" || labels.HasWatchLabel(o, filter)
}

// SpecOrMetadataChanged passes an update only if something other than the status changed, so that a
// controller's own status writes do not trigger a reconcile.
func SpecOrMetadataChanged() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, after := e.ObjectOld, e.ObjectNew
		return before.GetGeneration() != after.GetGeneration() ||
			!before.GetDeletionTimestamp().Equal(after.GetDeletionTimestamp()) ||
			!equality.Semantic.DeepEqual(before.GetFinalizers(), after.GetFinalizers()) ||
			!equality.Semantic.DeepEqual(before.GetLabels(), after.GetLabels()) ||
			!equality.Semantic.DeepEqual(before.GetAnnotations(), after.GetAnnotations()) ||
			!equality.Semantic.DeepEqual(before.GetOwnerReferences(), after.GetOwnerReferences())
	}}
}
