// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/drover-io/drover/cloud"
)

const (
	// manyDeletions is how many at once make the window longest.
	manyDeletions = 25
	// longestRead is the longest time between two live reads of a deletion that goes on and on.
	longestRead = 30 * time.Second
	// stopPatience is how long an instance that is stopping is left to it before it is asked to go again, and busyPatience is the same while
	// others go: then the cloud has much to do, and has not forgotten this one, as a rule.
	stopPatience = time.Minute
	busyPatience = 10 * time.Minute
)

// deleter removes machines and what belongs to them, many at a time: it collects what is asked for during a window, and
// then makes one step for all. What it knows of success it knows from live reads.
type deleter struct {
	account   func() *Account
	inventory *inventory
	absences  *absences
	changed   func(tokens []string) // called without the lock, must not block
	random    func() float64
	wakeup    chan struct{}
	began     time.Time // when this process began to delete
	ended     time.Time // when an instance was last seen to have gone; the steps' alone

	mu       sync.Mutex
	removals map[string]*removal // by token
	rested   time.Time           // until then the cloud is left alone with further reads
}

// removal is the deletion of one machine.
type removal struct {
	ref   cloud.Reference
	asked time.Time // this process
	// before says that the deletion was asked for before this process began: it may have been sent already.
	before bool
	// lost says that the instance is known to be gone without a deletion.
	lost bool
	// known is when the creation had surely ended, if it was recorded.
	known time.Time
	begun bool      // a step was made
	due   time.Time // of the next step
	// accepted is what the cloud has accepted the deletion of, by kind and ID, and first is when it did so first.
	accepted map[string]acceptance
	first    time.Time
	// nothing is the first of the live reads since which nothing is found; zero: the last one found something. proven is
	// when a further one will prove that nothing is there.
	nothing, proven time.Time
	failures        int // in a row
	err             error
	left            []cloud.Resource
	instance        *cloud.Resource // as last seen
	gone            bool
}

// acceptance is the last step of a resource's deletion that the cloud has accepted.
type acceptance struct {
	at   time.Time
	from cloud.State // as the resource was seen before
}

func newDeleter(account func() *Account, inventory *inventory, absences *absences, changed func([]string), random func() float64) *deleter {
	return &deleter{
		account: account, inventory: inventory, absences: absences, began: time.Now(), changed: changed, random: random,
		wakeup: make(chan struct{}, 1), removals: map[string]*removal{},
	}
}

// ask starts the deletion, or tells how far it is.
func (d *deleter) ask(ref cloud.Reference, asked, known time.Time, lost bool) Deletion {
	d.mu.Lock()
	defer d.mu.Unlock()
	r := d.removals[ref.Token]
	if r == nil {
		r = &removal{asked: time.Now(), before: asked.Before(d.began), lost: lost, accepted: map[string]acceptance{}}
		d.removals[ref.Token] = r
		d.wake()
	}
	if r.begun && r.ref.ProviderID == "" && ref.ProviderID != "" {
		r.due = time.Now() // it waited for this
		d.wake()
	}
	r.ref = ref
	if ref.ProviderID != "" {
		d.absences.record(ref.Token)
	}
	if r.known.IsZero() {
		if r.known = known; known.IsZero() && ref.ProviderID != "" {
			r.known = time.Now()
		}
	}
	return Deletion{Gone: r.gone, Left: slices.Clone(r.left), Instance: r.instance, Err: r.err}
}

func (d *deleter) has(token string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.removals[token] != nil
}

func (d *deleter) forget(token string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.removals, token)
}

func (d *deleter) wake() {
	select {
	case d.wakeup <- struct{}{}:
	default:
	}
}

// retry makes the next step of all come at once: there are new credentials.
func (d *deleter) retry() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.rested = time.Time{}
	for _, r := range d.removals {
		r.failures = 0
		if r.begun {
			r.due = time.Now()
		}
	}
	d.wake()
}

