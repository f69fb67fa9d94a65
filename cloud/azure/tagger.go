// SPDX-License-Identifier: Apache-2.0

package azure

import (
	"context"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
	"github.com/drover-io/drover/cloud/tagging"
)

// A machine that others made becomes Drover's by tags, because the driver finds machines by their
// tags, and never by their names. Azure deletes the parts with a machine that have the
// deleteOption Delete. Those that others delete themselves get Drover's tags, too, so that the
// driver finds them when the machine is gone. The tags are changed by themselves, so that nothing
// else of a resource is written, and no tag that another writes meanwhile is lost.

const (
	// maxTags is how many tags a resource may have.
	maxTags = 50
	// machineUID is the tag by which machine-controller finds what it deletes with a machine.
	machineUID = "Machine-UID"
)

// Tagged implements tagging.Tagger. A machine's name is its tag "Name".
func (d *driver) Tagged(ctx context.Context, keys []string) (found []tagging.Instance, err error) {
	if len(keys) == 0 {
		return nil, nil
	}
	vms, err := pages[virtualMachine](ctx, d, "ListVirtualMachines", pathOf(d.account, virtualMachines), machinesVersion, nil)
	if err != nil {
		return nil, err
	}
	stopped := d.powerOf(ctx, vms)
	all := parts{}
	for i := range vms {
		vm := &vms[i]
		if vm.Name == "" || slices.ContainsFunc(keys, func(key string) bool { return key != "Name" && tag(vm.Tags, key) == "" }) {
			continue
		}
		r := d.instance(vm, stopped.get(d.idOf(virtualMachines, vm.Name), vm.Properties.TimeCreated))
		t := tagging.Instance{Resource: r, Tags: maps.Clone(vm.Tags)}
		if t.Tags == nil {
			t.Tags = map[string]string{}
		}
		for _, key := range keys { // in the caller's case
			t.Tags[key] = tag(vm.Tags, key)
		}
		t.Tags["Name"] = strings.ToLower(vm.Name)
		if h := vm.Properties.HardwareProfile; h != nil {
			t.Type = h.VMSize
		}
		if t.Token != "" && vm.keepsParts() {
			if all.idOf == nil {
				if all, err = d.readParts(ctx); err != nil {
					return nil, err
				}
			}
			t.Partial = slices.ContainsFunc(all.kept(vm), func(p tagged) bool { return p.tags[cloud.TagToken] != t.Token })
		}
		found = append(found, t)
	}
	return found, nil
}

// Tag implements tagging.Tagger. The machine gets its tags first, so that a later call finds it.
func (d *driver) Tag(ctx context.Context, id string, tags map[string]string, _ []string) error {
	var vm virtualMachine
	if err := d.read(ctx, "GetVirtualMachine", pathOf(d.account, virtualMachines)+"/"+url.PathEscape(lastPart(id)), machinesVersion, nil,
		&vm); err != nil {
		return err
	}
	all := []tagged{{path: d.idOf(virtualMachines, vm.Name), tags: vm.Tags}}
	if vm.keepsParts() {
		p, err := d.leftovers.Get(ctx, "", d.readParts)
		if err != nil {
			return err
		}
		all = append(all, p.kept(&vm)...)
	}
	for _, one := range all {
		if err := d.addTags(ctx, one, tags); err != nil {
			return err
		}
	}
	return nil
}

