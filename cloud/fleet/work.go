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
	// manyDeletions is how many at once make the window longest.
	manyDeletions = 25
	// longestRead is the longest time between two live reads of a deletion that goes on and on.
	longestRead = 30 * time.Second
	// stopPatience is how long an instance that is stopping is left to it before it is asked to go
	// again, and busyPatience is the same while others go: then the cloud has much to do, and has
	// not forgotten this one, as a rule.
	stopPatience = time.Minute
	busyPatience = 10 * time.Minute
)

// task is what is done for one machine in one step.
type task struct {
	*machine
	ref     cloud.Reference // as of the step
	read    bool            // a live read comes first
	was     phase
	told    cloud.Code // of the deletion's error, as last told
	news    bool       // the instance of a deletion was seen for the first time
	proven  time.Time  // when a read that finds nothing again will prove something
	targets []cloud.Resource
	err     error
}

// runWork looks for machines that are missing, and deletes those that are to go, until ctx ends.
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

// plan returns what is to be done at a time, in the order of tokens, or else when there will be
// something; zero: not before someone wakes the loop. It changes nothing.
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
	if at := v.nextStep(); at.IsZero() || now.Before(at) {
		next = earlier(next, at)
	} else {
		tasks = append(tasks, v.step(now)...)
	}
	slices.SortFunc(tasks, func(a, b *task) int { return strings.Compare(a.ref.Token, b.ref.Token) })
	return tasks, next
}

// nextStep is when the deletions' next step is due: when the window of the first new deletion ends,
// or as soon as no further one has come for a while; or when a live read is due, which waits a
// little for new ones while they keep coming.
func (v *inventory) nextStep() (at time.Time) {
	var first, last, read time.Time
	pending := 0
	for _, m := range v.machines {
		switch {
		case m.phase != deleting:
			continue
		case !m.begun && m.before:
			read = earlier(read, m.asked) // it was collected once
		case !m.begun:
			first, last = earlier(first, m.asked), later(last, m.asked)
		default:
			read = earlier(read, m.due)
		}
		pending++
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
		at = quiet // among many, who asks for them may be slow
	}
	if !read.IsZero() {
		at = earlier(at, read.Add(window/2))
	}
	return at
}