// run makes steps until ctx ends.
func (d *deleter) run(ctx context.Context) {
	for ctx.Err() == nil {
		if sleepUntil(ctx, d.next(), d.wakeup) {
			d.step(ctx)
		}
	}
}

// window is how long deletions are collected: longer when there are many, and where an instance takes long to end anyhow.
func (d *deleter) window(pending int) time.Duration {
	a := d.account()
	return a.times.DeleteWindow + share(pending, max(a.times.DeleteWindowMax, a.cloud.Traits.TerminationTime/2)-a.times.DeleteWindow)
}

// pace is how far apart live reads are at the least: longer when there are many, for then each is for many.
func (d *deleter) pace(pending int) time.Duration {
	a := d.account()
	return max(d.window(pending)/2, a.times.DeleteWindow, share(pending, a.cloud.Traits.TerminationTime))
}

// share is none of whole for one deletion, and all of it for many.
func share(pending int, whole time.Duration) time.Duration {
	return time.Duration(min(float64(max(pending-1, 0))/(manyDeletions-1), 1) * float64(max(whole, 0)))
}

// next is when the next step is due: when the window of the first new deletion ends, or as soon as no further one has
// come for a while; or when a live read is due, which waits a little for new ones while they keep coming.
func (d *deleter) next() (at time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.account().place.admits() != nil {
		return time.Time{}
	}
	var first, last, read time.Time
	pending := 0
	for _, r := range d.removals {
		switch {
		case r.gone:
			continue
		case !r.begun && r.before:
			read = earlier(read, r.asked) // it was collected once
		case !r.begun:
			first, last = earlier(first, r.asked), later(last, r.asked)
		default:
			read = earlier(read, r.due)
		}
		pending++
	}
	if !read.IsZero() {
		read = later(read, d.rested)
	}
	window := d.window(pending)
	if first.IsZero() {
		return read
	}
	at = first.Add(window)
	if quiet := last.Add(max(d.account().times.DeleteWindow, window/2)); quiet.Before(at) {
		at = quiet // among many, who asks for them may be slow
	}
	if !read.IsZero() {
		at = earlier(at, read.Add(window/2))
	}
	return at
}

// job is one removal in one step.
type job struct {
	*removal
	ref     cloud.Reference // as of the step
	told    cloud.Code      // of the error, as last told
	targets []cloud.Resource
	seen    *cloud.Resource // the instance
	err     error
}

// see notes which instance is the machine's.
func (j *job) see(own []cloud.Resource) {
	if i := slices.IndexFunc(own, func(r cloud.Resource) bool { return r.Kind == cloud.KindInstance }); i >= 0 {
		j.seen = &own[i]
	}
}

// step moves everything one step on that is due, or nearly so.
func (d *deleter) step(ctx context.Context) {
	batch := d.batch()
	var unread []*job
	for _, j := range batch {
		if known := d.inventory.resources(j.ref.Token); !j.begun && len(known) > 0 {
			d.aim(j, known) // a live read will follow: this one is saved
		} else {
			unread = append(unread, j)
		}
	}
	d.read(ctx, unread)
	d.remove(ctx, batch)
	if ctx.Err() == nil {
		d.finish(batch)
	}
}

// batch returns what is due, in the order of tokens. Once there must be a live read, it is for all that wait for one.
func (d *deleter) batch() (batch []*job) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now, pending := time.Now(), d.pending()
	due := func(r *removal, slack time.Duration) bool {
		if r.failures > 0 || !r.nothing.IsZero() {
			slack = 0
		}
		return r.begun && !r.gone && !now.Add(slack).Before(r.due) && !now.Before(d.rested)
	}
	slack := d.window(pending) / 2
	for _, r := range d.removals {
		if due(r, slack) {
			slack = d.pace(pending)
			break
		}
	}
	for _, r := range d.removals {
		if !r.begun || due(r, slack) {
			batch = append(batch, &job{removal: r, ref: r.ref, told: cloud.CodeOf(r.err)})
		}
	}
	slices.SortFunc(batch, func(a, b *job) int { return strings.Compare(a.ref.Token, b.ref.Token) })
	return batch
}

