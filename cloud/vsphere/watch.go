// SPDX-License-Identifier: Apache-2.0

package vsphere

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	"github.com/drover-io/drover/cloud"
)

const (
	// maxWait is how long vCenter holds a call without changes: well below the timeouts of proxies
	// and firewalls in between. A clone that fails before it has a VM changes no VM, so its failure
	// may be noticed this late.
	maxWait = 30 * time.Second
	// responseTime is how long the answer may take beyond that.
	responseTime = 30 * time.Second
	// maxViewed bounds the VMs in the stream's memory. A vCenter has at most 40,000.
	maxViewed = 100_000
	// maxReference bounds the bytes of a reference to one of them. vCenter's have about 20.
	maxReference = 128
	// maxReportGap is the longest time without a report. After a longer gap, the stream reports
	// everything again, because the account may have been listed meanwhile.
	maxReportGap = 2 * time.Minute
	// ruleRetryInterval is how often a DRS rule that can't be set is retried if no machine changes.
	ruleRetryInterval = time.Minute
)

// watchedProperties returns the properties whose change may change a machine's resource. The
// version changes with every change of the configuration, which holds the tags.
func watchedProperties() []string {
	return []string{"config.changeVersion", "config.instanceUuid", "config.uuid", "runtime.powerState", "guest.net"}
}

// stream reports changes of machines. vCenter names only the changed VMs. The stream reads them and
// evaluates them as a listing does, together with the running clones and the groups.
type stream struct {
	*driver
	s         *session
	collector types.ManagedObjectReference
	version   string
	report    func(cloud.Update)

	view        sets.Set[types.ManagedObjectReference] // all VMs that vCenter has named and that have not left
	vms         map[types.ManagedObjectReference]vm    // the machines' VMs, as last read
	pending     map[string]cloud.Resource              // the clones, as last read
	reported    map[string][]cloud.Resource            // by token
	worked      bool                                   // a wait for changes has succeeded
	reportedAt  time.Time                              // time of the last report
	evaluatedAt time.Time                              // when evaluate last ran
}

// changes holds the VMs that vCenter names: true for those to read, false for those that left the
// datacenter.
type changes map[types.ManagedObjectReference]bool

// Watch watches the VMs in the session's view with vCenter's PropertyCollector. If vCenter has
// ended a session or collector that has worked, Watch creates a new one and reports everything
// again.
func (d *driver) Watch(ctx context.Context, report func(cloud.Update)) error {
	for {
		worked := false
		err := d.vcenter.withSession(ctx, func(s *session) error {
			f := &stream{driver: d, s: s, report: report, view: sets.New[types.ManagedObjectReference]()}
			err := f.run(ctx)
			worked = f.worked
			return err
		})
		lost := isFault[*types.NotAuthenticated](err) || isFault[*types.InvalidCollectorVersion](err)
		if !worked || !lost {
			return err
		}
	}
}

// run reports changes until something fails.
func (f *stream) run(ctx context.Context) error {
	if err := f.open(ctx); err != nil {
		return err
	}
	for {
		began := time.Now()
		changed, err := f.next(ctx, f.timeout())
		if err != nil {
			return err
		}
		f.worked = true
		at := time.Now()
		if at.Sub(f.reportedAt) > maxReportGap {
			err = f.reportAll(ctx)
		} else {
			err = f.reportChanges(ctx, at, changed)
		}
		if err != nil {
			return err
		}
		// A clone changes its VM many times within seconds. The first change is reported at once,
		// and the following ones together.
		if err := waitUntil(ctx, began.Add(f.pace())); err != nil {
			return err
		}
	}
}

// waitUntil waits until a time that is at most one pace away.
func waitUntil(ctx context.Context, at time.Time) error {
	timer := time.NewTimer(time.Until(at))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return notSentError("WaitForUpdatesEx", ctx.Err())
	}
}

