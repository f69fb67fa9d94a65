// SPDX-License-Identifier: Apache-2.0

package fleet

import (
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
	// longestRead is the longest time between two live reads of a slow deletion.
	longestRead = 30 * time.Second
	// stopPatience is how long an instance may be stopping before its deletion is sent again.
	// busyPatience is the same while other instances end: then the cloud is busy, and has probably
	// not forgotten this one.
	stopPatience = time.Minute
	busyPatience = 10 * time.Minute
)

// task is one machine's part in a step.
type task struct {
	*machine
	ref     cloud.Reference // when the step began
	read    bool            // needs a live read first
	was     phase
	told    cloud.Code // of the deletion's error, as last reported
	news    bool       // the deletion saw the instance for the first time
	proven  time.Time  // when the next read that finds nothing is proof
	targets []cloud.Resource
	err     error
}

// runWork does the live reads and the deletions, until ctx ends.
func (v *inventory) runWork(ctx context.Context) {
	for ctx.Err() == nil {
		v.mu.Lock()
		tasks, next := v.plan(time.Now())
		v.mu.Unlock()
		if len(tasks) == 0 {
			sleepUntil(ctx, next, v.works)
			continue
		}
		v.work(ctx, tasks)
		v.tellFreshness()
	}
}

// plan returns the tasks that are due, ordered by token, and when the next one will be; zero: when
// the loop is woken. It changes nothing.
func (v *inventory) plan(now time.Time) (tasks []*task, next time.Time) {
	if v.account().place.admits() != nil {
		return nil, time.Time{}
	}
	for _, m := range v.machines {
		switch {
		case m.phase != settling && !m.isMissing():
		case now.Before(m.due):
			next = earlier(next, m.due)
		default:
			tasks = append(tasks, &task{machine: m, ref: m.ref, read: true, was: m.phase})
		}
	}
	pending := v.pending()
	if at := v.nextStep(pending); at.IsZero() || now.Before(at) {
		next = earlier(next, at)
	} else {
		tasks = append(tasks, v.step(now, pending)...)
	}
	slices.SortFunc(tasks, func(a, b *task) int { return strings.Compare(a.ref.Token, b.ref.Token) })
	return tasks, next
}

// nextStep returns when the next step of the deletions is due. New deletions are collected until
// the window of the first one ends, or until no other has come for a while. A live read that is due
// waits a little for them.
func (v *inventory) nextStep(pending int) (at time.Time) {
	var first, last, read time.Time
	for _, m := range v.machines {
		switch {
		case m.phase != deleting:
		case !m.begun && m.before:
			read = earlier(read, m.asked) // it was collected before the restart
		case !m.begun:
			first, last = earlier(first, m.asked), later(last, m.asked)
		default:
			read = earlier(read, m.due)
		}
	}
	if !read.IsZero() {
		read = later(read, v.rested)
	}
	if first.IsZero() {
		return read
	}
	window := v.window(pending)
	at = first.Add(window)
	if quiet := last.Add(max(v.account().times.DeleteWindow, window/2)); quiet.Before(at) {
		at = quiet // a controller needs longer to request many
	}
	if !read.IsZero() {
		at = earlier(at, read.Add(window/2))
	}
	return at
}

// step returns a task for each deletion that is due or nearly due: one live read serves all of
// them.
func (v *inventory) step(now time.Time, pending int) (tasks []*task) {
	due := func(m *machine, slack time.Duration) bool {
		if m.failures > 0 || !m.nothing.IsZero() {
			slack = 0
		}
		return m.phase == deleting && m.begun && !now.Add(slack).Before(m.due) && !now.Before(v.rested)
	}
	slack := v.window(pending) / 2
	for _, m := range v.machines {
		if due(m, slack) {
			slack = v.readPause(pending)
			break
		}
	}
	for _, m := range v.machines {
		if m.phase == deleting && !m.begun || due(m, slack) {
			// The first step can use what is known, because a live read follows it.
			read := m.begun || len(m.resources()) == 0
			tasks = append(tasks, &task{machine: m, ref: m.ref, read: read, was: deleting, told: cloud.CodeOf(m.err)})
		}
	}
	return tasks
}

