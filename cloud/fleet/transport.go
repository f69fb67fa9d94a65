// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/drover-io/drover/cloud"
)

// NewTransport carries the calls of all accounts. Connections are few, because the rate limits are
// low. dial makes them; nil: as net/http does.
func NewTransport(dial func(ctx context.Context, network, address string) (net.Conn, error)) *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone() // proxy from the environment, HTTP/2, handshake timeouts
	t.MaxIdleConns = 64
	t.MaxIdleConnsPerHost = 8
	t.IdleConnTimeout = 90 * time.Second
	// A connection over which packets are lost silently would take one call after the other until
	// the kernel gives it up, after 15 minutes or so (kubernetes/kubernetes#95981).
	t.HTTP2 = &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: 10 * time.Second}
	if dial != nil {
		t.DialContext = dial
	}
	return t
}

// transport carries one account's calls: it makes them wait for their turn, bounds them in time and
// counts them.
type transport struct {
	base    http.RoundTripper
	limiter *atomic.Pointer[limiter]
	times   Times
	meter   *meter
}

// step is one call of a Driver's method, in the context of the wire calls that it makes.
type step struct {
	mu      sync.Mutex
	prepaid bool        // a token of the create bucket was taken for it and not used yet
	last    cloud.Class // of the latest wire call
}

type stepKey struct{}

func withStep(ctx context.Context, s *step) context.Context {
	return context.WithValue(ctx, stepKey{}, s)
}

// enter notes a wire call and tells whether it is paid for.
func (s *step) enter(class cloud.Class) (paid bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = class
	if paid = s.prepaid && class == cloud.ClassCreate; paid {
		s.prepaid = false
	}
	return paid
}

func (s *step) unused() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.prepaid
}

func (s *step) lastClass() cloud.Class {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	op := cloud.OperationOf(req.Context())
	if op.Name == "" {
		op = cloud.Operation{Name: "other", Class: cloud.ClassRead}
	}
	if err := t.admit(req, op); err != nil {
		if req.Body != nil {
			req.Body.Close() // a RoundTripper must, also when it fails
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
	if err != nil {
		cancel()
		return nil, err
	}
	resp.Body = &boundedBody{ReadCloser: resp.Body, cancel: cancel}
	return resp, nil
}

// admit waits for the call's turn.
func (t *transport) admit(req *http.Request, op cloud.Operation) error {
	// A client follows redirects by new requests that name the answer which sent them: credentials
	// would follow too.
	if from := req.Response; from != nil && from.Request != nil && from.Request.URL.Host != req.URL.Host {
		return cloud.Errorf(cloud.Unavailable, "%s: %s answered with a redirect to %s, which is not followed", op.Name, from.Request.URL.Host, req.URL.Host)
	}
	ctx := req.Context()
	if err := ctx.Err(); err != nil {
		return err
	}
	if s, ok := ctx.Value(stepKey{}).(*step); ok && s.enter(op.Class) {
		return nil
	}
	waited, err := t.limiter.Load().of(op.Class).wait(ctx)
	t.meter.waited(op.Class, waited)
	return err
}

// outcome is a call's label: few values, whatever clouds answer.
func outcome(resp *http.Response, err error) string {
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	case errors.Is(err, context.Canceled):
		return "cancelled"
	case err != nil:
		return "error"
	case resp.StatusCode == http.StatusTooManyRequests:
		return "429"
	default:
		return strconv.Itoa(resp.StatusCode/100) + "xx"
	}
}

// boundedBody ends the call's time when the answer has been read.
type boundedBody struct {
	io.ReadCloser
	cancel context.CancelFunc
}

func (b *boundedBody) Close() error {
	defer b.cancel()
	return b.ReadCloser.Close()
}
