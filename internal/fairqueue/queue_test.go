// SPDX-License-Identifier: Apache-2.0

package fairqueue

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
)

// targetOf reads a key such as "team/cluster/7".
func targetOf(key string) types.NamespacedName {
	parts := strings.SplitN(key, "/", 3)
	return types.NamespacedName{Namespace: parts[0], Name: parts[1]}
}

// hanging are targets that hang.
type hanging struct {
	mu  sync.Mutex
	set map[types.NamespacedName]bool
}

func (h *hanging) hangs(target types.NamespacedName) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.set[target]
}

func (h *hanging) record(hangs bool, targets ...string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, t := range targets {
		if h.set == nil {
			h.set = map[types.NamespacedName]bool{}
		}
		h.set[targetOf(t+"/")] = hangs
	}
}

func newTestQueue(t testing.TB, workers int, h *hanging) *Queue[string] {
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[string](time.Second, time.Minute)
	q := New("", limiter, Rules[string]{Workers: workers, TargetOf: targetOf, Hangs: h.hangs})
	t.Cleanup(q.ShutDown)
	return q
}

// crew are a controller's workers. Each works on a key until it is told to finish.
type crew struct {
	t  *testing.T
	mu sync.Mutex
	// running holds the keys in work, all the keys in the order in which they began.
	running map[string]chan struct{}
	all     []string
}

func work(t *testing.T, q *Queue[string], workers int) *crew {
	c := &crew{t: t, running: map[string]chan struct{}{}}
	for range workers {
		go func() {
			for {
				key, shutdown := q.Get()
				if shutdown {
					return
				}
				<-c.begin(key)
				q.Done(key)
			}
		}()
	}
	t.Cleanup(func() {
		q.ShutDown()
		c.finish(c.keys()...)
	})
	return c
}

func (c *crew) begin(key string) chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running[key] != nil {
		c.t.Errorf("%s runs twice at once", key)
	}
	c.running[key] = make(chan struct{})
	c.all = append(c.all, key)
	return c.running[key]
}

func (c *crew) finish(keys ...string) {
	for _, key := range keys {
		c.mu.Lock()
		if c.running[key] == nil {
			c.t.Errorf("%s does not run", key)
		} else {
			close(c.running[key])
			delete(c.running, key)
		}
		c.mu.Unlock()
	}
}

// keys returns the keys in work.
func (c *crew) keys() (keys []string) {
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	for key := range c.running {
		keys = append(keys, key)
	}
	return keys
}

// began returns the keys in the order in which they began.
func (c *crew) began() []string {
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.all)
}

// count returns how many keys with a prefix are in work.
func (c *crew) count(prefix string) (n int) {
	for _, key := range c.keys() {
		if strings.HasPrefix(key, prefix) {
			n++
		}
	}
	return n
}

func (c *crew) want(prefix string, want int) {
	c.t.Helper()
	if n := c.count(prefix); n != want {
		c.t.Errorf("%d keys of %q are in work, want %d: %v", n, prefix, want, c.keys())
	}
}

func add(q *Queue[string], target string, n int) {
	for i := range n {
		q.Add(fmt.Sprintf("%s/%d", target, i))
	}
}

func TestATargetThatHangsHoldsOneWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hanging{}
		h.record(true, "a/slow")
		q := newTestQueue(t, 8, h)
		c := work(t, q, 8)
		add(q, "a/slow", 20)
		c.want("a/slow", 1)
		add(q, "a/good", 3) // the same tenant's other clusters go on
		c.want("a/good", 3)
		c.finish("a/slow/0")
		c.want("a/slow/1", 1)
		c.want("a/slow", 1)
		h.record(false, "a/slow") // it answers: nobody tells the queue, but the call that was answered ends
		c.finish("a/slow/1")
		c.want("a/slow", 5)
	})
}

func TestTargetsThatHangHoldAQuarterOfTheWorkers(t *testing.T) {
	for _, test := range []struct{ workers, want int }{{1, 1}, {2, 1}, {7, 1}, {8, 2}, {50, 12}, {100, 25}} {
		t.Run(fmt.Sprint(test.workers), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := &hanging{}
				q := newTestQueue(t, test.workers, h)
				c := work(t, q, test.workers)
				for i := range 30 { // each in a namespace of its own
					h.record(true, fmt.Sprintf("slow%d/c", i))
					add(q, fmt.Sprintf("slow%d/c", i), 2)
				}
				c.want("slow", test.want)
				add(q, "good/c", test.workers)
				c.want("good", test.workers-test.want)
				if waiting := q.Len(); waiting != 60 {
					t.Errorf("%d keys wait, want 60", waiting)
				}
			})
		})
	}
}

