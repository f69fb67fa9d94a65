// SPDX-License-Identifier: Apache-2.0

package safety

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/annotations"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/fleet"
	"github.com/drover-io/drover/internal/conflict"
	"github.com/drover-io/drover/internal/predicates"
	"github.com/drover-io/drover/internal/record"
)

// pausedByOvershoot is the value that this controller gives Cluster API's paused annotation. A
// pause by a user has another value, and stays.
const pausedByOvershoot = "frozen-by-drover"

// OvershootReconciler freezes pools that have far more machines than they should, whatever the
// cause. A mistake then costs a few machines, not a fleet. It unfreezes only what it froze.
//
// Cluster API's MachineDeployment controller reverts disable-machine-create on a MachineSet at
// every reconcile, so a MachineDeployment is paused as well. MachineSets still delete excess
// machines.
type OvershootReconciler struct {
	Client   client.Client
	Accounts *fleet.Accounts
	Recorder events.EventRecorder
	// Log gets one line for each freeze and its end.
	Log logr.Logger

	// Period is the time between two passes over a namespace. A pool is frozen if it has more than
	// desired + surge + Up machines in two passes. It is unfrozen at that bound minus Down or
	// below.
	Period           time.Duration
	Up, Down         int
	Metrics          *Metrics
	WatchFilterValue string

	passes sync.Map // namespace → *lastPass
}

// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=machinedeployments;machinesets,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=clusters;machines,verbs=get;list;watch
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=drovermachines,verbs=get;list;watch

// lastPass is what the controller keeps of a pass over a namespace: its time, the pools with too
// many machines, and the size that applied to each pool.
type lastPass struct {
	at    time.Time
	over  map[string]int
	sizes map[string]size
}

// SetupWithManager registers the reconciler. Its requests are namespaces.
func (r *OvershootReconciler) SetupWithManager(mgr ctrl.Manager, options controller.Options) error {
	if r.Period <= 0 || r.Up < 0 || r.Down < 0 || r.Down > r.Up {
		return fmt.Errorf("the overshoot controller needs a period, and 0 <= down <= up: %s, %d, %d", r.Period, r.Down, r.Up)
	}
	namespace := func(_ context.Context, o client.Object) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: client.ObjectKey{Name: o.GetNamespace()}}}
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("overshoot").
		Watches(&clusterv1.MachineDeployment{}, handler.EnqueueRequestsFromMapFunc(namespace)).
		Watches(&clusterv1.MachineSet{}, handler.EnqueueRequestsFromMapFunc(namespace)).
		WithOptions(options).
		Complete(conflict.Retried(r))
}