// step returns the deletions that are due, or nearly so. Once there must be a live read, it is for
// all that wait for one.
func (v *inventory) step(now time.Time) (tasks []*task) {
	pending := v.pending()
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
			// A live read will follow what is known: for the first step, this one is saved.
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

// window is how long deletions are collected: longer when there are many, and where an instance
// takes long to end anyhow.
func (v *inventory) window(pending int) time.Duration {
	a := v.account()
	return a.times.DeleteWindow + share(pending, max(a.times.DeleteWindowMax, a.cloud.Traits.TerminationTime/2)-a.times.DeleteWindow)
}

// readPause is how far apart live reads of deletions are at the least: longer when there are many,
// for then each is for many.
func (v *inventory) readPause(pending int) time.Duration {
	a := v.account()
	return max(v.window(pending)/2, a.times.DeleteWindow, share(pending, a.cloud.Traits.TerminationTime))
}

// share is none of whole for one deletion, and all of it for many.
func share(pending int, whole time.Duration) time.Duration {
	return time.Duration(min(float64(max(pending-1, 0))/(manyDeletions-1), 1) * float64(max(whole, 0)))
}

// work makes one step for all the tasks: one live read, then one deletion. It takes the lock, and
// leaves it for the calls.
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

// conclude draws what a live read says of every machine that was read, and chooses what must be
// deleted now.
func (v *inventory) conclude(tasks []*task, began time.Time, found map[string][]cloud.Resource, failed map[string]error) {
	for _, t := range tasks {
		if t.was != deleting || !t.read {
			continue
		}
		// As after a listing, the cloud is left alone for as much longer as the read took.
		v.rested = later(v.rested, time.Now().Add(min(cloud.RestTimes*time.Since(began), longestRead)))
		if failed[t.ref.Token] == nil && t.nothing.IsZero() && len(living(found[t.ref.Token])) == 0 {
			v.lastEnd = began // before the others are judged
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

// concludeAbsence draws what a live read says of a machine that was missing, or whose create is
// open. Only an answer that the instance is terminated, or two that it is not there with the time
// between them in which the cloud may contradict itself, mean that it is gone.
func (v *inventory) concludeAbsence(m *machine, began time.Time, found []cloud.Resource) {
	if m.phase != settling && !m.isMissing() {
		return // seen, or handed over to be deleted, meanwhile
	}
	own := ownedBy(found, m.ref.OwnershipID)
	switch {
	case len(living(own)) > 0:
		v.isThere(m)
		v.sight(m, own, began)
		return
	case m.phase == settling && len(own) > 0:
		m.phase = watched // it was made, and has ended: the next create says so
		v.sight(m, own, began)
		return
	case recorded(own, m.ref):
		v.absences.found(m.ref.Token)
		m.phase = ended
		v.sight(m, own, began)
		return
	}
	m.nothing = earlier(m.nothing, began)
	idle, _ := v.intervals()
	switch proven := v.provenAt(m, own); {
	case began.Before(proven):
		m.due = proven
	case m.phase == settling:
		m.phase = settled
	case !m.seen:
		m.phase, m.due = neverSeen, time.Now().Add(idle)
	case v.absences.believe(m.ref.Token, time.Now()):
		m.phase, m.listed, m.sighted = vanished, nil, nil
	default:
		m.due = time.Now().Add(idle)
	}
}

// concludeDeletion draws what a live read says of a machine that is being deleted.
func (v *inventory) concludeDeletion(t *task, began time.Time, found []cloud.Resource) {
	m := t.machine
	own := ownedBy(found, t.ref.OwnershipID)
	t.see(own)
	m.left = slices.DeleteFunc(slices.Clone(found), func(x cloud.Resource) bool {
		return x.Kind == cloud.KindInstance && x.State == cloud.StateTerminated && find(own, x) >= 0
	})
	if len(m.left) > 0 {
		m.nothing = time.Time{}
		v.absences.found(t.ref.Token)
		v.aim(t, found)
		return
	}
	m.left = nil
	m.nothing = earlier(m.nothing, began)
	if t.proven = v.provenAt(m, own); began.Before(t.proven) {
		return
	}
	// Silence alone is not enough for an instance that was recorded, where the cloud shows no end
	// of it and nobody has asked for one.
	silent := m.ref.ProviderID != "" && !recorded(own, m.ref) && !m.before && !m.lost && len(m.accepted) == 0
	if silent && !v.absences.believe(t.ref.Token, time.Now()) {
		t.err = cloud.Errorf(cloud.Conflict, "nothing of the machine is found, and too many others are missing at the same time for that to be believed: see the CloudAccount")
		return
	}
	m.phase, m.listed, m.sighted = deleted, nil, nil
}

// provenAt is the earliest beginning of a live read that proves by finding nothing, as others have
// before, that nothing is there.
func (v *inventory) provenAt(m *machine, own []cloud.Resource) time.Time {
	traits := v.account().cloud.Traits
	made := m.known
	if made.IsZero() {
		made = m.asked
	}
	switch {
	case recorded(own, m.ref) && traits.CascadesDelete:
		return m.nothing // the cloud says that it is terminated, which is no silence, and took all with it
	case recorded(own, m.ref):
		return made.Add(traits.ReadLag) // only a dependant, made with it, may still be hidden
	case m.ref.ProviderID != "":
		return later(made, m.nothing).Add(traits.ReadLag)
	default:
		// A create of which no one knows may take effect until its horizon, counted from now, when
		// none is sent any more.
		return later(m.asked.Add(v.account().createHorizon()), m.nothing).Add(traits.ReadLag)
	}
}

// see notes which instance of a deletion is the machine's.
func (t *task) see(own []cloud.Resource) {
	if i := slices.IndexFunc(own, func(r cloud.Resource) bool { return r.Kind == cloud.KindInstance }); i >= 0 {
		t.news = t.news || t.last == nil
		t.last = &own[i]
	}
}

// isUnrecorded tells whether the instance was seen, and its provider ID is not written down: the
// instance must not go before, for after a crash nobody could tell any more which Node was its.
func (t *task) isUnrecorded() bool { return t.ref.ProviderID == "" && t.last != nil }

// aim chooses what must be deleted now: instances first, what belongs to them once none of them
// lives. What was asked to go already is asked again when it has not moved for a while; and at once
// when it has stopped since, and not gone: where a deletion takes several steps, the next one is
// due. What belongs to another cluster is an error.
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

// patience is how long a resource whose deletion was accepted is left to it.
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

// remove asks the cloud to delete what the tasks aim at, and returns an error or nil for each, in
// their order.
func (v *inventory) remove(ctx context.Context, tasks []*task) []error {
	var resources []cloud.Resource
	for _, t := range tasks {
		resources = append(resources, t.targets...)
	}
	return v.account().Remove(ctx, resources)
}

// finish notes how the step went for each machine, and returns those that changed.
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
			tell = v.update(t.machine)
		}
		if tell {
			changed = append(changed, t.ref.Token)
		}
	}
	return changed
}

// finishDeletion notes how a step of a deletion went, and tells whether that is news.
func (v *inventory) finishDeletion(t *task, pending int) bool {
	m := t.machine
	m.begun = true
	var queued *cloud.Queued
	switch now := time.Now(); {
	case errors.As(t.err, &queued): // nothing was learned, and nothing failed
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

// readAgain is when to look next: soon at first, then ever more seldom; or when finding nothing
// again will prove something.
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
