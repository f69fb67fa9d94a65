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
// it holds a worker until it is answered.
//
// What may not go yet has a place in its account's lane, which the token of the machine keeps. The
// owner is told when to come back, and so need not poll. A place is not a permission: only an owner
// that comes back takes a token and a slot, so the cloud never sees more than rate and burst. The
// order is:
//  1. the calls of steps that are under way (wait);
//  2. steps of machines of which something was made before. They take no token here: most of them
//     only look, and the transport takes a token for each create that they send. They leave some
//     slots to others, so that steps without an end stop no machine;
//  3. other steps.
//
// Each kind is served in order of arrival within an account, and in turns over the accounts. A late
// owner holds up nobody for longer than turnGrace.
type admission struct {
	workers *workers

	mu     sync.Mutex
	bucket bucket
	lanes  map[types.NamespacedName]*lane
	turns  uint64 // counts the turns, to serve the lane first that was served least recently
}

// lane is what waits for one account, and what is under way.
type lane struct {
	own    bucket // the account's own limits
	served uint64 // the number of the lane's latest turn
	calls  []*waiter
	begun  []*waiter
	fresh  []*waiter
	// made holds the machines of which an earlier step made something.
	made    map[string]bool
	held    map[string]*turn // by Admit, until Ensure takes it
	steps   slots
	looking int // how many of these steps are those of begun machines
	lookups slots
	// heldUntil is when new machines go on, after the driver has sent one back: the cloud has no
	// room for a create now, for example because too many of them run.
	heldUntil time.Time
}

// waiter is a place in a lane. It has no token if it is that of a call.
type waiter struct {
	token   string
	arrived time.Time
	due     time.Time // when the owner is to come back; zero: it was not told yet
}

// turn is the permission for one step. It ends with the step.
type turn struct {
	from    *admission
	account types.NamespacedName
	lane    *lane
	token   string
	began   time.Time
	waited  time.Duration
	prepaid bool // it holds a token of the bucket
}

func newAdmission(l cloud.Limit, w *workers) *admission {
	return &admission{workers: w, bucket: newBucket(l), lanes: map[types.NamespacedName]*lane{}}
}

// configure sets what the cloud allows the accounts together.
func (a *admission) configure(l cloud.Limit) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.bucket.configure(l)
}

// setOwn sets the limit of one account.
func (a *admission) setOwn(account types.NamespacedName, l cloud.Limit) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lane(account).own.configure(l)
}

// leave forgets an account.
func (a *admission) leave(account types.NamespacedName) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.lanes, account)
}

// lane returns the account's lane. It needs the lock.
func (a *admission) lane(account types.NamespacedName) *lane {
	l := a.lanes[account]
	if l == nil {
		l = &lane{own: newBucket(a.bucket.limit), made: map[string]bool{}, held: map[string]*turn{},
			steps: slots{limit: maxConcurrentCreates, typical: firstCreate}, lookups: slots{limit: maxConcurrentLookups, typical: firstLookup}}
		a.lanes[account] = l
	}
	return l
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
	prepaid := !first && !l.made[token]
	queue, other := &l.fresh, &l.begun
	if !prepaid {
		queue, other = other, queue
	}
	*other = without(*other, token)
	i := slices.IndexFunc(*queue, func(p *waiter) bool { return p.token == token })
	if i < 0 {
		i = len(*queue)
		*queue = append(*queue, &waiter{token: token, arrived: now})
	}
	p := (*queue)[i]
	if a.after(l, prepaid, i, now, p.isDue(now) && !l.wasHeld(now)) > 0 {
		if p.due.IsZero() || p.isDue(now) {
			p.due = now.Add(max(a.after(l, prepaid, i, now, false), l.patience(p, now), minWait))
		}
		return nil, &cloud.Queued{After: p.due.Sub(now)}
	}
	if !a.workers.take(holder{account, false}) {
		p.due = now.Add(l.steps.next(now))
		return nil, &cloud.Queued{After: p.due.Sub(now)}
	}
	*queue = slices.Delete(*queue, i, i+1)
	if prepaid {
		a.take(l)
	} else {
		l.looking++
	}
	l.steps.begin(now)
	return &turn{from: a, account: account, lane: l, token: token, began: now, waited: now.Sub(p.arrived), prepaid: prepaid}, nil
}

