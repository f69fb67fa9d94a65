// SPDX-License-Identifier: Apache-2.0

package clouds

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/aws/ec2stub"
	"github.com/drover-io/drover/test/internal/faultproxy"
	"github.com/drover-io/drover/test/internal/scenario"
)

// TestInterruption tests that a spot machine with an interruption notice from EC2 is drained and
// replaced while it still runs. The message stays in the queue until Drover has recorded this, even
// if the manager crashes meanwhile, and while the Machine is paused.
func TestInterruption(t *testing.T) {
	s := startOn(t, "aws", "spot")
	s.AWS.SetHidden(2 * time.Second)
	account := s.Account()
	listen := func(url string) {
		s.Do(scenario.Patch(s.Ctx, s.Rig.Client, account, func() {
			account.Spec.Cloud.AWS.InterruptionQueue = infrav1.AWSInterruptionQueue{URL: url}
		}))
	}
	listen(s.AWS.QueueURL() + "-2")

	pool := s.NewPool("md", 3)
	for _, o := range pool.Objects() {
		s.Dress(o)
		if template, ok := o.(*infrav1.DroverMachineTemplate); ok {
			template.Spec.Template.Spec.Cloud.AWS.Market = infrav1.AWSMarket{Type: "spot"}
		}
		s.Do(s.Rig.Client.Create(s.Ctx, o))
	}
	s.Until("three machines are ready", scenario.All(pool.Ready(s.Rig.Client, 3), s.nodes(3)))
	s.Until("Machines and Nodes say that they may be taken back", func(ctx context.Context) (string, error) {
		for _, m := range s.machines() {
			node := &corev1.Node{}
			if err := s.Rig.Nodes.Get(ctx, client.ObjectKey{Name: m.Name}, node); err != nil {
				return "", err
			}
			if _, labeled := node.Labels[clusterv1.InterruptibleLabel]; !labeled || !ptr.Deref(m.Status.Interruptible, false) {
				return fmt.Sprintf("%s: status.interruptible %v, its Node's labels are %v", m.Name, m.Status.Interruptible, node.Labels), nil
			}
		}
		return "", nil
	})
	s.Until("the account says that there is no such queue", s.account(account, metav1.ConditionFalse, "interruptionQueue.url"))
	listen(s.AWS.QueueURL())
	s.Until("the account hears", s.account(account, metav1.ConditionTrue, ""))

	s.AWS.Send("Dear Sir or Madam", 0)
	all := s.machines()
	s.AWS.Send(ec2stub.Event("aws.ec2", "EC2 Instance Rebalance Recommendation", map[string]any{"instance-id": instanceOf(all[0])}), 0)
	s.Until("the recommendation is shown", s.troubled(all[0], "elevated risk of interruption"))
	s.Until("and the queue is empty", s.queue(0))

	s.AWS.Announce(instanceOf(all[1]), "instance-retirement", "The instance is running on degraded hardware")
	s.AWS.Send(ec2stub.Event("aws.health", "AWS Health Event", map[string]any{"service": "EC2"}),
		0) // otherwise Drover checks for events only every few minutes
	s.Until("the scheduled event is shown", scenario.All(s.troubled(all[1], "AWS announces instance-retirement"), s.queue(0)))

	s.AWS.Warn(instanceOf(all[0]))
	s.Until("the first is replaced", scenario.All(s.replaced(all[0]), pool.Ready(s.Rig.Client, 3), s.nodes(3), s.queue(0)))

	var hanging atomic.Bool
	s.Cloud.SetRule(func(ctx context.Context, c faultproxy.Call, at faultproxy.Point) faultproxy.Verdict {
		if c.Verb != "ReceiveMessage" || at != faultproxy.After || c.Status != http.StatusOK || len(s.AWS.Messages()) == 0 {
			return faultproxy.Verdict{}
		}
		hanging.Store(true)
		return faultproxy.Hang(ctx)
	})
	s.AWS.Warn(instanceOf(all[1]))
	s.Until("the message is on its way", func(context.Context) (string, error) {
		if !hanging.Load() {
			return "it is not", nil
		}
		return "", nil
	})
	house.Seat.Process.Kill()
	s.Cloud.SetRule(nil)
	s.Do(house.StartManager(s.Ctx))
	s.Until("the second is replaced by another process", scenario.All(s.replaced(all[1]), pool.Ready(s.Rig.Client, 3), s.nodes(3), s.queue(0)))

	owner := s.owner(all[2])
	before := owner.DeepCopy()
	metav1.SetMetaDataAnnotation(&owner.ObjectMeta, clusterv1.PausedAnnotation, "")
	s.Do(s.Rig.Client.Patch(s.Ctx, owner, client.MergeFrom(before)))
	s.AWS.Warn(instanceOf(all[2]))
	s.Until("the third says what happens to it", s.troubled(all[2], "will interrupt the spot instance"))
	s.AWS.Warn("i-0dead") // an unknown instance
	asked := s.AWS.Calls()["ReceiveMessage"]
	s.Until("both have come twice", func(context.Context) (string, error) {
		return missing(4, min(4, s.AWS.Calls()["ReceiveMessage"]-asked)), nil
	})
	if left := s.AWS.Messages(); len(left) != 2 || !s.owner(all[2]).DeletionTimestamp.IsZero() {
		t.Errorf("a Machine that is paused was deleted, or of the messages there is only %v", left)
	}
	before = s.owner(all[2])
	owner = before.DeepCopy()
	delete(owner.Annotations, clusterv1.PausedAnnotation)
	s.Do(s.Rig.Client.Patch(s.Ctx, owner, client.MergeFrom(before)))
	s.Until("the third is replaced", scenario.All(s.replaced(all[2]), pool.Ready(s.Rig.Client, 3), s.nodes(3), s.queue(1)))

	s.Do(pool.Scale(s.Ctx, s.Rig.Client, 0))
	s.Empty()
	t.Logf("calls of AWS: %v", s.AWS.Calls())
}

