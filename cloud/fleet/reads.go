// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"slices"
	"time"

	"github.com/drover-io/drover/cloud"
)

// compareBatch is how many machines are compared with a listing under one hold of the lock.
const compareBatch = 500

// reads are the loops that look at the cloud for an account's machines: complete listings, and live
// reads of machines that a listing leaves in question.
type reads struct{ *inventory }

// runListings lists the account whenever a listing is due, until ctx ends.
func (v reads) runListings(ctx context.Context) {
	for ctx.Err() == nil {
		var due bool
		var next time.Time
		v.locked(func(now time.Time) { due, next = v.schedule.nextListing(now) })
		if due {
			v.list(ctx)
		} else if !sleepUntil(ctx, next, v.listWakeup) {
			continue // woken: the next action may be another one
		}
		v.reportHealth()
	}
}

// list makes one complete listing, or records why it failed.
func (v reads) list(ctx context.Context) {
	timeout := under(v.inventory, func(time.Time) time.Duration { return v.schedule.listTimeout() })
	began := time.Now()
	resources, err := v.account().List(ctx, timeout)
	if ctx.Err() != nil {
		return
	}
	if err == nil {
		err = v.hasRoom(cloud.Update{All: true, Resources: resources})
	}
	v.locked(func(now time.Time) { v.schedule.recordListing(began, now, err) })
	if err == nil {
		v.applyListing(began, resources)
	}
}

// applyListing replaces the listing, and compares every machine with it. It releases the lock
// between batches of machines.
func (v *inventory) applyListing(began time.Time, resources []cloud.Resource) {
	listed := byToken(resources)
	tokens := under(v, func(time.Time) []string { return v.presence.replaceListing(began, listed) })
	for some := range slices.Chunk(tokens, compareBatch) {
		v.learn(func(now time.Time) { v.presence.compare(began, some, now) })
	}
}

func byToken(resources []cloud.Resource) map[string][]cloud.Resource {
	all := map[string][]cloud.Resource{}
	for _, r := range resources {
		all[r.Token] = append(all[r.Token], r)
	}
	return all
}

// runReads does the live reads that decide what became of missing machines and of creates without
// an answer, until ctx ends.
func (v reads) runReads(ctx context.Context) {
	for ctx.Err() == nil {
		var tasks []*task
		var next time.Time
		v.locked(func(now time.Time) { tasks, next = v.presence.nextReads(now) })
		if len(tasks) == 0 {
			sleepUntil(ctx, next, v.readWakeup)
			continue
		}
		v.look(ctx, tasks, v.presence.applyReads)
		v.reportHealth()
	}
}

// look does one live read of the tasks that need one, and has its answer applied to all of them.
func (v *inventory) look(ctx context.Context, tasks []*task, apply func([]*task, answer, time.Time)) {
	a := v.read(ctx, tasks)
	if ctx.Err() == nil {
		v.learn(func(now time.Time) { apply(tasks, a, now) })
	}
}

// read does one live read of the tasks that need one: by their tokens, and by their recorded IDs
// where the tokens leave a question.
func (v *inventory) read(ctx context.Context, tasks []*task) answer {
	a := answer{began: time.Now()}
	var refs, byID []cloud.Reference
	for _, t := range tasks {
		if t.read {
			refs = append(refs, t.ref)
		}
	}
	if len(refs) == 0 {
		return a
	}
	a.found, a.failed = v.account().Read(ctx, refs)
	v.locked(func(time.Time) {
		for _, t := range tasks {
			if t.read && a.failed[t.ref.Token] == nil && v.presence.needsFind(t, a.found[t.ref.Token]) {
				byID = append(byID, t.ref)
			}
		}
	})
	v.account().findByIDs(ctx, byID, a)
	return a
}