// open creates a collector for this stream, because another caller's wait would end this one's.
// Then it reports everything.
func (f *stream) open(ctx context.Context) error {
	if f.s.collector.Value != "" { // left by an earlier stream of this session that could make no more calls
		_, err := methods.DestroyPropertyCollector(ctx, f.s, &types.DestroyPropertyCollector{This: f.s.collector})
		if err != nil && !isGone(err) {
			return err
		}
		f.s.collector = types.ManagedObjectReference{}
	}
	made, err := methods.CreatePropertyCollector(ctx, f.s, &types.CreatePropertyCollector{This: f.s.content.PropertyCollector})
	if err != nil {
		return err
	}
	f.collector, f.s.collector = made.Returnval, made.Returnval
	_, err = methods.CreateFilter(ctx, f.s, &types.CreateFilter{This: f.collector, Spec: types.PropertyFilterSpec{
		ObjectSet: []types.ObjectSpec{f.s.allVMs()},
		PropSet:   []types.PropertySpec{{Type: "VirtualMachine", PathSet: watchedProperties()}},
	}})
	if err != nil {
		return err
	}
	if _, err := f.next(ctx, 0); err != nil { // the current state; later changes are reported
		return err
	}
	return f.reportAll(ctx)
}

// reportAll lists and reports all machines.
func (f *stream) reportAll(ctx context.Context) error {
	at := time.Now()
	pending, vms, err := f.list(ctx, f.s)
	if err != nil {
		return err
	}
	all, err := f.evaluate(ctx, f.s, vms, pending)
	if err != nil {
		return err
	}
	f.pending, f.vms, f.reported = pending, map[types.ManagedObjectReference]vm{}, byToken(all)
	for _, m := range vms {
		f.vms[m.ref] = m
	}
	f.evaluatedAt, f.reportedAt = at, time.Now()
	f.report(cloud.Update{At: at, All: true, Resources: all, Stored: f.stored()})
	return nil
}

// reportChanges reports each machine that differs from its last report, and then that nothing else
// has changed.
func (f *stream) reportChanges(ctx context.Context, at time.Time, changed changes) error {
	if err := f.read(ctx, changed); err != nil {
		return err
	}
	pending, err := f.clones.refresh(ctx, f.s, f.page, nil)
	if err != nil {
		return err
	}
	if f.hasEndedClone(pending) { // its VM exists now, but the changes may lack it
		later, err := f.next(ctx, 0)
		if err == nil {
			err = f.read(ctx, later)
		}
		if err != nil {
			return err
		}
		maps.Copy(changed, later)
	}
	if len(changed) > 0 || len(pending) > 0 || len(f.pending) > 0 || at.Sub(f.evaluatedAt) >= ruleRetryInterval {
		all, err := f.evaluate(ctx, f.s, slices.Collect(maps.Values(f.vms)), pending)
		if err != nil {
			return err
		}
		f.pending, f.evaluatedAt = pending, at
		f.reportDifferences(at, byToken(all))
	}
	f.reportedAt = time.Now()
	f.report(cloud.Update{At: at, Stored: f.stored()})
	return nil
}

func (f *stream) reportDifferences(at time.Time, now map[string][]cloud.Resource) {
	stored := f.stored()
	for token := range f.reported {
		if len(now[token]) == 0 {
			f.report(cloud.Update{At: at, Token: token, Stored: stored})
		}
	}
	for token, resources := range now {
		if !reflect.DeepEqual(f.reported[token], resources) {
			f.report(cloud.Update{At: at, Token: token, Resources: resources, Stored: stored})
		}
	}
	f.reported = now
}

// stored returns how much memory the VMs take.
func (f *stream) stored() int64 {
	size := int64(f.view.Len()) * maxReference
	for _, m := range f.vms {
		size += m.size
	}
	return size
}

func byToken(all []cloud.Resource) map[string][]cloud.Resource {
	found := map[string][]cloud.Resource{}
	for _, r := range all {
		found[r.Token] = append(found[r.Token], r)
	}
	return found
}

