// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-io/drover/cloud"
)

// Commit completes the takeover. There is no way back from here: the VMs lose the tag by which the
// other system finds them, then its objects go, and at last nothing holds deletions any more. The
// plan may lack what an earlier run has deleted.
func (t *Takeover) Commit(ctx context.Context, p *Plan) error {
	other := &Plan{}
	if err := t.checkStopped(ctx, other); err != nil {
		return err
	}
	for _, f := range other.Findings {
		return fmt.Errorf("%s: %s", f.Object, f.Message)
	}
	s, err := t.staged(ctx)
	if err != nil {
		return err
	}
	_, committing, err := t.state(ctx)
	if err != nil {
		return err
	}
	if !committing { // later, nothing may hold the commit up
		if len(s.all()) == 0 {
			return nil // it is complete, or was never staged
		}
		missing, err := t.missingOld(ctx, s)
		if err != nil {
			return err
		}
		if missing != "" {
			return errors.New(missing)
		}
		missing, err = t.notConverged(ctx)
		if err != nil {
			return err
		}
		if missing != "" {
			return fmt.Errorf("%s: switch first, and wait until all machines are adopted", missing)
		}
	}
	olds, err := t.chooseOld(ctx, s)
	if err != nil {
		return err
	}
	for i := range p.Pools {
		if d := named(s.deployments, p.Pools[i].Name); d != nil {
			if err := t.restoreAutomation(ctx, &p.Pools[i], d); err != nil {
				return err
			}
		}
	}
	if err := t.markCommit(ctx, true); err != nil {
		return err
	}
	if err := t.removeSourceTags(ctx, s); err != nil {
		return err
	}
	for _, o := range olds {
		if o.GetKind() == "MachineClass" {
			if err := t.removeSecretFinalizers(ctx, o); err != nil {
				return err
			}
		}
		if err := erase(ctx, t.Old, o, t.System.finalizers...); err != nil {
			return err
		}
	}
	for _, m := range s.machines {
		if m.Status.NodeRef.Name == "" {
			continue
		}
		if err := t.cleanUpNode(ctx, m.Status.NodeRef.Name); err != nil {
			return err
		}
	}
	if err := t.release(ctx, s); err != nil {
		return err
	}
	return t.markCommit(ctx, false)
}

// markCommit records on the Cluster that a commit has begun, or that it is done.
func (t *Takeover) markCommit(ctx context.Context, begun bool) error {
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: t.Namespace, Name: t.Cluster}}
	err := patch(ctx, t.Management, cluster, func() {
		if begun {
			metav1.SetMetaDataAnnotation(&cluster.ObjectMeta, commitMark, "")
			return
		}
		delete(cluster.Annotations, commitMark)
	})
	if err != nil {
		return fmt.Errorf("annotating Cluster %s: %w", t.Cluster, err)
	}
	return nil
}

// restoreAutomation gives a pool what would make or delete machines before the commit: its
// MachineHealthCheck, and the annotations by which an autoscaler finds it.
func (t *Takeover) restoreAutomation(ctx context.Context, pool *Pool, d *clusterv1.MachineDeployment) error {
	if pool.Health != nil {
		check := t.healthCheck(pool)
		err := t.Management.Get(ctx, client.ObjectKeyFromObject(check), check.DeepCopy())
		if apierrors.IsNotFound(err) {
			err = t.Management.Create(ctx, check)
		}
		if err != nil {
			return fmt.Errorf("making MachineHealthCheck %s: %w", check.Name, err)
		}
	}
	if pool.Size != nil {
		err := patch(ctx, t.Management, d, func() {
			metav1.SetMetaDataAnnotation(&d.ObjectMeta, clusterv1.AutoscalerMinSizeAnnotation, pool.Size.Min)
			metav1.SetMetaDataAnnotation(&d.ObjectMeta, clusterv1.AutoscalerMaxSizeAnnotation, pool.Size.Max)
		})
		if err != nil {
			return fmt.Errorf("writing the autoscaler's annotations of MachineDeployment %s: %w", d.Name, err)
		}
	}
	return nil
}

// removeSourceTags takes the keys by which the other system finds its VMs off those of this
// takeover.
func (t *Takeover) removeSourceTags(ctx context.Context, s *staged) error {
	tagged, err := t.ours(ctx)
	if err != nil {
		return err
	}
	keys := map[string]bool{}
	for _, vm := range s.vms {
		keys[vm.Annotations[Mark]] = true
	}
	delete(keys, nameKey)
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		listed, err := t.VMs.Tagged(ctx, []string{key, cloud.TagToken})
		if err != nil {
			return fmt.Errorf("listing the VMs with %s: %w", key, err)
		}
		var ids []string
		for _, one := range listed {
			if _, has := tagged[one.ID]; has {
				ids = append(ids, one.ID)
			}
		}
		slices.Sort(ids)
		if len(ids) == 0 {
			continue
		}
		if err := t.VMs.Untag(ctx, ids, []string{key}); err != nil {
			return fmt.Errorf("taking %s off %s: %w", key, strings.Join(ids, ", "), err)
		}
	}
	return nil
}

