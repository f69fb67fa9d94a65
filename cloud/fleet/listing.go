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
	// maxStartTime is how long a machine that does not start keeps the listings frequent.
	maxStartTime = 15 * time.Minute
	// staleAfter is the shortest time without a complete listing after which the inventory is
	// stale. One slow listing among frequent ones does not make it stale.
	staleAfter = time.Minute
	// maxBackoff is the longest time between failed attempts.
	maxBackoff = time.Minute
	// listAfterJoinInterval is the least time between a listing and one that joined Nodes cause.
	listAfterJoinInterval = time.Second
	// maxListTime bounds the time for one complete listing.
	maxListTime = 30 * time.Minute
	// compareBatch is how many machines are compared with a listing under one hold of the lock.
	compareBatch = 500
)

// pace holds when the account is listed and how its listings went. The inventory's lock guards it.
type pace struct {
	began           time.Time     // when the latest listing began, complete or not; zero: list now
	complete        time.Time     // when the last complete one began
	took            time.Duration // how long that one took
	activeSince     time.Time     // since when listings are frequent; zero: they are not
	timeout         time.Duration // of time for the next listing; 0: the default
	failures        int           // since the last complete one
	retryAt         time.Time     // no listing before, after a failure
	err             error
	maxInterval     time.Duration // longest interval while no machine is observed; 0: no listing then
	watchBegan      time.Time     // since when the Watcher is expected to report; zero: it is not
	watchUpdated    time.Time     // when the Watcher last reported
	watchFailed     bool          // the Watcher has failed
	jitter          float64       // factor for the next interval
	reportedFresh   bool          // as last reported
	reportedRefused bool          // as last reported: the credentials are refused
}

func (p *pace) retry() {
	p.began, p.retryAt, p.failures = time.Time{}, time.Time{}, 0
	p.watchBegan, p.watchFailed = time.Time{}, false
}

// isRefused reports whether the credentials are refused. This is reported at once, not only when
// the inventory is stale, because a person must replace them.
func (p *pace) isRefused() bool { return cloud.CodeOf(p.err) == cloud.Unauthorized }

func (p *pace) jittered(d time.Duration) time.Duration { return time.Duration(float64(d) * p.jitter) }

// runListings lists the account whenever a listing is due, until ctx ends.
func (v *inventory) runListings(ctx context.Context) {
	for ctx.Err() == nil {
		due, next := v.nextListing()
		if due {
			v.list(ctx)
		} else if !sleepUntil(ctx, next, v.listWakeup) {
			continue // woken: the next action may be another one
		}
		v.reportHealth()
	}
}

// nextListing reports whether a listing is due, or else when the loop must run again; zero: when it
// is woken. It takes the lock.
func (v *inventory) nextListing() (due bool, next time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	now := time.Now()
	if v.account().Probed() {
		if next = v.listAt(now); !next.IsZero() && !now.Before(next) {
			return true, next
		}
	}
	if v.pace.reportedFresh != v.isFresh(now) || v.pace.reportedRefused != v.pace.isRefused() {
		next = now
	} else if v.pace.reportedFresh && v.isObserved() {
		next = earlier(next, v.staleAt(now))
	}
	return false, next
}

// listAt returns when the next listing is due; zero: no listing is wanted.
func (v *inventory) listAt(now time.Time) time.Time {
	p := &v.pace
	switch {
	case !v.isWanted():
		return time.Time{}
	case v.isWatched(now):
		return later(p.watchBegan, p.watchUpdated).Add(streamTimeout)
	case !p.retryAt.IsZero():
		return p.retryAt
	case p.began.IsZero():
		return now
	case !v.isObserved():
		return p.began.Add(p.jittered(p.maxInterval))
	}
	idle, active := v.intervals()
	at := p.began.Add(p.jittered(idle))
	if starting, allJoined := v.starting(now); starting {
		// The interval starts when listings become frequent: a listing right then is of no use.
		at = earlier(at, later(p.began, p.activeSince).Add(p.jittered(active)))
		if allJoined { // every machine that starts has changed
			at = earlier(at, p.began.Add(listAfterJoinInterval))
		}
	}
	return at
}

