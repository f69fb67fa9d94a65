// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drover-io/drover/cloud"
)

var seeds = flag.Int("seeds", 25, "random histories that TestNeverGoneWhileAlive goes through")

// TestNeverGoneWhileAlive runs random histories: machines are made, recorded, observed, vanish and
// are deleted, while calls fail in every way, reads lag, streams break or fall silent, credentials
// change and the process dies. Whenever a machine is Gone, none of it is alive or comes to life
// later. Other clusters' machines are not touched. Once the cloud works, all machines to be deleted
// are deleted.
func TestNeverGoneWhileAlive(t *testing.T) {
	for seed := range *seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { newHistory(t, uint64(seed)).run() })
		})
	}
}

// history is one run of random events.
type history struct {
	*testing.T
	cloud    *testCloud
	rand     *rand.Rand
	session  *session
	ctx      context.Context // of the process
	cancel   context.CancelFunc
	machines []*object
	work     sync.WaitGroup
	calm     bool
	stream   *stream // of a cloud that reports changes, or nil
}

// object is a DroverMachine as etcd holds it. Its lock is held by the worker that reconciles it.
type object struct {
	sync.Mutex
	ref      cloud.Reference
	deleting bool
	done     bool
}

func newHistory(t *testing.T, seed uint64) *history {
	h := &history{T: t, cloud: newTestCloud(t), rand: rand.New(rand.NewPCG(seed, 0))}
	c := h.cloud
	c.rand = rand.New(rand.NewPCG(seed, 1))
	c.lag = []time.Duration{0, 2 * time.Second, 10 * time.Second}[h.rand.IntN(3)]
	c.forgetsAfter = []time.Duration{0, time.Millisecond, 30 * time.Second}[h.rand.IntN(3)]
	c.dependants = h.rand.IntN(3)
	c.latency = time.Duration(h.rand.IntN(2000)) * time.Millisecond
	c.start = time.Duration(h.rand.IntN(30)) * time.Second
	c.stop = time.Duration(h.rand.IntN(20)) * time.Second
	if seed%2 == 1 {
		h.stream = &stream{delay: c.lag}
	}
	for i := range 12 {
		h.machines = append(h.machines, &object{ref: cloud.Reference{Token: fmt.Sprintf("token-%d", i), OwnershipID: "own"}})
	}
	c.with(func() {
		c.make("foreign", "foreign", "a")
		c.make("token-0", "foreign", "a") // a duplicate of a token that should be unique
		c.fault = h.randomFault
	})
	h.restart()
	return h
}

// randomFault returns what goes wrong with a call. It needs the cloud's lock.
func (h *history) randomFault(op string) fault {
	r := h.cloud.rand
	switch n := r.IntN(20); {
	case n < 2:
		return fault{code: string(cloud.Unavailable)}
	case n < 4 && op == "run":
		return fault{cut: true, late: time.Duration(1+r.IntN(40)) * time.Second}
	case n < 5:
		return fault{cut: true}
	case n < 6:
		return fault{broken: true}
	case n < 7:
		return fault{code: string(cloud.Throttled), retry: time.Duration(r.IntN(3)) * time.Second}
	default:
		return fault{}
	}
}

// restart begins a new process after the old one has died.
func (h *history) restart() {
	if h.session != nil {
		h.cancel()
		h.work.Wait()
		h.session.end()
	}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	h.Cleanup(h.cancel)
	var change []func(*Options)
	if h.stream != nil {
		change = append(change, h.cloud.withStreamOption(h.stream))
	}
	h.session = h.cloud.begin(h.T, change...)
	h.credentials()
}

// credentials sets the account's credentials to those that the cloud accepts now.
func (h *history) credentials() {
	var now string
	h.cloud.with(func() { now = h.cloud.credential })
	h.session.account(h.T, func(cfg *AccountConfig) { cfg.Credentials = map[string][]byte{"token": []byte(now)} })
}

