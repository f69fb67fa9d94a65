// SPDX-License-Identifier: Apache-2.0

package vsphere

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/vmware/govmomi/vim25"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
)

// maxLookups is the largest number of machines that are looked up one by one in vCenter's index of
// UUIDs. For more, one read of all VMs in the datacenter is cheaper.
const maxLookups = 4

// These VM options hold data for when the machine's spec is not available. A guest can't change
// them, because it can set only options that begin with "guestinfo.".
const (
	optionDomain     = "drover-failure-domain"
	optionHost       = "drover-host-name"
	optionPowerOff   = "drover-power-off"
	optionGroup      = "drover-anti-affinity-group"
	optionHardware   = "drover-hardware-version"
	optionTags       = "drover-vsphere-tags"
	optionAttributes = "drover-vsphere-attributes"
)

// option returns the property path of one VM option. All options would include every VM's user
// data.
func option(key string) string { return fmt.Sprintf("config.extraConfig[%q]", key) }

// identityProperties returns the properties that tell whose a VM is. Addresses and state are read
// only for Drover's VMs.
func identityProperties() []string {
	return []string{"config.instanceUuid", "config.uuid", option(cloud.TagToken), option(cloud.TagOwnership)}
}

func stateProperties() []string {
	return append(identityProperties(), "parent", "config.createDate", "config.version", "config.scheduledHardwareUpgradeInfo",
		"runtime.powerState", "guest.net",
		option(optionHardware), option(optionHost), option(optionDomain), option(optionGroup), option(optionTags), option(optionAttributes))
}

// vm is a VM with the properties that were requested.
type vm struct {
	ref        types.ManagedObjectReference
	properties map[string]types.AnyType
	size       int64 // of the properties, in bytes
	// indexed is the machine whose UUID led to the VM in vCenter's index, if the VM itself can't be
	// read.
	indexed cloud.Reference
}

func (m vm) text(path string) string {
	switch v := m.properties[path].(type) {
	case string:
		return v
	case types.OptionValue:
		text, _ := v.Value.(string)
		return text
	}
	return ""
}

// tags returns the token and the ownership ID.
func (m vm) tags() (token, owner string) {
	if m.unreadable() {
		return m.indexed.Token, m.indexed.OwnershipID
	}
	return m.text(option(cloud.TagToken)), m.text(option(cloud.TagOwnership))
}

// identity returns the UUID of the VM's machine, or "". A VM without Drover's options is not
// Drover's. A VM with these options and other UUIDs is a copy.
func (m vm) identity() string {
	token, owner := m.tags()
	switch id := identityOf(token); {
	case token == "":
		return ""
	case m.unreadable():
		return id
	case owner == "" || !m.hasUUID(id):
		return ""
	default:
		return id
	}
}

// hasUUID reports whether the VM has a machine's UUID, whatever its options say.
func (m vm) hasUUID(id string) bool {
	return m.text("config.instanceUuid") == id || m.text("config.uuid") == id
}

// unreadable reports whether vCenter has the VM but can't read its configuration: its host or
// datastore does not answer, or the VM is just being created.
func (m vm) unreadable() bool {
	return m.text("config.instanceUuid") == "" && m.text("config.uuid") == ""
}

// maxStored bounds what one request's properties take in memory, in bytes. Those of a machine take
// about 4 KiB.
const maxStored = 96 << 20

// retrieve reads properties of the objects, all pages of them. It leaves out objects that vanished
// meanwhile. Any other object that can't be read is an error.
func (s *session) retrieve(ctx context.Context, page int32, kind string, objects []types.ObjectSpec, paths []string) ([]vm, error) {
	stored := int64(0)
	return driverkit.SizedPages(ctx, "RetrievePropertiesEx "+kind, &s.sizes, 1, int(page),
		func(ctx context.Context, token string, size int) ([]vm, string, error) {
			result, err := s.retrievePage(ctx, token, &types.RetrievePropertiesEx{
				This: s.content.PropertyCollector,
				SpecSet: []types.PropertyFilterSpec{{
					ObjectSet: objects, PropSet: []types.PropertySpec{{Type: kind, PathSet: paths}}, ReportMissingObjectsInResults: ptr.To(true),
				}},
				Options: types.RetrieveOptions{MaxObjects: int32(size)},
			})
			if err != nil || result == nil {
				return nil, "", err
			}
			var all []vm
			for _, content := range result.Objects {
				m, err := s.read(content)
				if err != nil {
					return nil, "", err
				}
				if m != nil {
					all = append(all, *m)
					stored += m.size
				}
			}
			if stored > maxStored {
				return nil, "", cloud.Errorf(cloud.Unknown, "RetrievePropertiesEx %s: the properties take more than %d MiB: check spec.cloud.vsphere.server", kind, maxStored>>20)
			}
			return all, result.Token, nil
		})
}