// result is what became of a turn.
type result struct {
	// asked is when the driver was called; zero: it was not.
	asked time.Time
	// unused means that no create was sent, sent that one was, and made that it may have made
	// something.
	unused, sent, made bool
	// sentBack is after which time the driver wants to be asked again, if it did not ask the cloud.
	sentBack time.Duration
	// done means that the machine needs no further step, answered that the cloud was not silent,
	// and throttled that it throttled the step.
	done, answered, throttled bool
}

// end ends the turn.
func (t *turn) end(r result) {
	a, l := t.from, t.lane
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	a.advance(l, now)
	l.steps.end(t.began)
	a.workers.giveBack(holder{t.account, false})
	if !t.prepaid {
		l.looking--
	} else if r.unused {
		a.bucket.giveBack()
		l.own.giveBack()
	}
	if t.prepaid && r.unused && r.sentBack > 0 {
		l.heldUntil = now.Add(r.sentBack)
		t.keepPlace(l.heldUntil)
		return
	}
	if r.asked.IsZero() {
		if t.prepaid {
			t.keepPlace(now.Add(-turnGrace)) // it holds up nobody
		}
		return
	}
	l.steps.record(r.asked, now, r.answered)
	switch {
	case r.done:
		delete(l.made, t.token)
	case r.made:
		l.made[t.token] = true
	case r.sent && !r.throttled: // a step that the cloud refuses goes before nobody
		delete(l.made, t.token)
	}
}

// keepPlace puts the machine back to its place in the lane. It needs the lock.
func (t *turn) keepPlace(due time.Time) {
	back := &waiter{token: t.token, arrived: t.began.Add(-t.waited), due: due}
	queue := without(t.lane.fresh, t.token)
	i := slices.IndexFunc(queue, func(p *waiter) bool { return p.arrived.After(back.arrived) })
	if i < 0 {
		i = len(queue)
	}
	t.lane.fresh = slices.Insert(queue, i, back)
}

