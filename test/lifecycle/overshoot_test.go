// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/cloud/simulated/wire"
	"github.com/drover-io/drover/test/internal/faultproxy"
	"github.com/drover-io/drover/test/internal/scenario"
)

// TestOvershootFreezes checks that surplus machines freeze their pool, that it unfreezes when they
// are gone, and that a user's own pause stays. MCM's scenario: "machine objects made by hand freeze
// the deployment". The test pauses the MachineSet, because Cluster API would delete the machines at
// once.
func TestOvershootFreezes(t *testing.T) {
	for name, pausedByUser := range map[string]bool{"running": false, "paused by its user": true} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			pool, _, _ := s.withMachine(1)
			deployment := pool.Deployment()
			set := s.onlySet()
			s.pauseObject(set, `""`)
			if pausedByUser {
				s.pauseObject(deployment, `""`)
			}
			extra := s.extraMachines(set, 4)
			s.soon("the pool is frozen", s.frozen(deployment, set, true))
			s.soon("it says why", explained(env.client, deployment, "5 Machines / 1 VMs", "limit of 4"))
			s.soon("people are told", s.event("Frozen", "5 Machines"))
			if value, mine := deployment.Annotations[clusterv1.PausedAnnotation], "frozen-by-drover"; (value == mine) == pausedByUser {
				t.Errorf("the MachineDeployment is paused by %q", value)
			}
			for _, m := range extra[:2] { // three are left, one fewer than the bound
				if err := scenario.Delete(s.ctx, env.client, m); err != nil {
					t.Fatal(err)
				}
			}
			s.soon("the pool is unfrozen", s.frozen(deployment, set, false))
			s.soon("people are told again", s.event("Unfrozen", "machines are created again"))
			if conditions.Has(deployment, "Frozen") {
				t.Error("Drover has written into the status of Cluster API's object")
			}
			if _, paused := deployment.Annotations[clusterv1.PausedAnnotation]; paused != pausedByUser {
				t.Errorf("the MachineDeployment's pause was taken away, or left: %v, want %v", paused, pausedByUser)
			}
			if _, paused := set.Annotations[clusterv1.PausedAnnotation]; !paused {
				t.Error("the user's pause of the MachineSet was taken away")
			}
			s.pauseObject(set, "null")
			s.pauseObject(deployment, "null")
			for _, m := range extra { // otherwise Cluster API would choose which to keep
				if err := scenario.Delete(s.ctx, env.client, m); err != nil {
					t.Fatal(err)
				}
				s.soon("it is gone", s.deleted(m))
			}
			if err := pool.Scale(s.ctx, env.client, 2); err != nil {
				t.Fatal(err)
			}
			s.until("machines are made again", pool.Ready(env.view, 2))
		})
	}
}

// TestOvershootIsDeleted checks that a frozen pool can be deleted, although Cluster API does not
// delete paused objects.
func TestOvershootIsDeleted(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	pool, _, _ := s.withMachine(1)
	deployment, set := pool.Deployment(), s.onlySet()
	s.pauseObject(set, `""`)
	s.extraMachines(set, 4)
	s.soon("the pool is frozen", s.frozen(deployment, set, true))
	if err := scenario.Delete(s.ctx, env.client, deployment); err != nil {
		t.Fatal(err)
	}
	s.soon("the pool is unfrozen, to go", s.frozen(deployment, set, false))
	s.pauseObject(set, "null") // the pause of its user
	s.soon("nothing is left", s.gone())
}

// TestScaleDownIsNoOvershoot checks that a scale-down that Cluster API has not seen yet, here
// because the user paused the pool, is no overshoot. A frozen pool would keep its size, because
// Cluster API does not scale down what Drover has paused.
func TestScaleDownIsNoOvershoot(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	pool, _, _ := s.withMachine(5)
	deployment := pool.Deployment()
	s.pauseObject(deployment, `""`)
	if err := pool.Scale(s.ctx, env.client, 1); err != nil { // plus one for the surge and two to spare
		t.Fatal(err)
	}
	s.stays("the pool", func() string {
		if err := env.client.Get(s.ctx, client.ObjectKeyFromObject(deployment), deployment); err != nil {
			return err.Error()
		}
		if deployment.Labels[infrav1.FreezeLabel] != "" {
			return deployment.Annotations[infrav1.FrozenMessageAnnotation]
		}
		return ""
	})
	s.pauseObject(deployment, "null")
	s.soon("one machine is left", pool.Ready(env.client, 1))
}

