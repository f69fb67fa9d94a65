// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/tagging"
)

// fakeVMs is an account. The VMs of a takeover are its tagged ones.
type fakeVMs struct{ tagged []tagging.Instance }

func (f *fakeVMs) Tagged(_ context.Context, keys []string) ([]tagging.Instance, error) {
	return slices.DeleteFunc(slices.Clone(f.tagged), func(vm tagging.Instance) bool {
		_, other := vm.Tags[keys[0]]
		return keys[0] != cloud.TagOwnership && !other
	}), nil
}

func (f *fakeVMs) Tag(context.Context, string, map[string]string, []string) error { return nil }

func (f *fakeVMs) Untag(_ context.Context, ids, keys []string) error {
	for i := range f.tagged {
		if vm := &f.tagged[i]; slices.Contains(ids, vm.ID) && slices.Contains(keys, cloud.TagToken) {
			vm.Token, vm.OwnershipID = "", ""
		}
	}
	f.tagged = slices.DeleteFunc(f.tagged, func(vm tagging.Instance) bool { return vm.Token == "" })
	return nil
}

func (f *fakeVMs) ids() (ids []string) {
	for _, vm := range f.tagged {
		ids = append(ids, vm.ID)
	}
	return ids
}

// scene is a takeover whose Cluster API and Drover see a pause at once, and whose other system,
// machine-controller-manager, does not run.
type scene struct {
	*Takeover
	vms *fakeVMs
	t   *testing.T
}

// newScene makes a Cluster, which this takeover has paused or not.
func newScene(t *testing.T, paused bool) *scene {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{appsv1.AddToScheme, corev1.AddToScheme, coordinationv1.AddToScheme,
		clusterv1.AddToScheme, infrav1.AddToScheme, bootstrapv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	for _, kind := range MachineControllerManager().kinds {
		scheme.AddKnownTypeWithName(kind, &unstructured.Unstructured{})
		scheme.AddKnownTypeWithName(kind.GroupVersion().WithKind(kind.Kind+"List"), &unstructured.UnstructuredList{})
	}
	status := func(paused bool) []metav1.Condition {
		is := map[bool]metav1.ConditionStatus{true: metav1.ConditionTrue, false: metav1.ConditionFalse}[paused]
		return []metav1.Condition{{Type: clusterv1.PausedCondition, Status: is}}
	}
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: "blue"}}
	cluster.Spec.InfrastructureRef = reference(infrav1.GroupVersion.Group, "DroverCluster", "blue")
	if cluster.Spec.Paused = ptr.To(paused); paused {
		cluster.Annotations = map[string]string{Mark: ""}
	}
	infrastructure := &infrav1.DroverCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: "blue"}}
	cluster.Status.Conditions, infrastructure.Status.Conditions = status(paused), status(paused)
	api := fake.NewClientBuilder().WithScheme(scheme).WithObjects(cluster, infrastructure).WithInterceptorFuncs(interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			err := c.Patch(ctx, o, p, opts...)
			is, of := o.(*clusterv1.Cluster)
			if err != nil || !of {
				return err
			}
			paused := ptr.Deref(is.Spec.Paused, false)
			is.Status.Conditions, infrastructure.Status.Conditions = status(paused), status(paused)
			if err := c.Update(ctx, is.DeepCopy()); err != nil {
				return err
			}
			if err := c.Get(ctx, client.ObjectKeyFromObject(infrastructure), infrastructure); err != nil {
				return err
			}
			infrastructure.Status.Conditions = status(paused)
			return c.Update(ctx, infrastructure)
		},
	}).Build()
	vms := &fakeVMs{}
	return &scene{vms: vms, t: t, Takeover: &Takeover{
		Target: newTarget(), System: MachineControllerManager(), Management: api, Old: api, Nodes: api, OldNamespace: "old",
		VMs: vms, Stopped: true,
	}}
}

func (s *scene) create(all ...client.Object) {
	s.t.Helper()
	for _, o := range all {
		if err := s.Management.Create(s.t.Context(), o); err != nil {
			s.t.Fatal(err)
		}
	}
}