// retrievePage returns the first page of a request, or the one after a token. It returns nil if
// there are no objects.
func (s *session) retrievePage(ctx context.Context, token string, first *types.RetrievePropertiesEx) (*types.RetrieveResult, error) {
	if token == "" {
		answer, err := methods.RetrievePropertiesEx(ctx, s, first)
		if err != nil {
			return nil, err
		}
		return answer.Returnval, nil
	}
	next, err := methods.ContinueRetrievePropertiesEx(ctx, s,
		&types.ContinueRetrievePropertiesEx{This: s.content.PropertyCollector, Token: token})
	if err != nil {
		return nil, err
	}
	if len(next.Returnval.Objects) == 0 {
		return nil, cloud.Errorf(cloud.Unknown, "ContinueRetrievePropertiesEx: the listing does not end")
	}
	return &next.Returnval, nil
}

// read returns one object's properties, or nil if the object is gone.
func (s *session) read(content types.ObjectContent) (*vm, error) {
	m := &vm{ref: content.Obj, properties: map[string]types.AnyType{}}
	for _, p := range content.MissingSet {
		switch p.Fault.Fault.(type) {
		case *types.ManagedObjectNotFound:
			return nil, nil
		case *types.InvalidProperty: // no such option
		default:
			return nil, s.faultError("RetrievePropertiesEx "+content.Obj.Value, p.Fault.Fault, p.Fault.LocalizedMessage)
		}
	}
	for _, p := range content.PropSet {
		m.properties[p.Name] = p.Val
	}
	m.size = driverkit.SizeOf(m.properties)
	return m, nil
}

// scan reads properties of all VMs in the datacenter that the account's user may see.
func (s *session) scan(ctx context.Context, page int32, paths []string) ([]vm, error) {
	return s.retrieve(ctx, page, "VirtualMachine", []types.ObjectSpec{s.allVMs()}, paths)
}

// allVMs selects all VMs of the datacenter.
func (s *session) allVMs() types.ObjectSpec {
	return types.ObjectSpec{
		Obj: s.view, Skip: ptr.To(true),
		SelectSet: []types.BaseSelectionSpec{&types.TraversalSpec{Type: "ContainerView", Path: "view"}},
	}
}

// readObjects reads properties of objects of one kind.
func (s *session) readObjects(ctx context.Context, page int32, refs []types.ManagedObjectReference, paths []string) ([]vm, error) {
	if len(refs) == 0 {
		return nil, nil
	}
	var objects []types.ObjectSpec
	for _, ref := range refs {
		objects = append(objects, types.ObjectSpec{Obj: ref})
	}
	return s.retrieve(ctx, page, refs[0].Type, objects, paths)
}

// located is a VM that was found by a machine's UUID.
type located struct {
	id  string
	ref types.ManagedObjectReference
}

// locate finds the VMs of the machines with these UUIDs. If no VM says by its options that it is a
// machine's, it finds those that have the machine's UUID.
func (d *driver) locate(ctx context.Context, s *session, ids []string) ([]located, error) {
	if len(ids) <= maxLookups {
		return s.findByUUID(ctx, ids)
	}
	all, err := s.scan(ctx, d.page, identityProperties())
	if err != nil {
		return nil, err
	}
	var found, untagged []located
	wanted, seen, unreadable := setOf(ids), map[string]bool{}, false
	for _, m := range all {
		unreadable = unreadable || m.unreadable()
		id := m.identity()
		if wanted[id] {
			seen[id] = true
			found = append(found, located{id, m.ref})
		}
		for _, other := range slices.Compact([]string{m.text("config.instanceUuid"), m.text("config.uuid")}) {
			if other != id && wanted[other] {
				untagged = append(untagged, located{other, m.ref})
			}
		}
	}
	found = append(found, slices.DeleteFunc(untagged, func(l located) bool { return seen[l.id] })...)
	if unreadable { // the index knows VMs whose configuration can't be read now
		unseen := slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return seen[id] })
		more, err := s.findByUUID(ctx, unseen)
		return append(found, more...), err
	}
	return found, nil
}

