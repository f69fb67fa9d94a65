// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
)

// lateMachine returns a machine whose VM has run for the given time. Its NodeJoined has the reason
// told, if told is not empty.
func lateMachine(runs time.Duration, told string) *machineScope {
	s := &machineScope{DroverMachine: &infrav1.DroverMachine{}, owner: &clusterv1.Machine{}, cluster: &clusterv1.Cluster{}}
	s.Status.Conditions = []metav1.Condition{{
		Type: clusterv1.ReadyCondition, Status: metav1.ConditionTrue, LastTransitionTime: metav1.NewTime(time.Now().Add(-runs)),
	}}
	if told != "" {
		setNodeJoined(s.DroverMachine, nodeLink{issue: nodeIssue{told, "as before"}})
	}
	return s
}

// withNode gives the Machine a Node whose Ready condition has had the status ready for that long.
func (s *machineScope) withNode(ready metav1.ConditionStatus, since time.Duration, message string) *machineScope {
	s.owner.Status.NodeRef.Name = "blue-1"
	s.owner.Status.Conditions = []metav1.Condition{{
		Type: clusterv1.MachineNodeReadyCondition, Status: ready, LastTransitionTime: metav1.NewTime(time.Now().Add(-since)), Message: message,
	}}
	return s
}

func TestLate(t *testing.T) {
	const after = 10 * time.Minute
	down, deleting := lateMachine(time.Hour, ""), lateMachine(time.Hour, "")
	down.Status.Conditions[0].Status = metav1.ConditionFalse
	deleting.owner.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	for name, c := range map[string]struct {
		scope    *machineScope
		hasNode  bool
		progress string
		reason   string
		words    string
		// looks says whether the machine is checked again, asks whether Progress is called.
		looks, asks bool
	}{
		"the VM does not run":          {scope: down},
		"the Machine is being deleted": {scope: deleting},
		"there is time":                {scope: lateMachine(time.Minute, ""), looks: true},
		"no Node": {scope: lateMachine(time.Hour, ""), progress: "Because", reason: "Because", words: "and so on",
			looks: true, asks: true},
		"no Node, and nobody knows why": {scope: lateMachine(time.Hour, ""), reason: infrav1.NodeMissingReason, words: "provider ID",
			looks: true, asks: true},
		"a Node that is about to be seen": {scope: lateMachine(time.Hour, infrav1.NodeMissingReason), hasNode: true, looks: true},
		"ready":                           {scope: lateMachine(time.Hour, "").withNode("True", time.Minute, "")},
		"ready at last":                   {scope: lateMachine(time.Hour, infrav1.NodeNotReadyReason).withNode("True", time.Minute, "")},
		"a Node, and there is time":       {scope: lateMachine(time.Minute, "").withNode("False", time.Minute, ""), looks: true},
		"was never ready": {scope: lateMachine(time.Hour, "").withNode("False", 55*time.Minute,
			"* Node.Ready: cni plugin\nnot\x1b[1m initialized "), reason: infrav1.NodeNotReadyReason,
			words: `"blue-1" is not ready: cni plugin not [1m initialized`, looks: true},
		"was never ready, and is silent now": {scope: lateMachine(time.Hour, infrav1.NodeNotReadyReason).withNode("Unknown", time.Minute, ""),
			reason: infrav1.NodeNotReadyReason, words: "not ready", looks: true},
		"was ready once": {scope: lateMachine(time.Hour, "").withNode("False", time.Minute, "")},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			asked := 0
			r := &NodeReconciler{LateAfter: after, Progress: func(context.Context, *clusterv1.Cluster, *clusterv1.Machine) (string, string, error) {
				asked++
				if c.progress == "" {
					return "", "", nil
				}
				return c.progress, "and so on", nil
			}}
			problem, again, err := r.diagnoseNode(t.Context(), c.scope, c.hasNode)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(problem.reason).To(Equal(c.reason))
			g.Expect(problem.message).To(ContainSubstring(c.words))
			g.Expect(strings.HasPrefix(problem.message, "The VM has been running since ")).To(Equal(c.reason != ""))
			g.Expect(again > 0).To(Equal(c.looks), "%s", again)
			g.Expect(asked == 1).To(Equal(c.asks), "asked %d times", asked)
		})
	}
}

// TestLateWhenAskingFails: a known problem is reported even if Progress returns an error.
func TestLateWhenAskingFails(t *testing.T) {
	g := NewWithT(t)
	r := &NodeReconciler{Progress: func(context.Context, *clusterv1.Cluster, *clusterv1.Machine) (string, string, error) {
		return infrav1.NoCertificateRequestReason, "no kubelet has asked", errors.New("refused")
	}}
	problem, _, err := r.diagnoseNode(t.Context(), lateMachine(time.Hour, ""), false)
	g.Expect(err).To(MatchError("refused"))
	g.Expect(problem.reason).To(Equal(infrav1.NoCertificateRequestReason))
}
