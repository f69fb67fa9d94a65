// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/tagging"
)

// VMs are the target's account. Each call waits for its turn in the account's rate limit.
type VMs interface {
	Tagged(ctx context.Context, keys []string) ([]tagging.Instance, error)
	Tag(ctx context.Context, id string, tags map[string]string, own []string) error
	Untag(ctx context.Context, ids, keys []string) error
}

// Takeover makes what a Plan says. Each step learns from objects and tags how far an earlier run
// came, so it can be interrupted anywhere and run again; nothing is kept elsewhere.
type Takeover struct {
	*Target
	System System
	// Management has the Cluster, Old the other system's objects, in OldNamespace, and Nodes the
	// Nodes.
	Management, Old, Nodes client.Client
	OldNamespace           string
	VMs                    VMs
	// Stopped is the user's word that the other system does not run, for one that can't be seen.
	Stopped bool
	// AssumeStopped is the user's word that the managers whose Deployments have no replicas run
	// nowhere else. A rollback then does not wait for them to see the pause.
	AssumeStopped bool
}

// Stage pauses the Cluster, and makes everything that stands for the machines: first the objects,
// from the top to the bottom, and of each machine the tags last. So nothing that Drover finds in
// the cloud is without an object.
func (t *Takeover) Stage(ctx context.Context, p *Plan) (*Made, error) {
	made := &Made{Objects: map[string]int{}}
	if len(p.Pools) == 0 {
		return made, errors.New("there is no pool to take over")
	}
	if _, committing, err := t.state(ctx); err != nil {
		return made, err
	} else if committing {
		return made, errors.New(begun)
	}
	if err := t.setPaused(ctx, true); err != nil {
		return made, err
	}
	tagged, err := t.ours(ctx)
	if err != nil {
		return made, err
	}
	for i := range p.Pools {
		if err := t.stagePool(ctx, &p.Pools[i], tagged, made); err != nil {
			return made, fmt.Errorf("pool %s: %w", p.Pools[i].Name, err)
		}
	}
	return made, nil
}

// Made is what one run of Stage made. What an earlier run made is not in it.
type Made struct {
	// Objects counts the objects of each kind.
	Objects map[string]int `json:"objects"`
	// Tagged counts the VMs.
	Tagged int `json:"tagged"`
}

func (t *Takeover) stagePool(ctx context.Context, pool *Pool, tagged map[string]tagging.Instance, made *Made) error {
	d := t.deployment(pool)
	for _, o := range []client.Object{t.machineTemplate(pool), t.configTemplate(pool), d} {
		if err := t.make(ctx, o, made); err != nil {
			return err
		}
	}
	if len(pool.Machines) == 0 {
		return nil
	}
	set := t.machineSet(pool, d) // of d as it is stored
	if err := t.make(ctx, set, made); err != nil {
		return err
	}
	for _, m := range pool.Machines {
		machine, vm := t.machine(m, pool, set), t.droverMachine(m, pool, set)
		if err := t.make(ctx, machine, made); err != nil {
			return err
		}
		// not the MachineSet's: Cluster API deletes those of a MachineSet that no Machine refers to
		vm.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(machine, clusterv1.GroupVersion.WithKind("Machine"))}
		if err := t.make(ctx, vm, made); err != nil {
			return err
		}
		if vm, has := tagged[m.Instance]; has && !vm.Partial {
			continue
		}
		if err := t.VMs.Tag(ctx, m.Instance, t.Tags(m), m.OwnedResources); err != nil {
			return fmt.Errorf("tagging %s: %w", m.Instance, err)
		}
		made.Tagged++
	}
	return nil
}

