// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/drover-io/drover/cloud"
)

const (
	// startingPatience is how long one machine that does not come up keeps the listings frequent.
	startingPatience = 15 * time.Minute
	// staleAfter is the least time without a complete listing after which the inventory is called
	// stale, so that one slow listing among frequent ones is no news.
	staleAfter = time.Minute
	// backoffCap bounds the time between attempts that fail.
	backoffCap = time.Minute
	// joinedPause is the least time between two listings, the second of which comes because
	// machines have joined.
	joinedPause = time.Second
	// longestListing is how much time one complete listing may have at most.
	longestListing = 30 * time.Minute
	// judgedAtOnce is how many machines are held against a listing until the lock is free for
	// others.
	judgedAtOnce = 500
)

// pace is when an account is listed, and what its listings are worth. The inventory's lock guards
// it.
type pace struct {
	began    time.Time     // of the latest listing, complete or not; zero: none yet, or one is wanted at once
	complete time.Time     // when the last complete one began
	took     time.Duration // from then on, until it was complete
	urgent   time.Time     // since when the listings are frequent; zero: they are not
	limit    time.Duration // of the next listing; 0: the common one
	failures int           // since the last complete one
	retryAt  time.Time     // not before, after a failure
	err      error
	atLeast  time.Duration // how often to list although no machine is observed; 0: not at all
	asked    time.Time     // since when a Follower is expected to tell; zero: it is not
	heard    time.Time     // when it last did
	unheard  bool          // it has failed
	jitter   float64       // of the interval to the next listing, drawn once for each
	fresh    bool          // as last told
	refused  bool          // as last told: the credentials do not work
}

func (p *pace) retry() {
	p.began, p.retryAt, p.failures = time.Time{}, time.Time{}, 0
	p.asked, p.unheard = time.Time{}, false
}

// isRefused is told at once, and not only when the inventory has become stale: someone must mend
// the credentials.
func (p *pace) isRefused() bool { return cloud.CodeOf(p.err) == cloud.Unauthorized }

func (p *pace) jittered(d time.Duration) time.Duration { return time.Duration(float64(d) * p.jitter) }

// runListings lists the account when that is due, until ctx ends.
func (v *inventory) runListings(ctx context.Context) {
	for ctx.Err() == nil {
		due, next := v.nextListing()
		if due {
			v.list(ctx)
		} else if !sleepUntil(ctx, next, v.lists) {
			continue // woken: what comes next may have changed
		}
		v.tellFreshness()
	}
}

// nextListing tells whether a listing is due, and else when there is something to do; zero: not
// before someone wakes the loop. It takes the lock.
func (v *inventory) nextListing() (due bool, next time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	now := time.Now()
	if v.account().place.admits() == nil {
		if next = v.listAt(now); !next.IsZero() && !now.Before(next) {
			return true, next
		}
	}
	if v.pace.fresh != v.isFresh(now) || v.pace.refused != v.pace.isRefused() {
		next = now
	} else if v.pace.fresh && v.isObserved() {
		next = earlier(next, v.staleAt(now))
	}
	return false, next
}

// listAt is when the next listing is due; zero: never, because no one is interested.
func (v *inventory) listAt(now time.Time) time.Time {
	p := &v.pace
	switch {
	case !v.isWanted():
		return time.Time{}
	case v.isFollowed(now):
		return later(p.asked, p.heard).Add(streamSilence)
	case !p.retryAt.IsZero():
		return p.retryAt
	case p.began.IsZero():
		return now
	case !v.isObserved():
		return p.began.Add(p.jittered(p.atLeast))
	}
	idle, active := v.intervals()
	at := p.began.Add(p.jittered(idle))
	if starting, allJoined := v.starting(now); starting {
		// Counted from the moment that the listings became frequent: at once, there would be
		// nothing new to see.
		at = earlier(at, later(p.began, p.urgent).Add(p.jittered(active)))
		if allJoined { // a listing has news of every machine that starts
			at = earlier(at, p.began.Add(joinedPause))
		}
	}
	return at
}