// findByUUID searches the index for the instance UUID and, if vCenter had to replace that, for the
// BIOS UUID.
func (s *session) findByUUID(ctx context.Context, ids []string) ([]located, error) {
	var found []located
	for _, id := range ids {
		for _, instance := range []bool{true, false} {
			answer, err := methods.FindAllByUuid(ctx, s, &types.FindAllByUuid{
				This: *s.content.SearchIndex, Uuid: id, VmSearch: true, InstanceUuid: &instance, Datacenter: &s.datacenter,
			})
			if err != nil {
				return nil, err
			}
			for _, ref := range answer.Returnval {
				found = append(found, located{id, ref})
			}
			if len(answer.Returnval) > 0 {
				break
			}
		}
	}
	return found, nil
}

// machines reads the VMs of the wanted machines, by UUID. It looks up few machines in vCenter's
// index, and reads many where they were last seen. It finds the rest in the other way.
func (d *driver) machines(ctx context.Context, s *session, wanted map[string]cloud.Reference, paths []string) (vms []vm, err error) {
	ids := slices.Sorted(maps.Keys(wanted))
	if len(ids) <= maxLookups {
		if vms, err = d.search(ctx, s, wanted, ids, paths); err == nil {
			vms, err = d.readAtLocations(ctx, s, wanted, vms, paths, false)
		}
		d.locations.record(vms)
		return vms, err
	}
	if vms, err = d.readAtLocations(ctx, s, wanted, nil, paths, true); err != nil {
		return nil, err
	}
	found := identities(vms)
	for _, at := range d.locations.forMachines(ids) {
		found[at.id] = found[at.id] || at.destroyed // by Drover, so it has no other VM
	}
	more, err := d.search(ctx, s, wanted, slices.DeleteFunc(ids, func(id string) bool { return found[id] }), paths)
	vms = append(vms, more...)
	d.locations.record(vms)
	return vms, err
}

// search finds and reads the VMs of machines whose references are unknown.
func (d *driver) search(ctx context.Context, s *session, wanted map[string]cloud.Reference, ids, paths []string) ([]vm, error) {
	found, err := d.locate(ctx, s, ids)
	if err != nil {
		return nil, err
	}
	byRef := map[types.ManagedObjectReference]string{}
	for _, f := range found {
		byRef[f.ref] = f.id
	}
	vms, err := s.readObjects(ctx, d.page, slices.Collect(maps.Keys(byRef)), paths)
	for i := range vms {
		vms[i].indexed = wanted[byRef[vms[i].ref]]
	}
	return vms, err
}

// readAtLocations reads the VMs of machines that have none in vms, where they were last seen, and
// adds them to vms. If destroyed is true, it includes VMs that Drover has destroyed.
func (d *driver) readAtLocations(ctx context.Context, s *session, wanted map[string]cloud.Reference, vms []vm, paths []string,
	destroyed bool) ([]vm, error) {
	found := identities(vms)
	at := d.locations.forMachines(slices.Collect(maps.Keys(wanted)))
	maps.DeleteFunc(at, func(_ types.ManagedObjectReference, at location) bool {
		return found[at.id] || at.destroyed && !destroyed
	})
	more, err := s.readObjects(ctx, d.page, slices.SortedFunc(maps.Keys(at), byValue), paths)
	for _, m := range more {
		if m.unreadable() {
			m.indexed = wanted[at[withoutServer(m.ref)].id]
		}
		vms = append(vms, m)
	}
	return vms, err
}

// identities returns the machines that the VMs belong to, or whose UUID led to them.
func identities(vms []vm) map[string]bool {
	all := map[string]bool{}
	for _, m := range vms {
		all[m.identity()] = true
		if m.indexed.Token != "" {
			all[identityOf(m.indexed.Token)] = true
		}
	}
	return all
}

