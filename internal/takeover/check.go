// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/tagging"
)

// Check adds a finding to the plan for each reason why Cluster API or Drover would make or delete
// a machine once the Cluster's pause ends, and for an other system that runs. It reads everything
// again, the VMs from the cloud.
func (t *Takeover) Check(ctx context.Context, p *Plan) error {
	paused, err := t.paused(ctx)
	if err != nil {
		return err
	}
	if !paused {
		p.findingsFor("Cluster", t.Cluster).addRefused("spec.paused", "no takeover has paused it: stage first")
	}
	if t.Account.Spec.OrphanPolicy == infrav1.OrphanPolicyDelete {
		p.findingsFor("DroverAccount", t.Account.Name).addRefused("spec.orphanPolicy",
			"it is Delete: set it to Report until the takeover is complete")
	}
	s, err := t.staged(ctx)
	if err != nil {
		return err
	}
	listed, err := t.VMs.Tagged(ctx, []string{cloud.TagOwnership, cloud.TagToken})
	if err != nil {
		return fmt.Errorf("listing the VMs with Drover's tags: %w", err)
	}
	byToken := map[string][]tagging.Instance{}
	for _, vm := range listed {
		byToken[vm.Token] = append(byToken[vm.Token], vm)
	}
	for i := range p.Pools {
		t.checkPool(p, &p.Pools[i], s, byToken)
	}
	known, err := t.others(ctx)
	if err != nil {
		return err
	}
	for _, vm := range s.vms {
		known[vm.Spec.Creation.Token] = true
	}
	for _, vm := range listed {
		if vm.OwnershipID == t.OwnershipID && !known[vm.Token] {
			p.findingsFor("VM", vm.ID).addRefused("", "it has the tags of Cluster %s, and no DroverMachine: roll back, or delete it", t.Cluster)
		}
	}
	return t.checkStopped(ctx, p)
}

func (t *Takeover) checkPool(p *Plan, pool *Pool, s *staged, byToken map[string][]tagging.Instance) {
	d := named(s.deployments, pool.Name)
	about := p.findingsFor("MachineDeployment", t.Namespace+"/"+pool.Name)
	if d == nil {
		about.addRefused("", "it is not staged")
		return
	}
	if ptr.Deref(d.Spec.Replicas, 0) != pool.Replicas {
		about.addRefused("spec.replicas", "it is %d, and the old pool has %d machines", ptr.Deref(d.Spec.Replicas, 0), pool.Replicas)
	}
	if len(pool.Machines) == 0 {
		return
	}
	var sets []string
	for _, set := range s.sets {
		if set.Labels[clusterv1.MachineDeploymentNameLabel] == d.Name {
			sets = append(sets, set.Name)
		}
	}
	set := named(s.sets, pool.Set)
	if set == nil || len(sets) != 1 {
		about.addRefused("", "it must have one MachineSet, %s, and has %q", pool.Set, sets)
		return
	}
	t.checkSet(p, pool, d, set, s)
	selector, err := metav1.LabelSelectorAsSelector(&set.Spec.Selector)
	if err != nil {
		p.findingsFor("MachineSet", set.Name).addRefused("spec.selector", "%s", err)
		return
	}
	for _, m := range pool.Machines {
		t.checkMachine(p, m, selector, s, byToken)
	}
}

// checkSet tests what makes Cluster API adopt the MachineSet as the current one, with all of its
// machines.
func (t *Takeover) checkSet(p *Plan, pool *Pool, d *clusterv1.MachineDeployment, set *clusterv1.MachineSet, s *staged) {
	about := p.findingsFor("MachineSet", t.Namespace+"/"+set.Name)
	if ptr.Deref(set.Spec.Replicas, 0) != pool.Replicas {
		about.addRefused("spec.replicas", "it is %d, and the old pool has %d machines", ptr.Deref(set.Spec.Replicas, 0), pool.Replicas)
	}
	if !equality.Semantic.DeepEqual(set.Spec.Template.Spec, d.Spec.Template.Spec) {
		about.addRefused("spec.template.spec", "it differs from that of the MachineDeployment, so all machines would be rolled out")
	}
	for _, of := range []map[string]string{set.Labels, set.Spec.Selector.MatchLabels, set.Spec.Template.Labels} {
		if of[clusterv1.MachineDeploymentUniqueLabel] != imported {
			about.addRefused("metadata.labels", "the label %s is missing, or in the selector or the template",
				clusterv1.MachineDeploymentUniqueLabel)
			break
		}
	}
	n := 0
	for _, m := range s.machines {
		if m.Labels[clusterv1.MachineSetNameLabel] == set.Name {
			n++
		}
	}
	if n != int(pool.Replicas) {
		about.addRefused("", "it has %d Machines, and must have %d", n, pool.Replicas)
	}
}

