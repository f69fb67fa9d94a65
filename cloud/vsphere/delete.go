// SPDX-License-Identifier: Apache-2.0

package vsphere

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
)

// softPrefix is the prefix of the power-off option of a machine whose power is never cut.
const softPrefix = "soft "

// removals holds the deletions in progress, by resource ID. After a restart of the manager, a guest
// gets its full shutdown time again.
type removals struct {
	mu   sync.Mutex
	byID map[string]removal
}

type removal struct {
	task       types.ManagedObjectReference // the latest task
	shutdownAt time.Time                    // when the guest was asked to shut down
}

func (r *removals) get(id string) removal {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.byID[id]
}

func (r *removals) set(id string, to removal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byID == nil {
		r.byID = map[string]removal{}
	}
	r.byID[id] = to
}

func (r *removals) forget(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.byID, id)
}

// Delete reads all the VMs at once, and moves each one step on: power off, detach the disks that
// are not its own, destroy. It cancels a running clone.
func (d *driver) Delete(ctx context.Context, resources []cloud.Resource) []error {
	errs := make([]error, len(resources))
	if len(resources) == 0 {
		return errs
	}
	err := d.vcenter.withSession(ctx, func(s *session) error {
		wanted := map[string]cloud.Reference{}
		for _, r := range resources {
			id, _, _ := strings.Cut(r.ID, "/")
			wanted[id] = cloud.Reference{Token: r.Token, OwnershipID: r.OwnershipID}
		}
		vms, err := d.machines(ctx, s, wanted, append(identityProperties(), "runtime.powerState", "config.hardware.device",
			option(optionPowerOff)))
		if err != nil {
			return err
		}
		slices.SortFunc(vms, func(a, b vm) int { return strings.Compare(a.ref.Value, b.ref.Value) })
		failed, err := d.failedRemovals(ctx, s, resources)
		if err != nil {
			return err
		}
		for i, r := range resources {
			errs[i] = d.deleteOne(ctx, s, r, vms, failed[r.ID])
			if isFault[*types.NotAuthenticated](errs[i]) {
				return errs[i] // every step can be repeated
			}
		}
		return nil
	})
	if err != nil {
		for i := range errs {
			errs[i] = err
		}
	}
	return errs
}

// failedRemovals reads the tasks of earlier steps, and returns the errors of the failed ones, by
// resource ID.
func (d *driver) failedRemovals(ctx context.Context, s *session, resources []cloud.Resource) (map[string]error, error) {
	of := map[types.ManagedObjectReference]string{}
	for _, r := range resources {
		if task := d.removals.get(r.ID).task; task.Value != "" {
			of[task] = r.ID
		}
	}
	answers, err := s.readObjects(ctx, d.page, slices.Collect(maps.Keys(of)), []string{"info.state", "info.error", "info.descriptionId"})
	if err != nil {
		return nil, err
	}
	failed := map[string]error{}
	for _, task := range answers {
		if task.properties["info.state"] == types.TaskInfoStateError {
			failed[of[task.ref]] = s.taskError(task.text("info.descriptionId"), task)
		}
	}
	return failed, nil
}

// deleteOne deletes the resource's VM: the first with its UUID, or the one that its ID also names.
func (d *driver) deleteOne(ctx context.Context, s *session, r cloud.Resource, vms []vm, failed error) error {
	if err := driverkit.CheckOwned(r); err != nil {
		return err
	}
	id, ref, further := strings.Cut(r.ID, "/")
	i := slices.IndexFunc(vms, func(m vm) bool { return m.identity() == id && (!further || m.ref.Value == ref) })
	if i < 0 {
		return d.cancelClone(ctx, s, id)
	}
	m := vms[i]
	if _, owner := m.tags(); owner != r.OwnershipID {
		return cloud.Errorf(cloud.Conflict, "VM %s belongs to another cluster; Drover does not delete it", m.ref.Value)
	}
	if m.unreadable() && importedID(r.Token) != "" { // a token can name any VM: only the VM's own options say that it is the machine
		return cloud.Errorf(cloud.Unavailable, "vCenter can't read the configuration of VM %s now, so it is not deleted", m.ref.Value)
	}
	was := d.removals.get(r.ID)
	if failed != nil && !isState(failed) && !isGone(failed) {
		d.removals.set(r.ID, removal{shutdownAt: was.shutdownAt}) // reported once, then retried
		return failed
	}
	now, err := d.nextStep(ctx, s, m, was)
	if isGone(err) || isState(err) {
		err = nil
	}
	d.removals.set(r.ID, now)
	return err
}

