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

// queue takes machines through their creates as a controller does: a machine is tried again when it
// is due, or when the account reports it.
type queue struct {
	t        *testing.T
	all      sync.WaitGroup
	mu       sync.Mutex
	wakeups  map[string]chan struct{}
	attempts map[string]int
	made     map[string]time.Duration // when, since the queue began
	began    time.Time
}

func newQueue(t *testing.T) *queue {
	return &queue{t: t, wakeups: map[string]chan struct{}{}, attempts: map[string]int{}, made: map[string]time.Duration{}, began: time.Now()}
}

// wake is the OnMachines of the accounts.
func (q *queue) wake(_ types.NamespacedName, tokens []string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, token := range tokens {
		select {
		case q.wakeups[token] <- struct{}{}:
		default:
		}
	}
}

// add adds a machine.
func (q *queue) add(a *Account, token string) {
	wakeup := make(chan struct{}, 1)
	q.mu.Lock()
	q.wakeups[token] = wakeup
	q.mu.Unlock()
	q.all.Go(func() {
		for {
			_, err := a.Ensure(q.t.Context(), request(token), nil)
			q.mu.Lock()
			q.attempts[token]++
			if err == nil {
				q.made[token] = time.Since(q.began)
			}
			q.mu.Unlock()
			var e *cloud.Error
			after := retryAfter(err)
			if errors.As(err, &e) && after == 0 {
				after = time.Second
			}
			if err == nil {
				return
			}
			if after <= 0 || e != nil && e.Code != cloud.Unavailable && e.Code != cloud.Throttled {
				q.t.Errorf("%s: %v", token, err)
				return
			}
			sleepUntil(q.t.Context(), time.Now().Add(after), wakeup)
		}
	})
}

// wait waits until all machines are made. It returns when the last one was, and the most attempts
// of one machine.
func (q *queue) wait() (took time.Duration, attempts int) {
	q.all.Wait()
	for token, n := range q.attempts {
		took, attempts = max(took, q.made[token]), max(attempts, n)
	}
	return took, attempts
}

func createLimit(perSecond string, burst int32) func(*AccountConfig) {
	return func(cfg *AccountConfig) {
		cfg.Spec.RateLimits = &infrav1.RateLimits{Create: infrav1.RateLimit{PerSecond: perSecond, Burst: burst}}
	}
}

// TestWaitingMachinesDoNotPoll: more machines are to be made than creates may be under way, or than
// the rate allows. Each is tried a few times, and no time is lost, however long a create takes.
func TestWaitingMachinesDoNotPoll(t *testing.T) {
	for name, c := range map[string]struct {
		latency   time.Duration
		perSecond string
		burst     int32
		machines  int
		want      time.Duration // 12 creates at a time, or the rate
		attempts  int
	}{
		"slow creates":            {3 * time.Second, "5", 150, 300, 75 * time.Second, 3},
		"slower creates":          {20 * time.Second, "100", 200, 60, 100 * time.Second, 4},
		"a burst of fast creates": {100 * time.Millisecond, "10", 100, 600, 50 * time.Second, 2},
		"a low rate":              {100 * time.Millisecond, "2", 5, 100, 48 * time.Second, 2},
		"both bounds":             {time.Second, "10", 20, 200, 18 * time.Second, 3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cl := newTestCloud(t)
				cl.latency = c.latency
				q := newQueue(t)
				a := cl.begin(t, func(o *Options) { o.OnMachines = q.wake }).account(t, createLimit(c.perSecond, c.burst))
				for i := range c.machines {
					q.add(a, fmt.Sprint(i))
				}
				took, attempts := q.wait()
				t.Logf("%d machines in %s with at most %d attempts", c.machines, took, attempts)
				if attempts > c.attempts {
					t.Errorf("a machine was tried %d times", attempts)
				}
				if took > c.want*11/10+3*time.Second {
					t.Errorf("it took %s, want %s", took, c.want)
				}
			})
		})
	}
}