func (d *deleter) pending() (n int) {
	for _, r := range d.removals {
		if !r.gone {
			n++
		}
	}
	return n
}

// read looks for what is left, and chooses what must go now.
func (d *deleter) read(ctx context.Context, unread []*job) {
	if len(unread) == 0 {
		return
	}
	refs := make([]cloud.Reference, 0, len(unread))
	for _, j := range unread {
		refs = append(refs, j.ref)
	}
	began := time.Now()
	found, failed := d.account().Read(ctx, refs)
	d.rest(time.Since(began))
	for _, j := range unread {
		if failed[j.ref.Token] == nil && j.nothing.IsZero() && len(living(found[j.ref.Token])) == 0 {
			d.ended = began // before the others are judged
		}
	}
	for _, j := range unread {
		if j.err = failed[j.ref.Token]; j.err == nil {
			d.conclude(j, began, found[j.ref.Token])
		}
	}
}

// rest has the next live read wait, as a listing does, for as much longer as this one took.
func (d *deleter) rest(took time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.rested = time.Now().Add(min(cloud.RestTimes*took, longestRead))
}

// conclude draws what a live read says of one machine.
func (d *deleter) conclude(j *job, began time.Time, found []cloud.Resource) {
	own := ownedBy(found, j.ref.OwnershipID)
	j.see(own)
	left := slices.DeleteFunc(slices.Clone(found), func(x cloud.Resource) bool {
		return x.Kind == cloud.KindInstance && x.State == cloud.StateTerminated && find(own, x) >= 0
	})
	d.mu.Lock()
	j.left = nil
	if len(left) > 0 {
		j.left = left
		j.nothing = time.Time{}
		d.mu.Unlock()
		d.aim(j, found)
		return
	}
	defer d.mu.Unlock()
	if j.nothing.IsZero() {
		j.nothing = began
	}
	j.proven = d.provenAt(j, own)
	if !began.Before(j.proven) {
		j.gone = !d.silent(j, own) || d.absences.believe(j.ref.Token, time.Now())
	}
	if !j.gone && !began.Before(j.proven) {
		j.err = cloud.Errorf(cloud.Conflict, "nothing of the machine is found, and too many others are missing at the same time for that to be believed: see the CloudAccount")
	}
}

// silent tells whether nothing but silence says that a machine is gone: its instance was recorded, the cloud shows no end of
// it, and nobody has asked for one.
func (d *deleter) silent(j *job, own []cloud.Resource) bool {
	return j.ref.ProviderID != "" && !recorded(own, j.ref) && !j.before && !j.lost && len(j.accepted) == 0
}

// provenAt is the earliest beginning of a live read that proves by finding nothing that nothing is there.
func (d *deleter) provenAt(j *job, own []cloud.Resource) time.Time {
	a := d.account()
	made := j.known
	if made.IsZero() {
		made = j.asked
	}
	switch {
	case recorded(own, j.ref) && a.cloud.Traits.CascadesDelete:
		return j.nothing // the cloud says that it is terminated, which is no silence, and took all with it
	case recorded(own, j.ref):
		// Only a dependant, made with it, may still be hidden.
		return made.Add(a.cloud.Traits.ReadLag)
	case j.ref.ProviderID != "":
		return later(made, j.nothing).Add(a.cloud.Traits.ReadLag)
	default:
		// A create of which no one knows may take effect until Settle after now, when none is sent any more.
		return later(j.asked.Add(a.createHorizon()), j.nothing).Add(a.cloud.Traits.ReadLag)
	}
}

// readAgain is when to look next: soon at first, then ever more seldom; or when finding nothing again will prove something.
func (d *deleter) readAgain(r *removal, pending int) time.Time {
	now := time.Now()
	if !r.nothing.IsZero() {
		return later(r.proven, now.Add(100*time.Millisecond))
	}
	wait := d.pace(pending)
	if !r.first.IsZero() {
		wait = max(wait, min(now.Sub(r.first)/3, longestRead))
	}
	return now.Add(wait)
}