// Reconcile makes a pass over a namespace if one is due.
func (r *OvershootReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	last := &lastPass{}
	if known, ok := r.passes.Load(req.Name); ok {
		last = known.(*lastPass)
	}
	if left := r.Period - time.Since(last.at); left > 0 {
		return reconcile.Result{RequeueAfter: left}, nil
	}
	pools, err := r.pools(ctx, req.Name)
	if err != nil {
		return reconcile.Result{}, err
	}
	now := &lastPass{at: time.Now(), over: map[string]int{}, sizes: map[string]size{}}
	r.passes.Store(req.Name, now)
	r.Metrics.frozen.DeletePartialMatch(map[string]string{"namespace": req.Name})
	var errs []error // an error of one pool does not stop the others
	for _, p := range pools {
		errs = append(errs, r.judge(ctx, p, last, now))
		if p.frozen() {
			r.Metrics.frozen.WithLabelValues(req.Name, p.kind, p.owner.GetName()).Set(1)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return reconcile.Result{}, err
	}
	if len(pools) == 0 {
		r.passes.Delete(req.Name)
		return reconcile.Result{}, nil // an event announces the next pool
	}
	return reconcile.Result{RequeueAfter: r.Period}, nil
}

// size is a pool's desired number of machines, and its surge in a rolling update, both as Cluster
// API rounds them.
type size struct{ desired, surge int }

// pool is a MachineDeployment with its MachineSets, or a standalone MachineSet.
type pool struct {
	kind  string
	owner client.Object
	sets  []*clusterv1.MachineSet
	size
	// unseen: Cluster API has not yet observed the last change of one of the specs.
	unseen bool
	// objects counts the Machines that are not being deleted, instances their living VMs.
	objects, instances int
}

func (p *pool) key() string { return p.kind + "/" + p.owner.GetName() }

// have returns the greater of both counts, because a Machine may have no VM, or two.
func (p *pool) have() int { return max(p.objects, p.instances) }

func (p *pool) frozen() bool { return p.owner.GetLabels()[infrav1.FreezeLabel] == "True" }

// applyKnownSize applies the size that Cluster API knows to a pool, and returns the size to
// remember. While Cluster API is behind or down, a scale-down that it has not observed is no
// overshoot. If the controller paused the MachineDeployment then, nothing would scale it down.
func (p *pool) applyKnownSize(last map[string]size) size {
	known, ok := last[p.key()]
	if !ok {
		known.surge = p.surge
		for _, s := range p.sets {
			known.desired += int(ptr.Deref(s.Spec.Replicas, 1))
		}
	}
	larger := known.desired+known.surge > p.desired+p.surge
	if larger && p.frozen() { // and judged by the current spec
		return known
	}
	if larger && p.unseen {
		p.size = known
	}
	return p.size
}

// judge freezes a pool, unfreezes it, or leaves it alone.
func (r *OvershootReconciler) judge(ctx context.Context, p *pool, last, now *lastPass) error {
	now.sizes[p.key()] = p.applyKnownSize(last.sizes)
	if p.have() > r.bound(p) {
		now.over[p.key()] = p.have()
	}
	switch r.verdict(p, last) {
	case freeze:
		return r.freeze(ctx, p)
	case unfreeze:
		return r.unfreeze(ctx, p)
	}
	return nil
}

// bound returns the maximum number of machines of a pool.
func (r *OvershootReconciler) bound(p *pool) int { return p.desired + p.surge + r.Up }

// verdict is what to do with a pool.
type verdict int

const (
	noAction verdict = iota
	freeze
	unfreeze
)

// verdict decides what to do with a pool. One pass over the bound is not enough, because a
// scale-down takes a moment to begin. Two are not enough if the second has fewer machines than the
// first.
func (r *OvershootReconciler) verdict(p *pool, last *lastPass) verdict {
	interrupted := slices.ContainsFunc(p.sets, func(s *clusterv1.MachineSet) bool { return s.Labels[infrav1.FreezeLabel] == "True" })
	before, err := strconv.Atoi(p.owner.GetAnnotations()[infrav1.FrozenReplicasAnnotation])
	lastCount, over := last.over[p.key()]
	switch {
	case p.frozen() && !p.owner.GetDeletionTimestamp().IsZero():
		return unfreeze // Cluster API deletes nothing that is paused
	case p.frozen() && p.have() <= r.bound(p)-r.Down:
		return unfreeze
	case p.frozen() && err == nil && p.desired < before:
		return unfreeze // a scale-down, which a paused MachineDeployment would ignore
	case p.frozen():
		return freeze // again, in case a part of the freeze was reverted
	case interrupted:
		return unfreeze
	case p.kind == set && p.owner.GetAnnotations()[clusterv1.DisableMachineCreateAnnotation] == "true":
		return noAction // somebody else has stopped it, and the end of a freeze must not start it again
	case p.have() > r.bound(p) && over && p.have() >= lastCount:
		return freeze
	}
	return noAction
}

func (r *OvershootReconciler) reason(p *pool) string {
	bound := r.bound(p)
	return fmt.Sprintf("%d Machines / %d VMs exceed the limit of %d (%d desired + %d surge + %d tolerance): creation is paused until there are at most %d; "+
		"delete the surplus machines, or raise the number of replicas", p.objects, p.instances, bound, p.desired, p.surge, r.Up, bound-r.Down)
}

// freeze pauses the MachineDeployment first. Otherwise its controller would revert the changes to
// its MachineSets.
func (r *OvershootReconciler) freeze(ctx context.Context, p *pool) error {
	err := patchMetadata(ctx, r.Client, p.owner, func() {
		addFreezeLabel(p.owner)
		if p.owner.GetAnnotations()[infrav1.FrozenReplicasAnnotation] == "" {
			annotations.AddAnnotations(p.owner, map[string]string{infrav1.FrozenReplicasAnnotation: strconv.Itoa(p.desired)})
		}
		if p.kind == deployment && !annotations.HasPaused(p.owner) {
			annotations.AddAnnotations(p.owner, map[string]string{clusterv1.PausedAnnotation: pausedByOvershoot})
		}
	})
	for _, s := range p.sets {
		if err == nil && s.Annotations[clusterv1.DisableMachineCreateAnnotation] != "true" {
			err = patchMetadata(ctx, r.Client, s, func() {
				addFreezeLabel(s)
				annotations.AddAnnotations(s, map[string]string{clusterv1.DisableMachineCreateAnnotation: "true"})
			})
		}
	}
	if err != nil {
		return fmt.Errorf("freezing %s: %w", p.key(), err)
	}
	return r.explain(ctx, p)
}

// explain says once why a pool is frozen, even if an earlier pass froze it and was interrupted
// before this point.
func (r *OvershootReconciler) explain(ctx context.Context, p *pool) error {
	if metav1.HasAnnotation(metav1.ObjectMeta{Annotations: p.owner.GetAnnotations()}, infrav1.FrozenMessageAnnotation) {
		return nil
	}
	err := patchMetadata(ctx, r.Client, p.owner, func() {
		annotations.AddAnnotations(p.owner, map[string]string{infrav1.FrozenMessageAnnotation: r.reason(p)})
	})
	if err != nil {
		return fmt.Errorf("explaining the freeze of %s: %w", p.key(), err)
	}
	r.record("Froze the pool", p, r.reason(p))
	r.Recorder.Eventf(p.owner, nil, corev1.EventTypeWarning, "Frozen", "Freeze", "%s", r.reason(p))
	return nil
}

// unfreeze reverts freeze in reverse order. It removes the label last, so that the next pass
// continues an interrupted unfreeze.
func (r *OvershootReconciler) unfreeze(ctx context.Context, p *pool) error {
	var err error
	for _, s := range p.sets {
		if err == nil && p.kind == deployment && s.Labels[infrav1.FreezeLabel] == "True" {
			err = patchMetadata(ctx, r.Client, s, func() {
				delete(s.Labels, infrav1.FreezeLabel)
				delete(s.Annotations, clusterv1.DisableMachineCreateAnnotation)
			})
		}
	}
	if err == nil {
		err = patchMetadata(ctx, r.Client, p.owner, func() {
			delete(p.owner.GetLabels(), infrav1.FreezeLabel)
			delete(p.owner.GetAnnotations(), infrav1.FrozenReplicasAnnotation)
			delete(p.owner.GetAnnotations(), infrav1.FrozenMessageAnnotation)
			if p.kind == set {
				delete(p.owner.GetAnnotations(), clusterv1.DisableMachineCreateAnnotation)
			}
			if p.owner.GetAnnotations()[clusterv1.PausedAnnotation] == pausedByOvershoot {
				delete(p.owner.GetAnnotations(), clusterv1.PausedAnnotation)
			}
		})
	}
	if err != nil {
		return fmt.Errorf("unfreezing %s: %w", p.key(), err)
	}
	message := fmt.Sprintf("%d Machines / %d VMs, %d desired: machines are created again", p.objects, p.instances, p.desired)
	r.record("Unfroze the pool", p, message)
	r.Recorder.Eventf(p.owner, nil, corev1.EventTypeNormal, "Unfrozen", "Unfreeze", "%s", message)
	return nil
}

// record writes a line about a pool.
func (r *OvershootReconciler) record(what string, p *pool, message string) {
	r.Log.Info(what, record.Cluster, record.Key(p.owner.GetNamespace(), p.owner.GetLabels()[clusterv1.ClusterNameLabel]),
		record.Pool, record.Key(p.owner.GetNamespace(), p.owner.GetName()), record.Message, message)
}

// patchMetadata writes changed labels and annotations with an optimistic lock. It does nothing if
// change changes nothing.
func patchMetadata(ctx context.Context, c client.Client, o client.Object, change func()) error {
	before := o.DeepCopyObject().(client.Object)
	change()
	if maps.Equal(before.GetLabels(), o.GetLabels()) && maps.Equal(before.GetAnnotations(), o.GetAnnotations()) {
		return nil
	}
	return c.Patch(ctx, o, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
}

// addFreezeLabel marks a frozen object, for people and for unfreeze.
func addFreezeLabel(o client.Object) {
	all := maps.Clone(o.GetLabels())
	if all == nil {
		all = map[string]string{}
	}
	all[infrav1.FreezeLabel] = "True"
	o.SetLabels(all)
}

// The kinds that own machines.
const (
	deployment = "MachineDeployment"
	set        = "MachineSet"
)

// makesDroverMachines reports whether a pool's machines are Drover's, not another provider's.
func makesDroverMachines(template clusterv1.MachineTemplateSpec) bool {
	return template.Spec.InfrastructureRef.GroupKind() == infrav1.DroverMachineTemplateKind
}

// controllerOf returns the name of the object's controller if it is of the given Cluster API kind.
func controllerOf(o client.Object, kind string) (name string, ok bool) {
	owner := metav1.GetControllerOf(o)
	if owner == nil || owner.Kind != kind {
		return "", false
	}
	gv, err := schema.ParseGroupVersion(owner.APIVersion)
	return owner.Name, err == nil && gv.Group == clusterv1.GroupVersion.Group
}

// pools returns the namespace's pools of Drover machines whose Cluster is not paused, with their
// machines counted.
func (r *OvershootReconciler) pools(ctx context.Context, namespace string) ([]*pool, error) {
	deployments, sets := &clusterv1.MachineDeploymentList{}, &clusterv1.MachineSetList{}
	machines, clusters := &clusterv1.MachineList{}, &clusterv1.ClusterList{}
	ours := &infrav1.DroverMachineList{}
	for list, options := range map[client.ObjectList][]client.ListOption{
		deployments: nil, sets: nil, // they may be modified
		machines: {client.UnsafeDisableDeepCopy}, clusters: {client.UnsafeDisableDeepCopy}, ours: {client.UnsafeDisableDeepCopy},
	} {
		if err := r.Client.List(ctx, list, append(options, client.InNamespace(namespace))...); err != nil {
			return nil, fmt.Errorf("listing %T: %w", list, err)
		}
	}
	paused := map[string]bool{}
	for i := range clusters.Items {
		paused[clusters.Items[i].Name] = ptr.Deref(clusters.Items[i].Spec.Paused, false)
	}
	skip := func(o client.Object, cluster string, template clusterv1.MachineTemplateSpec) bool {
		deleting := !o.GetDeletionTimestamp().IsZero()
		return !makesDroverMachines(template) || paused[cluster] || (deleting && o.GetLabels()[infrav1.FreezeLabel] == "") ||
			!predicates.Watched(o, r.WatchFilterValue)
	}
	var all []*pool
	ofSet := map[string]*pool{}
	byName := map[string]*pool{}
	for i := range deployments.Items {
		d := &deployments.Items[i]
		if skip(d, d.Spec.ClusterName, d.Spec.Template) {
			continue
		}
		p := &pool{kind: deployment, owner: d, unseen: d.Status.ObservedGeneration < d.Generation}
		p.size = size{int(ptr.Deref(d.Spec.Replicas, 1)), surge(d)}
		all, byName[d.Name] = append(all, p), p
	}
	for i := range sets.Items {
		s := &sets.Items[i]
		owner, owned := controllerOf(s, deployment)
		switch {
		case skip(s, s.Spec.ClusterName, s.Spec.Template):
			continue
		case owned:
			if p := byName[owner]; p != nil {
				p.sets, ofSet[s.Name] = append(p.sets, s), p
				p.unseen = p.unseen || s.Status.ObservedGeneration < s.Generation
			}
		default:
			p := &pool{kind: set, owner: s, sets: []*clusterv1.MachineSet{s}, unseen: s.Status.ObservedGeneration < s.Generation}
			p.desired = int(ptr.Deref(s.Spec.Replicas, 1))
			all, ofSet[s.Name] = append(all, p), p
		}
	}
	r.count(ofSet, machines.Items, ours.Items)
	return all, nil
}

// count counts the machines of each pool. ofSet maps the names of MachineSets to pools.
func (r *OvershootReconciler) count(ofSet map[string]*pool, machines []clusterv1.Machine, ours []infrav1.DroverMachine) {
	ofMachine := map[string]*pool{}
	for i := range machines {
		m := &machines[i]
		owner, owned := controllerOf(m, set)
		if !owned || m.Spec.InfrastructureRef.GroupKind() != infrav1.DroverMachineKind || !m.DeletionTimestamp.IsZero() {
			continue
		}
		if p := ofSet[owner]; p != nil {
			p.objects++
			ofMachine[m.Spec.InfrastructureRef.Name] = p
		}
	}
	for i := range ours {
		m := &ours[i]
		p := ofMachine[m.Name]
		account := r.Accounts.Get(client.ObjectKey{Namespace: m.Namespace, Name: m.Spec.AccountRef.Name})
		if p != nil && account != nil && m.DeletionTimestamp.IsZero() && m.Spec.Creation.Token != "" {
			p.instances += account.Living(m.Spec.Creation.Token)
		}
	}
}

// surge returns how many extra machines a rolling update may create, rounded as Cluster API does.
func surge(d *clusterv1.MachineDeployment) int {
	strategy := d.Spec.Rollout.Strategy
	if strategy.Type == clusterv1.OnDeleteMachineDeploymentStrategyType {
		return 0
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(ptr.To(ptr.Deref(strategy.RollingUpdate.MaxSurge, intstr.FromInt32(1))),
		int(ptr.Deref(d.Spec.Replicas, 1)), true)
	if err != nil {
		return 1
	}
	return n
}