// make creates o, or reads what an earlier run has created.
func (t *Takeover) make(ctx context.Context, o client.Object, made *Made) error {
	kind := o.GetObjectKind().GroupVersionKind()
	there := o.DeepCopyObject().(client.Object)
	err := t.Management.Get(ctx, client.ObjectKeyFromObject(o), there)
	switch {
	case apierrors.IsNotFound(err):
		if err = t.Management.Create(ctx, o); err == nil {
			made.Objects[kind.Kind]++
		}
	case err == nil && there.GetAnnotations()[Mark] == "":
		err = fmt.Errorf("it exists, and is not of this takeover")
	case err == nil && there.GetDeletionTimestamp() != nil:
		err = fmt.Errorf("it is being deleted: roll back first")
	case err == nil:
		err = t.Management.Get(ctx, client.ObjectKeyFromObject(o), o)
	}
	if err != nil {
		return fmt.Errorf("making %s %s: %w", kind.Kind, o.GetName(), err)
	}
	o.GetObjectKind().SetGroupVersionKind(kind)
	return nil
}

// ours returns the VMs that have the tags of this Cluster's takeover, by ID: their token follows
// from it. VMs that Drover makes have other tokens.
func (t *Takeover) ours(ctx context.Context) (map[string]tagging.Instance, error) {
	listed, err := t.VMs.Tagged(ctx, []string{cloud.TagOwnership, cloud.TagToken})
	if err != nil {
		return nil, fmt.Errorf("listing the VMs with Drover's tags: %w", err)
	}
	vms := map[string]tagging.Instance{}
	for _, vm := range listed {
		if vm.OwnershipID == t.OwnershipID && vm.Token == t.token(Machine{Instance: vm.ID}) {
			vms[vm.ID] = vm
		}
	}
	return vms, nil
}

// others returns the creation tokens of the Cluster's DroverMachines that are not staged: Drover has
// made their VMs, or a takeover that is complete has brought them. A DroverMachine that a rollback
// has deleted is in neither set, so that its VM still loses its tags.
func (t *Takeover) others(ctx context.Context) (map[string]bool, error) {
	list := &infrav1.DroverMachineList{}
	err := t.Management.List(ctx, list, client.InNamespace(t.Namespace), client.MatchingLabels{clusterv1.ClusterNameLabel: t.Cluster})
	if err != nil {
		return nil, fmt.Errorf("listing the DroverMachines of Cluster %s: %w", t.Cluster, err)
	}
	tokens := map[string]bool{}
	for i := range list.Items {
		if vm := &list.Items[i]; !metav1.HasAnnotation(vm.ObjectMeta, Mark) {
			tokens[vm.Spec.Creation.Token] = true
		}
	}
	return tokens, nil
}

// unfinished returns those of ours that no takeover has brought completely.
func (t *Takeover) unfinished(ctx context.Context) (map[string]tagging.Instance, error) {
	vms, err := t.ours(ctx)
	if err != nil {
		return nil, err
	}
	others, err := t.others(ctx)
	maps.DeleteFunc(vms, func(_ string, vm tagging.Instance) bool { return others[vm.Token] })
	return vms, err
}

// setPaused pauses the Cluster, with the Mark, or ends its pause. It returns when Cluster API and
// Drover have seen it: a controller whose cache is behind would make or delete machines.
func (t *Takeover) setPaused(ctx context.Context, paused bool) error {
	cluster := &clusterv1.Cluster{}
	key := client.ObjectKey{Namespace: t.Namespace, Name: t.Cluster}
	if err := t.Management.Get(ctx, key, cluster); err != nil {
		return fmt.Errorf("reading Cluster %s: %w", t.Cluster, err)
	}
	_, ours := cluster.Annotations[Mark]
	switch is := ptr.Deref(cluster.Spec.Paused, false); {
	case paused && is && !ours:
		return fmt.Errorf("somebody else has paused Cluster %s: end that first", t.Cluster)
	case is != paused:
		before := cluster.DeepCopy()
		cluster.Spec.Paused = ptr.To(paused)
		delete(cluster.Annotations, Mark)
		if paused {
			metav1.SetMetaDataAnnotation(&cluster.ObjectMeta, Mark, "")
		}
		if err := t.Management.Patch(ctx, cluster, client.MergeFrom(before)); err != nil {
			return fmt.Errorf("setting spec.paused of Cluster %s: %w", t.Cluster, err)
		}
	}
	want := map[bool]metav1.ConditionStatus{true: metav1.ConditionTrue, false: metav1.ConditionFalse}[paused]
	return until(ctx, "the condition Paused is "+string(want), func(ctx context.Context) (string, error) {
		if err := t.Management.Get(ctx, key, cluster); err != nil {
			return "", err
		}
		if c := conditions.Get(cluster, clusterv1.PausedCondition); c == nil || c.Status != want || c.ObservedGeneration < cluster.Generation {
			return "Cluster " + t.Cluster, nil
		}
		infrastructure := &infrav1.DroverCluster{}
		key := client.ObjectKey{Namespace: t.Namespace, Name: cluster.Spec.InfrastructureRef.Name}
		if err := t.Management.Get(ctx, key, infrastructure); err != nil {
			return "", err
		}
		if c := conditions.Get(infrastructure, clusterv1.PausedCondition); c == nil || c.Status != want {
			return "DroverCluster " + key.Name, nil
		}
		return "", nil
	})
}

