// SPDX-License-Identifier: Apache-2.0

// Package budget divides an amount among namespaces, so that what one tenant makes the manager keep
// leaves room for what the others need. It knows nothing of what is kept, and drops nothing.
package budget

import "sync"

// Budget is an amount, such as bytes of memory, that the holders of all namespaces share. A
// namespace may have half of it. If no more is left, each namespace still gets half of an equal
// share. A namespace keeps what it has when others come, so that together they may exceed the
// amount: 10 namespaces by at most 72 %, and 50 by at most 150 %.
type Budget struct {
	total int64

	mu     sync.Mutex
	used   int64
	shares map[string]*share // by namespace
}

type share struct {
	used    int64
	holders map[any]int64
}

// New returns a budget of this amount.
func New(total int64) *Budget { return &Budget{total: total, shares: map[string]*share{}} }

// Set replaces what a holder of the namespace has; 0 removes the holder. A holder is anything that
// can be a map's key. Set reports false, and
// changes nothing, if the namespace would have more than it may. A holder may always have less than
// before. nil has no bounds.
func (b *Budget) Set(namespace string, holder any, amount int64) bool {
	if b == nil {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.shares[namespace]
	if s == nil {
		s = &share{holders: map[any]int64{}}
	}
	added := amount - s.holders[holder]
	if added > 0 && !b.allows(s, added) {
		return false
	}
	b.used, s.used = b.used+added, s.used+added
	if b.shares[namespace] = s; amount > 0 {
		s.holders[holder] = amount
	} else if delete(s.holders, holder); len(s.holders) == 0 {
		delete(b.shares, namespace)
	}
	return true
}

// allows reports whether a namespace may have more.
func (b *Budget) allows(s *share, added int64) bool {
	own, namespaces := s.used+added, int64(len(b.shares))
	if s.used == 0 {
		namespaces++
	}
	return own <= b.total/2 && b.used+added <= b.total || own <= b.total/(2*namespaces)
}

// Used returns what a namespace has.
func (b *Budget) Used(namespace string) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s := b.shares[namespace]; s != nil {
		return s.used
	}
	return 0
}
