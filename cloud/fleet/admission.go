// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/drover-io/drover/cloud"
)

const (
	// turnGrace is how long others wait for the owner of a turn that has come: about as long as a
	// work queue delays a reconcile.
	turnGrace = time.Second
	// turnTTL is how long a late owner keeps its place. An owner that has not come by then was most
	// likely deleted.
	turnTTL = 10 * time.Minute
	// minWait is the shortest time after which an owner is to come back.
	minWait = 10 * time.Millisecond
)

// admission answers one question for all accounts that the cloud throttles together, and for one
// class of calls: may this call go now?
//
// A call needs a token of the bucket, which holds what the cloud allows the accounts together, and
// one of its account's own, which holds what the account's limits allow. A step of a machine
// (Ensure) also needs one of the account's slots, and one of the workers that all accounts share:
// it holds a worker until it is answered. Where the cloud works on a create after it has accepted
// it, the first step needs two more slots, one of the accounts together and one of its own, see
// cloud.Limits.AtOnce. The machine's token keeps them until its record shows that the cloud has
// ended that work.
//
// What may not go yet has a place in its account's lane, which the token of the machine keeps. The
// owner is told when to come back, and so need not poll. A place is not a permission: only an owner
// that comes back takes a token and its slots, so the cloud never sees more than rate and burst.
// The order is:
//  1. the calls of steps that are under way (wait);
//  2. steps of machines of which something was made before. They take no token here: most of them
//     only look, and the transport takes a token for each create that they send. They leave some
//     slots to others, so that steps without an end stop no machine;
//  3. other steps.
//
// Each kind is served in order of arrival within an account, and in turns over the accounts. A late
// owner holds up nobody for longer than turnGrace.
type admission struct {
	workers *workers // nil: its calls hold no worker

	mu     sync.Mutex
	bucket bucket
	atOnce slots // for the creates that run at once
	lanes  map[types.NamespacedName]*lane
	round  int // the latest of the lanes' rounds: each lane that waits has one turn in each round
	joined int // counts the accounts
}

// lane is what waits for one account, and what is under way.
type lane struct {
	own    bucket // the account's own limits
	atOnce slots  // likewise
	wake   func() // makes the account look for machines whose turn has come
	left   bool   // the account has left, and keeps nothing
	round  int    // of the lane's next turn
	order  int    // of the lanes in a round
	calls  []*waiter
	begun  []*waiter
	fresh  []*waiter
	// made holds the machines of which an earlier step made something, and running those that were
	// made and on which the cloud still works. Each keeps the slots that it took at the given time.
	made, running map[string]time.Time
	held          map[string]*turn // by Admit, until Ensure takes it
	steps         slots
	looking       int // how many of these steps are those of begun machines
	lookups       slots
	// sentBack is set if the driver has sent back the latest new machine, because the cloud would
	// refuse a call now. The next one goes at heldUntil. They go one by one, hold apart, until one
	// is not sent back. For a while after that, they go strictly in order.
	sentBack  bool
	hold      time.Duration
	heldUntil time.Time
}

// waiter is a place in a lane. It has no token if it is that of a call.
type waiter struct {
	token   string
	arrived time.Time
	due     time.Time // when the owner is to come back; zero: it was not told yet
}

func newAdmission(l cloud.Limit, w *workers) *admission {
	return &admission{workers: w, bucket: newBucket(l), atOnce: slots{typical: firstRun}, lanes: map[types.NamespacedName]*lane{}}
}

// join adds an account, or changes its limits: its rate, and how many of its creates may run at
// once. The accounts together get the largest limits of any of them, so that none slows another.
func (a *admission) join(account types.NamespacedName, own cloud.Limit, atOnce int, wake func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	l := a.lanes[account]
	if l == nil {
		l = a.lane(account)
		a.joined++
		l.left, l.order, l.round = false, a.joined, a.round
		a.lanes[account] = l
		a.workers.count(1)
	}
	l.own.configure(own, time.Now())
	l.atOnce.limit, l.wake = atOnce, wake
	a.applyLargest()
}