// state reports whether this takeover has paused the Cluster, and whether a commit has begun.
func (t *Takeover) state(ctx context.Context) (paused, committing bool, err error) {
	cluster := &clusterv1.Cluster{}
	if err := t.Management.Get(ctx, client.ObjectKey{Namespace: t.Namespace, Name: t.Cluster}, cluster); err != nil {
		return false, false, fmt.Errorf("reading Cluster %s: %w", t.Cluster, err)
	}
	_, ours := cluster.Annotations[Mark]
	_, committing = cluster.Annotations[commitMark]
	return ours && ptr.Deref(cluster.Spec.Paused, false), committing, nil
}

// paused reports whether this takeover has paused the Cluster.
func (t *Takeover) paused(ctx context.Context) (bool, error) {
	paused, _, err := t.state(ctx)
	return paused, err
}

// interval is the time between two looks at something that is waited for.
const interval = 500 * time.Millisecond

// until waits until check says that nothing is missing.
func until(ctx context.Context, what string, check func(context.Context) (missing string, err error)) error {
	missing := ""
	err := wait.PollUntilContextCancel(ctx, interval, true, func(ctx context.Context) (bool, error) {
		var err error
		missing, err = check(ctx)
		return missing == "", err
	})
	if err != nil && missing != "" {
		return fmt.Errorf("waiting until %s: %s: %w", what, missing, err)
	}
	if err != nil {
		return fmt.Errorf("waiting until %s: %w", what, err)
	}
	return nil
}

// staged are the objects that stand for the machines: those with the Mark.
type staged struct {
	checks      []*clusterv1.MachineHealthCheck
	deployments []*clusterv1.MachineDeployment
	sets        []*clusterv1.MachineSet
	machines    []*clusterv1.Machine
	vms         []*infrav1.DroverMachine
	templates   []client.Object
}

func (t *Takeover) staged(ctx context.Context) (*staged, error) {
	var (
		s           staged
		checks      clusterv1.MachineHealthCheckList
		deployments clusterv1.MachineDeploymentList
		sets        clusterv1.MachineSetList
		machines    clusterv1.MachineList
		vms         infrav1.DroverMachineList
		templates   infrav1.DroverMachineTemplateList
		configs     bootstrapv1.DroverConfigTemplateList
	)
	for _, list := range []client.ObjectList{&checks, &deployments, &sets, &machines, &vms, &templates, &configs} {
		err := t.Management.List(ctx, list, client.InNamespace(t.Namespace), client.MatchingLabels{clusterv1.ClusterNameLabel: t.Cluster})
		if err != nil {
			return nil, fmt.Errorf("listing what is staged: %w", err)
		}
	}
	s.checks = marked(checks.Items, func(o *clusterv1.MachineHealthCheck) client.Object { return o })
	s.deployments = marked(deployments.Items, func(o *clusterv1.MachineDeployment) client.Object { return o })
	s.sets = marked(sets.Items, func(o *clusterv1.MachineSet) client.Object { return o })
	s.machines = marked(machines.Items, func(o *clusterv1.Machine) client.Object { return o })
	s.vms = marked(vms.Items, func(o *infrav1.DroverMachine) client.Object { return o })
	for _, o := range marked(templates.Items, func(o *infrav1.DroverMachineTemplate) client.Object { return o }) {
		s.templates = append(s.templates, o)
	}
	for _, o := range marked(configs.Items, func(o *bootstrapv1.DroverConfigTemplate) client.Object { return o }) {
		s.templates = append(s.templates, o)
	}
	return &s, nil
}

