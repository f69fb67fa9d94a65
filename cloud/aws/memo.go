// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"context"
	"sync"
	"time"

	"github.com/drover-io/drover/cloud"
)

// memoKept bounds the answers that a memo keeps.
const memoKept = 1000

// memo keeps answers for a while. Of many who want the same one, the first asks and the others wait for it. An error is
// not kept: whoever comes next asks again.
type memo[T any] struct {
	ttl time.Duration

	mu      sync.Mutex
	answers map[string]*answer[T]
}

type answer[T any] struct {
	turn  chan struct{} // has room for whoever may look and ask
	value T
	until time.Time
}

func (m *memo[T]) get(ctx context.Context, key string, ask func(context.Context) (T, error)) (T, error) {
	a := m.of(key)
	select {
	case a.turn <- struct{}{}:
		defer func() { <-a.turn }()
	case <-ctx.Done():
		var none T
		return none, &cloud.Error{Code: cloud.Unavailable, Message: "waited for another's answer until the time was up", Err: ctx.Err()}
	}
	if time.Now().Before(a.until) {
		return a.value, nil
	}
	value, err := ask(ctx)
	if err != nil {
		var none T
		return none, err
	}
	a.value, a.until = value, time.Now().Add(m.ttl)
	return value, nil
}

func (m *memo[T]) of(key string) *answer[T] {
	m.mu.Lock()
	defer m.mu.Unlock()
	if a := m.answers[key]; a != nil {
		return a
	}
	if m.answers == nil || len(m.answers) >= memoKept {
		m.answers = map[string]*answer[T]{}
	}
	a := &answer[T]{turn: make(chan struct{}, 1)}
	m.answers[key] = a
	return a
}

// forget drops an answer that has proved wrong.
func (m *memo[T]) forget(key string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.answers, key)
}
