// SPDX-License-Identifier: Apache-2.0

package vsphere

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/types"
	"k8s.io/utils/ptr"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/tagging"
)

// A VM that others made becomes Drover's with one write of its options. Its UUIDs stay as they
// are: the token ends in its BIOS UUID, which Kubernetes knows it by. The tags by which others know
// it are custom attributes. vCenter can't take an attribute off one VM, so an empty one counts as
// none.

// taskPace is the time between two looks at the tasks that write options.
const taskPace = time.Second

// writes holds the tasks that write the options of VMs for a Tagger, by VM.
type writes struct {
	mu    sync.Mutex
	tasks map[types.ManagedObjectReference]types.ManagedObjectReference
}

// Tagged implements tagging.Tagger. A VM's tags are Drover's options, its custom attributes and its
// name.
func (d *driver) Tagged(ctx context.Context, keys []string) (found []tagging.Instance, err error) {
	if len(keys) == 0 {
		return nil, nil
	}
	paths := append(identityProperties(), "name", "customValue", "config.template", "config.hardware.numCPU", "config.hardware.memoryMB",
		"runtime.powerState",
		option(cloud.TagMachine))
	err = d.vcenter.withSession(ctx, func(s *session) error {
		found = nil
		fields, err := s.customFields(ctx, d.page)
		if err != nil {
			return err
		}
		all, err := s.scan(ctx, d.page, paths)
		for _, m := range all {
			if m.unreadable() && slices.Contains(keys, cloud.TagToken) {
				return cloud.Errorf(cloud.Unavailable, "vCenter can't read the configuration of VM %s (%s) now, which may be a machine: repair it, or remove it from the inventory",
					m.ref.Value, cloud.Clip(m.text("name"), 80))
			}
			t := m.tagged(fields, d.choice)
			if t.ID != "" && m.properties["config.template"] != true &&
				!slices.ContainsFunc(keys, func(key string) bool { return t.Tags[key] == "" }) {
				found = append(found, t)
			}
		}
		return err
	})
	return found, err
}

// tagged returns the VM with its tags. A copy of a machine has none of Drover's.
func (m vm) tagged(fields []types.CustomFieldDef, addresses choice) tagging.Instance {
	tags := map[string]string{"Name": m.text("name")}
	for i := range fields {
		if value := m.attribute(fields[i].Key); value != "" {
			tags[fields[i].Name] = value
		}
	}
	id := m.identity()
	if id != "" {
		for _, key := range []string{cloud.TagToken, cloud.TagOwnership, cloud.TagMachine} {
			tags[key] = m.text(option(key))
		}
	} else {
		id = strings.ToLower(m.text("config.uuid"))
	}
	t := tagging.Instance{Resource: m.resource(id, addresses), Tags: tags}
	t.Token, t.OwnershipID = tags[cloud.TagToken], tags[cloud.TagOwnership]
	cpus, _ := m.properties["config.hardware.numCPU"].(int32)
	memory, _ := m.properties["config.hardware.memoryMB"].(int32)
	t.Type = fmt.Sprintf("%d CPUs, %d MiB", cpus, memory)
	return t
}

// attribute returns the value of a custom attribute, or "".
func (m vm) attribute(key int32) string {
	is, _ := m.properties["customValue"].(types.ArrayOfCustomFieldValue)
	for _, v := range is.CustomFieldValue {
		if v, ok := v.(*types.CustomFieldStringValue); ok && v.Key == key {
			return v.Value
		}
	}
	return ""
}

// Tag implements tagging.Tagger. It also records the host name, which is the machine's name, as
// Drover's own machines have it.
func (d *driver) Tag(ctx context.Context, id string, tags map[string]string, _ []string) error {
	wanted := maps.Clone(tags)
	_, wanted[optionHost], _ = strings.Cut(tags[cloud.TagMachine], "/")
	return d.vcenter.withSession(ctx, func(s *session) error {
		answer, err := methods.FindAllByUuid(ctx, s, &types.FindAllByUuid{
			This: *s.content.SearchIndex, Uuid: id, VmSearch: true, InstanceUuid: ptr.To(false), Datacenter: &s.datacenter,
		})
		switch {
		case err != nil:
			return err
		case len(answer.Returnval) == 0:
			return cloud.Errorf(cloud.NotFound, "no VM has the BIOS UUID %s", id)
		case len(answer.Returnval) > 1:
			return cloud.Errorf(cloud.Conflict, "%d VMs have the BIOS UUID %s, so Kubernetes can't tell them apart", len(answer.Returnval), id)
		}
		return d.writeOptions(ctx, s, answer.Returnval, wanted)
	})
}

