// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/tagging"
)

// A VM that others made becomes Drover's with two writes: first the labels of the VM and of its
// template, by which it is found, and then those of the guest that runs. The way back has the
// opposite order: a guest without its VM's labels would look left behind. The VM keeps its name,
// because its Node's provider ID has it. Nothing else is changed: Kubernetes deletes what the VM
// owns together with it, such as volumes and the Secret with its user data.

// ownerTag reports the owner of a VM, with which Kubernetes would delete the VM.
const ownerTag = "metadata.ownerReferences"

// nameOf returns the name of a machine's VM: the token, or what follows the management cluster's
// identity in the token of a VM that others made. For VMs that were imported before tokens had a
// digest (tagging.ImportToken), that is the name.
func nameOf(token string) string {
	if tagging.IsImportToken(token) {
		_, token, _ = strings.Cut(token, "-")
	}
	return token
}

// named reports whether an object with Drover's labels has the name that its token stands for.
func named(m *metav1.ObjectMeta) bool {
	token := m.Labels[cloud.TagToken]
	identity, _, _ := strings.Cut(token, "-")
	return m.Name == nameOf(token) || token == tagging.ImportToken(identity, m.Labels[cloud.TagOwnership], m.Name)
}

// foreign is a VM that others may have made, with its instance, which may be nil.
type foreign struct {
	vm  *kubevirtv1.VirtualMachine
	vmi *kubevirtv1.VirtualMachineInstance
}

// foreigners reads the VM of this name, or all VMs of the namespace if it is "".
func (d *driver) foreigners(ctx context.Context, name string) (all []foreign, err error) {
	if err := d.place.check(); err != nil {
		return nil, err
	}
	query := url.Values{}
	if name != "" {
		query.Set("fieldSelector", metav1.ObjectNameField+"="+name)
	}
	vmis, _, err := listBy(ctx, d, virtualInstances, wholeObject, query, pruneVMI)
	if err != nil {
		return nil, err
	}
	vms, _, err := listBy(ctx, d, virtualMachines, wholeObject, query,
		func(vm *kubevirtv1.VirtualMachine) kubevirtv1.VirtualMachine { return *vm })
	for i := range vms {
		f := foreign{vm: &vms[i]}
		if at := slices.IndexFunc(vmis, func(vmi kubevirtv1.VirtualMachineInstance) bool { return vmi.Name == f.vm.Name }); at >= 0 {
			f.vmi = &vmis[at]
		}
		all = append(all, f)
	}
	return all, err
}

// Tagged implements tagging.Tagger. A VM's ID is its name, and its tags are its labels and its
// name.
func (d *driver) Tagged(ctx context.Context, keys []string) (found []tagging.Instance, err error) {
	if len(keys) == 0 {
		return nil, nil
	}
	all, err := d.foreigners(ctx, "")
	for _, f := range all {
		t := f.tagged()
		if !slices.ContainsFunc(keys, func(key string) bool { _, has := t.Tags[key]; return !has }) {
			found = append(found, t)
		}
	}
	return found, err
}

// tagged returns the VM with its tags. A copy of a machine has none of Drover's.
func (f foreign) tagged() tagging.Instance {
	tags := map[string]string{}
	maps.Copy(tags, f.vm.Labels)
	if machine, has := f.vm.Annotations[cloud.TagMachine]; has {
		tags[cloud.TagMachine] = machine
	}
	ours := map[string]string{}
	for _, key := range []string{cloud.TagToken, cloud.TagOwnership, cloud.TagMachine} {
		if ours[key] = tags[key]; !named(&f.vm.ObjectMeta) {
			delete(tags, key)
		}
	}
	tags["Name"] = f.vm.Name
	for _, owner := range f.vm.OwnerReferences {
		tags[ownerTag] = owner.Kind + " " + owner.Name
	}
	t := tagging.Instance{Resource: instance(f.vm, f.vmi, nil), Type: sizeOf(&f.vm.Spec), Tags: tags}
	t.ID, t.Token, t.OwnershipID, t.ImageID = f.vm.Name, tags[cloud.TagToken], tags[cloud.TagOwnership], imageOf(&f.vm.Spec)
	if t.Token != "" {
		vm, vmi := f.changes(ours)
		t.Partial = ours[cloud.TagMachine] == "" || vm != nil || vmi != nil
	}
	return t
}

// sizeOf returns the VM's instancetype, or its CPUs and memory.
func sizeOf(spec *kubevirtv1.VirtualMachineSpec) string {
	if i := spec.Instancetype; i != nil {
		return strings.ToLower(i.Kind) + " " + i.Name // users may write a kind in any case
	}
	if spec.Template == nil {
		return ""
	}
	domain := &spec.Template.Spec.Domain
	asked := domain.Resources.Limits
	if asked.Cpu().IsZero() {
		asked = domain.Resources.Requests
	}
	cpus, memory := asked.Cpu().Value(), domain.Resources.Requests.Memory()
	if c := domain.CPU; c != nil && c.Cores+c.Sockets+c.Threads > 0 {
		cpus = int64(max(c.Cores, 1)) * int64(max(c.Sockets, 1)) * int64(max(c.Threads, 1))
	}
	if domain.Memory != nil && domain.Memory.Guest != nil {
		memory = domain.Memory.Guest
	}
	return fmt.Sprintf("%d CPUs, %d MiB", cpus, memory.Value()>>20)
}

