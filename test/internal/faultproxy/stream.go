// SPDX-License-Identifier: Apache-2.0

package faultproxy

import (
	"context"
	"io"
	"sync"
	"time"
)

// stream is the body of a watch. It delays what comes from upstream by the lag, and keeps the
// order.
type stream struct {
	ctx    context.Context
	body   io.ReadCloser
	pieces chan piece
	rest   []byte
	gone   chan struct{}
	once   sync.Once
	forget func()
}

type piece struct {
	data []byte
	err  error
	due  time.Time
}

// newStream wraps the body of a watch. It lives until it is closed.
func (p *Proxy) newStream(ctx context.Context, c Call, body io.ReadCloser) *stream {
	// A lagging watch brings at most one piece for each event. The buffer holds more than a test
	// produces.
	s := &stream{ctx: ctx, body: body, pieces: make(chan piece, 4096), gone: make(chan struct{})}
	s.forget = func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.streams, s)
	}
	p.mu.Lock()
	p.streams[s] = struct{}{}
	p.mu.Unlock()
	go s.fill(func() time.Duration {
		p.mu.Lock()
		lag := p.lag
		p.mu.Unlock()
		if lag == nil {
			return 0
		}
		return lag(c)
	})
	return s
}

func (s *stream) fill(lag func() time.Duration) {
	var last time.Time
	for {
		buffer := make([]byte, 32<<10)
		n, err := s.body.Read(buffer)
		due := time.Now().Add(lag())
		if due.Before(last) {
			due = last
		}
		last = due
		select {
		case s.pieces <- piece{buffer[:n], err, due}:
		case <-s.gone:
			return
		}
		if err != nil {
			return
		}
	}
}

// Read waits for the next piece that is due.
func (s *stream) Read(b []byte) (int, error) {
	for len(s.rest) == 0 {
		select {
		case next := <-s.pieces:
			if err := s.wait(next.due); err != nil {
				return 0, err
			}
			if s.rest = next.data; len(s.rest) == 0 && next.err != nil {
				return 0, next.err
			}
			if next.err != nil {
				s.pieces <- piece{err: next.err} // fill has ended, so there is room
			}
		case <-s.gone:
			return 0, errCut
		case <-s.ctx.Done():
			return 0, s.ctx.Err()
		}
	}
	n := copy(b, s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

func (s *stream) wait(due time.Time) error {
	d := time.Until(due)
	if d <= 0 {
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-s.gone:
		return errCut
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}

func (s *stream) cut() {
	s.once.Do(func() { close(s.gone) })
}

// Close ends the watch.
func (s *stream) Close() error {
	s.cut()
	s.forget()
	return s.body.Close()
}