// marked returns the items that have the Mark.
func marked[T any](items []T, as func(*T) client.Object) (with []*T) {
	for i := range items {
		if _, has := as(&items[i]).GetAnnotations()[Mark]; has {
			with = append(with, &items[i])
		}
	}
	return with
}

// all returns the objects from the bottom to the top.
func (s *staged) all() (all []client.Object) {
	for _, o := range s.checks {
		all = append(all, o)
	}
	for _, o := range s.vms {
		all = append(all, o)
	}
	for _, o := range s.machines {
		all = append(all, o)
	}
	for _, o := range s.sets {
		all = append(all, o)
	}
	for _, o := range s.deployments {
		all = append(all, o)
	}
	return append(all, s.templates...)
}

// missingOld says which staged Machine the other system does not have, or returns "".
func (t *Takeover) missingOld(ctx context.Context, s *staged) (why string, err error) {
	list := listOf(t.System.api, "Machine")
	if err := t.Old.List(ctx, list, client.InNamespace(t.OldNamespace)); err != nil {
		return "", fmt.Errorf("listing the Machines of %s: %w", t.System.Name, err)
	}
	names := map[string]bool{}
	for i := range list.Items {
		names[list.Items[i].GetName()] = true
	}
	for _, m := range s.machines {
		if !names[m.Name] {
			return fmt.Sprintf("namespace %s does not have Machine %s of %s, which is staged: give the options of stage",
				t.OldNamespace, m.Name, t.System.Name), nil
		}
	}
	return "", nil
}

// Rollback undoes what was staged, from any point until the takeover is complete: it pauses the
// Cluster, deletes the objects without anything that a deletion does, and takes the tags off. What
// earlier takeovers have brought stays as it is.
func (t *Takeover) Rollback(ctx context.Context) error {
	tagged, err := t.unfinished(ctx)
	if err != nil {
		return err
	}
	s, err := t.staged(ctx)
	if err != nil {
		return err
	}
	if len(s.all()) == 0 {
		// Without the takeover's pause, nothing is staged, or the takeover is complete: then its
		// VMs keep their tags. A commit that was killed at its end is not.
		if paused, committing, err := t.state(ctx); err != nil || !paused && !committing {
			return err
		}
	}
	if why, err := t.mayRollBack(ctx, s, tagged); err != nil {
		return err
	} else if why != "" {
		return errors.New(why)
	}
	if err := t.setPaused(ctx, true); err != nil {
		return err
	}
	if err := t.untilAllPaused(ctx, s); err != nil {
		return err
	}
	for _, o := range s.all() {
		if err := erase(ctx, t.Management, o); err != nil {
			return err
		}
	}
	ids := slices.Sorted(maps.Keys(tagged))
	if len(ids) > 0 {
		if err := t.VMs.Untag(ctx, ids, []string{cloud.TagMachine, cloud.TagToken, cloud.TagOwnership}); err != nil {
			return fmt.Errorf("taking the tags off %s: %w", strings.Join(ids, ", "), err)
		}
	}
	return t.setPaused(ctx, false)
}

// begun says that there is no way back.
const begun = "a commit has begun, so there is no way back: run commit again"

