// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"fmt"
	"strings"
	"time"
	"unicode"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
)

// lateCheck is how often a late machine is checked again: not every change comes as an event.
const lateCheck = time.Minute

// nodeProblem is the reason and message of a NodeJoined that is False; the zero value means that
// there is no problem.
type nodeProblem struct{ reason, message string }

// late returns why the VM of a machine that has run for longer than LateAfter is not a ready Node,
// and when to check again, 0 for never. It ignores a machine that was a ready Node before, because
// that is the task of a MachineHealthCheck. hasNode means that a Node carries the machine's
// provider ID, whether or not Cluster API has seen it.
func (r *CloudMachineReconciler) late(ctx context.Context, s *machineScope, hasNode bool) (nodeProblem, time.Duration, error) {
	since := runningSince(s.CloudMachine)
	if since.IsZero() || !s.owner.DeletionTimestamp.IsZero() {
		return nodeProblem{}, 0, nil
	}
	due := since.Add(r.LateAfter)
	if s.owner.Status.NodeRef.IsDefined() {
		return lateToBeReady(s, since, due)
	}
	if left := time.Until(due); left > 0 {
		return nodeProblem{}, left, nil
	}
	if hasNode {
		return nodeProblem{}, jitter(lateCheck), nil // Cluster API is about to see it
	}
	reason, message, err := r.Progress(ctx, s.cluster, s.owner)
	if reason == "" {
		reason, message = infrav1.NodeMissingReason, "no Node has its provider ID or one of its addresses: look at the machine itself"
	}
	if reason != infrav1.CertificateNotApprovedReason { // the machine does not know the state of its certificate
		message += r.console(ctx, s, since)
	}
	return nodeProblem{reason, fmt.Sprintf("VM runs since %s, and %s", since.Format(time.RFC3339), message)}, jitter(lateCheck), err
}

// runningSince returns the time since when a machine's VM has run, in UTC and whole seconds; zero
// if it does not run.
func runningSince(m *infrav1.CloudMachine) time.Time {
	if c := conditions.Get(m, clusterv1.ReadyCondition); c != nil && c.Status == metav1.ConditionTrue {
		return c.LastTransitionTime.UTC()
	}
	return time.Time{}
}

// lateToBeReady does the work of late for a machine whose Node Cluster API has seen. It reads the
// Node's condition from the Machine, so that not all Nodes have to be cached. A condition that has
// not changed since the machine was due was never True in time.
func lateToBeReady(s *machineScope, since, due time.Time) (nodeProblem, time.Duration, error) {
	ready := conditions.Get(s.owner, clusterv1.MachineNodeReadyCondition)
	told := conditions.GetReason(s.CloudMachine, infrav1.MachineNodeJoinedCondition) == infrav1.NodeNotReadyReason
	switch {
	case ready == nil || ready.Status == metav1.ConditionTrue:
		return nodeProblem{}, 0, nil
	case time.Now().Before(due):
		return nodeProblem{}, time.Until(due), nil
	case ready.LastTransitionTime.After(due) && !told:
		return nodeProblem{}, 0, nil
	}
	message := fmt.Sprintf("VM runs since %s, and Node %q is not ready", since.Format(time.RFC3339), s.owner.Status.NodeRef.Name)
	if why := oneLine(strings.TrimPrefix(ready.Message, "* Node.Ready: ")); why != "" {
		message += ": " + why
	}
	return nodeProblem{infrav1.NodeNotReadyReason, message}, jitter(lateCheck), nil
}

// oneLine makes kubelet text fit a table column, without line breaks and control characters.
func oneLine(s string) string {
	return strings.Join(strings.FieldsFunc(s, func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) }), " ")
}

// setNodeJoined says in NodeJoined whether the machine has its Node, or why the Node can't be
// identified, or is late.
func setNodeJoined(machine *infrav1.CloudMachine, joined bool, problem nodeProblem) {
	status, reason := metav1.ConditionUnknown, infrav1.WaitingForNodeReason
	switch {
	case problem.reason != "":
		status, reason = metav1.ConditionFalse, problem.reason
	case joined:
		status, reason = metav1.ConditionTrue, infrav1.NodeJoinedReason
	}
	setCondition(machine, infrav1.MachineNodeJoinedCondition, status, reason, problem.message)
}
