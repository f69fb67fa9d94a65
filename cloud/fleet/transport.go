// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"errors"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/internal/scan"
)

// maxHeader limits the header of an answer, in bytes. Real ones have a few KiB. Go keeps up to 30
// times as much, which no share of the memory counts.
const maxHeader = 256 << 10

// NewTransport returns the transport for the calls of all accounts. It keeps few connections,
// because the rate limits are low. dial makes connections; nil: as net/http does.
func NewTransport(dial func(ctx context.Context, network, address string) (net.Conn, error)) *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone() // proxy from the environment, HTTP/2, handshake timeouts
	t.MaxIdleConns = 64
	t.MaxIdleConnsPerHost = 8
	t.IdleConnTimeout = 90 * time.Second
	t.MaxResponseHeaderBytes = maxHeader
	// A connection that silently loses packets would fail one call after another until the kernel
	// drops it, after about 15 minutes (kubernetes/kubernetes#95981).
	t.HTTP2 = &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: 10 * time.Second}
	if dial != nil {
		t.DialContext = dial
	}
	return t
}

// transport carries one account's calls. It makes them wait for their turn, sets a deadline for
// each, counts them, and bounds the memory for their answers.
type transport struct {
	base    http.RoundTripper
	account types.NamespacedName
	limiter *atomic.Pointer[limiter]
	times   Times
	meter   *meter
	memory  *memory
}

// driverCall is one call of a Driver's method. The contexts of the method's wire calls carry it.
type driverCall struct {
	turn *turn // of a machine's step; nil: it is another call

	mu     sync.Mutex
	last   cloud.Class // of the latest wire call
	late   bool        // the latest wire call was not answered in time
	bodies []*body     // of its wire calls
}

type driverCallKey struct{}

func withDriverCall(ctx context.Context, s *driverCall) context.Context {
	return context.WithValue(ctx, driverCallKey{}, s)
}

// driverCallOf returns the call of a driver's method that a wire call is part of; nil: of none.
func driverCallOf(ctx context.Context) *driverCall {
	s, _ := ctx.Value(driverCallKey{}).(*driverCall)
	return s
}

// begin records a wire call, and reports whether it is paid for: its token was taken before.
func (s *driverCall) begin(class cloud.Class) (paid bool) {
	s.mu.Lock()
	s.last = class
	s.mu.Unlock()
	return s.turn.pay(class)
}

// end records the answer to a wire call.
func (s *driverCall) end(class cloud.Class, resp *http.Response, err error) {
	s.mu.Lock()
	s.late = isTimeout(err)
	s.mu.Unlock()
	if class == cloud.ClassCreate {
		s.turn.recordCreate(err != nil || resp.StatusCode < http.StatusBadRequest)
	}
}

// next ends the turns of the answers that the driver has read: a wire call begins.
func (s *driverCall) next() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bodies = slices.DeleteFunc(s.bodies, (*body).endIfClosed)
}

// opened records the body of an answer.
func (s *driverCall) opened(b *body) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b.call = s
	s.bodies = append(s.bodies, b)
}

// hasOther reports whether another answer has not been read yet.
func (s *driverCall) hasOther(b *body) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.bodies, func(other *body) bool { return other != b && !other.endIfClosed() })
}

// release gives back the memory for all answers.
func (s *driverCall) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.bodies {
		b.end(true)
	}
	s.bodies = nil
}

// latest returns the class of the latest wire call, and whether it was not answered in time.
func (s *driverCall) latest() (class cloud.Class, late bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last, s.late
}

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	op := cloud.OperationOf(req.Context())
	if op.Name == "" {
		op = cloud.Operation{Name: "other", Class: cloud.ClassRead}
	}
	s := driverCallOf(req.Context())
	if s != nil {
		s.next()
	}
	if err := t.waitForTurn(req, op); err != nil {
		if req.Body != nil {
			_ = req.Body.Close() // a RoundTripper must close it, even if it fails
		}
		return nil, err
	}
	bound := t.times.Call
	if op.Stream {
		bound += cloud.StreamTime
	}
	ctx, cancel := context.WithTimeout(req.Context(), bound)
	start := time.Now()
	resp, err := t.base.RoundTrip(req.WithContext(ctx))
	t.meter.call(op.Name, outcome(resp, err), time.Since(start))
	if s != nil {
		s.end(op.Class, resp, err)
	}
	if err != nil {
		cancel()
		return nil, err
	}
	b := &body{ReadCloser: resp.Body, op: op, ctx: ctx, cancel: cancel, memory: t.memory,
		event: event{json: scan.JSON{Arrays: true}}}
	if s != nil {
		s.opened(b)
	}
	resp.Body = b
	return resp, nil
}

// waitForTurn waits for the call's turn.
func (t *transport) waitForTurn(req *http.Request, op cloud.Operation) error {
	// A client follows a redirect with a new request that names the answer which redirected it. The
	// credentials would follow too.
	if from := req.Response; from != nil && from.Request != nil && from.Request.URL.Host != req.URL.Host {
		return cloud.Errorf(cloud.Unavailable, "%s: %s redirected to %s; Drover does not follow redirects", op.Name, from.Request.URL.Host,
			req.URL.Host)
	}
	ctx := req.Context()
	if err := ctx.Err(); err != nil {
		return err
	}
	if s := driverCallOf(ctx); s != nil && s.begin(op.Class) {
		return nil
	}
	waited, err := t.limiter.Load().of(op.Class).wait(ctx, t.account)
	t.meter.waited(op.Class, waited)
	return err
}

// outcome returns a call's label: one of few values, whatever clouds answer.
func outcome(resp *http.Response, err error) string {
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	case errors.Is(err, context.Canceled):
		return "canceled"
	case err != nil:
		return "error"
	case resp.StatusCode == http.StatusTooManyRequests:
		return "429"
	case resp.StatusCode < 100 || resp.StatusCode > 599: // HTTP/2 carries any number
		return "invalid"
	default:
		return strconv.Itoa(resp.StatusCode/100) + "xx"
	}
}