// leave forgets an account, and reports whether none is left.
func (a *admission) leave(account types.NamespacedName) (empty bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	l := a.lanes[account]
	if l == nil {
		return len(a.lanes) == 0
	}
	for _, all := range []map[string]time.Time{l.made, l.running} {
		for _, since := range all {
			a.giveBackSlots(l, since)
		}
	}
	delete(a.lanes, account)
	l.left = true
	a.workers.count(-1)
	a.applyLargest()
	a.wakeAll()
	return len(a.lanes) == 0
}

// applyLargest applies the largest of the accounts' limits. It needs the lock.
func (a *admission) applyLargest() {
	var most cloud.Limit
	a.atOnce.limit = 0
	for _, l := range a.lanes {
		most.PerSecond, most.Burst = max(most.PerSecond, l.own.limit.PerSecond), max(most.Burst, l.own.limit.Burst)
		a.atOnce.limit = max(a.atOnce.limit, l.atOnce.limit)
	}
	if len(a.lanes) > 0 {
		a.bucket.configure(most, time.Now())
	}
}

// lane returns the account's lane. An account that has not joined, or has left, gets one that is
// not kept. It needs the lock.
func (a *admission) lane(account types.NamespacedName) *lane {
	if l := a.lanes[account]; l != nil {
		return l
	}
	return &lane{left: true, own: newBucket(a.bucket.limit), made: map[string]time.Time{}, running: map[string]time.Time{},
		held: map[string]*turn{},
		wake: func() {}, atOnce: slots{typical: firstRun},
		steps: slots{limit: maxConcurrentCreates, typical: firstCreate}, lookups: slots{limit: maxConcurrentLookups, typical: firstLookup}}
}

// admit returns the turn of a machine's step if it may go now. Otherwise it keeps a place for the
// token, and returns *Queued with the time after which to come back. first means that the step goes
// before new machines, and that the transport takes its tokens.
func (a *admission) admit(account types.NamespacedName, token string, first bool) (*turn, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	l := a.lane(account)
	if err := l.steps.check("creates"); err != nil {
		return nil, err
	}
	a.advance(l, now)
	_, begun := l.made[token]
	fresh := !first && !begun
	queue, other := &l.begun, &l.fresh
	if fresh {
		queue, other = other, queue
	}
	*other = without(*other, token)
	i := slices.IndexFunc(*queue, func(p *waiter) bool { return p.token == token })
	if i < 0 {
		i = len(*queue)
		*queue = append(*queue, &waiter{token: token, arrived: now})
	}
	p := (*queue)[i]
	if a.after(l, fresh, i, now, true) > 0 {
		if p.due.IsZero() || p.isDue(now) {
			p.due = now.Add(max(a.after(l, fresh, i, now, false), minWait))
		}
		a.wakeAll() // those that go before
		return nil, &cloud.Queued{After: p.due.Sub(now)}
	}
	if !a.workers.take(&l.steps) {
		p.due = now.Add(l.steps.next(now))
		return nil, &cloud.Queued{After: p.due.Sub(now)}
	}
	*queue = slices.Delete(*queue, i, i+1)
	l.steps.begin(now)
	if fresh {
		a.take(l, now)
		l.atOnce.begin(now)
		a.atOnce.begin(now)
	} else {
		l.looking++
	}
	return &turn{from: a, lane: l, token: token, began: now, waited: now.Sub(p.arrived), fresh: fresh, unused: fresh}, nil
}

// wakeAll makes all accounts look for machines whose turn has come. It needs the lock.
func (a *admission) wakeAll() {
	for _, l := range a.lanes {
		if len(l.begun)+len(l.fresh) > 0 {
			l.wake()
		}
	}
}

// claim returns the token's held turn, or nil.
func (a *admission) claim(account types.NamespacedName, token string) *turn {
	a.mu.Lock()
	defer a.mu.Unlock()
	l := a.lane(account)
	t := l.held[token]
	delete(l.held, token)
	return t
}

// drop removes a machine's place, and forgets that it was begun.
func (a *admission) drop(account types.NamespacedName, token string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	l := a.lane(account)
	l.begun, l.fresh = without(l.begun, token), without(l.fresh, token)
	if since, begun := l.made[token]; begun {
		delete(l.made, token)
		a.giveBackSlots(l, since)
	}
	a.wakeAll()
}

