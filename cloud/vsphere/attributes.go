// SPDX-License-Identifier: Apache-2.0

package vsphere

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/types"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
)

// updatedVMs holds the VMs that already have their tags or custom attributes. The listing that
// finds new VMs handles all of them at once. A new process starts with none, so a VM may be given
// the same values again.
type updatedVMs struct {
	mu   sync.Mutex
	done map[types.ManagedObjectReference]bool
}

// pending returns the running VMs that have the option and are not done. It forgets VMs that are
// gone.
func (s *updatedVMs) pending(vms []vm, key string) (pending []vm) {
	s.mu.Lock()
	defer s.mu.Unlock()
	there := map[types.ManagedObjectReference]bool{}
	for _, m := range vms {
		switch {
		case m.text(option(key)) == "" || m.identity() == "":
		case s.done[m.ref]:
			there[m.ref] = true
		case stateOf(m.properties["runtime.powerState"]) == cloud.StateRunning: // its creation is complete
			pending = append(pending, m)
		}
	}
	s.done = there
	return pending
}

func (s *updatedVMs) markDone(ref types.ManagedObjectReference) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done[ref] = true
}

// marks returns the options that record which tags and custom attributes the VM gets.
func (p *plan) marks() (all []types.BaseOptionValue, err error) {
	if len(p.tags) > 0 {
		all = append(all, &types.OptionValue{Key: optionTags, Value: strings.Join(p.tags, " ")})
	}
	if len(p.attributes) > 0 {
		text, err := json.Marshal(p.attributes)
		if err != nil {
			return nil, &cloud.Error{Code: cloud.InvalidSpec, Message: "customAttributes can't be encoded", Err: err}
		}
		all = append(all, &types.OptionValue{Key: optionAttributes, Value: string(text)})
	}
	return all, nil
}

// attributeKeys returns the values of a machine's custom attributes, by vCenter's keys.
func (s *session) attributeKeys(ctx context.Context, page int32, wanted []infrav1.VSphereAttribute) (map[string]string, error) {
	if len(wanted) == 0 {
		return nil, nil
	}
	if s.content.CustomFieldsManager == nil {
		return nil, cloud.Errorf(cloud.InvalidSpec, "customAttributes: the server does not support them")
	}
	known, err := s.customFields(ctx, page)
	if err != nil {
		return nil, err
	}
	values := map[string]string{}
	for i, attribute := range wanted {
		at := slices.IndexFunc(known, func(f types.CustomFieldDef) bool { return f.Name == attribute.Name })
		if at < 0 {
			return nil, cloud.Errorf(cloud.NotFound, "customAttributes[%d]: attribute %q for VMs does not exist, or the account's user may not see it", i, cloud.Clip(attribute.Name, 80))
		}
		values[strconv.Itoa(int(known[at].Key))] = attribute.Value
	}
	return values, nil
}

// customFields returns the custom attributes that VMs may have; none if the server does not support
// them.
func (s *session) customFields(ctx context.Context, page int32) ([]types.CustomFieldDef, error) {
	if s.content.CustomFieldsManager == nil {
		return nil, nil
	}
	found, err := s.readObjects(ctx, page, []types.ManagedObjectReference{*s.content.CustomFieldsManager}, []string{"field"})
	var known types.ArrayOfCustomFieldDef
	for _, manager := range found {
		known, _ = manager.properties["field"].(types.ArrayOfCustomFieldDef)
	}
	return slices.DeleteFunc(known.CustomFieldDef, func(f types.CustomFieldDef) bool {
		return f.ManagedObjectType != "" && f.ManagedObjectType != "VirtualMachine"
	}), err
}

// setAttributes sets missing values with one call for each, for at most maxBatch VMs. The next
// listing handles the rest. A failure is shown with the machine and retried. setAttributes returns
// an error only if the session has ended.
func (d *driver) setAttributes(ctx context.Context, s *session, vms []vm, shown []cloud.Resource) error {
	waiting := d.annotated.pending(vms, optionAttributes)
	waiting = waiting[:min(len(waiting), maxBatch)]
	texts := map[types.ManagedObjectReference]string{}
	for _, m := range waiting {
		texts[m.ref] = m.text(option(optionAttributes))
	}
	found, err := s.readObjects(ctx, d.page, slices.Collect(maps.Keys(texts)), []string{"customValue"})
	errs := map[types.ManagedObjectReference]error{}
	for _, m := range found {
		errs[m.ref] = s.setOf(ctx, m, texts[m.ref])
	}
	for _, m := range waiting {
		err := cmp.Or(err, errs[m.ref])
		var queued *cloud.Queued
		switch {
		case err == nil:
			d.annotated.markDone(m.ref)
		case isFault[*types.NotAuthenticated](err):
			return err
		case !errors.As(err, &queued):
			addNotice(shown, []vm{m}, fmt.Sprintf("not all custom attributes are set: %v", err))
		}
	}
	return nil
}

// setOf sets the VM's custom attributes that differ.
func (s *session) setOf(ctx context.Context, m vm, text string) error {
	values := map[int32]string{}
	if err := json.Unmarshal([]byte(text), &values); err != nil {
		return cloud.Errorf(cloud.Conflict, "VM %s: its option %s was changed", m.ref.Value, optionAttributes)
	}
	is, _ := m.properties["customValue"].(types.ArrayOfCustomFieldValue)
	for _, v := range is.CustomFieldValue {
		if v, ok := v.(*types.CustomFieldStringValue); ok && values[v.Key] == v.Value {
			delete(values, v.Key)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		_, err := methods.SetField(ctx, s, &types.SetField{This: *s.content.CustomFieldsManager, Entity: m.ref, Key: key, Value: values[key]})
		if err != nil && !isGone(err) {
			return err
		}
	}
	return nil
}
