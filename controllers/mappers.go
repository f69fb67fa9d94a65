// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
)

// machineInputsChanged passes the changes of a Machine that a DroverMachine waits for.
func machineInputsChanged(before, after *clusterv1.Machine) bool {
	return (before.Spec.Bootstrap.DataSecretName == nil) != (after.Spec.Bootstrap.DataSecretName == nil) ||
		before.Spec.FailureDomain != after.Spec.FailureDomain ||
		before.DeletionTimestamp.IsZero() != after.DeletionTimestamp.IsZero()
}

// clusterInputsChanged passes the changes of a Cluster that its DroverMachines wait for.
func clusterInputsChanged(before, after *clusterv1.Cluster) bool {
	return ptr.Deref(before.Spec.Paused, false) != ptr.Deref(after.Spec.Paused, false) ||
		ptr.Deref(before.Status.Initialization.InfrastructureProvisioned,
			false) != ptr.Deref(after.Status.Initialization.InfrastructureProvisioned, false)
}

// droverClusterInputsChanged passes the changes of a DroverCluster that machines without a VM wait
// for: its ownership ID, and the beginning and the end of an outage of the workload cluster's API
// server.
func droverClusterInputsChanged(before, after *infrav1.DroverCluster) bool {
	return before.Annotations[infrav1.UnreachableAnnotation] != after.Annotations[infrav1.UnreachableAnnotation] ||
		before.Spec.Creation.OwnershipID != after.Spec.Creation.OwnershipID
}

// droverClusterToUncreated returns the machines of a cluster that have no VM yet.
func (r *DroverMachineReconciler) droverClusterToUncreated(ctx context.Context, o client.Object) []reconcile.Request {
	uncreated := func(m *infrav1.DroverMachine) bool { return m.Spec.ProviderID == "" }
	return listMachines(ctx, r.Client, uncreated, client.InNamespace(o.GetNamespace()),
		client.MatchingLabels{clusterv1.ClusterNameLabel: o.GetLabels()[clusterv1.ClusterNameLabel]})
}

// accountGotWorse passes a DroverAccount whose problem, or whose deletion, machines without a VM
// report. When an account becomes ready, its reconciler enqueues them.
func accountGotWorse(before, after *infrav1.DroverAccount) bool {
	was, is := conditions.Get(before, clusterv1.ReadyCondition), conditions.Get(after, clusterv1.ReadyCondition)
	return before.DeletionTimestamp.IsZero() != after.DeletionTimestamp.IsZero() ||
		is != nil && is.Status != metav1.ConditionTrue && (was == nil || was.Reason != is.Reason || was.Message != is.Message)
}

// accountToUncreated returns the machines of an account that have no VM yet.
func (r *DroverMachineReconciler) accountToUncreated(ctx context.Context, o client.Object) []reconcile.Request {
	uncreated := func(m *infrav1.DroverMachine) bool { return m.Spec.ProviderID == "" }
	return listMachines(ctx, r.Client, uncreated, client.InNamespace(o.GetNamespace()), client.MatchingFields{machineByAccount: o.GetName()})
}

// clusterToMachines maps a Cluster to all its machines.
func clusterToMachines(reader client.Reader) handler.MapFunc {
	return func(ctx context.Context, o client.Object) []reconcile.Request {
		return listMachines(ctx, reader, nil, client.InNamespace(o.GetNamespace()),
			client.MatchingLabels{clusterv1.ClusterNameLabel: o.GetName()})
	}
}

// InstancesChanged enqueues the machines with these tokens. fleet.Options.OnMachines calls it.
func (r *DroverMachineReconciler) InstancesChanged(ctx context.Context, namespace string, tokens []string) {
	for _, token := range tokens {
		r.Changed.Add(listMachines(ctx, r.Client, nil, client.InNamespace(namespace), client.MatchingFields{machineByToken: token})...)
	}
}

// listMachines returns requests for the machines that match the options and for which keep returns
// true; a nil keep means all.
func listMachines(ctx context.Context, reader client.Reader, keep func(*infrav1.DroverMachine) bool,
	options ...client.ListOption) []reconcile.Request {
	return listRequests(ctx, reader, &infrav1.DroverMachineList{}, keep, options...)
}

// listRequests returns requests for the objects of a list that match the options and for which keep
// returns true; a nil keep means all.
func listRequests[T client.Object](ctx context.Context, reader client.Reader, list client.ObjectList, keep func(T) bool,
	options ...client.ListOption) (requests []reconcile.Request) {
	err := reader.List(ctx, list, options...)
	if err == nil {
		err = meta.EachListItem(list, func(item runtime.Object) error {
			if o, ok := item.(T); ok && (keep == nil || keep(o)) {
				requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(o)})
			}
			return nil
		})
	}
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Listing objects to reconcile failed", "list", fmt.Sprintf("%T", list))
		return nil
	}
	return requests
}

// secretToAccounts returns the accounts whose credentials are in the Secret.
func secretToAccounts(reader client.Reader) handler.MapFunc {
	return func(ctx context.Context, secret client.Object) []reconcile.Request {
		return listRequests[*infrav1.DroverAccount](ctx, reader, &infrav1.DroverAccountList{}, nil,
			client.InNamespace(secret.GetNamespace()), client.MatchingFields{accountByCredentials: secret.GetName()})
	}
}

// accountToSecret is called with an account as it was, too, so that a Secret to which it no longer
// refers is reconciled.
func accountToSecret(_ context.Context, o client.Object) []reconcile.Request {
	account, ok := o.(*infrav1.DroverAccount)
	if !ok || account.Spec.CredentialsRef.Name == "" {
		return nil
	}
	return []reconcile.Request{{NamespacedName: client.ObjectKey{Namespace: account.Namespace, Name: account.Spec.CredentialsRef.Name}}}
}

// accountIfDeleted returns an account that is being deleted: it waits for what is in it.
func accountIfDeleted(_ context.Context, account client.Object) []reconcile.Request {
	if account.GetDeletionTimestamp().IsZero() {
		return nil
	}
	return []reconcile.Request{{NamespacedName: client.ObjectKeyFromObject(account)}}
}

// ofAccount returns what requests returns for the account that a DroverMachine, or the load
// balancer of a DroverCluster, is in. An account that does not exist has nothing to reconcile: its
// deletion is an event itself.
func ofAccount(reader client.Reader, requests handler.MapFunc) handler.MapFunc {
	return func(ctx context.Context, o client.Object) []reconcile.Request {
		key := client.ObjectKey{Namespace: o.GetNamespace()}
		switch o := o.(type) {
		case *infrav1.DroverMachine:
			key.Name = o.Spec.AccountRef.Name
		case *infrav1.DroverCluster:
			key.Name = o.Spec.Endpoint.LoadBalancer.AccountRef.Name
		}
		account := &infrav1.DroverAccount{}
		if key.Name == "" || reader.Get(ctx, key, account) != nil {
			return nil
		}
		return requests(ctx, account)
	}
}
