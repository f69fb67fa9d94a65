// SPDX-License-Identifier: Apache-2.0

// Package conflict says what a controller does when another writer was first: it reconciles the
// object again soon. That is no failure, so it is neither logged nor counted as an error.
package conflict

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// RetryAfter is the time after which an object is reconciled again that another writer changed
// meanwhile. The cache has the change by then.
const RetryAfter = 200 * time.Millisecond

// Reconciler is what Retried returns.
type Reconciler[request comparable] struct {
	reconcile.TypedReconciler[request]
}

// Retried returns a reconciler that retries after a Conflict instead of returning it as an error.
func Retried[request comparable](r reconcile.TypedReconciler[request]) Reconciler[request] {
	return Reconciler[request]{r}
}

// Reconcile calls the reconciler.
func (r Reconciler[request]) Reconcile(ctx context.Context, req request) (reconcile.Result, error) {
	result, err := r.TypedReconciler.Reconcile(ctx, req)
	if is(err) {
		return reconcile.Result{RequeueAfter: RetryAfter}, nil
	}
	return result, err
}

// is reports whether an error is a Conflict. Of joined errors each must be one, so that none hides
// a failure.
func is(err error) bool {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return apierrors.IsConflict(err)
	}
	for _, one := range joined.Unwrap() {
		if !is(one) {
			return false
		}
	}
	return true
}
