// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"math"
	"slices"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
	"github.com/drover-io/drover/cloud"
)

const (
	// turnHeld is how long others wait for the owner of a turn that has come: about as long as a
	// busy work queue holds up a reconcile.
	turnHeld = 5 * time.Second
	// turnKept is how long after that an owner who comes at last gets the first token that there
	// is, before those whose turns have not come. One that has not come by then was most likely
	// deleted.
	turnKept = 10 * time.Minute
	// throttleHold is how long nothing is asked for when the cloud throttled and did not say for
	// how long.
	throttleHold = time.Second
	// recovery is how long a rate takes from nothing to the configured one. Clouds refill their own
	// buckets within a minute or so; a halved rate is whole again after half of it.
	recovery = time.Minute
	// rateFloor is the share of the configured rate below which throttling does not press it.
	rateFloor = 1.0 / 16
	// almost forgives what floating point loses on the way of a token.
	almost = 1e-6
)

// limiter is the rate limit of everything that the cloud throttles together: one bucket for each
// class.
type limiter struct {
	create, delete, read *bucket
}

func newLimiter(l cloud.Limits) *limiter {
	return &limiter{create: newBucket(below(l.Create)), delete: newBucket(below(l.Delete)), read: newBucket(below(l.Read))}
}

// below returns the limit that keeps calls within the cloud's own one, l: calls do not arrive in
// quite the pace in which they were sent, and one that comes early finds the token that is left out
// here.
func below(l cloud.Limit) cloud.Limit {
	return cloud.Limit{PerSecond: l.PerSecond, Burst: max(l.Burst-1, 1)}
}

func (l *limiter) of(class cloud.Class) *bucket {
	switch class {
	case cloud.ClassCreate:
		return l.create
	case cloud.ClassDelete:
		return l.delete
	default:
		return l.read
	}
}

func (l *limiter) configure(limits cloud.Limits) {
	l.create.configure(below(limits.Create))
	l.delete.configure(below(limits.Delete))
	l.read.configure(below(limits.Read))
}

// sharedLimiters holds the limiter of all accounts that have proved the same place: what the cloud
// throttles together. The largest limits that any of them asks for are in force, so that none of
// them slows another. Its zero value is ready for use.
type sharedLimiters struct {
	mu  sync.Mutex
	all map[string]*sharedLimiter // by cloud and place
}

type sharedLimiter struct {
	*limiter
	users map[types.NamespacedName]cloud.Limits
}

// join has an account share the limiter of its place.
func (s *sharedLimiters) join(a *Account) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[string]*sharedLimiter{}
	}
	key := a.cloud.Name + "|" + a.place.where()
	shared := s.all[key]
	if shared == nil {
		shared = &sharedLimiter{limiter: newLimiter(a.limits), users: map[types.NamespacedName]cloud.Limits{}}
		s.all[key] = shared
	}
	shared.users[a.key] = a.limits
	shared.agree()
	a.limiter.Store(shared.limiter)
}

// leave ends that.
func (s *sharedLimiters) leave(account types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, shared := range s.all {
		if _, ok := shared.users[account]; !ok {
			continue
		}
		if delete(shared.users, account); len(shared.users) == 0 {
			delete(s.all, key)
		} else {
			shared.agree()
		}
	}
}

// agree puts the largest of the users' limits in force.
func (s *sharedLimiter) agree() {
	var most cloud.Limits
	larger := func(a *cloud.Limit, b cloud.Limit) {
		a.PerSecond, a.Burst = max(a.PerSecond, b.PerSecond), max(a.Burst, b.Burst)
	}
	for _, l := range s.users {
		larger(&most.Create, l.Create)
		larger(&most.Delete, l.Delete)
		larger(&most.Read, l.Read)
	}
	s.configure(most)
}