func instanceOf(m *infrav1.DroverMachine) string {
	return m.Spec.ProviderID[strings.LastIndex(m.Spec.ProviderID, "/")+1:]
}

// machines returns the tenant's DroverMachines by name.
func (s *stage) machines() (all []*infrav1.DroverMachine) {
	s.Helper()
	list := &infrav1.DroverMachineList{}
	s.Do(s.Rig.Client.List(s.Ctx, list, client.InNamespace(s.Namespace)))
	for i := range list.Items {
		all = append(all, &list.Items[i])
	}
	slices.SortFunc(all, func(a, b *infrav1.DroverMachine) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// owner returns the Machine of a DroverMachine, which has the same name.
func (s *stage) owner(m *infrav1.DroverMachine) *clusterv1.Machine {
	s.Helper()
	machine := &clusterv1.Machine{}
	s.Do(s.Rig.Client.Get(s.Ctx, client.ObjectKeyFromObject(m), machine))
	return machine
}

// account checks the condition EventStreamConnected of the account.
func (s *stage) account(account *infrav1.DroverAccount, want metav1.ConditionStatus, words string) scenario.Check {
	return func(ctx context.Context) (string, error) {
		if err := s.Rig.Client.Get(ctx, client.ObjectKeyFromObject(account), account); err != nil {
			return "", err
		}
		status, message := metav1.ConditionUnknown, ""
		if c := conditions.Get(account, infrav1.AccountEventStreamConnectedCondition); c != nil {
			status, message = c.Status, c.Message
		}
		if status != want || !strings.Contains(message, words) {
			return string(status) + ": " + message, nil
		}
		return "", nil
	}
}

func (s *stage) troubled(m *infrav1.DroverMachine, words string) scenario.Check {
	return func(ctx context.Context) (string, error) {
		now := &infrav1.DroverMachine{}
		if err := s.Rig.Client.Get(ctx, client.ObjectKeyFromObject(m), now); err != nil {
			return "", err
		}
		if message := conditions.GetMessage(now, infrav1.MachineInstanceHealthyCondition); !strings.Contains(message, words) {
			return "it says " + message, nil
		}
		return "", nil
	}
}

// replaced checks that the machine is gone, and that Drover terminated its instance before EC2 did.
func (s *stage) replaced(m *infrav1.DroverMachine) scenario.Check {
	return func(ctx context.Context) (string, error) {
		err := s.Rig.Client.Get(ctx, client.ObjectKeyFromObject(m), &infrav1.DroverMachine{})
		if client.IgnoreNotFound(err) != nil {
			return "", err
		}
		if err == nil {
			return m.Name + " is there", nil
		}
		for _, e := range s.AWS.Books() {
			if e.ID == instanceOf(m) && (e.Living() || e.Reason != "") {
				return e.ID + " is " + e.State + " " + e.Reason, nil
			}
		}
		return "", nil
	}
}

func (s *stage) queue(n int) scenario.Check {
	return func(context.Context) (string, error) {
		if left := s.AWS.Messages(); len(left) != n {
			return "in the queue are: " + strings.Join(left, " "), nil
		}
		return "", nil
	}
}
