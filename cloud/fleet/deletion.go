// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"cmp"
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
	// resendStoppingBusy is the same while other instances end: then the cloud is busy, and has
	// probably not forgotten this one.
	resendStopping     = time.Minute
	resendStoppingBusy = 10 * time.Minute
)

// deletion is the part of a machine's record that only its deletion uses.
//
// A deletion goes in steps. deletions.next collects new ones for a while, and then has all that are
// due read together. applyRead chooses from the answer what to delete. next has that sent, one
// batch after the other and between the reads, and recordSent records what the cloud has accepted.
// That repeats until a live read proves that nothing is left.
type deletion struct {
	resumed       bool             // it was requested before this process began, so it may have been sent already
	started       bool             // a step was taken
	targets       []cloud.Resource // chosen by the last read, and not sent yet
	blocked       error            // why the last read did not choose all
	accepted      map[string]acceptance
	firstAccepted time.Time // when the cloud first accepted something
	failures      int       // in a row
	err           error
	remaining     []cloud.Resource
}

// acceptance is the last step of a resource's deletion that the cloud has accepted.
type acceptance struct {
	at   time.Time
	from cloud.State // the state seen before it
}

// deletions decides on the steps of an account's deletions. Like records, it is plain state.
type deletions struct {
	*records
	noReadBefore time.Time // no live read for deletions before this time
	lastEnd      time.Time // when a deleted instance was last seen to have ended
}

// task is one machine's part in a live read.
type task struct {
	*machine
	ref  cloud.Reference // when the read began
	read bool            // false: what is known is enough for the next step of its deletion
}

// answer is what a live read has found, and why it failed, by token.
type answer struct {
	began  time.Time
	found  map[string][]cloud.Resource
	failed map[string]error
}

// isUnexplained reports whether nothing explains that the instance is not found: it was recorded,
// was not gone before, and no deletion of it was ever sent.
func (m *machine) isUnexplained() bool { return m.creation == recorded && len(m.accepted) == 0 }

// delete starts the deletion of a machine, or returns its progress. asked is when the deletion was
// requested, of this or an earlier process.
func (d *deletions) delete(ref cloud.Reference, asked, now time.Time) Deletion {
	m := d.machine(ref.Token)
	if m.phase < deleting {
		if m.phase == gone {
			m.creation = ended
		}
		m.deletion = deletion{resumed: asked.Before(d.began), accepted: map[string]acceptance{}}
		m.phase, m.requested, m.emptySince = deleting, now, time.Time{}
		d.changes.deletions = true
	}
	if m.started && m.ref.ProviderID == "" && ref.ProviderID != "" {
		m.due = now // the deletion waited for the provider ID
		d.changes.deletions = true
	}
	d.setReference(m, ref, now)
	return Deletion{Gone: m.phase == deleted, Remaining: slices.Clone(m.remaining), Instance: m.last, Err: m.err}
}

// next returns the machines to read for their deletions, if that is due; or else the machines whose
// deletions are to be sent; or else when the next step will be due, zero: when the loop is woken.
func (d *deletions) next(now time.Time) (tasks []*task, batch []*machine, next time.Time) {
	if !d.probed {
		return nil, nil, time.Time{}
	}
	pending := d.count()
	if next = d.nextStep(pending); !next.IsZero() && !now.Before(next) {
		return d.dueTasks(now, pending), nil, now
	}
	return nil, d.nextBatch(), next
}

// nextBatch returns the machines whose deletions are sent next: those that were asked for first, as
// many as the cloud takes in one call.
func (d *deletions) nextBatch() (batch []*machine) {
	for _, m := range d.machines {
		if m.phase == deleting && len(m.targets) > 0 {
			batch = append(batch, m)
		}
	}
	slices.SortFunc(batch, func(a, b *machine) int {
		return cmp.Or(a.requested.Compare(b.requested), strings.Compare(a.ref.Token, b.ref.Token))
	})
	resources := 0
	for i, m := range batch {
		if resources += len(m.targets); i > 0 && resources > d.batch.Delete {
			return batch[:i]
		}
	}
	return batch
}

// nextStep returns when the next step of the deletions is due. New deletions are collected until
// the window of the first one ends, or until no other has come for a while. A live read that is due
// waits a little for them.
func (d *deletions) nextStep(pending int) (at time.Time) {
	var first, last, read time.Time
	for _, m := range d.machines {
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
		read = later(read, d.noReadBefore)
	}
	if first.IsZero() {
		return read
	}
	window := d.deleteWindow(pending)
	at = first.Add(window)
	if quiet := last.Add(max(d.times.DeleteWindow, window/2)); quiet.Before(at) {
		at = quiet // a controller needs longer to request many
	}
	if !read.IsZero() {
		at = earlier(at, read.Add(window/2))
	}
	return at
}

