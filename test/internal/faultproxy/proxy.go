// SPDX-License-Identifier: Apache-2.0

package faultproxy

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/clientcmd"
)

// Point is the moment at which a Rule is called.
type Point string

const (
	// Before: the call has arrived and is not forwarded yet.
	Before Point = "before"
	// After: upstream has executed and answered the call, and the caller does not have the answer
	// yet. For a watch this is only its start.
	After Point = "after"
)

// Rule decides about a call. It may block, and delays the call. ctx ends when the caller is gone or
// the proxy is closed. Rules run concurrently.
type Rule func(ctx context.Context, c Call, at Point) Verdict

// Verdict is what happens to a call. The zero value lets it pass.
type Verdict struct {
	// Cut hangs up on the caller.
	Cut bool
	// Answer replaces the answer of upstream.
	Answer *Answer
}

// Answer is a complete response.
type Answer struct {
	Status      int
	ContentType string
	Body        []byte
}

func (v Verdict) fate(at Point) string {
	switch {
	case v.Cut:
		return "cut " + string(at)
	case v.Answer != nil:
		return fmt.Sprintf("answered %d %s", v.Answer.Status, at)
	}
	return ""
}

// Refuse answers with an error of the Kubernetes API, for example from apierrors.NewConflict.
func Refuse(err *apierrors.StatusError) Verdict {
	status := err.Status()
	status.Kind, status.APIVersion = "Status", "v1"
	body, _ := json.Marshal(status) // of strings and numbers: can't fail
	return Verdict{Answer: &Answer{Status: int(status.Code), ContentType: "application/json", Body: body}}
}

// Delay lets a call pass after d.
func Delay(ctx context.Context, d time.Duration) Verdict {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	return Verdict{}
}

// Hang never answers: it waits until the caller gives up.
func Hang(ctx context.Context) Verdict {
	<-ctx.Done()
	return Verdict{Cut: true}
}

// Options configure a Proxy.
type Options struct {
	// Name is for logs and for Call.Proxy.
	Name string
	// Upstream is the base URL to which calls are forwarded. CA verifies its certificate (PEM; for
	// https).
	Upstream string
	CA       []byte
	// Parse identifies calls: Kubernetes, Cloud or AWS.
	Parse Parse
	// Rule is the initial rule. SetRule changes it. nil passes everything.
	Rule Rule
	// Lag is the initial lag. SetLag changes it.
	Lag func(Call) time.Duration
	// Skew is how far the caller's clock is ahead of upstream's, or behind if it is negative. The
	// caller's clock cannot be set, so the proxy shifts timestamps instead: by -Skew on their way
	// to the caller, and by Skew on their way to upstream.
	Skew time.Duration
}

// Proxy is a reverse proxy on the loopback interface. It uses the protocol of upstream: HTTPS, with
// HTTP/2 and its own certificate, or HTTP. Bearer tokens pass through. Client certificates cannot.
type Proxy struct {
	name      string
	parse     Parse
	skew      time.Duration
	url       string
	ca        []byte
	transport *http.Transport
	server    *http.Server
	ctx       context.Context // ends when the proxy is closed
	cancel    context.CancelFunc

	mu      sync.Mutex
	rule    Rule
	lag     func(Call) time.Duration
	calls   []Call
	count   int
	dropped int // the number of calls that Reset removed from calls
	streams map[*stream]struct{}
	dead    chan struct{} // closed when the connections so far die
}

// Start starts a proxy. Close ends it.
func Start(o Options) (*Proxy, error) {
	upstream, err := url.Parse(o.Upstream)
	if err != nil {
		return nil, fmt.Errorf("proxy %s: read the address of upstream: %w", o.Name, err)
	}
	p := &Proxy{
		name: o.Name, parse: o.Parse, rule: o.Rule, lag: o.Lag, skew: o.Skew, streams: map[*stream]struct{}{}, dead: make(chan struct{}),
		transport: &http.Transport{MaxIdleConnsPerHost: 64, ForceAttemptHTTP2: true, DisableCompression: true},
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.server = &http.Server{
		Handler: &httputil.ReverseProxy{
			Rewrite: func(r *httputil.ProxyRequest) {
				r.SetURL(upstream)
				r.Out.Host = r.In.Host // AWS's signatures cover it
			},
			Transport:     p,
			FlushInterval: -1,
			// When upstream is down, the caller gets no answer at all, and no error of the proxy's
			// own.
			ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
			ErrorLog:     log.New(io.Discard, "", 0),
		},
		ErrorLog:    log.New(io.Discard, "", 0),
		BaseContext: func(net.Listener) context.Context { return p.ctx },
	}
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("proxy %s: listen: %w", o.Name, err)
	}
	listener := mortalListener{tcp, p}
	if upstream.Scheme != "https" {
		p.url = "http://" + listener.Addr().String()
		go func() { _ = p.server.Serve(listener) }() // the error says that it was closed
		return p, nil
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(o.CA) {
		return nil, errors.Join(fmt.Errorf("proxy %s: no certificate in the CA of upstream", o.Name), listener.Close())
	}
	p.transport.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	certificate, ca, err := selfSigned(o.Name)
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	p.url, p.ca = "https://"+listener.Addr().String(), ca
	p.server.TLSConfig = &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}
	go func() { _ = p.server.ServeTLS(listener, "", "") }()
	return p, nil
}

