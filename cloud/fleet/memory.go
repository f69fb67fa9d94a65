// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"cmp"
	"context"
	"io"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/internal/scan"
)

const (
	// maxBody is how much of an answer the driver gets: one byte more than it accepts.
	maxBody = 8<<20 + 1
	// chunk is how many bytes a body's parts have.
	chunk = 64 << 10
	// freeBody is how many bytes each answer has without a share of the memory. Most answers are
	// smaller.
	freeBody = 16 << 10
	// maxBodies bounds the bytes of all answers that are being read, or wait for their turn.
	maxBodies = 96 << 20
	// maxDecoded bounds what all answers take that are being decoded. One takes up to decoded times
	// its size, and never more than maxOne: the drivers bound its elements.
	maxDecoded = 128 << 20
	maxOne     = 64 << 20
	// maxTurn is how long a turn lasts after the answer was decoded.
	maxTurn = 2 * time.Second
	decoded = 128
	// maxRecords bounds what all accounts know of their resources, in bytes. Those of 10,000
	// machines, with two dependants each, take 45 MiB.
	maxRecords = 192 << 20
)

// memory shares the memory for answers among all accounts. An answer is read whole before it is
// decoded, so that an endpoint that sends slowly holds nothing but the bytes that have arrived. If
// there is no room for more, answers wait in the order in which they asked, and the slowest one is
// given up. Then they wait for their turn to be decoded, which only takes computing. nil has no
// bounds.
type memory struct {
	decoding *semaphore.Weighted

	mu      sync.Mutex
	free    int64
	bodies  []*body // those with a share
	waiting []*body // in the order in which they asked
}

func newMemory() *memory {
	return &memory{decoding: semaphore.NewWeighted(maxDecoded), free: maxBodies}
}

// body is an answer's body. It is read whole before the first Read returns, unless its parts
// are events.
type body struct {
	io.ReadCloser
	op     cloud.Operation
	ctx    context.Context // the call's
	cancel context.CancelFunc
	memory *memory
	call   *driverCall // which it is part of; may be nil

	filled bool
	chunks [][]byte    // what the driver has not read yet
	err    error       // after them
	size   int64       // of what has arrived; of a stream, its longest event
	event  event       // a stream's current one
	turn   int64       // its weight while it is being decoded
	late   *time.Timer // ends the turn of a closed body

	// The fields below belong to memory's lock.

	share    int64 // of the bytes for bodies
	asks     int64 // for how many more it waits
	granted  chan struct{}
	isWhole  bool // it has arrived
	isSlow   bool // it was given up
	began    time.Time
	isClosed bool
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	if b.op.Stream && !b.op.Poll {
		return b.readStream(p)
	}
	if !b.filled {
		b.filled = true
		if err := b.fill(); err != nil {
			b.chunks, b.err = nil, err
		}
	}
	for len(b.chunks) > 0 && len(b.chunks[0]) == 0 {
		b.chunks = b.chunks[1:]
	}
	if len(b.chunks) == 0 {
		return 0, b.err
	}
	n := copy(p, b.chunks[0])
	b.chunks[0] = b.chunks[0][n:]
	return n, nil
}

// fill reads the body, and waits for its turn to be decoded.
func (b *body) fill() error {
	for b.err == nil {
		if b.size == maxBody {
			b.err = cloud.Errorf(cloud.Unknown, "%s: the response is larger than %d MiB", b.op.Name, maxBody>>20)
			break
		}
		last := len(b.chunks) - 1
		if last < 0 || len(b.chunks[last]) == cap(b.chunks[last]) {
			b.chunks = append(b.chunks, make([]byte, 0, min(chunk, max(b.size, chunk/16))))
			last++
		}
		part := b.chunks[last]
		var n int
		n, b.err = b.ReadCloser.Read(part[len(part):min(int64(cap(part)), int64(len(part))+maxBody-b.size)])
		b.chunks[last] = part[:len(part)+n]
		b.size += int64(n)
		if err := b.memory.grow(b, b.size-freeBody); err != nil {
			return err
		}
	}
	return b.memory.whole(b)
}

// readStream reads a part of a stream. A decoder keeps room for the longest event.
func (b *body) readStream(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	for _, c := range p[:n] {
		b.size = max(b.size, b.event.next(c))
	}
	if refused := b.memory.grow(b, b.size-freeBody); refused != nil {
		return 0, refused
	}
	return n, err
}

// event is the current event of a stream: an object or array of JSON, or a line. A decoder keeps the
// whole event, with the spaces before it.
type event struct {
	size  int64
	json  scan.JSON
	began bool // it has more than spaces
}

// next counts a byte, and returns the size of the event that it is a part of.
func (e *event) next(c byte) int64 {
	e.size++
	size, deep := e.size, e.json.Depth > 0
	_ = e.json.Next(c) // what is no JSON is a line
	e.began = e.began || c > ' '
	if e.json.Depth == 0 && (deep || e.began && c == '\n') {
		e.size, e.began = 0, false
		e.json.Restart()
	}
	return size
}

