// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"fmt"
	"slices"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
	"github.com/drover-io/drover/internal/predicates"
)

// A token belongs to one object. A copy of a CloudMachine, made by "kubectl apply" of an export or
// by a restore into another namespace, has the original's token and would delete or adopt the
// original's VM. So both stop until one of them is abandoned.

// withToken lists the CloudMachines with a creation token, in all namespaces that this manager
// works in. The API server selects by that field (CloudMachine's selectableFields), and the cache
// has an index on it.
func (r *CloudMachineReconciler) withToken(ctx context.Context, reader client.Reader, token string) ([]infrav1.CloudMachine, error) {
	list := &infrav1.CloudMachineList{}
	if err := reader.List(ctx, list, client.InNamespace(r.Namespace), client.MatchingFields{machineByToken: token}); err != nil {
		return nil, fmt.Errorf("listing the CloudMachines with this machine's creation token: %w", err)
	}
	return list.Items, nil
}

// reportDuplicate reports whether another object has the machine's token, and if so says it in
// Ready.
func reportDuplicate(s *machineScope, withToken []infrav1.CloudMachine) bool {
	for i := range withToken {
		if other := &withToken[i]; other.UID != s.UID {
			setNotReady(s.CloudMachine, infrav1.DuplicateTokenReason, fmt.Sprintf(
				"CloudMachine %s has the same creation token: one of the two is a copy, and no VM is created or deleted for either; "+
					"annotate the copy with %s=<its name>, which keeps the VM, and delete it",
				client.ObjectKeyFromObject(other), infrav1.AbandonAnnotation))
			return true
		}
	}
	return false
}

// machineDeleted ends the account's interest in a deleted machine, and returns the machines with
// the same token, which may continue now. Tokens are forgotten only here, because a machine also
// ends when a user removes its finalizer.
func (r *CloudMachineReconciler) machineDeleted(ctx context.Context, o client.Object) []reconcile.Request {
	m, ok := o.(*infrav1.CloudMachine)
	if !ok || m.Spec.Creation.Token == "" || !predicates.Watched(m, r.WatchFilterValue) {
		return nil
	}
	left, err := r.withToken(ctx, r.Client, m.Spec.Creation.Token)
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Forgetting a deleted CloudMachine failed")
		return nil
	}
	account := r.Accounts.Get(client.ObjectKey{Namespace: m.Namespace, Name: m.Spec.AccountRef.Name})
	if account != nil && !isTokenNeeded(m, left) {
		account.Forget(m.Spec.Creation.Token)
	}
	var requests []reconcile.Request
	for i := range left {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&left[i])})
	}
	return requests
}

// isTokenNeeded reports whether another machine of a deleted machine's account has its token.
func isTokenNeeded(deleted *infrav1.CloudMachine, sameToken []infrav1.CloudMachine) bool {
	return slices.ContainsFunc(sameToken, func(m infrav1.CloudMachine) bool {
		return m.Namespace == deleted.Namespace && m.Spec.AccountRef == deleted.Spec.AccountRef
	})
}
