// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/cloud/simulated/wire"
)

func (b *bench) isGone(name string) bool {
	b.t.Helper()
	err := b.r.Client.Get(b.t.Context(), client.ObjectKey{Namespace: "team-a", Name: name}, &infrav1.DroverMachine{})
	b.Expect(client.IgnoreNotFound(err)).To(Succeed())
	return apierrors.IsNotFound(err)
}

// TestUnsentGoesAtOnce: a machine for which this process has sent nothing is released without a
// call of the account.
func TestUnsentGoesAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBench(t, edit(fleetOf("m"), "m", func(m *infrav1.DroverMachine) { m.Spec.ProviderID, m.Spec.Creation.Token = "", "" })...)
		b.reconcile("m") // claims
		b.Expect(b.machine("m").Spec.Creation.Token).NotTo(BeEmpty())
		b.remove(b.machine("m"))
		b.reconcile("m")
		b.Expect(b.isGone("m")).To(BeTrue())
		b.Expect(b.calls(wire.RunInstances) + b.calls(wire.DescribeResources)).To(BeZero())
	})
}

// TestSentIsLookedFor: a machine is not released without a check of the cloud if this process or an
// earlier one may have sent a create. This includes a refused create, because its earlier steps may
// have left something, but only others are waited for. A VM that the check finds is deleted.
func TestSentIsLookedFor(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]*simulator.Fault{
		"by an earlier process":           nil,
		"without an answer":               {Kind: simulator.CutBefore, Operation: wire.RunInstances},
		"executed, but without an answer": {Kind: simulator.CutAfter, Operation: wire.RunInstances},
		"refused":                         {Kind: simulator.ErrorBefore, Operation: wire.RunInstances, Code: wire.InvalidParameterValue},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				b := newBench(t, edit(fleetOf("m"), "m", unmade)...)
				if fault != nil {
					b.r.attempts.set(b.machine("m"), attemptNotSent)
					b.addFault(*fault)
					b.reconcile("m")
					b.Expect(b.calls(wire.RunInstances)).To(Equal(1))
				}
				b.remove(b.machine("m"))
				b.reconcile("m")
				b.Expect(b.isGone("m")).To(BeFalse())
				b.wait(30 * time.Second) // more than the read lag, less than a create without an answer may take
				b.reconcile("m")
				b.Expect(b.isGone("m")).To(Equal(name == "refused"))
				if b.isGone("m") {
					b.Expect(b.calls(wire.DescribeResources)).NotTo(BeZero())
					return
				}
				for range 3 { // the record of a VM that was found comes back as an event
					b.wait(2 * time.Minute)
					b.reconcile("m")
				}
				b.Expect(b.isGone("m")).To(BeTrue())
				b.Expect(b.calls(wire.DescribeResources)).NotTo(BeZero())
				b.Expect(b.vms()).To(BeEmpty())
			})
		})
	}
}

// TestHangingClusterHoldsNoVM: a workload cluster that hangs, or does not answer, delays the
// deletion of a VM for two minutes, and never occupies a worker of DroverMachines.
func TestHangingClusterHoldsNoVM(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBench(t, fleetOf("m")...)
		b.reconcile("m")
		b.Expect(b.machine("m").Status.Addresses).NotTo(BeEmpty())
		b.createNode("m")
		b.remove(b.machine("m"))
		request := reconcile.Request{NamespacedName: client.ObjectKey{Namespace: "team-a", Name: "m"}}
		removed := time.Now()
		for !b.isGone("m") && time.Since(removed) < 10*time.Minute { // no worker of NodeReconciler is free
			_, err := b.r.Reconcile(t.Context(), request)
			b.Expect(err).NotTo(HaveOccurred())
			if time.Since(removed) < time.Minute {
				b.Expect(b.vms()).To(HaveLen(1))
			}
			time.Sleep(5 * time.Second)
		}
		b.Expect(time.Since(removed)).To(BeNumerically("<", 3*time.Minute))
		b.Expect(b.vms()).To(BeEmpty())
		b.Expect(b.countNodes()).To(Equal(1))
	})
}

