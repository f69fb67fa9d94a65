// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/internal/conflict"
)

// holdCredentials adds the finalizer, and the label for "clusterctl move", to a Secret with an
// account's credentials.
func holdCredentials(ctx context.Context, c client.Client, secret *corev1.Secret) error {
	before := secret.DeepCopy()
	changed := setMoveLabel(secret)
	if secret.DeletionTimestamp.IsZero() { // later the API server accepts no finalizer
		changed = controllerutil.AddFinalizer(secret, infrav1.CredentialsFinalizer) || changed
	}
	if !changed {
		return nil
	}
	if err := c.Patch(ctx, secret, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("adding the finalizer to Secret %q: %w", secret.Name, err)
	}
	return nil
}

// CredentialsReconciler removes the finalizer of Secrets with credentials once no DroverAccount
// needs it. DroverAccountReconciler adds it.
type CredentialsReconciler struct {
	Client    client.Client
	APIReader client.Reader
}

// +kubebuilder:rbac:groups="",resources=secrets,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=get
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=droveraccounts;droverclusters;drovermachines,verbs=get;list;watch

// SetupWithManager registers the reconciler.
func (r *CredentialsReconciler) SetupWithManager(mgr ctrl.Manager, options controller.Options) error {
	held := predicate.NewPredicateFuncs(func(o client.Object) bool {
		return controllerutil.ContainsFinalizer(o, infrav1.CredentialsFinalizer)
	})
	return builder.ControllerManagedBy(mgr).
		For(&corev1.Secret{}, builder.OnlyMetadata, builder.WithPredicates(held)).
		Watches(&infrav1.DroverAccount{}, handler.EnqueueRequestsFromMapFunc(accountToSecret)).
		Watches(&infrav1.DroverMachine{}, handler.EnqueueRequestsFromMapFunc(ofAccount(r.Client, accountToSecret)),
			builder.WithPredicates(onlyDeleted())).
		Watches(&infrav1.DroverCluster{}, handler.EnqueueRequestsFromMapFunc(ofAccount(r.Client, accountToSecret)),
			builder.WithPredicates(onUpdate(endpointReleased))).
		WithOptions(options).
		Named("credentials").
		Complete(conflict.Retried(r))
}

// endpointReleased passes the change after which a DroverCluster needs no account any more.
func endpointReleased(before, after *infrav1.DroverCluster) bool {
	return controllerutil.ContainsFinalizer(before, infrav1.EndpointFinalizer) &&
		!controllerutil.ContainsFinalizer(after, infrav1.EndpointFinalizer)
}

// Reconcile removes the finalizer of one Secret if no account needs it.
func (r *CredentialsReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	secret := &metav1.PartialObjectMetadata{}
	secret.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
	if err := r.Client.Get(ctx, req.NamespacedName, secret); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if !controllerutil.ContainsFinalizer(secret, infrav1.CredentialsFinalizer) {
		return reconcile.Result{}, nil
	}
	if needed, err := r.isNeeded(ctx, secret); needed || err != nil {
		return reconcile.Result{}, err
	}
	before := secret.DeepCopy()
	controllerutil.RemoveFinalizer(secret, infrav1.CredentialsFinalizer)
	if err := r.Client.Patch(ctx, secret, client.MergeFromWithOptions(before,
		client.MergeFromWithOptimisticLock{})); client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, fmt.Errorf("removing the finalizer from Secret %q: %w", secret.Name, err)
	}
	return reconcile.Result{}, nil
}

// isNeeded reports whether an account needs the Secret. Without its label, none does: this is how a
// user takes the credentials away. With it, the Secret stays although somebody deletes it while
// VMs or a load balancer can be deleted only with it, and in a namespace that is being deleted,
// where the rest may go in any order.
func (r *CredentialsReconciler) isNeeded(ctx context.Context, secret client.Object) (bool, error) {
	accounts := &infrav1.DroverAccountList{}
	if err := r.Client.List(ctx, accounts, client.InNamespace(secret.GetNamespace()),
		client.MatchingFields{accountByCredentials: secret.GetName()}); err != nil {
		return false, fmt.Errorf("listing the DroverAccounts of Secret %q: %w", secret.GetName(), err)
	}
	if _, labeled := secret.GetLabels()[infrav1.CredentialsLabel]; len(accounts.Items) == 0 || !labeled {
		return false, nil
	}
	if secret.GetDeletionTimestamp().IsZero() {
		return true, nil
	}
	for i := range accounts.Items {
		if needed, err := isNeeded(ctx, r.Client, r.APIReader, client.ObjectKeyFromObject(&accounts.Items[i])); needed || err != nil {
			return needed, err
		}
	}
	namespace := &corev1.Namespace{}
	if err := r.APIReader.Get(ctx, client.ObjectKey{Name: secret.GetNamespace()}, namespace); client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("reading the namespace of Secret %q: %w", secret.GetName(), err)
	}
	return !namespace.DeletionTimestamp.IsZero(), nil
}

// isNeeded reports whether a machine or a load balancer needs an account for its own deletion.
func isNeeded(ctx context.Context, cache, api client.Reader, account client.ObjectKey) (bool, error) {
	machines, cluster, err := usersOf(ctx, cache, api, account)
	return len(machines) > 0 || cluster != "", err
}

// usersOf returns the machines in an account. If there are none, it returns the name of a
// DroverCluster whose load balancer is in the account, or "". It asks the API server for that: the
// cache may not have the DroverCluster yet.
func usersOf(ctx context.Context, cache, api client.Reader,
	account client.ObjectKey) (machines []infrav1.DroverMachine, cluster string, err error) {
	machines, err = machinesThatRemain(ctx, cache, api, client.InNamespace(account.Namespace),
		client.MatchingFields{machineByAccount: account.Name})
	if err != nil || len(machines) > 0 {
		return machines, "", err
	}
	list := &infrav1.DroverClusterList{}
	if err := api.List(ctx, list, client.InNamespace(account.Namespace)); err != nil {
		return nil, "", fmt.Errorf("listing the DroverClusters: %w", err)
	}
	for i := range list.Items {
		c := &list.Items[i]
		if c.Spec.Endpoint.LoadBalancer.AccountRef.Name == account.Name && controllerutil.ContainsFinalizer(c, infrav1.EndpointFinalizer) {
			return nil, c.Name, nil
		}
	}
	return nil, "", nil
}