// undecided is the answer to a step of a create that is under way.
var undecided = &cloud.Error{Code: cloud.Unavailable, Message: "it is being made", RetryAfter: 2 * time.Second}

// stepDriver needs two steps for a create: the first one sends it, and the others look.
type stepDriver struct {
	*testDriver
	mu   sync.Mutex
	sent map[string]time.Time
}

func (d *stepDriver) Ensure(ctx context.Context, req cloud.Request) (cloud.Resource, error) {
	d.mu.Lock()
	_, sent := d.sent[req.Token]
	d.mu.Unlock()
	if !sent {
		if _, err := d.testDriver.Ensure(ctx, req); err != nil {
			return cloud.Resource{}, err
		}
		d.mu.Lock()
		d.sent[req.Token] = time.Now()
		d.mu.Unlock()
		return cloud.Resource{}, undecided
	}
	found, err := d.Describe(ctx, []cloud.Reference{{Token: req.Token}})
	if err != nil || len(found) == 0 || found[0].State != cloud.StateRunning {
		return cloud.Resource{}, errors.Join(err, undecided)
	}
	return found[0], nil
}

// inTwoSteps makes the cloud's driver a stepDriver.
func inTwoSteps(d *stepDriver) func(*Options) {
	return func(o *Options) {
		newDriver := o.Clouds[0].New
		o.Clouds[0].New = func(cfg cloud.Config) (cloud.Driver, error) {
			made, err := newDriver(cfg)
			if err == nil {
				d.testDriver = made.(*testDriver)
			}
			return d, err
		}
	}
}

// TestSecondStepsGoFirst: a machine that was sent is recorded soon after it runs, however many
// machines wait for their first step.
func TestSecondStepsGoFirst(t *testing.T) {
	for name, c := range map[string]struct {
		start     time.Duration
		perSecond string
		burst     int32
		machines  int
		want      time.Duration
	}{
		"a low rate":   {time.Second, "2", 6, 60, 35 * time.Second},
		"a large pool": {5 * time.Second, "10", 100, 600, 65 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cl := newTestCloud(t)
				cl.start = c.start
				d, q := &stepDriver{sent: map[string]time.Time{}}, newQueue(t)
				a := cl.begin(t, inTwoSteps(d), func(o *Options) { o.OnMachines = q.wake }).account(t, createLimit(c.perSecond, c.burst),
					func(cfg *AccountConfig) {
						cfg.Spec.RateLimits.Read = infrav1.RateLimit{PerSecond: "100", Burst: 1000}
					})
				began := time.Now()
				for i := range c.machines {
					q.add(a, fmt.Sprint(i))
				}
				took, _ := q.wait()
				var worst time.Duration
				for token, made := range q.made {
					worst = max(worst, made-d.sent[token].Sub(began))
				}
				t.Logf("all in %s; from the create to its record at most %s", took, worst)
				if worst > c.start+5*time.Second {
					t.Errorf("a machine that runs %s after its create is recorded %s after it", c.start, worst)
				}
				if took > c.want {
					t.Errorf("it took %s, want %s", took, c.want)
				}
			})
		})
	}
}

// TestEndlessStepsStopNobody: steps that never end, because the cloud never decides, leave slots to
// new machines.
func TestEndlessStepsStopNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := joined(cloud.Limit{PerSecond: 100, Burst: 100}, &workers{}, testKey)
		var looking []*turn
		for i := range 30 {
			token := fmt.Sprint(i)
			first, err := a.admit(testKey, token, false)
			if err != nil {
				t.Fatal(err)
			}
			first.recordCreate(true)
			first.end(result{asked: time.Now(), answered: true, err: undecided})
			if look, err := a.admit(testKey, token, false); err == nil {
				looking = append(looking, look)
			}
		}
		if len(looking) != maxConcurrentLooks {
			t.Errorf("%d further steps are under way, want %d", len(looking), maxConcurrentLooks)
		}
		for i := range maxConcurrentCreates - maxConcurrentLooks {
			if _, err := a.admit(testKey, fmt.Sprint("new", i), false); err != nil {
				t.Errorf("a new machine waits for steps without an end: %v", err)
			}
		}
		looking[0].end(result{asked: time.Now(), answered: true, err: undecided})
		if token, _ := a.next(testKey); token != "9" {
			t.Errorf("%q is next, want the step that waits", token)
		}
	})
}