// lookup takes a slot for a call that needs no place. It returns what ends the call, or why it
// can't go.
func (a *admission) lookup(account types.NamespacedName) (end func(result), err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	began := time.Now()
	s := &a.lane(account).lookups
	if err := s.check("lookups"); err != nil {
		return nil, err
	}
	if after := s.after(0, began); after > 0 {
		return nil, &cloud.Queued{After: after}
	}
	if !a.workers.take(s) {
		return nil, &cloud.Queued{After: s.next(began)}
	}
	s.begin(began)
	return func(r result) {
		a.mu.Lock()
		defer a.mu.Unlock()
		s.end(began)
		a.workers.giveBack()
		s.record(began, time.Now(), r.answered)
	}, nil
}

// next returns the machine that may go now and was not told so. If there is none, it returns how
// long until one may go, or 0 if none waits or if its owner comes by itself.
func (a *admission) next(account types.NamespacedName) (token string, after time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	l := a.lane(account)
	a.advance(l, now)
	if !l.steps.unansweredSince.IsZero() || l.steps.free() <= 0 || !a.workers.may(&l.steps) {
		return "", 0 // the machines come by themselves, or the end of another step looks again
	}
	for _, fresh := range []bool{false, true} {
		queue := l.queue(fresh)
		i := slices.IndexFunc(queue, func(p *waiter) bool { return !p.isDue(now) })
		if i < 0 {
			continue
		}
		p := queue[i]
		if after = a.after(l, fresh, i, now, true); after == 0 {
			p.due = now
			return p.token, 0
		}
		if after = max(after, minWait); fresh && now.Add(after).Before(p.due) {
			return "", after
		}
	}
	return "", 0
}

// wait takes a token for a call under way. It returns *Queued if ctx will end before the turn
// comes, and ctx's error if ctx ends while it waits.
func (a *admission) wait(ctx context.Context, account types.NamespacedName) (time.Duration, error) {
	a.mu.Lock()
	l := a.lane(account)
	a.mu.Unlock()
	mine := &waiter{arrived: time.Now()}
	defer a.cancel(l, mine)
	for {
		if err := ctx.Err(); err != nil {
			return time.Since(mine.arrived), err
		}
		after := a.call(l, mine)
		if after == 0 {
			return time.Since(mine.arrived), nil
		}
		if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < after {
			return time.Since(mine.arrived), &cloud.Queued{After: after}
		}
		timer := time.NewTimer(after)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
}

// call takes a token for a call, or keeps its place and returns when to ask again.
func (a *admission) call(l *lane, mine *waiter) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	a.advance(l, now)
	i := slices.Index(l.calls, mine)
	if i < 0 {
		i = len(l.calls)
		l.calls = append(l.calls, mine)
	}
	need := 1 + i
	for _, other := range a.lanes {
		if other != l {
			need += min(len(other.calls), a.before(l, other, i))
		}
	}
	if after := a.untilTokens(l, need, 1+i, now); after > 0 {
		return after
	}
	l.calls = slices.Delete(l.calls, i, i+1)
	a.take(l, now)
	return 0
}

func (a *admission) cancel(l *lane, mine *waiter) {
	a.mu.Lock()
	defer a.mu.Unlock()
	l.calls = slices.DeleteFunc(l.calls, func(p *waiter) bool { return p == mine })
}

func (a *admission) throttled(retryAfter time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.bucket.throttled(retryAfter, time.Now())
}

// load returns how many callers wait, and the share of the configured rate in force.
func (a *admission) load() (waiting int, share float64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	for _, l := range a.lanes {
		a.advance(l, now)
		waiting += len(l.calls) + len(l.begun) + len(l.fresh)
	}
	a.bucket.advance(now)
	return waiting, a.bucket.rate / a.bucket.limit.PerSecond
}

// advance brings the buckets to now, and drops the places of owners that did not come.
func (a *admission) advance(l *lane, now time.Time) {
	a.bucket.advance(now)
	l.own.advance(now)
	for _, queue := range []*[]*waiter{&l.begun, &l.fresh} {
		for len(*queue) > 0 && !(*queue)[0].due.IsZero() && now.Sub((*queue)[0].due) > turnTTL {
			*queue = slices.Delete(*queue, 0, 1)
		}
	}
}

