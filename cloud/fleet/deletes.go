// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"time"

	"github.com/drover-io/drover/cloud"
)

// deletes is the loop that deletes an account's machines.
type deletes struct{ *inventory }

// run does the deletions and their live reads, until ctx ends. A step is one live read of all
// machines that are due, or one batch of deletions: a mass deletion does not hold up the reads that
// find what has ended.
func (v deletes) run(ctx context.Context) {
	for ctx.Err() == nil {
		var tasks []*task
		var batch []*machine
		var next time.Time
		v.locked(func(now time.Time) { tasks, batch, next = v.deletions.next(now) })
		switch {
		case len(tasks) > 0:
			v.look(ctx, tasks, v.deletions.applyReads) // it also chooses what to delete
		case len(batch) > 0:
			v.send(ctx, batch)
		default:
			sleepUntil(ctx, next, v.deleteWakeup)
			continue
		}
		v.reportHealth()
	}
}

// send sends the deletions of these machines.
func (v deletes) send(ctx context.Context, batch []*machine) {
	var targets []cloud.Resource
	for _, m := range batch { // only this loop changes them
		targets = append(targets, m.targets...)
	}
	errs := v.account().Remove(ctx, targets)
	if ctx.Err() != nil {
		return
	}
	v.learn(func(now time.Time) { v.deletions.recordSent(batch, errs, now) })
}
