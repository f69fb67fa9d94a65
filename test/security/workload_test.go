// SPDX-License-Identifier: Apache-2.0

package security

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	eventsv1 "k8s.io/api/events/v1"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/drover-io/drover/internal/test/playground"
	"github.com/drover-io/drover/test/internal/scenario"
)

var env struct {
	management *playground.Management
	client     client.Client
	binary     string
}

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "security:", err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (int, error) {
	log.SetLogger(logr.Discard())
	SetDefaultEventuallyTimeout(5 * time.Minute)
	SetDefaultEventuallyPollingInterval(100 * time.Millisecond)
	ctx, done := context.WithTimeout(context.Background(), time.Hour)
	defer done()
	var err error
	env.management, err = playground.StartManagement(ctx,
		playground.ManagementOptions{ControlPlaneOptions: playground.ControlPlaneOptions{Progress: os.Stderr}})
	if err != nil {
		return 1, err
	}
	defer func() { _ = env.management.Stop() }()
	if env.binary, err = playground.Build(ctx, false); err != nil { // the race detector takes memory of its own
		return 1, err
	}
	if env.client, err = scenario.NewClient(env.management.AdminConfig()); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

// manager starts Drover for one test.
func manager(t *testing.T, args ...string) *playground.Process {
	t.Helper()
	p, err := env.management.StartDrover(t.Context(),
		playground.DroverOptions{Binary: env.binary, Args: append([]string{"--leader-elect=false", "--control-plane-probe-interval=1s"},
			args...)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Kill(); _ = p.Wait() })
	return p
}

// peak returns the most memory that a process had so far, in bytes.
func peak(t *testing.T, p *playground.Process) int64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID()))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.SplitSeq(string(text), "\n") {
		var kib int64
		if n, _ := fmt.Sscanf(line, "VmHWM: %d kB", &kib); n == 1 {
			return kib << 10
		}
	}
	t.Fatal("the kernel does not say how much memory the manager took")
	return 0
}

// refused waits until an Event of the namespace's only Cluster says why its server is not asked.
func refused(t *testing.T, namespace, why string) {
	t.Helper()
	NewWithT(t).Eventually(func(g Gomega) {
		var events eventsv1.EventList
		g.Expect(env.client.List(t.Context(), &events, client.InNamespace(namespace))).To(Succeed())
		g.Expect(events.Items).To(ContainElement(And(
			HaveField("Reason", "AnswerRefused"), HaveField("Regarding.Kind", "Cluster"), HaveField("Note", ContainSubstring(why)))))
	}).Should(Succeed())
}

