// SPDX-License-Identifier: Apache-2.0

// Package fairqueue is the work queue of controllers whose work leaves the management cluster. Such
// work waits for others: for the API server of a workload cluster, or for a cloud. The queue keeps
// one tenant from holding all workers of a controller that serves all tenants.
//
// Each key works for one cluster or account, its target. The queue decides which waiting key is
// next:
//
//   - A target that hangs, because its last call ended by its deadline, holds one worker. All such
//     targets together hold at most a quarter of the workers, and at least one.
//   - While a key of another namespace waits and may start, a namespace holds at most half of the
//     workers, and at least one. While none waits, it may hold all but a reserve.
//   - Otherwise the higher priority is first, then the namespace that has waited longest, then its
//     target that has waited longest. Within a target, keys of one priority start in their order.
//
// A key that may not start yet stays in the queue. It is neither requeued nor handed out, so what
// is added meanwhile is merged with it, and it counts in the queue's depth.
//
// # Which part does what
//
// The queue is client-go's: it merges, delays, limits rates and measures. Only its storage is
// replaced, by which client-go lets a program choose what is next. (The priority queue of
// controller-runtime has no such place, and does not tell what waits in it.) What that queue can do
// and client-go's can't is added here: priorities, and that a key which is added before its delay
// is over is not added again at its end.
//
// # How a worker wakes up
//
// There is one decision, dispatch. While a worker is idle and a key may start, it takes the key out
// of the waiting ones, counts it as started, and wakes one worker. It runs after each of the three
// events that can change its result: a key comes, a worker becomes idle, a started key is done.
//
// A target that hangs no more is not an event of its own, and needs none: each rule by which a key
// waits names a key that has started and is not done, of the same target, of another target that
// hangs, or of the same namespace. When that key is done, dispatch looks again. So no key waits in
// a queue in which nothing has started and a worker is idle. Nothing polls, and no key is taken out
// and put back.
package fairqueue

import (
	"container/heap"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
)

// Rules say how a queue divides its workers.
type Rules[T comparable] struct {
	// Workers is how many workers the controller has.
	Workers int
	// Reserve is how many workers no namespace gets even if no other waits: fewer than Workers. It
	// is for work that takes long before anybody knows that its target hangs.
	Reserve int
	// TargetOf returns the cluster or account that a key works for. Its namespace is the key's. Its
	// name is empty if the key works for none. TargetOf must not call out.
	TargetOf func(T) types.NamespacedName
	// Hangs reports whether the last call to a target ended by its deadline. It must not call out,
	// nor take a lock that is held where a key is added.
	Hangs func(target types.NamespacedName) bool
}

// Queue is a work queue that divides its workers fairly.
type Queue[T comparable] struct {
	workqueue.TypedRateLimitingInterface[T]
	limiter workqueue.TypedRateLimiter[T]

	mu      sync.Mutex // may be taken while the inner queue's lock is held, never the other way round
	turn    *sync.Cond // a key was chosen, or the queue was shut down
	rules   Rules[T]
	stopped bool
	idle    int // workers that wait, and for which no key is chosen
	chosen  []*entry[T]
	claims  int // chosen keys for which no worker has come
	state[T]
	// priorities are those of keys that were added and do not wait: delayed ones, and ones that
	// are added again while they run.
	priorities map[T]int
	// due is when delayed keys are added. A key that is added before is not delayed any more.
	due  map[T]time.Time
	base workqueue.TypedInterface[T] // without delays
}

var _ priorityqueue.PriorityQueue[string] = &Queue[string]{}

// New returns a queue. Its metrics have the name of the controller.
func New[T comparable](name string, limiter workqueue.TypedRateLimiter[T], rules Rules[T]) *Queue[T] {
	q := &Queue[T]{
		limiter: limiter, rules: rules, priorities: map[T]int{}, due: map[T]time.Time{},
		state: state[T]{
			waiting: map[T]*entry[T]{}, lines: map[types.NamespacedName]*line[T]{}, tenants: map[string]*tenant{},
			started: map[T]*entry[T]{}, startedOf: map[types.NamespacedName]int{},
		},
	}
	q.turn = sync.NewCond(&q.mu)
	q.base = workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[T]{Name: name, Queue: storage[T]{q}})
	q.TypedRateLimitingInterface = workqueue.NewTypedRateLimitingQueueWithConfig(limiter, workqueue.TypedRateLimitingQueueConfig[T]{
		Name:          name,
		DelayingQueue: workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[T]{Name: name, Queue: gate[T]{q.base, q}}),
	})
	return q
}