// bucket is a token bucket with a queue in front. Whoever finds no token gets a place in the queue
// and is told when its turn will come; it comes back then, instead of asking again and again or
// being served in the order of its luck. A place is not a token: tokens are taken only by those who
// come, so the cloud never sees more than rate and burst.
type bucket struct {
	mu     sync.Mutex
	limit  cloud.Limit // as configured
	rate   float64     // in force: below limit.PerSecond for a while after throttling
	tokens float64     // from none to the burst
	at     time.Time   // of rate and tokens
	held   time.Time   // no token comes before
	halved time.Time   // when throttling last halved the rate
	queue  []*turn     // urgent ones first, each kind in the order of coming
}

// turn is a place in the queue.
type turn struct {
	key   string
	asked time.Time
	due   time.Time // when the owner was told to come
	// urgent turns are calls under way in the transport. Those in the create bucket belong to steps
	// that had a turn already and go before new ones, so that what was begun is finished.
	urgent bool
}

func newBucket(l cloud.Limit) *bucket {
	b := &bucket{}
	b.configure(l)
	b.tokens, b.at = float64(b.limit.Burst), time.Now()
	return b
}

// configure changes the limit. A cloud's row that forgot one gets the most prudent there is.
func (b *bucket) configure(l cloud.Limit) {
	if l.PerSecond <= 0 {
		l.PerSecond = 1
	}
	l.Burst = max(l.Burst, 1)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.limit == l {
		return
	}
	b.limit, b.rate = l, l.PerSecond
	b.tokens = min(b.tokens, float64(l.Burst))
}

// turn takes a token for key, or keeps a place for it and returns how long until its turn. waited
// is how long ago key asked first.
func (b *bucket) turn(key string) (after, waited time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	b.advance(now)
	i := slices.IndexFunc(b.queue, func(t *turn) bool { return !t.urgent && t.key == key })
	if i < 0 {
		i = len(b.queue)
		b.queue = append(b.queue, &turn{key: key, asked: now})
	}
	asked := b.queue[i].asked
	return b.take(i, now), now.Sub(asked)
}

// drop gives up key's place.
func (b *bucket) drop(key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.queue = slices.DeleteFunc(b.queue, func(t *turn) bool { return !t.urgent && t.key == key })
}

// wait takes a token, in the order of coming. It fails with *Queued when ctx will end before the
// turn comes, and with ctx's error when it ends meanwhile.
func (b *bucket) wait(ctx context.Context) (time.Duration, error) {
	mine := &turn{urgent: true, asked: time.Now()}
	for {
		if err := ctx.Err(); err != nil {
			b.leave(mine)
			return time.Since(mine.asked), err
		}
		after := b.ask(mine)
		if after == 0 {
			return time.Since(mine.asked), nil
		}
		if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < after {
			b.leave(mine)
			return time.Since(mine.asked), &cloud.Queued{After: after}
		}
		timer := time.NewTimer(after)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
}

func (b *bucket) ask(mine *turn) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	b.advance(now)
	i := slices.Index(b.queue, mine)
	if i < 0 {
		i = slices.IndexFunc(b.queue, func(t *turn) bool { return !t.urgent })
		if i < 0 {
			i = len(b.queue)
		}
		b.queue = slices.Insert(b.queue, i, mine)
	}
	return b.take(i, now)
}

func (b *bucket) leave(mine *turn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.queue = slices.DeleteFunc(b.queue, func(t *turn) bool { return t == mine })
}

// giveBack returns a token that was taken and not used.
func (b *bucket) giveBack() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tokens = min(b.tokens+1, float64(b.limit.Burst))
}

