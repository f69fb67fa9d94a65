// SPDX-License-Identifier: Apache-2.0

package driverkit

import (
	"context"
	"sync"
	"time"

	"github.com/drover-io/drover/cloud"
)

// maxMemoEntries and maxMemoBytes are how many answers a Memo keeps at most, and how many bytes of
// them: a cloud decides how large they are. One that is larger is kept alone.
const (
	maxMemoEntries = 1000
	maxMemoBytes   = 16 << 20
)

// Memo caches a driver's answers to questions that all machines of a template ask, such as which
// image a name means. If several callers want the same answer, the first asks and the others wait
// for it. Errors are not cached: the next caller asks again. An answer has no cycles.
type Memo[T any] struct {
	// TTL is how long an answer is cached.
	TTL time.Duration

	mu      sync.Mutex
	answers map[string]*answer[T]
	bytes   int64
}

type answer[T any] struct {
	lock  chan struct{} // a lock: one caller at a time may look and ask
	value T
	until time.Time
	bytes int64 // of the value, as the Memo counts it
}

// Get returns the cached answer, or asks. It returns Unavailable if ctx ends while another caller
// asks.
func (m *Memo[T]) Get(ctx context.Context, key string, ask func(context.Context) (T, error)) (none T, err error) {
	a := m.answer(key)
	select {
	case a.lock <- struct{}{}:
		defer func() { <-a.lock }()
	case <-ctx.Done():
		return none, &cloud.Error{Code: cloud.Unavailable, Message: "timed out while another caller made the same lookup", Err: ctx.Err()}
	}
	if time.Now().Before(a.until) {
		return a.value, nil
	}
	value, err := ask(ctx)
	if err != nil {
		return none, err
	}
	a.value, a.until = value, time.Now().Add(m.TTL)
	m.count(key, a, SizeOf(value))
	return value, nil
}

// count records the size of an answer, and drops the others if there is no room for it.
func (m *Memo[T]) count(key string, a *answer[T], bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.answers[key] != a { // it was forgotten meanwhile
		return
	}
	m.bytes, a.bytes = m.bytes+bytes-a.bytes, bytes
	if m.bytes > maxMemoBytes {
		m.answers, m.bytes = map[string]*answer[T]{key: a}, bytes
	}
}

func (m *Memo[T]) answer(key string) *answer[T] {
	m.mu.Lock()
	defer m.mu.Unlock()
	if a := m.answers[key]; a != nil {
		return a
	}
	if m.answers == nil || len(m.answers) >= maxMemoEntries {
		m.answers, m.bytes = map[string]*answer[T]{}, 0
	}
	a := &answer[T]{lock: make(chan struct{}, 1)}
	m.answers[key] = a
	return a
}

// Forget drops an answer that turned out to be wrong.
func (m *Memo[T]) Forget(key string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if a := m.answers[key]; a != nil {
		m.bytes -= a.bytes
		delete(m.answers, key)
	}
}

// Reset drops all answers, because one of them turned out to be wrong.
func (m *Memo[T]) Reset() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.answers, m.bytes = nil, 0
}
