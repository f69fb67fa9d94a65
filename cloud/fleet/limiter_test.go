// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
)

// turns is an admission with steps of one account that end at once.
type turns struct{ *admission }

func newTurns(l cloud.Limit) turns { return turns{joined(l, &workers{}, testKey)} }

// joined returns an admission that the accounts have joined, with this limit each.
func joined(l cloud.Limit, w *workers, accounts ...types.NamespacedName) *admission {
	a := newAdmission(l, w)
	for _, account := range accounts {
		a.join(account, l, 0, func() {})
	}
	return a
}

// turn takes a turn for a machine, or returns how long until its turn comes. waited is the time
// since the machine first asked.
func (a turns) turn(token string) (after, waited time.Duration) {
	t, err := a.admit(testKey, token, false)
	var queued *cloud.Queued
	if errors.As(err, &queued) {
		return queued.After, 0
	}
	t.pay(cloud.ClassCreate)
	t.end(result{asked: time.Now(), answered: true})
	return 0, t.waited
}

// TestThousandTurns: a thousand machines ask at once. Each learns its own turn, and comes back
// once.
func TestThousandTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTurns(cloud.Limit{PerSecond: 2, Burst: 5})
		start := time.Now()
		var mu sync.Mutex
		var came []time.Duration
		asks := 0
		var wg sync.WaitGroup
		for i := range 1000 {
			wg.Go(func() {
				for {
					after, _ := b.turn(fmt.Sprint(i))
					mu.Lock()
					asks++
					if after == 0 {
						came = append(came, time.Since(start))
						mu.Unlock()
						return
					}
					mu.Unlock()
					time.Sleep(after)
				}
			})
		}
		wg.Wait()
		if asks != 5+2*995 {
			t.Errorf("%d asks for 1000 machines, of which 5 need not come back", asks)
		}
		for i, at := range came {
			want := max(0, time.Duration(i-4)*500*time.Millisecond)
			if d := at - want; d < 0 || d > 10*time.Millisecond {
				t.Fatalf("turn %d came at %s, want %s", i, at, want)
			}
		}
	})
}

// TestTurnsAreInOrder: the first caller is served first, even if others ask more often.
func TestTurnsAreInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTurns(cloud.Limit{PerSecond: 1, Burst: 1})
		b.turn("now")
		first, _ := b.turn("first")
		second, _ := b.turn("second")
		if first != time.Second || second != 2*time.Second {
			t.Fatalf("first in %s, second in %s", first, second)
		}
		time.Sleep(first)
		if after, _ := b.turn("impatient"); after != 2*time.Second {
			t.Errorf("one who came later gets %s", after)
		}
		if after, _ := b.turn("second"); after != time.Second {
			t.Errorf("the second, early, gets %s", after)
		}
		if after, waited := b.turn("first"); after != 0 || waited != time.Second {
			t.Errorf("the first gets %s after %s", after, waited)
		}
	})
}

// TestLoad: a caller is counted while it waits. A rate that throttling has halved is reported until
// it has recovered.
func TestLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTurns(cloud.Limit{PerSecond: 1, Burst: 1})
		b.turn("now")
		b.turn("first")
		b.turn("second")
		if queue, share := b.load(); queue != 2 || share != 1 {
			t.Errorf("%d wait at %g of the rate, want 2 at 1", queue, share)
		}
		b.drop(testKey, "first")
		b.throttled(time.Second)
		if queue, share := b.load(); queue != 1 || share != 0.5 {
			t.Errorf("%d wait at %g of the rate, want 1 at 0.5", queue, share)
		}
		time.Sleep(2 * recoveryTime)
		b.turn("second")
		if queue, share := b.load(); queue != 0 || share != 1 {
			t.Errorf("%d wait at %g of the rate, want none at 1", queue, share)
		}
	})
}

// TestUnusedTurns: a turn whose owner does not come does not delay the next turns, and is dropped
// in the end.
func TestUnusedTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTurns(cloud.Limit{PerSecond: 1, Burst: 1})
		b.turn("now")
		b.turn("dead")
		mine, _ := b.turn("mine")
		time.Sleep(mine)
		if after, _ := b.turn("mine"); after != 0 {
			t.Errorf("my turn came and I wait %s for one who does not come", after)
		}
		b.turn("dropped")
		b.drop(testKey, "dropped")
		time.Sleep(turnTTL + time.Minute)
		if after, _ := b.turn("new"); after != 0 {
			t.Errorf("after a pause: wait %s", after)
		}
		if queue, _ := b.load(); queue != 0 {
			t.Errorf("after a pause: queue %d", queue)
		}
	})
}