// hasEndedClone reports whether a clone that was running has ended.
func (f *stream) hasEndedClone(pending map[string]cloud.Resource) bool {
	for id := range f.pending {
		if _, still := pending[id]; !still {
			return true
		}
	}
	return false
}

// timeout returns how long a wait for changes may take. While clones run, it is at most one pace,
// because the stream polls for their end.
func (f *stream) timeout() time.Duration {
	if len(f.clones.running(nil)) > 0 {
		return min(f.pace(), f.idle)
	}
	return f.idle
}

// read reads the VMs that changed. It forgets a VM that is no longer a machine, or that is proven
// to be gone.
func (f *stream) read(ctx context.Context, changed changes) error {
	var refs []types.ManagedObjectReference
	seen := f.locations.all()
	maps.DeleteFunc(seen, func(ref types.ManagedObjectReference, _ location) bool {
		_, told := changed[ref]
		return !told
	})
	for ref, there := range changed {
		if there {
			refs = append(refs, ref)
		}
	}
	vms, err := f.readVMs(ctx, f.s, refs, seen)
	if err != nil {
		return err
	}
	for ref := range changed {
		delete(f.vms, ref)
	}
	for _, m := range vms {
		if m.identity() != "" {
			f.vms[m.ref] = m
		}
	}
	return nil
}

// next waits for changes and returns all their parts. It returns none if nothing changed in that
// time.
func (f *stream) next(ctx context.Context, timeout time.Duration) (changes, error) {
	all := changes{}
	for {
		set, err := f.wait(ctx, timeout)
		if err != nil || set == nil {
			return all, err
		}
		f.version = set.Version
		for _, filter := range set.FilterSet {
			for _, update := range filter.ObjectSet {
				if n := len(update.Obj.Type) + len(update.Obj.Value) + len(update.Obj.ServerGUID); n > maxReference {
					return nil, cloud.Errorf(cloud.Unknown, "WaitForUpdatesEx: a reference has %d bytes: check spec.cloud.vsphere.server", n)
				}
				f.record(all, update)
			}
		}
		if len(all) > maxViewed || f.view.Len() > maxViewed {
			return nil, cloud.Errorf(cloud.Unknown, "WaitForUpdatesEx: more than %d VMs have changed: check spec.cloud.vsphere.server", maxViewed)
		}
		if !ptr.Deref(set.Truncated, false) {
			return all, nil
		}
	}
}

// record records one VM's update. Of a VM that is no machine, only a change that could make it one
// counts. If any VM enters that never left, the collector has started over and may not have
// reported VMs that left. Then the VMs of all machines are read, except those that have left.
func (f *stream) record(all changes, update types.ObjectUpdate) {
	_, ours := f.vms[update.Obj]
	switch {
	case update.Kind == types.ObjectUpdateKindLeave:
		all[update.Obj] = false
		f.view.Delete(update.Obj)
	case update.Kind == types.ObjectUpdateKindEnter:
		if f.view.Has(update.Obj) {
			for ref := range f.vms {
				there, told := all[ref]
				all[ref] = there || !told
			}
		}
		all[update.Obj] = true
		f.view.Insert(update.Obj)
	case ours, slices.ContainsFunc(update.ChangeSet, isConfigChange):
		all[update.Obj] = true
	}
}

func isConfigChange(c types.PropertyChange) bool { return strings.HasPrefix(c.Name, "config") }

// wait makes one call. It returns nil if nothing changed in that time.
func (f *stream) wait(ctx context.Context, timeout time.Duration) (*types.UpdateSet, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout+responseTime)
	defer cancel()
	answer, err := methods.WaitForUpdatesEx(ctx, f.s, &types.WaitForUpdatesEx{
		This: f.collector, Version: f.version,
		Options: &types.WaitOptions{MaxWaitSeconds: ptr.To(int32(timeout / time.Second))},
	})
	if err != nil {
		return nil, err
	}
	return answer.Returnval, nil
}
