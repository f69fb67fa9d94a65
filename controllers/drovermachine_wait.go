// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"cmp"
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
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
func (r *DroverMachineReconciler) wait(ctx context.Context, s *machineScope) (*reconcile.Result, error) {
	grace := gracePeriodLeft(s.CreationTimestamp.Time)
	if s.owner == nil && grace > 0 {
		return &reconcile.Result{RequeueAfter: grace}, nil
	}
	if s.Spec.ProviderID != "" {
		return nil, nil
	}
	reason, message, err := r.missingPrerequisite(ctx, s)
	if reason == "" || err != nil {
		return nil, err
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
func (r *DroverMachineReconciler) missingPrerequisite(ctx context.Context, s *machineScope) (reason, message string, err error) {
	if reason, message = missingOfCluster(s); reason != "" {
		return reason, message, nil
	}
	if reason, message, err = r.missingOfAccount(ctx, s); reason != "" || err != nil {
		return reason, message, err
	}
	if s.owner.Spec.Bootstrap.DataSecretName == nil {
		return infrav1.WaitingForBootstrapDataReason, fmt.Sprintf("Waiting for the bootstrap data of Machine %q", s.owner.Name), nil
	}
	return "", "", nil
}

// missingOfCluster returns what is missing of the machine's owner and its cluster.
func missingOfCluster(s *machineScope) (reason, message string) {
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
		return infrav1.WaitingForClusterReason, fmt.Sprintf(
			"The DroverCluster of Cluster %q has no ownership ID: the controller that manages it, by the annotation %s, must set spec.creation.ownershipID when it creates it",
			s.cluster.Name, clusterv1.ManagedByAnnotation)
	case s.ownershipID == "":
		return infrav1.WaitingForClusterReason, fmt.Sprintf("Waiting for the DroverCluster of Cluster %q to get its ownership ID", s.cluster.Name)
	case s.unreachable != "" && !util.IsControlPlaneMachine(s.owner):
		return infrav1.WaitingForAPIServerReason, fmt.Sprintf(
			"Waiting for the API server of Cluster %q, which has not answered since %s: a VM could not join as a Node",
			s.cluster.Name, s.unreachable)
	}
	return "", ""
}

// missingOfAccount returns why nothing can be created in the machine's account. If an earlier
// create has made a VM that is not recorded yet, the machine's deletion finds it by the token.
func (r *DroverMachineReconciler) missingOfAccount(ctx context.Context, s *machineScope) (reason, message string, err error) {
	name := s.Spec.AccountRef.Name
	account, err := readAccount(ctx, r.Client, client.ObjectKey{Namespace: s.Namespace, Name: name})
	if err != nil {
		return "", "", err
	}
	switch {
	case account != nil && !account.DeletionTimestamp.IsZero():
		return infrav1.AccountDeletingReason, fmt.Sprintf(
			"DroverAccount %q is being deleted, which can't be undone, so no VM is created in it: delete this pool, "+
				"or create another DroverAccount and a DroverMachineTemplate that refers to it, and set the template's name in the MachineDeployment",
			name), nil
	case s.account == nil || !s.account.Probed():
		return infrav1.WaitingForAccountReason, cmp.Or(accountProblem(name, account),
			fmt.Sprintf("Waiting for DroverAccount %q to be connected", name)), nil
	case !s.account.Cloud().Union.InMachine(&s.Spec.DroverMachineFields):
		return infrav1.InvalidSpecReason, fmt.Sprintf(
			"DroverAccount %q is for cloud %q, but this machine has the fields of another cloud: create another DroverMachineTemplate "+
				"with spec.cloud.%[2]s, and set its name in the MachineDeployment", name, s.account.Cloud().Name), nil
	}
	return "", "", nil
}

// readAccount returns a DroverAccount; nil if it does not exist.
func readAccount(ctx context.Context, reader client.Reader, key client.ObjectKey) (*infrav1.DroverAccount, error) {
	account := &infrav1.DroverAccount{}
	err := reader.Get(ctx, key, account)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading DroverAccount %q: %w", key.Name, err)
	}
	return account, nil
}

// missingAccount says why an account is not connected, for those who need it for a deletion; "" if
// it is about to be, as after a start.
func missingAccount(ctx context.Context, reader client.Reader, key client.ObjectKey) (string, error) {
	account, err := readAccount(ctx, reader, key)
	if err != nil || account != nil && conditions.GetReason(account, clusterv1.ReadyCondition) == infrav1.InUseReason {
		return "", err
	}
	return accountProblem(key.Name, account), nil
}

// accountProblem says why an account does not work; "" if it says that it does. account is nil if
// it does not exist.
func accountProblem(name string, account *infrav1.DroverAccount) string {
	if account == nil {
		return fmt.Sprintf("Waiting for DroverAccount %q to exist in this namespace", name)
	}
	switch ready := conditions.Get(account, clusterv1.ReadyCondition); {
	case ready == nil:
		return fmt.Sprintf("Waiting for DroverAccount %q to be connected", name)
	case ready.Status != metav1.ConditionTrue:
		return fmt.Sprintf("DroverAccount %q is not ready: %s: %s", name, ready.Reason, ready.Message)
	}
	return ""
}