// Untag implements tagging.Tagger. All parts of a machine lose the tags, because
// machine-controller-manager also recognizes machines by those of their parts, and the machine
// itself loses them last, so that a later call finds it.
func (d *driver) Untag(ctx context.Context, ids, keys []string) error {
	vms, err := pages[virtualMachine](ctx, d, "ListVirtualMachines", pathOf(d.account, virtualMachines), machinesVersion, nil)
	if err != nil {
		return err
	}
	p, err := d.readParts(ctx)
	if err != nil {
		return err
	}
	var calls cloud.Group
	calls.SetLimit(deletesAtOnce)
	for i := range vms {
		vm := &vms[i]
		if !slices.Contains(ids, d.idOf(virtualMachines, vm.Name)) {
			continue
		}
		calls.Go(func() error {
			for _, one := range append(p.attached(vm), tagged{path: d.idOf(virtualMachines, vm.Name), tags: vm.Tags}) {
				if err := d.removeTags(ctx, one, keys); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return calls.Wait()
}

// tagged is a resource with its tags.
type tagged struct {
	path string
	tags map[string]string
	// made is true for a disk that was made with its machine.
	made bool
}

// addTags adds the tags that a resource does not have.
func (d *driver) addTags(ctx context.Context, to tagged, tags map[string]string) error {
	missing, all := map[string]string{}, maps.Clone(to.tags)
	if all == nil {
		all = map[string]string{}
	}
	for key, value := range tags {
		if value = cloud.Clip(value, maxTagValue); tag(to.tags, key) != value {
			missing[key], all[key] = value, value
		}
	}
	switch {
	case len(missing) == 0:
		return nil
	case len(all) > maxTags:
		return cloud.Errorf(cloud.InvalidSpec, "%s has %d tags, and with Drover's it would have %d: Azure allows %d", lastPart(to.path),
			len(to.tags), len(all), maxTags)
	}
	return d.changeTags(ctx, "AddTags", cloud.ClassCreate, to.path, tagsPatch{Operation: "Merge", Properties: tagSet{Tags: missing}})
}

// removeTags removes those of the tags that a resource has.
func (d *driver) removeTags(ctx context.Context, from tagged, keys []string) error {
	has := map[string]string{}
	for key, value := range from.tags {
		if slices.ContainsFunc(keys, func(k string) bool { return strings.EqualFold(k, key) }) {
			has[key] = value
		}
	}
	if len(has) == 0 {
		return nil
	}
	err := d.changeTags(ctx, "RemoveTags", cloud.ClassDelete, from.path, tagsPatch{Operation: "Delete", Properties: tagSet{Tags: has}})
	if driverkit.RefusedAs(err, resourceNotFound, notFound) {
		return nil
	}
	return err
}

func (d *driver) changeTags(ctx context.Context, op string, class cloud.Class, path string, patch tagsPatch) error {
	_, err := d.call(ctx, request{op: op, class: class, method: http.MethodPatch, path: path + "/providers/Microsoft.Resources/tags/default",
		version: tagsVersion, in: patch})
	return err
}

// keepsParts reports whether Azure does not delete all parts with the machine.
func (vm *virtualMachine) keepsParts() bool {
	return slices.ContainsFunc(vm.disks(), func(k disk) bool { return k.DeleteOption != deleteToo }) ||
		slices.ContainsFunc(vm.interfaces(), func(n nicReference) bool { return n.Properties.DeleteOption != deleteToo })
}

// disks returns the managed disks of a machine that were made with it, and not attached since.
func (vm *virtualMachine) disks() (all []disk) {
	s := vm.Properties.StorageProfile
	if s == nil {
		return nil
	}
	if s.OSDisk != nil && s.OSDisk.ManagedDisk != nil {
		all = append(all, *s.OSDisk)
	}
	for _, k := range s.DataDisks {
		if k.ManagedDisk != nil && k.CreateOption != "Attach" {
			all = append(all, k)
		}
	}
	return all
}

func (vm *virtualMachine) interfaces() []nicReference {
	if vm.Properties.NetworkProfile == nil {
		return nil
	}
	return vm.Properties.NetworkProfile.NetworkInterfaces
}

// kept returns the machine's own parts that Azure does not delete with it: the disks that were made
// with it, and network interfaces and their public addresses that have the machine's UID in a tag,
// as machine-controller gives them, which deletes them by it.
func (p parts) kept(vm *virtualMachine) (all []tagged) {
	remain := map[string]bool{}
	for _, k := range vm.disks() {
		remain[p.idOf(disks, lastPart(k.ManagedDisk.ID))] = k.DeleteOption != deleteToo
	}
	for _, n := range vm.interfaces() {
		remain[p.idOf(networkInterfaces, lastPart(n.ID))] = n.Properties.DeleteOption != deleteToo
	}
	for _, one := range p.attached(vm) {
		if one.made && remain[one.path] || !one.made && sameUID(one.tags, vm.Tags) &&
			(remain[one.path] || strings.Contains(one.path, publicAddresses)) {
			all = append(all, one)
		}
	}
	return all
}

// sameUID reports whether two resources have the tag of the same Machine of machine-controller's.
func sameUID(a, b map[string]string) bool {
	uid := tag(a, machineUID)
	return uid != "" && uid == tag(b, machineUID)
}

// attached returns what is attached to a machine: disks, network interfaces, and the public
// addresses of those.
func (p parts) attached(vm *virtualMachine) (all []tagged) {
	own := func(id string) bool {
		return p.idOf(virtualMachines, lastPart(id)) == p.idOf(virtualMachines, vm.Name)
	}
	made, public := map[string]bool{}, map[string]bool{}
	for _, k := range vm.disks() {
		made[strings.ToLower(lastPart(k.ManagedDisk.ID))] = true
	}
	for i := range p.disks {
		if k := &p.disks[i]; k.ManagedBy != "" && own(k.ManagedBy) {
			all = append(all, tagged{p.idOf(disks, k.Name), k.Tags, made[strings.ToLower(k.Name)]})
		}
	}
	for i := range p.nics {
		n := &p.nics[i]
		if n.Properties.VirtualMachine == nil || !own(n.Properties.VirtualMachine.ID) {
			continue
		}
		all = append(all, tagged{p.idOf(networkInterfaces, n.Name), n.Tags, false})
		for _, c := range n.Properties.IPConfigurations {
			if at := c.Properties.PublicIPAddress; at != nil {
				public[strings.ToLower(lastPart(at.ID))] = true
			}
		}
	}
	for i := range p.addresses {
		if a := &p.addresses[i]; public[strings.ToLower(a.Name)] {
			all = append(all, tagged{p.idOf(publicAddresses, a.Name), a.Tags, false})
		}
	}
	return all
}