// taken makes a machine that was taken over. While that is not complete, the objects have the Mark.
func (s *scene) taken(name, instance string, mark *string) (*clusterv1.Machine, *infrav1.DroverMachine) {
	s.t.Helper()
	meta := s.meta(name)
	if mark != nil {
		meta.Annotations = map[string]string{Mark: *mark, hook: ""}
	}
	token := s.token(Machine{Instance: instance})
	seen := []metav1.Condition{{Type: clusterv1.PausedCondition, Status: metav1.ConditionTrue}}
	machine := &clusterv1.Machine{ObjectMeta: *meta.DeepCopy()}
	machine.Status.NodeRef.Name, machine.Status.Conditions = name, seen
	vm := &infrav1.DroverMachine{ObjectMeta: meta}
	vm.Spec.Creation.Token, vm.Status.Conditions = token, seen
	s.create(machine, vm)
	s.tagged(instance, token)
	return machine, vm
}

// tagged makes a VM with Drover's tags, and a role's.
func (s *scene) tagged(instance, token string) {
	s.vms.tagged = append(s.vms.tagged, tagging.Instance{
		Resource: cloud.Resource{ID: instance, OwnershipID: s.OwnershipID, Token: token}, Tags: map[string]string{"role": "x", nameKey: "x"},
	})
}

// old makes a Machine of the other system.
func (s *scene) old(namespace, name string) {
	s.t.Helper()
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(mcmAPI.WithKind("Machine"))
	o.SetNamespace(namespace)
	o.SetName(name)
	s.create(o)
}

func (s *scene) context() context.Context {
	ctx, cancel := context.WithTimeout(s.t.Context(), 5*time.Minute)
	s.t.Cleanup(cancel)
	return ctx
}

func (s *scene) next() string {
	s.t.Helper()
	status, err := s.Status(s.context())
	if err != nil {
		s.t.Fatal(err)
	}
	return status.Next
}

// TestEarlierTakeovers: the machines of a takeover that is complete, into the same Cluster, are no
// part of a later one: a rollback leaves them their tags, and "check" knows their VMs.
func TestEarlierTakeovers(t *testing.T) {
	t.Parallel()
	t.Run("rollback", func(t *testing.T) {
		t.Parallel()
		g, s := NewWithT(t), newScene(t, true)
		s.taken("earlier", "i-0", nil)
		s.taken("now", "i-1", ptr.To("role"))
		s.old("old", "now")
		s.tagged("i-2", s.token(Machine{Instance: "i-2"})) // a rollback that was killed has deleted its objects
		g.Expect(s.Rollback(s.context())).To(Succeed())
		g.Expect(s.vms.ids()).To(ConsistOf("i-0"))
	})
	t.Run("nothing is staged", func(t *testing.T) {
		t.Parallel()
		g, s := NewWithT(t), newScene(t, true)
		s.taken("earlier", "i-0", nil)
		g.Expect(s.next()).To(Equal("nothing is staged, and the Cluster is paused: rollback ends that"))
		g.Expect(s.Rollback(s.context())).To(Succeed())
		g.Expect(s.vms.ids()).To(ConsistOf("i-0"))
		g.Expect(s.next()).To(Equal("it is complete"))
	})
	t.Run("a rollback was killed", func(t *testing.T) {
		t.Parallel()
		g, s := NewWithT(t), newScene(t, true)
		s.taken("earlier", "i-0", nil)
		s.tagged("i-2", s.token(Machine{Instance: "i-2"}))
		g.Expect(s.next()).To(Equal("it is being rolled back: run rollback again"))
	})
	t.Run("check", func(t *testing.T) {
		t.Parallel()
		g, s := NewWithT(t), newScene(t, true)
		s.taken("earlier", "i-0", nil)
		s.taken("now", "i-1", ptr.To("role"))
		vm := &infrav1.DroverMachine{ObjectMeta: s.meta("new")}
		vm.Spec.Creation.Token = "made-by-drover"
		s.create(vm)
		s.tagged("i-3", "made-by-drover")
		s.tagged("i-4", "of-nobody")
		p := &Plan{}
		g.Expect(s.Check(s.context(), p)).To(Succeed())
		g.Expect(p.Findings).To(ConsistOf(HaveField("Object", "VM i-4")))
	})
}