// URL returns the proxy's address.
func (p *Proxy) URL() string { return p.url }

// CA returns the CA of the proxy's certificate as PEM, or nil for HTTP.
func (p *Proxy) CA() []byte { return slices.Clone(p.ca) }

// Kubeconfig points all clusters of a kubeconfig at the proxy, and adds the proxy's CA to the
// trusted ones. The kubeconfig's users must have tokens.
func (p *Proxy) Kubeconfig(raw []byte) ([]byte, error) {
	config, err := clientcmd.Load(raw)
	if err != nil {
		return nil, fmt.Errorf("proxy %s: read the kubeconfig: %w", p.name, err)
	}
	for _, cluster := range config.Clusters {
		cluster.Server = p.url
		cluster.CertificateAuthorityData = slices.Concat(cluster.CertificateAuthorityData, p.ca)
	}
	return clientcmd.Write(*config)
}

// WriteKubeconfig writes such a kubeconfig to a file, for a process that is started with it.
func (p *Proxy) WriteKubeconfig(path string, raw []byte) error {
	through, err := p.Kubeconfig(raw)
	if err != nil {
		return err
	}
	return os.WriteFile(path, through, 0o600)
}

// SetRule replaces the rule. nil passes everything.
func (p *Proxy) SetRule(r Rule) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rule = r
}

// SetLag makes watches lag, including those that already run. lag is called for every piece that
// arrives. nil means no lag.
func (p *Proxy) SetLag(lag func(Call) time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lag = lag
}

// CutStreams closes all running watches.
func (p *Proxy) CutStreams() {
	p.mu.Lock()
	all := make([]*stream, 0, len(p.streams))
	for s := range p.streams {
		all = append(all, s)
	}
	p.mu.Unlock()
	for _, s := range all {
		s.cut()
	}
}

// Calls returns all calls since the start or the last Reset.
func (p *Proxy) Calls() []Call {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.calls)
}

// Reset forgets the calls so far.
func (p *Proxy) Reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dropped = p.count
	p.calls = nil
}

// Close stops the proxy and closes all connections.
func (p *Proxy) Close() {
	p.cancel()
	_ = p.server.Close()
	p.transport.CloseIdleConnections()
}

// errCut makes the server hang up.
var errCut = errors.New("cut by the rule")

// RoundTrip forwards one call.
func (p *Proxy) RoundTrip(req *http.Request) (*http.Response, error) {
	c, err := p.record(req)
	if err != nil {
		return nil, err
	}
	if resp, err := p.ask(req, c, Before); resp != nil || err != nil {
		return resp, err
	}
	resp, err := p.transport.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	c.Status = resp.StatusCode
	p.note(c)
	switch {
	case resp.StatusCode == http.StatusSwitchingProtocols:
		return resp, nil
	case c.Verb == "watch":
		if p.skew != 0 {
			resp.Body = newShiftedLines(resp.Body, -p.skew)
		}
		resp.Body = p.newStream(req.Context(), *c, resp.Body)
	default:
		if err := p.slurp(resp); err != nil {
			return nil, err
		}
	}
	if other, err := p.ask(req, c, After); other != nil || err != nil {
		return other, errors.Join(err, resp.Body.Close())
	}
	return resp, nil
}

// slurp reads the whole answer, so that the rule is called after all of it has arrived.
func (p *Proxy) slurp(resp *http.Response) error {
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if p.skew != 0 {
		body = shift(body, -p.skew)
	}
	resp.Body = io.NopCloser(bytes.NewReader(body))
	return nil
}

func (p *Proxy) record(req *http.Request) (*Call, error) {
	var body []byte
	if p.skew != 0 {
		askPlain(req)
	}
	if req.Body != nil && req.Body != http.NoBody && req.Header.Get("Upgrade") == "" {
		var err error
		if body, err = io.ReadAll(req.Body); err != nil {
			return nil, err
		}
		if p.skew != 0 {
			if body, err = plain(req, body); err != nil {
				return nil, err
			}
			body = shift(body, p.skew)
		}
		req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	}
	c := &Call{Proxy: p.name, At: time.Now(), Agent: req.UserAgent()}
	p.parse(c, req, body)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.count++
	c.Number = p.count
	p.calls = append(p.calls, *c)
	return c, nil
}

// note updates the record of a call.
func (p *Proxy) note(c *Call) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := c.Number - p.dropped - 1; i >= 0 && i < len(p.calls) {
		p.calls[i] = *c
	}
}

// ask calls the rule. Without an answer and an error the call continues.
func (p *Proxy) ask(req *http.Request, c *Call, at Point) (*http.Response, error) {
	p.mu.Lock()
	rule := p.rule
	p.mu.Unlock()
	if rule == nil {
		return nil, nil
	}
	v := rule(req.Context(), *c, at)
	if fate := v.fate(at); fate != "" {
		c.Fate = fate
		p.note(c)
	}
	switch {
	case v.Cut:
		return nil, errCut
	case v.Answer != nil:
		return &http.Response{
			StatusCode: v.Answer.Status, Request: req,
			Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
			Header:        http.Header{"Content-Type": {v.Answer.ContentType}},
			ContentLength: int64(len(v.Answer.Body)),
			Body:          io.NopCloser(bytes.NewReader(v.Answer.Body)),
		}, nil
	}
	return nil, req.Context().Err()
}
