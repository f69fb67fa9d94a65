// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/drover-io/drover/cloud"
)

const (
	// manyDeletions is how many deletions at once make the window longest.
	manyDeletions = 25
	// maxReadInterval is the longest time between two live reads of a slow deletion.
	maxReadInterval = 30 * time.Second
	// resendStopping is how long an instance may be stopping before its deletion is sent again.
	// busyPatience is the same while other instances end: then the cloud is busy, and has probably
	// not forgotten this one.
	resendStopping     = time.Minute
	resendStoppingBusy = 10 * time.Minute
)

// task is one machine's part in a live read.
type task struct {
	*machine
	ref  cloud.Reference // when the read began
	read bool            // false: what is known is enough for the next step of its deletion
}

// runDeletes does the deletions and their live reads, until ctx ends. A step is one live read of
// all machines that are due, or one batch of deletions: a mass deletion does not hold up the reads
// that find what has ended.
func (v *inventory) runDeletes(ctx context.Context) {
	for ctx.Err() == nil {
		var tasks []*task
		var batch []*machine
		var next time.Time
		v.locked(func() { tasks, batch, next = v.nextDeletions(time.Now()) })
		switch {
		case len(tasks) > 0:
			v.readDeletions(ctx, tasks)
		case len(batch) > 0:
			v.sendDeletions(ctx, batch)
		default:
			sleepUntil(ctx, next, v.deleteWakeup)
			continue
		}
		v.reportHealth()
	}
}

// nextDeletions returns the machines to read for their deletions, if that is due; or else the
// machines whose deletions are to be sent; or else when the next read will be due, zero: when the
// loop is woken. It changes nothing.
func (v *inventory) nextDeletions(now time.Time) (tasks []*task, batch []*machine, next time.Time) {
	if !v.account().Probed() {
		return nil, nil, time.Time{}
	}
	pending := v.deletions()
	next = v.nextStep(pending)
	if !next.IsZero() && !now.Before(next) {
		if tasks = v.deletionTasks(now, pending); len(tasks) > 0 {
			return tasks, nil, next
		}
	}
	return nil, v.nextBatch(), next
}

// nextBatch returns the machines whose deletions are sent next: those that were asked for first, as
// many as the cloud takes in one call.
func (v *inventory) nextBatch() (batch []*machine) {
	for _, m := range v.machines {
		if m.phase == deleting && len(m.targets) > 0 {
			batch = append(batch, m)
		}
	}
	slices.SortFunc(batch, func(a, b *machine) int {
		return cmp.Or(a.requested.Compare(b.requested), strings.Compare(a.ref.Token, b.ref.Token))
	})
	resources := 0
	for i, m := range batch {
		if resources += len(m.targets); i > 0 && resources > v.account().cloud.Batch.Delete {
			return batch[:i]
		}
	}
	return batch
}

// nextStep returns when the next step of the deletions is due. New deletions are collected until
// the window of the first one ends, or until no other has come for a while. A live read that is due
// waits a little for them.
func (v *inventory) nextStep(pending int) (at time.Time) {
	var first, last, read time.Time
	for _, m := range v.machines {
		switch {
		case m.phase != deleting || len(m.targets) > 0:
		case !m.started && m.resumed:
			read = earlier(read, m.requested) // it was collected before the restart
		case !m.started:
			first, last = earlier(first, m.requested), later(last, m.requested)
		default:
			read = earlier(read, m.due)
		}
	}
	if !read.IsZero() {
		read = later(read, v.noReadBefore)
	}
	if first.IsZero() {
		return read
	}
	window := v.deleteWindow(pending)
	at = first.Add(window)
	if quiet := last.Add(max(v.account().times.DeleteWindow, window/2)); quiet.Before(at) {
		at = quiet // a controller needs longer to request many
	}
	if !read.IsZero() {
		at = earlier(at, read.Add(window/2))
	}
	return at
}

// deletionTasks returns a task for each deletion that is due or nearly due: one live read serves
// all of them.
func (v *inventory) deletionTasks(now time.Time, pending int) (tasks []*task) {
	due := func(m *machine, slack time.Duration) bool {
		if m.failures > 0 || !m.emptySince.IsZero() {
			slack = 0
		}
		return m.phase == deleting && m.started && len(m.targets) == 0 && !now.Add(slack).Before(m.due) && !now.Before(v.noReadBefore)
	}
	slack := v.deleteWindow(pending) / 2
	for _, m := range v.machines {
		if due(m, slack) {
			slack = v.readInterval(pending)
			break
		}
	}
	for _, m := range v.machines {
		if m.phase == deleting && !m.started && len(m.targets) == 0 || due(m, slack) {
			// The first step can use what is known, because a live read follows it. A name that is
			// known may be another machine's by now. What belongs to an instance is not deleted
			// while it may exist.
			read := m.started || v.account().cloud.Traits.Named || len(m.resources()) == 0 ||
				m.ref.ProviderID != "" && !hasInstance(m.own(), m.ref)
			tasks = append(tasks, &task{machine: m, ref: m.ref, read: read})
		}
	}
	slices.SortFunc(tasks, func(a, b *task) int { return strings.Compare(a.ref.Token, b.ref.Token) })
	return tasks
}

