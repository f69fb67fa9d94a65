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

// maxExistenceChecks is how many VMs that vanished unexpectedly are checked in one step. Each one
// that is gone costs a call.
const maxExistenceChecks = 20

// locations holds where the machines' VMs are. A reference leads to a VM without a search. It also
// tells a VM that is gone from one that the account's user may no longer see, because vCenter
// leaves both out of its answers.
type locations struct {
	mu    sync.Mutex
	byRef map[types.ManagedObjectReference]location
	// cloneFolders holds the folders of clones that were not seen yet, by the machine's UUID.
	cloneFolders map[string]types.ManagedObjectReference
}

// location is a VM as it was last seen.
type location struct {
	id     string                       // the machine's UUID
	tags   cloud.Reference              // the machine's token and ownership ID
	folder types.ManagedObjectReference // zero for a VM in a vApp
	// destroyed is true once vCenter has accepted Drover's call to destroy the VM.
	destroyed bool
}

// recordClone records that a machine is being created in a folder.
func (s *locations) recordClone(id string, folder types.ManagedObjectReference) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cloneFolders == nil {
		s.cloneFolders = map[string]types.ManagedObjectReference{}
	}
	s.cloneFolders[id] = folder
}

// record records the VMs that were read. It forgets a VM that is no longer a machine.
func (s *locations) record(vms []vm) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byRef == nil {
		s.byRef = map[types.ManagedObjectReference]location{}
	}
	for _, m := range vms {
		id, ref := m.identity(), withoutServer(m.ref)
		was := s.byRef[ref]
		switch {
		case id != "":
			folder, _ := m.properties["parent"].(types.ManagedObjectReference)
			token, owner := m.tags()
			s.byRef[ref] = location{id: id, tags: cloud.Reference{Token: token, OwnershipID: owner},
				folder: cmp.Or(withoutServer(folder), was.folder)}
			delete(s.cloneFolders, id)
		case !m.unreadable():
			delete(s.byRef, ref)
		}
	}
}

// recordDestroy records that vCenter has accepted the call to destroy the VM.
func (s *locations) recordDestroy(ref types.ManagedObjectReference) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if was, ok := s.byRef[withoutServer(ref)]; ok {
		was.destroyed = true
		s.byRef[withoutServer(ref)] = was
	}
}

// forget forgets VMs that are proven to be gone.
func (s *locations) forget(gone map[types.ManagedObjectReference]location) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for ref := range gone {
		delete(s.byRef, ref)
	}
}

// forgetMachines forgets machines that are proven to have no VM.
func (s *locations) forgetMachines(ids []string) {
	s.forget(s.forMachines(ids))
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		delete(s.cloneFolders, id)
	}
}

// all returns the remembered VMs.
func (s *locations) all() map[types.ManagedObjectReference]location {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.byRef)
}

// forMachines returns the remembered VMs of these machines.
func (s *locations) forMachines(ids []string) map[types.ManagedObjectReference]location {
	wanted := setOf(ids)
	s.mu.Lock()
	defer s.mu.Unlock()
	found := map[types.ManagedObjectReference]location{}
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
func (s *locations) known(ids []string) map[string]bool {
	known := map[string]bool{}
	for _, at := range s.forMachines(ids) {
		known[at.id] = true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		if _, made := s.cloneFolders[id]; made {
			known[id] = true
		}
	}
	return known
}

// folders returns where these machines were last seen or cloned. If that is unknown for one of
// them, it returns all folders with machines.
func (s *locations) folders(ids []string) []types.ManagedObjectReference {
	s.mu.Lock()
	defer s.mu.Unlock()
	of, all := map[string]types.ManagedObjectReference{}, map[types.ManagedObjectReference]bool{}
	maps.Copy(of, s.cloneFolders)
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

// withoutServer returns a reference without the vCenter's own ID, which some answers add, so that
// references are comparable.
func withoutServer(ref types.ManagedObjectReference) types.ManagedObjectReference {
	return types.ManagedObjectReference{Type: ref.Type, Value: ref.Value}
}

// checkAbsent returns nil if these machines, for which a read has found no VM, have none.
func (d *driver) checkAbsent(ctx context.Context, s *session, ids []string) error {
	if len(ids) == 0 {
		return nil
	}
	err := d.checkVisible(ctx, s, d.locations.forMachines(ids), d.locations.folders(ids))
	if err == nil {
		d.locations.forgetMachines(ids)
	}
	return err
}

// checkGone returns nil if these VMs, which a read has not found where they were, are gone.
func (d *driver) checkGone(ctx context.Context, s *session, vanished map[types.ManagedObjectReference]location) error {
	if len(vanished) == 0 {
		return nil
	}
	var ids []string
	for _, at := range vanished {
		ids = append(ids, at.id)
	}
	err := d.checkVisible(ctx, s, vanished, d.locations.folders(ids))
	if err == nil {
		d.locations.forget(vanished)
	}
	return err
}

// checkVisible returns nil if no hidden object may be one of the VMs. vCenter silently leaves out
// what the account's user may not see. So checkVisible asks whether the user may see the
// datacenter, the folders where the VMs were last, and the VMs themselves, which may have been
// moved. A VM that is gone causes a fault that names it. It does not ask for VMs that Drover
// destroyed. It can't detect a VM in a place where this process has never seen it.
func (d *driver) checkVisible(ctx context.Context, s *session, vanished map[types.ManagedObjectReference]location,
	folders []types.ManagedObjectReference) error {
	var suspects []types.ManagedObjectReference
	for ref, at := range vanished {
		if !at.destroyed {
			suspects = append(suspects, ref)
		}
	}
	slices.SortFunc(suspects, byValue)
	further := max(len(suspects)-maxExistenceChecks, 0)
	suspects = suspects[:len(suspects)-further]
	asked := slices.Concat(suspects, folders, []types.ManagedObjectReference{withoutServer(s.datacenter)})
	gone := map[types.ManagedObjectReference]location{}
	for {
		hidden, err := s.hidden(ctx, asked)
		missing, ok := missingOf(err)
		if ok && missing != withoutServer(s.datacenter) && slices.Contains(asked, missing) {
			asked = slices.DeleteFunc(asked, func(ref types.ManagedObjectReference) bool { return ref == missing })
			gone[missing] = vanished[missing]
			continue
		}
		switch {
		case err != nil:
			return err
		case len(hidden) > 0:
			return cloud.Errorf(cloud.Unauthorized, "the account's user may not see %s (needs System.View and System.Read), where machines were: can't determine whether they are gone",
				strings.Join(hidden, ", "))
		}
		break
	}
	d.locations.forget(gone)
	switch {
	case asked[0].Type == "VirtualMachine":
		return cloud.Errorf(cloud.Unavailable, "VM %s exists but was not found; the read is retried", asked[0].Value)
	case further > 0:
		return cloud.Errorf(cloud.Unavailable, "%d more VMs vanished at once; they are checked next", further)
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
	return withoutServer(missing.Obj), true
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
				granted[withoutServer(entity.Entity)]++
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