func (v *inventory) pending() (n int) {
	for _, m := range v.machines {
		if m.phase == deleting {
			n++
		}
	}
	return n
}

// window returns how long deletions are collected: longer when there are many, and where instances
// take long to end.
func (v *inventory) window(pending int) time.Duration {
	a := v.account()
	return a.times.DeleteWindow + share(pending, max(a.times.DeleteWindowMax, a.cloud.Traits.TerminationTime/2)-a.times.DeleteWindow)
}

// readPause returns the shortest time between live reads for deletions: longer when there are many,
// because each read then serves many.
func (v *inventory) readPause(pending int) time.Duration {
	a := v.account()
	return max(v.window(pending)/2, a.times.DeleteWindow, share(pending, a.cloud.Traits.TerminationTime))
}

// share grows from 0 for one deletion to whole for many.
func share(pending int, whole time.Duration) time.Duration {
	return time.Duration(min(float64(max(pending-1, 0))/(manyDeletions-1), 1) * float64(max(whole, 0)))
}

// work takes one step with all tasks: one live read, then one deletion. It takes the lock, and
// releases it during the calls.
func (v *inventory) work(ctx context.Context, tasks []*task) {
	var refs []cloud.Reference
	for _, t := range tasks {
		if t.read {
			refs = append(refs, t.ref)
		}
	}
	var found map[string][]cloud.Resource
	var failed map[string]error
	began := time.Now()
	if len(refs) > 0 {
		if found, failed = v.account().Read(ctx, refs); ctx.Err() != nil {
			return
		}
	}
	v.mu.Lock()
	v.conclude(tasks, began, found, failed)
	v.mu.Unlock()
	errs := v.remove(ctx, tasks)
	if ctx.Err() != nil {
		return
	}
	v.mu.Lock()
	changed := v.finish(tasks, errs)
	v.mu.Unlock()
	v.changed(changed)
}

// conclude applies a live read to the machines, and chooses what to delete.
func (v *inventory) conclude(tasks []*task, began time.Time, found map[string][]cloud.Resource, failed map[string]error) {
	// As after a listing, the next read waits for a multiple of the time that this one took.
	rested := time.Now().Add(min(cloud.RestTimes*time.Since(began), longestRead))
	for _, t := range tasks {
		if t.was != deleting || !t.read {
			continue
		}
		v.rested = later(v.rested, rested)
		if failed[t.ref.Token] == nil && t.nothing.IsZero() && len(living(found[t.ref.Token])) == 0 {
			v.lastEnd = began // aim needs it for the other machines
		}
	}
	for _, t := range tasks {
		switch {
		case v.machines[t.ref.Token] != t.machine: // forgotten meanwhile
		case t.read && failed[t.ref.Token] != nil:
			t.err = failed[t.ref.Token]
		case t.read && t.was == deleting:
			v.concludeDeletion(t, began, found[t.ref.Token])
		case t.read:
			v.concludeAbsence(t.machine, began, found[t.ref.Token])
		default:
			v.aim(t, t.resources())
		}
	}
}

// see records the instance of a machine that is being deleted.
func (t *task) see(own []cloud.Resource) {
	if i := slices.IndexFunc(own, func(r cloud.Resource) bool { return r.Kind == cloud.KindInstance }); i >= 0 {
		t.news = t.news || t.last == nil
		t.last = &own[i]
	}
}

// isUnrecorded reports whether the instance was seen before its provider ID was recorded. It is not
// deleted until then, because after a crash its Node could not be identified.
func (t *task) isUnrecorded() bool { return t.ref.ProviderID == "" && t.last != nil }

