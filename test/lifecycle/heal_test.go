// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/test/internal/scenario"
)

// TestVanishedVMIsReplaced removes a VM behind Drover's back. Drover notices, the Node is deleted,
// and a MachineHealthCheck replaces the Machine. The VM is never recreated for the same Machine.
func TestVanishedVMIsReplaced(t *testing.T) {
	for _, action := range []simulator.InstanceAction{simulator.ActTerminate, simulator.ActVanish} {
		t.Run(string(action), func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			pool := scenario.Pool{Cluster: s.Adopted, Name: "pool", Replicas: 2}
			s.create(pool.Objects()...)
			s.create(pool.HealthCheck(300)) // only the missing Node may trigger it in time
			s.until("two machines are ready", pool.Ready(env.view, 2))

			victim := s.machines()[0]
			vm := s.instanceOf(&victim)
			if err := env.admin.Act(s.ctx, vm.ID, action); err != nil {
				t.Fatal(err)
			}
			s.until("the machine is replaced", scenario.All(s.deleted(&victim), pool.Ready(env.view, 2)))
			if n := len(s.live()); n != 2 {
				t.Errorf("the cloud has %d VMs, want 2", n)
			}
			audit, err := env.admin.Audit(s.ctx)
			if err != nil {
				t.Fatal(err)
			}
			if n := audit.Machine(victim.Spec.Creation.Token, "RunInstances"); n != 1 {
				t.Errorf("RunInstances was called %d times with the victim's token, want once", n)
			}
		})
	}
}

// TestVanishedVMIsNotMadeAgain checks that a lost VM stays lost when nothing replaces the Machine:
// the DroverMachine reports it and creates no other VM, not even after a restart of the manager.
// The test is not parallel, because it restarts the manager that all tests share.
func TestVanishedVMIsNotMadeAgain(t *testing.T) {
	s := newStage(t)
	pool := scenario.Pool{Cluster: s.Adopted, Name: "pool", Replicas: 1}
	s.create(pool.Objects()...)
	s.until("a machine is ready", pool.Ready(env.view, 1))
	machine := s.machines()[0]
	if err := env.admin.Act(s.ctx, s.instanceOf(&machine).ID, simulator.ActTerminate); err != nil {
		t.Fatal(err)
	}
	s.until("the machine says that its VM is gone", s.ready(&machine, infrav1.InstanceGoneReason))
	s.until("its Node is gone", func(ctx context.Context) (string, error) {
		err := env.view.Get(ctx, client.ObjectKey{Name: machine.Name}, &corev1.Node{})
		if err == nil {
			return "the Node is still there", nil
		}
		return "", client.IgnoreNotFound(err)
	})
	env.drover.Kill()
	next, err := startDrover(s.ctx)
	if err != nil {
		t.Fatal(err)
	}
	env.drover = next
	s.until("the machine still says that its VM is gone", s.ready(&machine, infrav1.InstanceGoneReason))
	if n := len(s.live()); n != 0 {
		t.Errorf("the cloud has %d VMs, want none", n)
	}
}

// instanceOf returns a machine's live instance.
func (s *stage) instanceOf(m *infrav1.DroverMachine) simulator.SnapshotResource {
	s.Helper()
	for _, r := range s.live() {
		if r.Tags["drover-creation-token"] == m.Spec.Creation.Token {
			return r
		}
	}
	s.Fatalf("no VM for DroverMachine %s", m.Name)
	panic("unreachable")
}

// ready checks that a machine's Ready condition has the reason.
func (s *stage) ready(m *infrav1.DroverMachine, reason string) scenario.Check {
	return func(ctx context.Context) (string, error) {
		have := &infrav1.DroverMachine{}
		if err := env.view.Get(ctx, client.ObjectKeyFromObject(m), have); err != nil {
			return "", err
		}
		c := conditions.Get(have, clusterv1.ReadyCondition)
		if c == nil || c.Reason != reason {
			return fmt.Sprintf("DroverMachine %s has Ready %+v, want reason %s", m.Name, c, reason), nil
		}
		return "", nil
	}
}

// deleted checks that an object is gone.
func (s *stage) deleted(o client.Object) scenario.Check {
	return func(ctx context.Context) (string, error) {
		fresh := o.DeepCopyObject().(client.Object)
		err := env.client.Get(ctx, client.ObjectKeyFromObject(o), fresh)
		if apierrors.IsNotFound(err) || (err == nil && fresh.GetUID() != o.GetUID()) {
			return "", nil
		}
		return fmt.Sprintf("%T %s is still there", o, o.GetName()), err
	}
}

