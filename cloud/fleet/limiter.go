// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"math"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
)

const (
	// defaultThrottle is how long no call is made if the cloud throttles and does not say for how
	// long.
	defaultThrottle = time.Second
	// recoveryTime is how long a rate takes from zero to the configured one. Clouds refill their
	// own buckets within about a minute. A halved rate recovers in half of that time.
	recoveryTime = time.Minute
	// minRateShare is the smallest share of the configured rate to which throttling reduces it.
	minRateShare = 1.0 / 16
	// epsilon is the tolerance for rounding errors in token counts.
	epsilon = 1e-6
)

// limiter is the rate limit for all calls that the cloud throttles together: one admission for each
// class.
type limiter struct {
	create, delete, read *admission
}

func newLimiter(l cloud.Limits, w *workers) *limiter {
	return &limiter{create: newAdmission(withHeadroom(l.Create), w), delete: newAdmission(withHeadroom(l.Delete), nil),
		read: newAdmission(withHeadroom(l.Read), nil)}
}

// withHeadroom returns a limit that keeps calls within l, the cloud's own limit. Calls arrive not
// exactly at the pace in which they were sent: one token is left out for those that arrive early.
func withHeadroom(l cloud.Limit) cloud.Limit {
	return cloud.Limit{PerSecond: l.PerSecond, Burst: max(l.Burst-1, 1)}
}

func (l *limiter) of(class cloud.Class) *admission {
	switch class {
	case cloud.ClassCreate:
		return l.create
	case cloud.ClassDelete:
		return l.delete
	default:
		return l.read
	}
}

// join adds an account, or changes its limits.
func (l *limiter) join(account types.NamespacedName, limits cloud.Limits, wake func()) {
	l.create.join(account, withHeadroom(limits.Create), limits.AtOnce, wake)
	l.delete.join(account, withHeadroom(limits.Delete), 0, wake)
	l.read.join(account, withHeadroom(limits.Read), 0, wake)
}

// leave forgets an account, and reports whether none is left.
func (l *limiter) leave(account types.NamespacedName) (empty bool) {
	for _, a := range []*admission{l.create, l.delete, l.read} {
		empty = a.leave(account)
	}
	return empty
}

// limiters holds one limiter for all accounts that the cloud throttles together. The zero value is
// ready for use.
type limiters struct {
	workers workers

	mu  sync.Mutex
	all map[limiterKey]*limiter
}

// limiterKey tells which accounts a cloud throttles together: those that have proved the same place
// to the same endpoint.
type limiterKey struct {
	cloud, place string
	// endpoint and namespace are empty at the cloud's own endpoints. Another endpoint may claim to
	// be any place, and throttles as it likes: that concerns the tenant who chose it, and nobody
	// else.
	endpoint, namespace string
}

// limiterKeyOf returns the key of an account, with the place that it has proved.
func limiterKeyOf(a *Account) limiterKey {
	a.place.mu.Lock()
	key := limiterKey{cloud: a.cloud.Name, place: a.place.proved}
	a.place.mu.Unlock()
	if a.cloud.Endpoint == nil {
		key.namespace = a.key.Namespace
	} else if key.endpoint = a.cloud.Endpoint(&a.config.Spec); key.endpoint != "" {
		key.namespace = a.key.Namespace
	}
	return key
}

// join makes an account share the limiter of its key, and leave that of an earlier key.
func (s *limiters) join(a *Account) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := limiterKeyOf(a)
	s.leaveAllBut(key, a.key)
	if s.all == nil {
		s.all = map[limiterKey]*limiter{}
	}
	if s.all[key] == nil {
		s.all[key] = newLimiter(a.settings.Load().limits, &s.workers)
	}
	s.all[key].join(a.key, a.settings.Load().limits, a.wakeTurns)
	a.limiter.Store(s.all[key])
}

// adjust applies an account's new limits, wherever it is.
func (s *limiters) adjust(a *Account) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a.limiter.Load().join(a.key, a.settings.Load().limits, a.wakeTurns)
}

// leave removes an account from its limiter.
func (s *limiters) leave(account types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leaveAllBut(limiterKey{}, account)
}

// leaveAllBut removes an account from each limiter but one. It needs the lock.
func (s *limiters) leaveAllBut(kept limiterKey, account types.NamespacedName) {
	for key, l := range s.all {
		if key != kept && l.leave(account) {
			delete(s.all, key)
		}
	}
}