// throttled empties the bucket, holds it for retryAfter and halves its rate, which then recovers
// steadily. Calls that were under way together and are throttled together halve it once.
func (b *bucket) throttled(retryAfter time.Duration) {
	if retryAfter <= 0 {
		retryAfter = throttleHold
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	b.advance(now)
	b.tokens = 0
	if until := now.Add(retryAfter); until.After(b.held) {
		b.held = until
	}
	if now.Sub(b.halved) >= throttleHold {
		b.halved = now
		b.rate = max(b.rate/2, b.limit.PerSecond*rateFloor)
	}
}

// load is how many wait for their turn, and the share of the configured rate that is in force.
func (b *bucket) load() (queue int, share float64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.advance(time.Now())
	return len(b.queue), b.rate / b.limit.PerSecond
}

// take serves place i, or says when to come. Those ahead that are late are in no one's way: who was
// told to come now gets a token that is there, and the late ones get the next.
func (b *bucket) take(i int, now time.Time) time.Duration {
	t, need := b.queue[i], 1.0
	for _, ahead := range b.queue[:i] {
		if now.Sub(ahead.due) < turnHeld {
			need++
		}
	}
	if t.due.IsZero() {
		t.due = now.Add(b.until(need, now))
	}
	if b.tokens+almost >= need || (b.tokens+almost >= 1 && !now.Before(t.due)) {
		b.queue = slices.Delete(b.queue, i, i+1)
		b.tokens = max(b.tokens-1, 0)
		return 0
	}
	if !now.Before(t.due) {
		t.due = now.Add(max(b.until(need, now), time.Millisecond))
	}
	return t.due.Sub(now)
}

// advance brings tokens and rate to now, and forgets turns that no one came for.
func (b *bucket) advance(now time.Time) {
	b.queue = slices.DeleteFunc(b.queue, func(t *turn) bool {
		return !t.urgent && now.Sub(t.due) > turnKept
	})
	from := b.at
	if b.held.After(from) {
		from = b.held
	}
	b.at = now
	elapsed := now.Sub(from).Seconds()
	if elapsed <= 0 {
		return
	}
	rising := min(elapsed, (b.limit.PerSecond-b.rate)/b.slope())
	before := b.rate
	b.rate = min(b.rate+rising*b.slope(), b.limit.PerSecond)
	b.tokens += rising*(before+b.rate)/2 + (elapsed-rising)*b.limit.PerSecond
	b.tokens = min(b.tokens, float64(b.limit.Burst))
}

// until says how long it takes until there have been n tokens.
func (b *bucket) until(n float64, now time.Time) time.Duration {
	hold := max(b.held.Sub(now), 0)
	n -= b.tokens
	if n <= almost {
		return hold
	}
	full := b.limit.PerSecond
	rising := (full - b.rate) / b.slope()
	var seconds float64
	if risen := rising * (b.rate + full) / 2; n > risen {
		seconds = rising + (n-risen)/full
	} else {
		seconds = (math.Sqrt(b.rate*b.rate+2*b.slope()*n) - b.rate) / b.slope()
	}
	return hold + time.Duration(math.Ceil(seconds*float64(time.Second)))
}

// slope is how much a reduced rate gains in a second.
func (b *bucket) slope() float64 { return b.limit.PerSecond / recovery.Seconds() }

// limitsOf returns the cloud's limits with what the account says instead.
func limitsOf(defaults cloud.Limits, spec *infrav1.RateLimits) (cloud.Limits, error) {
	if spec == nil {
		return defaults, nil
	}
	for _, l := range []struct {
		name string
		from *infrav1.RateLimit
		to   *cloud.Limit
	}{
		{"create", spec.Create, &defaults.Create},
		{"delete", spec.Delete, &defaults.Delete},
		{"read", spec.Read, &defaults.Read},
	} {
		if l.from == nil {
			continue
		}
		perSecond, err := strconv.ParseFloat(l.from.PerSecond, 64)
		if err != nil || perSecond <= 0 || math.IsInf(perSecond, 0) || math.IsNaN(perSecond) {
			return cloud.Limits{}, cloud.Errorf(cloud.InvalidSpec, "rateLimits.%s.perSecond %q is not a positive number", l.name, l.from.PerSecond)
		}
		*l.to = cloud.Limit{PerSecond: perSecond, Burst: int(l.from.Burst)}
	}
	return defaults, nil
}
