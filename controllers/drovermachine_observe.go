// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
)

// notListed is the message of Ready between the create and the first listing that shows the VM.
const notListed = "Waiting for the VM to appear in the account's listing"

// observe writes what the account's inventory knows about the VM, and what NodeReconciler knows of
// its Node. It makes no call, because changes come as events.
func (r *DroverMachineReconciler) observe(_ context.Context, s *machineScope) (*reconcile.Result, error) {
	if s.account == nil {
		// The VM runs on without its account. Known status stays, and only a machine that is not
		// provisioned reports that it waits.
		if !isProvisioned(s.DroverMachine) {
			setNotReady(s.DroverMachine, infrav1.WaitingForAccountReason,
				fmt.Sprintf("Waiting for DroverAccount %q to be connected", s.Spec.AccountRef.Name))
		}
		return &reconcile.Result{}, nil
	}
	seen := s.account.Observe(s.reference(), s.Status.InstanceState != "")
	if len(seen.Duplicates) <= 1 && seen.Gone {
		r.reportGone(s, seen.Instance)
		if s.instance = seen.Instance; s.instance == nil {
			return &reconcile.Result{}, nil
		}
		return nil, nil // it may have ended for lack of capacity, and then its Machine is replaced
	}
	r.Nodes.cancel(s.DroverMachine, removeGoneNode)
	switch {
	case len(seen.Duplicates) > 1:
		setNotReady(s.DroverMachine, infrav1.DuplicateInstancesReason, fmt.Sprintf(
			"More than one VM has this machine's token: %s; delete all but one of them, until then Drover changes nothing",
			strings.Join(seen.Duplicates, ", ")))
		return &reconcile.Result{}, nil
	case seen.Err != nil:
		setNotReady(s.DroverMachine, cloudReason(cloud.CodeOf(seen.Err)),
			fmt.Sprintf("VM %s can't be recognized: %s", s.Spec.ProviderID, cloudMessage(seen.Err)))
		return &reconcile.Result{}, nil
	case seen.NeverSeen:
		setNotReady(s.DroverMachine, infrav1.NeverSeenReason, fmt.Sprintf(
			"VM %[2]s with the tags %[3]s=%[4]s and %[5]s=%[6]s was never found in DroverAccount %[1]q; if the VM exists, add these tags to it; if not, delete the Machine",
			s.Spec.AccountRef.Name, s.Spec.ProviderID, cloud.TagOwnership, s.ownershipID, cloud.TagToken, s.Spec.Creation.Token))
		return &reconcile.Result{}, nil
	case seen.Instance == nil:
		if !isProvisioned(s.DroverMachine) && s.Status.InstanceState != infrav1.InstanceStateGone {
			setNotReady(s.DroverMachine, infrav1.StartingReason, notListed)
		}
		return &reconcile.Result{}, nil
	}
	s.instance = seen.Instance
	report(s.DroverMachine, s.instance)
	if ip := s.virtualIP; ip != "" { // VMware Tools report it, too
		s.Status.Addresses = slices.DeleteFunc(s.Status.Addresses, func(a clusterv1.MachineAddress) bool { return a.Address == ip })
		s.Status.GuestReportedAddresses = slices.DeleteFunc(slices.Clone(s.Status.GuestReportedAddresses), func(a string) bool { return a == ip })
	}
	if link, known := r.Nodes.link(s.DroverMachine); known && isProvisioned(s.DroverMachine) {
		setNodeJoined(s.DroverMachine, link)
	}
	return nil, nil
}

// reportGone reports that the VM is gone, and lets NodeReconciler remove its Node. The report is
// undone when the account sees the VM again.
func (r *DroverMachineReconciler) reportGone(s *machineScope, last *cloud.Resource) {
	s.Status.InstanceState = infrav1.InstanceStateGone
	setCondition(s.DroverMachine, infrav1.MachineInstanceHealthyCondition, metav1.ConditionFalse, infrav1.InstanceGoneReason, "")
	message := fmt.Sprintf("VM %s is gone from the cloud", s.Spec.ProviderID)
	if last != nil && last.Reason != "" {
		message += " (" + last.Reason + ")"
	}
	message += "; delete the Machine, or let a MachineHealthCheck replace it"
	if removal := r.Nodes.request(s.DroverMachine, nodeTask{kind: removeGoneNode, providerID: s.Spec.ProviderID}); removal.held {
		message += "; its Node stays for now, because many VMs are gone and Drover limits how fast it removes their Nodes"
	}
	setNotReady(s.DroverMachine, infrav1.InstanceGoneReason, message)
}

// report copies an instance into the status.
func report(machine *infrav1.DroverMachine, instance *cloud.Resource) {
	status := &machine.Status
	status.InstanceState = infrav1.InstanceState(instance.State)
	if instance.FailureDomain != "" {
		status.FailureDomain = instance.FailureDomain
	}
	if instance.ImageID != "" {
		status.ImageID = instance.ImageID
	}
	if instance.Interruptible {
		status.Interruptible = ptr.To(true)
	}
	if len(instance.Addresses) > 0 {
		status.GuestReportedAddresses = instance.GuestReported
		status.Addresses = append([]clusterv1.MachineAddress{{Type: clusterv1.MachineHostName, Address: machine.Name}}, instance.Addresses...)
	}
	setInstanceHealthy(machine, instance)
	switch instance.State {
	case cloud.StateRunning:
		status.Initialization.Provisioned = ptr.To(true)
		setReady(machine)
	case cloud.StatePending:
		message := "Waiting for the VM to run"
		if instance.Reason != "" {
			message += ": " + instance.Reason
		}
		setNotReady(machine, cmp.Or(cloudReason(instance.Code), infrav1.StartingReason), message)
	default:
		message := fmt.Sprintf("VM %s is %s", machine.Spec.ProviderID, strings.ToLower(string(instance.State)))
		if instance.Reason != "" {
			message += ": " + instance.Reason
		}
		setNotReady(machine, cmp.Or(cloudReason(instance.Code), infrav1.InstanceStoppedReason), message)
	}
}

// setInstanceHealthy reports what the cloud announces about the VM, or that it stopped.
func setInstanceHealthy(machine *infrav1.DroverMachine, instance *cloud.Resource) {
	status, reason := metav1.ConditionTrue, infrav1.InstanceHealthyReason
	switch {
	case instance.Notice != "":
		status, reason = metav1.ConditionFalse, infrav1.CloudNoticeReason
	case instance.State == cloud.StatePending:
		status, reason = metav1.ConditionUnknown, infrav1.StartingReason
	case instance.State != cloud.StateRunning:
		status, reason = metav1.ConditionFalse, infrav1.InstanceStoppedReason
	}
	setCondition(machine, infrav1.MachineInstanceHealthyCondition, status, reason, instance.Notice)
}

func isProvisioned(machine *infrav1.DroverMachine) bool {
	return ptr.Deref(machine.Status.Initialization.Provisioned, false)
}

func readyReason(machine *infrav1.DroverMachine) string {
	if c := conditions.Get(machine, clusterv1.ReadyCondition); c != nil {
		return c.Reason
	}
	return ""
}

func readyMessage(machine *infrav1.DroverMachine) string {
	if c := conditions.Get(machine, clusterv1.ReadyCondition); c != nil {
		return c.Message
	}
	return ""
}
