// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
)

// deletionRecheck is how often a deletion is checked. It is a safety net: the progress comes as
// events.
const deletionRecheck = 2 * time.Minute

// delete deletes the VM, and removes the finalizer only after a live read of the cloud has shown
// that nothing is left. It needs neither the Cluster, the template nor the bootstrap data: token
// and account are enough.
func (r *DroverMachineReconciler) delete(ctx context.Context, s *machineScope) (*reconcile.Result, error) {
	if s.DeletionTimestamp.IsZero() {
		return nil, nil
	}
	if !controllerutil.ContainsFinalizer(s, infrav1.MachineFinalizer) {
		return &reconcile.Result{}, nil
	}
	if s.Spec.ProviderID == "" && (s.Spec.Creation.Token == "" || r.attempts.get(s.DroverMachine) == attemptNotSent) {
		return &reconcile.Result{}, r.release(ctx, s) // nothing was ever sent
	}
	if s.Annotations[infrav1.AbandonAnnotation] == s.Name {
		r.recordAbandoned(s)
		if err := r.forgetAbandoned(ctx, s.DroverMachine); err != nil { // a deletion that waits must not go on
			return nil, err
		}
		return &reconcile.Result{}, r.release(ctx, s)
	}
	begun := readyReason(s.DroverMachine) == infrav1.DeletingReason
	if s.account == nil { // its return comes as an event
		problem, err := missingAccount(ctx, r.Client, client.ObjectKey{Namespace: s.Namespace, Name: s.Spec.AccountRef.Name})
		if err == nil && problem != "" {
			reason := infrav1.WaitingForAccountReason
			if begun { // deleteVM of the next process must know it
				reason = infrav1.DeletingReason
			}
			setNotReady(s.DroverMachine, reason, fmt.Sprintf(
				"The VM can't be deleted: %s; fix the account, or annotate this object with %s=%s to remove it and leave the VM running",
				problem, infrav1.AbandonAnnotation, s.Name))
		}
		return &reconcile.Result{RequeueAfter: jitter(deletionRecheck)}, err
	}
	r.Nodes.cancel(s.DroverMachine, removeGoneNode) // a user's deletion removes the Node without a limit
	if stopped, err := r.stopOnDuplicate(ctx, s, begun); stopped || err != nil {
		return &reconcile.Result{RequeueAfter: jitter(deletionRecheck)}, err
	}
	if s.Spec.ProviderID != "" && !begun {
		if waiting := r.adoptNode(ctx, s, s.Spec.ProviderID, s.Status.Addresses); waiting != nil {
			return waiting, nil
		}
	}
	return r.deleteVM(ctx, s, begun)
}

// deleteVM starts the deletion of the VM, or takes the step that its progress asks for.
func (r *DroverMachineReconciler) deleteVM(ctx context.Context, s *machineScope, begun bool) (*reconcile.Result, error) {
	if r.attempts.get(s.DroverMachine) == attemptRefused {
		s.account.CreateRefused(s.Spec.Creation.Token)
	}
	r.recordDeletion(ctx, s, begun)
	asked := s.DeletionTimestamp.Time
	if !begun { // no earlier process has sent it
		asked = time.Now()
	}
	deletion := s.account.Delete(s.reference(), asked)
	switch {
	case s.Spec.ProviderID == "" && deletion.Instance != nil:
		if waiting := r.adoptNode(ctx, s, deletion.Instance.ProviderID, deletion.Instance.Addresses); waiting != nil {
			return waiting, nil
		}
		return &reconcile.Result{}, r.record(ctx, s, deletion.Instance.ProviderID) // the record comes back as an event, which deletes the VM
	case deletion.Gone:
		if waiting := r.removeNode(ctx, s); waiting != nil {
			return waiting, nil
		}
		r.recordDeleted(s)
		return &reconcile.Result{}, r.release(ctx, s)
	case deletion.Err != nil:
		setNotReady(s.DroverMachine, cloudReason(cloud.CodeOf(deletion.Err)), fmt.Sprintf(
			"Deleting the VM failed and will be retried: %s; to remove this object and leave the VM running, annotate it with %s=%s",
			cloudMessage(deletion.Err), infrav1.AbandonAnnotation, s.Name))
	default:
		setNotReady(s.DroverMachine, infrav1.DeletingReason, "Waiting for the cloud to delete the VM and its resources")
	}
	return &reconcile.Result{RequeueAfter: jitter(deletionRecheck)}, nil
}

// stopOnDuplicate reports whether another object has the machine's token. It bypasses the cache
// until the deletion has begun.
func (r *DroverMachineReconciler) stopOnDuplicate(ctx context.Context, s *machineScope, begun bool) (bool, error) {
	if s.Spec.Creation.Token == "" {
		return false, nil
	}
	reader := r.APIReader
	if begun {
		reader = r.Client
	}
	withToken, err := r.withToken(ctx, reader, s.Spec.Creation.Token)
	if err != nil {
		return false, err
	}
	return reportDuplicate(ctx, r.Client, s, withToken)
}