// cancelClone cancels a clone that has no VM yet. If the clone creates one anyway, the VM carries
// the machine's tags and is found.
func (d *driver) cancelClone(ctx context.Context, s *session, id string) error {
	k := d.clones.task(id)
	switch {
	case k == nil:
		return nil
	case k.failed != nil:
		d.clones.forget(id)
		return nil
	}
	_, err := methods.CancelTask(ctx, s, &types.CancelTask{This: k.task})
	if isGone(err) || cloud.CodeOf(err) == cloud.InvalidSpec || isState(err) {
		return nil // it has ended or can't be canceled; its VM is deleted later
	}
	return err
}

// isState reports whether an operation came too late or too early: its object is already in another
// state.
func isState(err error) bool {
	return isFault[types.BaseInvalidState](err) || isFault[*types.TaskInProgress](err)
}

// nextStep moves one VM's deletion one step on, and returns the state to remember.
func (d *driver) nextStep(ctx context.Context, s *session, m vm, was removal) (now removal, err error) {
	now.shutdownAt = was.shutdownAt
	limit, soft := m.limit()
	waited := time.Since(was.shutdownAt)
	switch {
	case limit == 0 || (!soft && !was.shutdownAt.IsZero() && waited >= limit): // no shutdown is due, or its time is up
		now.task, err = d.remove(ctx, s, m)
		return now, err
	case !was.shutdownAt.IsZero() && waited < limit: // the guest still has time
		return now, nil
	}
	now.shutdownAt = time.Now()
	_, err = methods.ShutdownGuest(ctx, s, &types.ShutdownGuest{This: m.ref})
	switch {
	case !isFault[*types.ToolsUnavailable](err):
		return now, err
	case soft:
		return removal{}, cloud.Errorf(cloud.Unavailable,
			"%v: powerOffMode is Soft, but VMware Tools do not run: shut the guest down manually", err)
	}
	now.task, err = d.remove(ctx, s, m)
	return now, err
}

// remove powers the VM off, detaches the disks that are not its own, or destroys it, whichever is
// next.
func (d *driver) remove(ctx context.Context, s *session, m vm) (task types.ManagedObjectReference, err error) {
	disks := detachCSIDisks(m)
	switch {
	case m.properties["runtime.powerState"] != types.VirtualMachinePowerStatePoweredOff:
		answer, err := methods.PowerOffVM_Task(ctx, s, &types.PowerOffVM_Task{This: m.ref})
		if err != nil {
			return task, err
		}
		return answer.Returnval, nil
	case m.properties["config.hardware.device"] == nil: // it may have disks that outlive it
		return task, cloud.Errorf(cloud.Unavailable, "vCenter can't read the disks of VM %s now, so it is not destroyed: "+
			"bring its host and datastore back, or remove it from the inventory", m.ref.Value)
	case len(disks) > 0:
		answer, err := methods.ReconfigVM_Task(ctx, s,
			&types.ReconfigVM_Task{This: m.ref, Spec: types.VirtualMachineConfigSpec{DeviceChange: disks}})
		if err != nil {
			return task, err
		}
		return answer.Returnval, nil
	}
	answer, err := methods.Destroy_Task(ctx, s, &types.Destroy_Task{This: m.ref})
	if err != nil {
		return task, err
	}
	d.locations.recordDestroy(m.ref)
	return answer.Returnval, nil
}

// limit returns how long the guest has to shut down, 0 for none. soft means that the guest is
// asked again after that and its power is never cut. A guest that does not run can't be asked.
func (m vm) limit() (limit time.Duration, soft bool) {
	text, soft := strings.CutPrefix(m.text(option(optionPowerOff)), softPrefix)
	limit, err := time.ParseDuration(text)
	if err != nil || m.properties["runtime.powerState"] != types.VirtualMachinePowerStatePoweredOn {
		return 0, false
	}
	return limit, soft
}

// detachCSIDisks returns the changes that detach the disks of a CSI driver: first-class disks,
// which outlive a VM, but which vCenter would destroy together with the VM.
func detachCSIDisks(m vm) []types.BaseVirtualDeviceConfigSpec {
	var all []types.BaseVirtualDeviceConfigSpec
	devices, _ := m.properties["config.hardware.device"].(types.ArrayOfVirtualDevice)
	for _, device := range devices.VirtualDevice {
		if disk, ok := device.(*types.VirtualDisk); ok && disk.VDiskId != nil {
			all = append(all, &types.VirtualDeviceConfigSpec{Operation: types.VirtualDeviceConfigSpecOperationRemove, Device: disk})
		}
	}
	return all
}
