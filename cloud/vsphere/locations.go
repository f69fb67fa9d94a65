// SPDX-License-Identifier: Apache-2.0

package vsphere

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/drover-io/drover/cloud"
)

// maxProofs is how many VMs that vanished unexpectedly are checked in one step. Each one that is
// gone costs a call.
const maxProofs = 20

// sightings holds where the machines' VMs are. A reference leads to a VM without a search. It also
// tells a VM that is gone from one that the account's user may no longer see, because vCenter
// leaves both out of its answers.
type sightings struct {
	mu    sync.Mutex
	byRef map[types.ManagedObjectReference]sighting
	// made holds the folders of clones that were not seen yet, by the machine's UUID.
	made map[string]types.ManagedObjectReference
}

// sighting is a VM as it was last seen.
type sighting struct {
	id     string                       // the machine's UUID
	tags   cloud.Reference              // the machine's token and ownership ID
	folder types.ManagedObjectReference // zero for a VM in a vApp
	// destroyed is true once vCenter has accepted Drover's call to destroy the VM.
	destroyed bool
}

// clone records that a machine is being created in a folder.
func (s *sightings) clone(id string, folder types.ManagedObjectReference) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.made == nil {
		s.made = map[string]types.ManagedObjectReference{}
	}
	s.made[id] = folder
}

// note records the VMs that were read. It forgets a VM that is no longer a machine.
func (s *sightings) note(vms []vm) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byRef == nil {
		s.byRef = map[types.ManagedObjectReference]sighting{}
	}
	for _, m := range vms {
		id, ref := m.identity(), bare(m.ref)
		was := s.byRef[ref]
		switch {
		case id != "":
			folder, _ := m.properties["parent"].(types.ManagedObjectReference)
			token, owner := m.tags()
			s.byRef[ref] = sighting{id: id, tags: cloud.Reference{Token: token, OwnershipID: owner}, folder: cmp.Or(bare(folder), was.folder)}
			delete(s.made, id)
		case !m.unreadable():
			delete(s.byRef, ref)
		}
	}
}

// destroy records that vCenter has accepted the call to destroy the VM.
func (s *sightings) destroy(ref types.ManagedObjectReference) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if was, ok := s.byRef[bare(ref)]; ok {
		was.destroyed = true
		s.byRef[bare(ref)] = was
	}
}

// forget forgets VMs that are proven to be gone.
func (s *sightings) forget(gone map[types.ManagedObjectReference]sighting) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for ref := range gone {
		delete(s.byRef, ref)
	}
}

// absent forgets machines that are proven to have no VM.
func (s *sightings) absent(ids []string) {
	s.forget(s.of(ids))
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		delete(s.made, id)
	}
}

// all returns the remembered VMs.
func (s *sightings) all() map[types.ManagedObjectReference]sighting {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.byRef)
}

// of returns the remembered VMs of these machines.
func (s *sightings) of(ids []string) map[types.ManagedObjectReference]sighting {
	wanted := setOf(ids)
	s.mu.Lock()
	defer s.mu.Unlock()
	found := map[types.ManagedObjectReference]sighting{}
	for ref, at := range s.byRef {
		if wanted[at.id] {
			found[ref] = at
		}
	}
	return found
}

func setOf(ids []string) map[string]bool {
	set := map[string]bool{}
	for _, id := range ids {
		set[id] = true
	}
	return set
}

// known returns which of the machines this process has seen or cloned.
func (s *sightings) known(ids []string) map[string]bool {
	known := map[string]bool{}
	for _, at := range s.of(ids) {
		known[at.id] = true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		if _, made := s.made[id]; made {
			known[id] = true
		}
	}
	return known
}

// folders returns where these machines were last seen or cloned. If that is unknown for one of
// them, it returns all folders with machines.
func (s *sightings) folders(ids []string) []types.ManagedObjectReference {
	s.mu.Lock()
	defer s.mu.Unlock()
	of, all := map[string]types.ManagedObjectReference{}, map[types.ManagedObjectReference]bool{}
	maps.Copy(of, s.made)
	for _, at := range s.byRef {
		of[at.id] = at.folder
	}
	unknown := false
	for _, id := range ids {
		folder, known := of[id]
		all[folder], unknown = true, unknown || !known
	}
	for _, folder := range of {
		if unknown {
			all[folder] = true
		}
	}
	delete(all, types.ManagedObjectReference{})
	return slices.SortedFunc(maps.Keys(all), byValue)
}

func byValue(a, b types.ManagedObjectReference) int { return strings.Compare(a.Value, b.Value) }

