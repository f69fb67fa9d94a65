// SPDX-License-Identifier: Apache-2.0

package driverkit

import (
	"maps"
	"sync"

	"github.com/drover-io/drover/cloud"
)

// Known holds the load balancers that a driver knows, by token, so that an account that has none
// makes no calls for them. After a start, one search finds those of earlier processes. The zero
// value is ready for use.
type Known[T any] struct {
	mu       sync.Mutex
	all      map[string]T
	searched bool
}

// Get returns what is known of a load balancer, or the zero value.
func (k *Known[T]) Get(token string) (is T, known bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	is, known = k.all[token]
	return is, known
}

// Change replaces what is known of a load balancer by what change returns of it, and returns that.
// If keep is false, the load balancer is forgotten. change must not call Known.
func (k *Known[T]) Change(token string, change func(is T, known bool) (to T, keep bool)) T {
	k.mu.Lock()
	defer k.mu.Unlock()
	is, known := k.all[token]
	to, keep := change(is, known)
	switch {
	case !keep:
		delete(k.all, token)
	case k.all == nil:
		k.all = map[string]T{token: to}
	default:
		k.all[token] = to
	}
	return to
}

// Put records what is known of a load balancer.
func (k *Known[T]) Put(token string, is T) {
	k.Change(token, func(T, bool) (T, bool) { return is, true })
}

// Forget forgets a load balancer.
func (k *Known[T]) Forget(token string) {
	k.Change(token, func(is T, _ bool) (T, bool) { return is, false })
}

// All returns a copy of what is known.
func (k *Known[T]) All() map[string]T {
	k.mu.Lock()
	defer k.mu.Unlock()
	return maps.Clone(k.all)
}

// Listed records a complete search. It forgets the load balancers for which gone returns true; nil:
// none. gone must not call Known.
func (k *Known[T]) Listed(gone func(token string, is T) bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.searched = true
	if gone != nil {
		maps.DeleteFunc(k.all, gone)
	}
}

// IsSearched reports whether a search was complete.
func (k *Known[T]) IsSearched() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.searched
}

// IsEmpty reports whether no load balancer is known.
func (k *Known[T]) IsEmpty() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.all) == 0
}

// MayRead returns err unless it means that there are no load balancers: the account may not read
// them, none is known, and the caller does not ask for one whose creation was recorded. The role
// that creates them may read them, too.
func (k *Known[T]) MayRead(err error, recorded bool) error {
	if cloud.CodeOf(err) == cloud.Unauthorized && k.IsEmpty() && !recorded {
		return nil
	}
	return err
}

// RecordedBalancers returns the ownership IDs of the load balancers among the references, by token.
func RecordedBalancers(refs []cloud.Reference) map[string]string {
	owners := map[string]string{}
	for _, ref := range refs {
		if ref.Balancer && ref.Token != "" {
			owners[ref.Token] = ref.OwnershipID
		}
	}
	return owners
}
