// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/drover-io/drover/cloud"
)

// network carries a driver's calls, counts them, injects faults, and checks that the driver makes
// its calls as promised.
type network struct {
	shared http.RoundTripper // connections of the drivers are made from it
	t      testing.TB

	mu    sync.Mutex
	calls map[cloud.Class]int
	names []string // of all calls, in their order
	fault *fault
}

// fault happens to one call of a class.
type fault struct {
	class  cloud.Class
	skip   int
	do     effect
	giveUp func()
	hits   int
}

// effect is what a fault does with a call. send carries it out; giveUp ends the caller's context.
type effect func(req *http.Request, send func() (*http.Response, error), giveUp func()) (*http.Response, error)

// connect implements a cloud.Config's Connect.
func (n *network) connect(trust *tls.Config) (http.RoundTripper, error) {
	base, err := cloud.Connect(n.shared, trust)
	if own, ok := base.(*http.Transport); ok && trust != nil {
		n.t.Cleanup(own.CloseIdleConnections)
	}
	return connection{n, base}, err
}

// connection carries the calls of one driver.
type connection struct {
	*network
	base http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (n connection) RoundTrip(req *http.Request) (*http.Response, error) {
	op := cloud.OperationOf(req.Context())
	name, class, named := op.Name, op.Class, op.Name != ""
	if !named || name == "" {
		n.t.Errorf("%s %s was not named by WithOperation", req.Method, req.URL.Path)
	}
	if req.Response != nil {
		n.t.Errorf("%s followed a redirect to %s, which sends the credentials there", name, req.URL.Host)
	}
	if err := req.Context().Err(); err != nil {
		n.t.Errorf("%s was called after its context had ended", name)
		return nil, err
	}
	n.mu.Lock()
	n.calls[class]++
	n.names = append(n.names, name)
	f := n.fault
	if f != nil && (f.class != class || f.hits > 0) {
		f = nil
	}
	if f != nil && f.skip > 0 {
		f.skip--
		f = nil
	}
	if f != nil {
		f.hits++
	}
	n.mu.Unlock()
	send := func() (*http.Response, error) { return n.base.RoundTrip(req) }
	if f != nil {
		return f.do(req, send, f.giveUp)
	}
	return send()
}

// count returns how many calls of the classes f makes; of all classes if there are none.
func (n *network) count(f func(), classes ...cloud.Class) int {
	before := n.total(classes)
	f()
	return n.total(classes) - before
}

func (n *network) total(classes []cloud.Class) int {
	if len(classes) == 0 {
		classes = []cloud.Class{cloud.ClassCreate, cloud.ClassDelete, cloud.ClassRead}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	sum := 0
	for _, class := range classes {
		sum += n.calls[class]
	}
	return sum
}

// last returns the names of the newest calls.
func (n *network) last(calls int) []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.names[max(0, len(n.names)-calls):])
}

// inject sets a fault for the next call of its class after skip others. happened reports whether
// the fault happened, and removes it.
func (n *network) inject(f fault) (happened func() bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.fault = &f
	return func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.fault = nil
		return f.hits > 0
	}
}

// networkFault is what networks and their proxies do to a call.
type networkFault struct {
	name string
	do   effect
}

// networkFaults returns faults that leave open whether the call took effect. The driver must do so
// too.
func networkFaults() []networkFault {
	return []networkFault{
		{"cut before the effect", func(req *http.Request, _ func() (*http.Response, error), _ func()) (*http.Response, error) {
			closeBody(req)
			return nil, io.ErrUnexpectedEOF
		}},
		{"cut after the effect", func(_ *http.Request, send func() (*http.Response, error), _ func()) (*http.Response, error) {
			if resp, err := send(); err == nil {
				drain(resp)
			}
			return nil, io.ErrUnexpectedEOF
		}},
		{"cut within the response", func(_ *http.Request, send func() (*http.Response, error), _ func()) (*http.Response, error) {
			resp, err := send()
			if err != nil {
				return nil, err
			}
			body := drain(resp)
			resp.Body = io.NopCloser(io.MultiReader(bytes.NewReader(body[:len(body)/2]), brokenBody{}))
			return resp, nil
		}},
		{"truncated response", func(_ *http.Request, send func() (*http.Response, error), _ func()) (*http.Response, error) {
			resp, err := send()
			if err != nil {
				return nil, err
			}
			body := drain(resp)
			return replaced(resp, resp.StatusCode, resp.Header.Get("Content-Type"), string(body[:len(body)/2])), nil
		}},
		{"HTML with 200", html(http.StatusOK)},
		{"HTML with 502", html(http.StatusBadGateway)},
		{"redirect to another host", func(_ *http.Request, send func() (*http.Response, error), _ func()) (*http.Response, error) {
			resp, err := send()
			if err != nil {
				return nil, err
			}
			drain(resp)
			resp = replaced(resp, http.StatusTemporaryRedirect, "text/plain", "")
			resp.Header.Set("Location", "http://127.0.0.1:1/elsewhere")
			return resp, nil
		}},
		{"hang after the effect", func(req *http.Request, send func() (*http.Response, error), giveUp func()) (*http.Response, error) {
			if resp, err := send(); err == nil {
				drain(resp)
			}
			giveUp()
			<-req.Context().Done()
			return nil, req.Context().Err()
		}},
	}
}

func html(status int) effect {
	return func(_ *http.Request, send func() (*http.Response, error), _ func()) (*http.Response, error) {
		resp, err := send()
		if err != nil {
			return nil, err
		}
		drain(resp)
		return replaced(resp, status, "text/html", "<html><body>Welcome to the hotel</body></html>"), nil
	}
}

func replaced(resp *http.Response, status int, kind, body string) *http.Response {
	resp.StatusCode, resp.Status = status, fmt.Sprintf("%d %s", status, http.StatusText(status))
	resp.Header = http.Header{"Content-Type": {kind}}
	resp.ContentLength = int64(len(body))
	resp.Body = io.NopCloser(strings.NewReader(body))
	return resp
}

func drain(resp *http.Response) []byte {
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body) // a body that breaks off is another fault
	return body
}

func closeBody(req *http.Request) {
	if req.Body != nil {
		req.Body.Close()
	}
}

type brokenBody struct{}

func (brokenBody) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// hang sends nothing, ends the caller's context, and waits until the call's own has ended.
func hang(req *http.Request, _ func() (*http.Response, error), giveUp func()) (*http.Response, error) {
	closeBody(req)
	giveUp()
	<-req.Context().Done()
	return nil, req.Context().Err()
}
