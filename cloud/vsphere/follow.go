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
	"k8s.io/utils/ptr"

	"github.com/drover-io/drover/cloud"
)

const (
	// idleWait is how long vCenter keeps a call that it has nothing to answer to: well below what
	// proxies and firewalls between cut off. A clone that fails before it has made a VM changes
	// none, and may wait so long for being noticed.
	idleWait = 30 * time.Second
	// answerTime is what the answer may take beyond that.
	answerTime = 30 * time.Second
	// longestGap is after how long without a word what was told is told anew, all of it: the
	// account may have been listed meanwhile.
	longestGap = 2 * time.Minute
	// tryAgain is how often a rule of DRS that can't be set is tried while no machine changes.
	tryAgain = time.Minute
)

// watchedProperties tell that a VM may have become, or ceased to be, something else as a machine.
// The version changes with every change of the configuration, which holds the tags.
func watchedProperties() []string {
	return []string{"config.changeVersion", "config.instanceUuid", "config.uuid", "runtime.powerState", "guest.net"}
}

// stream tells of the machines' changes. vCenter says only which VMs changed; what they are is
// read, so that it is judged as a listing would, with the clones under way and the groups.
type stream struct {
	*driver
	s         *session
	collector types.ManagedObjectReference
	version   string
	tell      func(cloud.Change)

	vms     map[types.ManagedObjectReference]vm // the machines', as last read
	pending map[string]cloud.Resource           // the clones, as last asked for
	told    map[string][]cloud.Resource         // by token
	served  bool                                // news were waited for once, and an answer came
	heard   time.Time                           // when something was last told
	judged  time.Time                           // when what was read was last judged
}

// news are the VMs that vCenter names: true for those to be looked at, false for those that left
// the datacenter.
type news map[types.ManagedObjectReference]bool

// Follow has vCenter's PropertyCollector tell of the VMs in the session's view. A session or a
// collector that vCenter knows no more is made anew, once it has served, and then everything is
// told anew.
func (d *driver) Follow(ctx context.Context, tell func(cloud.Change)) error {
	for {
		served := false
		err := d.vcenter.with(ctx, func(s *session) error {
			f := &stream{driver: d, s: s, tell: tell}
			err := f.run(ctx)
			served = f.served
			return err
		})
		lost := faulted[*types.NotAuthenticated](err) || faulted[*types.InvalidCollectorVersion](err)
		if !served || !lost {
			return err
		}
	}
}

// run follows until something fails.
func (f *stream) run(ctx context.Context) error {
	if err := f.open(ctx); err != nil {
		return err
	}
	for {
		began := time.Now()
		changed, err := f.next(ctx, f.patience())
		if err != nil {
			return err
		}
		f.served = true
		at := time.Now()
		if at.Sub(f.heard) > longestGap {
			err = f.tellAll(ctx)
		} else {
			err = f.tellChanges(ctx, at, changed)
		}
		if err != nil {
			return err
		}
		// A clone changes its VM many times in few seconds. The first change is told at once, and
		// those that follow it together.
		if err := until(ctx, began.Add(f.pace)); err != nil {
			return err
		}
	}
}

// until waits for the time, which is no more than a pace away.
func until(ctx context.Context, at time.Time) error {
	timer := time.NewTimer(time.Until(at))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return notSent("WaitForUpdatesEx", ctx.Err())
	}
}

