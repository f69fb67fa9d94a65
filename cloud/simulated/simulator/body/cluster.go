// SPDX-License-Identifier: Apache-2.0

package body

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	certificatesclient "k8s.io/client-go/kubernetes/typed/certificates/v1"
)

const (
	// requestTimeout limits one request that is not a watch.
	requestTimeout = 20 * time.Second
	// idleTimeout closes unused connections. If leases are renewed less often than this, a body
	// holds none.
	idleTimeout = 30 * time.Second
	// hubLinger is how long the watch on signing requests continues without waiters: the next one
	// usually comes soon.
	hubLinger = 20 * time.Second
)

// cluster is an API server with what its bodies share: the CA, connections without client
// certificate, and one watch on certificate signing requests.
type cluster struct {
	fleet      *Fleet
	server     string
	serverName string
	pool       *x509.CertPool
	anonymous  http.RoundTripper
	signing    *hub
}

// clusterOf returns the cluster that a kubelet joins.
func (f *Fleet) clusterOf(k *kubelet) (*cluster, error) {
	key := strings.Join([]string{k.server, k.serverName, string(k.ca)}, "\x00")
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.clusters[key]; c != nil {
		return c, nil
	}
	c := &cluster{fleet: f, server: k.server, serverName: k.serverName}
	if len(k.ca) > 0 {
		c.pool = x509.NewCertPool()
		if !c.pool.AppendCertsFromPEM(k.ca) {
			return nil, errors.New("the bootstrap kubeconfig's certificate authority is not a certificate")
		}
	}
	c.anonymous = c.transport(nil)
	c.signing = &hub{cluster: c, waiting: map[string]*waiter{}}
	f.clusters[key] = c
	return c, nil
}

// transport returns separate connections for one client certificate: TLS binds the two.
func (c *cluster) transport(cert *tls.Certificate) *http.Transport {
	config := &tls.Config{RootCAs: c.pool, ServerName: c.serverName, MinVersion: tls.VersionTLS12}
	if cert != nil {
		config.Certificates = []tls.Certificate{*cert}
	}
	dialer := &net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}
	return &http.Transport{
		DialContext:         dialer.DialContext,
		TLSClientConfig:     config,
		TLSHandshakeTimeout: 10 * time.Second,
		ForceAttemptHTTP2:   true,
		IdleConnTimeout:     idleTimeout,
		// Pings detect a dead connection under a watch.
		HTTP2: &http.HTTP2Config{SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second},
	}
}

// config is for the typed clients. The http.Client used with it carries the credentials.
func (c *cluster) config() *rest.Config {
	return &rest.Config{
		Host: c.server,
		QPS:  -1, // the fleet limits concurrent requests instead
		ContentConfig: rest.ContentConfig{ContentType: "application/vnd.kubernetes.protobuf",
			AcceptContentTypes: "application/vnd.kubernetes.protobuf,application/json"},
		UserAgent: "kubelet (drover simulator)", // of Nodes of several releases
	}
}

// bearer adds a token to requests on shared connections.
type bearer struct {
	token string
	next  http.RoundTripper
}

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token)
	return b.next.RoundTrip(r)
}

// signer is a client for signing requests.
type signer = certificatesclient.CertificateSigningRequestInterface

func (c *cluster) signer(t http.RoundTripper) (signer, error) {
	client, err := certificatesclient.NewForConfigAndClient(c.config(), &http.Client{Transport: t})
	if err != nil {
		return nil, err
	}
	return client.CertificateSigningRequests(), nil
}

// hub watches the signing requests of all bodies that wait for a certificate, with the credentials
// of any of them: a thousand machines that join at once share one watch.
type hub struct {
	cluster *cluster

	mu      sync.Mutex
	waiting map[string]*waiter
	runs    bool
}

type waiter struct {
	client signer
	// done gets the request once it is answered.
	done chan *certificatesv1.CertificateSigningRequest
}

// expect registers a waiter for the request with this name. It is called before the request is
// created, so that no answer is missed.
func (h *hub) expect(name string, client signer) *waiter {
	h.mu.Lock()
	defer h.mu.Unlock()
	w := &waiter{client: client, done: make(chan *certificatesv1.CertificateSigningRequest, 1)}
	h.waiting[name] = w
	if !h.runs {
		h.runs = h.cluster.fleet.spawn(h.run)
	}
	return w
}

func (h *hub) forget(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.waiting, name)
}

// run watches until there has been no waiter for a while.
func (h *hub) run() {
	ctx := h.cluster.fleet.ctx
	lonely := time.Time{}
	for ctx.Err() == nil {
		h.mu.Lock()
		var client signer
		for _, w := range h.waiting {
			client = w.client
			break
		}
		if client == nil {
			if lonely.IsZero() {
				lonely = time.Now()
			}
			if time.Since(lonely) > hubLinger {
				h.runs = false
				h.mu.Unlock()
				return
			}
		}
		h.mu.Unlock()
		if client != nil {
			lonely = time.Time{}
			h.watch(ctx, client)
		}
		// The credentials may be refused, or the server may be down: retry, maybe with another
		// waiter's credentials.
		pause(ctx, time.Second)
	}
}

// watch reads one watch to its end. Without a resource version, it starts with all requests.
func (h *hub) watch(ctx context.Context, client signer) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w, err := client.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return
	}
	defer w.Stop()
	idle := time.NewTicker(hubLinger)
	defer idle.Stop()
	for {
		select {
		case e, ok := <-w.ResultChan():
			if !ok {
				return
			}
			if csr, ok := e.Object.(*certificatesv1.CertificateSigningRequest); ok {
				h.deliver(csr)
			}
		case <-idle.C:
			h.mu.Lock()
			empty := len(h.waiting) == 0
			h.mu.Unlock()
			if empty {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

func (h *hub) deliver(csr *certificatesv1.CertificateSigningRequest) {
	if len(csr.Status.Certificate) == 0 && refusal(csr) == "" {
		return
	}
	h.mu.Lock()
	w := h.waiting[csr.Name]
	h.mu.Unlock()
	if w == nil {
		return
	}
	select {
	case w.done <- csr:
	default:
	}
}

// refusal returns why a request was denied or failed, or "".
func refusal(csr *certificatesv1.CertificateSigningRequest) string {
	for _, c := range csr.Status.Conditions {
		if c.Type == certificatesv1.CertificateDenied || c.Type == certificatesv1.CertificateFailed {
			return string(c.Type) + ": " + c.Message
		}
	}
	return ""
}

// pause waits for d or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