// TestStageOfNothing: a plan without pools does not pause the Cluster.
func TestStageOfNothing(t *testing.T) {
	t.Parallel()
	g, s := NewWithT(t), newScene(t, false)
	_, err := s.Stage(s.context(), &Plan{})
	g.Expect(err).To(MatchError("there is no pool to take over"))
	paused, err := s.paused(s.context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(paused).To(BeFalse())
}

// TestBegunCommit: from its first step that can't be undone until its end, a commit can only go on,
// also where the VMs lose no tag by it, and when almost nothing is staged any more.
func TestBegunCommit(t *testing.T) {
	t.Parallel()
	const begun = "a commit has begun, so there is no way back: run commit again"
	t.Run("killed before the first old Machine is gone", func(t *testing.T) {
		t.Parallel()
		g, s := NewWithT(t), newScene(t, false)
		s.taken("now", "i-1", ptr.To(nameKey))
		s.old("old", "now")
		s.Old = interceptor.NewClient(s.Management.(client.WithWatch), interceptor.Funcs{
			Delete: func(context.Context, client.WithWatch, client.Object, ...client.DeleteOption) error {
				return errors.New("killed")
			},
		})
		g.Expect(s.Commit(s.context(), &Plan{})).To(MatchError(ContainSubstring("killed")))
		g.Expect(s.next()).To(Equal(begun))
		g.Expect(s.Rollback(s.context())).To(MatchError(begun))
		_, err := s.Stage(s.context(), &Plan{Pools: make([]Pool, 1)})
		g.Expect(err).To(MatchError(begun))
		g.Expect(s.vms.ids()).To(ConsistOf("i-1"))
		s.Old = s.Management
		g.Expect(s.Commit(s.context(), &Plan{})).To(Succeed())
		g.Expect(s.next()).To(Equal("it is complete"))
		g.Expect(s.Rollback(s.context())).To(Succeed(), "nothing is staged")
		g.Expect(s.vms.ids()).To(ConsistOf("i-1"))
	})
	for name, left := range map[string]bool{"killed with a template left": true, "killed after the last object": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g, s := NewWithT(t), newScene(t, false)
			s.taken("now", "i-1", nil)
			template := &infrav1.DroverMachineTemplate{ObjectMeta: s.meta("now")}
			if left {
				template.Annotations = map[string]string{Mark: nameKey}
			}
			s.create(template)
			g.Expect(s.markCommit(t.Context(), true)).To(Succeed())
			g.Expect(s.next()).To(Equal(begun))
			g.Expect(s.Rollback(s.context())).To(MatchError(begun))
			g.Expect(s.Commit(s.context(), &Plan{})).To(Succeed())
			g.Expect(s.next()).To(Equal("it is complete"))
			g.Expect(s.Management.Get(t.Context(), client.ObjectKeyFromObject(template), template)).To(Succeed())
			g.Expect(template.Annotations).To(BeEmpty())
		})
	}
}

// TestWrongNamespace: a namespace without the staged Machines is no proof of an earlier commit.
func TestWrongNamespace(t *testing.T) {
	t.Parallel()
	g, s := NewWithT(t), newScene(t, false)
	s.taken("now", "i-1", ptr.To("role"))
	s.old("elsewhere", "now")
	const why = "namespace old does not have Machine now of machine-controller-manager, which is staged: give the options of stage"
	g.Expect(s.Commit(s.context(), &Plan{})).To(MatchError(why))
	g.Expect(s.Rollback(s.context())).To(MatchError(why))
	s.OldNamespace = "elsewhere"
	g.Expect(s.Commit(s.context(), &Plan{})).To(Succeed())
	g.Expect(s.next()).To(Equal("it is complete"))
}