// intervals are between the begins of two listings.
func (v *inventory) intervals() (idle, active time.Duration) {
	spec := v.account().config.Spec.Inventory
	idle, active = time.Duration(spec.IdleSeconds)*time.Second, time.Duration(spec.ActiveSeconds)*time.Second
	if idle <= 0 {
		idle = time.Minute
	}
	if active <= 0 {
		active = 5 * time.Second
	}
	return idle, min(idle, max(active, (1+cloud.RestTimes)*v.pace.took))
}

// starting tells whether listings are frequent, while a machine is expected to change; and whether
// all such machines have joined.
func (v *inventory) starting(now time.Time) (starting, allJoined bool) {
	allJoined = true
	for _, m := range v.machines {
		if !m.starting.IsZero() && m.isObserved() && now.Sub(m.starting) < startingPatience {
			starting, allJoined = true, allJoined && m.joined
		}
	}
	if !starting {
		v.pace.urgent = time.Time{}
	} else if v.pace.urgent.IsZero() {
		v.pace.urgent = now
	}
	return starting, allJoined
}

// staleAt is when the last complete listing will have been too long ago.
func (v *inventory) staleAt(now time.Time) time.Time {
	p := &v.pace
	switch {
	case v.isAwaited(now):
		return p.asked.Add(streamSilence)
	case v.isFollowed(now):
		return p.complete.Add(streamLag + streamSilence + staleAfter)
	}
	idle, active := v.intervals()
	if starting, _ := v.starting(now); starting {
		return later(p.complete, p.urgent).Add(max(3*active, staleAfter))
	}
	return p.complete.Add(max(3*idle, staleAfter))
}

func (v *inventory) isFresh(now time.Time) bool {
	switch {
	case !v.isObserved():
		return true
	case v.isAwaited(now), v.pace.complete.IsZero() && v.account().place.admits() != nil:
		return v.pace.fresh
	}
	return !v.pace.complete.IsZero() && now.Before(v.staleAt(now))
}

// isObserved tells whether someone is interested in a machine that is not being deleted.
func (v *inventory) isObserved() bool {
	for _, m := range v.machines {
		if m.isObserved() {
			return true
		}
	}
	return false
}

// isWanted tells whether someone is interested in a machine, or in all.
func (v *inventory) isWanted() bool { return v.pace.atLeast != 0 || v.isObserved() }

// tellFreshness says that the inventory became fresh or stale, or its credentials refused or
// accepted. It takes the lock.
func (v *inventory) tellFreshness() {
	v.mu.Lock()
	now := time.Now()
	fresh, refused := v.isFresh(now), v.pace.isRefused()
	flip := v.absences.flipped(now) || fresh != v.pace.fresh || refused != v.pace.refused
	v.pace.fresh, v.pace.refused = fresh, refused
	v.mu.Unlock()
	if flip {
		v.flipped()
	}
}

// list makes one complete listing, or notes why there is none. It takes the lock.
func (v *inventory) list(ctx context.Context) {
	a, began := v.account(), time.Now()
	v.mu.Lock()
	limit := max(v.pace.limit, a.times.List)
	v.mu.Unlock()
	resources, err := a.list(ctx, limit)
	if ctx.Err() != nil {
		return
	}
	took := time.Since(began)
	v.mu.Lock()
	p := &v.pace
	// A listing has as much time as a fleet of this size takes, and more after one that was cut
	// off.
	if p.limit = a.times.List; err == nil {
		p.limit = max(p.limit, 3*took)
	} else if took >= limit {
		p.limit = min(2*limit, longestListing)
	}
	var queued *cloud.Queued
	if errors.As(err, &queued) { // its turn has not come: nothing has failed
		p.retryAt = time.Now().Add(queued.After)
		v.mu.Unlock()
		return
	}
	p.began, p.err, p.retryAt = began, err, time.Time{}
	p.jitter = 0.9 + 0.2*v.random()
	if err != nil {
		idle, _ := v.intervals()
		p.failures++
		p.retryAt = time.Now().Add(max(retryAfter(err), min(idle, backoff(p.failures, v.random()))))
		v.mu.Unlock()
		return
	}
	p.failures, p.took = 0, took
	v.mu.Unlock()
	v.take(began, resources)
}