// TestRefusedStepGoesBehind: a machine whose further step the cloud refuses waits as the others do.
// One that it throttles goes first again.
func TestRefusedStepGoesBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, c := range map[string]struct {
			sent, accepted bool
			err            error
			fresh          bool
		}{
			"made more": {true, true, undecided, false},
			"looked":    {false, false, undecided, false},
			"throttled": {true, false, cloud.Errorf(cloud.Throttled, "slower"), false},
			"refused":   {true, false, cloud.Errorf(cloud.QuotaExceeded, "no"), true},
			"done":      {true, true, nil, true},
		} {
			a := joined(cloud.Limit{PerSecond: 100, Burst: 100}, &workers{}, testKey)
			step := func(sent, accepted bool, err error) *turn {
				turn, queued := a.admit(testKey, "m", false)
				if queued != nil {
					t.Fatal(name, queued)
				}
				if sent {
					turn.recordCreate(accepted)
				}
				turn.end(result{asked: time.Now(), answered: true, err: err})
				return turn
			}
			step(true, true, undecided)
			if step(c.sent, c.accepted, c.err).fresh {
				t.Errorf("%s: the second step takes a token in advance", name)
			}
			if got := step(false, false, undecided).fresh; got != c.fresh {
				t.Errorf("%s: the third step takes a token in advance: %t", name, got)
			}
		}
	})
}

// TestAccountsTakeTurns: of accounts that the cloud throttles together, one has hundreds of
// machines waiting. The others' machines are made in turns with them.
func TestAccountsTakeTurns(t *testing.T) {
	for name, others := range map[string]map[string]int{
		"one machine":       {"b": 1},
		"some machines":     {"b": 5},
		"several accounts":  {"b": 1, "c": 3, "d": 2},
		"one that has more": {"b": 300},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cl := newTestCloud(t)
				q := newQueue(t)
				s := cl.begin(t, func(o *Options) { o.OnMachines = q.wake })
				a := s.account(t, createLimit("2", 2))
				for i := range 200 {
					q.add(a, fmt.Sprint("a", i))
				}
				time.Sleep(10200 * time.Millisecond)
				began := time.Since(q.began)
				for team, n := range others {
					b := s.join(t, types.NamespacedName{Namespace: team, Name: "account"}, createLimit("2", 2))
					for i := range n {
						q.add(b, fmt.Sprint(team, i))
					}
				}
				q.wait()
				accounts := len(others) + 1
				for team, n := range others {
					var made []time.Duration
					for i := range n {
						made = append(made, q.made[fmt.Sprint(team, i)]-began)
					}
					slices.Sort(made)
					for i, took := range made {
						if turns := accounts * (i + 1); took > time.Duration(turns)*500*time.Millisecond+time.Second {
							t.Errorf("machine %d of %s is made after %s, want %d turns of half a second", i, team, took, turns)
						}
					}
				}
			})
		})
	}
}

// TestOwnLimitIsACap: accounts that the cloud throttles together have different limits. Each keeps
// within its own, and uses what the other one leaves.
func TestOwnLimitIsACap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := newTestCloud(t)
		q := newQueue(t)
		s := cl.begin(t, func(o *Options) { o.OnMachines = q.wake })
		slow := s.account(t, createLimit("0.5", 2))
		fast := s.join(t, types.NamespacedName{Namespace: "other", Name: "account"}, createLimit("5", 2))
		for i := range 20 {
			q.add(slow, fmt.Sprint("slow", i))
		}
		for i := range 100 {
			q.add(fast, fmt.Sprint("fast", i))
		}
		q.wait()
		last := func(of string) (at time.Duration) {
			for token, made := range q.made {
				if token[:4] == of {
					at = max(at, made)
				}
			}
			return at
		}
		if got := last("slow"); got < 38*time.Second || got > 42*time.Second {
			t.Errorf("20 machines at 0.5/s took %s", got)
		}
		if got := last("fast"); got < 20*time.Second || got > 27*time.Second {
			t.Errorf("100 machines at 5/s, of which another account takes a tenth, took %s", got)
		}
	})
}