// AddWithOpts adds keys after a delay, or at once.
func (q *Queue[T]) AddWithOpts(o priorityqueue.AddOpts, keys ...T) {
	for _, key := range keys {
		after := o.After
		if o.RateLimited {
			if limit := q.limiter.When(key); after == 0 || limit < after {
				after = limit
			}
		}
		switch merged := q.record(key, after, ptr.Deref(o.Priority, 0)); {
		case merged:
		case after > 0:
			q.TypedRateLimitingInterface.AddAfter(key, after)
		default:
			q.base.Add(key)
		}
	}
}

// Add adds a key at once.
func (q *Queue[T]) Add(key T) { q.AddWithOpts(priorityqueue.AddOpts{}, key) }

// AddAfter adds a key after a delay.
func (q *Queue[T]) AddAfter(key T, after time.Duration) {
	q.AddWithOpts(priorityqueue.AddOpts{After: after}, key)
}

// AddRateLimited adds a key after its rate limit.
func (q *Queue[T]) AddRateLimited(key T) {
	q.AddWithOpts(priorityqueue.AddOpts{RateLimited: true}, key)
}

// record records the priority and the delay with which a key is added. The highest priority and the
// shortest delay win. merged: the key is added already.
func (q *Queue[T]) record(key T, after time.Duration, priority int) (merged bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if e := q.waiting[key]; e != nil {
		e.raise(priority)
		return true
	}
	if known, ok := q.priorities[key]; !ok || priority > known {
		q.priorities[key] = priority
	}
	e := q.started[key]
	if after <= 0 {
		delete(q.due, key)
		if e != nil {
			e.again = true
		}
		return false
	}
	at := time.Now().Add(after)
	if known, ok := q.due[key]; e != nil && e.again || ok && known.Before(at) {
		return true
	}
	q.due[key] = at
	return false
}

// gate is between the inner queue's delays and its storage. It stops keys that were added before
// their delay was over, as controller-runtime's queue does.
type gate[T comparable] struct {
	workqueue.TypedInterface[T]
	q *Queue[T]
}

// Add is called when a delay is over. The inner queue keeps the shortest that a key ever had.
func (g gate[T]) Add(key T) {
	switch left, delayed := g.q.expire(key); {
	case !delayed:
	case left > 0:
		go g.q.TypedRateLimitingInterface.AddAfter(key, left) // the caller receives it, and must not wait for itself
	default:
		g.TypedInterface.Add(key)
	}
}

// expire ends a key's delay, unless some of it is left.
func (q *Queue[T]) expire(key T) (left time.Duration, delayed bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	at, delayed := q.due[key]
	if left = time.Until(at); !delayed || left > 0 {
		return left, delayed
	}
	delete(q.due, key)
	if e := q.started[key]; e != nil {
		e.again = true
	}
	return 0, true
}

// Get returns the next key that may start. It waits until there is one.
func (q *Queue[T]) Get() (key T, shutdown bool) {
	key, _, shutdown = q.GetWithPriority()
	return key, shutdown
}

// GetWithPriority is Get. It also returns the key's priority.
func (q *Queue[T]) GetWithPriority() (key T, priority int, shutdown bool) {
	if !q.claim() {
		return key, 0, true
	}
	// This does not wait: each claim is for a key that the storage holds.
	key, shutdown = q.TypedRateLimitingInterface.Get()
	q.mu.Lock()
	defer q.mu.Unlock()
	return key, q.started[key].priority, shutdown
}

