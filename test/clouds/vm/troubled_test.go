// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"golang.org/x/net/dns/dnsmessage"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/bootstrap/render"
	"github.com/drover-io/drover/test/internal/scenario"
)

// badMirror tests a guest that meets, one after the other, a name server that does not answer, a
// connection that is cut, and a file with a wrong checksum. The condition reports the first and the
// last, which last until they are fixed. The log on the machine reports all of them, and the guest
// becomes a Node once each is fixed. The test binaries covers a missing file.
func (s *stand) badMirror(t *testing.T) {
	var mended, wasCut atomic.Bool
	pool, dns := s.fromMirror(t, "bad-mirror", func(w http.ResponseWriter, r *http.Request, files http.Handler) bool {
		switch {
		case strings.Contains(r.URL.Path, "cni-plugins") && wasCut.CompareAndSwap(false, true):
			cut(w, r, files)
		case strings.Contains(r.URL.Path, "kubelet") && !mended.Load():
			_, _ = io.WriteString(w, "not it")
		default:
			return false
		}
		return true
	})
	s.create(t, pool)
	s.says(t, pool, infrav1.NoCertificateRequestReason, "no kubelet on it has requested", "check "+render.LogPath)
	s.says(t, pool, infrav1.NoCertificateRequestReason, "its console ended with", "could not be fetched: curl: (28) Resolving timed out")
	dns.answers.Store(true)
	s.says(t, pool, infrav1.NoCertificateRequestReason, "its console ended with", "/kubelet has not the SHA-256 that was given")
	mended.Store(true)

	machine := s.ready(t, pool)
	s.saysNothing(t, pool)
	s.logTells(t, machine,
		"curl: (28) Resolving timed out",
		"curl: (18)", // "partial file"
		"/kubelet has not the SHA-256 that was given",
		"drover: Done",
	)
	s.remove(t, pool)
}

// logTells checks that the log of the first boot on the machine contains all these causes.
func (s *stand) logTells(t *testing.T, machine *clusterv1.Machine, causes ...string) {
	t.Helper()
	g := NewWithT(t)
	log, err := s.askKubelet(t, machine, "/logs"+strings.TrimPrefix(render.LogPath, "/var/log"))
	g.Expect(err).NotTo(HaveOccurred())
	for _, cause := range causes {
		g.Expect(log).To(ContainSubstring(cause))
	}
}

// fromMirror returns a pool of one guest that installs from a mirror under its own host name, which
// its own name server resolves. broken handles requests for that name, and returns whether it has
// answered.
func (s *stand) fromMirror(t *testing.T, name string,
	broken func(http.ResponseWriter, *http.Request, http.Handler) bool) (scenario.Pool, *nameServer) {
	t.Helper()
	g := NewWithT(t)
	host := name + ".example.test"
	dns := startNameServer(t, host)
	config := s.common()
	binaries, err := s.mirror.binaries()
	g.Expect(err).NotTo(HaveOccurred())
	binaries.Mirror = "http://" + net.JoinHostPort(host, s.mirror.port())
	config.OperatingSystem, config.Install = "debian-12", bootstrapv1.Install{Mode: bootstrapv1.InstallBinaries, Binaries: *binaries}
	config.Containerd.PauseImage = pauseImage
	// systemd-resolved starts before the user data is applied, so it is restarted before the script
	// that needs it.
	config.Files = append(config.Files,
		bootstrapv1.File{Path: "/etc/systemd/resolved.conf.d/site.conf", Content: "[Resolve]\nDNS=" + net.JoinHostPort(gateway, dns.port()) +
			"\nDomains=~.\n"},
		bootstrapv1.File{Path: "/etc/systemd/system/drover-bootstrap.service.d/site.conf",
			Content: "[Service]\nExecStartPre=systemctl restart systemd-resolved\n"})
	s.mirror.breaks(host, broken)
	return s.pool(name, "bare", config), dns
}

// badServer tests a guest that meets an API server with a certificate of another CA, and then a
// deleted token.
func (s *stand) badServer(t *testing.T) {
	g := NewWithT(t)
	door := startDoor(t, s.workload.URL)
	cluster, err := s.newCluster(t.Context(), "other", s.cluster.Kubeconfig, portOf(door.Addr()), nil)
	g.Expect(err).NotTo(HaveOccurred())
	pool := s.pool("bad-server", "prebuilt", s.common())
	pool.Cluster = cluster

	s.create(t, pool)
	s.says(t, pool, infrav1.NoCertificateRequestReason, "no kubelet on it has requested", "check "+render.LogPath)
	s.says(t, pool, infrav1.NoCertificateRequestReason, "its console ended with", "The API server can't be used: curl: (60)")
	machine := s.machine(t, g, pool)
	g.Eventually(s.guestOf(t, machine).console, patience, time.Second).Should(ContainSubstring("certificate signed by unknown authority"))
	tokens := s.tokens(t, machine)
	g.Expect(tokens).To(HaveLen(1), "it is renewed as long as the machine has not joined")

	g.Expect(s.nodes.Delete(t.Context(), &tokens[0])).To(Succeed())
	door.mended.Store(true)
	s.says(t, pool, infrav1.NoCertificateRequestReason, "its bootstrap token has expired or was deleted, and is created again within 15m0s")
	// The annotation triggers a reconcile earlier than that.
	config := &bootstrapv1.DroverConfig{}
	g.Expect(s.client.Get(t.Context(), client.ObjectKey{Namespace: machine.Namespace, Name: machine.Spec.Bootstrap.ConfigRef.Name},
		config)).To(Succeed())
	before := config.DeepCopy()
	metav1.SetMetaDataAnnotation(&config.ObjectMeta, "test", "look again")
	g.Expect(s.client.Patch(t.Context(), config, client.MergeFrom(before))).To(Succeed())

	s.ready(t, pool)
	s.saysNothing(t, pool)
	s.remove(t, pool)
}

