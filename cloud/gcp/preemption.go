// SPDX-License-Identifier: Apache-2.0

package gcp

import (
	"context"
	"sync"
	"time"

	"github.com/drover-io/drover/cloud"
)

const (
	// preempted is the reason of an instance that Compute Engine took back.
	preempted = "Compute Engine preempted the instance"
	// preemptedMemory is how long an instance that was deleted so is returned as terminated.
	preemptedMemory = 10 * time.Minute
	// preemptedFilter selects the operations that report preemptions. Google keeps them for days.
	preemptedFilter = `operationType = "compute.instances.preempted"`
)

// spots remembers the instances that Compute Engine may take back. It announces that 30 seconds
// before, to the guest alone. The API tells it afterwards, by an operation on the instance, which
// may be deleted by then. The zero value is ready for use.
type spots struct {
	mu  sync.Mutex
	all map[string]*spot // by ID
}

// spot is an instance that Compute Engine may take back.
type spot struct {
	last      cloud.Resource // as it was last read
	started   time.Time      // when it last was, by Google's clock
	isDeleted bool           // if Compute Engine takes it back; else it is stopped
	isOurs    bool           // Drover deletes it
	gone      time.Time      // since when reads do not show it
	asked     cloud.State    // what it was when its operations were last read; Terminated: gone
	preempted bool
}

// state returns what the instance is, as far as its end is concerned.
func (s *spot) state() cloud.State {
	switch {
	case !s.gone.IsZero():
		return cloud.StateTerminated
	case s.last.State == cloud.StateStopping || s.last.State == cloud.StateStopped:
		return s.last.State
	}
	return cloud.StateRunning
}

// update records what a read returned. It had a token if wanted says so; nil: all. It reports
// whether operations can tell why one of the instances ends.
func (s *spots) update(found []instance, all []cloud.Resource, wanted map[string]bool) (asks bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	present := map[string]bool{}
	for i, r := range all {
		if !r.Interruptible {
			continue
		}
		if s.all == nil {
			s.all = map[string]*spot{}
		}
		one := s.all[r.ID]
		if one == nil {
			one = &spot{}
			s.all[r.ID] = one
		}
		present[r.ID] = true
		one.last, one.gone, one.isDeleted, one.started = r, time.Time{}, found[i].Scheduling.TerminationAction == "DELETE", r.CreatedAt
		if at := found[i].LastStartTimestamp; at != nil {
			one.started = *at
		}
		if one.state() == cloud.StateRunning { // somebody may have started it again
			one.asked, one.preempted = "", false
		}
	}
	for id, one := range s.all {
		if !present[id] && (wanted == nil || wanted[one.last.Token]) {
			if one.gone.IsZero() {
				one.gone = time.Now()
			}
			known := one.asked == cloud.StateTerminated && !one.preempted
			if known || one.isOurs || !one.isDeleted || time.Since(one.gone) > preemptedMemory {
				delete(s.all, id)
				continue
			}
		}
		asks = asks || one.isOpen()
	}
	return asks
}

// isOpen reports whether it is not known why the instance ends.
func (s *spot) isOpen() bool {
	state := s.state()
	return state != cloud.StateRunning && s.asked != state && !s.preempted && !s.isOurs
}

// answer records the preemptions: when the last one of an instance was, by its number.
func (s *spots) answer(at map[string]time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, one := range s.all {
		if one.isOpen() {
			one.asked, one.preempted = one.state(), at[lastPart(id)].After(one.started)
		}
	}
}

// mark says of the instances in all that were preempted, and adds those that are gone.
func (s *spots) mark(all []cloud.Resource, wanted map[string]bool) []cloud.Resource {
	s.mu.Lock()
	defer s.mu.Unlock()
	say := func(r *cloud.Resource, one *spot) {
		r.Reason, r.Ending, r.Imminent = preempted, one.isDeleted, one.isDeleted
	}
	for i := range all {
		if one := s.all[all[i].ID]; one != nil && one.preempted {
			say(&all[i], one)
		}
	}
	for _, one := range s.all {
		if one.preempted && !one.gone.IsZero() && (wanted == nil || wanted[one.last.Token]) {
			r := one.last
			r.State = cloud.StateTerminated
			say(&r, one)
			all = append(all, r)
		}
	}
	return all
}

// deleted records that Drover deletes an instance.
func (s *spots) deleted(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if one := s.all[id]; one != nil {
		one.isOurs = true
	}
}

// resources returns what a read found. It also reads operations if one of the instances ends that
// Compute Engine may take back. If they can't be read, for example without permission, nothing is
// said of why. wanted are the tokens that were read; nil: all.
func (d *driver) resources(ctx context.Context, found []instance, wanted map[string]bool) []cloud.Resource {
	var all []cloud.Resource
	for i := range found {
		all = append(all, d.resource(&found[i]))
	}
	if d.spots.update(found, all, wanted) {
		ops, err := listAll(ctx, d, "ListOperations", allOperations, preemptedFilter, func(s scope) []operation { return s.Operations })
		at := map[string]time.Time{}
		for _, o := range ops {
			if o.InsertTime != nil && o.InsertTime.After(at[o.TargetID]) {
				at[o.TargetID] = *o.InsertTime
			}
		}
		if err == nil || cloud.CodeOf(err) == cloud.Unauthorized {
			d.spots.answer(at)
		}
	}
	return d.spots.mark(all, wanted)
}
