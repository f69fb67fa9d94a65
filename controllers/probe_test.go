// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"io/fs"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	controlplanev1 "github.com/drover-io/drover/api/controlplane/v1beta1"
	"github.com/drover-io/drover/internal/kubeconfig"
	"github.com/drover-io/drover/internal/test/authority"
)

// patience is a timeout that only a hanging server reaches, even on a busy machine.
const patience = 20 * time.Second

// marked is part of every secret in these tests, and must not appear in any message.
const marked = "HUSH-a3f9"

const realVersion = `{"major":"1","minor":"36","gitVersion":"v1.36.3","goVersion":"go1.26"}`

// serve starts a TLS server whose certificate is valid for hosts until notAfter.
func serve(t *testing.T, ca *authority.Authority, notAfter time.Time, handler http.HandlerFunc, hosts ...string) *httptest.Server {
	t.Helper()
	certificate, key := ca.Issue(t, notAfter, hosts...)
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(handler)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(server.Close)
	return server
}

// configFor returns a server from a kubeconfig with a token, changed by edit.
func configFor(t *testing.T, url string, ca *authority.Authority,
	edit ...func(*clientcmdapi.Cluster, *clientcmdapi.AuthInfo)) apiServerProbe {
	t.Helper()
	cluster := &clientcmdapi.Cluster{Server: url, CertificateAuthorityData: ca.PEM}
	user := &clientcmdapi.AuthInfo{Token: marked}
	for _, change := range edit {
		change(cluster, user)
	}
	data, err := clientcmd.Write(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"c": cluster},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"u": user},
		Contexts:       map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "u"}},
		CurrentContext: "x",
	})
	if err != nil {
		t.Fatal(err)
	}
	config, err := kubeconfig.Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	return apiServerProbe{Config: config}
}

func answer(status int, kind, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", kind)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

func TestProbe(t *testing.T) {
	ca, soon := authority.New(t), time.Now().Add(time.Hour)
	const local = "127.0.0.1"
	tests := map[string]struct {
		handler http.HandlerFunc
		version string
		reason  string
		message string
	}{
		"works":   {handler: answer(200, "application/json", realVersion), version: "v1.36.3"},
		"charset": {handler: answer(200, "application/json; charset=utf-8", realVersion), version: "v1.36.3"},
		"HTML":    {handler: answer(200, "text/html", "<html>"+marked), reason: controlplanev1.UnreachableReason, message: "a web page"},
		"HTML as JSON": {handler: answer(200, "application/json", "<html>"), reason: controlplanev1.UnreachableReason,
			message: "does not answer like a Kubernetes API server"},
		"other JSON": {handler: answer(200, "application/json", `{"gitVersion":"<script>"}`), reason: controlplanev1.UnreachableReason,
			message: "does not answer like a Kubernetes API server"},
		"endless": {handler: answer(200, "application/json", `{"a":"`+strings.Repeat("x", 2*maxProbeAnswer)),
			reason: controlplanev1.UnreachableReason, message: "does not answer like a Kubernetes API server"},
		"401": {handler: answer(401, "application/json", "{}"), reason: controlplanev1.UnauthorizedReason, message: "HTTP 401"},
		"403": {handler: answer(403, "application/json", "{}"), reason: controlplanev1.UnauthorizedReason, message: "HTTP 403"},
		"404": {handler: answer(404, "text/plain", "no"), reason: controlplanev1.UnreachableReason, message: "HTTP 404"},
		"503": {handler: answer(503, "text/plain", "no"), reason: controlplanev1.UnreachableReason, message: "HTTP 503"},
		"hangs": {handler: func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
			reason: controlplanev1.UnreachableReason, message: "does not answer within 1s"},
		"cut": {handler: func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
			reason: controlplanev1.UnreachableReason, message: "without an answer"},
		"hangs midway":   {handler: hangMidway, reason: controlplanev1.UnreachableReason, message: "does not answer within 1s"},
		"credentials in": {handler: onlyWith("Bearer " + marked), version: "v1.36.3"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			server := serve(t, ca, soon, test.handler, local)
			timeout := patience
			if strings.HasPrefix(name, "hangs") {
				timeout = time.Second
			}
			version, failure := configFor(t, server.URL, ca).run(t.Context(), timeout)
			want(t, version, failure, test.version, test.reason, test.message)
		})
	}
}

func hangMidway(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, `{"git`)
	_ = http.NewResponseController(w).Flush()
	<-r.Context().Done()
}

func onlyWith(authorization string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != authorization || r.URL.Path != "/version" {
			answer(401, "application/json", "{}")(w, r)
			return
		}
		answer(200, "application/json", realVersion)(w, r)
	}
}