// intervals returns the times between the starts of two listings.
func (v *inventory) intervals() (idle, active time.Duration) {
	spec := v.account().getSettings().inventory
	idle, active = time.Duration(spec.IdleSeconds)*time.Second, time.Duration(spec.ActiveSeconds)*time.Second
	if idle <= 0 {
		idle = time.Minute
	}
	if active <= 0 {
		active = 5 * time.Second
	}
	return idle, min(idle, max(active, (1+cloud.CooldownFactor)*v.pace.took))
}

// starting reports whether a machine is about to change, which makes listings frequent, and whether
// all such machines have joined.
func (v *inventory) starting(now time.Time) (starting, allJoined bool) {
	allJoined = true
	for _, m := range v.machines {
		if !m.startingSince.IsZero() && m.isObserved() && now.Sub(m.startingSince) < maxStartTime {
			starting, allJoined = true, allJoined && m.joined
		}
	}
	if !starting {
		v.pace.activeSince = time.Time{}
	} else if v.pace.activeSince.IsZero() {
		v.pace.activeSince = now
	}
	return starting, allJoined
}

// staleAt returns when the last complete listing will be too old.
func (v *inventory) staleAt(now time.Time) time.Time {
	p := &v.pace
	switch {
	case v.isWatchStarting(now):
		return p.watchBegan.Add(streamTimeout)
	case v.isWatched(now):
		return p.complete.Add(streamLag + streamTimeout + staleAfter)
	}
	idle, active := v.intervals()
	if starting, _ := v.starting(now); starting {
		return later(p.complete, p.activeSince).Add(max(3*active, staleAfter))
	}
	return p.complete.Add(max(3*idle, staleAfter))
}

func (v *inventory) isFresh(now time.Time) bool {
	switch {
	case !v.isObserved():
		return true
	case v.isWatchStarting(now), v.pace.complete.IsZero() && !v.account().Probed():
		return v.pace.reportedFresh
	}
	return !v.pace.complete.IsZero() && now.Before(v.staleAt(now))
}

// isObserved reports whether a controller needs the state of any machine.
func (v *inventory) isObserved() bool {
	for _, m := range v.machines {
		if m.isObserved() {
			return true
		}
	}
	return false
}

// isWanted reports whether anyone needs the account's resources.
func (v *inventory) isWanted() bool { return v.pace.maxInterval != 0 || v.isObserved() }

// reportHealth reports a change between fresh and stale, refused and accepted credentials, doubt
// and none. It takes the lock.
func (v *inventory) reportHealth() {
	changed := false
	v.locked(func() {
		now := time.Now()
		fresh, refused := v.isFresh(now), v.pace.isRefused()
		changed = v.absences.changed(now) || fresh != v.pace.reportedFresh || refused != v.pace.reportedRefused
		v.pace.reportedFresh, v.pace.reportedRefused = fresh, refused
	})
	if changed {
		v.onHealthChange()
	}
}

// list makes one complete listing, or records why it failed. It takes the lock.
func (v *inventory) list(ctx context.Context) {
	a, began := v.account(), time.Now()
	v.mu.Lock()
	timeout := max(v.pace.timeout, a.times.List)
	v.mu.Unlock()
	resources, err := a.list(ctx, timeout)
	if ctx.Err() != nil {
		return
	}
	if err == nil {
		err = v.hasRoom(cloud.Update{All: true, Resources: resources})
	}
	if v.recordListing(began, timeout, err); err == nil {
		v.applyListing(began, resources)
	}
}

// hasRoom returns an error if the namespace's accounts have no memory left for what the cloud
// reports. It takes the lock.
func (v *inventory) hasRoom(u cloud.Update) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	size := sizeOf(u.Resources)
	switch m := v.machines[u.Token]; {
	case !u.All && m != nil:
		size += v.size - sizeOf(m.listed)
	case !u.All:
		size += v.size
	}
	if !v.keep(size + u.Stored) {
		return cloud.Errorf(cloud.Unknown, "the account's resources take %d MiB, for which the namespace's accounts have no memory left: check the account's endpoint", (size+u.Stored)>>20)
	}
	v.size = size
	return nil
}