// TestNeverAboveRate: whatever the order and lateness of callers, they stay within the cloud's own
// bucket of the same size.
func TestNeverAboveRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := cloud.Limit{PerSecond: 2, Burst: 5}
		b, theirs := newTurns(limit), newPlainBucket(limit)
		late := newTestCloud(t).rand
		var wg sync.WaitGroup
		var mu sync.Mutex
		var throttled int
		for i := range 300 {
			delay := time.Duration(late.Int64N(int64(20 * time.Second)))
			if i >= 200 {
				delay += 5 * time.Minute // after a pause
			}
			wg.Go(func() {
				time.Sleep(delay)
				for {
					after, _ := b.turn(fmt.Sprint(i))
					if after == 0 {
						break
					}
					time.Sleep(after + delay/4)
				}
				mu.Lock()
				defer mu.Unlock()
				if !theirs.take() {
					throttled++
				}
			})
		}
		wg.Wait()
		if throttled > 0 {
			t.Errorf("%d calls were above the rate", throttled)
		}
	})
}

// TestThrottleRecovery: throttling empties the bucket for as long as the cloud says, halves the
// rate once for all calls that were under way, and the rate recovers.
func TestThrottleRecovery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTurns(cloud.Limit{PerSecond: 4, Burst: 10})
		for range 5 {
			b.throttled(3 * time.Second)
		}
		served := func(d time.Duration) (n int) {
			for end := time.Now().Add(d); ; n++ {
				ctx, cancel := context.WithDeadline(t.Context(), end)
				_, err := b.wait(ctx, testKey)
				cancel()
				if err != nil {
					time.Sleep(time.Until(end))
					return n
				}
			}
		}
		if n := served(3 * time.Second); n != 0 {
			t.Errorf("%d calls while the cloud wanted none", n)
		}
		if n := served(10 * time.Second); n < 20 || n > 24 {
			t.Errorf("%d calls in the first 10 s: want somewhat more than half the rate", n)
		}
		served(20 * time.Second)
		if n := served(10 * time.Second); n < 39 || n > 41 {
			t.Errorf("%d calls in 10 s after half a minute: want the whole rate", n)
		}
	})
}

// TestWaitEndsWithContext: a caller whose turn comes too late learns that at once, and takes no
// turn.
func TestWaitEndsWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTurns(cloud.Limit{PerSecond: 0.1, Burst: 1})
		b.turn("now")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		_, err := b.wait(ctx, testKey)
		var queued *cloud.Queued
		if !errors.As(err, &queued) || queued.After != 10*time.Second || time.Since(start) > 0 {
			t.Errorf("got %v after %s", err, time.Since(start))
		}
		ctx, cancel = context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if _, err := b.wait(ctx, testKey); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		if queue, _ := b.load(); queue != 0 {
			t.Errorf("%d left in the queue", queue)
		}
	})
}

func TestLimitsOf(t *testing.T) {
	defaults := cloud.Limits{Create: cloud.Limit{PerSecond: 2, Burst: 5}, Delete: cloud.Limit{PerSecond: 5, Burst: 10},
		Read: cloud.Limit{PerSecond: 10, Burst: 20}}
	rate := func(s string) *infrav1.RateLimits {
		return &infrav1.RateLimits{Create: infrav1.RateLimit{PerSecond: s, Burst: 7}}
	}
	for _, c := range []struct {
		spec *infrav1.RateLimits
		want cloud.Limit
		code cloud.Code
	}{
		{nil, cloud.Limit{PerSecond: 2, Burst: 5}, ""},
		{&infrav1.RateLimits{}, cloud.Limit{PerSecond: 2, Burst: 5}, ""},
		{rate("0.5"), cloud.Limit{PerSecond: 0.5, Burst: 7}, ""},
		{rate("0"), cloud.Limit{}, cloud.InvalidSpec},
		{rate("many"), cloud.Limit{}, cloud.InvalidSpec},
		{rate("Inf"), cloud.Limit{}, cloud.InvalidSpec},
		{rate("NaN"), cloud.Limit{}, cloud.InvalidSpec},
	} {
		got, err := limitsOf(defaults, c.spec)
		if got.Create != c.want || cloud.CodeOf(err) != c.code {
			t.Errorf("%+v: got %v, %v", c.spec, got.Create, err)
		}
	}
}

