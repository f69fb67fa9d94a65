// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/drover-io/drover/cloud"
)

// inventory is what is known of an account's machines: one complete listing serves all of them. What a listing misses
// is not gone; that is concluded from live reads alone.
type inventory struct {
	account  func() *Account
	absences *absences
	changed  func(tokens []string) // called without the lock, must not block
	flipped  func()                // the same
	random   func() float64
	wakeup   chan struct{}

	mu       sync.Mutex
	listed   map[string][]cloud.Resource // the last complete listing, by token
	atLeast  time.Duration               // how often to list although no machine is observed; 0: not at all
	seen     map[string][]sighting       // what is newer than that listing, by token
	watches  map[string]*watch           // the machines that someone is interested in, by token
	unjudged map[string]struct{}         // those that no listing or sign of life has been held against yet

	began    time.Time     // of the latest listing, complete or not; zero: none yet, or one is wanted at once
	complete time.Time     // when the last complete one began
	took     time.Duration // from then on, until it was complete
	urgent   time.Time     // since when the listings are frequent; zero: they are not
	limit    time.Duration // of the next listing; 0: the common one
	failures int           // since the last complete one
	retryAt  time.Time     // not before, after a failure
	err      error
	asked    time.Time // since when a Follower is expected to tell; zero: it is not
	heard    time.Time // when it last did
	unheard  bool      // it has failed
	jitter   float64   // of the interval to the next listing, drawn once for each
	fresh    bool      // as last told
	refused  bool      // as last told: the credentials do not work
}

// sighting is a resource seen otherwise than in a listing: when it was made, or in a live read.
type sighting struct {
	cloud.Resource
	at time.Time
}

// watch is the interest in one machine.
type watch struct {
	ref cloud.Reference
	// known is since when this process knows that the instance was made: its creation ended no later. Zero: it doesn't.
	known time.Time
	// starting is since when the machine has been expected to change by itself; zero: it is not.
	starting time.Time
	// joined is true from the machine's first sign of life elsewhere until the next listing.
	joined bool
	// deleting leaves the machine to the deleter.
	deleting bool
	// absent is true while a complete listing lacked the recorded instance, or showed it terminated. Then readAt is
	// when to look for it, and missed is the first live read that did not find it.
	absent         bool
	missed, readAt time.Time
	gone           bool
	silently       bool // gone because nothing was found, and not because the cloud has recorded its end
	seen           bool // something of the machine was seen, by this process or one before it
	neverSeen      bool // live reads found nothing, and nothing was ever seen
	// settling is since when looks are to prove that an open create has made nothing; zero: they are not. settled: they have.
	settling time.Time
	settled  bool
	told     bool            // the same, as last told
	last     *cloud.Resource // the instance as last seen
	reported Observation
	// news is what the cloud told of the instance, and recorded that the machine's controller has it on record.
	news     *cloud.News
	recorded bool
}

func newInventory(account func() *Account, absences *absences, changed func([]string), flipped func(), random func() float64) *inventory {
	return &inventory{
		account: account, absences: absences, changed: changed, flipped: flipped, random: random,
		wakeup:   make(chan struct{}, 1),
		listed:   map[string][]cloud.Resource{},
		seen:     map[string][]sighting{},
		watches:  map[string]*watch{},
		unjudged: map[string]struct{}{},
		fresh:    true,
		jitter:   1,
	}
}

// run lists and looks until ctx ends.
func (v *inventory) run(ctx context.Context) {
	for ctx.Err() == nil {
		if at := v.next(); !sleepUntil(ctx, at, v.wakeup) {
			continue // woken: what comes next may have changed
		}
		if v.listingDue() {
			v.list(ctx)
		}
		v.confirm(ctx)
		v.tellFreshness()
	}
}

func (v *inventory) wake() {
	select {
	case v.wakeup <- struct{}{}:
	default:
	}
}

// retry makes the next attempt come at once: there are new credentials.
func (v *inventory) retry() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.began, v.retryAt, v.failures = time.Time{}, time.Time{}, 0
	v.asked, v.unheard = time.Time{}, false
	for _, w := range v.watches {
		w.readAt = time.Now()
	}
	v.wake()
}

// isRefused is told at once, and not only when the inventory has become stale: someone must mend the credentials.
func (v *inventory) isRefused() bool { return cloud.CodeOf(v.err) == cloud.Unauthorized }

func (v *inventory) tellFreshness() {
	v.mu.Lock()
	fresh, refused := v.isFresh(time.Now()), v.isRefused()
	flip := v.absences.flipped(time.Now()) || fresh != v.fresh || refused != v.refused
	v.fresh, v.refused = fresh, refused
	v.mu.Unlock()
	if flip {
		v.flipped()
	}
}