// TestOvershootOfVMs checks that VMs count as well as objects: one Machine with five VMs has four
// too many. The pool unfreezes when they are gone.
func TestOvershootOfVMs(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	pool, owner, machine := s.withMachine(1)
	var extra []string
	for range 4 {
		extra = append(extra, s.byCloud(owner, machine.Spec.Creation.Token).ID)
	}
	deployment, set := pool.Deployment(), s.onlySet()
	s.soon("the pool is frozen", s.frozen(deployment, set, true))
	s.soon("it says why", explained(env.client, deployment, "1 Machines / 5 VMs", "limit of 4"))
	for _, id := range extra[:2] {
		if err := env.admin.Act(s.ctx, id, simulator.ActTerminate); err != nil {
			t.Fatal(err)
		}
	}
	s.soon("the pool is unfrozen", s.frozen(deployment, set, false))
	for _, id := range extra[2:] {
		if err := env.admin.Act(s.ctx, id, simulator.ActTerminate); err != nil {
			t.Fatal(err)
		}
	}
}

// TestOvershootOfAMachineSet checks that a standalone MachineSet is frozen too. Drover never pauses
// it: the set keeps deleting its surplus, unless its user has paused it.
func TestOvershootOfAMachineSet(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	pool := scenario.Pool{Cluster: s.Adopted, Name: "pool"}
	md := pool.Deployment()
	set := &clusterv1.MachineSet{ObjectMeta: s.meta("alone"), Spec: clusterv1.MachineSetSpec{
		ClusterName: s.Adopted.Name, Replicas: ptr.To[int32](1), Selector: md.Spec.Selector, Template: md.Spec.Template,
	}}
	s.create(pool.Template(pool.Name, pool.Machine), pool.ConfigTemplate(), set)
	frozen := func(want bool) scenario.Check {
		return func(ctx context.Context) (string, error) {
			if err := env.client.Get(ctx, client.ObjectKeyFromObject(set), set); err != nil {
				return "", err
			}
			is := set.Labels[infrav1.FreezeLabel] == "True" && set.Annotations[clusterv1.DisableMachineCreateAnnotation] == "true" &&
				set.Annotations[infrav1.FrozenMessageAnnotation] != ""
			if is != want {
				return fmt.Sprintf("it has labels %v, annotations %v", set.Labels, set.Annotations), nil
			}
			return "", nil
		}
	}
	s.soon("it has its machine", func(ctx context.Context) (string, error) {
		if err := env.client.Get(ctx, client.ObjectKeyFromObject(set), set); err != nil {
			return "", err
		}
		if n := ptr.Deref(set.Status.ReadyReplicas, 0); n != 1 {
			return fmt.Sprintf("%d are ready", n), nil
		}
		return "", nil
	})
	s.pauseObject(set, `"by its user"`)
	extra := s.extraMachines(set, 4)
	s.soon("it is frozen", frozen(true))
	for _, m := range extra[:3] { // without a surge: two are left
		if err := scenario.Delete(s.ctx, env.client, m); err != nil {
			t.Fatal(err)
		}
	}
	s.soon("it is unfrozen", frozen(false))
	if set.Annotations[clusterv1.PausedAnnotation] != "by its user" {
		t.Error("the user's pause was taken away")
	}
	s.pauseObject(set, "null")
	s.soon("Cluster API deletes the others", func(context.Context) (string, error) {
		if n := len(s.machines()); n > 1 {
			return fmt.Sprintf("there are %d machines", n), nil
		}
		return "", nil
	})
}

// freezeInTwoPasses interrupts a freeze between its label and its message, as a concurrent write
// of Cluster API to the MachineDeployment does. The next pass completes it, and emits the Event as
// well.
func (h *house) freezeInTwoPasses() {
	pool := h.adopted("freeze")
	pool.Replicas = 1
	var cut atomic.Int32
	drover := h.start("--machine-safety-overshooting-period=1s", "--kubeconfig="+h.proxied(faultproxy.Options{
		Name: "busy", Rule: func(_ context.Context, c faultproxy.Call, at faultproxy.Point) faultproxy.Verdict {
			if at != faultproxy.Before || c.Verb != "patch" || c.Resource != "machinedeployments" || slices.Contains(c.Fields, "metadata.labels") ||
				cut.Add(1) > 1 {
				return faultproxy.Verdict{}
			}
			return faultproxy.Refuse(apierrors.NewConflict(schema.GroupResource{Resource: c.Resource}, c.Name, errors.New("written by another")))
		},
	}))
	h.create(append(pool.Cluster.Objects(), pool.Objects()...)...)
	h.soon("a machine is ready", pool.Ready(h.client, 1))
	var extra []string
	for range 4 {
		vm, err := env.admin.Run(h.ctx, "house-freeze", wire.RunInstancesRequest{
			Region: "sim-1", InstanceType: "small", Image: "node-image", Tags: h.instances(pool)[0].Tags,
		})
		if err != nil {
			h.Fatal(err)
		}
		extra = append(extra, vm.ID)
	}
	h.soon("it is frozen, and says so", explained(h.client, pool.Deployment(), "5 VMs"))
	h.soon("people are told", eventIn(h.client, pool.Cluster.Namespace, "Frozen", "5 VMs"))
	if cut.Load() < 2 {
		h.Error("no write was refused")
	}
	for _, id := range extra {
		if err := env.admin.Act(h.ctx, id, simulator.ActTerminate); err != nil {
			h.Fatal(err)
		}
	}
	h.soon("an Event reports it", eventIn(h.client, pool.Cluster.Namespace, "Unfrozen", "machines are created again"))
	h.delete(pool.Deployment())
	h.soon("nothing is left", h.gone(pool))
	drover.Kill()
}