func (h *history) run() {
	for end := time.Now().Add(10 * time.Minute); time.Now().Before(end); {
		h.event()
		time.Sleep(time.Duration(h.rand.IntN(2000)) * time.Millisecond)
	}
	h.calm = true
	h.cloud.setFault(nil)
	h.credentials()
	for _, m := range h.machines {
		m.Lock()
		m.deleting = true
		m.Unlock()
	}
	until(h.T, 10*time.Minute, "all are deleted", func() bool {
		left := 0
		for _, m := range h.machines[1:] {
			if h.reconcile(m); !m.isDone() {
				left++
			}
		}
		h.work.Wait()
		if a := h.session.Get(testKey); a != nil { // a person confirms what is in doubt
			if doubt := a.Inventory().MassAbsence; doubt != nil {
				a.Confirm(doubt.Digest)
			}
		}
		return left == 0
	})
	h.reconcile(h.machines[0])
	time.Sleep(time.Hour) // for whatever is still under way
	h.check()
	h.work.Wait()
	h.session.end()
}

func (m *object) isDone() bool {
	m.Lock()
	defer m.Unlock()
	return m.done
}

func (h *history) event() {
	m := h.machines[h.rand.IntN(len(h.machines))]
	switch n := h.rand.IntN(100); {
	case n < 1:
		h.restart()
	case n < 2:
		h.cloud.with(func() { h.cloud.credential = fmt.Sprint(n, h.rand.IntN(100)) })
	case n < 6:
		h.credentials()
	case n < 8:
		h.cloud.vanish(m.ref.Token, h.rand.IntN(2) == 0 && h.cloud.forgetsAfter > 0)
	case n < 10 && h.stream != nil:
		mute, breaks := h.rand.IntN(3) == 0, h.rand.IntN(3) == 0
		h.stream.set(func() {
			h.stream.silent, h.stream.err = mute, nil
			if breaks {
				h.stream.err = cloud.Errorf(cloud.Unavailable, "cut")
			}
		})
	case n < 12:
		if m.TryLock() {
			m.deleting = true
			m.Unlock()
		}
	default:
		h.reconcile(m)
	}
}

// reconcile does one step for a machine, as its controller would, unless a step is under way.
func (h *history) reconcile(m *object) {
	if !m.TryLock() {
		return
	}
	h.work.Add(1)
	ctx, a, dies := h.ctx, h.session.Get(testKey), h.rand.IntN(10) == 0 && !h.calm
	go func() {
		defer h.work.Done()
		defer m.Unlock()
		switch {
		case m.done:
		case m.deleting:
			if isGone(a, &m.ref) {
				m.done = true
				a.Forget(m.ref.Token)
				h.cloud.with(func() { h.hasEnded(m) })
			}
		case m.ref.ProviderID == "":
			made, err := a.Ensure(ctx, request(m.ref.Token), nil)
			if err == nil && !dies { // otherwise the process dies before it records the ID
				m.ref.ProviderID = made.ProviderID
			}
		default:
			if a.Observe(m.ref, true).Gone {
				h.cloud.with(func() {
					for _, r := range h.cloud.resources {
						if r.Token == m.ref.Token && r.OwnershipID == "own" && r.Kind == cloud.KindInstance && r.State != cloud.StateTerminated {
							h.Errorf("%s is said to be gone, and %s is %s", m.ref.Token, r.ID, r.State)
						}
					}
				})
			}
		}
	}()
}

// check checks that deleted machines stayed deleted, and that other clusters' machines still exist.
func (h *history) check() {
	h.cloud.with(func() {
		for _, m := range h.machines[1:] {
			h.hasEnded(m)
		}
		if ids := h.otherClusters(); !slices.Equal(ids, []string{"i-0001", "i-0002"}) {
			h.Errorf("of another cluster's machines there are %v", ids)
		}
	})
}

// hasEnded checks that nothing of a machine is alive.
func (h *history) hasEnded(m *object) {
	for id, r := range h.cloud.resources {
		if r.Token == m.ref.Token && r.State != cloud.StateTerminated {
			h.Errorf("%s is said to be deleted, and %s is %s", m.ref.Token, id, r.State)
		}
	}
}

func (h *history) otherClusters() (alive []string) {
	for id, r := range h.cloud.resources {
		if r.OwnershipID == "foreign" && r.Kind == cloud.KindInstance && r.State == cloud.StateRunning {
			alive = append(alive, id)
		}
	}
	slices.Sort(alive)
	return alive
}