// Close implements io.Closer. It gives back the share for the body, and ends the call's context.
// What was decoded is still in memory: the body's turn ends with the next wire call of the driver's
// method, or with the method, and at the latest after a moment, because the method may wait for
// something else. Where a method makes calls in parallel, it ends at once, because the others may
// wait for it.
func (b *body) Close() error {
	defer b.cancel()
	b.end(b.call == nil || b.call.hasOther(b))
	return b.ReadCloser.Close()
}

// end gives back the share for the body, and its turn, too, if the driver has read what was
// decoded; otherwise the turn ends later. It may be called more than once.
func (b *body) end(isRead bool) {
	m := b.memory
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	b.isClosed = true
	m.forget(b)
	m.serve()
	switch {
	case b.turn == 0:
	case isRead:
		m.decoding.Release(b.turn)
		b.turn = 0
		if b.late != nil {
			b.late.Stop() // it would keep the body in memory
		}
	case b.late == nil:
		b.late = time.AfterFunc(maxTurn, func() { b.end(true) }) //nolint:forbidigo // It calls no code but ours.
	}
}

// endIfClosed ends the turn of a body that was closed, and reports whether it was.
func (b *body) endIfClosed() bool {
	if b.memory == nil {
		return true
	}
	b.memory.mu.Lock()
	closed := b.isClosed
	b.memory.mu.Unlock()
	if closed {
		b.end(true)
	}
	return closed
}

// grow waits until the body has this share of the memory. An error is Unavailable.
func (m *memory) grow(b *body, share int64) error {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	if b.isSlow {
		m.mu.Unlock()
		return b.tooSlow()
	}
	if share <= b.share || b.isClosed {
		m.mu.Unlock()
		return nil
	}
	if b.began.IsZero() {
		b.began = time.Now()
		m.bodies = append(m.bodies, b)
	}
	began := time.Now()
	b.asks, b.granted = share-b.share, make(chan struct{})
	m.waiting = append(m.waiting, b)
	m.serve()
	m.mu.Unlock()
	select {
	case <-b.granted:
	case <-b.ctx.Done():
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	b.began = b.began.Add(time.Since(began)) // it was not slow meanwhile
	switch {
	case b.isSlow:
		return b.tooSlow()
	case b.asks > 0:
		m.waiting = slices.DeleteFunc(m.waiting, func(other *body) bool { return other == b })
		b.asks = 0
		m.serve()
		return b.ctx.Err()
	}
	return nil
}

// serve gives waiting bodies what they ask for, in their order. If there is no room, and none of
// the others is about to be decoded, it gives up the slowest. The caller holds the lock.
func (m *memory) serve() {
	for len(m.waiting) > 0 {
		first := m.waiting[0]
		if first.asks <= m.free {
			m.free -= first.asks
			first.share, first.asks = first.share+first.asks, 0
			m.waiting = m.waiting[1:]
			close(first.granted)
			continue
		}
		if slices.ContainsFunc(m.bodies, func(b *body) bool { return b.isWhole }) {
			return
		}
		m.giveUp(slices.MinFunc(m.bodies, func(a, b *body) int { return cmp.Compare(a.speed(), b.speed()) }))
	}
}

// giveUp ends the call of a body. The caller holds the lock.
func (m *memory) giveUp(b *body) {
	b.isSlow = true
	m.forget(b)
	if b.asks > 0 {
		b.asks = 0
		close(b.granted)
	}
	b.cancel()
}

// forget takes back a body's share. The caller holds the lock.
func (m *memory) forget(b *body) {
	m.free += b.share
	b.share = 0
	other := func(o *body) bool { return o == b }
	m.bodies, m.waiting = slices.DeleteFunc(m.bodies, other), slices.DeleteFunc(m.waiting, other)
}

// whole waits for the body's turn to be decoded.
func (m *memory) whole(b *body) error {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	slow := b.isSlow
	b.isWhole = true
	m.mu.Unlock()
	switch {
	case slow:
		return b.tooSlow()
	case b.size <= freeBody:
		return nil
	}
	weight := min(b.size*decoded, maxOne)
	if err := m.decoding.Acquire(b.ctx, weight); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if b.isClosed { // its driver does not wait for it any more
		m.decoding.Release(weight)
		return b.ctx.Err()
	}
	b.turn = weight
	return nil
}

// speed returns in bytes per second how fast the body has arrived.
func (b *body) speed() float64 {
	return float64(b.share) / max(time.Since(b.began).Seconds(), 1e-3)
}

func (b *body) tooSlow() error {
	return cloud.Errorf(cloud.Unavailable, "%s: the response was given up, because it came more slowly than others and there was no memory for all of them", b.op.Name)
}