func (v *inventory) deletions() (n int) {
	for _, m := range v.machines {
		if m.phase == deleting {
			n++
		}
	}
	return n
}

// deleteWindow returns how long deletions are collected: longer when there are many, and where
// instances take long to end.
func (v *inventory) deleteWindow(pending int) time.Duration {
	a := v.account()
	return a.times.DeleteWindow + scale(pending, max(a.times.DeleteWindowMax, a.cloud.Traits.TerminationTime/2)-a.times.DeleteWindow)
}

// readInterval returns the shortest time between live reads for deletions: longer when there are
// many, because each read then serves many.
func (v *inventory) readInterval(pending int) time.Duration {
	a := v.account()
	return max(v.deleteWindow(pending)/2, a.times.DeleteWindow, scale(pending, a.cloud.Traits.TerminationTime))
}

// scale grows from 0 for one deletion to whole for many.
func scale(pending int, whole time.Duration) time.Duration {
	return time.Duration(min(float64(max(pending-1, 0))/(manyDeletions-1), 1) * float64(max(whole, 0)))
}

// readDeletions reads machines that are being deleted, and chooses what to delete of them. It takes
// the lock, and releases it during the calls.
func (v *inventory) readDeletions(ctx context.Context, tasks []*task) {
	began := time.Now()
	found, failed := v.read(ctx, tasks)
	if ctx.Err() != nil {
		return
	}
	var changed []string
	v.locked(func() {
		// As after a listing, the next read waits for a multiple of the time that this one took.
		noReadBefore := time.Now().Add(min(cloud.CooldownFactor*time.Since(began), maxReadInterval))
		for _, t := range tasks {
			if !t.read {
				continue
			}
			v.noReadBefore = later(v.noReadBefore, noReadBefore)
			if failed[t.ref.Token] == nil && t.emptySince.IsZero() && len(liveInstances(found[t.ref.Token])) == 0 {
				v.lastEnd = began // selectTargets needs it for the other machines
			}
		}
		for _, t := range tasks {
			if v.machines[t.ref.Token] != t.machine || t.machine.ref != t.ref {
				continue // forgotten meanwhile, or read again by its provider ID
			}
			if v.applyDeletionRead(t, began, found[t.ref.Token], failed[t.ref.Token]) {
				changed = append(changed, t.ref.Token)
			}
		}
	})
	v.onMachinesChange(changed)
}

// applyDeletionRead applies a live read to a machine, or what is known if it was not read, and
// reports whether to notify the controller.
func (v *inventory) applyDeletionRead(t *task, began time.Time, found []cloud.Resource, err error) (notify bool) {
	m := t.machine
	sawBefore, proofAt := m.last != nil, time.Time{}
	switch {
	case err != nil:
	case t.read:
		proofAt, err = v.resolveDeletion(m, began, found)
	default:
		err = v.selectTargets(m, m.resources())
	}
	if len(m.targets) > 0 {
		m.blocked = err // reported once they are deleted
		return false
	}
	return v.recordDeletion(m, err, proofAt) || !sawBefore && m.isUnrecorded()
}

// noteInstance records the instance of a machine that is being deleted.
func (m *machine) noteInstance(own []cloud.Resource) {
	own = recordedOf(m.ref, own)
	if i := slices.IndexFunc(own, func(r cloud.Resource) bool { return r.Kind == cloud.KindInstance }); i >= 0 {
		m.last = &own[i]
	}
}

// isUnrecorded reports whether the instance was seen before its provider ID was recorded. It is not
// deleted until then, because after a crash its Node could not be identified.
func (m *machine) isUnrecorded() bool { return m.ref.ProviderID == "" && m.last != nil }

