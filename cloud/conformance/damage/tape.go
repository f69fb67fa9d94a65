// SPDX-License-Identifier: Apache-2.0

package damage

import (
	"bytes"
	"context"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/drover-io/drover/cloud"
)

// maxTakes is how many answers of one operation a tape holds.
const maxTakes = 100

// Tape holds answers by the operation's name. The zero value is empty.
type Tape struct {
	recorded time.Time
	mu       sync.Mutex
	answers  map[string][]answer
}

type answer struct {
	status int
	header http.Header
	body   []byte
}

// Add adds an answer of an operation. The tape holds the first few of each.
func (t *Tape) Add(operation string, status int, header http.Header, body []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.answers == nil {
		t.answers, t.recorded = map[string][]answer{}, time.Now()
	}
	if len(t.answers[operation]) < maxTakes {
		t.answers[operation] = append(t.answers[operation], answer{status, header.Clone(), body})
	}
}

// Record creates machines with other tokens, and then records the life of a driver whose cloud is
// transport. Errors do not matter, as they are answers, too.
func (t *Tape) Record(tt *testing.T, target Target, transport http.RoundTripper, others ...string) {
	driver, err := target.Connect(transport)
	if err != nil {
		tt.Fatalf("Connect: %v", err)
	}
	l := life{target: &target, steps: 500, pause: 10 * time.Millisecond}
	l.try = func(ctx context.Context, method string, limit time.Duration, do func(context.Context) error) {
		ctx, cancel := context.WithTimeout(ctx, min(limit, 5*time.Second))
		defer cancel()
		if err := do(ctx); err != nil {
			tt.Logf("recording %s: %v", method, err)
		}
	}
	for _, token := range others {
		req := target.Machine
		req.Token, req.Name = token, token
		l.until(tt.Context(), "Ensure", func(ctx context.Context) error {
			_, err := driver.Ensure(ctx, req)
			return err
		})
	}
	if l.driver, err = target.Connect(recorder{t, transport}); err != nil {
		tt.Fatalf("Connect: %v", err)
	}
	l.live(tt.Context())
}

// recorder is a transport that adds all answers to a tape.
type recorder struct {
	*Tape
	http.RoundTripper
}

func (r recorder) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := r.RoundTripper.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if err != nil {
		return nil, err
	}
	r.Add(cloud.OperationOf(req.Context()).Name, resp.StatusCode, resp.Header, body)
	resp.Body = io.NopCloser(bytes.NewReader(body))
	return resp, nil
}

// player is a transport that answers from a tape, with damage.
type player struct {
	*Tape
	seed uint64
	rate float64 // of damaged answers

	mu     sync.Mutex
	at     map[string]int // how many answers of an operation were played
	total  int
	calls  int // of the current method
	last   string
	giveUp func()
}

// play returns a player. What it answers to a call depends only on the seed, the operation and how
// often it was called, so that concurrent calls change nothing.
func (t *Tape) play(seed uint64) *player {
	p := &player{Tape: t, seed: seed, at: map[string]int{}}
	rates := []float64{0.03, 0.1, 0.3, 1}
	p.rate = rates[p.random("rate").IntN(len(rates))]
	return p
}

// random returns the numbers for one purpose.
func (p *player) random(purpose string) *rand.Rand {
	h := fnv.New64a()
	_, _ = io.WriteString(h, purpose)
	return rand.New(rand.NewPCG(p.seed, h.Sum64()))
}

// begin begins a method. giveUp ends it if it makes too many calls.
func (p *player) begin(giveUp func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls, p.giveUp = 0, giveUp
}

func (p *player) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		_, _ = io.Copy(io.Discard, req.Body)
		_ = req.Body.Close()
	}
	if err := req.Context().Err(); err != nil {
		return nil, err
	}
	a, ok := p.next(cloud.OperationOf(req.Context()).Name)
	if !ok {
		return nil, io.ErrUnexpectedEOF
	}
	return &http.Response{
		Status: strconv.Itoa(a.status) + " " + http.StatusText(a.status), StatusCode: a.status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: a.header, Body: io.NopCloser(bytes.NewReader(a.body)), ContentLength: -1, Request: req,
	}, nil
}

// next returns the answer to a call, and false if there were too many calls.
func (p *player) next(operation string) (answer, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.total++
	p.last = operation
	if p.calls++; p.calls > maxCalls {
		p.giveUp()
		return answer{}, false
	}
	n := p.at[operation]
	p.at[operation]++
	r := p.random(operation + " " + strconv.Itoa(n))
	takes := p.answers[operation]
	if len(takes) == 0 { // damage has led the driver to a call that the recording has not
		takes = p.answers[one(r, sortedKeys(p.answers))]
	}
	if n >= len(takes) {
		n = r.IntN(len(takes))
	}
	a := answer{takes[n].status, takes[n].header.Clone(), takes[n].body}
	if a.header == nil {
		a.header = http.Header{}
	}
	if r.Float64() < p.rate {
		a = damaged(r, a)
	}
	a.header.Del("Content-Length")
	return a, true
}