// TestKubeconfigIsData: the Secret <cluster>-kubeconfig of a tenant makes the manager neither read
// one of its files, nor connect to a server that it can't verify.
func TestKubeconfigIsData(t *testing.T) {
	p := manager(t)
	file := filepath.Join(t.TempDir(), "token") // stands for that of the manager's service account
	if err := os.WriteFile(file, []byte("HUSH-manager-service-account"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*clientcmdapi.Cluster, *clientcmdapi.AuthInfo){
		"allowed":    nil,
		"token-file": func(_ *clientcmdapi.Cluster, u *clientcmdapi.AuthInfo) { u.Token, u.TokenFile = "", file },
		"two-tokens": func(_ *clientcmdapi.Cluster, u *clientcmdapi.AuthInfo) { u.TokenFile = file },
		"ca-file":    func(c *clientcmdapi.Cluster, _ *clientcmdapi.AuthInfo) { c.CertificateAuthority = file },
		"skips-tls": func(c *clientcmdapi.Cluster, _ *clientcmdapi.AuthInfo) {
			c.CertificateAuthorityData, c.InsecureSkipTLSVerify = nil, true
		},
		"without-tls": func(c *clientcmdapi.Cluster, _ *clientcmdapi.AuthInfo) {
			c.Server = strings.Replace(c.Server, "https", "http", 1)
		},
		"through-a-proxy": func(c *clientcmdapi.Cluster, _ *clientcmdapi.AuthInfo) { c.ProxyURL = c.Server },
	} {
		t.Run(name, func(t *testing.T) {
			server, ns := newAPIServer(t, nil), namespace(t)
			connect(t, ns, "blue", server.kubeconfig(t, change))
			if change == nil {
				NewWithT(t).Eventually(func() bool { return server.got("the-tenants-own") }).Should(BeTrue(), "the manager does not connect")
				return
			}
			NewWithT(t).Eventually(func() int { return bytes.Count(logOf(t, p), []byte(ns)) }).Should(BeNumerically(">", 0),
				"the log does not say that the kubeconfig is refused")
			if server.got("HUSH") || server.requests("") > 0 {
				t.Errorf("the manager uses the kubeconfig: %d requests, with its file's content: %t", server.requests(""), server.got("HUSH"))
			}
		})
	}
}

func logOf(t *testing.T, p *playground.Process) []byte {
	t.Helper()
	data, err := os.ReadFile(p.Log)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestAnswersAreBounded: a tenant's API server sends 768 MiB, in one list of Nodes, in one event,
// or in certificate requests for a signer that is none of Drover's. The manager, whose limit is 1
// GiB, ends the answer, and an Event says why.
func TestAnswersAreBounded(t *testing.T) {
	const all, most, growth = 768 << 20, 96 << 20, 512 << 20
	block := bytes.Repeat([]byte("QUFB"), 1<<18)
	// stream sends blocks, each between two texts, and counts them.
	stream := func(w io.Writer, sent *atomic.Int64, before, after string) {
		for sent.Load() < all {
			for _, part := range [][]byte{[]byte(before), block, []byte(after)} {
				if _, err := w.Write(part); err != nil {
					return
				}
			}
			sent.Add(int64(len(block)))
		}
	}
	for name, c := range map[string]struct {
		path, why string
		send      func(w http.ResponseWriter, r *http.Request, sent *atomic.Int64)
	}{
		"a list in one text": {nodes, "sent an answer of more than 64 MiB", func(w http.ResponseWriter, r *http.Request, sent *atomic.Int64) {
			if r.URL.Query().Get("watch") != "" {
				invalid(w)
				return
			}
			_, _ = io.WriteString(w, `{"kind":"NodeList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[],"x":"`)
			stream(w, sent, "", "")
		}},
		"one event": {nodes, "sent an event of more than 4 MiB", func(w http.ResponseWriter, _ *http.Request, sent *atomic.Int64) {
			_, _ = io.WriteString(w, `{"type":"ADDED","object":{"kind":"Node","apiVersion":"v1","metadata":{"name":"`)
			stream(w, sent, "", "")
		}},
		"requests of a guest": {requests, "sent an answer of more than 64 MiB", func(w http.ResponseWriter, r *http.Request, sent *atomic.Int64) {
			if r.URL.Query().Get("watch") != "" {
				invalid(w)
				return
			}
			_, _ = io.WriteString(w, `{"kind":"CertificateSigningRequestList","apiVersion":"certificates.k8s.io/v1","metadata":{"resourceVersion":"1"},"items":[`)
			stream(w, sent, `{"metadata":{"name":"csr","uid":"u"},"spec":{"signerName":"example.com/other","username":"system:node:guest","request":"`, `"}},`)
		}},
	} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			p, ns := manager(t), namespace(t)
			before := peak(t, p)
			var sent, largest atomic.Int64
			server := newAPIServer(t, map[string]http.HandlerFunc{c.path: func(w http.ResponseWriter, r *http.Request) {
				sent.Store(0)
				c.send(w, r, &sent)
				largest.Store(max(largest.Load(), sent.Load()))
			}})
			connect(t, ns, "blue", server.kubeconfig(t, nil))
			refused(t, ns, c.why)
			NewWithT(t).Eventually(largest.Load).Should(BeNumerically(">", 0))
			if got := largest.Load(); got > most {
				t.Errorf("the manager took %d MiB of one answer", got>>20)
			}
			if got := peak(t, p) - before; got > growth {
				t.Errorf("the answer took %d MiB of memory", got>>20)
			} else {
				t.Logf("of %d MiB, %d were sent; the manager's memory grew by %d MiB at most", int64(all)>>20, largest.Load()>>20, got>>20)
			}
		})
	}
}

// TestHangingClustersLeaveWorkersToOthers: with two workers for connections, a tenant's clusters
// that never list their Nodes hold one. Another tenant's cluster is connected meanwhile.
func TestHangingClustersLeaveWorkersToOthers(t *testing.T) {
	manager(t, "--clustercache-concurrency=2")
	slow := newAPIServer(t, map[string]http.HandlerFunc{nodes: func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }})
	good, ns := newAPIServer(t, nil), namespace(t)
	for i := range 12 {
		connect(t, ns, fmt.Sprintf("slow-%d", i), slow.kubeconfig(t, nil))
	}
	NewWithT(t).Eventually(func() int { return slow.requests(nodes) }).Should(BeNumerically(">", 0))
	connect(t, namespaceOf(t, "victim"), "good", good.kubeconfig(t, nil))
	// A worker of the cluster cache waits a minute for a list that does not come: in turn, all
	// would take six minutes.
	NewWithT(t).Eventually(func() int { return good.requests(nodes) }).WithTimeout(4*time.Minute).Should(BeNumerically(">", 0),
		"the clusters of one tenant hold all workers")
}