// chooseOld returns the other system's objects of the pools, from the bottom to the top: those of
// the staged names, and what they own. It refuses Machines that are not staged: their VMs would
// be nobody's.
func (t *Takeover) chooseOld(ctx context.Context, s *staged) (all []*unstructured.Unstructured, err error) {
	names := map[string]map[string]bool{"Machine": {}, "MachineSet": {}, "MachineDeployment": {}, "MachineClass": {}}
	for _, o := range s.machines {
		names["Machine"][o.Name] = true
	}
	for _, o := range s.deployments {
		names["MachineDeployment"][o.Name] = true
		names["MachineClass"][o.Spec.Template.Spec.InfrastructureRef.Name] = true
	}
	chosen := map[types.UID]bool{}
	for _, kind := range slices.Backward(t.System.kinds) {
		var items []unstructured.Unstructured
		if err := readServed(ctx, t.Old, t.OldNamespace, kind, &items); err != nil {
			return nil, err
		}
		for i := range items {
			o := &items[i]
			owner := slices.IndexFunc(o.GetOwnerReferences(), func(ref metav1.OwnerReference) bool { return chosen[ref.UID] })
			switch {
			case names[kind.Kind][o.GetName()], owner >= 0 && kind.Kind != "Machine":
				chosen[o.GetUID()] = true
				all = append(all, o)
			case owner >= 0:
				owner := o.GetOwnerReferences()[owner]
				return nil, fmt.Errorf("the old Machine %s of %s %s is not staged: roll back, and stage again", o.GetName(), owner.Kind, owner.Name)
			}
		}
	}
	slices.Reverse(all)
	return all, nil
}

// removeSecretFinalizers takes the other system's finalizer off the Secrets of a MachineClass. It
// does not delete them: they may be another's, too.
func (t *Takeover) removeSecretFinalizers(ctx context.Context, class *unstructured.Unstructured) error {
	for _, field := range []string{"secretRef", "credentialsSecretRef"} {
		name, _, _ := unstructured.NestedString(class.Object, field, "name")
		if name == "" {
			continue
		}
		secret := &metav1.PartialObjectMetadata{}
		secret.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
		secret.Namespace, secret.Name = t.OldNamespace, name
		err := patch(ctx, t.Old, secret, func() { secret.Finalizers = without(secret.Finalizers, t.System.secretFinalizer) })
		if err != nil {
			return fmt.Errorf("taking the finalizer off Secret %s: %w", name, err)
		}
	}
	return nil
}

// cleanUpNode takes off a Node what the other system has written, above all its finalizer.
func (t *Takeover) cleanUpNode(ctx context.Context, name string) error {
	node := &metav1.PartialObjectMetadata{}
	node.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Node"))
	node.Name = name
	err := patch(ctx, t.Nodes, node, func() {
		node.Finalizers = without(node.Finalizers, t.System.nodeFinalizer)
		delete(node.Labels, t.System.nodeLabel)
		delete(node.Annotations, t.System.nodeAnnotation)
	})
	if err != nil {
		return fmt.Errorf("taking the finalizer off Node %s: %w", name, err)
	}
	return nil
}

// release ends the hold on deletions, and removes the Mark: of each object in one write, of the
// MachineDeployments last.
func (t *Takeover) release(ctx context.Context, s *staged) error {
	for _, o := range s.all() {
		err := patch(ctx, t.Management, o, func() {
			annotations := maps.Clone(o.GetAnnotations())
			delete(annotations, Mark)
			delete(annotations, hook)
			o.SetAnnotations(annotations)
		})
		if err != nil {
			return fmt.Errorf("releasing %s: %w", o.GetName(), err)
		}
	}
	return nil
}

// patch reads an object, and writes what change changes, if anything. It is refused if another has
// changed the object meanwhile, because it replaces whole lists.
func patch(ctx context.Context, c client.Client, o client.Object, change func()) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		if err := c.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
			return client.IgnoreNotFound(err)
		}
		before := o.DeepCopyObject().(client.Object)
		change()
		if data, err := client.MergeFrom(before).Data(o); err != nil || string(data) == "{}" {
			return err
		}
		return c.Patch(ctx, o, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	})
}

func without(all []string, one string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(s string) bool { return s == one })
}