// adoptNode lets NodeReconciler set the provider ID of the VM on its Node, if the Node has none.
// After the VM is gone, another VM may get its address, and the Node to remove could not be
// identified. It returns nil when the deletion may go on.
func (r *DroverMachineReconciler) adoptNode(ctx context.Context, s *machineScope, providerID string,
	addresses []clusterv1.MachineAddress) *reconcile.Result {
	if s.cluster == nil || len(addresses) == 0 || (s.owner != nil && s.owner.Status.NodeRef.IsDefined()) {
		return nil
	}
	return r.waitForNode(ctx, s, nodeTask{kind: adoptNode, providerID: providerID, addresses: addresses},
		infrav1.WaitingForAPIServerReason, "Waiting up to two minutes for the workload cluster, to find the Node to remove with the VM")
}

// removeNode lets NodeReconciler remove the Node, because Cluster API may not. Cluster API leaves
// Nodes alone while the whole Cluster is deleted, although an adopted cluster lives on. It does not
// know the Node of a Machine that was deleted right after it joined. And it gives up after ten
// seconds without a connection, because its nodeDeletionTimeoutSeconds has run out while the VM was
// deleted. It returns nil when the deletion may go on.
func (r *DroverMachineReconciler) removeNode(ctx context.Context, s *machineScope) *reconcile.Result {
	if s.cluster == nil || s.Spec.ProviderID == "" {
		return nil
	}
	return r.waitForNode(ctx, s, nodeTask{kind: removeDeletedNode, providerID: s.Spec.ProviderID},
		infrav1.DeletingReason, "The VM is deleted; waiting up to two minutes for the workload cluster to remove its Node")
}

// nodeTimeout is how long a deletion waits at most for a workload cluster that does not answer.
const nodeTimeout = 2 * time.Minute

// waitForNode returns nil once NodeReconciler has done the task, or has failed and there is no more
// time: the work on Nodes is best effort, and does not delay a deletion for long. Once an attempt
// has failed, Ready says the reason and the message.
func (r *DroverMachineReconciler) waitForNode(ctx context.Context, s *machineScope, task nodeTask, reason,
	message string) *reconcile.Result {
	if neverServed(s) {
		return nil
	}
	result := r.Nodes.request(s.DroverMachine, task)
	// The wait of an earlier process does not count, because this process has to connect first.
	late := min(time.Since(s.DeletionTimestamp.Time), time.Since(r.started)) >= nodeTimeout
	failed := result.err != nil && (late || !s.cluster.DeletionTimestamp.IsZero())
	unanswered := late && time.Since(result.requested) >= 3*nodeRetry
	switch {
	case result.done:
		return nil
	case failed, unanswered:
		ctrl.LoggerFrom(ctx).Info("Leaving the Node of a deleted machine, because the workload cluster does not answer",
			"providerID", task.providerID, "reason", result.err)
		return nil
	case result.err != nil:
		setNotReady(s.DroverMachine, reason, message)
	}
	return &reconcile.Result{RequeueAfter: jitter(nodeRetry)} // the result comes as an event, the timeout does not
}

// neverServed reports whether the machine is of a control plane that never came up: no API server
// has its Node. A worker may have a Node although its Cluster does not say that it is initialized:
// after a move, until the control plane's controller has written its status again.
func neverServed(s *machineScope) bool {
	return s.owner != nil && util.IsControlPlaneMachine(s.owner) && !ptr.Deref(s.cluster.Status.Initialization.ControlPlaneInitialized, false)
}

// release removes the finalizer. A cache that lags behind does not prevent this, because whatever
// was sent under a token is settled for good. Only a machine without a token must be unchanged
// since it was read, because it may have been claimed.
func (r *DroverMachineReconciler) release(ctx context.Context, s *machineScope) error {
	i := slices.Index(s.Finalizers, infrav1.MachineFinalizer)
	finalizer := fmt.Sprintf("/metadata/finalizers/%d", i)
	patch := []jsonPatch{
		{"test", "/metadata/uid", string(s.UID)},
		{"test", finalizer, infrav1.MachineFinalizer},
		{"remove", finalizer, ""},
	}
	if s.Spec.Creation.Token == "" {
		patch = append(patch, jsonPatch{"test", "/metadata/resourceVersion", s.ResourceVersion})
	}
	data, err := json.Marshal(patch)
	if err != nil {
		return fmt.Errorf("removing the finalizer: %w", err)
	}
	if err := r.Client.Patch(ctx, s.DeepCopy(), client.RawPatch(types.JSONPatchType, data)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("removing the finalizer: %w", err)
	}
	r.retries.forget(s.key())
	return nil
}

// jsonPatch is one operation of RFC 6902.
type jsonPatch struct {
	Operation string `json:"op"`
	Path      string `json:"path"`
	Value     string `json:"value,omitempty"`
}
