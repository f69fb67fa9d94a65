// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"errors"
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
	// maxListTime bounds the time for one complete listing.
	maxListTime = 30 * time.Minute
)

// schedule says when an account is listed, and knows how its listings went. Like records, it is
// plain state.
type schedule struct {
	*records
	began       time.Time     // when the latest listing began, complete or not; zero: list now
	complete    time.Time     // when the last complete one began
	took        time.Duration // how long that one took
	activeSince time.Time     // since when listings are frequent; zero: they are not
	timeout     time.Duration // of time for the next listing; 0: the default
	failures    int           // since the last complete one
	retryAt     time.Time     // no listing before, after a failure
	err         error
	maxInterval time.Duration // longest interval while no machine is observed; 0: no listing then
	jitter      float64       // factor for the next interval
	watch       watch
	reported    health // as last reported
}

func newSchedule(r *records) *schedule {
	return &schedule{records: r, jitter: 1, reported: health{fresh: true}}
}

// watch is what the schedule knows of a Watcher.
type watch struct {
	began   time.Time // since when it is expected to report; zero: it is not
	updated time.Time // when it last reported
	failed  bool
}

// until returns when the Watcher has been silent for too long.
func (w *watch) until() time.Time { return later(w.began, w.updated).Add(streamTimeout) }

// need is what the machines need of the listings.
type need struct {
	wanted    bool // anyone needs the account's resources
	observed  bool // a controller needs the state of a machine
	starting  bool // such a machine is about to change, so listings are frequent
	allJoined bool // all machines that are about to change have joined
}

// health is what is reported of an account's records.
type health struct {
	fresh   bool
	refused bool   // the credentials are refused, and a person must replace them
	doubted string // the digest of the missing machines, if they are more than are taken for gone
}

// need returns what the machines need of the account's listings.
func (s *schedule) need(now time.Time) need {
	n := need{wanted: s.maxInterval != 0, allJoined: true}
	for _, m := range s.machines {
		n.observed = n.observed || m.isObserved()
		if m.isStarting(now) {
			n.starting, n.allJoined = true, n.allJoined && m.joined
		}
	}
	n.wanted = n.wanted || n.observed
	return n
}

// health returns whether the listings are as they should be, and what is needed of them.
func (s *schedule) health(now time.Time) (health, need) {
	n := s.need(now)
	s.follow(now, n)
	h := health{fresh: s.isFresh(now, n), refused: cloud.CodeOf(s.err) == cloud.Unauthorized}
	if missing := (absences{s.records}).massAbsence(now); missing != nil {
		h.doubted = missing.Digest
	}
	return h, n
}

// nextListing reports whether a listing is due, or else when the loop must run again; zero: when it
// is woken.
func (s *schedule) nextListing(now time.Time) (due bool, next time.Time) {
	h, n := s.health(now)
	if s.probed {
		if next = s.listAt(now, n); !next.IsZero() && !now.Before(next) {
			return true, next
		}
	}
	if h.fresh != s.reported.fresh || h.refused != s.reported.refused {
		next = now
	} else if h.fresh && n.observed {
		next = earlier(next, s.staleAt(now, n))
	}
	return false, next
}

// inventoryState says how current the records are.
func (s *schedule) inventoryState(now time.Time) InventoryState {
	h, _ := s.health(now)
	state := InventoryState{LastComplete: s.complete, Err: s.err, Fresh: h.fresh, MassAbsence: absences{s.records}.massAbsence(now)}
	for _, m := range s.machines {
		state.Instances += len(liveInstances(m.listed))
	}
	return state
}

// follow records since when listings must be frequent, and a Watcher is expected to report.
func (s *schedule) follow(now time.Time, n need) {
	if !n.starting {
		s.activeSince = time.Time{}
	} else if s.activeSince.IsZero() {
		s.activeSince = now
	}
	if s.watches && n.wanted && !s.watch.failed && s.watch.began.IsZero() {
		s.watch.began = now
	}
}

// retry makes a listing due at once.
func (s *schedule) retry() {
	s.began, s.retryAt, s.failures = time.Time{}, time.Time{}, 0
	s.watch.began, s.watch.failed = time.Time{}, false
}