// TestSharedBucket: the cloud throttles two accounts with one identity together. Neither is
// throttled, and neither is starved.
func TestSharedBucket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		c.latency = 0
		c.buckets = map[cloud.Class]*plainBucket{cloud.ClassCreate: newPlainBucket(cloud.Limit{PerSecond: 2, Burst: 5})}
		s := c.begin(t)
		one := s.account(t)
		cfg := one.config
		other := testKey
		other.Name = "other"
		two, err := s.Set(other, cfg)
		if err != nil {
			t.Fatal(err)
		}
		if err := two.recordPlace(testPlace); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		var wg sync.WaitGroup
		var mu sync.Mutex
		done := map[*Account]time.Duration{}
		for i := range 50 {
			for n, a := range []*Account{one, two} {
				wg.Go(func() {
					ensure(t, a, fmt.Sprintf("%d-%d", n, i))
					mu.Lock()
					defer mu.Unlock()
					done[a] = time.Since(start)
				})
			}
		}
		wg.Wait()
		for _, call := range c.log() {
			if call.code != "" {
				t.Fatalf("%s was answered %s", call.op, call.code)
			}
		}
		if total := max(done[one], done[two]); total < 47*time.Second || total > 49*time.Second {
			t.Errorf("100 machines at 2/s took %s", total)
		}
		if n := len(s.limiters.all); n != 1 {
			t.Errorf("%d limiters", n)
		}
		s.Remove(testKey)
		s.Remove(other)
		if n := len(s.limiters.all); n != 0 {
			t.Errorf("%d limiters are left", n)
		}
	})
}

// TestThrottledRateSurvivesChanges: throttling lasts, whichever accounts join or leave meanwhile,
// and whatever their limits are. Nobody gets tokens for a time in which the limit was lower.
func TestThrottledRateSurvivesChanges(t *testing.T) {
	b := types.NamespacedName{Namespace: "b", Name: "account"}
	limit := cloud.Limit{PerSecond: 2, Burst: 5}
	for name, change := range map[string]func(*admission){
		"the same limit":  func(a *admission) { a.join(b, limit, 0, func() {}); a.leave(b) },
		"a higher limit":  func(a *admission) { a.join(b, cloud.Limit{PerSecond: 100, Burst: 200}, 0, func() {}) },
		"it leaves again": func(a *admission) { a.join(b, cloud.Limit{PerSecond: 100, Burst: 200}, 0, func() {}); a.leave(b) },
		"a lower limit":   func(a *admission) { a.join(testKey, cloud.Limit{PerSecond: 1, Burst: 1}, 0, func() {}) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newTurns(limit)
				a.throttled(3 * time.Second)
				change(a.admission)
				if _, share := a.load(); share != 0.5 {
					t.Errorf("%g of the rate is left, want half", share)
				}
				if after, _ := a.turn("m"); after < 3*time.Second {
					t.Errorf("a machine goes after %s, want 3 s", after)
				}
				time.Sleep(18 * time.Second)
				change(a.admission)
				if _, share := a.load(); share < 0.74 || share > 0.76 {
					t.Errorf("%g of the rate is back after half of the time, want three quarters", share)
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		a := newTurns(limit)
		for range limit.Burst {
			a.turn("now")
		}
		time.Sleep(time.Second)
		a.join(testKey, cloud.Limit{PerSecond: 100, Burst: 200}, 0, func() {})
		if tokens := a.bucket.tokens; tokens > 2.1 {
			t.Errorf("%g tokens after a second at 2/s", tokens)
		}
	})
}

// TestAccountThatLeftLeavesNothing: whatever an account still asks for after it has left, nobody
// waits for it, and nothing of it is kept.
func TestAccountThatLeftLeavesNothing(t *testing.T) {
	b := types.NamespacedName{Namespace: "b", Name: "account"}
	for name, ask := range map[string]func(*testing.T, *admission){
		"a place":  func(t *testing.T, a *admission) { a.drop(b, "m") },
		"the next": func(t *testing.T, a *admission) { a.next(b) },
		"a claim":  func(t *testing.T, a *admission) { a.claim(b, "m") },
		"a lookup": func(t *testing.T, a *admission) {
			if end, err := a.lookup(b); err == nil {
				end(result{answered: true})
			}
		},
		"a call": func(t *testing.T, a *admission) { _, _ = a.wait(t.Context(), b) },
		"a step": func(t *testing.T, a *admission) {
			if m, err := a.admit(b, "m", false); err == nil {
				m.end(result{asked: time.Now(), answered: true, running: true})
			}
		},
		"a create": func(t *testing.T, a *admission) { a.setRunning(b, "m", true) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &workers{all: 10}
				a := joined(cloud.Limit{PerSecond: 1, Burst: 2}, w, testKey, b)
				a.join(testKey, a.bucket.limit, 1, func() {})
				a.join(b, a.bucket.limit, 1, func() {})
				under, err := a.admit(b, "under way", false)
				if err != nil {
					t.Fatal(err)
				}
				a.leave(b)
				ask(t, a)
				under.end(result{asked: under.began, answered: true, running: true})
				if len(a.lanes) != 1 || w.accounts != 1 || w.total != 0 || len(a.atOnce.starts) != 0 {
					t.Errorf("%d lanes, %d accounts, %d workers and %d slots are left", len(a.lanes), w.accounts, w.total, len(a.atOnce.starts))
				}
			})
		})
	}
}

