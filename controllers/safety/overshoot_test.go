// SPDX-License-Identifier: Apache-2.0

package safety

import (
	"context"
	"errors"
	"testing"

	"github.com/go-logr/logr/funcr"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
)

// TestSurge: absolute numbers and percentages, rounded as Cluster API rounds them.
func TestSurge(t *testing.T) {
	for _, c := range []struct {
		strategy clusterv1.MachineDeploymentRolloutStrategyType
		surge    *intstr.IntOrString
		replicas int32
		want     int
	}{
		{clusterv1.RollingUpdateMachineDeploymentStrategyType, nil, 10, 1},
		{clusterv1.RollingUpdateMachineDeploymentStrategyType, ptr.To(intstr.FromInt32(3)), 10, 3},
		{clusterv1.RollingUpdateMachineDeploymentStrategyType, ptr.To(intstr.FromString("25%")), 10, 3}, // 2.5, rounded up
		{clusterv1.RollingUpdateMachineDeploymentStrategyType, ptr.To(intstr.FromString("1%")), 1, 1},
		{clusterv1.RollingUpdateMachineDeploymentStrategyType, ptr.To(intstr.FromString("100%")), 0, 0},
		{clusterv1.OnDeleteMachineDeploymentStrategyType, ptr.To(intstr.FromInt32(3)), 10, 0},
	} {
		d := &clusterv1.MachineDeployment{}
		d.Spec.Replicas = ptr.To(c.replicas)
		d.Spec.Rollout.Strategy.Type, d.Spec.Rollout.Strategy.RollingUpdate.MaxSurge = c.strategy, c.surge
		if got := surge(d); got != c.want {
			t.Errorf("%s, surge %v of %d: %d, want %d", c.strategy, c.surge, c.replicas, got, c.want)
		}
	}
}

// TestVerdict checks the verdict for each state of a pool.
func TestVerdict(t *testing.T) {
	r := &OvershootReconciler{Up: 2, Down: 1} // 3 desired, 1 surge: the bound is 6, and 5 unfreezes
	for _, c := range []struct {
		what               string
		objects, instances int
		last               int    // count of the previous pass, if over the bound
		frozen             string // replicas when frozen, if frozen
		cutOff, going      bool
		stopped            bool // a MachineSet that its user has stopped
		want               verdict
	}{
		{what: "as it should be", objects: 3, instances: 3, want: noAction},
		{what: "a surge and what is to spare", objects: 6, instances: 6, last: 6, want: noAction},
		{what: "too many, at first", objects: 7, instances: 3, want: noAction},
		{what: "too many, again", objects: 7, instances: 3, last: 7, want: freeze},
		{what: "too many VMs, again", objects: 3, instances: 7, last: 7, want: freeze},
		{what: "too many, and becoming fewer", objects: 7, instances: 7, last: 9, want: noAction},
		{what: "frozen, and still too many", objects: 6, frozen: "3", want: freeze},
		{what: "frozen, and few enough", objects: 5, frozen: "3", want: unfreeze},
		{what: "frozen, and fewer are asked for", objects: 9, frozen: "5", want: unfreeze},
		{what: "frozen, and being deleted", objects: 9, frozen: "3", going: true, want: unfreeze},
		{what: "being deleted", objects: 9, last: 0, going: true, want: noAction},
		{what: "an unfreeze that was cut off", objects: 5, cutOff: true, want: unfreeze},
		{what: "its user has stopped it", objects: 7, instances: 7, last: 7, stopped: true, want: noAction},
	} {
		d := &clusterv1.MachineDeployment{}
		p := &pool{kind: deployment, owner: d, size: size{3, 1}, objects: c.objects, instances: c.instances}
		if c.frozen != "" {
			d.Labels = map[string]string{infrav1.FreezeLabel: "True"}
			d.Annotations = map[string]string{infrav1.FrozenReplicasAnnotation: c.frozen}
		}
		if c.going {
			d.DeletionTimestamp = ptr.To(metav1.Now())
		}
		if c.cutOff {
			s := &clusterv1.MachineSet{}
			s.Labels = map[string]string{infrav1.FreezeLabel: "True"}
			p.sets = append(p.sets, s)
		}
		if c.stopped {
			p.kind, p.owner = set, &clusterv1.MachineSet{ObjectMeta: metav1.ObjectMeta{
				Annotations: map[string]string{clusterv1.DisableMachineCreateAnnotation: "true"}}}
		}
		last := &lastPass{over: map[string]int{}}
		if c.last > 0 {
			last.over[p.key()] = c.last
		}
		if got := r.verdict(p, last); got != c.want {
			t.Errorf("%s: %v, want %v", c.what, got, c.want)
		}
	}
}