// bare returns a reference without the vCenter's own ID, which some answers add, so that references
// are comparable.
func bare(ref types.ManagedObjectReference) types.ManagedObjectReference {
	return types.ManagedObjectReference{Type: ref.Type, Value: ref.Value}
}

// proveAbsent returns nil if these machines, for which a read has found no VM, have none.
func (d *driver) proveAbsent(ctx context.Context, s *session, ids []string) error {
	if len(ids) == 0 {
		return nil
	}
	err := d.prove(ctx, s, d.seen.of(ids), d.seen.folders(ids))
	if err == nil {
		d.seen.absent(ids)
	}
	return err
}

// proveGone returns nil if these VMs, which a read has not found where they were, are gone.
func (d *driver) proveGone(ctx context.Context, s *session, vanished map[types.ManagedObjectReference]sighting) error {
	if len(vanished) == 0 {
		return nil
	}
	var ids []string
	for _, at := range vanished {
		ids = append(ids, at.id)
	}
	err := d.prove(ctx, s, vanished, d.seen.folders(ids))
	if err == nil {
		d.seen.forget(vanished)
	}
	return err
}

// prove returns nil if no hidden object may be one of the VMs. vCenter silently leaves out what the
// account's user may not see. So prove asks whether the user may see the datacenter, the folders
// where the VMs were last, and the VMs themselves, which may have been moved. A VM that is gone
// causes a fault that names it. prove does not ask for VMs that Drover destroyed. It can't detect a
// VM in a place where this process has never seen it.
func (d *driver) prove(ctx context.Context, s *session, vanished map[types.ManagedObjectReference]sighting, folders []types.ManagedObjectReference) error {
	var suspects []types.ManagedObjectReference
	for ref, at := range vanished {
		if !at.destroyed {
			suspects = append(suspects, ref)
		}
	}
	slices.SortFunc(suspects, byValue)
	further := max(len(suspects)-maxProofs, 0)
	suspects = suspects[:len(suspects)-further]
	asked := slices.Concat(suspects, folders, []types.ManagedObjectReference{bare(s.datacenter)})
	gone := map[types.ManagedObjectReference]sighting{}
	for {
		hidden, err := s.hidden(ctx, asked)
		missing, ok := missingOf(err)
		if ok && missing != bare(s.datacenter) && slices.Contains(asked, missing) {
			asked = slices.DeleteFunc(asked, func(ref types.ManagedObjectReference) bool { return ref == missing })
			gone[missing] = vanished[missing]
			continue
		}
		switch {
		case err != nil:
			return err
		case len(hidden) > 0:
			return cloud.Errorf(cloud.Unauthorized, "the account's user may not see %s (System.View and System.Read are needed), where machines were: whether they are gone can't be told",
				strings.Join(hidden, ", "))
		}
		break
	}
	d.seen.forget(gone)
	switch {
	case asked[0].Type == "VirtualMachine":
		return cloud.Errorf(cloud.Unavailable, "VM %s is there, and was not found; it is looked for again", asked[0].Value)
	case further > 0:
		return cloud.Errorf(cloud.Unavailable, "%d more VMs vanished at once; whether they are gone is asked next", further)
	}
	return nil
}

// missingOf returns the object that is missing according to a fault.
func missingOf(err error) (ref types.ManagedObjectReference, ok bool) {
	var f vimFault
	if !errors.As(err, &f) {
		return ref, false
	}
	missing, ok := f.BaseMethodFault.(*types.ManagedObjectNotFound)
	if !ok {
		return ref, false
	}
	return bare(missing.Obj), true
}

// hidden returns the objects that the session's user may not see.
func (s *session) hidden(ctx context.Context, refs []types.ManagedObjectReference) (hidden []string, err error) {
	needed := []string{"System.View", "System.Read"}
	answer, err := methods.HasPrivilegeOnEntities(ctx, s, &types.HasPrivilegeOnEntities{
		This: *s.content.AuthorizationManager, Entity: refs, SessionId: s.user.Key, PrivId: needed,
	})
	if err != nil {
		return nil, err
	}
	granted := map[types.ManagedObjectReference]int{}
	for _, entity := range answer.Returnval {
		for _, privilege := range entity.PrivAvailability {
			if privilege.IsGranted && slices.Contains(needed, privilege.PrivId) {
				granted[bare(entity.Entity)]++
			}
		}
	}
	for _, ref := range refs {
		if granted[ref] < len(needed) {
			hidden = append(hidden, fmt.Sprintf("%s %s", ref.Type, ref.Value))
		}
	}
	return hidden, nil
}