// selectTargets chooses what to delete now: instances first, then what belongs to them. A deletion
// that was accepted is sent again after a while without progress, and at once when the instance has
// stopped since: the next step of several is due then. A resource of another cluster is an error.
func (v *inventory) selectTargets(m *machine, found []cloud.Resource) (err error) {
	own := ownedBy(found, m.ref.OwnershipID)
	m.noteInstance(own)
	if len(own) < len(found) {
		others := slices.DeleteFunc(slices.Clone(found), func(x cloud.Resource) bool { return x.OwnershipID == m.ref.OwnershipID })
		err = otherOwnerError(m.ref.Token, others)
	}
	if m.isUnrecorded() {
		return err
	}
	candidates := liveInstances(own)
	if len(candidates) == 0 {
		candidates = slices.DeleteFunc(own, func(x cloud.Resource) bool { return x.Kind == cloud.KindInstance })
	}
	for _, x := range candidates {
		last, asked := m.accepted[resourceKey(x)]
		stopped := x.State == cloud.StateStopped && last.from != cloud.StateStopped
		if !asked || stopped || time.Since(last.at) >= v.resendAfter(x) {
			m.targets = append(m.targets, x)
		}
	}
	return err
}

// resendAfter returns how long an accepted deletion has before it is sent again.
func (v *inventory) resendAfter(x cloud.Resource) time.Duration {
	a := v.account()
	switch {
	case x.State == cloud.StateStopping && time.Since(v.lastEnd) < resendStopping:
		return resendStoppingBusy
	case x.State == cloud.StateStopping:
		return resendStopping
	case x.Kind != cloud.KindInstance:
		return max(a.cloud.Traits.ReadLag, a.times.DeleteWindowMax)
	default:
		return a.cloud.Traits.ReadLag
	}
}

func resourceKey(r cloud.Resource) string { return string(r.Kind) + "/" + r.ID }

// sendDeletions sends the deletions of these machines. If the cloud does not answer, it would not
// answer for the others that wait either, so they fail like these. It takes the lock, and releases
// it during the calls.
func (v *inventory) sendDeletions(ctx context.Context, batch []*machine) {
	var targets []cloud.Resource
	for _, m := range batch { // only this loop changes them
		targets = append(targets, m.targets...)
	}
	errs := v.account().Remove(ctx, targets)
	if ctx.Err() != nil {
		return
	}
	unanswered := worst(errs)
	var changed []string
	record := func(m *machine, errs []error) {
		if v.machines[m.ref.Token] == m && v.recordSent(m, errs) { // it was not forgotten meanwhile
			changed = append(changed, m.ref.Token)
		}
	}
	v.locked(func() {
		for _, m := range batch {
			n := len(m.targets)
			record(m, errs[:n])
			errs = errs[n:]
		}
		for _, m := range v.machines {
			if cloud.CodeOf(unanswered) == cloud.Unavailable && len(m.targets) > 0 {
				record(m, slices.Repeat([]error{unanswered}, len(m.targets)))
			}
		}
	})
	v.onMachinesChange(changed)
}

// recordSent records for each of a machine's targets whether the cloud has accepted its deletion,
// and reports whether to notify the controller.
func (v *inventory) recordSent(m *machine, errs []error) (notify bool) {
	err, now := m.blocked, time.Now()
	for i, x := range m.targets {
		if errs[i] != nil {
			err = errs[i]
			continue
		}
		m.accepted[resourceKey(x)] = acceptance{now, x.State}
		m.firstAccepted = earlier(m.firstAccepted, now)
	}
	m.targets, m.blocked = nil, nil
	return v.recordDeletion(m, err, time.Time{})
}

// recordDeletion records a step of a deletion, and reports whether to notify the controller.
// proofAt is when the next read that finds nothing is proof.
func (v *inventory) recordDeletion(m *machine, err error, proofAt time.Time) (notify bool) {
	before := cloud.CodeOf(m.err)
	m.started = true
	var queued *cloud.Queued
	switch now := time.Now(); {
	case errors.As(err, &queued): // neither a success nor a failure
		m.due = now.Add(max(queued.After, 100*time.Millisecond))
	case err != nil:
		m.err = err
		m.failures++
		m.due = now.Add(max(retryAfter(err), backoff(m.failures, v.random())))
	case m.isUnrecorded():
		m.err, m.failures = nil, 0
		m.due = now.Add(maxReadInterval)
	default:
		m.err, m.failures = nil, 0
		m.due = v.nextRead(m, now, proofAt)
	}
	return m.phase == deleted || cloud.CodeOf(m.err) != before
}

// nextRead returns when the next live read is due: soon at first, then ever later; or when a read
// that finds nothing is proof.
func (v *inventory) nextRead(m *machine, now, proofAt time.Time) time.Time {
	if !m.emptySince.IsZero() {
		return later(proofAt, now.Add(100*time.Millisecond))
	}
	wait := v.readInterval(v.deletions())
	if !m.firstAccepted.IsZero() {
		wait = max(wait, min(now.Sub(m.firstAccepted)/3, maxReadInterval))
	}
	return now.Add(wait)
}