// Targets that hang take turns, so that one that answers again is soon found.
func TestTargetsThatHangTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hanging{}
		q := newTestQueue(t, 4, h)
		c := work(t, q, 4)
		for _, target := range []string{"a/c", "b/c", "b/d"} {
			h.record(true, target)
			add(q, target, 3)
		}
		for range 9 {
			c.finish(c.keys()...)
		}
		var order []string
		for _, key := range c.began() {
			order = append(order, key[:3])
		}
		if got := strings.Join(order[:6], " "); got != "a/c b/c a/c b/d a/c b/c" {
			t.Errorf("the order is %s", got)
		}
	})
}

func TestANamespaceLeavesHalfOfTheWorkersToOthersThatWait(t *testing.T) {
	for _, test := range []struct{ workers, half int }{{2, 1}, {3, 1}, {10, 5}, {50, 25}} {
		t.Run(fmt.Sprint(test.workers), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := newTestQueue(t, test.workers, &hanging{})
				for i := range 100 {
					add(q, fmt.Sprintf("many/c%d", i), 2)
				}
				add(q, "few/c", test.workers) // behind all others
				c := work(t, q, test.workers)
				c.want("many", test.half)
				c.want("few", min(test.half, test.workers-test.half))
			})
		})
	}
}

func TestALoneNamespaceUsesAllWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hanging{}
		h.record(true, "other/slow")
		q := newTestQueue(t, 10, h)
		c := work(t, q, 10)
		add(q, "other/slow", 5) // those that may not start anyway do not count
		c.want("other", 1)
		add(q, "lone/c", 20)
		c.want("lone", 9)
		add(q, "new/c", 9)
		for range 4 {
			key := ""
			for _, key = range c.keys() {
				if strings.HasPrefix(key, "lone") {
					break
				}
			}
			c.finish(key)
		}
		c.want("new", 4)
		c.want("lone", 5)
	})
}

// TestAReserveIsForOtherNamespaces: a namespace that is alone leaves the reserve, so that a key of
// another one starts at once.
func TestAReserveIsForOtherNamespaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newTestQueue(t, 8, &hanging{})
		q.rules.Reserve = 2
		c := work(t, q, 8)
		for i := range 20 {
			add(q, fmt.Sprintf("busy/cluster-%d", i), 1)
		}
		c.want("busy/", 6)
		add(q, "other/cluster", 1)
		c.want("other/", 1)
		c.want("busy/", 6)
		for len(c.keys()) > 0 {
			c.finish(c.keys()...)
		}
		if n := len(c.began()); n != 21 {
			t.Errorf("%d keys ran, want 21", n)
		}
	})
}

func TestNamespacesTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newTestQueue(t, 1, &hanging{})
		add(q, "a/c", 100)
		add(q, "b/c", 100)
		add(q, "late/c", 1)
		c := work(t, q, 1)
		for range 2 {
			c.finish(c.keys()...)
		}
		if c.want("late/c/0", 1); c.began()[0] != "a/c/0" || c.began()[1] != "b/c/0" {
			t.Errorf("the order is %v", c.began())
		}
	})
}

func TestWhatIsAddedWhileAKeyWaitsIsMerged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hanging{}
		h.record(true, "a/c")
		q := newTestQueue(t, 2, h)
		c := work(t, q, 2)
		add(q, "a/c", 3)
		c.want("a/c/0", 1)
		for range 5 {
			q.Add("a/c/1")              // waits
			q.AddAfter("a/c/2", 0)      // waits
			q.Add("a/c/0")              // runs: it runs once more
			q.AddRateLimited("a/other") // another target
		}
		for range 6 {
			time.Sleep(time.Hour)
			c.finish(c.keys()...)
		}
		if c.want("", 0); len(c.began()) != 5 {
			t.Errorf("these ran: %v", c.began())
		}
	})
}