// imageOf returns the URL from which the VM's first volume was filled, or "".
func imageOf(spec *kubevirtv1.VirtualMachineSpec) string {
	if len(spec.DataVolumeTemplates) == 0 {
		return ""
	}
	switch source := spec.DataVolumeTemplates[0].Spec.Source; {
	case source == nil:
	case source.Registry != nil:
		return ptr.Deref(source.Registry.URL, "")
	case source.HTTP != nil:
		return source.HTTP.URL
	}
	return ""
}

// Tag implements tagging.Tagger.
func (d *driver) Tag(ctx context.Context, id string, tags map[string]string, _ []string) error {
	found, err := d.foreigners(ctx, id)
	if err == nil && len(found) == 0 {
		err = cloud.Errorf(cloud.NotFound, "namespace %q has no VirtualMachine %q", d.namespace, cloud.Clip(id, 63))
	}
	if err != nil {
		return err
	}
	vm, vmi := found[0].changes(tags)
	if err := d.merge(ctx, virtualMachines, found[0].vm.Name, vm); err != nil {
		return err
	}
	return d.merge(ctx, virtualInstances, found[0].vm.Name, vmi)
}

// Untag implements tagging.Tagger.
func (d *driver) Untag(ctx context.Context, ids, keys []string) error {
	all, err := d.foreigners(ctx, "")
	if err != nil {
		return err
	}
	none := map[string]string{}
	for _, key := range keys {
		none[key] = ""
	}
	for _, f := range all {
		if !slices.Contains(ids, f.vm.Name) {
			continue
		}
		vm, vmi := f.changes(none)
		if err := d.merge(ctx, virtualInstances, f.vm.Name, vmi); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		if err := d.merge(ctx, virtualMachines, f.vm.Name, vm); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// mergePatch is a JSON merge patch (RFC 7386).
type mergePatch map[string]any

// merge sends a patch, unless it is nil.
func (d *driver) merge(ctx context.Context, k resourceKind, name string, change mergePatch) error {
	if change == nil {
		return nil
	}
	return d.call(ctx, operation{"Patch" + k.kind, cloud.ClassCreate, http.MethodPatch, metadataOfOne, "PartialObjectMetadata"},
		d.path(k, name), nil, change, nil)
}

// changes returns the patches after which the VM and its instance have these tags, and none of
// those that are "". They are nil if nothing has to be changed.
func (f foreign) changes(tags map[string]string) (vm, vmi mergePatch) {
	labels, drover, annotations := map[string]string{}, map[string]string{}, map[string]string{}
	for key, value := range tags {
		switch key {
		case "Name", ownerTag: // stand for fields
		case cloud.TagMachine:
			annotations[key] = value
		case cloud.TagToken, cloud.TagOwnership:
			labels[key], drover[key] = value, value
		default:
			labels[key] = value
		}
	}
	if f.vmi != nil {
		vmi = patchOfMeta(&f.vmi.ObjectMeta, drover, nil)
	}
	vm = patchOfMeta(&f.vm.ObjectMeta, labels, annotations)
	if f.vm.Spec.Template == nil {
		return vm, vmi
	}
	if inTemplate := patchOfMeta(&f.vm.Spec.Template.ObjectMeta, drover, nil); inTemplate != nil {
		if vm == nil {
			vm = mergePatch{"metadata": map[string]any{"uid": f.vm.UID}}
		}
		vm["spec"] = map[string]any{"template": inTemplate}
	}
	return vm, vmi
}

// patchOfMeta returns a patch of labels and annotations, or nil. The API server refuses it if
// another object has the name by now.
func patchOfMeta(is *metav1.ObjectMeta, labels, annotations map[string]string) mergePatch {
	change := map[string]any{}
	if differ := difference(is.Labels, labels); differ != nil {
		change["labels"] = differ
	}
	if differ := difference(is.Annotations, annotations); differ != nil {
		change["annotations"] = differ
	}
	if len(change) == 0 {
		return nil
	}
	if is.UID != "" {
		change["uid"] = is.UID
	}
	return mergePatch{"metadata": change}
}

// difference returns what a merge patch must set or, for "", remove; nil: nothing.
func difference(is, wanted map[string]string) (change map[string]any) {
	for key, value := range wanted {
		var to any = value
		if value == "" {
			to = nil
		}
		if now, has := is[key]; now == value && has == (to != nil) {
			continue
		}
		if change == nil {
			change = map[string]any{}
		}
		change[key] = to
	}
	return change
}
