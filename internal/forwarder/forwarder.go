// SPDX-License-Identifier: Apache-2.0

// Package forwarder is the one way to a workload cluster's API server. A library that connects to a
// workload cluster gets a kubeconfig that leads to this package on the loopback interface. So the
// tenant's credentials never reach the library, every connection is dialed as other endpoints of
// tenants are, and every answer is bounded before the library reads it.
//
// It knows no controller, and keeps nothing of what it forwards.
package forwarder

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"hash/maphash"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-io/drover/internal/budget"
	"github.com/drover-io/drover/internal/kubeconfig"
)

const (
	// domain is the domain of the names under which the forwarder is asked for each cluster. The
	// names are never resolved: they keep client-go from sharing a connection between clusters.
	domain = ".workload.internal"
	// unusedAfter is how long the forwarder keeps a cluster that nobody asks for.
	unusedAfter = 30 * time.Minute
	// maxHeader limits the header of an answer, in bytes.
	maxHeader = 256 << 10
)

// Forwarder forwards requests to workload clusters. It is a Runnable of a manager, and runs whether
// or not the manager leads.
type Forwarder struct {
	dial     func(ctx context.Context, network, address string) (net.Conn, error)
	proxy    func(*http.Request) (*url.URL, error)
	now      func() time.Time
	limits   limits
	listener net.Listener
	server   *http.Server
	ca       []byte // PEM
	refusals *prometheus.CounterVec
	onRefuse func(cluster client.ObjectKey, message string)
	answers  *budget.Budget // of bytes in progress
	objects  *budget.Budget // of bytes that libraries keep

	seed maphash.Seed // of the names of objects

	mu       sync.Mutex
	clusters map[client.ObjectKey]*cluster
	tokens   map[[sha256.Size]byte]*cluster
}

// cluster is a workload cluster, as its kubeconfig describes it.
type cluster struct {
	key      client.ObjectKey
	source   [sha256.Size]byte // of the kubeconfig
	server   *url.URL
	upstream *http.Transport
	bearer   string
	*state
}

// state is what stays of a cluster whose kubeconfig changes.
type state struct {
	token string // what a library shows to be forwarded
	name  string // the name that a library asks for

	requests atomic.Int64 // in progress
	lastUsed atomic.Int64 // Unix seconds
	hangs    atomic.Bool  // the last request ended by a deadline

	mu          sync.Mutex
	collections map[string]*collection // by path
	refused     *refusal
}

// collection is how many objects a library keeps of a collection.
type collection struct {
	count int                 // objects listed and added, less those deleted
	named map[uint64]struct{} // objects that events named and that were not deleted since, by hash
	bytes int64               // what the last list counts for, as far as its parts have ended
	kept  *time.Timer         // ends what the list holds, or nil
}

// collection returns that of a path. The caller has locked the state.
func (c *state) collection(path string) *collection {
	if c.collections[path] == nil {
		c.collections[path] = &collection{named: map[uint64]struct{}{}}
	}
	return c.collections[path]
}

func (c *collection) stop() {
	if c.kept != nil {
		c.kept.Stop()
	}
}

// Options say how a Forwarder connects, and whom it tells.
type Options struct {
	// Dial connects to an endpoint that a tenant specifies.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Proxy returns the operator's proxy for a request, or nil. An error refuses the request.
	Proxy func(*http.Request) (*url.URL, error)
	// OnRefuse is called when a cluster is not asked for a while.
	OnRefuse func(cluster client.ObjectKey, message string)
	Metrics  prometheus.Registerer
}

// New listens on a free port of the loopback interface. Requests wait until Start.
func New(o Options) (*Forwarder, error) {
	certificate, ca, err := newCertificate(time.Now())
	if err != nil {
		return nil, fmt.Errorf("making the forwarder's certificate: %w", err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listening for connections to workload clusters: %w", err)
	}
	f := &Forwarder{
		dial: o.Dial, proxy: o.Proxy, onRefuse: o.OnRefuse, now: time.Now, limits: defaults, listener: listener, ca: ca,
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "drover_workload_answers_refused_total",
			Help: "Answers of workload clusters' API servers that Drover did not read to their end, by reason.",
		}, []string{"reason"}),
		answers: budget.New(maxAnswers), objects: budget.New(maxObjects),
		seed:     maphash.MakeSeed(),
		clusters: map[client.ObjectKey]*cluster{}, tokens: map[[sha256.Size]byte]*cluster{},
	}
	f.server = &http.Server{
		Handler:           f,
		TLSConfig:         &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS13},
		ReadHeaderTimeout: defaults.header,
		IdleTimeout:       5 * time.Minute,
	}
	return f, o.Metrics.Register(f.refusals)
}

// Start forwards requests until ctx ends.
func (f *Forwarder) Start(ctx context.Context) error {
	stopped := context.AfterFunc(ctx, func() { _ = f.server.Close() })
	defer stopped()
	go f.forgetUnused(ctx)
	if err := f.server.ServeTLS(f.listener, "", ""); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("forwarding requests to workload clusters: %w", err)
	}
	return nil
}