// A key that runs before its delay is over does not run again at the end of that delay.
func TestAKeyThatIsAddedBeforeItsDelayIsOverRunsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newTestQueue(t, 1, &hanging{})
		c := work(t, q, 1)
		ran := func(want int, when string) {
			t.Helper()
			for c.count("") > 0 {
				c.finish(c.keys()...)
			}
			if len(c.began()) != want {
				t.Errorf("%s: ran %d times, want %d", when, len(c.began()), want)
			}
		}
		const key = "a/c/0"
		q.AddAfter(key, time.Minute)
		q.AddAfter(key, time.Hour) // the shortest delay wins
		q.Add(key)
		ran(1, "at once")
		q.AddAfter(key, 2*time.Minute) // as a reconcile asks at its end
		time.Sleep(90 * time.Second)
		ran(1, "after the first delay")
		time.Sleep(31 * time.Second)
		ran(2, "after the second delay")
		q.Add(key)
		c.want(key, 1)
		q.Add(key)
		q.AddAfter(key, time.Second) // it runs again in any case
		ran(4, "added while it ran")
		time.Sleep(time.Hour)
		ran(4, "later")
		q.Add(key)
		c.want(key, 1)
		q.AddAfter(key, time.Second)
		time.Sleep(time.Minute) // the delay is over while the key runs
		ran(6, "due while it ran")
		time.Sleep(time.Hour)
		ran(6, "at the end")
	})
}

func TestPriorities(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newTestQueue(t, 1, &hanging{})
		low, high := priorityqueue.AddOpts{Priority: ptr.To(-100)}, priorityqueue.AddOpts{Priority: ptr.To(5)}
		q.AddWithOpts(low, "a/c/low", "a/c/raised", "b/c/low")
		q.AddWithOpts(high, "a/c/raised")
		q.AddWithOpts(priorityqueue.AddOpts{After: time.Minute, Priority: ptr.To(7)}, "b/c/later")
		q.AddWithOpts(low, "a/c/added")
		q.Add("a/c/added")
		var got []string
		for q.Len() > 0 {
			key, priority, _ := q.GetWithPriority()
			got = append(got, fmt.Sprint(key, priority))
			q.Done(key)
		}
		time.Sleep(time.Hour)
		key, priority, _ := q.GetWithPriority()
		got = append(got, fmt.Sprint(key, priority))
		q.Done(key)
		if want := "[a/c/raised5 a/c/added0 b/c/low-100 a/c/low-100 b/c/later7]"; fmt.Sprint(got) != want {
			t.Errorf("got  %v\nwant %s", got, want)
		}
	})
}

func TestShutDown(t *testing.T) {
	for name, shutDown := range map[string]func(*Queue[string]){
		"at once": (*Queue[string]).ShutDown, "with drain": (*Queue[string]).ShutDownWithDrain,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := &hanging{}
				h.record(true, "a/c")
				q := newTestQueue(t, 4, h)
				c := work(t, q, 4) // one will work, three wait in Get
				add(q, "a/c", 3)
				c.want("a/c", 1)
				ended := make(chan struct{})
				go func() { shutDown(q); close(ended) }()
				synctest.Wait()
				c.finish("a/c/0")
				<-ended
				c.want("", 0)
				if _, shutdown := q.Get(); !shutdown || len(c.began()) != 1 || !q.ShuttingDown() {
					t.Errorf("the queue goes on: %v", c.began())
				}
			})
		})
	}
}

// TestRulesHoldAtEachChoice compares each choice with the rules, read from all that waits and has
// started.
func TestRulesHoldAtEachChoice(t *testing.T) {
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 0))
		h := &hanging{}
		workers := 1 + random.IntN(12)
		q := newTestQueue(t, workers, h)
		for range 400 {
			target := fmt.Sprintf("n%d/c%d", random.IntN(4), random.IntN(3))
			switch random.IntN(5) {
			case 0, 1:
				q.Add(fmt.Sprintf("%s/%d", target, random.IntN(5)))
			case 2:
				h.record(random.IntN(2) == 0, target)
			case 3:
				for key := range q.started {
					q.Done(key)
					break
				}
			case 4:
				if len(q.started) < workers {
					checkChoice(t, q, h, workers)
				}
			}
		}
	}
}

