// SPDX-License-Identifier: Apache-2.0

package openstack

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/drover-io/drover/cloud"
)

func waited(ctx context.Context) error {
	return &cloud.Error{Code: cloud.Unavailable, Message: "waited for another call until the time was up", Err: ctx.Err()}
}

// shared asks one question for many: who comes while a question is under way, or rests, shares the
// next one. Each gets an answer to a question that began after it came, so that it sees what was
// there then. After each it rests cloud.RestTimes as long as the answer took, for a cloud that is
// slow to answer has enough to do: machines that come one by one would ask one by one.
type shared[T any] struct {
	// ask answers for all keys together.
	ask func(ctx context.Context, keys []string) ([]T, error)

	turn chan struct{} // has room for whoever asks
	mu   sync.Mutex
	next *round[T]
}

type round[T any] struct {
	keys  map[string]bool
	done  chan struct{}
	found []T
	err   error
	ended bool // with the context of whoever asked, which says nothing of the answer
}

func newShared[T any](ask func(context.Context, []string) ([]T, error)) *shared[T] {
	return &shared[T]{ask: ask, turn: make(chan struct{}, 1)}
}

// get returns what was found for the key and for others that were asked for together with it.
func (s *shared[T]) get(ctx context.Context, key string) ([]T, error) {
	for {
		r := s.join(key)
		select {
		case <-r.done:
		case s.turn <- struct{}{}:
			began := time.Now()
			s.answer(ctx, r)
			time.AfterFunc(min(cloud.RestTimes*time.Since(began), restMost), func() { <-s.turn })
		case <-ctx.Done():
			return nil, waited(ctx)
		}
		if !r.ended || ctx.Err() != nil {
			return r.found, r.err
		}
	}
}

func (s *shared[T]) join(key string) *round[T] {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next == nil || len(s.next.keys) >= maxTokens {
		s.next = &round[T]{keys: map[string]bool{}, done: make(chan struct{})}
	}
	s.next.keys[key] = true
	return s.next
}

// answer asks the round's question, unless that was done meanwhile.
func (s *shared[T]) answer(ctx context.Context, r *round[T]) {
	s.mu.Lock()
	if s.next == r {
		s.next = nil // who comes from now on shares the next
	}
	keys := slices.Sorted(maps.Keys(r.keys))
	s.mu.Unlock()
	select {
	case <-r.done:
		return
	default:
	}
	r.found, r.err = s.ask(ctx, keys)
	r.ended = r.err != nil && ctx.Err() != nil
	close(r.done)
}

// creations lets one create at a time go on for a token, and remembers those whose end is open.
type creations struct {
	mu    sync.Mutex
	turns map[string]*creation
}

type creation struct {
	turn  chan struct{}
	users int
	began time.Time // when whose turn it is came

	mu sync.Mutex
	// open is until when a look may miss what a create has made, or will make; zero where there is
	// none.
	open time.Time
}

// until returns open.
func (c *creation) until() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.open
}

// keep has what a create has made or will make be open for so long.
func (c *creation) keep(open time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open = time.Now().Add(open)
}

// note remembers that a create which was sent has ended so that its effect is open.
func (c *creation) note(err error) {
	var queued *cloud.Queued // was not sent
	if code := cloud.CodeOf(err); (code == cloud.Unavailable || code == cloud.Unknown) && !errors.As(err, &queued) {
		c.keep(max(openTTL, openTimes*time.Since(c.began)))
	}
}

// left is how long a look may still miss what a create for the token has made, or will make. One
// that is under way may be sent or not.
func (c *creations) left(token string) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	one := c.turns[token]
	if one == nil {
		return 0
	}
	left := time.Until(one.until())
	if len(one.turn) > 0 {
		left = max(left, openTTL)
	}
	return left
}

// begin waits for the token's turn. It is held until release.
func (c *creations) begin(ctx context.Context, token string) (mine *creation, release func(), err error) {
	c.mu.Lock()
	mine = c.turns[token]
	if mine == nil {
		if c.turns == nil {
			c.turns = map[string]*creation{}
		}
		mine = &creation{turn: make(chan struct{}, 1)}
		c.turns[token] = mine
	}
	mine.users++
	c.mu.Unlock()
	leave := func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		mine.users--
		for token, one := range c.turns {
			if one.users == 0 && !time.Now().Before(one.until()) {
				delete(c.turns, token)
			}
		}
	}
	select {
	case mine.turn <- struct{}{}:
		mine.began = time.Now()
		return mine, func() { <-mine.turn; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, nil, waited(ctx)
	}
}
