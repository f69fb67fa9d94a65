// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"

	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
)

// machineInputsChanged passes the changes of a Machine that a CloudMachine waits for.
func machineInputsChanged(before, after *clusterv1.Machine) bool {
	return (before.Spec.Bootstrap.DataSecretName == nil) != (after.Spec.Bootstrap.DataSecretName == nil) ||
		before.Spec.FailureDomain != after.Spec.FailureDomain ||
		before.DeletionTimestamp.IsZero() != after.DeletionTimestamp.IsZero()
}

// clusterInputsChanged passes the changes of a Cluster that its CloudMachines wait for.
func clusterInputsChanged(before, after *clusterv1.Cluster) bool {
	return ptr.Deref(before.Spec.Paused, false) != ptr.Deref(after.Spec.Paused, false) ||
		ptr.Deref(before.Status.Initialization.InfrastructureProvisioned, false) != ptr.Deref(after.Status.Initialization.InfrastructureProvisioned, false)
}

// cloudClusterInputsChanged passes the changes of a CloudCluster that machines without a VM wait
// for: its ownership ID, and the beginning and the end of an outage of the workload cluster's API
// server.
func cloudClusterInputsChanged(before, after *infrav1.CloudCluster) bool {
	return before.Annotations[infrav1.UnreachableAnnotation] != after.Annotations[infrav1.UnreachableAnnotation] ||
		before.Spec.Creation.OwnershipID != after.Spec.Creation.OwnershipID
}

// cloudClusterToUncreated returns the machines of a cluster that have no VM yet.
func (r *CloudMachineReconciler) cloudClusterToUncreated(ctx context.Context, o client.Object) []reconcile.Request {
	uncreated := func(m *infrav1.CloudMachine) bool { return m.Spec.ProviderID == "" }
	return listMachines(ctx, r.Client, uncreated, client.InNamespace(o.GetNamespace()),
		client.MatchingLabels{clusterv1.ClusterNameLabel: o.GetLabels()[clusterv1.ClusterNameLabel]})
}

// clusterToMachines maps a Cluster to all its machines.
func clusterToMachines(reader client.Reader) handler.MapFunc {
	return func(ctx context.Context, o client.Object) []reconcile.Request {
		return listMachines(ctx, reader, nil, client.InNamespace(o.GetNamespace()), client.MatchingLabels{clusterv1.ClusterNameLabel: o.GetName()})
	}
}

// InstancesChanged enqueues the machines with these tokens. fleet.Options.OnMachines calls it.
func (r *CloudMachineReconciler) InstancesChanged(ctx context.Context, namespace string, tokens []string) {
	for _, token := range tokens {
		r.Changed.Add(listMachines(ctx, r.Client, nil, client.InNamespace(namespace), client.MatchingFields{machineByToken: token})...)
	}
}

// listMachines returns requests for the machines that match the options and for which keep returns
// true; a nil keep means all.
func listMachines(ctx context.Context, reader client.Reader, keep func(*infrav1.CloudMachine) bool, options ...client.ListOption) []reconcile.Request {
	machines := &infrav1.CloudMachineList{}
	if err := reader.List(ctx, machines, options...); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Listing CloudMachines failed")
		return nil
	}
	var requests []reconcile.Request
	for i := range machines.Items {
		if m := &machines.Items[i]; keep == nil || keep(m) {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(m)})
		}
	}
	return requests
}