// take replaces the listing, and holds every machine against it. It takes the lock, and leaves it
// now and then.
func (v *inventory) take(began time.Time, resources []cloud.Resource) {
	listed := byToken(resources)
	v.mu.Lock()
	v.pace.complete = began
	for token := range listed {
		v.machine(token)
	}
	tokens := make([]string, 0, len(v.machines))
	for token, m := range v.machines {
		m.listed, m.joined = listed[token], false
		tokens = append(tokens, token)
	}
	v.mu.Unlock()
	for some := range slices.Chunk(tokens, judgedAtOnce) {
		v.mu.Lock()
		changed := v.compare(began, some)
		v.mu.Unlock()
		v.changed(changed)
	}
}

func byToken(resources []cloud.Resource) map[string][]cloud.Resource {
	all := map[string][]cloud.Resource{}
	for _, r := range resources {
		all[r.Token] = append(all[r.Token], r)
	}
	return all
}

// compare holds machines against a listing that began at a time, and returns those that changed.
// What was seen after that, or so shortly before that this or the next listing may miss it, stays.
func (v *inventory) compare(began time.Time, tokens []string) (changed []string) {
	for _, token := range tokens {
		m := v.machines[token]
		if m == nil {
			continue // forgotten meanwhile
		}
		for n, s := range m.sighted {
			if i := find(m.listed, s.Resource); i >= 0 && !s.at.After(began) {
				m.sighted[n].Resource = m.listed[i]
			}
		}
		if v.settleDown(m, began) {
			changed = append(changed, token)
		}
	}
	return changed
}

// settleDown drops what was seen of a machine before a time as of which everything is known, judges
// it, and tells whether it changed.
func (v *inventory) settleDown(m *machine, at time.Time) (changed bool) {
	lag := v.account().cloud.Traits.ReadLag
	m.sighted = slices.DeleteFunc(m.sighted, func(s sighting) bool { return !s.at.Add(lag).After(at) })
	if len(m.sighted) == 0 {
		delete(v.recent, m.ref.Token)
	}
	if m.phase == unwatched {
		if len(m.listed)+len(m.sighted) == 0 {
			delete(v.machines, m.ref.Token)
		}
		return false
	}
	v.judge(m)
	return v.update(m)
}

// judge decides, by what is known, whether a recorded instance must be looked for.
func (v *inventory) judge(m *machine) {
	if !m.isObserved() || m.ref.ProviderID == "" {
		return
	}
	own := m.own()
	absent := len(living(own)) == 0
	m.seen = m.seen || len(own) > 0
	switch {
	case m.phase == ended || m.phase == vanished && absent: // an end that the cloud has recorded is not taken back by a listing
	case !absent:
		v.isThere(m)
	default:
		if !m.isMissing() {
			m.phase, m.due = missing, time.Now()
			v.works.wake()
		}
		if m.seen && !recorded(own, m.ref) {
			v.absences.miss(m.ref.Token)
		}
	}
}

// isThere takes back all that was concluded from a machine's absence.
func (v *inventory) isThere(m *machine) {
	m.phase, m.nothing, m.seen = watched, time.Time{}, true
	v.absences.found(m.ref.Token)
}

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || (!b.IsZero() && b.Before(a)) {
		return b
	}
	return a
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// backoff is how long to wait after so many failures in a row: from a second to a minute, with
// jitter.
func backoff(failures int, random float64) time.Duration {
	d := min(time.Second<<min(failures-1, 10), backoffCap)
	return time.Duration(float64(d) * (0.75 + 0.25*random))
}