// claim waits until a key is chosen for the worker. It returns false if the queue was shut down.
func (q *Queue[T]) claim() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.idle++
	q.dispatch()
	for q.claims == 0 && !q.stopped {
		q.turn.Wait()
	}
	if q.stopped {
		return false
	}
	q.claims--
	return true
}

// dispatch chooses a key for each idle worker, as long as a key may start.
func (q *Queue[T]) dispatch() {
	for q.idle > 0 && !q.stopped {
		e := q.choose(q.rules)
		if e == nil {
			return
		}
		q.idle--
		q.claims++
		q.chosen = append(q.chosen, e)
		q.turn.Signal()
	}
}

// Done records that a worker has finished with a key.
func (q *Queue[T]) Done(key T) {
	q.mu.Lock()
	q.end(key) // first, for the inner queue may return the key to the storage
	q.mu.Unlock()
	q.TypedRateLimitingInterface.Done(key)
	q.mu.Lock()
	defer q.mu.Unlock()
	q.dispatch()
}

// Len returns how many keys wait for a worker, whether or not they may start.
func (q *Queue[T]) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.waiting) + len(q.chosen)
}

// ShutDown ends the queue. Workers get no key any more.
func (q *Queue[T]) ShutDown() {
	q.stop()
	q.TypedRateLimitingInterface.ShutDown()
}

// ShutDownWithDrain is ShutDown. It also waits until all workers have finished with their keys.
func (q *Queue[T]) ShutDownWithDrain() {
	q.stop()
	q.TypedRateLimitingInterface.ShutDownWithDrain()
}

func (q *Queue[T]) stop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.stopped = true
	q.turn.Broadcast()
}

// storage is where the inner queue keeps the keys that are due. The inner queue calls it with its
// lock held.
type storage[T comparable] struct{ q *Queue[T] }

// Touch is called when a key that is here is added again. If it is chosen, it will not run twice,
// and a priority is too late.
func (s storage[T]) Touch(key T) {
	s.q.mu.Lock()
	defer s.q.mu.Unlock()
	if e := s.q.started[key]; e != nil {
		e.again = false
		delete(s.q.priorities, key)
	}
}

// Push is called when a key is due that does not run.
func (s storage[T]) Push(key T) {
	s.q.mu.Lock()
	defer s.q.mu.Unlock()
	e := &entry[T]{key: key, priority: s.q.priorities[key]}
	delete(s.q.priorities, key)
	s.q.add(e)
	s.q.dispatch()
}

// Len tells the inner queue how many keys are chosen. The others do not concern it yet.
func (s storage[T]) Len() int {
	s.q.mu.Lock()
	defer s.q.mu.Unlock()
	return len(s.q.chosen)
}

// Pop is called for a worker for which a key is chosen.
func (s storage[T]) Pop() T {
	s.q.mu.Lock()
	defer s.q.mu.Unlock()
	e := s.q.chosen[0]
	s.q.chosen[0] = nil
	s.q.chosen = s.q.chosen[1:]
	return e.key
}

// line is a heap of the keys that wait for one target: the highest priority first, then the oldest.
type line[T comparable] struct {
	target  types.NamespacedName
	tenant  *tenant
	served  uint64 // when a key of the line was last chosen
	entries []*entry[T]
}

var _ heap.Interface = &line[string]{}

func (l *line[T]) Len() int { return len(l.entries) }

func (l *line[T]) Less(i, j int) bool {
	a, b := l.entries[i], l.entries[j]
	if a.priority != b.priority {
		return a.priority > b.priority
	}
	return a.added < b.added
}

func (l *line[T]) Swap(i, j int) {
	l.entries[i], l.entries[j] = l.entries[j], l.entries[i]
	l.entries[i].index, l.entries[j].index = i, j
}

// Push implements heap.Interface.
func (l *line[T]) Push(x any) {
	e := x.(*entry[T])
	e.line, e.index = l, len(l.entries)
	l.entries = append(l.entries, e)
}

// Pop implements heap.Interface.
func (l *line[T]) Pop() any {
	last := len(l.entries) - 1
	e := l.entries[last]
	l.entries[last] = nil
	l.entries = l.entries[:last]
	e.line = nil
	return e
}