// mayRollBack returns why there is no way back, or "": a commit has begun, or a pool has other
// machines than those that were staged, which would be deleted with it.
func (t *Takeover) mayRollBack(ctx context.Context, s *staged, tagged map[string]tagging.Instance) (why string, err error) {
	if _, committing, err := t.state(ctx); err != nil {
		return "", err
	} else if committing {
		return begun, nil
	}
	for _, vm := range s.vms {
		for _, one := range tagged {
			if _, has := one.Tags[vm.Annotations[Mark]]; one.Token == vm.Spec.Creation.Token && !has {
				return begun, nil
			}
		}
	}
	if missing, err := t.missingOld(ctx, s); err != nil || missing != "" {
		return missing, err // without it, the VM would be nobody's
	}
	for _, d := range s.deployments {
		machines := &clusterv1.MachineList{}
		if err := t.Management.List(ctx, machines, client.InNamespace(t.Namespace),
			client.MatchingLabels{clusterv1.MachineDeploymentNameLabel: d.Name}); err != nil {
			return "", fmt.Errorf("listing the Machines of MachineDeployment %s: %w", d.Name, err)
		}
		for i := range machines.Items {
			if m := &machines.Items[i]; !metav1.HasAnnotation(m.ObjectMeta, Mark) {
				return fmt.Sprintf("Machine %s of MachineDeployment %s was made after the switch, so there is no way back", m.Name, d.Name), nil
			}
		}
	}
	return "", nil
}

// untilAllPaused returns when each object's controller has seen the pause, or is stopped. Nothing
// acts on a template.
func (t *Takeover) untilAllPaused(ctx context.Context, s *staged) error {
	all := s.all()
	all = all[:len(all)-len(s.templates)]
	return until(ctx, "the pause is seen", func(ctx context.Context) (string, error) {
		core, drover, err := t.stoppedManagers(ctx)
		if err != nil {
			return "", err
		}
		for _, o := range all {
			_, isDrovers := o.(*infrav1.DroverMachine)
			if stopped := core && !isDrovers || drover && isDrovers; stopped || conditions.IsTrue(o.(conditions.Getter), clusterv1.PausedCondition) {
				continue
			}
			if err := t.Management.Get(ctx, client.ObjectKeyFromObject(o), o); client.IgnoreNotFound(err) != nil {
				return "", err
			} else if err == nil && !conditions.IsTrue(o.(conditions.Getter), clusterv1.PausedCondition) {
				return fmt.Sprintf("%T %s", o, o.GetName()), nil
			}
		}
		return "", nil
	})
}

// stoppedManagers reports whether Cluster API's core manager and Drover's are scaled to 0, if the
// user states that they run nowhere else. Only a Deployment that is there counts.
func (t *Takeover) stoppedManagers(ctx context.Context) (core, drover bool, err error) {
	if !t.AssumeStopped {
		return false, false, nil
	}
	list := &appsv1.DeploymentList{}
	if err := t.Management.List(ctx, list, client.HasLabels{clusterv1.ProviderNameLabel}); err != nil {
		return false, false, fmt.Errorf("listing the Deployments of Cluster API's providers: %w", err)
	}
	stopped := func(provider string) bool {
		seen := false
		for i := range list.Items {
			d := &list.Items[i]
			if d.Labels[clusterv1.ProviderNameLabel] != provider {
				continue
			}
			if ptr.Deref(d.Spec.Replicas, 1) > 0 || d.Status.Replicas > 0 {
				return false
			}
			seen = true
		}
		return seen
	}
	return stopped("cluster-api"), stopped("infrastructure-drover"), nil
}

// erase deletes an object on which no controller may act: its Cluster is paused, or its system does
// not run. The finalizers go first, and again as often as a controller adds one. Other finalizers
// than those given are waited for; none given: all go.
func erase(ctx context.Context, c client.Client, o client.Object, finalizers ...string) error {
	name := fmt.Sprintf("%T %s", o, client.ObjectKeyFromObject(o))
	return until(ctx, name+" is deleted", func(ctx context.Context) (string, error) {
		err := patch(ctx, c, o, func() {
			o.SetFinalizers(slices.DeleteFunc(slices.Clone(o.GetFinalizers()), func(f string) bool {
				return len(finalizers) == 0 || slices.Contains(finalizers, f)
			}))
		})
		if err == nil && o.GetDeletionTimestamp() == nil {
			err = client.IgnoreNotFound(c.Delete(ctx, o, client.PropagationPolicy(metav1.DeletePropagationBackground)))
		}
		if err == nil {
			err = c.Get(ctx, client.ObjectKeyFromObject(o), o)
			if apierrors.IsNotFound(err) {
				return "", nil
			}
		}
		return fmt.Sprintf("it has the finalizers %q", o.GetFinalizers()), err
	})
}