// take takes a token for the lane, whose turn it was.
func (a *admission) take(l *lane, now time.Time) {
	a.bucket.take()
	l.own.take()
	l.round++
	a.round = max(a.round, l.round)
	for _, other := range a.lanes {
		if other != l && len(other.calls) == 0 && (count(other.fresh, now, 1) == 0 || a.room(other, now) == 0) {
			other.round = max(other.round, l.round-1) // it does not want the turns that it misses
		}
	}
}

// queue returns the queue of the machines that need a token, or of the others.
func (l *lane) queue(fresh bool) []*waiter {
	if fresh {
		return l.fresh
	}
	return l.begun
}

// after returns how long until the i-th place of one of the lane's queues may go; 0: now. It counts
// all that go before. If it decides whether the place may go now, it leaves out those of other
// accounts that can't go now; otherwise, they may go by then.
func (a *admission) after(l *lane, fresh bool, i int, now time.Time, decides bool) time.Duration {
	ahead := count(l.queue(fresh)[:i], now, i)
	if !fresh {
		if l.looking+ahead >= maxConcurrentLooks {
			return l.steps.after(ahead+maxConcurrentCreates, now)
		}
		return l.steps.after(ahead, now)
	}
	calls, others := 0, 0
	for _, other := range a.lanes {
		calls += len(other.calls)
		if other == l {
			continue
		}
		most := a.before(l, other, ahead)
		if decides {
			most = min(most, a.room(other, now))
		} else if !other.steps.unansweredSince.IsZero() {
			most = min(most, 1)
		}
		others += count(other.fresh, now, most)
	}
	looks := count(l.begun, now, max(0, maxConcurrentLooks-l.looking))
	return max(l.untilHoldEnds(ahead, now), l.steps.after(ahead+looks, now), l.atOnce.after(ahead, now), a.atOnce.after(ahead+others, now),
		a.untilTokens(l, 1+ahead+others+calls, 1+ahead+len(l.calls), now))
}

// room returns how many new machines of the lane could go now if they were the only ones.
func (a *admission) room(l *lane, now time.Time) int {
	l.own.advance(now)
	if l.untilHoldEnds(0, now) > 0 || l.steps.check("") != nil || !a.workers.may(&l.steps) {
		return 0
	}
	most := min(l.steps.free(), l.atOnce.free(), int(l.own.tokens+epsilon))
	if !l.steps.unansweredSince.IsZero() {
		most = min(most, 1)
	}
	return max(0, most)
}

// untilHoldEnds returns how long the lane holds a new machine with so many ahead.
func (l *lane) untilHoldEnds(ahead int, now time.Time) time.Duration {
	if l.sentBack {
		ahead += len(l.steps.starts) - l.looking
	} else if now.Sub(l.heldUntil) >= 2*l.hold {
		return 0
	}
	return max(l.heldUntil.Sub(now), 0) + min(time.Duration(ahead)*l.hold, maxRetryAfter)
}

// untilTokens returns how long until the bucket has need tokens, and the lane's own one has own.
func (a *admission) untilTokens(l *lane, need, own int, now time.Time) time.Duration {
	return max(a.bucket.timeUntil(float64(need), now), l.own.timeUntil(float64(own), now))
}

// share returns how many turns the lane can take for each turn of another one: less than one if its
// own limit is below its part.
func (a *admission) share(l *lane) float64 {
	return min(1, l.own.limit.PerSecond*float64(len(a.lanes))/a.bucket.limit.PerSecond)
}

// before returns how many turns the other lane has before the lane's next one but this many.
func (a *admission) before(l, other *lane, ahead int) int {
	rounds := l.round - other.round
	if other.order < l.order {
		rounds++
	}
	return max(0, rounds+int(float64(ahead)*a.share(other)))
}

func (p *waiter) isDue(now time.Time) bool { return !p.due.IsZero() && !now.Before(p.due) }

// isLate reports whether the others wait no longer for the owner.
func (p *waiter) isLate(now time.Time) bool { return p.isDue(now) && now.Sub(p.due) >= turnGrace }

// count counts, up to most, the places whose owners are not late.
func count(queue []*waiter, now time.Time, most int) (n int) {
	for i := 0; i < len(queue) && n < most; i++ {
		if !queue[i].isLate(now) {
			n++
		}
	}
	return n
}

func without(queue []*waiter, token string) []*waiter {
	return slices.DeleteFunc(queue, func(p *waiter) bool { return p.token == token })
}