// recordListing records how a listing went, and when to try again. It takes the lock.
func (v *inventory) recordListing(began time.Time, timeout time.Duration, err error) {
	took := time.Since(began)
	a := v.account()
	v.mu.Lock()
	defer v.mu.Unlock()
	p := &v.pace
	// The next listing gets three times what this one took, and more after one that was cut off.
	if p.timeout = a.times.List; err == nil {
		p.timeout = max(p.timeout, 3*took)
	} else if took >= timeout {
		p.timeout = min(2*timeout, maxListTime)
	}
	var queued *cloud.Queued
	if errors.As(err, &queued) { // nothing failed: its turn in the rate limit has not come
		p.retryAt = time.Now().Add(queued.After)
		return
	}
	p.began, p.err, p.retryAt = began, err, time.Time{}
	p.jitter = 0.9 + 0.2*v.random()
	if err != nil {
		idle, _ := v.intervals()
		p.failures++
		p.retryAt = time.Now().Add(max(retryAfter(err), min(idle, backoff(p.failures, v.random()))))
		return
	}
	p.failures, p.took = 0, took
}

// applyListing replaces the listing, and compares every machine with it. It takes the lock, and
// releases it between batches of machines.
func (v *inventory) applyListing(began time.Time, resources []cloud.Resource) {
	listed := byToken(resources)
	var tokens []string
	v.locked(func() {
		v.pace.complete = began
		for token := range listed {
			v.machine(token)
		}
		for token, m := range v.machines {
			m.listed, m.joined = listed[token], false
			tokens = append(tokens, token)
		}
	})
	for some := range slices.Chunk(tokens, compareBatch) {
		var changed []string
		v.locked(func() { changed = v.compare(began, some) })
		v.onMachinesChange(changed)
	}
}

func byToken(resources []cloud.Resource) map[string][]cloud.Resource {
	all := map[string][]cloud.Resource{}
	for _, r := range resources {
		all[r.Token] = append(all[r.Token], r)
	}
	return all
}

// compare compares machines with a listing that began at the given time, and returns those that
// changed. It keeps what was seen later, or so shortly before that the listing may miss it.
func (v *inventory) compare(began time.Time, tokens []string) (changed []string) {
	for _, token := range tokens {
		m := v.machines[token]
		if m == nil {
			continue // forgotten meanwhile
		}
		for n, s := range m.sightings {
			if i := find(m.listed, s.Resource); i >= 0 && !s.at.After(began) {
				m.sightings[n].Resource = m.listed[i]
			}
		}
		if v.reassess(m, began) {
			changed = append(changed, token)
		}
	}
	return changed
}

// reassess drops sightings from before a time as of which everything is known, checks the machine's
// presence again, and reports whether it changed.
func (v *inventory) reassess(m *machine, at time.Time) (changed bool) {
	lag := v.account().cloud.Traits.ReadLag
	m.sightings = slices.DeleteFunc(m.sightings, func(s sighting) bool { return !s.at.Add(lag).After(at) })
	if len(m.sightings) == 0 {
		delete(v.recent, m.ref.Token)
	}
	if m.phase == untracked {
		if len(m.listed)+len(m.sightings) == 0 {
			delete(v.machines, m.ref.Token)
		}
		return false
	}
	v.checkPresence(m)
	return m.update()
}

// checkPresence decides whether live reads must search for a recorded instance.
func (v *inventory) checkPresence(m *machine) {
	if !m.isObserved() || m.ref.ProviderID == "" {
		return
	}
	own := m.own()
	absent := len(liveInstances(recordedOf(m.ref, own))) == 0
	m.wasSeen = m.wasSeen || len(own) > 0
	switch {
	case m.phase == ended || m.phase == vanished && absent: // a listing does not undo an end that the cloud has recorded
	case !absent:
		v.markPresent(m)
	default:
		if !m.isMissing() {
			v.markMissing(m)
		}
		if m.wasSeen && !hasInstance(own, m.ref) && !v.account().findsByID() {
			v.absences.missing[m.ref.Token] = struct{}{}
		}
	}
}

// markPresent undoes all that followed from a machine's absence.
func (v *inventory) markPresent(m *machine) {
	m.phase, m.emptySince, m.wasSeen = tracked, time.Time{}, true
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

// backoff returns the wait after this many failures in a row: 1 second to 1 minute, with jitter.
func backoff(failures int, random float64) time.Duration {
	d := min(time.Second<<min(failures-1, 10), maxBackoff)
	return time.Duration(float64(d) * (0.75 + 0.25*random))
}
