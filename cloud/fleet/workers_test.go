// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
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

// placing is a driver whose lookup of failure domains has no answer.
type placing struct {
	*testDriver
	answers *bool
}

func (d placing) FailureDomains(ctx context.Context, _ *infrav1.DroverMachineFields) ([]string, error) {
	if *d.answers {
		return []string{"a"}, nil
	}
	<-ctx.Done()
	return nil, ctx.Err()
}

// TestLookupsAreCapped: a cloud that does not answer lookups holds some workers, and later one.
func TestLookupsAreCapped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers := false
		a := newTestCloud(t).begin(t, func(o *Options) {
			newDriver := o.Clouds[0].New
			o.Clouds[0].New = func(cfg cloud.Config) (cloud.Driver, error) {
				d, err := newDriver(cfg)
				return placing{d.(*testDriver), &answers}, err
			}
		}).account(t)
		for round, want := range []int{maxConcurrentLookups, 1, 1, 0} {
			answers = round == 3
			var all sync.WaitGroup
			took := make([]time.Duration, 50)
			for i := range took {
				all.Go(func() {
					began := time.Now()
					_, _ = a.FailureDomains(t.Context(), &infrav1.DroverMachineFields{})
					took[i] = time.Since(began)
				})
			}
			all.Wait()
			took = slices.DeleteFunc(took, func(d time.Duration) bool { return d < time.Second })
			if len(took) != want {
				t.Errorf("round %d: %d workers are held, want %d", round, len(took), want)
			}
		}
	})
}

// TestWorkersAreLeft: once accounts hold half of the workers, one that holds none may take one
// still, and learns at its end that the next machine may go. An account without others leaves one.
func TestWorkersAreLeft(t *testing.T) {
	for _, c := range []struct{ workers, silent, want int }{{50, 1, maxConcurrentCreates}, {50, 5, 27}, {8, 1, 4}, {8, 3, 6}, {8, 6, 9},
		{1, 1, 1}, {0, 5, 5 * maxConcurrentCreates}} {
		synctest.Test(t, func(t *testing.T) {
			w := &workers{all: c.workers}
			account := func(i int) (types.NamespacedName, *admission) { // each in a place of its own
				key := types.NamespacedName{Namespace: "team", Name: fmt.Sprint(i)}
				return key, joined(cloud.Limit{PerSecond: 100, Burst: 100}, w, key)
			}
			last, a := account(c.silent)
			held := 0
			for i := range c.silent {
				key, a := account(i)
				for token := range 20 {
					if _, err := a.admit(key, fmt.Sprint(token), false); err == nil {
						held++
					}
				}
			}
			if held != c.want {
				t.Errorf("%+v: %d workers are held", c, held)
			}
			first, err := a.admit(last, "first", false)
			if err != nil {
				t.Fatalf("%+v: an account that holds no worker: %v", c, err)
			}
			if c.want < c.workers/2 || c.workers == 0 {
				return
			}
			if _, err := a.admit(last, "second", false); retryAfter(err) <= 0 {
				t.Errorf("%+v: its second machine: %v", c, err)
			}
			end, err := a.lookup(last)
			if err != nil {
				t.Fatalf("%+v: its lookup: %v", c, err)
			}
			end(result{answered: true})
			first.recordCreate(true)
			first.end(result{asked: first.began, answered: true})
			if token, _ := a.next(last); token != "second" {
				t.Errorf("%+v: %q is next", c, token)
			}
		})
	}
}

// TestAccountThatCanNotGoHoldsUpNobody: of accounts that the cloud throttles together, one has many
// machines waiting and can't go on. The machine of another one does not wait for them.
func TestAccountThatCanNotGoHoldsUpNobody(t *testing.T) {
	b := types.NamespacedName{Namespace: "b", Name: "account"}
	for name, c := range map[string]struct {
		workers int
		stop    func(a *admission, under []*turn)
	}{
		"all its slots are taken": {0, func(*admission, []*turn) {}},
		"its cloud is silent":     {0, func(_ *admission, under []*turn) { under[0].end(result{asked: under[0].began}) }},
		"the driver sent one back": {0, func(_ *admission, under []*turn) {
			under[0].end(result{asked: under[0].began, err: &cloud.Queued{After: time.Minute}})
		}},
		"it holds its workers": {8, func(*admission, []*turn) {}},
		"its own limit": {0, func(a *admission, under []*turn) {
			a.join(testKey, cloud.Limit{PerSecond: 0.01, Burst: 1}, 0, func() {})
			a.lanes[testKey].own.tokens = 0
			for _, turn := range under {
				turn.pay(cloud.ClassCreate)
				turn.end(result{asked: turn.began, answered: true})
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := joined(cloud.Limit{PerSecond: 1, Burst: 40}, &workers{all: c.workers}, testKey, b)
				var under []*turn
				for i := range 30 {
					if turn, err := a.admit(testKey, fmt.Sprint(i), false); err == nil {
						under = append(under, turn)
					}
				}
				c.stop(a, under)
				a.bucket.tokens = 1
				if _, err := a.admit(b, "m", false); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestAccountWithoutOthersUsesItsWorkers: an account without others may hold all workers but one.
// It leaves half of them once another one joins.
func TestAccountWithoutOthersUsesItsWorkers(t *testing.T) {
	for workers, want := range map[int][2]int{1: {1, 1}, 2: {1, 1}, 4: {3, 2}, 8: {7, 4}, 50: {maxConcurrentCreates, maxConcurrentCreates}} {
		synctest.Test(t, func(t *testing.T) {
			cl := newTestCloud(t)
			cl.latency = 10 * time.Second
			s := cl.begin(t, func(o *Options) { o.Workers = workers })
			a := s.account(t, createLimit("100", 100))
			held := func() (n int) {
				var mu sync.Mutex
				var all sync.WaitGroup
				for i := range 20 {
					all.Go(func() {
						if _, err := a.Ensure(t.Context(), request(fmt.Sprint(time.Now().Unix(), i)), nil); err == nil {
							mu.Lock()
							n++
							mu.Unlock()
						}
					})
				}
				all.Wait()
				time.Sleep(time.Minute)
				return n
			}
			alone := held()
			other := types.NamespacedName{Namespace: "other", Name: "account"}
			s.join(t, other)
			joined := held()
			s.Remove(other)
			if left := held(); alone != want[0] || joined != want[1] || left != want[0] {
				t.Errorf("%d workers: %d are held alone, %d with another account, and %d after it; want %v", workers, alone, joined, left, want)
			}
		})
	}
}
