// SPDX-License-Identifier: Apache-2.0

package driverkit

import (
	"maps"
	"sync"
	"time"
)

const (
	// maxRecent is how many values a Recent keeps at most.
	maxRecent = 10_000
	// minSweep is how many values a Recent holds when it first looks for those that have ended.
	minSweep = 64
)

// Recent remembers what a driver has learned, for as long as it matters. The driver must be right
// without it, because a restart loses it: it only saves calls and waiting. If there is no room for
// a value, a tenth of the others is forgotten. The zero value is ready for use.
type Recent[T any] struct {
	mu      sync.Mutex
	all     map[string]recent[T]
	sweepAt int // how many values lead to the next sweep
}

type recent[T any] struct {
	value T
	until time.Time
}

// Put remembers a value for a time, from now on.
func (r *Recent[T]) Put(key string, value T, ttl time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all == nil {
		r.all = map[string]recent[T]{}
	}
	if _, known := r.all[key]; !known && len(r.all) >= max(r.sweepAt, minSweep) {
		r.sweep()
	}
	r.all[key] = recent[T]{value, time.Now().Add(ttl)}
}

// sweep makes room. It needs the lock.
func (r *Recent[T]) sweep() {
	now := time.Now()
	maps.DeleteFunc(r.all, func(_ string, one recent[T]) bool { return !now.Before(one.until) })
	if len(r.all) >= maxRecent {
		for key := range r.all {
			if delete(r.all, key); len(r.all) <= maxRecent-maxRecent/10 {
				break
			}
		}
	}
	r.sweepAt = min(2*len(r.all), maxRecent)
}

// Get returns a value that is remembered, or the zero value.
func (r *Recent[T]) Get(key string) (value T, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if one := r.all[key]; time.Now().Before(one.until) {
		return one.value, true
	}
	return value, false
}

// Has reports whether a value is remembered.
func (r *Recent[T]) Has(key string) bool {
	_, known := r.Get(key)
	return known
}

// Forget forgets a value.
func (r *Recent[T]) Forget(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.all, key)
}

// All returns what is remembered.
func (r *Recent[T]) All() map[string]T {
	r.mu.Lock()
	defer r.mu.Unlock()
	now, all := time.Now(), map[string]T{}
	for key, one := range r.all {
		if now.Before(one.until) {
			all[key] = one.value
		}
	}
	return all
}