// Untag implements tagging.Tagger.
func (d *driver) Untag(ctx context.Context, ids, keys []string) error {
	return d.vcenter.withSession(ctx, func(s *session) error {
		found, err := d.locate(ctx, s, ids)
		if err != nil {
			return err
		}
		var refs []types.ManagedObjectReference
		for _, f := range found {
			refs = append(refs, f.ref)
		}
		options := map[string]string{}
		var attributes []string
		for _, key := range keys {
			switch key {
			case cloud.TagToken:
				options[key], options[optionHost] = "", ""
			case cloud.TagOwnership, cloud.TagMachine:
				options[key] = ""
			default:
				attributes = append(attributes, key)
			}
		}
		if err := d.clearAttributes(ctx, s, refs, attributes); err != nil {
			return err
		}
		return d.writeOptions(ctx, s, refs, options)
	})
}

// clearAttributes empties the custom attributes of these names.
func (d *driver) clearAttributes(ctx context.Context, s *session, refs []types.ManagedObjectReference, names []string) error {
	if len(names) == 0 {
		return nil
	}
	fields, err := s.customFields(ctx, d.page)
	if err != nil {
		return err
	}
	vms, err := s.readObjects(ctx, d.page, refs, []string{"customValue"})
	if err != nil {
		return err
	}
	for _, m := range vms {
		for i := range fields {
			if !slices.Contains(names, fields[i].Name) || m.attribute(fields[i].Key) == "" {
				continue
			}
			_, err := methods.SetField(ctx, s, &types.SetField{This: *s.content.CustomFieldsManager, Entity: m.ref, Key: fields[i].Key})
			if err != nil && !isGone(err) {
				return err
			}
		}
	}
	return nil
}

// writeOptions starts a task for each VM whose options differ. It returns *cloud.Queued until all
// have these values.
func (d *driver) writeOptions(ctx context.Context, s *session, refs []types.ManagedObjectReference, wanted map[string]string) error {
	if len(wanted) == 0 {
		return nil
	}
	paths := []string{"config.uuid"}
	for key := range wanted {
		paths = append(paths, option(key))
	}
	vms, err := s.readObjects(ctx, d.page, refs, paths)
	if err != nil {
		return err
	}
	waiting := false
	for _, m := range vms {
		var changes []types.BaseOptionValue
		for _, key := range slices.Sorted(maps.Keys(wanted)) {
			if m.text(option(key)) != wanted[key] {
				changes = append(changes, &types.OptionValue{Key: key, Value: wanted[key]})
			}
		}
		switch {
		case m.unreadable():
			return cloud.Errorf(cloud.Unavailable, "vCenter can't read the configuration of VM %s now", m.ref.Value)
		case len(changes) == 0:
			d.writes.end(m.ref)
			continue
		}
		waiting = true
		if err := d.writeOf(ctx, s, m.ref, changes); err != nil {
			return err
		}
	}
	if waiting {
		return &cloud.Queued{After: taskPace}
	}
	return nil
}

// writeOf starts the task that writes a VM's options, unless one runs. It returns the error of one
// that has failed.
func (d *driver) writeOf(ctx context.Context, s *session, ref types.ManagedObjectReference, changes []types.BaseOptionValue) error {
	if task := d.writes.get(ref); task.Value != "" {
		answers, err := s.readObjects(ctx, d.page, []types.ManagedObjectReference{task}, []string{"info.state", "info.error"})
		if err != nil {
			return err
		}
		for _, is := range answers {
			switch is.properties["info.state"] {
			case types.TaskInfoStateError:
				d.writes.end(ref)
				return s.taskError("ReconfigVM_Task", is)
			case types.TaskInfoStateQueued, types.TaskInfoStateRunning:
				return nil
			}
		}
	}
	answer, err := methods.ReconfigVM_Task(ctx, s,
		&types.ReconfigVM_Task{This: ref, Spec: types.VirtualMachineConfigSpec{ExtraConfig: changes}})
	if err != nil {
		return err
	}
	d.writes.begin(ref, answer.Returnval)
	return nil
}

func (w *writes) get(vm types.ManagedObjectReference) types.ManagedObjectReference {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.tasks[withoutServer(vm)]
}

func (w *writes) begin(vm, task types.ManagedObjectReference) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.tasks == nil {
		w.tasks = map[types.ManagedObjectReference]types.ManagedObjectReference{}
	}
	w.tasks[withoutServer(vm)] = task
}

func (w *writes) end(vm types.ManagedObjectReference) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.tasks, withoutServer(vm))
}
