// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/drover-io/drover/cloud"
)

// atOnce makes the cloud work on so many creates at once. Rate and workers allow more.
func atOnce(n int) func(*Options) {
	return func(o *Options) {
		o.Clouds[0].Limits.Create, o.Clouds[0].Limits.AtOnce = cloud.Limit{PerSecond: 10, Burst: 100}, n
	}
}

// created returns the machines in the order in which their creates were accepted, those of one
// instant by number, and the most that ran at once.
func (c *testCloud) created() (tokens []string, most int) {
	c.with(func() {
		var all []*testResource
		for _, r := range c.resources {
			all = append(all, r)
		}
		slices.SortFunc(all, func(a, b *testResource) int {
			number := func(r *testResource) string { return strings.TrimLeft(r.Token, "abcdefghijklmnopqrstuvwxyz") }
			return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(number(a), number(b)), cmp.Compare(a.Token, b.Token))
		})
		for i, r := range all {
			tokens = append(tokens, r.Token)
			running := 0
			for _, earlier := range all[:i+1] {
				if r.Created.Before(earlier.Created.Add(c.start)) {
					running++
				}
			}
			most = max(most, running)
		}
	})
	return tokens, most
}

// TestRunningCreatesAreInOrder: a cloud works on few creates at once. Its machines are made in the
// order in which they asked, no slot of the cloud stays free for long, and they ask rarely.
func TestRunningCreatesAreInOrder(t *testing.T) {
	for name, c := range map[string]struct {
		slots, machines int
		start           time.Duration
	}{
		"few slots":    {4, 60, 30 * time.Second},
		"one slot":     {1, 20, 10 * time.Second},
		"many slots":   {20, 300, 45 * time.Second},
		"long creates": {4, 20, 10 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cl := newTestCloud(t)
				cl.start = c.start
				q := newQueue(t)
				a := cl.begin(t, atOnce(c.slots), func(o *Options) { o.OnMachines = q.wake }).account(t)
				var want []string
				for i := range c.machines {
					want = append(want, fmt.Sprintf("%03d", i))
					q.add(a, want[i])
					time.Sleep(10 * time.Millisecond)
				}
				took, attempts := q.wait()
				got, most := cl.created()
				t.Logf("%d machines in %s, at most %d at once, with at most %d attempts", c.machines, took, most, attempts)
				if !slices.Equal(got, want) {
					t.Errorf("made in the order %v", got)
				}
				if most != c.slots {
					t.Errorf("%d ran at once, want %d", most, c.slots)
				}
				rounds := (c.machines - 1) / c.slots
				if want := time.Duration(rounds) * (c.start + 6*time.Second); took > want+10*time.Second {
					t.Errorf("it took %s, want %s", took, want)
				}
				if attempts > 12 {
					t.Errorf("a machine was tried %d times", attempts)
				}
			})
		})
	}
}

// TestAccountsShareRunningCreates: accounts of one cloud, which works on few creates at once, make
// their machines in turns, and each in its order.
func TestAccountsShareRunningCreates(t *testing.T) {
	for name, teams := range map[string]map[string]int{
		"as many": {"a": 15, "b": 15},
		"fewer":   {"a": 30, "b": 3},
		"three":   {"a": 12, "b": 4, "c": 12},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cl := newTestCloud(t)
				cl.start = 30 * time.Second
				q := newQueue(t)
				s := cl.begin(t, atOnce(3), func(o *Options) { o.OnMachines = q.wake })
				first := s.account(t)
				for i := range 3 {
					q.add(first, fmt.Sprint("first", i))
				}
				time.Sleep(time.Second) // the cloud is full
				for team, n := range teams {
					a := s.join(t, types.NamespacedName{Namespace: team, Name: "account"})
					for i := range n {
						q.add(a, fmt.Sprintf("%s%02d", team, i))
						time.Sleep(time.Millisecond)
					}
				}
				q.wait()
				got, most := cl.created()
				if most > 3 {
					t.Errorf("%d ran at once", most)
				}
				made := map[string]int{}
				for _, token := range got[3:] {
					team := token[:1]
					if want := fmt.Sprintf("%s%02d", team, made[team]); token != want {
						t.Fatalf("%s is made before %s: %v", token, want, got)
					}
					made[team]++
					for other, n := range teams {
						if made[other] < n && made[team] > made[other]+1 {
							t.Fatalf("%d of %s are made, and %d of %s, which waits: %v", made[team], team, made[other], other, got)
						}
					}
				}
			})
		})
	}
}