func want(t *testing.T, version string, failure *probeFailure, wantVersion, reason, message string) {
	t.Helper()
	if failure == nil {
		failure = &probeFailure{}
	}
	if version != wantVersion || failure.reason != reason || !strings.Contains(failure.message, message) {
		t.Errorf("got version %q, failure %+v; want version %q, %s: %s", version, *failure, wantVersion, reason, message)
	}
	if strings.Contains(failure.message, marked) {
		t.Errorf("a secret is in the message: %s", failure.message)
	}
}

// A redirect is a failure, and the credentials do not follow it.
func TestProbeFollowsNoRedirect(t *testing.T) {
	ca, soon := authority.New(t), time.Now().Add(time.Hour)
	var followed atomic.Bool
	elsewhere := serve(t, ca, soon, func(http.ResponseWriter, *http.Request) { followed.Store(true) }, "127.0.0.1")
	server := serve(t, ca, soon, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
	}, "127.0.0.1")
	version, failure := configFor(t, server.URL, ca).run(t.Context(), patience)
	want(t, version, failure, "", controlplanev1.UnreachableReason, "redirect")
	if followed.Load() {
		t.Error("the redirect was followed")
	}
}

func TestProbeTellsCertificatesApart(t *testing.T) {
	ca, other := authority.New(t), authority.New(t)
	good, soon := answer(200, "application/json", realVersion), time.Now().Add(time.Hour)
	t.Run("wrong CA", func(t *testing.T) {
		version, failure := configFor(t, serve(t, ca, soon, good, "127.0.0.1").URL, other).run(t.Context(), patience)
		want(t, version, failure, "", controlplanev1.CertificateRefusedReason, "not signed by the kubeconfig's certificate authority")
	})
	t.Run("expired", func(t *testing.T) {
		server := serve(t, ca, time.Now().Add(-time.Minute), good, "127.0.0.1")
		version, failure := configFor(t, server.URL, ca).run(t.Context(), patience)
		want(t, version, failure, "", controlplanev1.CertificateRefusedReason, "is valid only from")
	})
	t.Run("other host", func(t *testing.T) {
		version, failure := configFor(t, serve(t, ca, soon, good, "10.1.2.3").URL, ca).run(t.Context(), patience)
		want(t, version, failure, "", controlplanev1.CertificateRefusedReason, `not valid for the host "127.0.0.1"`)
	})
	t.Run("tls-server-name", func(t *testing.T) {
		config := configFor(t, serve(t, ca, soon, good, "kubernetes").URL, ca, func(c *clientcmdapi.Cluster, _ *clientcmdapi.AuthInfo) {
			c.TLSServerName = "kubernetes"
		})
		version, failure := config.run(t.Context(), patience)
		want(t, version, failure, "v1.36.3", "", "")
		if config.hasHostsCertificate(t.Context(), patience) {
			t.Error("a certificate for another name counts as the host's")
		}
	})
	t.Run("tls-server-name beside the host", func(t *testing.T) {
		server := serve(t, ca, soon, good, "kubernetes", "127.0.0.1")
		config := configFor(t, server.URL, ca, func(c *clientcmdapi.Cluster, _ *clientcmdapi.AuthInfo) { c.TLSServerName = "kubernetes" })
		if !config.hasHostsCertificate(t.Context(), patience) {
			t.Error("the host's certificate does not count")
		}
		server.Close()
		if !config.hasHostsCertificate(t.Context(), patience) {
			t.Error("a server that does not answer has no wrong certificate")
		}
	})
}

func TestProbeWithClientCertificate(t *testing.T) {
	ca := authority.New(t)
	certificate, key := ca.Issue(t, time.Now().Add(time.Hour), "127.0.0.1")
	serving, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca.Certificate)
	server := httptest.NewUnstartedServer(answer(200, "application/json", realVersion))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{serving}, ClientCAs: roots, ClientAuth: tls.RequireAndVerifyClientCert,
		MinVersion: tls.VersionTLS12}
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(server.Close)

	showing := func(certificate, key []byte) func(*clientcmdapi.Cluster, *clientcmdapi.AuthInfo) {
		return func(_ *clientcmdapi.Cluster, u *clientcmdapi.AuthInfo) {
			u.ClientCertificateData, u.ClientKeyData = certificate, key
		}
	}
	version, failure := configFor(t, server.URL, ca, showing(certificate, key)).run(t.Context(), patience)
	want(t, version, failure, "v1.36.3", "", "")

	version, failure = configFor(t, server.URL, ca).run(t.Context(), patience)
	want(t, version, failure, "", controlplanev1.UnauthorizedReason, "refuses the connection")

	expired, key := ca.Issue(t, time.Now().Add(-time.Hour))
	version, failure = configFor(t, server.URL, ca, showing(expired, key)).run(t.Context(), patience)
	want(t, version, failure, "", controlplanev1.UnauthorizedReason, "its client certificate expired on")
}