// isWatched reports whether a Watcher makes listings unnecessary.
func (s *schedule) isWatched(now time.Time, n need) bool {
	return s.watches && n.wanted && !s.watch.failed && now.Before(s.watch.until())
}

// isWatchStarting reports whether a Watcher is about to report everything.
func (s *schedule) isWatchStarting(now time.Time, n need) bool {
	return s.isWatched(now, n) && s.complete.Before(s.watch.began)
}

// listAt returns when the next listing is due; zero: no listing is wanted.
func (s *schedule) listAt(now time.Time, n need) time.Time {
	jittered := func(d time.Duration) time.Duration { return time.Duration(float64(d) * s.jitter) }
	switch {
	case !n.wanted:
		return time.Time{}
	case s.isWatched(now, n):
		return s.watch.until()
	case !s.retryAt.IsZero():
		return s.retryAt
	case s.began.IsZero():
		return now
	case !n.observed:
		return s.began.Add(jittered(s.maxInterval))
	}
	idle, active := s.intervals()
	at := s.began.Add(jittered(idle))
	if n.starting {
		// The interval starts when listings become frequent: a listing right then is of no use.
		at = earlier(at, later(s.began, s.activeSince).Add(jittered(active)))
		if n.allJoined { // every machine that starts has changed
			at = earlier(at, s.began.Add(minRepeat))
		}
	}
	return at
}

// intervals returns the times between the starts of two listings.
func (s *schedule) intervals() (idle, active time.Duration) {
	return s.idle, min(s.idle, max(s.active, (1+cloud.CooldownFactor)*s.took))
}

// staleAt returns when the last complete listing will be too old.
func (s *schedule) staleAt(now time.Time, n need) time.Time {
	switch {
	case s.isWatchStarting(now, n):
		return s.watch.began.Add(streamTimeout)
	case s.isWatched(now, n):
		return s.complete.Add(streamLag + streamTimeout + staleAfter)
	}
	idle, active := s.intervals()
	if n.starting {
		return later(s.complete, s.activeSince).Add(max(3*active, staleAfter))
	}
	return s.complete.Add(max(3*idle, staleAfter))
}

func (s *schedule) isFresh(now time.Time, n need) bool {
	switch {
	case !n.observed:
		return true
	case s.isWatchStarting(now, n), s.complete.IsZero() && !s.probed:
		return s.reported.fresh
	}
	return !s.complete.IsZero() && now.Before(s.staleAt(now, n))
}

// recordListing records how a listing went, and when to try again.
func (s *schedule) recordListing(began, now time.Time, err error) {
	took := now.Sub(began)
	timeout := s.listTimeout()
	// The next listing gets three times what this one took, and more after one that was cut off.
	if s.timeout = s.times.List; err == nil {
		s.timeout = max(s.timeout, 3*took)
	} else if took >= timeout {
		s.timeout = min(2*timeout, maxListTime)
	}
	var queued *cloud.Queued
	if errors.As(err, &queued) { // nothing failed: its turn in the rate limit has not come
		s.retryAt = now.Add(queued.After)
		return
	}
	s.began, s.err, s.retryAt = began, err, time.Time{}
	s.jitter = 0.9 + 0.2*s.random()
	if err != nil {
		s.failures++
		s.retryAt = now.Add(max(retryAfter(err), min(s.idle, backoff(s.failures, s.random()))))
		return
	}
	s.failures, s.took = 0, took
}

// listTimeout returns how much time the next listing gets.
func (s *schedule) listTimeout() time.Duration { return max(s.timeout, s.times.List) }

// recordUpdate records when the Watcher reported.
func (s *schedule) recordUpdate(u cloud.Update, now time.Time) {
	s.watch.updated, s.watch.failed = now, false
	if u.All {
		if s.watch.began.IsZero() || u.At.Before(s.watch.began) {
			s.watch.began = u.At
		}
		s.began, s.err, s.retryAt, s.failures = u.At, nil, time.Time{}, 0
	}
}

// endWatch records that the Watcher has ended, because it failed or because nothing needs it.
func (s *schedule) endWatch(failed bool) {
	s.watch.began, s.watch.failed = time.Time{}, failed
	s.changes.listings = true
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
