// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
)

// newHTTPTransport carries the calls of all accounts where none is given. Connections are few, because the rate
// limits are low.
func newHTTPTransport() *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone() // proxy from the environment, HTTP/2, handshake timeouts
	t.MaxIdleConns = 64
	t.MaxIdleConnsPerHost = 8
	t.IdleConnTimeout = 90 * time.Second
	return t
}

// CertPool reads an account's CA bundle, for Cloud.Roots; nil for an empty one. Errors are InvalidSpec.
func CertPool(bundle string) (*x509.CertPool, error) {
	if bundle == "" {
		return nil, nil
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM([]byte(bundle)) {
		return nil, Errorf(InvalidSpec, "caBundle holds no certificate in PEM")
	}
	return pool, nil
}

// Trusting returns what carries an account's calls: base, or where the account brings its own authorities or certificate,
// connections of its own, which trust no others. Errors are InvalidSpec or Unauthorized.
func (c *Cloud) Trusting(base http.RoundTripper, account *infrav1.CloudAccountSpec, credentials map[string][]byte) (http.RoundTripper, error) {
	config, err := c.connection(account, credentials)
	if config == nil || err != nil {
		return base, err
	}
	shared, ok := base.(*http.Transport)
	if !ok {
		return nil, Errorf(InvalidSpec, "the account brings its own authorities, and a %T can't be told of them", base)
	}
	own := shared.Clone()
	own.TLSClientConfig = config
	return own, nil
}

// connection is what the account says of its TLS, or nil.
func (c *Cloud) connection(account *infrav1.CloudAccountSpec, credentials map[string][]byte) (*tls.Config, error) {
	if c.TLS != nil {
		return c.TLS(account, credentials)
	}
	if c.Roots == nil {
		return nil, nil
	}
	roots, err := c.Roots(account)
	if roots == nil || err != nil {
		return nil, err
	}
	return &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, nil
}

// transport carries one account's calls: it makes them wait for their turn, bounds them in time and counts them.
type transport struct {
	base    http.RoundTripper
	limiter *limiter
	times   Times
	meter   *meter
}

// step is one call of a Driver's method, in the context of the wire calls that it makes.
type step struct {
	mu      sync.Mutex
	prepaid bool  // a token of the create bucket was taken for it and not used yet
	last    Class // of the latest wire call
}

type stepKey struct{}

func withStep(ctx context.Context, s *step) context.Context {
	return context.WithValue(ctx, stepKey{}, s)
}

// enter notes a wire call and tells whether it is paid for.
func (s *step) enter(class Class) (paid bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = class
	if paid = s.prepaid && class == ClassCreate; paid {
		s.prepaid = false
	}
	return paid
}

func (s *step) unused() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.prepaid
}

func (s *step) lastClass() Class {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	op := operationOf(req.Context())
	if err := t.admit(req, op); err != nil {
		if req.Body != nil {
			req.Body.Close() // a RoundTripper must, also when it fails
		}
		return nil, err
	}
	bound := t.times.Call
	if op.stream {
		bound += StreamTime
	}
	ctx, cancel := context.WithTimeout(req.Context(), bound)
	start := time.Now()
	resp, err := t.base.RoundTrip(req.WithContext(ctx))
	t.meter.call(op.name, outcome(resp, err), time.Since(start))
	if err != nil {
		cancel()
		return nil, err
	}
	resp.Body = &boundedBody{ReadCloser: resp.Body, cancel: cancel}
	return resp, nil
}

// admit waits for the call's turn.
func (t *transport) admit(req *http.Request, op operation) error {
	// A client follows redirects by new requests that name the answer which sent them: credentials would follow too.
	if from := req.Response; from != nil && from.Request != nil && from.Request.URL.Host != req.URL.Host {
		return Errorf(Unavailable, "%s: %s answered with a redirect to %s, which is not followed", op.name, from.Request.URL.Host, req.URL.Host)
	}
	ctx := req.Context()
	if err := ctx.Err(); err != nil {
		return err
	}
	if s, ok := ctx.Value(stepKey{}).(*step); ok && s.enter(op.class) {
		return nil
	}
	waited, err := t.limiter.of(op.class).wait(ctx)
	t.meter.waited(op.class, waited)
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
