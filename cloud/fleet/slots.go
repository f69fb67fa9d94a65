// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/drover-io/drover/cloud"
)

const (
	// maxConcurrentCreates is how many steps of one account's machines may be under way. Each holds
	// one of the workers until it is answered, and a slow cloud must not hold all of them.
	maxConcurrentCreates = 12
	// maxConcurrentLooks is how many of these may be further steps of machines.
	maxConcurrentLooks = 9
	// maxConcurrentLookups is how many other calls of one account may hold a worker each.
	maxConcurrentLookups = 6
	// firstCreate and firstLookup are how long a call is expected to take before one was measured.
	firstCreate = 2 * time.Second
	firstLookup = 250 * time.Millisecond
)

// slots bounds the calls under way, and predicts when one of them ends. After a call without an
// answer, it allows only one at a time until one is answered. Otherwise a cloud that does not
// answer would hold workers until its calls time out.
type slots struct {
	limit           int
	starts          []time.Time   // of the calls under way, the oldest first
	typical         time.Duration // how long a call takes
	unansweredSince time.Time     // since when calls get no answer; zero: they do
}

// check returns an error while a silent cloud is tried.
func (s *slots) check(what string) error {
	if s.unansweredSince.IsZero() || len(s.starts) == 0 {
		return nil
	}
	return cloud.Errorf(cloud.Unavailable, "%s have had no response since %s; they are tried one at a time", what, s.unansweredSince.UTC().Format(time.RFC3339))
}

func (s *slots) free() int { return s.limit - len(s.starts) }

func (s *slots) begin(now time.Time) { s.starts = append(s.starts, now) }

// end ends the call that began then.
func (s *slots) end(began time.Time) {
	if i := slices.Index(s.starts, began); i >= 0 {
		s.starts = slices.Delete(s.starts, i, i+1)
	}
}

// record records whether a call was answered.
func (s *slots) record(asked, now time.Time, answered bool) {
	switch {
	case answered:
		s.unansweredSince = time.Time{}
		s.typical += (now.Sub(asked) - s.typical) / 3
	case s.unansweredSince.IsZero():
		s.unansweredSince = now
	}
}

// after returns when the waiting call with this rank is expected to get a slot; 0: now.
func (s *slots) after(rank int, now time.Time) time.Duration {
	free := max(s.free(), 0)
	if rank < free {
		return 0
	}
	takes := s.typical + s.typical/20 + minWait // a little late is better than in vain
	left := time.Duration(0)
	if i := rank%s.limit - free; i >= 0 && i < len(s.starts) {
		elapsed := now.Sub(s.starts[i])
		if left = takes - elapsed; left <= 0 {
			left = 3 * elapsed // nobody knows; the end of the call wakes the next machine anyway
		}
	}
	return max(left+takes*time.Duration(rank/s.limit), minWait)
}

// next returns when the next call under way is expected to end, although slots may be free.
func (s *slots) next(now time.Time) time.Duration { return s.after(max(s.free(), 0), now) }

// workers bounds the calls of all accounts that hold a worker. While half of the workers are held,
// an account may take one only if it holds none, and likewise for its lookups. So accounts whose
// clouds do not answer leave workers to those whose clouds do.
type workers struct {
	all int // 0: no bound

	mu    sync.Mutex
	held  map[holder]int
	total int
}

// holder is an account, with its steps or with its lookups.
type holder struct {
	account types.NamespacedName
	lookups bool
}

// may reports whether the account may take a worker.
func (w *workers) may(h holder) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.leaves(h)
}

// leaves reports the same. It needs the lock.
func (w *workers) leaves(h holder) bool {
	return w.all == 0 || w.total < max(1, w.all/2) || w.held[h] == 0
}

// take takes a worker if the account may.
func (w *workers) take(h holder) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.leaves(h) {
		return false
	}
	if w.held == nil {
		w.held = map[holder]int{}
	}
	w.held[h]++
	w.total++
	return true
}

// giveBack gives a worker back.
func (w *workers) giveBack(h holder) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.total--
	if w.held[h]--; w.held[h] == 0 {
		delete(w.held, h)
	}
}