func (t *Takeover) checkMachine(p *Plan, m Machine, selector labels.Selector, s *staged, byToken map[string][]tagging.Instance) {
	about := p.findingsFor("Machine", t.Namespace+"/"+m.Name)
	machine, vm := named(s.machines, m.Name), named(s.vms, m.Name)
	if machine == nil || vm == nil {
		about.addRefused("", "it or its DroverMachine is not staged")
		return
	}
	if machine.DeletionTimestamp != nil || vm.DeletionTimestamp != nil {
		about.addRefused("metadata.deletionTimestamp", "it or its DroverMachine is being deleted: roll back")
	}
	if _, held := machine.Annotations[hook]; !held {
		about.addRefused("metadata.annotations", "%s is missing", hook)
	}
	if !selector.Matches(labels.Set(machine.Labels)) {
		about.addRefused("metadata.labels", "its MachineSet does not select it")
	}
	if machine.Spec.ProviderID != m.ProviderID || vm.Spec.ProviderID != m.ProviderID {
		about.addRefused("spec.providerID", "it is not the Node's, %s", m.ProviderID)
	}
	if ref := metav1.GetControllerOf(vm); ref == nil || ref.UID != machine.UID {
		about.addRefused("", "it does not own its DroverMachine")
	}
	if vm.Spec.Creation.Token != t.token(m) {
		about.addRefused("", "its DroverMachine has the token %q, not %q", vm.Spec.Creation.Token, t.token(m))
	}
	found := byToken[t.token(m)]
	if len(found) != 1 {
		about.addRefused("", "%d VMs have its token %s, and exactly one must: stage again", len(found), t.token(m))
		return
	}
	switch one := found[0]; {
	case one.ID != m.Instance || one.ProviderID != m.ProviderID:
		about.addRefused("", "its token is on VM %s, %s", one.ID, one.ProviderID)
	case one.OwnershipID != t.OwnershipID:
		about.addRefused("", "VM %s has the ownership ID of another cluster", one.ID)
	case one.State != cloud.StateRunning:
		about.addRefused("", "VM %s is %s, not running", one.ID, one.State)
	case one.Partial:
		about.addRefused("", "VM %s has only a part of what it must have: stage again", one.ID)
	}
}

// named returns the object of this name, or nil.
func named[T any, P interface {
	*T
	client.Object
}](objects []P, name string) P {
	for _, o := range objects {
		if o.GetName() == name {
			return o
		}
	}
	return nil
}

// leaseTime is how long after its last renewal a Lease of the other system counts. It holds one for
// 15 seconds; clocks may differ.
const leaseTime = time.Minute

// checkStopped refuses the takeover while the other system runs, or a cluster-autoscaler that would
// scale a pool meanwhile, as far as their Leases and Deployments tell.
func (t *Takeover) checkStopped(ctx context.Context, p *Plan) error {
	if t.System.Cluster != nil {
		if err := t.checkPaused(ctx, p); err != nil {
			return err
		}
		_, err := running(ctx, p, t.Old, t.OldNamespace, autoscaler, autoscaler)
		return err
	}
	seen, err := running(ctx, p, t.Old, t.OldNamespace, t.System.Name, t.System.leases...)
	if err != nil {
		return err
	}
	if !seen && !t.Stopped {
		p.findingsFor("Namespace", t.OldNamespace).addRefused("", "it has no Lease and no Deployment of %s: stop it, and say so with --stopped",
			t.System.Name)
	}
	_, err = running(ctx, p, t.Old, t.OldNamespace, autoscaler, autoscaler)
	return err
}

// autoscaler is in the name of the autoscaler's image, also in forks, and is the name of its Lease.
const autoscaler = "cluster-autoscaler"