func checkChoice(t *testing.T, q *Queue[string], h *hanging, workers int) {
	t.Helper()
	half, quarter := max(1, workers/2), max(1, workers/4)
	started, startedOf, hang := map[string]int{}, map[types.NamespacedName]int{}, 0
	for key := range q.started {
		target := targetOf(key)
		started[target.Namespace]++
		startedOf[target]++
		if h.hangs(target) {
			hang++
		}
	}
	able := map[string]bool{} // but for the namespace
	for key := range q.waiting {
		target := targetOf(key)
		if !h.hangs(target) || startedOf[target] == 0 && hang < quarter {
			able[key] = true
		}
	}
	may := map[string]bool{}
	for key := range able {
		others := false
		for other := range able {
			others = others || targetOf(other).Namespace != targetOf(key).Namespace
		}
		if started[targetOf(key).Namespace] < half || !others {
			may[key] = true
		}
	}
	e := q.choose(q.rules)
	switch {
	case e == nil && len(may) > 0:
		t.Fatalf("none is chosen of %v", may)
	case e != nil && !may[e.key]:
		t.Fatalf("%s is chosen, not one of %v", e.key, may)
	case e == nil && len(q.waiting) > 0 && len(q.started) == 0:
		t.Fatal("keys wait for nothing")
	}
	if e != nil {
		q.chosen = append(q.chosen, e)
		q.TypedRateLimitingInterface.Get() // as the worker does
	}
}

// TestEveryKeyRuns lets targets begin and cease to hang while keys come, and workers work.
func TestEveryKeyRuns(t *testing.T) {
	for seed := range uint64(50) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			h := &hanging{}
			workers := 1 + random.IntN(9)
			q := newTestQueue(t, workers, h)
			var mu sync.Mutex
			running, due := map[string]bool{}, map[string]bool{}
			for range workers {
				go func() {
					for {
						key, shutdown := q.Get()
						if shutdown {
							return
						}
						mu.Lock()
						if running[key] {
							t.Errorf("%s runs twice at once", key)
						}
						running[key] = true
						delete(due, key)
						took, hangs := time.Duration(random.IntN(1000))*time.Millisecond, random.IntN(3) == 0
						mu.Unlock()
						time.Sleep(took)
						h.record(hangs, targetOf(key).String())
						mu.Lock()
						delete(running, key)
						if random.IntN(4) == 0 { // as a reconcile that asks for another one
							due[key] = true
							q.AddAfter(key, time.Duration(random.IntN(3))*time.Second)
						}
						mu.Unlock()
						q.Done(key)
					}
				}()
			}
			for range 500 {
				mu.Lock()
				key := fmt.Sprintf("n%d/c%d/%d", random.IntN(5), random.IntN(4), random.IntN(4))
				due[key] = true
				pause := time.Duration(random.IntN(100)) * time.Millisecond
				after := time.Duration(random.IntN(3)) * time.Second
				mu.Unlock()
				q.AddAfter(key, after)
				time.Sleep(pause)
			}
			time.Sleep(time.Hour)
			mu.Lock()
			defer mu.Unlock()
			if len(due) > 0 || q.Len() > 0 {
				t.Errorf("seed %d: these did not run: %v", seed, due)
			}
		})
	}
}

// BenchmarkLoneNamespace compares the queue with controller-runtime's, for one namespace.
func BenchmarkLoneNamespace(b *testing.B) {
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[string](time.Second, time.Minute)
	const workers, keys = 50, 5000
	for name, queue := range map[string]priorityqueue.PriorityQueue[string]{
		"fair":     New("", limiter, Rules[string]{Workers: workers, TargetOf: targetOf, Hangs: (&hanging{}).hangs}),
		"priority": priorityqueue.New("", func(o *priorityqueue.Opts[string]) { o.RateLimiter = limiter }),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			names := make([]string, keys)
			for i := range names {
				names[i] = fmt.Sprintf("lone/c%d/%d", i%10, i)
			}
			var all sync.WaitGroup
			for range workers {
				go func() {
					for {
						key, shutdown := queue.Get()
						if shutdown {
							return
						}
						queue.Done(key)
						all.Done()
					}
				}()
			}
			for b.Loop() {
				all.Add(keys)
				for _, key := range names {
					queue.Add(key)
				}
				all.Wait()
			}
			queue.ShutDown()
		})
	}
}
