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
	// idleWait is how long vCenter holds a call without news: well below the timeouts of proxies
	// and firewalls in between. A clone that fails before it has a VM changes no VM, so its failure
	// may be noticed this late.
	idleWait = 30 * time.Second
	// answerTime is how long the answer may take beyond that.
	answerTime = 30 * time.Second
	// longestGap is the longest time without a report. After a longer gap, the stream reports
	// everything again, because the account may have been listed meanwhile.
	longestGap = 2 * time.Minute
	// tryAgain is the retry interval of a DRS rule that can't be set, while no machine changes.
	tryAgain = time.Minute
)

// watchedProperties returns the properties whose change may change a machine's resource. The
// version changes with every change of the configuration, which holds the tags.
func watchedProperties() []string {
	return []string{"config.changeVersion", "config.instanceUuid", "config.uuid", "runtime.powerState", "guest.net"}
}

// stream reports changes of machines. vCenter names only the changed VMs. The stream reads them and
// judges them as a listing does, together with the running clones and the groups.
type stream struct {
	*driver
	s         *session
	collector types.ManagedObjectReference
	version   string
	tell      func(cloud.Update)

	vms     map[types.ManagedObjectReference]vm // the machines' VMs, as last read
	pending map[string]cloud.Resource           // the clones, as last read
	told    map[string][]cloud.Resource         // by token
	served  bool                                // a wait for news has succeeded
	heard   time.Time                           // time of the last report
	judged  time.Time                           // when judge last ran
}

// news holds the VMs that vCenter names: true for those to read, false for those that left the
// datacenter.
type news map[types.ManagedObjectReference]bool

// Watch watches the VMs in the session's view with vCenter's PropertyCollector. If vCenter has
// ended a session or collector that has served, Follow creates a new one and reports everything
// again.
func (d *driver) Watch(ctx context.Context, tell func(cloud.Update)) error {
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
		// A clone changes its VM many times within seconds. The first change is reported at once,
		// and the following ones together.
		if err := until(ctx, began.Add(f.pace)); err != nil {
			return err
		}
	}
}

// until waits until a time that is at most one pace away.
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

// open creates a collector for this stream, because another caller's wait would end this one's.
// Then it reports everything.
func (f *stream) open(ctx context.Context) error {
	if f.s.collector.Value != "" { // left by an earlier stream of this session that could make no more calls
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
	if _, err := f.next(ctx, 0); err != nil { // the current state; later changes are reported
		return err
	}
	return f.tellAll(ctx)
}

// tellAll lists and reports all machines.
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
	f.tell(cloud.Update{At: at, All: true, Resources: all})
	return nil
}

// tellChanges reports each machine that differs from its last report, and then that nothing else
// has changed.
func (f *stream) tellChanges(ctx context.Context, at time.Time, changed news) error {
	if err := f.read(ctx, changed); err != nil {
		return err
	}
	pending, err := f.clones.ask(ctx, f.s, f.page, nil)
	if err != nil {
		return err
	}
	if f.ended(pending) { // its VM exists now, but the news may lack it
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
	f.tell(cloud.Update{At: at})
	return nil
}

func (f *stream) tellDifferences(at time.Time, now map[string][]cloud.Resource) {
	for token := range f.told {
		if len(now[token]) == 0 {
			f.tell(cloud.Update{At: at, Token: token})
		}
	}
	for token, resources := range now {
		if !reflect.DeepEqual(f.told[token], resources) {
			f.tell(cloud.Update{At: at, Token: token, Resources: resources})
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

// ended reports whether a clone that was running has ended.
func (f *stream) ended(pending map[string]cloud.Resource) bool {
	for id := range f.pending {
		if _, still := pending[id]; !still {
			return true
		}
	}
	return false
}

// patience returns how long a wait for news may take. While clones run, it is at most one pace,
// because the stream polls for their end.
func (f *stream) patience() time.Duration {
	if len(f.clones.running(nil)) > 0 {
		return min(f.pace, f.idle)
	}
	return f.idle
}

// read reads the VMs that changed. It forgets a VM that is no longer a machine, or that is proven
// to be gone.
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

// next waits for news and returns all its parts. It returns no news if nothing changed in that
// time.
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

// note records one VM's update. Of a VM that is no machine, only a change that could make it one
// counts. If a VM enters that never left, the collector has started over and may not have reported
// VMs that left. Then all VMs are read.
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

// left reports whether the VM has left, according to the news.
func left(all news, ref types.ManagedObjectReference) bool {
	there, told := all[ref]
	return told && !there
}

func ofConfig(c types.PropertyChange) bool { return strings.HasPrefix(c.Name, "config") }

// wait makes one call. It returns nil if nothing changed in that time.
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