// TestForgedPlaceHoldsNobody: the endpoint of another tenant claims the account's place, and asks
// to be left alone. That changes nothing for the account.
func TestForgedPlaceHoldsNobody(t *testing.T) {
	for name, f := range map[string]fault{
		"an hour": {code: string(cloud.Throttled), retry: time.Hour},
		"no time": {code: string(cloud.Throttled)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newTestCloud(t)
				s := c.begin(t)
				a := s.account(t)
				b := s.join(t, types.NamespacedName{Namespace: "thieves", Name: "account"}, func(cfg *AccountConfig) {
					cfg.Spec.Cloud.Simulated.Endpoint = "https://thief.example.com"
				})
				for range 3 {
					c.setFault(func(string) fault { return f })
					_, _ = b.Ensure(t.Context(), request("b"), nil)
					c.setFault(nil)
					time.Sleep(time.Second)
				}
				if _, err := a.Ensure(t.Context(), request("a"), nil); err != nil {
					t.Errorf("the account's machine: %v", err)
				}
			})
		})
	}
}

// TestDeletedMachineLeavesItsPlace: a machine that is deleted while it waits holds up nobody, also
// if nobody says that it is deleted.
func TestDeletedMachineLeavesItsPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, told := range []bool{true, false} {
			a := newTurns(cloud.Limit{PerSecond: 1, Burst: 1})
			var first []*turn
			for i := range maxConcurrentCreates {
				time.Sleep(time.Second)
				turn, err := a.admit(testKey, fmt.Sprint(i), false)
				if err != nil {
					t.Fatal(err)
				}
				first = append(first, turn)
			}
			time.Sleep(time.Second)
			a.turn("deleted")
			a.turn("waiting")
			if told {
				a.drop(testKey, "deleted")
			}
			first[0].recordCreate(true)
			first[0].end(result{asked: first[0].began, answered: true})
			if token, _ := a.next(testKey); (token == "waiting") != told {
				t.Errorf("%q is next", token)
			}
			time.Sleep(turnGrace)
			if after, _ := a.turn("waiting"); after > 0 {
				t.Errorf("told %t: the next machine waits %s for one that does not come", told, after)
			}
		}
	})
}

// TestHeldTurn: a turn that was asked for in advance is used by the create, or given back.
func TestHeldTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		a := c.begin(t).account(t, createLimit("1", 2)) // a burst of one, with headroom
		release, err := a.Admit(cloud.Reference{Token: "unused", OwnershipID: "own"})
		if err != nil {
			t.Fatal(err)
		}
		var queued *cloud.Queued
		if _, err := a.Admit(cloud.Reference{Token: "m", OwnershipID: "own"}); !errors.As(err, &queued) {
			t.Errorf("the only token is taken twice: %v", err)
		}
		release()
		release, err = a.Admit(cloud.Reference{Token: "m", OwnershipID: "own"})
		if err != nil {
			t.Errorf("a turn that was given back: %v", err)
		}
		ensure(t, a, "m")
		release()
		if _, err := a.Admit(cloud.Reference{Token: "n", OwnershipID: "own"}); !errors.As(err, &queued) {
			t.Errorf("a turn that was used is given back: %v", err)
		}
		if release, err = a.Admit(cloud.Reference{Token: "m", OwnershipID: "own"}); err != nil {
			t.Errorf("a machine that exists waits for its turn: %v", err)
		}
		release()
		if free := freeSteps(a); free != maxConcurrentCreates {
			t.Errorf("%d slots are free at the end", free)
		}
	})
}

