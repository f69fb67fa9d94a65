// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/internal/predicates"
)

// A token belongs to one object. A copy of a DroverMachine, made by "kubectl apply" of an export or
// by a restore into another namespace, has the original's token and would delete or adopt the
// original's VM. So both stop until one of them is abandoned.

// withToken lists the DroverMachines with a creation token, in all namespaces that this manager
// works in. The API server selects by that field (DroverMachine's selectableFields), and the cache
// has an index on it.
func (r *DroverMachineReconciler) withToken(ctx context.Context, reader client.Reader, token string) ([]infrav1.DroverMachine, error) {
	list := &infrav1.DroverMachineList{}
	if err := reader.List(ctx, list, client.InNamespace(r.Namespace), client.MatchingFields{machineByToken: token}); err != nil {
		return nil, fmt.Errorf("listing the DroverMachines with this machine's creation token: %w", err)
	}
	return list.Items, nil
}

// reportDuplicate reports whether another object claims the machine's VM, and if so says it in
// Ready. The reader reads the other object's Cluster.
func reportDuplicate(ctx context.Context, reader client.Reader, s *machineScope, withToken []infrav1.DroverMachine) (bool, error) {
	for i := range withToken {
		other := &withToken[i]
		if other.UID == s.UID {
			continue
		}
		claims, err := claimsVM(ctx, reader, other, s.Namespace, s.ownershipID)
		if err != nil {
			return false, err
		}
		if !claims {
			continue
		}
		setNotReady(s.DroverMachine, infrav1.DuplicateTokenReason, fmt.Sprintf(
			"DroverMachine %s has the same creation token: one of the two is a copy, and no VM is created or deleted for either; "+
				"annotate the copy with %s=<its name>, which keeps the VM, and delete it",
			client.ObjectKeyFromObject(other), infrav1.AbandonAnnotation))
		return true, nil
	}
	return false, nil
}

// claimsVM reports whether a DroverMachine with the token of a machine claims the machine's VM,
// too. One of the same namespace always does. Of another tenant's, the token alone proves nothing,
// because anybody may write any token into an object of their own. Drover writes it together with
// the finalizer, and changes nothing in the cloud for an object without that. A VM also has the
// ownership ID of its cluster, which other tenants do not know: a restored copy of the cluster has
// it, and a machine of another cluster does not find the VM.
func claimsVM(ctx context.Context, reader client.Reader, other *infrav1.DroverMachine, namespace, ownershipID string) (bool, error) {
	if other.Namespace == namespace {
		return true, nil
	}
	if !controllerutil.ContainsFinalizer(other, infrav1.MachineFinalizer) {
		return false, nil
	}
	if ownershipID == "" {
		return true, nil
	}
	its, err := ownershipIDOf(ctx, reader, other)
	if its == "" {
		// A restore may not have created the cluster yet. An object under deletion is none of a
		// restore, and may have any token, because the webhook does not see it. It waits for the
		// machine.
		return other.DeletionTimestamp.IsZero(), err
	}
	return its == ownershipID, err
}

// ownershipIDOf returns the ownership ID of a machine's cluster; empty if there is no such cluster.
func ownershipIDOf(ctx context.Context, reader client.Reader, m *infrav1.DroverMachine) (string, error) {
	cluster := &clusterv1.Cluster{}
	key := client.ObjectKey{Namespace: m.Namespace, Name: m.Labels[clusterv1.ClusterNameLabel]}
	if key.Name == "" {
		return "", nil
	}
	if err := reader.Get(ctx, key, cluster); err != nil {
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return "", fmt.Errorf("reading the Cluster of DroverMachine %s: %w", client.ObjectKeyFromObject(m), err)
	}
	infra, err := droverClusterOf(ctx, reader, cluster)
	if err != nil {
		return "", err
	}
	return infra.Spec.Creation.OwnershipID, nil
}

// machineDeleted ends the account's interest in a deleted machine, and returns the machines with
// the same token, which may continue now. Tokens are forgotten only here, because a machine also
// ends when a user removes its finalizer.
func (r *DroverMachineReconciler) machineDeleted(ctx context.Context, o client.Object) []reconcile.Request {
	m, ok := o.(*infrav1.DroverMachine)
	if !ok || m.Spec.Creation.Token == "" || !predicates.Watched(m, r.WatchFilterValue) {
		return nil
	}
	left, err := r.withToken(ctx, r.Client, m.Spec.Creation.Token)
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Forgetting a deleted DroverMachine failed")
		return nil
	}
	r.forgetUnlessNeeded(m, left)
	var requests []reconcile.Request
	for i := range left {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&left[i])})
	}
	return requests
}

// forgetAbandoned ends the account's interest in a machine that is abandoned.
func (r *DroverMachineReconciler) forgetAbandoned(ctx context.Context, m *infrav1.DroverMachine) error {
	if m.Spec.Creation.Token == "" {
		return nil
	}
	all, err := r.withToken(ctx, r.Client, m.Spec.Creation.Token)
	if err == nil {
		r.forgetUnlessNeeded(m, all)
	}
	return err
}

func (r *DroverMachineReconciler) forgetUnlessNeeded(m *infrav1.DroverMachine, sameToken []infrav1.DroverMachine) {
	account := r.Accounts.Get(client.ObjectKey{Namespace: m.Namespace, Name: m.Spec.AccountRef.Name})
	if account != nil && !isTokenNeeded(m, sameToken) {
		account.Forget(m.Spec.Creation.Token)
	}
}

// isTokenNeeded reports whether another machine of a machine's account has its token.
func isTokenNeeded(is *infrav1.DroverMachine, sameToken []infrav1.DroverMachine) bool {
	return slices.ContainsFunc(sameToken, func(m infrav1.DroverMachine) bool {
		return (m.UID != is.UID || m.Name != is.Name) && m.Namespace == is.Namespace && m.Spec.AccountRef == is.Spec.AccountRef
	})
}