// open makes a collector of the stream's own, for others' waiting would end this one's, and tells
// everything.
func (f *stream) open(ctx context.Context) error {
	if f.s.collector.Value != "" { // an earlier stream's in this session, which ended when no call could be made any more
		_, err := methods.DestroyPropertyCollector(ctx, f.s, &types.DestroyPropertyCollector{This: f.s.collector})
		if err != nil && !gone(err) {
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
	if _, err := f.next(ctx, 0); err != nil { // how all are now: what changes from here on will be told
		return err
	}
	return f.tellAll(ctx)
}

// tellAll lists.
func (f *stream) tellAll(ctx context.Context) error {
	at := time.Now()
	pending, vms, err := f.list(ctx, f.s)
	if err != nil {
		return err
	}
	all, err := f.judge(ctx, f.s, vms, pending)
	if err != nil {
		return err
	}
	f.pending, f.vms, f.told = pending, map[types.ManagedObjectReference]vm{}, byToken(all)
	for _, m := range vms {
		f.vms[m.ref] = m
	}
	f.judged, f.heard = at, time.Now()
	f.tell(cloud.Change{At: at, All: true, Resources: all})
	return nil
}

// tellChanges tells what each machine is that is not what was told of it, and then that nothing
// else has changed.
func (f *stream) tellChanges(ctx context.Context, at time.Time, changed news) error {
	if err := f.read(ctx, changed); err != nil {
		return err
	}
	pending, err := f.clones.ask(ctx, f.s, f.page, nil)
	if err != nil {
		return err
	}
	if f.ended(pending) { // then its VM is there, and the news may not have been
		later, err := f.next(ctx, 0)
		if err == nil {
			err = f.read(ctx, later)
		}
		if err != nil {
			return err
		}
		maps.Copy(changed, later)
	}
	if len(changed) > 0 || len(pending) > 0 || len(f.pending) > 0 || at.Sub(f.judged) >= tryAgain {
		all, err := f.judge(ctx, f.s, slices.Collect(maps.Values(f.vms)), pending)
		if err != nil {
			return err
		}
		f.pending, f.judged = pending, at
		f.tellDifferences(at, byToken(all))
	}
	f.heard = time.Now()
	f.tell(cloud.Change{At: at})
	return nil
}

func (f *stream) tellDifferences(at time.Time, now map[string][]cloud.Resource) {
	for token := range f.told {
		if len(now[token]) == 0 {
			f.tell(cloud.Change{At: at, Token: token})
		}
	}
	for token, resources := range now {
		if !reflect.DeepEqual(f.told[token], resources) {
			f.tell(cloud.Change{At: at, Token: token, Resources: resources})
		}
	}
	f.told = now
}

func byToken(all []cloud.Resource) map[string][]cloud.Resource {
	found := map[string][]cloud.Resource{}
	for _, r := range all {
		found[r.Token] = append(found[r.Token], r)
	}
	return found
}

// ended tells whether a clone that was under way is no more.
func (f *stream) ended(pending map[string]cloud.Resource) bool {
	for id := range f.pending {
		if _, still := pending[id]; !still {
			return true
		}
	}
	return false
}

// patience is how long vCenter may have nothing to tell: while clones are under way, whose end is
// asked for, no longer than a pace.
func (f *stream) patience() time.Duration {
	if len(f.clones.running(nil)) > 0 {
		return min(f.pace, f.idle)
	}
	return f.idle
}

// read looks at the VMs that changed. One that is no machine any more, or proven to be gone, is
// forgotten.
func (f *stream) read(ctx context.Context, changed news) error {
	var refs []types.ManagedObjectReference
	seen := f.seen.all()
	maps.DeleteFunc(seen, func(ref types.ManagedObjectReference, _ sighting) bool {
		_, told := changed[ref]
		return !told
	})
	for ref, there := range changed {
		if there {
			refs = append(refs, ref)
		}
	}
	vms, err := f.look(ctx, f.s, refs, seen)
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

// next waits for news, and returns what there is of them, all parts; nothing when nothing changed
// in that time.
func (f *stream) next(ctx context.Context, patience time.Duration) (news, error) {
	all := news{}
	for {
		set, err := f.wait(ctx, patience)
		if err != nil || set == nil {
			return all, err
		}
		f.version = set.Version
		for _, filter := range set.FilterSet {
			for _, update := range filter.ObjectSet {
				f.note(all, update)
			}
		}
		if !ptr.Deref(set.Truncated, false) {
			return all, nil
		}
	}
}

// note takes one VM's update. Of a VM that is no machine, only what could make it one matters. When
// one enters that never left, the collector has looked anew at what there is, and may have told of
// no VM that left: then all are looked at.
func (f *stream) note(all news, update types.ObjectUpdate) {
	_, ours := f.vms[update.Obj]
	switch {
	case update.Kind == types.ObjectUpdateKindLeave:
		all[update.Obj] = false
	case update.Kind == types.ObjectUpdateKindEnter && ours && !left(all, update.Obj):
		for ref := range f.vms {
			if !left(all, ref) {
				all[ref] = true
			}
		}
	case update.Kind == types.ObjectUpdateKindEnter, ours, slices.ContainsFunc(update.ChangeSet, ofConfig):
		all[update.Obj] = true
	}
}

// left tells whether the news say that the VM has left.
func left(all news, ref types.ManagedObjectReference) bool {
	there, told := all[ref]
	return told && !there
}

func ofConfig(c types.PropertyChange) bool { return strings.HasPrefix(c.Name, "config") }

// wait is one call; nil: nothing changed in that time.
func (f *stream) wait(ctx context.Context, patience time.Duration) (*types.UpdateSet, error) {
	ctx, cancel := context.WithTimeout(ctx, patience+answerTime)
	defer cancel()
	answer, err := methods.WaitForUpdatesEx(ctx, f.s, &types.WaitForUpdatesEx{
		This: f.collector, Version: f.version,
		Options: &types.WaitOptions{MaxWaitSeconds: ptr.To(int32(patience / time.Second))},
	})
	if err != nil {
		return nil, err
	}
	return answer.Returnval, nil
}
