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

// shared combines reads. Callers that arrive during a read, or during the rest after it, share the
// next one. Each gets the answer of a read that began after the call, and so sees the state of that
// time. After each read shared rests cloud.RestTimes as long as the read took, up to restMost: a
// slow cloud is busy, and machines that come one by one would read one by one.
type shared[T any] struct {
	// ask reads for all keys together.
	ask func(ctx context.Context, keys []string) ([]T, error)

	turn chan struct{} // lock of the caller that reads
	mu   sync.Mutex
	next *round[T]
}

type round[T any] struct {
	keys  map[string]bool
	done  chan struct{}
	found []T
	err   error
	ended bool // with the reader's context, which is no answer for others
}

func newShared[T any](ask func(context.Context, []string) ([]T, error)) *shared[T] {
	return &shared[T]{ask: ask, turn: make(chan struct{}, 1)}
}

// get returns the results for the key, and for other keys of the same read.
func (s *shared[T]) get(ctx context.Context, key string) ([]T, error) {
	for {
		r := s.join(key)
		select {
		case <-r.done:
		case s.turn <- struct{}{}:
			began := time.Now()
			s.answer(ctx, r)
			time.AfterFunc(min(cloud.CooldownFactor*time.Since(began), restMost), func() { <-s.turn })
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

// answer makes the round's read, unless another caller has.
func (s *shared[T]) answer(ctx context.Context, r *round[T]) {
	s.mu.Lock()
	if s.next == r {
		s.next = nil // later callers share the next round
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

// creations allows one create per token at a time, and remembers those that may still take effect.
type creations struct {
	mu    sync.Mutex
	turns map[string]*creation
}

type creation struct {
	turn  chan struct{}
	users int
	began time.Time // start of the current turn

	mu sync.Mutex
	// open is until when a read may miss what a create made or will make; zero if there is no such
	// create.
	open time.Time
}

// until returns open.
func (c *creation) until() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.open
}

// keep sets open to the given time from now.
func (c *creation) keep(open time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open = time.Now().Add(open)
}

// note records a create that was sent and may still take effect, by its error.
func (c *creation) note(err error) {
	var queued *cloud.Queued // was not sent
	if code := cloud.CodeOf(err); (code == cloud.Unavailable || code == cloud.Unknown) && !errors.As(err, &queued) {
		c.keep(max(openTTL, openTimes*time.Since(c.began)))
	}
}

// left returns how long a read may still miss what a create for the token made or will make. A
// create that is under way may have been sent, and counts as at least openTTL.
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

// begin waits for the token's turn and holds it until release.
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