// unrecorded tells whether the instance was seen, and its provider ID is not written down: the instance must not go
// before, for after a crash nobody could tell any more which Node was its.
func (j *job) unrecorded() bool { return j.ref.ProviderID == "" && j.seen != nil }

// aim chooses what must be deleted now: instances first, what belongs to them once none of them lives. What was asked to go already is
// asked again when it has not moved for a while; and at once when it has stopped since, and not gone: where a deletion takes several
// steps, the next one is due. What belongs to another cluster is an error.
func (d *deleter) aim(j *job, found []cloud.Resource) {
	own := ownedBy(found, j.ref.OwnershipID)
	j.see(own)
	if len(own) < len(found) {
		others := slices.DeleteFunc(slices.Clone(found), func(x cloud.Resource) bool { return x.OwnershipID == j.ref.OwnershipID })
		j.err = foreign(j.ref.Token, others)
	}
	if j.unrecorded() {
		return
	}
	candidates := living(own)
	if len(candidates) == 0 {
		candidates = slices.DeleteFunc(own, func(x cloud.Resource) bool { return x.Kind == cloud.KindInstance })
	}
	for _, x := range candidates {
		patience := d.account().cloud.Traits.ReadLag
		switch {
		case x.State == cloud.StateStopping && time.Since(d.ended) < stopPatience:
			patience = busyPatience
		case x.State == cloud.StateStopping:
			patience = stopPatience
		case x.Kind != cloud.KindInstance:
			patience = max(patience, d.account().times.DeleteWindowMax)
		}
		last, asked := j.accepted[name(x)]
		stopped := x.State == cloud.StateStopped && last.from != cloud.StateStopped
		if !asked || stopped || time.Since(last.at) >= patience {
			j.targets = append(j.targets, x)
		}
	}
}

func name(r cloud.Resource) string { return string(r.Kind) + "/" + r.ID }

// remove asks the cloud to delete what must go.
func (d *deleter) remove(ctx context.Context, batch []*job) {
	var resources []cloud.Resource
	var of []*job
	for _, j := range batch {
		for _, x := range j.targets {
			resources, of = append(resources, x), append(of, j)
		}
	}
	for i, err := range d.account().Remove(ctx, resources) {
		if err != nil {
			of[i].err = err
			continue
		}
		// No other goroutine looks at these two.
		of[i].accepted[name(resources[i])] = acceptance{time.Now(), resources[i].State}
		of[i].first = earlier(of[i].first, time.Now())
	}
}

// finish notes how the step went for each, and tells what changed.
func (d *deleter) finish(batch []*job) {
	d.mu.Lock()
	pending := d.pending()
	var changed, gone []string
	for _, j := range batch {
		j.begun = true
		news := j.seen != nil && j.instance == nil
		if j.seen != nil {
			j.instance = j.seen
		}
		var queued *cloud.Queued
		switch {
		case errors.As(j.err, &queued): // nothing was learned, and nothing failed
			j.due = time.Now().Add(max(queued.After, 100*time.Millisecond))
		case j.err != nil:
			j.removal.err = j.err
			j.failures++
			j.due = time.Now().Add(max(retryAfter(j.err), backoff(j.failures, d.random())))
		case j.unrecorded() && j.removal.ref.ProviderID == "":
			j.removal.err, j.failures = nil, 0
			j.due = time.Now().Add(longestRead)
		default:
			j.removal.err, j.failures = nil, 0
			j.due = d.readAgain(j.removal, pending)
		}
		if d.removals[j.ref.Token] != j.removal {
			continue // forgotten meanwhile
		}
		if j.gone {
			gone = append(gone, j.ref.Token)
		}
		if j.gone || cloud.CodeOf(j.removal.err) != j.told || news && j.unrecorded() {
			changed = append(changed, j.ref.Token)
		}
	}
	d.mu.Unlock()
	for _, token := range gone {
		d.inventory.vanished(token)
	}
	d.changed(changed)
}