// running refuses the takeover while a program runs in a namespace: its image has the name, and its
// processes hold the Leases. It reports whether it has seen any of these.
func running(ctx context.Context, p *Plan, c client.Reader, namespace, name string, held ...string) (seen bool, err error) {
	leases := &coordinationv1.LeaseList{}
	if err := c.List(ctx, leases, client.InNamespace(namespace)); err != nil {
		return false, fmt.Errorf("listing the Leases of namespace %s: %w", namespace, err)
	}
	for _, l := range leases.Items {
		if !slices.Contains(held, l.Name) {
			continue
		}
		seen = true
		if l.Spec.RenewTime != nil && time.Since(l.Spec.RenewTime.Time) < leaseTime {
			p.findingsFor("Lease", l.Name).addRefused("spec.renewTime", "it was renewed less than %s ago: stop %s, all of its processes",
				leaseTime, name)
		}
	}
	deployments, err := deploymentsOf(ctx, c, namespace, name)
	for i := range deployments {
		d := &deployments[i]
		seen = true
		if ptr.Deref(d.Spec.Replicas, 1) > 0 || d.Status.Replicas > 0 {
			p.findingsFor("Deployment", d.Name).addRefused("spec.replicas", "it runs %s: scale it to 0", name)
		}
	}
	return seen, err
}

// deploymentsOf returns the Deployments of a namespace with a container whose image has the name. A
// webhook is another program, of the same image: it deletes no machine, and may be needed to change
// the other system's objects.
func deploymentsOf(ctx context.Context, c client.Reader, namespace, name string) ([]appsv1.Deployment, error) {
	list := &appsv1.DeploymentList{}
	if err := c.List(ctx, list, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("listing the Deployments of namespace %s: %w", namespace, err)
	}
	return slices.DeleteFunc(list.Items, func(d appsv1.Deployment) bool {
		return !slices.ContainsFunc(d.Spec.Template.Spec.Containers, func(c corev1.Container) bool {
			return strings.Contains(c.Image, name) && (len(c.Command) == 0 || path.Base(c.Command[0]) != "webhook")
		})
	}), nil
}

// notConverged returns what does not match the plan yet: a Machine without its Node or that is
// being deleted, or a pool that creates, rolls or deletes machines. It returns "" if everything
// matches.
func (t *Takeover) notConverged(ctx context.Context) (missing string, err error) {
	s, err := t.staged(ctx)
	if err != nil {
		return "", err
	}
	for _, m := range s.machines {
		if !m.Status.NodeRef.IsDefined() {
			return "Machine " + m.Name + " has no Node", nil
		}
		if m.DeletionTimestamp != nil {
			return "Machine " + m.Name + " is being deleted", nil
		}
	}
	for _, d := range s.deployments {
		want := ptr.Deref(d.Spec.Replicas, 0)
		for what, n := range map[string]*int32{
			"": d.Status.Replicas, "up-to-date ": d.Status.UpToDateReplicas, "ready ": d.Status.ReadyReplicas,
			"available ": d.Status.AvailableReplicas,
		} {
			if ptr.Deref(n, -1) != want || d.Status.ObservedGeneration < d.Generation {
				return fmt.Sprintf("MachineDeployment %s has %d %sreplicas of %d", d.Name, ptr.Deref(n, 0), what, want), nil
			}
		}
	}
	return "", nil
}

// Switched reports whether something is staged in a Cluster that is not paused.
func (t *Takeover) Switched(ctx context.Context) (bool, error) {
	paused, err := t.paused(ctx)
	if err != nil || paused {
		return false, err
	}
	s, err := t.staged(ctx)
	return err == nil && len(s.machines) > 0, err
}

// Switch ends the Cluster's pause, and waits until Cluster API and Drover have adopted everything.
// Deletions are still held. The caller has checked the plan. It returns how many machines these are.
func (t *Takeover) Switch(ctx context.Context) (machines int, err error) {
	if err := t.setPaused(ctx, false); err != nil {
		return 0, err
	}
	if err := until(ctx, "all machines are adopted", t.notConverged); err != nil {
		return 0, err
	}
	s, err := t.staged(ctx)
	if err != nil {
		return 0, err
	}
	return len(s.machines), nil
}