// TestNodeProblemsOneAtATime sets a deadlocked kernel on every Node of a pool, as the
// node-problem-detector would. All machines are replaced, one at a time. This is the example in
// docs/safety.md.
func TestNodeProblemsOneAtATime(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	pool := scenario.Pool{Cluster: s.Adopted, Name: "pool", Replicas: 3}
	deployment, health := pool.Deployment(), pool.HealthCheck(300)
	deployment.Spec.Remediation.MaxInFlight = ptr.To(intstr.FromInt32(1))
	health.Spec.Checks.UnhealthyNodeConditions = append(health.Spec.Checks.UnhealthyNodeConditions, kernelDeadlock)
	s.create(pool.Template(pool.Name, pool.Machine), pool.ConfigTemplate(), deployment, health)
	s.until("three machines are ready", pool.Ready(env.view, 3))
	sick := map[string]bool{}
	for _, m := range s.machines() {
		sick[m.Name] = true
		s.deadlocked(m.Name, corev1.ConditionTrue)
	}
	most := 0
	s.soon("all of them are replaced", func(ctx context.Context) (string, error) {
		owners := &clusterv1.MachineList{}
		if err := env.view.List(ctx, owners, client.InNamespace(s.Namespace)); err != nil {
			return "", err
		}
		going, left := 0, 0
		for i := range owners.Items {
			if !owners.Items[i].DeletionTimestamp.IsZero() {
				going++
			}
			if sick[owners.Items[i].Name] {
				left++
			}
		}
		most = max(most, going)
		if left > 0 {
			return fmt.Sprintf("%d sick machines are left", left), nil
		}
		return pool.Ready(env.view, 3)(ctx)
	})
	if most != 1 {
		t.Errorf("%d machines were replaced at a time, want 1", most)
	}
}

// kernelDeadlock is a Node condition that the node-problem-detector sets and the MachineHealthCheck
// tolerates for one second.
var kernelDeadlock = clusterv1.UnhealthyNodeCondition{Type: "KernelDeadlock", Status: corev1.ConditionTrue,
	TimeoutSeconds: ptr.To(int32(1))}

// deadlocked sets or clears that condition on a Node, as the node-problem-detector would.
func (s *stage) deadlocked(name string, status corev1.ConditionStatus) {
	s.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := env.client.Get(s.ctx, client.ObjectKeyFromObject(node), node); err != nil {
		s.Fatal(err)
	}
	before, since := node.DeepCopy(), metav1.NewTime(time.Now().Add(-time.Minute)) // longer than the check tolerates, for all of them
	node.Status.Conditions = append(slices.DeleteFunc(node.Status.Conditions,
		func(c corev1.NodeCondition) bool { return c.Type == kernelDeadlock.Type }),
		corev1.NodeCondition{Type: kernelDeadlock.Type, Status: status, Reason: "DockerHung", LastTransitionTime: since,
			LastHeartbeatTime: metav1.Now()})
	if err := env.client.Status().Patch(s.ctx, node, client.StrategicMergeFrom(before)); err != nil {
		s.Fatal(err)
	}
}

// TestTooManySickMachines checks that no machine is replaced while more are sick than the
// MachineHealthCheck allows. When they are few enough again, only the sick ones are replaced.
func TestTooManySickMachines(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	pool := scenario.Pool{Cluster: s.Adopted, Name: "pool", Replicas: 3}
	s.create(pool.Objects()...)
	s.until("three machines are ready", pool.Ready(env.view, 3))
	sick := s.machines()[:2]
	for _, m := range sick {
		s.deadlocked(m.Name, corev1.ConditionTrue)
	}
	health := pool.HealthCheck(300)
	health.Spec.Checks.UnhealthyNodeConditions = append(health.Spec.Checks.UnhealthyNodeConditions, kernelDeadlock)
	health.Spec.Remediation.TriggerIf.UnhealthyLessThanOrEqualTo = ptr.To(intstr.FromString("40%"))
	before := s.owners()
	s.create(health)
	s.soon("the check says that it does nothing", says(health, clusterv1.MachineHealthCheckRemediationAllowedCondition,
		clusterv1.MachineHealthCheckTooManyUnhealthyReason, "unhealthy: 2"))
	s.stays("a pool with too many sick machines", func() string {
		if n := len(s.owners()); n != 3 || s.creates() != 3 {
			return fmt.Sprintf("%d Machines are left, of %d VMs that were made", n, s.creates())
		}
		return ""
	})
	s.deadlocked(sick[1].Name, corev1.ConditionFalse)
	s.until("the one that is still sick is replaced", scenario.All(s.deleted(&sick[0]), pool.Ready(env.view, 3)))
	now := s.owners()
	for uid, name := range before {
		if _, stays := now[uid]; stays == (name == sick[0].Name) {
			t.Errorf("of %v, %v are left; want %s alone replaced", before, now, sick[0].Name)
			break
		}
	}
	if !conditions.IsTrue(health, clusterv1.MachineHealthCheckRemediationAllowedCondition) {
		s.soon("the check does its work again", says(health, clusterv1.MachineHealthCheckRemediationAllowedCondition,
			clusterv1.MachineHealthCheckRemediationAllowedReason))
	}
	if err := scenario.Delete(s.ctx, env.client, pool.Deployment()); err != nil {
		t.Fatal(err)
	}
	s.until("nothing is left", s.gone())
}