// dueTasks returns a task for each deletion that is due or nearly due: one live read serves all.
func (d *deletions) dueTasks(now time.Time, pending int) (tasks []*task) {
	due := func(m *machine, slack time.Duration) bool {
		if m.failures > 0 || !m.emptySince.IsZero() {
			slack = 0
		}
		return m.phase == deleting && m.started && len(m.targets) == 0 && !now.Add(slack).Before(m.due) && !now.Before(d.noReadBefore)
	}
	slack := d.deleteWindow(pending) / 2
	for _, m := range d.machines {
		if due(m, slack) {
			slack = d.readInterval(pending)
			break
		}
	}
	for _, m := range d.machines {
		if m.phase == deleting && !m.started && len(m.targets) == 0 || due(m, slack) {
			// The first step can use what is known, because a live read follows it. A name that is
			// known may be another machine's by now. What belongs to an instance is not deleted
			// while it may exist.
			read := m.started || d.traits.Named || len(m.resources()) == 0 ||
				m.ref.ProviderID != "" && !hasInstance(m.own(), m.ref)
			tasks = append(tasks, &task{machine: m, ref: m.ref, read: read})
		}
	}
	return sorted(tasks)
}

func sorted(tasks []*task) []*task {
	slices.SortFunc(tasks, func(a, b *task) int { return strings.Compare(a.ref.Token, b.ref.Token) })
	return tasks
}

// count returns how many machines are being deleted.
func (d *deletions) count() (n int) {
	for _, m := range d.machines {
		if m.phase == deleting {
			n++
		}
	}
	return n
}

// deleteWindow returns how long deletions are collected: longer when there are many, and where
// instances take long to end.
func (f *facts) deleteWindow(pending int) time.Duration {
	return f.times.DeleteWindow + scale(pending, max(f.times.DeleteWindowMax, f.traits.TerminationTime/2)-f.times.DeleteWindow)
}

// readInterval returns the shortest time between live reads for deletions: longer when there are
// many, because each read then serves many.
func (f *facts) readInterval(pending int) time.Duration {
	return max(f.deleteWindow(pending)/2, f.times.DeleteWindow, scale(pending, f.traits.TerminationTime))
}

// scale grows from 0 for one deletion to whole for many.
func scale(pending int, whole time.Duration) time.Duration {
	return time.Duration(min(float64(max(pending-1, 0))/(manyDeletions-1), 1) * float64(max(whole, 0)))
}

// applyReads applies a live read to machines that are being deleted.
func (d *deletions) applyReads(tasks []*task, a answer, now time.Time) {
	// As after a listing, the next read waits for a multiple of the time that this one took.
	noReadBefore := now.Add(min(cloud.CooldownFactor*now.Sub(a.began), maxReadInterval))
	for _, t := range tasks {
		if !t.read {
			continue
		}
		d.noReadBefore = later(d.noReadBefore, noReadBefore)
		if a.failed[t.ref.Token] == nil && t.emptySince.IsZero() && len(liveInstances(a.found[t.ref.Token])) == 0 {
			d.lastEnd = a.began // selectTargets needs it for the other machines
		}
	}
	for _, t := range tasks {
		if d.isCurrent(t) {
			d.applyRead(t, a, now)
		}
	}
}

// applyRead applies a live read to a machine, or what is known if it was not read.
func (d *deletions) applyRead(t *task, a answer, now time.Time) {
	m, proofAt, err := t.machine, time.Time{}, a.failed[t.ref.Token]
	sawBefore := m.last != nil
	switch {
	case err != nil:
	case t.read:
		proofAt, err = d.resolve(m, a.began, a.found[t.ref.Token], now)
	default:
		err = d.selectTargets(m, m.resources(), now)
	}
	if len(m.targets) > 0 {
		m.blocked = err // reported once they are sent
		return
	}
	d.recordStep(m, err, proofAt, !sawBefore && m.isUnrecorded(), now)
}

// resolve applies a live read to a machine that is being deleted. It returns when the next read
// that finds nothing is proof.
func (d *deletions) resolve(m *machine, began time.Time, found []cloud.Resource, now time.Time) (proofAt time.Time, err error) {
	own := ownedBy(found, m.ref.OwnershipID)
	m.noteInstance(own)
	m.remaining = slices.DeleteFunc(slices.Clone(found), func(x cloud.Resource) bool {
		return x.Kind == cloud.KindInstance && x.State == cloud.StateTerminated && find(own, x) >= 0
	})
	if len(m.remaining) > 0 {
		m.emptySince, m.absence = time.Time{}, absence{}
		return time.Time{}, d.selectTargets(m, found, now)
	}
	m.remaining = nil
	m.emptySince = earlier(m.emptySince, began)
	if proofAt = d.proofAt(m, own); began.Before(proofAt) {
		return proofAt, nil
	}
	unexplained := m.isUnexplained() && !hasInstance(own, m.ref)
	findsByID := d.findsByID && m.ref.ProviderID != ""
	if unexplained && findsByID && began.Equal(m.emptySince) { // the cloud must say it twice
		return began.Add(minRepeat), nil
	}
	if unexplained && !findsByID && !m.resumed && !(absences{d.records}).accept(m, now) {
		return proofAt, cloud.Errorf(cloud.Conflict, "no resource of the machine is found, but too many machines are missing at once to accept that: check the DroverAccount's conditions")
	}
	m.phase, m.listed, m.sightings = deleted, nil, nil
	return proofAt, nil
}