// hold keeps the turn until claim or release.
func (t *turn) hold() {
	t.from.mu.Lock()
	defer t.from.mu.Unlock()
	t.lane.held[t.token] = t
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

// release reports whether the turn was still held. The caller ends it then.
func (t *turn) release() bool {
	t.from.mu.Lock()
	defer t.from.mu.Unlock()
	held := t.lane.held[t.token] == t
	if held {
		delete(t.lane.held, t.token)
	}
	return held
}

// drop removes a machine's place, and forgets that it was begun.
func (a *admission) drop(account types.NamespacedName, token string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	l := a.lane(account)
	l.begun, l.fresh = without(l.begun, token), without(l.fresh, token)
	delete(l.made, token)
}

// lookup takes a slot for a call that needs no place. It returns what ends the call, or why it
// can't go.
func (a *admission) lookup(account types.NamespacedName) (end func(answered bool), err error) {
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
	if !a.workers.take(holder{account, true}) {
		return nil, &cloud.Queued{After: s.next(began)}
	}
	s.begin(began)
	return func(answered bool) {
		a.mu.Lock()
		defer a.mu.Unlock()
		s.end(began)
		a.workers.giveBack(holder{account, true})
		s.record(began, time.Now(), answered)
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
	if !l.steps.unansweredSince.IsZero() || l.steps.free() <= 0 || !a.workers.may(holder{account, false}) {
		return "", 0 // the machines come by themselves, or the end of another step looks again
	}
	for _, prepaid := range []bool{false, true} {
		queue := l.queue(prepaid)
		i := slices.IndexFunc(queue, func(p *waiter) bool { return !p.isDue(now) })
		if i < 0 {
			continue
		}
		p := queue[i]
		if after = a.after(l, prepaid, i, now, false); after == 0 {
			p.due = now
			return p.token, 0
		}
		if after = max(after, minWait); prepaid && now.Add(after).Before(p.due) {
			return "", after
		}
	}
	return "", 0
}

// wait takes a token for a call under way. It returns *Queued if ctx will end before the turn
// comes, and ctx's error if ctx ends while it waits.
func (a *admission) wait(ctx context.Context, account types.NamespacedName) (time.Duration, error) {
	mine := &waiter{arrived: time.Now()}
	for {
		if err := ctx.Err(); err != nil {
			a.cancel(account, mine)
			return time.Since(mine.arrived), err
		}
		after := a.call(account, mine)
		if after == 0 {
			return time.Since(mine.arrived), nil
		}
		if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < after {
			a.cancel(account, mine)
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
func (a *admission) call(account types.NamespacedName, mine *waiter) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	l := a.lane(account)
	a.advance(l, now)
	i := slices.Index(l.calls, mine)
	if i < 0 {
		i = len(l.calls)
		l.calls = append(l.calls, mine)
	}
	need := 1 + i
	for _, other := range a.lanes {
		if other != l {
			need += min(len(other.calls), i+other.before(l))
		}
	}
	if after := a.untilTokens(l, need, 1+i, now); after > 0 {
		return after
	}
	l.calls = slices.Delete(l.calls, i, i+1)
	a.take(l)
	return 0
}

func (a *admission) cancel(account types.NamespacedName, mine *waiter) {
	a.mu.Lock()
	defer a.mu.Unlock()
	l := a.lane(account)
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
func (a *admission) take(l *lane) {
	a.bucket.take()
	l.own.take()
	a.turns++
	l.served = a.turns
}

// queue returns the queue of the machines that need a token, or of the others.
func (l *lane) queue(prepaid bool) []*waiter {
	if prepaid {
		return l.fresh
	}
	return l.begun
}

// after returns how long until the i-th place of one of the lane's queues may go; 0: now. onlyDue
// means that of those ahead, only those count whose time has come.
func (a *admission) after(l *lane, prepaid bool, i int, now time.Time, onlyDue bool) time.Duration {
	ahead := count(l.queue(prepaid)[:i], now, onlyDue, i)
	if !prepaid {
		if l.looking+ahead >= maxConcurrentLooks {
			return l.steps.after(ahead+maxConcurrentCreates, now)
		}
		return l.steps.after(ahead, now)
	}
	looks := count(l.begun, now, onlyDue, max(0, maxConcurrentLooks-l.looking))
	need := 1 + ahead
	for _, other := range a.lanes {
		need += len(other.calls)
		if other == l {
			continue
		}
		most := int(float64(ahead)*a.share(other)) + other.before(l)
		if onlyDue {
			most = min(most, max(other.steps.free(), 0))
		} else if !other.steps.unansweredSince.IsZero() {
			most = min(most, 1)
		}
		need += count(other.fresh, now, onlyDue, most)
	}
	return max(l.heldUntil.Sub(now), l.steps.after(ahead+looks, now), a.untilTokens(l, need, 1+ahead+len(l.calls), now))
}

// wasHeld reports whether the lane was held lately. Then what machines were told says little, and
// only their order counts.
func (l *lane) wasHeld(now time.Time) bool {
	return !l.heldUntil.IsZero() && now.Sub(l.heldUntil) < maxRetryAfter
}

// patience returns how long a machine waits at least in a lane that is held. Nobody knows for how
// long, so a machine that has waited for long waits for longer. The machine at the front asks when
// the driver wants it, and if it has its turn, the next one is woken.
func (l *lane) patience(p *waiter, now time.Time) time.Duration {
	if !l.heldUntil.After(now) {
		return 0
	}
	return now.Sub(p.arrived) / 2
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

// before returns 1 if the lane is to be served before the other one, else 0.
func (l *lane) before(other *lane) int {
	if l.served < other.served {
		return 1
	}
	return 0
}

func (p *waiter) isDue(now time.Time) bool { return !p.due.IsZero() && !now.Before(p.due) }

// isLate reports whether the others wait no longer for the owner.
func (p *waiter) isLate(now time.Time) bool { return p.isDue(now) && now.Sub(p.due) >= turnGrace }

// count counts, up to most, the places whose owners are not late.
func count(queue []*waiter, now time.Time, onlyDue bool, most int) (n int) {
	for i := 0; i < len(queue) && n < most; i++ {
		if p := queue[i]; !p.isLate(now) && (!onlyDue || p.isDue(now)) {
			n++
		}
	}
	return n
}

func without(queue []*waiter, token string) []*waiter {
	return slices.DeleteFunc(queue, func(p *waiter) bool { return p.token == token })
}