// listing is the last complete listing, and when it began; zero before the first. From then on the account is listed at
// least so often, also while no machine is observed.
func (v *inventory) listing(atLeast time.Duration) (began time.Time, all []cloud.Resource) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.atLeast != atLeast {
		v.atLeast = atLeast
		v.wake()
	}
	for _, resources := range v.listed {
		all = append(all, resources...)
	}
	return v.complete, all
}

func (v *inventory) state() InventoryState {
	v.mu.Lock()
	defer v.mu.Unlock()
	s := InventoryState{LastComplete: v.complete, Err: v.err, Fresh: v.isFresh(time.Now())}
	for _, resources := range v.listed {
		s.Instances += len(living(resources))
	}
	return s
}

// longestListing is how much time one complete listing may have at most.
const longestListing = 30 * time.Minute

// listLimit is how much time the next listing has: as much as a fleet of this size takes, and more after one that was cut off.
func (v *inventory) listLimit() time.Duration {
	v.mu.Lock()
	defer v.mu.Unlock()
	return max(v.limit, v.account().times.List)
}

// list makes one complete listing, or notes why there is none.
func (v *inventory) list(ctx context.Context) {
	began := time.Now()
	limit := v.listLimit()
	resources, err := v.account().list(ctx, limit)
	if ctx.Err() != nil {
		return
	}
	v.mu.Lock()
	v.limit = v.account().times.List
	if took := time.Since(began); err == nil {
		v.limit = max(v.limit, 3*took)
	} else if took >= limit {
		v.limit = min(2*limit, longestListing)
	}
	var queued *cloud.Queued
	if errors.As(err, &queued) { // its turn has not come: nothing has failed
		v.retryAt = time.Now().Add(queued.After)
		v.mu.Unlock()
		return
	}
	v.began, v.err, v.retryAt = began, err, time.Time{}
	v.jitter = 0.9 + 0.2*v.random()
	if err != nil {
		idle, _ := v.intervals()
		v.failures++
		v.retryAt = time.Now().Add(max(retryAfter(err), min(idle, backoff(v.failures, v.random()))))
		v.mu.Unlock()
		return
	}
	v.failures, v.complete, v.took = 0, began, time.Since(began)
	changed := v.take(began, byToken(resources))
	v.mu.Unlock()
	v.changed(changed)
}

// take replaces the listing, and returns the observed machines that changed. What was seen after the listing began, or
// so shortly before that this or the next one may miss it, stays.
func (v *inventory) take(began time.Time, listed map[string][]cloud.Resource) (changed []string) {
	consistency := v.account().cloud.Traits.ReadLag
	v.listed = listed
	for token, sightings := range v.seen {
		for n, s := range sightings {
			if i := find(v.listed[token], s.Resource); i >= 0 && !s.at.After(began) {
				sightings[n].Resource = v.listed[token][i]
			}
		}
		kept := slices.DeleteFunc(sightings, func(s sighting) bool { return !s.at.Add(consistency).After(began) })
		if v.seen[token] = kept; len(kept) == 0 {
			delete(v.seen, token)
		}
	}
	clear(v.unjudged)
	for token, w := range v.watches {
		w.joined = false
		v.judge(w, time.Now())
		if v.update(w) {
			changed = append(changed, token)
		}
	}
	return changed
}

func byToken(resources []cloud.Resource) map[string][]cloud.Resource {
	all := map[string][]cloud.Resource{}
	for _, r := range resources {
		all[r.Token] = append(all[r.Token], r)
	}
	return all
}

// judge decides, after a complete listing, whether a recorded instance must be looked for.
func (v *inventory) judge(w *watch, now time.Time) {
	if w.deleting || w.ref.ProviderID == "" {
		return
	}
	own := v.own(w.ref)
	absent := len(living(own)) == 0
	w.seen = w.seen || len(own) > 0
	if w.gone && (absent || !w.silently) {
		return // the end that a cloud has recorded is not taken back by a listing that is older
	}
	if absent && !w.absent {
		w.readAt = now
	}
	if w.absent = absent; !absent {
		v.isThere(w)
	} else if w.seen && !recorded(own, w.ref) {
		v.absences.miss(w.ref.Token)
	}
}

// isThere takes back all that was concluded from a machine's absence.
func (v *inventory) isThere(w *watch) {
	w.absent, w.missed, w.seen, w.gone, w.silently, w.neverSeen = false, time.Time{}, true, false, false, false
	v.absences.found(w.ref.Token)
}

