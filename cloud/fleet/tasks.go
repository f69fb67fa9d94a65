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
	// maxReadInterval is the longest time between two live reads of a slow deletion.
	maxReadInterval = 30 * time.Second
	// resendStopping is how long an instance may be stopping before its deletion is sent again.
	// busyPatience is the same while other instances end: then the cloud is busy, and has probably
	// not forgotten this one.
	resendStopping     = time.Minute
	resendStoppingBusy = 10 * time.Minute
)

// task is one machine's part in a step.
type task struct {
	*machine
	ref          cloud.Reference // when the step began
	read         bool            // needs a live read first
	was          phase
	reportedCode cloud.Code // of the deletion's error, as last reported
	sawInstance  bool       // the deletion saw the instance for the first time
	proofAt      time.Time  // when the next read that finds nothing is proof
	targets      []cloud.Resource
	err          error
}

// runWork does the live reads and the deletions, until ctx ends.
func (v *inventory) runWork(ctx context.Context) {
	for ctx.Err() == nil {
		var tasks []*task
		var next time.Time
		v.locked(func() { tasks, next = v.plan(time.Now()) })
		if len(tasks) == 0 {
			sleepUntil(ctx, next, v.workWakeup)
			continue
		}
		v.runTasks(ctx, tasks)
		v.reportHealth()
	}
}