// aim chooses what to delete now: instances first, then what belongs to them. A deletion that was
// accepted is sent again after a while without progress, and at once when the instance has stopped
// since: the next step of several is due then. A resource of another cluster is an error.
func (v *inventory) aim(t *task, found []cloud.Resource) {
	own := ownedBy(found, t.ref.OwnershipID)
	t.see(own)
	if len(own) < len(found) {
		others := slices.DeleteFunc(slices.Clone(found), func(x cloud.Resource) bool { return x.OwnershipID == t.ref.OwnershipID })
		t.err = foreign(t.ref.Token, others)
	}
	if t.isUnrecorded() {
		return
	}
	candidates := living(own)
	if len(candidates) == 0 {
		candidates = slices.DeleteFunc(own, func(x cloud.Resource) bool { return x.Kind == cloud.KindInstance })
	}
	for _, x := range candidates {
		last, asked := t.accepted[name(x)]
		stopped := x.State == cloud.StateStopped && last.from != cloud.StateStopped
		if !asked || stopped || time.Since(last.at) >= v.patience(x) {
			t.targets = append(t.targets, x)
		}
	}
}

// patience returns how long an accepted deletion has before it is sent again.
func (v *inventory) patience(x cloud.Resource) time.Duration {
	a := v.account()
	switch {
	case x.State == cloud.StateStopping && time.Since(v.lastEnd) < stopPatience:
		return busyPatience
	case x.State == cloud.StateStopping:
		return stopPatience
	case x.Kind != cloud.KindInstance:
		return max(a.cloud.Traits.ReadLag, a.times.DeleteWindowMax)
	default:
		return a.cloud.Traits.ReadLag
	}
}

func name(r cloud.Resource) string { return string(r.Kind) + "/" + r.ID }

// remove deletes the targets of all tasks, and returns an error or nil for each target, in order.
func (v *inventory) remove(ctx context.Context, tasks []*task) []error {
	var resources []cloud.Resource
	for _, t := range tasks {
		resources = append(resources, t.targets...)
	}
	return v.account().Remove(ctx, resources)
}

// finish records the outcome for each machine, and returns those that changed.
func (v *inventory) finish(tasks []*task, errs []error) (changed []string) {
	pending := v.pending()
	for _, t := range tasks {
		for _, x := range t.targets {
			err := errs[0]
			if errs = errs[1:]; err != nil {
				t.err = err
				continue
			}
			t.accepted[name(x)] = acceptance{time.Now(), x.State}
			t.first = earlier(t.first, time.Now())
		}
		tell := false
		switch {
		case v.machines[t.ref.Token] != t.machine:
			continue // forgotten meanwhile
		case t.was == deleting:
			tell = v.finishDeletion(t, pending)
		case t.err != nil:
			idle, active := v.intervals()
			t.due = time.Now().Add(max(retryAfter(t.err), min(idle, 2*active)))
		default:
			tell = t.update()
		}
		if tell {
			changed = append(changed, t.ref.Token)
		}
	}
	return changed
}

// finishDeletion records the outcome of a deletion step, and reports whether that is news.
func (v *inventory) finishDeletion(t *task, pending int) bool {
	m := t.machine
	m.begun = true
	var queued *cloud.Queued
	switch now := time.Now(); {
	case errors.As(t.err, &queued): // neither a success nor a failure
		m.due = now.Add(max(queued.After, 100*time.Millisecond))
	case t.err != nil:
		m.err = t.err
		m.failures++
		m.due = now.Add(max(retryAfter(t.err), backoff(m.failures, v.random())))
	case t.isUnrecorded() && m.ref.ProviderID == "":
		m.err, m.failures = nil, 0
		m.due = now.Add(longestRead)
	default:
		m.err, m.failures = nil, 0
		m.due = v.readAgain(t, now, pending)
	}
	return m.phase == deleted || cloud.CodeOf(m.err) != t.told || t.news && t.isUnrecorded()
}

// readAgain returns when the next live read is due: soon at first, then ever later; or when a read
// that finds nothing is proof.
func (v *inventory) readAgain(t *task, now time.Time, pending int) time.Time {
	if !t.nothing.IsZero() {
		return later(t.proven, now.Add(100*time.Millisecond))
	}
	wait := v.readPause(pending)
	if !t.first.IsZero() {
		wait = max(wait, min(now.Sub(t.first)/3, longestRead))
	}
	return now.Add(wait)
}