// confirm looks, in one live read, for the instances that the listing lacks.
func (v *inventory) confirm(ctx context.Context) {
	refs := v.suspects()
	if len(refs) == 0 {
		return
	}
	began := time.Now()
	found, failed := v.account().Read(ctx, refs)
	if ctx.Err() != nil {
		return
	}
	v.mu.Lock()
	var changed []string
	for _, ref := range refs {
		w := v.watches[ref.Token]
		if w == nil || w.deleting || w.gone {
			continue // forgotten or handed to the deleter meanwhile
		}
		if err := failed[ref.Token]; err != nil {
			idle, active := v.intervals()
			w.readAt = time.Now().Add(max(retryAfter(err), min(idle, 2*active)))
			continue
		}
		v.conclude(w, began, found[ref.Token])
		if v.update(w) {
			changed = append(changed, ref.Token)
		}
	}
	v.mu.Unlock()
	v.changed(changed)
}

// suspect tells whether live reads are to say what became of the machine.
func (w *watch) suspect() bool {
	return !w.deleting && !w.gone && (w.absent || !w.settling.IsZero() && !w.settled)
}

func (v *inventory) suspects() (refs []cloud.Reference) {
	v.mu.Lock()
	defer v.mu.Unlock()
	now := time.Now()
	for _, w := range v.watches {
		if w.suspect() && !now.Before(w.readAt) {
			refs = append(refs, w.ref)
		}
	}
	slices.SortFunc(refs, func(a, b cloud.Reference) int { return strings.Compare(a.Token, b.Token) })
	return refs
}

// conclude draws what a live read says of one machine. Only an answer that the instance is terminated, or two that it is
// not there with the time between them in which the cloud may contradict itself, mean that it is gone.
func (v *inventory) conclude(w *watch, began time.Time, found []cloud.Resource) {
	lag := v.account().cloud.Traits.ReadLag
	own := ownedBy(found, w.ref.OwnershipID)
	known := later(w.known, w.settling)
	switch {
	case len(living(own)) > 0:
		v.isThere(w)
		w.settling = time.Time{}
		v.sight(w.ref.Token, own, began)
	case !w.settling.IsZero() && len(own) > 0:
		w.settling = time.Time{} // it was made, and has ended: the next create says so
		v.sight(w.ref.Token, own, began)
	case recorded(own, w.ref):
		v.absences.found(w.ref.Token)
		w.gone = true
		v.sight(w.ref.Token, own, began)
	case w.missed.IsZero() && lag > 0:
		w.missed = began
		w.readAt = later(began, known).Add(lag)
	case (w.missed.IsZero() || began.Sub(w.missed) >= lag) && began.Sub(known) >= lag:
		v.isNotThere(w)
	default:
		w.readAt = later(w.missed, known).Add(lag)
	}
}

// isNotThere draws the conclusion from live reads that found nothing, as often as they must.
func (v *inventory) isNotThere(w *watch) {
	idle, _ := v.intervals()
	switch {
	case !w.settling.IsZero():
		w.settled = true
	case !w.seen:
		w.neverSeen = true
		w.readAt = time.Now().Add(idle)
	case v.absences.believe(w.ref.Token, time.Now()):
		w.gone, w.silently = true, true
		v.drop(w.ref.Token)
	default:
		w.readAt = time.Now().Add(idle)
	}
}

// settle tells whether looks have proved that an open create has made nothing, and has them made.
func (v *inventory) settle(ref cloud.Reference) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	w := v.watches[ref.Token]
	if w == nil {
		w = &watch{ref: ref}
		v.watches[ref.Token] = w
	}
	if w.settling.IsZero() && !w.settled && len(v.of(ref.Token)) == 0 {
		w.settling = time.Now().Add(v.account().createHorizon())
		w.readAt = w.settling
		v.wake()
	}
	return w.settled
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// update looks at a machine again and tells whether it changed since it was last reported.
func (v *inventory) update(w *watch) bool {
	now := v.look(w)
	v.expect(w, now)
	if w.deleting || (now.Gone && w.reported.Gone) || (reflect.DeepEqual(now, w.reported) && w.settled == w.told) {
		return false
	}
	w.told = w.settled
	w.reported = now
	return true
}

// expect notes whether the machine will change by itself.
func (v *inventory) expect(w *watch, o Observation) {
	switch {
	case o.Instance == nil:
	case o.Gone || (o.Instance.State != cloud.StatePending && o.Instance.State != cloud.StateStopping):
		w.starting = time.Time{}
	case w.starting.IsZero():
		w.starting = time.Now()
	}
}

// own are the resources with the machine's token and its cluster's ownership, by kind and ID.
func (v *inventory) own(ref cloud.Reference) []cloud.Resource {
	return ownedBy(v.of(ref.Token), ref.OwnershipID)
}

