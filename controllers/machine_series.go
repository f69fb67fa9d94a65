// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"sync"
)

// otherValue stands for every value of a label beyond the limits.
const otherValue = "other"

// The limits of each namespace. Tenants write the values of the labels, and each combination is a
// set of series in every Prometheus that scrapes the manager.
const (
	maxPools, maxTypes, maxZones = 50, 50, 20
	maxReasons                   = 10
	// maxExact limits the combinations of pool, instance type and zone. Beyond it, a machine counts
	// for its pool alone, up to maxCombinations, and then for no pool.
	maxExact        = 64
	maxCombinations = maxExact + maxPools
)

// combination are the values of a machine's labels, without the namespace.
type combination struct{ cloud, pool, instanceType, zone string }

// machineSeries bounds the values of labels in each namespace.
type machineSeries struct {
	mu         sync.Mutex
	namespaces map[string]*namespaceSeries
}

type namespaceSeries struct {
	used    map[combination]bool
	reasons map[string]bool
}

// of returns the state of a namespace. The caller holds the lock.
func (s *machineSeries) of(namespace string) *namespaceSeries {
	if s.namespaces == nil {
		s.namespaces = map[string]*namespaceSeries{}
	}
	n := s.namespaces[namespace]
	if n == nil {
		n = &namespaceSeries{map[combination]bool{}, map[string]bool{}}
		s.namespaces[namespace] = n
	}
	return n
}

// bound returns c, or what c counts for if the namespace has too many combinations or values.
func (s *machineSeries) bound(namespace string, c combination) combination {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.of(namespace)
	c.pool = n.value(c.pool, maxPools, func(c combination) string { return c.pool })
	exact := c
	exact.instanceType = n.value(c.instanceType, maxTypes, func(c combination) string { return c.instanceType })
	exact.zone = n.value(c.zone, maxZones, func(c combination) string { return c.zone })
	known := n.used[exact]
	if !known && len(n.used) >= maxExact {
		exact.instanceType, exact.zone = otherValue, otherValue
		if !n.used[exact] && len(n.used) >= maxCombinations {
			exact.pool = otherValue // one for each cloud
		}
	}
	n.used[exact] = true
	return exact
}

// value returns a label's value, or otherValue if the namespace uses too many others.
func (n *namespaceSeries) value(value string, limit int, label func(combination) string) string {
	distinct := map[string]bool{}
	for c := range n.used {
		distinct[label(c)] = true
	}
	delete(distinct, otherValue)
	if distinct[value] || len(distinct) < limit {
		return value
	}
	return otherValue
}

// boundReason returns the reason, or otherValue if the namespace has too many others.
func (s *machineSeries) boundReason(namespace, reason string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.of(namespace)
	if !n.reasons[reason] && len(n.reasons) >= maxReasons {
		return otherValue
	}
	n.reasons[reason] = true
	return reason
}

// knows reports whether the namespace has series of the pool.
func (s *machineSeries) knows(namespace, pool string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.of(namespace).used {
		if c.pool == pool {
			return true
		}
	}
	return false
}

// forget frees the combinations of a pool.
func (s *machineSeries) forget(namespace, pool string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.of(namespace)
	for c := range n.used {
		if c.pool == pool {
			delete(n.used, c)
		}
	}
	if len(n.used) == 0 {
		delete(s.namespaces, namespace)
	}
}
