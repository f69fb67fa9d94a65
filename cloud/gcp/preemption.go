// SPDX-License-Identifier: Apache-2.0

package gcp

import (
	"context"
	"sync"
	"time"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
)

const (
	// preempted is the reason of an instance that Compute Engine took back.
	preempted = "Compute Engine preempted the instance"
	// preemptedMemory is how long an instance that was deleted so is returned as terminated.
	preemptedMemory = 10 * time.Minute
	// preemptedFilter selects the operations that report preemptions. Google keeps them for days.
	preemptedFilter = `operationType = "compute.instances.preempted"`
	// maxSpots and maxSpot are how many instances are remembered, and how many bytes of each. Of
	// the others, nothing is said of why they end.
	maxSpots, maxSpot = 10_000, 8 << 10
)

// preemptions remembers the instances that Compute Engine may take back. It announces that 30
// seconds before, to the guest alone. The API tells it afterwards, by an operation on the instance,
// which may be deleted by then. The zero value is ready for use.
type preemptions struct {
	mu  sync.Mutex
	all map[string]*spot // by ID
}

// spot is an instance that Compute Engine may take back.
type spot struct {
	last             cloud.Resource // as it was last read
	started          time.Time      // when it last was, by Google's clock
	isDeleted        bool           // if Compute Engine takes it back; else it is stopped
	deletedByDrover  bool
	gone             time.Time   // since when reads do not show it
	operationsReadIn cloud.State // what it was when its operations were last read; Terminated: gone
	preempted        bool
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

// observe records what a read returned. It had a token if wanted says so; nil: all. It reports
// whether operations can tell why one of the instances ends.
func (p *preemptions) observe(found []instance, all []cloud.Resource, wanted map[string]bool) (needOperations bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	present := map[string]bool{}
	for i, r := range all {
		if !r.Interruptible {
			continue
		}
		if p.all == nil {
			p.all = map[string]*spot{}
		}
		present[r.ID] = true
		one := p.all[r.ID]
		if driverkit.SizeOf(r) > maxSpot || one == nil && len(p.all) >= maxSpots {
			continue
		}
		if one == nil {
			one = &spot{}
			p.all[r.ID] = one
		}
		one.last, one.gone, one.isDeleted, one.started = r, time.Time{},
			found[i].Scheduling.TerminationAction == string(infrav1.GCPTerminationDelete), r.CreatedAt
		if at := found[i].LastStartTimestamp; at != nil {
			one.started = *at
		}
		if one.state() == cloud.StateRunning { // somebody may have started it again
			one.operationsReadIn, one.preempted = "", false
		}
	}
	for id, one := range p.all {
		if !present[id] && (wanted == nil || wanted[one.last.Token]) {
			if one.gone.IsZero() {
				one.gone = time.Now()
			}
			known := one.operationsReadIn == cloud.StateTerminated && !one.preempted
			if known || one.deletedByDrover || !one.isDeleted || time.Since(one.gone) > preemptedMemory {
				delete(p.all, id)
				continue
			}
		}
		needOperations = needOperations || one.isOpen()
	}
	return needOperations
}

// isOpen reports whether it is not known why the instance ends.
func (s *spot) isOpen() bool {
	state := s.state()
	return state != cloud.StateRunning && s.operationsReadIn != state && !s.preempted && !s.deletedByDrover
}

// recordOperations records the preemptions: when the last one of an instance was, by its number.
func (p *preemptions) recordOperations(at map[string]time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, one := range p.all {
		if one.isOpen() {
			one.operationsReadIn, one.preempted = one.state(), at[lastPart(id)].After(one.started)
		}
	}
}

// annotate says of the instances in all that were preempted, and adds those that are gone.
func (p *preemptions) annotate(all []cloud.Resource, wanted map[string]bool) []cloud.Resource {
	p.mu.Lock()
	defer p.mu.Unlock()
	say := func(r *cloud.Resource, one *spot) {
		if r.Reason = preempted; one.isDeleted {
			r.Reclaim = cloud.ReclaimCertain
		}
	}
	for i := range all {
		if one := p.all[all[i].ID]; one != nil && one.preempted {
			say(&all[i], one)
		}
	}
	for _, one := range p.all {
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
func (p *preemptions) deleted(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if one := p.all[id]; one != nil {
		one.deletedByDrover = true
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
	if d.preemptions.observe(found, all, wanted) {
		ops, err := listAll(ctx, d, "ListOperations", allOperations, preemptedFilter, func(s scope) []operation { return s.Operations })
		at := map[string]time.Time{}
		for _, o := range ops {
			if o.InsertTime != nil && o.InsertTime.After(at[o.TargetID]) {
				at[o.TargetID] = *o.InsertTime
			}
		}
		if err == nil || cloud.CodeOf(err) == cloud.Unauthorized {
			d.preemptions.recordOperations(at)
		}
	}
	return d.preemptions.annotate(all, wanted)
}
