// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"time"

	"github.com/drover-io/drover/cloud"
)

const (
	// startingPatience is how long one machine that does not come up keeps the listings frequent.
	startingPatience = 15 * time.Minute
	// staleAfter is the least time without a complete listing after which the inventory is called stale, so that one
	// slow listing among frequent ones is no news.
	staleAfter = time.Minute
	// backoffCap bounds the time between attempts that fail.
	backoffCap = time.Minute
	// joinedPause is the least time between two listings, the second of which comes because machines have joined.
	joinedPause = time.Second
)

// next is when there is something to do; zero: not before someone wakes the loop.
func (v *inventory) next() time.Time {
	v.mu.Lock()
	defer v.mu.Unlock()
	var at time.Time
	if v.account().place.admits() == nil {
		at = v.listAt(time.Now())
		for _, w := range v.watches {
			if w.suspect() {
				at = earlier(at, w.readAt)
			}
		}
	}
	if v.fresh != v.isFresh(time.Now()) || v.refused != v.isRefused() {
		at = time.Now()
	} else if v.fresh && !v.unobserved() {
		at = earlier(at, v.staleAt())
	}
	return at
}

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || (!b.IsZero() && b.Before(a)) {
		return b
	}
	return a
}

func (v *inventory) listingDue() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	at := v.listAt(time.Now())
	return v.account().place.admits() == nil && !at.IsZero() && !time.Now().Before(at)
}

// listAt is when the next listing is due; zero: never, because no one is interested.
func (v *inventory) listAt(now time.Time) time.Time {
	switch {
	case v.unwanted():
		return time.Time{}
	case v.followable(now):
		return later(v.asked, v.heard).Add(streamSilence)
	case !v.retryAt.IsZero():
		return v.retryAt
	case v.began.IsZero():
		return now
	case v.unobserved():
		return v.began.Add(v.jittered(v.atLeast))
	}
	idle, active := v.intervals()
	at := v.began.Add(v.jittered(idle))
	if v.pace(now) {
		// Counted from the moment that the listings became frequent: at once, there would be nothing new to see.
		from := v.began
		if v.urgent.After(from) {
			from = v.urgent
		}
		at = earlier(at, from.Add(v.jittered(active)))
		if v.allJoined(now) {
			at = earlier(at, v.began.Add(joinedPause))
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
	return idle, min(idle, max(active, (1+cloud.RestTimes)*v.took))
}

func (v *inventory) jittered(d time.Duration) time.Duration {
	return time.Duration(float64(d) * v.jitter)
}

// pace tells whether listings are frequent: while a machine is expected to change.
func (v *inventory) pace(now time.Time) bool {
	for _, w := range v.watches {
		if w.isStarting(now) {
			if v.urgent.IsZero() {
				v.urgent = now
			}
			return true
		}
	}
	v.urgent = time.Time{}
	return false
}

func (w *watch) isStarting(now time.Time) bool {
	return !w.starting.IsZero() && !w.deleting && now.Sub(w.starting) < startingPatience
}

// allJoined tells whether a listing would have news of every machine that starts. While others are still to come, the next frequent
// one serves those that have joined as well.
func (v *inventory) allJoined(now time.Time) bool {
	for _, w := range v.watches {
		if w.isStarting(now) && !w.joined {
			return false
		}
	}
	return true
}

// staleAt is when the last complete listing will have been too long ago.
func (v *inventory) staleAt() time.Time {
	idle, active := v.intervals()
	switch now := time.Now(); {
	case v.awaiting(now):
		return v.asked.Add(streamSilence)
	case v.followable(now):
		return v.complete.Add(streamLag + streamSilence + staleAfter)
	}
	if v.pace(time.Now()) {
		return later(v.complete, v.urgent).Add(max(3*active, staleAfter))
	}
	return v.complete.Add(max(3*idle, staleAfter))
}

func (v *inventory) isFresh(now time.Time) bool {
	switch {
	case v.unobserved():
		return true
	case v.awaiting(now), v.complete.IsZero() && v.account().place.admits() != nil:
		return v.fresh
	}
	return !v.complete.IsZero() && now.Before(v.staleAt())
}

// backoff is how long to wait after so many failures in a row: from a second to a minute, with jitter.
func backoff(failures int, random float64) time.Duration {
	d := min(time.Second<<min(failures-1, 10), backoffCap)
	return time.Duration(float64(d) * (0.75 + 0.25*random))
}
