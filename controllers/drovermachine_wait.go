// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"fmt"
	"time"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
)

// statusGracePeriod is how long a new DroverMachine may wait before its status says what it waits
// for. Cluster API creates the Machine, its bootstrap data and the rest in quick succession. The
// delay saves one write per machine, and the work that Cluster API does after each write.
const statusGracePeriod = 10 * time.Second

// gracePeriodLeft returns how much of statusGracePeriod is left. It returns 0 for a creation time
// in the future, which happens when clocks differ.
func gracePeriodLeft(created time.Time) time.Duration {
	age := time.Since(created)
	if age < 0 {
		return 0
	}
	return statusGracePeriod - age
}

// pause ends the reconcile of a paused machine. A machine that was never paused gets its Paused
// condition with the first other change of its status.
func (r *DroverMachineReconciler) pause(_ context.Context, s *machineScope) (*reconcile.Result, error) {
	if paused := isPaused(s.DroverMachine, s.cluster); !paused && !conditions.IsTrue(s.DroverMachine, clusterv1.PausedCondition) {
		return nil, nil
	}
	if setPaused(s.DroverMachine, s.cluster) {
		return &reconcile.Result{}, nil
	}
	return nil, nil
}

// wait ends the reconcile of a new machine without an owner, and of a machine without a VM that
// lacks something. A new machine says what it waits for only after a grace period.
func (r *DroverMachineReconciler) wait(_ context.Context, s *machineScope) (*reconcile.Result, error) {
	grace := gracePeriodLeft(s.CreationTimestamp.Time)
	if s.owner == nil && grace > 0 {
		return &reconcile.Result{RequeueAfter: grace}, nil
	}
	if s.Spec.ProviderID != "" {
		return nil, nil
	}
	reason, message := missingPrerequisite(s)
	if reason == "" {
		return nil, nil
	}
	if grace > 0 && readyReason(s.DroverMachine) == "" {
		return &reconcile.Result{RequeueAfter: grace}, nil
	}
	setNotReady(s.DroverMachine, reason, message)
	return &reconcile.Result{}, nil
}

// missingPrerequisite returns what is missing before the machine can be created, as a reason and a
// sentence; "" if nothing is missing. The end of each wait comes as an event. The account is
// checked before the user data, which may need it (bootstrap.ConfigReconciler.Host).
func missingPrerequisite(s *machineScope) (reason, message string) {
	switch {
	case s.owner == nil:
		return infrav1.WaitingForOwnerReason, "Waiting for a Machine to own this object"
	case !s.owner.DeletionTimestamp.IsZero():
		return infrav1.WaitingForMachineDeletionReason, "The Machine is being deleted, so no VM is created"
	case s.cluster == nil:
		return infrav1.WaitingForClusterReason, fmt.Sprintf("Waiting for Cluster %q to exist", s.owner.Spec.ClusterName)
	case s.cluster.Status.Initialization.InfrastructureProvisioned == nil || !*s.cluster.Status.Initialization.InfrastructureProvisioned:
		return infrav1.WaitingForClusterReason, fmt.Sprintf("Waiting for the infrastructure of Cluster %q to be provisioned", s.cluster.Name)
	case s.ownershipID == "" && s.isExternallyManaged:
		return infrav1.WaitingForClusterReason, fmt.Sprintf("The DroverCluster of Cluster %q has no ownership ID: the controller that manages it, by the annotation %s, must set spec.creation.ownershipID when it creates it",
			s.cluster.Name, clusterv1.ManagedByAnnotation)
	case s.ownershipID == "":
		return infrav1.WaitingForClusterReason, fmt.Sprintf("Waiting for the DroverCluster of Cluster %q to get its ownership ID", s.cluster.Name)
	case s.unreachable != "" && !util.IsControlPlaneMachine(s.owner):
		return infrav1.WaitingForAPIServerReason, fmt.Sprintf("Waiting for the API server of Cluster %q, which has not answered since %s: a VM could not join as a Node",
			s.cluster.Name, s.unreachable)
	case s.account == nil:
		return infrav1.WaitingForAccountReason, fmt.Sprintf("Waiting for DroverAccount %q in this namespace to be connected", s.Spec.AccountRef.Name)
	case !s.account.Cloud().Union.InMachine(&s.Spec.DroverMachineFields):
		return infrav1.InvalidSpecReason, fmt.Sprintf("DroverAccount %q is for cloud %q, but this machine has the fields of another cloud: create a new template",
			s.Spec.AccountRef.Name, s.account.Cloud().Name)
	case s.owner.Spec.Bootstrap.DataSecretName == nil:
		return infrav1.WaitingForBootstrapDataReason, fmt.Sprintf("Waiting for the bootstrap data of Machine %q", s.owner.Name)
	}
	return "", ""
}
