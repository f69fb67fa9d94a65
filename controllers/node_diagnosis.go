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

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
)

// diagnosisInterval is how often a late machine is checked again: not every change comes as an
// event.
const diagnosisInterval = time.Minute

// nodeIssue is the reason and message of a NodeJoined that is False; the zero value means that
// there is no issue.
type nodeIssue struct{ reason, message string }

// diagnoseNode returns why the VM of a machine that has run for longer than LateAfter is not a
// ready Node, and when to check again, 0 for never. It ignores a machine that was a ready Node
// before, because that is the task of a MachineHealthCheck. hasNode means that a Node carries the
// machine's provider ID, whether or not Cluster API has seen it.
func (r *NodeReconciler) diagnoseNode(ctx context.Context, s *machineScope, hasNode bool) (nodeIssue, time.Duration, error) {
	since := runningSince(s.DroverMachine)
	if since.IsZero() || !s.owner.DeletionTimestamp.IsZero() {
		return nodeIssue{}, 0, nil
	}
	due := since.Add(r.LateAfter)
	if s.owner.Status.NodeRef.IsDefined() {
		return diagnoseNotReady(s, since, due)
	}
	if left := time.Until(due); left > 0 {
		return nodeIssue{}, left, nil
	}
	if hasNode {
		return nodeIssue{}, jitter(diagnosisInterval), nil // Cluster API is about to see it
	}
	reason, message, err := r.Progress(ctx, s.cluster, s.owner)
	if reason == "" {
		reason, message = infrav1.NodeMissingReason, "no Node has its provider ID, or both its name and one of its addresses: check the machine itself"
	}
	if reason != infrav1.CertificateNotApprovedReason { // the machine does not know the state of its certificate
		message += r.console(ctx, s, since)
	}
	return nodeIssue{reason, fmt.Sprintf("The VM has been running since %s, and %s", since.Format(time.RFC3339), message)},
		jitter(diagnosisInterval), err
}

// runningSince returns the time since when a machine's VM has run, in UTC and whole seconds; zero
// if it does not run.
func runningSince(m *infrav1.DroverMachine) time.Time { return trueSince(m, clusterv1.ReadyCondition) }

// diagnoseNotReady does the work of diagnoseNode for a machine whose Node Cluster API has seen. It
// reads the Node's condition from the Machine, so that not all Nodes have to be cached. A condition
// that has not changed since the machine was due was never True in time.
func diagnoseNotReady(s *machineScope, since, due time.Time) (nodeIssue, time.Duration, error) {
	ready := conditions.Get(s.owner, clusterv1.MachineNodeReadyCondition)
	reported := conditions.GetReason(s.DroverMachine, infrav1.MachineNodeJoinedCondition) == infrav1.NodeNotReadyReason
	switch {
	case ready == nil || ready.Status == metav1.ConditionTrue:
		return nodeIssue{}, 0, nil
	case time.Now().Before(due):
		return nodeIssue{}, time.Until(due), nil
	case ready.LastTransitionTime.After(due) && !reported:
		return nodeIssue{}, 0, nil
	}
	message := fmt.Sprintf("The VM has been running since %s, and Node %q is not ready", since.Format(time.RFC3339),
		s.owner.Status.NodeRef.Name)
	if why := oneLine(strings.TrimPrefix(ready.Message, "* Node.Ready: ")); why != "" {
		message += ": " + why
	}
	return nodeIssue{infrav1.NodeNotReadyReason, message}, jitter(diagnosisInterval), nil
}

// oneLine makes kubelet text fit a table column, without line breaks and control characters.
func oneLine(s string) string {
	return strings.Join(strings.FieldsFunc(s, func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) }), " ")
}

// setNodeJoined says in NodeJoined whether the machine has its Node, or why the Node can't be
// identified, or is late.
func setNodeJoined(machine *infrav1.DroverMachine, link nodeLink) {
	status, reason := link.condition()
	setCondition(machine, infrav1.MachineNodeJoinedCondition, status, reason, link.issue.message)
}

// saysNodeJoined reports whether the machine's NodeJoined already says this.
func saysNodeJoined(machine *infrav1.DroverMachine, link nodeLink) bool {
	status, reason := link.condition()
	c := conditions.Get(machine, infrav1.MachineNodeJoinedCondition)
	return c != nil && c.Status == status && c.Reason == reason && c.Message == truncate(link.issue.message)
}

// condition returns the status and the reason of NodeJoined.
func (l nodeLink) condition() (status metav1.ConditionStatus, reason string) {
	switch {
	case l.issue.reason != "":
		return metav1.ConditionFalse, l.issue.reason
	case l.joined:
		return metav1.ConditionTrue, infrav1.NodeJoinedReason
	}
	return metav1.ConditionUnknown, infrav1.WaitingForNodeReason
}
