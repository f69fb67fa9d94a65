// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"math"
	"slices"
	"sync"
	"time"

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
	// firstCreate and firstLookup are how long a call is expected to take before one was measured,
	// and firstRun how long a create runs on.
	firstCreate = 2 * time.Second
	firstLookup = 250 * time.Millisecond
	firstRun    = 15 * time.Second
)

// slots bounds the calls under way, or the creates that run on after theirs, and predicts when one
// of them ends. After a call without an answer, it allows only one at a time until one is answered.
// Otherwise a cloud that does not answer would hold workers until its calls time out.
type slots struct {
	limit           int           // 0: none
	starts          []time.Time   // of the calls under way, the oldest first
	typical         time.Duration // how long a call takes
	unansweredSince time.Time     // since when calls get no answer; zero: they do
}

// check returns an error while a silent cloud is tried.
func (s *slots) check(what string) error {
	if s.unansweredSince.IsZero() || len(s.starts) == 0 {
		return nil
	}
	return cloud.Errorf(cloud.Unavailable, "%s have had no response since %s; they are tried one at a time", what,
		s.unansweredSince.UTC().Format(time.RFC3339))
}

func (s *slots) free() int {
	if s.limit == 0 {
		return math.MaxInt
	}
	return s.limit - len(s.starts)
}

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
// clouds do not answer leave workers to those whose clouds do. An account without others leaves
// one.
type workers struct {
	all int // 0: no bound

	mu       sync.Mutex
	accounts int
	total    int // how many are held
}

// count counts accounts that come or go.
func (w *workers) count(accounts int) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.accounts += accounts
}

// may reports whether an account may take a worker for a call of these slots.
func (w *workers) may(of *slots) bool {
	if w == nil {
		return true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.leaves(of)
}

// leaves reports the same. It needs the lock.
func (w *workers) leaves(of *slots) bool {
	most := w.all / 2
	if w.accounts == 1 {
		most = w.all - 1
	}
	return w.all == 0 || w.total < max(1, most) || len(of.starts) == 0
}

// take takes a worker if the account may.
func (w *workers) take(of *slots) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.leaves(of) {
		return false
	}
	w.total++
	return true
}

// giveBack gives a worker back.
func (w *workers) giveBack() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.total--
}