// NeedLeaderElection returns false, because the forwarder must run before everything that connects.
func (f *Forwarder) NeedLeaderElection() bool { return false }

// Kubeconfig returns a kubeconfig by which a library reaches a cluster through the forwarder. The
// library's connections continue when a cluster's kubeconfig changes.
func (f *Forwarder) Kubeconfig(key client.ObjectKey, config *kubeconfig.Config) ([]byte, error) {
	text, err := config.Serialize(key.Name)
	if err != nil {
		return nil, err
	}
	c := f.register(key, sha256.Sum256(text), config)
	data, err := clientcmd.Write(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{key.Name: {
			Server:                   "https://" + f.listener.Addr().String(),
			TLSServerName:            c.name,
			CertificateAuthorityData: f.ca,
			DisableCompression:       true, // between two parts of one process
		}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"forwarder": {Token: c.token}},
		Contexts:       map[string]*clientcmdapi.Context{"forwarder": {Cluster: key.Name, AuthInfo: "forwarder"}},
		CurrentContext: "forwarder",
	})
	if err != nil {
		return nil, errors.New("writing the kubeconfig failed") // the serializer's error may quote a secret
	}
	return data, nil
}

// Host returns the host of a cluster's API server, or "" if no kubeconfig of the cluster was used.
func (f *Forwarder) Host(key client.ObjectKey) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.clusters[key]; c != nil {
		return c.server.Hostname()
	}
	return ""
}

// Hangs reports whether the last request to a cluster's API server ended because it was not
// answered in time.
func (f *Forwarder) Hangs(key client.ObjectKey) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.clusters[key]
	return c != nil && c.hangs.Load()
}

// register returns the cluster of a kubeconfig. A cluster whose kubeconfig has changed gets a new
// connection. It keeps the name and token that its library has, and what counts against its bounds.
func (f *Forwarder) register(key client.ObjectKey, source [sha256.Size]byte, config *kubeconfig.Config) *cluster {
	f.mu.Lock()
	defer f.mu.Unlock()
	old := f.clusters[key]
	if old != nil && old.source == source {
		old.used(f.now())
		return old
	}
	c := &cluster{
		key: key, source: source, server: config.Server, bearer: config.Token,
		upstream: &http.Transport{
			Proxy:                  f.proxy,
			DialContext:            f.dial,
			TLSClientConfig:        config.TLS(),
			TLSHandshakeTimeout:    f.limits.header,
			ResponseHeaderTimeout:  f.limits.header,
			MaxResponseHeaderBytes: maxHeader,
			ForceAttemptHTTP2:      true,
			IdleConnTimeout:        90 * time.Second,
			MaxIdleConnsPerHost:    25, // as client-go
			DisableCompression:     !config.Compresses(),
			// A connection that is lost without a word is noticed as soon as client-go would.
			HTTP2: &http.HTTP2Config{SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second},
		},
	}
	if old != nil {
		c.state = old.state
		old.upstream.CloseIdleConnections()
	} else {
		c.state = &state{token: random(32), name: random(8) + domain, collections: map[string]*collection{}}
	}
	c.used(f.now())
	f.clusters[key], f.tokens[sha256.Sum256([]byte(c.token))] = c, c
	return c
}

// random returns n random bytes as text.
func random(n int) string {
	raw := make([]byte, n)
	_, _ = rand.Read(raw) // never fails
	return hex.EncodeToString(raw)
}

func (c *state) used(now time.Time) { c.lastUsed.Store(now.Unix()) }

// of returns the cluster of a request, or nil.
func (f *Forwarder) of(r *http.Request) *cluster {
	token, found := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !found {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.tokens[sha256.Sum256([]byte(token))]
}

// forgetUnused forgets clusters that nobody asks for, until ctx ends. Who comes back reads the
// kubeconfig first.
func (f *Forwarder) forgetUnused(ctx context.Context) {
	ticker := time.NewTicker(unusedAfter / 3)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			f.forget()
		}
	}
}

func (f *Forwarder) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	before := f.now().Add(-unusedAfter).Unix()
	for key, c := range f.clusters {
		if c.requests.Load() == 0 && c.lastUsed.Load() < before {
			c.upstream.CloseIdleConnections()
			delete(f.clusters, key)
			delete(f.tokens, sha256.Sum256([]byte(c.token)))
			f.forgetObjects(c)
		}
	}
}

// forgetObjects gives back the memory for a cluster's objects.
func (f *Forwarder) forgetObjects(c *cluster) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, all := range c.collections {
		f.objects.Set(c.key.Namespace, all, 0)
	}
}

// newCertificate returns a certificate that is its own authority, and lives as long as the process.
func newCertificate(now time.Time) (tls.Certificate, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "drover-forwarder"}, DNSNames: []string{"*" + domain},
		NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(20, 0, 0),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IsCA: true, BasicConstraintsValid: true,
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	return tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: key}, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw}), nil
}
