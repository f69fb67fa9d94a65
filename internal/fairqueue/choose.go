// SPDX-License-Identifier: Apache-2.0

package fairqueue

import (
	"container/heap"

	"k8s.io/apimachinery/pkg/types"
)

// state is what waits and what has started.
type state[T comparable] struct {
	clock   uint64 // counts what is added and chosen
	waiting map[T]*entry[T]
	// fresh are the waiting keys that are in no line yet. They are put into lines when a worker is
	// idle: until then, the objects that tell their targets may not be in the cache.
	fresh []*entry[T]
	lines map[types.NamespacedName]*line[T] // never empty ones

	started   map[T]*entry[T]
	startedOf map[types.NamespacedName]int
	tenants   map[string]*tenant // those with a line or a started key
}

// entry is a key that waits or has started.
type entry[T comparable] struct {
	key      T
	target   types.NamespacedName
	priority int
	added    uint64
	line     *line[T] // nil if it is in none
	index    int      // in the line
	again    bool     // it was added while it ran
}

// tenant is a namespace.
type tenant struct {
	served         uint64 // when a key of the namespace was last chosen
	lines, started int
}

// raise raises the priority of a waiting key.
func (e *entry[T]) raise(priority int) {
	if priority <= e.priority {
		return
	}
	e.priority = priority
	if e.line != nil {
		heap.Fix(e.line, e.index)
	}
}

// add adds a waiting key.
func (s *state[T]) add(e *entry[T]) {
	s.clock++
	e.added = s.clock
	s.waiting[e.key] = e
	s.fresh = append(s.fresh, e)
}

// choose takes the next key that may start, and counts it as started. It returns nil if none may.
func (s *state[T]) choose(rules Rules[T]) *entry[T] {
	s.sortFresh(rules.TargetOf)
	r := &round[T]{state: s, rules: rules, half: max(1, rules.Workers/2)}
	var best *line[T]
	for _, l := range s.lines {
		if (best == nil || r.before(l, best)) && !r.waits(l) {
			best = l
		}
	}
	if best == nil || best.tenant.started >= r.half && r.otherWaits(best.tenant) {
		return nil
	}
	return s.start(best)
}

// sortFresh puts the fresh keys into lines.
func (s *state[T]) sortFresh(targetOf func(T) types.NamespacedName) {
	for _, e := range s.fresh {
		e.target = targetOf(e.key)
		l := s.lines[e.target]
		if l == nil {
			l = &line[T]{target: e.target, tenant: s.tenant(e.target.Namespace)}
			l.tenant.lines++
			s.lines[e.target] = l
		}
		heap.Push(l, e)
	}
	clear(s.fresh)
	s.fresh = s.fresh[:0]
}

func (s *state[T]) tenant(namespace string) *tenant {
	t := s.tenants[namespace]
	if t == nil {
		t = &tenant{}
		s.tenants[namespace] = t
	}
	return t
}

// start takes the first key of a line.
func (s *state[T]) start(l *line[T]) *entry[T] {
	s.clock++
	e := heap.Pop(l).(*entry[T])
	delete(s.waiting, e.key)
	if l.Len() == 0 {
		delete(s.lines, l.target)
		l.tenant.lines--
	}
	l.served, l.tenant.served = s.clock, s.clock
	l.tenant.started++
	s.started[e.key] = e
	s.startedOf[e.target]++
	return e
}

// end forgets a started key.
func (s *state[T]) end(key T) {
	e := s.started[key]
	if e == nil {
		return // Done without Get
	}
	delete(s.started, key)
	if s.startedOf[e.target]--; s.startedOf[e.target] == 0 {
		delete(s.startedOf, e.target)
	}
	t := s.tenants[e.target.Namespace]
	if t.started--; t.started == 0 && t.lines == 0 {
		delete(s.tenants, e.target.Namespace)
	}
}

// round is one choice. It asks no more often than it must whether a target hangs.
type round[T comparable] struct {
	*state[T]
	rules   Rules[T]
	half    int
	counted bool
	hanging int // started keys of targets that hang, once counted
}

// before reports whether the first key of a is chosen before that of b, if both may start. A
// namespace that holds half of the workers comes last, so it is chosen only if no other may start.
func (r *round[T]) before(a, b *line[T]) bool {
	x, y := a.entries[0], b.entries[0]
	switch full, other := a.tenant.started >= r.half, b.tenant.started >= r.half; {
	case full != other:
		return other
	case x.priority != y.priority:
		return x.priority > y.priority
	case a.tenant.served != b.tenant.served:
		return a.tenant.served < b.tenant.served
	case a.served != b.served:
		return a.served < b.served
	}
	return x.added < y.added
}

// waits reports whether the keys of a line wait, whoever else waits.
func (r *round[T]) waits(l *line[T]) bool {
	return l.tenant.started >= r.rules.Workers-r.rules.Reserve || r.waitsForTarget(l.target)
}

// waitsForTarget reports whether the keys of a target wait because it hangs.
func (r *round[T]) waitsForTarget(target types.NamespacedName) bool {
	if !r.hangs(target) {
		return false
	}
	if r.startedOf[target] > 0 {
		return true
	}
	if !r.counted {
		r.counted = true
		for other, started := range r.startedOf {
			if r.hangs(other) {
				r.hanging += started
			}
		}
	}
	return r.hanging >= max(1, r.rules.Workers/4)
}

func (r *round[T]) hangs(target types.NamespacedName) bool {
	return target.Name != "" && r.rules.Hangs(target)
}

// otherWaits reports whether a key of another namespace waits that may start but for its namespace.
func (r *round[T]) otherWaits(t *tenant) bool {
	for _, l := range r.lines {
		if l.tenant != t && !r.waits(l) {
			return true
		}
	}
	return false
}