// TestFirstControlPlaneGoesAtOnce: the deletion of a machine whose control plane never came up does
// not wait for an API server. Once the control plane has been initialized, it does.
func TestFirstControlPlaneGoesAtOnce(t *testing.T) {
	t.Parallel()
	for name, initialized := range map[string]bool{"never came up": false, "does not answer": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				objects := fleetOf("m")
				for _, o := range objects {
					switch o := o.(type) {
					case *clusterv1.Cluster:
						o.Status.Initialization.ControlPlaneInitialized = &initialized
					case *clusterv1.Machine:
						o.Labels[clusterv1.MachineControlPlaneLabel] = ""
					}
				}
				b := newBench(t, objects...)
				b.reconcile("m")
				b.Expect(b.machine("m").Status.Addresses).NotTo(BeEmpty())
				b.remove(b.machine("m"))
				request := reconcile.Request{NamespacedName: client.ObjectKey{Namespace: "team-a", Name: "m"}}
				_, err := b.r.Reconcile(t.Context(), request) // no worker of NodeReconciler is free
				b.Expect(err).NotTo(HaveOccurred())
				time.Sleep(30 * time.Second)
				b.Expect(b.vms()).To(HaveLen(map[bool]int{false: 0, true: 1}[initialized]))
			})
		})
	}
}

// TestDeletedNodeIsRemoved: the Node goes with its VM.
func TestDeletedNodeIsRemoved(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBench(t, fleetOf("m")...)
		b.reconcile("m")
		b.createNode("m")
		b.remove(b.machine("m"))
		b.reconcile("m")
		b.Expect(b.countNodes()).To(Equal(1), "until the VM is gone")
		b.wait(time.Minute)
		b.Expect(b.isGone("m")).To(BeTrue())
		b.Expect(b.countNodes()).To(BeZero())
	})
}

// TestAbandonedWhileItsDeletionFails: a deletion that waits does not go on when somebody abandons
// the VM, although another finalizer keeps the object.
func TestAbandonedWhileItsDeletionFails(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBench(t, edit(fleetOf("m"), "m", func(m *infrav1.DroverMachine) { m.Finalizers = append(m.Finalizers, "example.com/keep") })...)
		fault, err := b.cloud.AddFault(t.Context(), simulator.Fault{Kind: simulator.ErrorBefore, Operation: wire.TerminateInstances,
			Code: wire.AuthFailure})
		b.Expect(err).NotTo(HaveOccurred())
		b.remove(b.machine("m"))
		b.reconcile("m")
		b.wait(time.Minute)
		b.Expect(b.calls(wire.TerminateInstances)).NotTo(BeZero())
		m := b.machine("m")
		metav1.SetMetaDataAnnotation(&m.ObjectMeta, infrav1.AbandonAnnotation, "m")
		b.Expect(b.r.Client.Update(t.Context(), m)).To(Succeed())
		b.reconcile("m")
		b.Expect(b.machine("m").Finalizers).To(Equal([]string{"example.com/keep"}))
		b.Expect(b.cloud.RemoveFault(t.Context(), fault)).To(Succeed())
		b.wait(10 * time.Minute)
		b.Expect(b.vms()).To(ConsistOf(HaveField("State", wire.Running)))
	})
}

// TestDeletionBeforeTheAccountIsConnected: a start of the manager changes nothing of what is said of
// a deletion. An account that does not work is named, with the reason. What has begun stays known.
func TestDeletionBeforeTheAccountIsConnected(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	for reason, want := range map[string]string{
		"": "before", infrav1.InUseReason: "before", infrav1.UnauthorizedReason: "is not ready: Unauthorized", "missing": "to exist",
	} {
		account := &infrav1.DroverAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "main"}}
		condition := metav1.Condition{Type: clusterv1.ReadyCondition, Status: metav1.ConditionTrue, Reason: infrav1.ReadyReason}
		if reason != "" {
			condition.Status, condition.Reason = metav1.ConditionFalse, reason
		}
		conditions.Set(account, condition)
		objects := []client.Object{account}
		if reason == "missing" {
			objects = nil
		}
		now := metav1.Now()
		m := &infrav1.DroverMachine{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "m", DeletionTimestamp: &now,
			Finalizers: []string{infrav1.MachineFinalizer}}}
		m.Spec.AccountRef.Name, m.Spec.ProviderID, m.Spec.Creation.Token = "main", "simulated:///a/i-1", testToken
		r := &DroverMachineReconciler{Client: newManagement(t, objects...)}
		for before, after := range map[string]string{infrav1.DeletingReason: infrav1.DeletingReason,
			infrav1.StartingReason: infrav1.WaitingForAccountReason} {
			setNotReady(m, before, "before")
			result, err := r.delete(t.Context(), &machineScope{DroverMachine: m})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(result.RequeueAfter).To(BeNumerically(">", 0))
			if want == "before" {
				after = before
			}
			g.Expect(readyReason(m)).To(Equal(after), reason)
			g.Expect(conditions.GetMessage(m, clusterv1.ReadyCondition)).To(ContainSubstring(want))
		}
	}
}