// of are all resources with the token, by kind and ID: as listed, and as seen since.
func (v *inventory) of(token string) []cloud.Resource {
	all := slices.Clone(v.listed[token])
	for _, s := range v.seen[token] {
		if i := find(all, s.Resource); i >= 0 {
			all[i] = s.Resource
		} else {
			all = append(all, s.Resource)
		}
	}
	slices.SortFunc(all, func(a, b cloud.Resource) int {
		if a.Kind != b.Kind {
			return strings.Compare(string(a.Kind), string(b.Kind))
		}
		return strings.Compare(a.ID, b.ID)
	})
	return all
}

func (v *inventory) sight(token string, resources []cloud.Resource, at time.Time) {
	for _, r := range resources {
		s := sighting{r, at}
		if i := slices.IndexFunc(v.seen[token], func(o sighting) bool { return o.Kind == r.Kind && o.ID == r.ID }); i >= 0 {
			v.seen[token][i] = s
		} else {
			v.seen[token] = append(v.seen[token], s)
		}
	}
}

func (v *inventory) drop(token string) {
	delete(v.listed, token)
	delete(v.seen, token)
}

// adopt returns the request's instance if one is known.
func (v *inventory) adopt(req cloud.Request) (*cloud.Resource, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	w := v.watches[req.Token]
	if w != nil { // a create settles more than a look
		w.settling, w.settled, w.told = time.Time{}, false, false
	}
	if w != nil && w.gone {
		return nil, cloud.Errorf(cloud.Conflict, "create machine %s/%s: its instance is gone, and is not made again", req.Namespace, req.Name)
	}
	all := v.of(req.Token)
	own := ownedBy(all, req.OwnershipID)
	if len(own) < len(all) {
		return nil, foreign(req.Token, slices.DeleteFunc(all, func(r cloud.Resource) bool { return r.OwnershipID == req.OwnershipID }))
	}
	alive := living(own)
	if len(alive) > 1 {
		ids := make([]string, 0, len(alive))
		for _, r := range alive {
			ids = append(ids, r.ID)
		}
		return nil, cloud.Errorf(cloud.Conflict, "create machine %s/%s: instances %s all carry its token", req.Namespace, req.Name, strings.Join(ids, ", "))
	}
	i := slices.IndexFunc(own, func(r cloud.Resource) bool {
		return r.Kind == cloud.KindInstance && (len(alive) == 0 || r.ID == alive[0].ID)
	})
	if i < 0 {
		return nil, nil
	}
	v.interest(req, own[i])
	return &own[i], nil
}

// made notes that the instance exists.
func (v *inventory) made(req cloud.Request, r cloud.Resource) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.sight(req.Token, []cloud.Resource{r}, time.Now())
	v.interest(req, r)
	v.wake()
}

// interest watches a machine that was made or adopted for its creator, who has seen r.
func (v *inventory) interest(req cloud.Request, r cloud.Resource) {
	w := v.watches[req.Token]
	if w == nil {
		w = &watch{ref: cloud.Reference{Token: req.Token, OwnershipID: req.OwnershipID}}
		v.watches[req.Token] = w
	}
	if w.known.IsZero() {
		w.known = time.Now()
	}
	v.update(w)
}

// observe reports a machine and watches it.
func (v *inventory) observe(ref cloud.Reference, seen, deleting bool) Observation {
	v.mu.Lock()
	defer v.mu.Unlock()
	w := v.watches[ref.Token]
	if w == nil {
		w = &watch{}
		v.watches[ref.Token] = w
		v.wake()
	}
	w.ref, w.deleting, w.seen = ref, deleting, w.seen || seen
	if ref.ProviderID != "" {
		v.absences.record(ref.Token)
		w.settling = time.Time{}
	}
	if ref.ProviderID != "" && w.known.IsZero() {
		w.known = time.Now()
		v.unjudged[ref.Token] = struct{}{}
	}
	wasStarting := !w.starting.IsZero()
	v.update(w)
	w.reported = v.look(w)
	if !wasStarting && !w.starting.IsZero() {
		v.wake()
	}
	return w.reported
}

// joined notes that the machine was seen at work elsewhere than in the cloud.
func (v *inventory) joined(token string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if w := v.watches[token]; w != nil && !w.starting.IsZero() && !w.joined {
		w.joined = true
		v.wake()
	}
}

// leave hands the machine to the deleter, and returns since when its creation is known to have ended, and whether its
// instance is known to be gone.
func (v *inventory) leave(token string) (known time.Time, gone bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if w := v.watches[token]; w != nil {
		w.deleting = true
		return w.known, w.gone
	}
	return time.Time{}, false
}

// resources are those with the token, as far as they are known.
func (v *inventory) resources(token string) []cloud.Resource {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.of(token)
}

// vanished notes that a live read found nothing left.
func (v *inventory) vanished(token string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.drop(token)
}

func (v *inventory) forget(token string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.watches, token)
	delete(v.unjudged, token)
	delete(v.seen, token)
	v.wake()
}