// says waits until the pool's DroverMachine reports why it is not a Node.
func (s *stand) says(t *testing.T, pool scenario.Pool, reason string, words ...string) {
	t.Helper()
	g := NewWithT(t)
	g.Eventually(func(g Gomega) {
		c := conditions.Get(s.droverMachine(t, g, pool), infrav1.MachineNodeJoinedCondition)
		g.Expect(c).NotTo(BeNil())
		g.Expect(c.Reason).To(Equal(reason), c.Message)
		for _, w := range words {
			g.Expect(c.Message).To(ContainSubstring(w))
		}
	}, patience, time.Second).Should(Succeed())
}

// saysNothing waits until the condition is True.
func (s *stand) saysNothing(t *testing.T, pool scenario.Pool) {
	t.Helper()
	g := NewWithT(t)
	g.Eventually(func(g Gomega) {
		g.Expect(conditions.IsTrue(s.droverMachine(t, g, pool), infrav1.MachineNodeJoinedCondition)).To(BeTrue())
	}, time.Minute, time.Second).Should(Succeed())
}

func (s *stand) droverMachine(t *testing.T, g Gomega, pool scenario.Pool) *infrav1.DroverMachine {
	t.Helper()
	machine := s.machine(t, g, pool)
	out := &infrav1.DroverMachine{}
	g.Expect(s.client.Get(t.Context(), client.ObjectKey{Namespace: machine.Namespace, Name: machine.Spec.InfrastructureRef.Name},
		out)).To(Succeed())
	return out
}

// cut closes the connection after half of the answer.
func cut(w http.ResponseWriter, r *http.Request, files http.Handler) {
	whole := httptest.NewRecorder()
	files.ServeHTTP(whole, r)
	w.Header().Set("Content-Length", fmt.Sprint(whole.Body.Len()))
	_, _ = w.Write(whole.Body.Bytes()[:whole.Body.Len()/2])
	panic(http.ErrAbortHandler)
}

// nameServer resolves one name to the gateway's address. It does not answer until answers is set.
type nameServer struct {
	net.PacketConn
	name    dnsmessage.Name
	answers atomic.Bool
}

func startNameServer(t *testing.T, name string) *nameServer {
	t.Helper()
	g := NewWithT(t)
	conn, err := new(net.ListenConfig).ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { conn.Close() })
	n := &nameServer{PacketConn: conn, name: dnsmessage.MustNewName(name + ".")}
	go n.serve()
	return n
}

func (n *nameServer) port() string { return portOf(n.LocalAddr()) }

func (n *nameServer) serve() {
	buffer := make([]byte, 4096)
	for {
		size, from, err := n.ReadFrom(buffer)
		if err != nil {
			return // closed
		}
		var query dnsmessage.Message
		if !n.answers.Load() || query.Unpack(buffer[:size]) != nil || len(query.Questions) != 1 {
			continue
		}
		if reply, err := n.reply(query); err == nil {
			_, _ = n.WriteTo(reply, from)
		}
	}
}

func (n *nameServer) reply(query dnsmessage.Message) ([]byte, error) {
	question := query.Questions[0]
	m := dnsmessage.Message{
		Header: dnsmessage.Header{ID: query.ID, Response: true, Authoritative: true, RecursionDesired: query.RecursionDesired,
			RecursionAvailable: true},
		Questions: query.Questions,
	}
	switch {
	case !strings.EqualFold(question.Name.String(), n.name.String()):
		m.RCode = dnsmessage.RCodeNameError
	case question.Type == dnsmessage.TypeA:
		m.Answers = []dnsmessage.Resource{{
			Header: dnsmessage.ResourceHeader{Name: question.Name, Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET, TTL: 60},
			Body:   &dnsmessage.AResource{A: [4]byte(net.ParseIP(gateway).To4())},
		}}
	}
	return m.Pack()
}

// door forwards to an API server. Until mended is set, it uses a certificate of another CA.
type door struct {
	net.Listener
	server string
	wrong  *tls.Config
	mended atomic.Bool
}

func startDoor(t *testing.T, server string) *door {
	t.Helper()
	g := NewWithT(t)
	u, err := url.Parse(server)
	g.Expect(err).NotTo(HaveOccurred())
	wrong, _, err := selfSigned(gateway)
	g.Expect(err).NotTo(HaveOccurred())
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	g.Expect(err).NotTo(HaveOccurred())
	d := &door{Listener: l, server: u.Host, wrong: wrong}
	t.Cleanup(func() { l.Close() })
	go d.serve(context.WithoutCancel(t.Context()))
	return d
}

func (d *door) serve(ctx context.Context) {
	for {
		client, err := d.Accept()
		if err != nil {
			return // closed
		}
		go func() {
			defer client.Close()
			if !d.mended.Load() {
				ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
				defer cancel()
				_ = tls.Server(client, d.wrong).HandshakeContext(ctx)
				return
			}
			server, err := (&net.Dialer{Timeout: 10 * time.Second}).DialContext(ctx, "tcp", d.server)
			if err != nil {
				return
			}
			defer server.Close()
			go func() {
				_, _ = io.Copy(server, client)
				server.Close()
			}()
			_, _ = io.Copy(client, server)
		}()
	}
}