// Probe reads vCenter's time, which needs a session, and the failure domains.
func (d *driver) Probe(ctx context.Context) (cloud.Info, error) {
	var info cloud.Info
	err := d.vcenter.withSession(ctx, func(s *session) error {
		_, err := methods.CurrentTime(ctx, s, &types.CurrentTime{This: vim25.ServiceInstance})
		if err == nil {
			info.Place = fmt.Sprintf("vsphere:%s:%s", s.content.About.InstanceUuid, s.datacenter.Value)
			info.FailureDomains, err = d.placeNames(ctx, s)
		}
		return err
	})
	return info, err
}

// List reads all VMs of the datacenter, and then more properties of its own.
func (d *driver) List(ctx context.Context) (all []cloud.Resource, err error) {
	err = d.vcenter.withSession(ctx, func(s *session) error {
		pending, vms, err := d.list(ctx, s)
		if err == nil {
			all, err = d.evaluate(ctx, s, vms, pending)
		}
		return err
	})
	return all, err
}

// list reads the running clones and the machines' VMs. It reads the clones first, so that it misses
// none.
func (d *driver) list(ctx context.Context, s *session) (pending map[string]cloud.Resource, vms []vm, err error) {
	if pending, err = d.clones.refresh(ctx, s, d.page, nil); err != nil {
		return nil, nil, err
	}
	all, err := s.scan(ctx, d.page, identityProperties())
	if err != nil {
		return nil, nil, err
	}
	remembered := d.locations.all()
	refs := map[types.ManagedObjectReference]bool{}
	for ref := range remembered {
		refs[ref] = true
	}
	for _, m := range all {
		if m.identity() != "" {
			refs[withoutServer(m.ref)] = true
		}
	}
	vms, err = d.readVMs(ctx, s, slices.SortedFunc(maps.Keys(refs), byValue), remembered)
	return pending, vms, err
}

// readVMs reads VMs, and proves that VMs that were seen before and are not found are gone.
func (d *driver) readVMs(ctx context.Context, s *session, refs []types.ManagedObjectReference,
	seen map[types.ManagedObjectReference]location) ([]vm, error) {
	vms, err := s.readObjects(ctx, d.page, refs, stateProperties())
	if err != nil {
		return nil, err
	}
	vanished := maps.Clone(seen)
	for i := range vms {
		vms[i].indexed = seen[withoutServer(vms[i].ref)].tags
		delete(vanished, withoutServer(vms[i].ref))
	}
	d.locations.record(vms)
	return vms, d.checkGone(ctx, s, vanished)
}

// evaluate returns the resources of all machines, and updates their groups, tags and attributes.
func (d *driver) evaluate(ctx context.Context, s *session, vms []vm, pending map[string]cloud.Resource) ([]cloud.Resource, error) {
	all := d.merge(vms, pending)
	d.attachTags(ctx, s, vms, all)
	if err := d.setAttributes(ctx, s, vms, all); err != nil {
		return nil, err
	}
	return all, d.applyAntiAffinity(ctx, s, vms, all)
}

// Describe returns an error if a machine has no VM yet and a clone runs whose machine is unknown.
func (d *driver) Describe(ctx context.Context, refs []cloud.Reference) (all []cloud.Resource, err error) {
	wanted := map[string]cloud.Reference{}
	for _, ref := range refs {
		if ref.Token != "" {
			wanted[identityOf(ref.Token)] = ref
		}
	}
	if len(wanted) == 0 {
		return nil, nil
	}
	err = d.vcenter.withSession(ctx, func(s *session) error {
		pending, err := d.clones.refresh(ctx, s, d.page, slices.Collect(maps.Keys(wanted)))
		if err != nil {
			return err
		}
		vms, err := d.machines(ctx, s, wanted, stateProperties())
		if err != nil {
			return err
		}
		found := d.merge(vms, pending)
		if err := d.resolveAbsent(ctx, s, refs, wanted, vms, found); err != nil {
			return err
		}
		all = slices.DeleteFunc(found, func(r cloud.Resource) bool { return wanted[identityOf(r.Token)].Token == "" })
		return nil
	})
	return all, err
}