// TestWhoSharesALimit: accounts share a rate limit if one cloud throttles them together. An
// endpoint that a tenant chose may claim any place: its answers hold nobody outside of that
// namespace.
func TestWhoSharesALimit(t *testing.T) {
	chosen := func(spec *infrav1.DroverAccountSpec) string { return spec.Cloud.Simulated.Endpoint }
	type account struct{ namespace, endpoint, place string }
	for name, c := range map[string]struct {
		endpoint func(*infrav1.DroverAccountSpec) string
		a, b     account
		want     bool
	}{
		"the cloud's own endpoint":        {chosen, account{"a", "", "p"}, account{"b", "", "p"}, true},
		"another place":                   {chosen, account{"a", "", "p"}, account{"b", "", "q"}, false},
		"an endpoint of one tenant":       {chosen, account{"a", "", "p"}, account{"b", "https://b", "p"}, false},
		"one endpoint, two namespaces":    {chosen, account{"a", "https://b", "p"}, account{"b", "https://b", "p"}, false},
		"one endpoint, one namespace":     {chosen, account{"a", "https://b", "p"}, account{"a", "https://b", "p"}, true},
		"two endpoints, one namespace":    {chosen, account{"a", "https://b", "p"}, account{"a", "https://c", "p"}, false},
		"in the credentials":              {nil, account{"a", "", "p"}, account{"b", "", "p"}, false},
		"in the credentials, a namespace": {nil, account{"a", "", "p"}, account{"a", "", "p"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			var limiters limiters
			join := func(n string, is account) *Account {
				a := &Account{
					key:   types.NamespacedName{Namespace: is.namespace, Name: n},
					cloud: cloud.Cloud{Name: "test", Endpoint: c.endpoint},
					config: AccountConfig{Spec: infrav1.DroverAccountSpec{
						Cloud: infrav1.AccountCloud{Simulated: &infrav1.SimulatedAccount{Endpoint: is.endpoint}}}},
					place: place{proved: is.place},
				}
				a.settings.Store(&settings{})
				limiters.join(a)
				return a
			}
			one, two := join("one", c.a), join("two", c.b)
			one.limiter.Load().read.throttled(time.Hour)
			two.limiter.Load().read.mu.Lock()
			held := time.Until(two.limiter.Load().read.bucket.heldUntil) > 0
			two.limiter.Load().read.mu.Unlock()
			if held != c.want {
				t.Errorf("one account's throttling holds the other's calls: %t, want %t", held, c.want)
			}
			limiters.leave(one.key)
			limiters.leave(two.key)
			if len(limiters.all) != 0 {
				t.Errorf("%d limiters are left", len(limiters.all))
			}
		})
	}
}

// TestLimitOfAChangedEndpoint: an account whose place or endpoint has changed leaves its old limit.
func TestLimitOfAChangedEndpoint(t *testing.T) {
	var limiters limiters
	a := &Account{key: testKey, cloud: cloud.Cloud{Name: "test"}, place: place{proved: "p"}}
	a.settings.Store(&settings{})
	limiters.join(a)
	first := a.limiter.Load()
	a.place.proved = "q"
	limiters.join(a)
	if a.limiter.Load() == first || len(limiters.all) != 1 {
		t.Errorf("%d limiters, and a new one: %t; want 1, and a new one", len(limiters.all), a.limiter.Load() != first)
	}
}

// TestCreatesDoNotStarveDeletes: while hundreds of creates wait, a deletion is as fast as ever.
func TestCreatesDoNotStarveDeletes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		c.buckets = map[cloud.Class]*plainBucket{cloud.ClassCreate: newPlainBucket(cloud.Limit{PerSecond: 2, Burst: 5})}
		s := c.begin(t)
		a := s.account(t)
		ref := ensure(t, a, "old")
		var wg sync.WaitGroup
		for i := range 200 {
			wg.Go(func() { ensure(t, a, fmt.Sprint(i)) })
		}
		a.Observe(ref, true)
		a.Delete(ref, time.Now())
		took := until(t, time.Minute, "gone", func() bool { return a.Delete(ref, time.Now()).Gone })
		if took > 6*time.Second {
			t.Errorf("deleting took %s", took)
		}
		wg.Wait()
		if i := slices.IndexFunc(c.log(), func(call testCall) bool { return call.code != "" }); i >= 0 {
			t.Errorf("%+v", c.log()[i])
		}
	})
}