func TestProbeWithoutServer(t *testing.T) {
	ca := authority.New(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := "https://" + listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	version, failure := configFor(t, closed, ca).run(t.Context(), patience)
	want(t, version, failure, "", controlplanev1.UnreachableReason, "connection refused")

	version, failure = configFor(t, "https://nowhere.invalid", ca).run(t.Context(), patience)
	want(t, version, failure, "", controlplanev1.UnreachableReason, "")

	plain := httptest.NewServer(answer(200, "application/json", realVersion))
	t.Cleanup(plain.Close)
	version, failure = configFor(t, strings.Replace(plain.URL, "http:", "https:", 1), ca).run(t.Context(), patience)
	want(t, version, failure, "", controlplanev1.UnreachableReason, "without TLS")
}

// A lasting failure must have the same message each time, or it would be written each time.
func TestProbeFailuresAreSteady(t *testing.T) {
	ca, soon := authority.New(t), time.Now().Add(time.Hour)
	for _, test := range []struct {
		handler http.HandlerFunc
		timeout time.Duration
	}{
		{func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, 100 * time.Millisecond},
		{hangMidway, 100 * time.Millisecond},
		{func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, 10 * time.Second},
	} {
		config := configFor(t, serve(t, ca, soon, test.handler, "127.0.0.1").URL, ca)
		_, first := config.run(t.Context(), test.timeout)
		_, second := config.run(t.Context(), test.timeout)
		if first == nil || second == nil || *first != *second {
			t.Errorf("%+v, then %+v", first, second)
		}
	}
}

// TestProbeOfDeniedAddress: the message does not contain the denied address.
func TestProbeOfDeniedAddress(t *testing.T) {
	ca := authority.New(t)
	k := configFor(t, "https://api.example.com", ca)
	k.dial = func(context.Context, string, string) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Addr: &net.TCPAddr{IP: net.IPv4(169, 254, 169, 254), Port: 443}, Err: fs.ErrPermission}
	}
	version, failure := k.run(t.Context(), patience)
	want(t, version, failure, "", controlplanev1.UnreachableReason, "The API server is at an address that the operator does not allow")
}

// TestNextProbe: probes of an API server that does not answer back off up to one minute.
func TestNextProbe(t *testing.T) {
	r := &AdoptedControlPlaneReconciler{}
	adopted := &controlplanev1.AdoptedControlPlane{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "blue"}}
	between := func(least time.Duration) {
		t.Helper()
		if got := r.nextProbe(adopted).RequeueAfter; got < least || got > least+least/4 {
			t.Errorf("the next probe comes after %s, want %s and up to a quarter more", got, least)
		}
	}
	for _, least := range []time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second, time.Minute, time.Minute} {
		between(least)
	}
	setCondition(adopted, clusterv1.AvailableCondition, metav1.ConditionTrue, controlplanev1.AvailableReason, "")
	between(time.Minute)
	setUnavailable(adopted, controlplanev1.UnreachableReason, "")
	between(10 * time.Second)
}

// TestOneProber: while Cluster API's connection to the workload cluster answers, the API server is
// asked once per kubeconfig and now and then for its version. Otherwise each check asks.
func TestOneProber(t *testing.T) {
	ca := authority.New(t)
	var asked atomic.Int32
	server := serve(t, ca, time.Now().Add(time.Hour), func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, realVersion)
	}, "127.0.0.1")
	adopted := &controlplanev1.AdoptedControlPlane{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "blue"}}
	cluster := &clusterv1.Cluster{ObjectMeta: adopted.ObjectMeta}
	connected := clustercache.NewFakeClusterCache(nil, client.ObjectKeyFromObject(cluster))
	config := configFor(t, server.URL, ca).Config
	other := configFor(t, server.URL, ca, func(_ *clientcmdapi.Cluster, user *clientcmdapi.AuthInfo) { user.Token += "-2" }).Config
	r := &AdoptedControlPlaneReconciler{ProbeInterval: time.Minute}
	for _, step := range []struct {
		what   string
		cache  clustercache.ClusterCache
		config *kubeconfig.Config
		asked  int32
	}{
		{"a new kubeconfig", connected, config, 1},
		{"the same one", connected, config, 1},
		{"another one", connected, other, 2},
		{"the same one again", connected, other, 2},
		{"no connection", clustercache.NewFakeEmptyClusterCache(), other, 3},
		{"still none", clustercache.NewFakeEmptyClusterCache(), other, 4},
		{"connected", connected, other, 4},
	} {
		r.ClusterCache = step.cache
		version, failure, err := r.probe(t.Context(), adopted, cluster, step.config)
		if version != "v1.36.3" || failure != nil || err != nil || asked.Load() != step.asked {
			t.Fatalf("%s: version %q, failure %v, error %v, asked %d times, want %d", step.what, version, failure, err, asked.Load(), step.asked)
		}
	}
	r.ProbeInterval = time.Nanosecond // the version is old, and so is the connection's answer
	if _, _, err := r.probe(t.Context(), adopted, cluster, other); err != nil || asked.Load() != 5 {
		t.Errorf("error %v, asked %d times, want 5", err, asked.Load())
	}
}
