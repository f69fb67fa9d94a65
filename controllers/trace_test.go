// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/fleet"
	"github.com/drover-io/drover/cloud/registry"
)

// starting returns a Machine that was created some time ago, and its DroverMachine.
func starting(name string, ago time.Duration) (*clusterv1.Machine, *infrav1.DroverMachine) {
	meta := metav1.ObjectMeta{
		Namespace: "team", Name: name, UID: "11111111-2222-4333-8444-555555555555", Generation: 3, CreationTimestamp: since(ago),
		Labels: map[string]string{clusterv1.MachineDeploymentNameLabel: "pool"},
	}
	owner, m := &clusterv1.Machine{ObjectMeta: meta}, &infrav1.DroverMachine{ObjectMeta: *meta.DeepCopy()}
	owner.Spec.ClusterName = "prod"
	owner.Spec.InfrastructureRef = clusterv1.ContractVersionedObjectReference{APIGroup: infrav1.GroupVersion.Group, Kind: "DroverMachine",
		Name: name}
	m.Spec.Creation.Token = "0123456789abcdef"
	return owner, m
}

func since(ago time.Duration) metav1.Time {
	return metav1.NewTime(time.Now().Add(-ago).Truncate(time.Second))
}

// become sets a condition that is True since some time ago.
func become(o interface{ SetConditions([]metav1.Condition) }, get []metav1.Condition, condition string, ago time.Duration) {
	o.SetConditions(append(get, metav1.Condition{Type: condition, Status: metav1.ConditionTrue, LastTransitionTime: since(ago),
		Reason: "Test"}))
}

func nodeReady(owner *clusterv1.Machine, ago time.Duration) {
	owner.Status.NodeRef.Name = owner.Name
	become(owner, nil, clusterv1.MachineNodeReadyCondition, ago)
}

func startupsOf(requested map[string][2]time.Time) Startups {
	return Startups{
		Accounts:     fleet.NewAccounts(fleet.Options{Clouds: registry.Clouds(), Times: fleet.TimesFor(fleet.DefaultCall)}),
		ClusterCache: clustercache.NewFakeEmptyClusterCache(),
		Certificates: func(context.Context, client.ObjectKey) (map[string][2]time.Time, error) { return requested, nil },
	}
}

// TestTraceIsSentOnce: a trace waits for what is not read yet, is sent again only if the collector
// did not take it, and a Node that becomes ready again much later has none.
func TestTraceIsSentOnce(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*clusterv1.Machine, *infrav1.DroverMachine)
		sent   int
	}{
		"its Node is ready": {func(o *clusterv1.Machine, _ *infrav1.DroverMachine) {
			nodeReady(o, time.Second)
		}, 1},
		"its Node's name comes later": {func(o *clusterv1.Machine, _ *infrav1.DroverMachine) {
			nodeReady(o, time.Second)
			o.Status.NodeRef.Name = ""
		}, 0},
		"it is not": {func(*clusterv1.Machine, *infrav1.DroverMachine) {}, 0},
		"it was long ago": {func(o *clusterv1.Machine, _ *infrav1.DroverMachine) {
			nodeReady(o, 2*time.Hour)
		}, 0},
		"it is deleted without a Node":  {func(o *clusterv1.Machine, _ *infrav1.DroverMachine) { deleting(o) }, 1},
		"it is deleted and has had one": {func(o *clusterv1.Machine, _ *infrav1.DroverMachine) { deleting(o); o.Status.NodeRef.Name = "n" }, 0},
		"it was moved here": {func(o *clusterv1.Machine, m *infrav1.DroverMachine) {
			nodeReady(o, time.Second)
			m.Generation = 1
		}, 0},
		"another provider's": {func(o *clusterv1.Machine, _ *infrav1.DroverMachine) {
			nodeReady(o, time.Second)
			o.Spec.InfrastructureRef.Kind = "OtherMachine"
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := NewWithT(t)
				owner, m := starting("m", 3*time.Minute)
				c.change(owner, m)
				var sent []*tracepb.ResourceSpans
				fails := true
				r := &TraceReconciler{
					Client: fake.NewClientBuilder().WithScheme(testScheme(t)).WithObjects(owner, m).Build(), Startups: startupsOf(nil), began: time.Now(),
					Upload: func(_ context.Context, spans []*tracepb.ResourceSpans) error {
						if fails {
							fails = false
							return context.DeadlineExceeded
						}
						sent = append(sent, spans...)
						return nil
					},
				}
				req := reconcile.Request{NamespacedName: client.ObjectKeyFromObject(owner)}
				result, err := r.Reconcile(t.Context(), req)
				g.Expect(err).NotTo(HaveOccurred())
				if c.sent == 0 {
					g.Expect(result).To(Equal(reconcile.Result{}))
					return
				}
				g.Expect(result.RequeueAfter).To(Equal(traceRetry), "the account is not connected yet")
				time.Sleep(traceWait)
				_, err = r.Reconcile(t.Context(), req)
				g.Expect(err).To(MatchError(ContainSubstring("sending the trace")))
				result, err = r.Reconcile(t.Context(), req)
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(result).To(Equal(reconcile.Result{}))
				g.Expect(sent).To(HaveLen(c.sent))
			})
		})
	}
}

func deleting(o client.Object) {
	now := metav1.Now()
	o.SetDeletionTimestamp(&now)
	o.SetFinalizers([]string{"example.com/test"})
}
