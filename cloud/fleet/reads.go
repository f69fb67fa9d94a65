// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/drover-io/drover/cloud"
)

// runReads does the live reads that decide what became of missing machines and of creates without
// an answer, until ctx ends.
func (v *inventory) runReads(ctx context.Context) {
	for ctx.Err() == nil {
		var tasks []*task
		var next time.Time
		v.locked(func() { tasks, next = v.nextReads(time.Now()) })
		if len(tasks) == 0 {
			sleepUntil(ctx, next, v.readWakeup)
			continue
		}
		v.readMissing(ctx, tasks)
		v.reportHealth()
	}
}

// nextReads returns the machines whose live read is due, ordered by token, or else when the next
// one will be; zero: when the loop is woken. It changes nothing.
func (v *inventory) nextReads(now time.Time) (tasks []*task, next time.Time) {
	if !v.account().Probed() {
		return nil, time.Time{}
	}
	for _, m := range v.machines {
		switch {
		case !m.isInQuestion():
		case now.Before(m.due):
			next = earlier(next, m.due)
		default:
			tasks = append(tasks, &task{machine: m, ref: m.ref, read: true})
		}
	}
	slices.SortFunc(tasks, func(a, b *task) int { return strings.Compare(a.ref.Token, b.ref.Token) })
	return tasks, next
}

// readMissing reads machines, and decides what became of them. It takes the lock, and releases it
// during the calls.
func (v *inventory) readMissing(ctx context.Context, tasks []*task) {
	began := time.Now()
	found, failed := v.read(ctx, tasks)
	if ctx.Err() != nil {
		return
	}
	var changed []string
	v.locked(func() {
		for _, t := range tasks {
			if v.machines[t.ref.Token] != t.machine || t.machine.ref != t.ref || !t.isInQuestion() {
				continue // forgotten, seen, or being deleted meanwhile; or recorded, and read again
			}
			if v.applyRead(t.machine, began, found[t.ref.Token], failed[t.ref.Token]) {
				changed = append(changed, t.ref.Token)
			}
		}
	})
	v.onMachinesChange(changed)
}

// applyRead applies a live read to a machine, and reports whether it changed.
func (v *inventory) applyRead(m *machine, began time.Time, found []cloud.Resource, err error) (changed bool) {
	idle, active := v.intervals()
	switch now := time.Now(); {
	case err == nil:
		m.untagged = nil
		v.resolveAbsence(m, began, found)
	case cloud.CodeOf(err) == cloud.Conflict: // the instance exists without the machine's tags
		m.due, m.untagged, m.emptySince = now.Add(idle), err, time.Time{}
	default:
		m.due = now.Add(max(retryAfter(err), min(idle, 2*active)))
		return false
	}
	return m.update()
}

// read does one live read of the tasks that need one.
func (v *inventory) read(ctx context.Context, tasks []*task) (found map[string][]cloud.Resource, failed map[string]error) {
	var refs []cloud.Reference
	for _, t := range tasks {
		if t.read {
			refs = append(refs, t.ref)
		}
	}
	if len(refs) == 0 {
		return nil, nil
	}
	found, failed = v.account().Read(ctx, refs)
	v.findByID(ctx, tasks, found, failed)
	return found, failed
}