// noteInstance records the instance of a machine that is being deleted.
func (m *machine) noteInstance(own []cloud.Resource) {
	own = recordedOf(m.ref, own)
	if i := slices.IndexFunc(own, func(r cloud.Resource) bool { return r.Kind == cloud.KindInstance }); i >= 0 {
		m.last = &own[i]
	}
}

// selectTargets chooses what to delete now: instances first, then what belongs to them. A deletion
// that was accepted is sent again after a while without progress, and at once when the instance has
// stopped since: the next step of several is due then. A resource of another cluster is an error.
func (d *deletions) selectTargets(m *machine, found []cloud.Resource, now time.Time) error {
	own, err := ownOf(found, m.ref.Token, m.ref.OwnershipID)
	m.noteInstance(own)
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
		if !asked || stopped || now.Sub(last.at) >= d.resendAfter(x, now) {
			m.targets = append(m.targets, x)
		}
	}
	return err
}

// resendAfter returns how long an accepted deletion has before it is sent again.
func (d *deletions) resendAfter(x cloud.Resource, now time.Time) time.Duration {
	switch {
	case x.State == cloud.StateStopping && now.Sub(d.lastEnd) < resendStopping:
		return resendStoppingBusy
	case x.State == cloud.StateStopping:
		return resendStopping
	case x.Kind != cloud.KindInstance:
		return max(d.traits.ReadLag, d.times.DeleteWindowMax)
	default:
		return d.traits.ReadLag
	}
}

func resourceKey(r cloud.Resource) string { return string(r.Kind) + "/" + r.ID }

// recordSent records for each target of a batch whether the cloud has accepted its deletion. If the
// cloud has answered for none, it would not answer for those that wait either, so they fail like
// these.
func (d *deletions) recordSent(batch []*machine, errs []error, now time.Time) {
	unanswered := !slices.ContainsFunc(errs, func(err error) bool { return cloud.CodeOf(err) != cloud.Unavailable })
	failed := errs[0]
	for _, m := range batch {
		n := len(m.targets)
		if d.machines[m.ref.Token] == m { // it was not forgotten meanwhile
			d.recordTargets(m, errs[:n], now)
		}
		errs = errs[n:]
	}
	for _, m := range d.machines {
		if unanswered && len(m.targets) > 0 {
			d.recordTargets(m, slices.Repeat([]error{failed}, len(m.targets)), now)
		}
	}
}

// recordTargets records what became of a machine's targets.
func (d *deletions) recordTargets(m *machine, errs []error, now time.Time) {
	err := m.blocked
	for i, x := range m.targets {
		if errs[i] != nil {
			err = errs[i]
			continue
		}
		m.accepted[resourceKey(x)] = acceptance{now, x.State}
		m.firstAccepted = earlier(m.firstAccepted, now)
	}
	m.targets, m.blocked = nil, nil
	d.recordStep(m, err, time.Time{}, false, now)
}

// recordStep records a step of a deletion. proofAt is when the next read that finds nothing is
// proof. notify means that the controller must be notified even if the outcome is as before.
func (d *deletions) recordStep(m *machine, err error, proofAt time.Time, notify bool, now time.Time) {
	before := cloud.CodeOf(m.err)
	m.started = true
	queued, waits := errors.AsType[*cloud.Queued](err)
	if !waits {
		m.err = err
	}
	switch {
	case waits: // neither a success nor a failure
		m.due = now.Add(max(queued.After, 100*time.Millisecond))
	case err != nil:
		m.failures++
		m.due = now.Add(max(retryAfter(err), backoff(m.failures, d.random())))
	case m.isUnrecorded():
		m.failures, m.due = 0, now.Add(maxReadInterval)
	default:
		m.failures, m.due = 0, d.nextRead(m, proofAt, now)
	}
	if notify || m.phase == deleted || cloud.CodeOf(m.err) != before {
		d.changes.notify = append(d.changes.notify, m.ref.Token)
	}
}

// nextRead returns when the next live read is due: soon at first, then ever later; or when a read
// that finds nothing is proof.
func (d *deletions) nextRead(m *machine, proofAt, now time.Time) time.Time {
	if !m.emptySince.IsZero() {
		return later(proofAt, now.Add(100*time.Millisecond))
	}
	wait := d.readInterval(d.count())
	if !m.firstAccepted.IsZero() {
		wait = max(wait, min(now.Sub(m.firstAccepted)/3, maxReadInterval))
	}
	return now.Add(wait)
}
