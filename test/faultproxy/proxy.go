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

// Point is when a Rule is asked.
type Point string

const (
	// Before: the call has come and was not forwarded.
	Before Point = "before"
	// After: upstream has done it and answered, and the caller has not got the answer. Of a watch,
	// only its begin.
	After Point = "after"
)

// Rule decides over a call. It may block, and the call waits meanwhile; ctx ends when the caller is
// gone or the proxy is closed. Rules run at the same time.
type Rule func(ctx context.Context, c Call, at Point) Verdict

// Verdict is what becomes of a call. The zero value lets it pass.
type Verdict struct {
	// Cut hangs up on the caller.
	Cut bool
	// Answer goes to the caller in the place of upstream's.
	Answer *Answer
}

// Answer is a whole one.
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

// Refuse answers an error of the Kubernetes API, such as apierrors.NewConflict makes.
func Refuse(err *apierrors.StatusError) Verdict {
	status := err.Status()
	status.Kind, status.APIVersion = "Status", "v1"
	body, _ := json.Marshal(status) // of strings and numbers: can't fail
	return Verdict{Answer: &Answer{Status: int(status.Code), ContentType: "application/json", Body: body}}
}

// Delay lets a call pass after a while.
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

// Options of a Proxy.
type Options struct {
	// Name is for people, and in Call.Proxy.
	Name string
	// Upstream is the base URL of where calls go, CA what its certificate is verified by (PEM; for
	// https).
	Upstream string
	CA       []byte
	// Parse says what calls are: Kubernetes, Cloud or AWS.
	Parse Parse
	// Rule at the start; SetRule changes it. nil passes everything.
	Rule Rule
	// Lag at the start; SetLag changes it.
	Lag func(Call) time.Duration
	// Skew is how far the caller's clock goes ahead of upstream's, or behind if it is negative.
	// Since the caller's can't be set, the timestamps that pass are moved: to the past on their way
	// to it, and back on their way to upstream.
	Skew time.Duration
}

// Proxy is a reverse proxy on the loopback interface. It speaks what upstream speaks: HTTPS, with
// HTTP/2 and a certificate of its own, or HTTP. Bearer tokens pass through; client certificates
// can't.
type Proxy struct {
	name      string
	parse     Parse
	skew      time.Duration
	url       string
	ca        []byte
	transport *http.Transport
	server    *http.Server
	ctx       context.Context // ends with the proxy
	cancel    context.CancelFunc

	mu      sync.Mutex
	rule    Rule
	lag     func(Call) time.Duration
	calls   []Call
	count   int
	dropped int // how many of the first calls Reset took out of calls
	streams map[*stream]struct{}
}

// Start starts a proxy. Close ends it.
func Start(o Options) (*Proxy, error) {
	upstream, err := url.Parse(o.Upstream)
	if err != nil {
		return nil, fmt.Errorf("proxy %s: read the address of upstream: %w", o.Name, err)
	}
	p := &Proxy{
		name: o.Name, parse: o.Parse, rule: o.Rule, lag: o.Lag, skew: o.Skew, streams: map[*stream]struct{}{},
		transport: &http.Transport{MaxIdleConnsPerHost: 64, ForceAttemptHTTP2: true, DisableCompression: true},
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.server = &http.Server{
		Handler: &httputil.ReverseProxy{
			Rewrite: func(r *httputil.ProxyRequest) {
				r.SetURL(upstream)
				r.Out.Host = r.In.Host // which AWS's signatures cover
			},
			Transport:     p,
			FlushInterval: -1,
			// An upstream that is down looks like one: no answer, rather than a proxy's own words.
			ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
			ErrorLog:     log.New(io.Discard, "", 0),
		},
		ErrorLog:    log.New(io.Discard, "", 0),
		BaseContext: func(net.Listener) context.Context { return p.ctx },
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("proxy %s: listen: %w", o.Name, err)
	}
	if upstream.Scheme != "https" {
		p.url = "http://" + listener.Addr().String()
		go p.server.Serve(listener)
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
	go p.server.ServeTLS(listener, "", "")
	return p, nil
}

// URL is the proxy's address.
func (p *Proxy) URL() string { return p.url }

// CA is what the proxy's certificate is verified by, as PEM; nil for HTTP.
func (p *Proxy) CA() []byte { return slices.Clone(p.ca) }

// Kubeconfig makes all clusters of a kubeconfig the proxy. The certificates that it trusts already
// stay trusted. Its users must have tokens.
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

// SetRule replaces the rule; nil passes everything.
func (p *Proxy) SetRule(r Rule) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rule = r
}

// SetLag makes watches lag behind, those that run included. The function is asked for every piece
// of news; nil is none.
func (p *Proxy) SetLag(lag func(Call) time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lag = lag
}

// CutStreams hangs up on all watches that run.
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

// Calls returns all that came since the start or the last Reset.
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

// Close hangs up on everybody.
func (p *Proxy) Close() {
	p.cancel()
	_ = p.server.Close()
	p.transport.CloseIdleConnections()
}

// errCut makes the server hang up.
var errCut = errors.New("cut by the rule")

// RoundTrip takes one call through.
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

// slurp reads the whole answer, so that what happens to the call happens after all of it.
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

// note brings what was recorded up to date.
func (p *Proxy) note(c *Call) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := c.Number - p.dropped - 1; i >= 0 && i < len(p.calls) {
		p.calls[i] = *c
	}
}

// ask has the rule decide. No answer and no error mean that the call goes on.
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