// checkTags returns Conflict if a VM has the UUID of a recorded machine, and none has its options.
func checkTags(refs []cloud.Reference, vms []vm, found []cloud.Resource) error {
	for _, ref := range refs {
		id := identityOf(ref.Token)
		tagged := slices.ContainsFunc(found, func(r cloud.Resource) bool {
			return r.Token == ref.Token && (ref.OwnershipID == "" || r.OwnershipID == ref.OwnershipID)
		})
		i := slices.IndexFunc(vms, func(m vm) bool { return m.hasUUID(id) })
		if ref.ProviderID != "" && !tagged && i >= 0 {
			return cloud.Errorf(cloud.Conflict,
				"VM %s exists, but its options do not say that it is this machine's, so Drover neither deletes it nor takes it for gone: "+
					"set its options %s=%s and %s=%s again, or delete it",
				vms[i].ref.Value, cloud.TagToken, ref.Token, cloud.TagOwnership, ref.OwnershipID)
		}
	}
	return nil
}

// resolveAbsent returns an error while a machine that was not found may have a VM, or get one.
func (d *driver) resolveAbsent(ctx context.Context, s *session, refs []cloud.Reference, wanted map[string]cloud.Reference,
	vms []vm, found []cloud.Resource) error {
	there := map[string]bool{}
	for _, r := range found {
		there[identityOf(r.Token)] = true
	}
	var absent, recorded []string
	known := d.locations.known(slices.Collect(maps.Keys(wanted)))
	for _, id := range slices.Sorted(maps.Keys(wanted)) {
		switch {
		case there[id]:
			continue
		case wanted[id].ProviderID != "" || known[id]:
			recorded = append(recorded, id)
		}
		absent = append(absent, id)
	}
	for _, id := range absent {
		if err := d.clones.checkUnknown(ctx, s, d.page, id, d.clones.knownTemplates()); err != nil {
			return err
		}
	}
	// After that, because a clone may not have set its VM's options yet.
	if err := checkTags(refs, vms, found); err != nil {
		return err
	}
	if err := d.checkAbsent(ctx, s, recorded); err != nil {
		return err
	}
	for _, id := range absent {
		d.removals.forget(id)
	}
	return nil
}

// merge returns the VMs, and the clones that have no VM yet. Two VMs of one machine get two IDs.
func (d *driver) merge(vms []vm, pending map[string]cloud.Resource) []cloud.Resource {
	vms = slices.SortedFunc(slices.Values(vms), func(a, b vm) int { return strings.Compare(a.ref.Value, b.ref.Value) })
	var all []cloud.Resource
	seen := map[string]bool{}
	for _, m := range vms {
		id := m.identity()
		if id == "" {
			continue
		}
		r := m.resource(id, d.choice)
		if p, ok := pending[id]; ok && (p.State == cloud.StateFailed || r.State == cloud.StateStopped) {
			r.State, r.Code, r.Reason = p.State, p.Code, p.Reason // a clone powers on its VM last, or has failed to
		}
		if r.State == cloud.StateRunning {
			r.Notice = d.vcenter.outdated(m)
		}
		if seen[id] {
			r.ID = id + "/" + m.ref.Value
		}
		seen[id] = true
		all = append(all, r)
	}
	for id, r := range pending {
		if !seen[id] {
			all = append(all, r)
		}
	}
	return all
}

// resource returns the VM as a resource.
func (m vm) resource(id string, addresses choice) cloud.Resource {
	r := cloud.Resource{
		Kind: cloud.KindInstance, ID: id, ProviderID: providerID(id),
		FailureDomain: m.text(option(optionDomain)),
		State:         stateOf(m.properties["runtime.powerState"]),
		Addresses:     m.addresses(addresses),
	}
	r.Token, r.OwnershipID = m.tags()
	r.CreatedAt, _ = m.properties["config.createDate"].(time.Time)
	for _, a := range r.Addresses {
		if a.Type == clusterv1.MachineInternalIP { // the host name is set by Drover
			r.GuestReported = append(r.GuestReported, a.Address)
		}
	}
	return r
}

// stateOf maps a power state. An unknown one is Pending, so that nothing is concluded from it.
func stateOf(v types.AnyType) cloud.State {
	switch v {
	case types.VirtualMachinePowerStatePoweredOn:
		return cloud.StateRunning
	case types.VirtualMachinePowerStatePoweredOff, types.VirtualMachinePowerStateSuspended:
		return cloud.StateStopped
	}
	return cloud.StatePending
}