// TestLostAnswerHoldsItsSlot: a create whose answer was lost may run, and counts as one that does.
func TestLostAnswerHoldsItsSlot(t *testing.T) {
	for name, late := range map[string]time.Duration{"at once": 0, "later": 20 * time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cl := newTestCloud(t)
				cl.start = 30 * time.Second
				q := newQueue(t)
				a := cl.begin(t, atOnce(2), func(o *Options) { o.OnMachines = q.wake }).account(t)
				cl.setFault(func(op string) fault { return fault{cut: op == "run", late: late} })
				q.add(a, "0")
				time.Sleep(time.Second / 2)
				cl.setFault(nil)
				for i := range 10 {
					q.add(a, fmt.Sprint(i+1))
				}
				q.wait()
				if _, most := cl.created(); most != 2 {
					t.Errorf("%d ran at once", most)
				}
			})
		})
	}
}

// TestSlotOfADeletedMachine: a machine that is deleted while its create runs leaves its slot, also
// if it was the account's only one.
func TestSlotOfADeletedMachine(t *testing.T) {
	for name, watched := range map[string]bool{"others are listed": true, "nothing is listed": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cl := newTestCloud(t)
				cl.start, cl.forgetsAfter = time.Hour, time.Second
				s := cl.begin(t, atOnce(2))
				a := s.account(t)
				refs := []cloud.Reference{ensure(t, a, "0"), ensure(t, a, "1")}
				var queued *cloud.Queued
				if _, err := a.Ensure(t.Context(), request("2"), nil); !errors.As(err, &queued) {
					t.Fatalf("the cloud is full: %v", err)
				}
				if !watched {
					a.dropTurn("2")
				}
				for _, ref := range refs {
					a.Observe(ref, true)
					until(t, 10*time.Minute, "gone", func() bool { return a.Delete(ref, time.Now()).Gone })
					a.Forget(ref.Token)
				}
				synctest.Wait()
				for _, token := range []string{"2", "3"} {
					if _, err := a.Ensure(t.Context(), request(token), nil); err != nil {
						t.Errorf("machine %s: %v", token, err)
					}
				}
			})
		})
	}
}

// TestSlotOfARefusedMachine: a machine whose create had no answer, and which a later step refuses
// before it sends one, leaves its slot. It keeps the slot while the create may still run.
func TestSlotOfARefusedMachine(t *testing.T) {
	for code, kept := range map[cloud.Code]int{
		cloud.InvalidSpec: 0, cloud.NotFound: 0, cloud.NoCapacity: 0, cloud.QuotaExceeded: 0,
		cloud.Throttled: 1, cloud.Unavailable: 1, cloud.Unauthorized: 1, cloud.Conflict: 1, cloud.Unknown: 1,
	} {
		t.Run(string(code), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := joined(cloud.Limit{PerSecond: 1, Burst: 2}, &workers{all: 10}, testKey)
				a.join(testKey, a.bucket.limit, 1, func() {})
				for _, r := range []struct {
					sent bool
					code cloud.Code
				}{{true, cloud.Unavailable}, {false, code}} {
					m, err := a.admit(testKey, "m", false)
					if err != nil {
						t.Fatal(err)
					}
					if r.sent {
						m.recordCreate(true)
					}
					m.end(result{asked: m.began, answered: true, err: cloud.Errorf(r.code, "no")})
				}
				if n := len(a.atOnce.starts); n != kept {
					t.Errorf("%d slots are held, want %d", n, kept)
				}
			})
		})
	}
}

// TestRunningCreatesOfAnEarlierProcess: after a restart, the creates that run still count.
func TestRunningCreatesOfAnEarlierProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := newTestCloud(t)
		cl.start = time.Minute
		s := cl.begin(t, atOnce(2))
		a := s.account(t)
		refs := []cloud.Reference{ensure(t, a, "0"), ensure(t, a, "1")}
		s.end()

		q := newQueue(t)
		a = cl.begin(t, atOnce(2), func(o *Options) { o.OnMachines = q.wake }).account(t)
		for _, ref := range refs {
			until(t, time.Minute, "seen", func() bool { return a.Observe(ref, true).Instance != nil })
		}
		for i := range 4 {
			q.add(a, fmt.Sprint(i+2))
		}
		q.wait()
		if _, most := cl.created(); most != 2 {
			t.Errorf("%d ran at once", most)
		}
	})
}

// TestChangedAccountKeepsRunningCreates: a change of the account's limits forgets no create that
// runs.
func TestChangedAccountKeepsRunningCreates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := newTestCloud(t)
		cl.start = time.Hour
		s := cl.begin(t, atOnce(9))
		a := s.account(t, createLimit("10", 2))
		ensure(t, a, "0")
		ensure(t, a, "1")
		var queued *cloud.Queued
		if _, err := a.Ensure(t.Context(), request("2"), nil); !errors.As(err, &queued) {
			t.Errorf("as many run as the account's burst: %v", err)
		}
		a = s.account(t, createLimit("10", 3))
		time.Sleep(time.Second)
		if _, err := a.Ensure(t.Context(), request("2"), nil); err != nil {
			t.Errorf("one more may run: %v", err)
		}
		if _, err := a.Ensure(t.Context(), request("3"), nil); !errors.As(err, &queued) {
			t.Errorf("as many run as the account's new burst: %v", err)
		}
	})
}