// TestChangedAccountKeepsPlaces: an account whose limits change keeps the places of its machines,
// and what is under way.
func TestChangedAccountKeepsPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		s := c.begin(t)
		a := s.account(t, createLimit("1", 2))
		under, err := a.takeTurn("under way")
		if err != nil {
			t.Fatal(err)
		}
		for _, token := range []string{"first", "second"} {
			if _, err := a.takeTurn(token); err == nil {
				t.Fatal("no machine waits")
			}
		}
		b := s.account(t, createLimit("2", 2))
		time.Sleep(500 * time.Millisecond)
		if _, err := b.takeTurn("second"); err == nil {
			t.Error("the second machine goes before the first")
		}
		if _, err := b.takeTurn("first"); err != nil {
			t.Errorf("the first machine, at the new rate: %v", err)
		}
		under.end(result{asked: under.began, answered: true})
		if free := freeSteps(b); free != maxConcurrentCreates-1 {
			t.Errorf("%d slots are free", free)
		}
	})
}

// fullDriver is a driver whose cloud makes few machines at a time.
type fullDriver struct {
	*testDriver
	mu      sync.Mutex
	running []time.Time // when each ends
	asked   int
	made    map[string]time.Time
}

func (d *fullDriver) Ensure(ctx context.Context, req cloud.Request) (cloud.Resource, error) {
	d.mu.Lock()
	d.asked++
	d.running = slices.DeleteFunc(d.running, func(end time.Time) bool { return !end.After(time.Now()) })
	full := len(d.running) >= 4
	if !full {
		d.running = append(d.running, time.Now().Add(30*time.Second))
		d.made[req.Token] = time.Now()
	}
	d.mu.Unlock()
	if full {
		return cloud.Resource{}, &cloud.Queued{After: 5 * time.Second}
	}
	return d.testDriver.Ensure(ctx, req)
}

// TestFullCloudIsAskedByOne: a driver sends a machine back because as many are being made as may
// be. It is asked for few others meanwhile, no place of the cloud stays free, and the machines keep
// their order.
func TestFullCloudIsAskedByOne(t *testing.T) {
	for _, machines := range []int{20, 60} {
		synctest.Test(t, func(t *testing.T) {
			d, q := &fullDriver{made: map[string]time.Time{}}, newQueue(t)
			a := newTestCloud(t).begin(t, func(o *Options) {
				o.OnMachines = q.wake
				newDriver := o.Clouds[0].New
				o.Clouds[0].New = func(cfg cloud.Config) (cloud.Driver, error) {
					made, err := newDriver(cfg)
					if err == nil {
						d.testDriver = made.(*testDriver)
					}
					return d, err
				}
			}).account(t, createLimit("10", 100))
			for i := range machines {
				q.add(a, fmt.Sprintf("%02d", i))
				time.Sleep(10 * time.Millisecond)
			}
			took, attempts := q.wait()
			rounds := (machines + 3) / 4
			t.Logf("%d machines in %s, %d calls of the driver, at most %d attempts", machines, took, d.asked, attempts)
			if want := time.Duration(rounds) * 30 * time.Second; took > want*5/4 {
				t.Errorf("it took %s, want %s", took, want)
			}
			if most := machines + rounds*30/5 + 2*rounds + maxConcurrentCreates; d.asked > most {
				t.Errorf("%d calls of the driver for %d machines, want at most %d", d.asked, machines, most)
			}
			if attempts > 2*machines {
				t.Errorf("a machine was tried %d times", attempts)
			}
			for i := range machines - 1 {
				if one, next := d.made[fmt.Sprintf("%02d", i)], d.made[fmt.Sprintf("%02d", i+1)]; next.Before(one) {
					t.Errorf("machine %d is made %s after the next one", i, one.Sub(next))
				}
			}
		})
	}
}

// freeSteps returns how many slots the account's steps have left.
func freeSteps(a *Account) int {
	create := a.limiter.Load().create
	create.mu.Lock()
	defer create.mu.Unlock()
	return create.lane(a.key).steps.free()
}