// explained checks that a frozen pool says why it is.
func explained(r client.Reader, o client.Object, words ...string) scenario.Check {
	return func(ctx context.Context) (string, error) {
		if err := r.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
			return "", err
		}
		message := o.GetAnnotations()[infrav1.FrozenMessageAnnotation]
		for _, w := range words {
			if !strings.Contains(message, w) {
				return fmt.Sprintf("the annotation %q does not say %q", message, w), nil
			}
		}
		return "", nil
	}
}

// neverFrozen returns an error if a pool was frozen in a test that is not about surplus machines.
func (s *stage) neverFrozen(ctx context.Context) error {
	if strings.HasPrefix(s.Namespace, "testovershoot") {
		return nil
	}
	events := &corev1.EventList{}
	if err := env.client.List(ctx, events, client.InNamespace(s.Namespace)); err != nil {
		return err
	}
	for _, e := range events.Items {
		if e.Reason == "Frozen" {
			return fmt.Errorf("%s %s was frozen: %s", e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Message)
		}
	}
	return nil
}

// onlySet returns the MachineSet of the test's one pool.
func (s *stage) onlySet() *clusterv1.MachineSet {
	s.Helper()
	sets := &clusterv1.MachineSetList{}
	if err := env.client.List(s.ctx, sets, client.InNamespace(s.Namespace)); err != nil || len(sets.Items) != 1 {
		s.Fatalf("%d MachineSets (%v), want one", len(sets.Items), err)
	}
	return &sets.Items[0]
}

// pauseObject sets or removes Cluster API's pause annotation of one object; value is JSON.
func (s *stage) pauseObject(o client.Object, value string) {
	s.Helper()
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%s}}}`, clusterv1.PausedAnnotation, value)
	if err := env.client.Patch(s.ctx, o, client.RawPatch(types.MergePatchType, patch)); err != nil {
		s.Fatal(err)
	}
}

// extraMachines creates n Machines of a set that the set's controller did not create.
func (s *stage) extraMachines(set *clusterv1.MachineSet, n int) (all []*clusterv1.Machine) {
	s.Helper()
	for i := range n {
		m := &clusterv1.Machine{ObjectMeta: s.meta(fmt.Sprintf("extra-%d", i)), Spec: *set.Spec.Template.Spec.DeepCopy()}
		m.Labels = set.Spec.Template.Labels
		m.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(set, clusterv1.GroupVersion.WithKind("MachineSet"))}
		m.Spec.Bootstrap = clusterv1.Bootstrap{DataSecretName: ptr.To("nothing")}
		m.Spec.InfrastructureRef.Kind, m.Spec.InfrastructureRef.Name = "DroverMachine", m.Name
		s.create(m)
		all = append(all, m)
	}
	return all
}

// frozen checks whether a pool is frozen, with its labels, annotations and condition.
func (s *stage) frozen(d *clusterv1.MachineDeployment, set *clusterv1.MachineSet, want bool) scenario.Check {
	return func(ctx context.Context) (string, error) {
		for _, o := range []client.Object{d, set} {
			if err := env.client.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
				return "", err
			}
			if (o.GetLabels()[infrav1.FreezeLabel] == "True") != want {
				return fmt.Sprintf("%T has labels %v", o, o.GetLabels()), nil
			}
		}
		if _, paused := d.Annotations[clusterv1.PausedAnnotation]; want && !paused {
			return "the MachineDeployment is not paused", nil
		}
		if (set.Annotations[clusterv1.DisableMachineCreateAnnotation] == "true") != want {
			return fmt.Sprintf("the MachineSet has annotations %v", set.Annotations), nil
		}
		if (d.Annotations[infrav1.FrozenMessageAnnotation] != "") != want {
			return "the reason is not written yet", nil
		}
		return "", nil
	}
}