// plan returns the tasks that are due, ordered by token, and when the next one will be; zero: when
// the loop is woken. It changes nothing.
func (v *inventory) plan(now time.Time) (tasks []*task, next time.Time) {
	if !v.account().Probed() {
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
	pending := v.deletions()
	if at := v.nextStep(pending); at.IsZero() || now.Before(at) {
		next = earlier(next, at)
	} else {
		tasks = append(tasks, v.deletionTasks(now, pending)...)
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
		return m.phase == deleting && m.started && !now.Add(slack).Before(m.due) && !now.Before(v.noReadBefore)
	}
	slack := v.deleteWindow(pending) / 2
	for _, m := range v.machines {
		if due(m, slack) {
			slack = v.readInterval(pending)
			break
		}
	}
	for _, m := range v.machines {
		if m.phase == deleting && !m.started || due(m, slack) {
			// The first step can use what is known, because a live read follows it. A name that is
			// known may be another machine's by now. What belongs to an instance is not deleted
			// while it may exist.
			read := m.started || v.account().cloud.Traits.Named || len(m.resources()) == 0 ||
				m.ref.ProviderID != "" && !hasInstance(m.own(), m.ref)
			tasks = append(tasks, &task{machine: m, ref: m.ref, read: read, was: deleting, reportedCode: cloud.CodeOf(m.err)})
		}
	}
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

// runTasks takes one step with all tasks: one live read, then one deletion. It takes the lock, and
// releases it during the calls.
func (v *inventory) runTasks(ctx context.Context, tasks []*task) {
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
		found, failed = v.account().Read(ctx, refs)
		if v.findByID(ctx, tasks, found, failed); ctx.Err() != nil {
			return
		}
	}
	v.locked(func() { v.applyRead(tasks, began, found, failed) })
	errs := v.deleteTargets(ctx, tasks)
	if ctx.Err() != nil {
		return
	}
	var changed []string
	v.locked(func() { changed = v.recordOutcome(tasks, errs) })
	v.onMachinesChange(changed)
}

// applyRead applies a live read to the machines, and chooses what to delete.
func (v *inventory) applyRead(tasks []*task, began time.Time, found map[string][]cloud.Resource, failed map[string]error) {
	// As after a listing, the next read waits for a multiple of the time that this one took.
	noReadBefore := time.Now().Add(min(cloud.CooldownFactor*time.Since(began), maxReadInterval))
	for _, t := range tasks {
		if t.was != deleting || !t.read {
			continue
		}
		v.noReadBefore = later(v.noReadBefore, noReadBefore)
		if failed[t.ref.Token] == nil && t.emptySince.IsZero() && len(liveInstances(found[t.ref.Token])) == 0 {
			v.lastEnd = began // selectTargets needs it for the other machines
		}
	}
	for _, t := range tasks {
		switch {
		case v.machines[t.ref.Token] != t.machine: // forgotten meanwhile
		case t.read && failed[t.ref.Token] != nil:
			t.err = failed[t.ref.Token]
		case t.read && t.was == deleting:
			v.resolveDeletion(t, began, found[t.ref.Token])
		case t.read:
			v.resolveAbsence(t.machine, began, found[t.ref.Token])
		default:
			v.selectTargets(t, t.resources())
		}
	}
}

// noteInstance records the instance of a machine that is being deleted.
func (t *task) noteInstance(own []cloud.Resource) {
	own = recordedOf(t.ref, own)
	if i := slices.IndexFunc(own, func(r cloud.Resource) bool { return r.Kind == cloud.KindInstance }); i >= 0 {
		t.sawInstance = t.sawInstance || t.last == nil
		t.last = &own[i]
	}
}

// isUnrecorded reports whether the instance was seen before its provider ID was recorded. It is not
// deleted until then, because after a crash its Node could not be identified.
func (t *task) isUnrecorded() bool { return t.ref.ProviderID == "" && t.last != nil }

// selectTargets chooses what to delete now: instances first, then what belongs to them. A deletion
// that was accepted is sent again after a while without progress, and at once when the instance has
// stopped since: the next step of several is due then. A resource of another cluster is an error.
func (v *inventory) selectTargets(t *task, found []cloud.Resource) {
	own := ownedBy(found, t.ref.OwnershipID)
	t.noteInstance(own)
	if len(own) < len(found) {
		others := slices.DeleteFunc(slices.Clone(found), func(x cloud.Resource) bool { return x.OwnershipID == t.ref.OwnershipID })
		t.err = otherOwnerError(t.ref.Token, others)
	}
	if t.isUnrecorded() {
		return
	}
	candidates := liveInstances(own)
	if len(candidates) == 0 {
		candidates = slices.DeleteFunc(own, func(x cloud.Resource) bool { return x.Kind == cloud.KindInstance })
	}
	for _, x := range candidates {
		last, asked := t.accepted[resourceKey(x)]
		stopped := x.State == cloud.StateStopped && last.from != cloud.StateStopped
		if !asked || stopped || time.Since(last.at) >= v.resendAfter(x) {
			t.targets = append(t.targets, x)
		}
	}
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

// deleteTargets deletes the targets of all tasks, and returns an error or nil for each, in order.
func (v *inventory) deleteTargets(ctx context.Context, tasks []*task) []error {
	var resources []cloud.Resource
	for _, t := range tasks {
		resources = append(resources, t.targets...)
	}
	return v.account().Remove(ctx, resources)
}

// recordOutcome records the outcome for each machine, and returns those that changed.
func (v *inventory) recordOutcome(tasks []*task, errs []error) (changed []string) {
	pending := v.deletions()
	for _, t := range tasks {
		for _, x := range t.targets {
			err := errs[0]
			if errs = errs[1:]; err != nil {
				t.err = err
				continue
			}
			t.accepted[resourceKey(x)] = acceptance{time.Now(), x.State}
			t.firstAccepted = earlier(t.firstAccepted, time.Now())
		}
		notify := false
		switch {
		case v.machines[t.ref.Token] != t.machine:
			continue // forgotten meanwhile
		case t.was == deleting:
			notify = v.recordDeletion(t, pending)
		case cloud.CodeOf(t.err) == cloud.Conflict: // the instance exists without the machine's tags
			idle, _ := v.intervals()
			t.due, t.untagged, t.emptySince = time.Now().Add(idle), t.err, time.Time{}
			notify = t.update()
		case t.err != nil:
			idle, active := v.intervals()
			t.due = time.Now().Add(max(retryAfter(t.err), min(idle, 2*active)))
		default:
			t.untagged = nil
			notify = t.update()
		}
		if notify {
			changed = append(changed, t.ref.Token)
		}
	}
	return changed
}

// recordDeletion records a deletion step's outcome, and reports whether to notify the controller.
func (v *inventory) recordDeletion(t *task, pending int) bool {
	m := t.machine
	m.started = true
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
		m.due = now.Add(maxReadInterval)
	default:
		m.err, m.failures = nil, 0
		m.due = v.nextRead(t, now, pending)
	}
	return m.phase == deleted || cloud.CodeOf(m.err) != t.reportedCode || t.sawInstance && t.isUnrecorded()
}

// nextRead returns when the next live read is due: soon at first, then ever later; or when a read
// that finds nothing is proof.
func (v *inventory) nextRead(t *task, now time.Time, pending int) time.Time {
	if !t.emptySince.IsZero() {
		return later(t.proofAt, now.Add(100*time.Millisecond))
	}
	wait := v.readInterval(pending)
	if !t.firstAccepted.IsZero() {
		wait = max(wait, min(now.Sub(t.firstAccepted)/3, maxReadInterval))
	}
	return now.Add(wait)
}
