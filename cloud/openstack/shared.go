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

func waitTimeout(ctx context.Context) error {
	return &cloud.Error{Code: cloud.Unavailable, Message: "timed out while waiting for another call", Err: ctx.Err()}
}

// shared combines reads. Callers that arrive during a read, or during the cooldown after it, share
// the next one. Each gets the answer of a read that began after the call, and so sees the state of
// that time. After each read, shared waits cloud.CooldownFactor times as long as the read took, up
// to maxCooldown: a slow cloud is busy, and machines that come one by one would read one by one.
type shared[T any] struct {
	// read reads for all keys together.
	read func(ctx context.Context, keys []string) ([]T, error)

	lock chan struct{} // lock of the caller that reads
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

func newShared[T any](read func(context.Context, []string) ([]T, error)) *shared[T] {
	return &shared[T]{read: read, lock: make(chan struct{}, 1)}
}

// get returns the results for the key, and for other keys of the same read.
func (s *shared[T]) get(ctx context.Context, key string) ([]T, error) {
	for {
		r := s.join(key)
		select {
		case <-r.done:
		case s.lock <- struct{}{}:
			began := time.Now()
			s.readRound(ctx, r)
			time.AfterFunc(min(cloud.CooldownFactor*time.Since(began), maxCooldown), func() { <-s.lock }) //nolint:forbidigo // It gives a lock back.
		case <-ctx.Done():
			return nil, waitTimeout(ctx)
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

// readRound makes the round's read, unless another caller has.
func (s *shared[T]) readRound(ctx context.Context, r *round[T]) {
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
	r.err = cloud.Recover(func() (err error) { r.found, err = s.read(ctx, keys); return err }) // others wait for the round
	r.ended = r.err != nil && ctx.Err() != nil
	close(r.done)
}

// creations allows one create per token at a time, and remembers those that may still take effect.
type creations struct {
	mu      sync.Mutex
	byToken map[string]*creation
}

type creation struct {
	lock  chan struct{}
	users int
	began time.Time // start of the current turn

	mu sync.Mutex
	// pendingUntil is until when a read may miss what a create made or will make; zero if there is
	// no such create.
	pendingUntil time.Time
}

// deadline returns pendingUntil.
func (c *creation) deadline() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pendingUntil
}

// setPending sets pendingUntil to the given time from now.
func (c *creation) setPending(pending time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pendingUntil = time.Now().Add(pending)
}

// recordError records a create that was sent and may still take effect, by its error.
func (c *creation) recordError(err error) {
	var queued *cloud.Queued // was not sent
	if code := cloud.CodeOf(err); (code == cloud.Unavailable || code == cloud.Unknown) && !errors.As(err, &queued) {
		c.setPending(max(minPending, pendingFactor*time.Since(c.began)))
	}
}

// pendingFor returns how long a read may still miss what a create for the token made or will make.
// A create that is under way may have been sent, and counts as at least minPending.
func (c *creations) pendingFor(token string) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	entry := c.byToken[token]
	if entry == nil {
		return 0
	}
	pending := time.Until(entry.deadline())
	if len(entry.lock) > 0 {
		pending = max(pending, minPending)
	}
	return pending
}

// begin waits for the token's turn and holds it until release.
func (c *creations) begin(ctx context.Context, token string) (mine *creation, release func(), err error) {
	c.mu.Lock()
	mine = c.byToken[token]
	if mine == nil {
		if c.byToken == nil {
			c.byToken = map[string]*creation{}
		}
		mine = &creation{lock: make(chan struct{}, 1)}
		c.byToken[token] = mine
	}
	mine.users++
	c.mu.Unlock()
	done := func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		mine.users--
		for token, one := range c.byToken {
			if one.users == 0 && !time.Now().Before(one.deadline()) {
				delete(c.byToken, token)
			}
		}
	}
	select {
	case mine.lock <- struct{}{}:
		mine.began = time.Now()
		return mine, func() { <-mine.lock; done() }, nil
	case <-ctx.Done():
		done()
		return nil, nil, waitTimeout(ctx)
	}
}