// bucket is a token bucket whose rate falls when the cloud throttles, and recovers. Its methods
// need the lock of the admission that it belongs to.
type bucket struct {
	limit     cloud.Limit // as configured
	rate      float64     // in force: below limit.PerSecond for a while after throttling
	tokens    float64     // 0 to the burst
	updatedAt time.Time   // when rate and tokens were computed
	heldUntil time.Time   // no new tokens before this time
	halvedAt  time.Time   // when throttling last halved the rate
}

func newBucket(l cloud.Limit) bucket {
	var b bucket
	b.configure(l, time.Now())
	b.tokens = float64(b.limit.Burst)
	return b
}

// configure changes the limit from now on. A limit that a cloud's row lacks becomes the lowest: 1
// per second. What throttling has left of the rate stays, and recovers as before.
func (b *bucket) configure(l cloud.Limit, now time.Time) {
	if l.PerSecond <= 0 {
		l.PerSecond = 1
	}
	l.Burst = max(l.Burst, 1)
	if b.limit == l {
		return
	}
	share := 1.0
	if b.limit.PerSecond > 0 {
		b.advance(now)
		share = b.rate / b.limit.PerSecond
	}
	b.limit, b.rate, b.updatedAt = l, l.PerSecond*share, now
	b.tokens = min(b.tokens, float64(l.Burst))
}

// take takes a token that is there.
func (b *bucket) take() { b.tokens = max(b.tokens-1, 0) }

// giveBack returns a token that was taken but not used.
func (b *bucket) giveBack() { b.tokens = min(b.tokens+1, float64(b.limit.Burst)) }

// throttled empties the bucket, holds it for retryAfter, and halves its rate, which then recovers
// steadily. Calls that are throttled together halve it once.
func (b *bucket) throttled(retryAfter time.Duration, now time.Time) {
	if retryAfter <= 0 {
		retryAfter = defaultThrottle
	}
	b.advance(now)
	b.tokens = 0
	if until := now.Add(retryAfter); until.After(b.heldUntil) {
		b.heldUntil = until
	}
	if now.Sub(b.halvedAt) >= defaultThrottle {
		b.halvedAt = now
		b.rate = max(b.rate/2, b.limit.PerSecond*minRateShare)
	}
}

// advance brings tokens and rate to now.
func (b *bucket) advance(now time.Time) {
	from := b.updatedAt
	if b.heldUntil.After(from) {
		from = b.heldUntil
	}
	b.updatedAt = now
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

// timeUntil returns how long it takes until n tokens are available, with those that are there now.
func (b *bucket) timeUntil(n float64, now time.Time) time.Duration {
	hold := max(b.heldUntil.Sub(now), 0)
	n -= b.tokens
	if n <= epsilon {
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

// slope returns how much a reduced rate gains per second.
func (b *bucket) slope() float64 { return b.limit.PerSecond / recoveryTime.Seconds() }

// settings are what an account's users set that its driver is not made from.
type settings struct {
	limits    cloud.Limits
	inventory infrav1.InventorySpec
}

func settingsOf(c cloud.Cloud, spec *infrav1.DroverAccountSpec) (settings, error) {
	limits, err := limitsOf(c.Limits, spec.RateLimits)
	return settings{limits, spec.Inventory}, err
}

// limitsOf returns the cloud's limits, overridden by those of the account. As many creates may run
// at once as may be sent at once.
func limitsOf(defaults cloud.Limits, spec *infrav1.RateLimits) (cloud.Limits, error) {
	if spec == nil {
		return defaults, nil
	}
	for _, l := range []struct {
		name string
		from infrav1.RateLimit
		to   *cloud.Limit
	}{
		{"create", spec.Create, &defaults.Create},
		{"delete", spec.Delete, &defaults.Delete},
		{"read", spec.Read, &defaults.Read},
	} {
		if l.from == (infrav1.RateLimit{}) {
			continue
		}
		perSecond, err := strconv.ParseFloat(l.from.PerSecond, 64)
		if err != nil || perSecond <= 0 || math.IsInf(perSecond, 0) || math.IsNaN(perSecond) {
			return cloud.Limits{}, cloud.Invalid("rateLimits.%s.perSecond %q is not a positive number", l.name, l.from.PerSecond)
		}
		*l.to = cloud.Limit{PerSecond: perSecond, Burst: int(l.from.Burst)}
	}
	if defaults.AtOnce > 0 && spec.Create != (infrav1.RateLimit{}) {
		defaults.AtOnce = defaults.Create.Burst
	}
	return defaults, nil
}