// TestHoldTo: a scale-down that Cluster API has not observed does not lower the size that a pool is
// judged by. Any other change applies.
func TestHoldTo(t *testing.T) {
	two, six, ten := int32(2), int32(6), int32(10)
	for _, c := range []struct {
		what           string
		unseen, frozen bool
		last           *size
		sets           *int32
		judged, kept   size
	}{
		{what: "seen", last: &size{6, 1}, sets: &six, judged: size{2, 1}, kept: size{2, 1}},
		{what: "not seen", unseen: true, last: &size{6, 2}, sets: &ten, judged: size{6, 2}, kept: size{6, 2}},
		{what: "not seen, in the first pass", unseen: true, sets: &six, judged: size{6, 1}, kept: size{6, 1}},
		{what: "a scale-up that was not seen", unseen: true, last: &size{1, 1}, sets: &two, judged: size{2, 1}, kept: size{2, 1}},
		{what: "frozen, and scaled down", unseen: true, frozen: true, last: &size{6, 1}, sets: &ten, judged: size{2, 1}, kept: size{6, 1}},
	} {
		d := &clusterv1.MachineDeployment{}
		if c.frozen {
			d.Labels = map[string]string{infrav1.FreezeLabel: "True"}
		}
		p := &pool{kind: deployment, owner: d, size: size{2, 1}, unseen: c.unseen}
		p.sets = []*clusterv1.MachineSet{{Spec: clusterv1.MachineSetSpec{Replicas: c.sets}}}
		last := map[string]size{}
		if c.last != nil {
			last[p.key()] = *c.last
		}
		if kept := p.applyKnownSize(last); kept != c.kept || p.size != c.judged {
			t.Errorf("%s: judged by %v, and %v kept; want %v and %v", c.what, p.size, kept, c.judged, c.kept)
		}
	}
}

// TestFreezeIsMetadata: a freeze says why once, in an annotation and an Event, and writes nothing
// into the status of Cluster API's objects. Its end takes away what it added.
func TestFreezeIsMetadata(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	d := &clusterv1.MachineDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pool",
		Annotations: map[string]string{"mine": "x"}}}
	s := &clusterv1.MachineSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pool-1"}}
	refuse := true
	api := fake.NewClientBuilder().WithScheme(newScheme(t)).WithObjects(d, s).WithInterceptorFuncs(interceptor.Funcs{
		SubResourcePatch: func(context.Context, client.Client, string, client.Object, client.Patch, ...client.SubResourcePatchOption) error {
			return errors.New("this status is not ours")
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, options ...client.PatchOption) error {
			if o.GetName() == "pool-1" && refuse {
				refuse = false
				return errors.New("cut off")
			}
			return c.Patch(ctx, o, p, options...)
		},
	}).Build()
	recorder := events.NewFakeRecorder(10)
	var log []string
	r := &OvershootReconciler{
		Client: api, Recorder: recorder, Up: 2, Down: 1, Log: funcr.New(func(_, line string) { log = append(log, line) }, funcr.Options{}),
	}
	read := func() *pool {
		g.Expect(api.Get(t.Context(), client.ObjectKeyFromObject(d), d)).To(Succeed())
		g.Expect(api.Get(t.Context(), client.ObjectKeyFromObject(s), s)).To(Succeed())
		return &pool{kind: deployment, owner: d, sets: []*clusterv1.MachineSet{s}, size: size{1, 1}, objects: 5, instances: 5}
	}
	g.Expect(r.freeze(t.Context(), read())).To(MatchError(ContainSubstring("cut off")))
	g.Expect(recorder.Events).To(BeEmpty())
	for range 3 {
		g.Expect(r.freeze(t.Context(), read())).To(Succeed())
	}
	g.Expect(recorder.Events).To(Receive(HavePrefix("Warning Frozen 5 Machines / 5 VMs exceed the limit of 4")))
	g.Expect(recorder.Events).To(BeEmpty(), "people are told once")
	read()
	g.Expect(d.Annotations).To(HaveKeyWithValue(infrav1.FrozenMessageAnnotation, HavePrefix("5 Machines / 5 VMs exceed the limit of 4")))
	g.Expect(s.Annotations).To(HaveKeyWithValue(clusterv1.DisableMachineCreateAnnotation, "true"))

	g.Expect(r.unfreeze(t.Context(), read())).To(Succeed())
	g.Expect(recorder.Events).To(Receive(HavePrefix("Normal Unfrozen")))
	read()
	g.Expect(d.Annotations).To(Equal(map[string]string{"mine": "x"}))
	g.Expect(d.Labels).To(BeEmpty())
	g.Expect(s.Annotations).To(BeEmpty())
	g.Expect(s.Labels).To(BeEmpty())
	g.Expect(log).To(HaveExactElements(ContainSubstring(`"Froze the pool"`), ContainSubstring(`"Unfroze the pool"`)), "the log says both once")
	g.Expect(log).To(HaveEach(ContainSubstring(`"pool"="ns/pool"`)))
}
