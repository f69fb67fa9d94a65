// SPDX-License-Identifier: Apache-2.0

// Package integration tests Drover's manager, with its shipped roles and its webhooks, against a
// real API server, Cluster API's own manager and the simulated cloud. Each test covers one kind,
// mainly its failure cases. All tests share one playground; each test has its own namespace.
package integration

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	"go.opentelemetry.io/collector/consumer/consumertest"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/internal/test/playground"
	"github.com/drover-io/drover/test/internal/scenario"
)

const (
	// patience bounds every wait of these tests. They reach it only if something is broken.
	patience = 90 * time.Second
	// probeInterval is how often the manager probes adopted API servers.
	probeInterval = time.Second
	// marked is part of the secrets of these tests, and must not be in anything that Drover writes.
	marked = "HUSH-7c21"
)

// environment holds what all tests share.
type environment struct {
	management *playground.Management
	cloud      *playground.Simulator
	admin      simulator.Admin
	client     client.Client
	command    string // drover
	drover     *playground.Process
	traces     *consumertest.TracesSink

	binary, collector string // the manager, and where it sends traces
}

// startDrover starts the manager.
func (e *environment) startDrover(ctx context.Context) (*playground.Process, error) {
	return e.management.StartDrover(ctx, playground.DroverOptions{Binary: e.binary, Args: []string{
		"--leader-elect=false", "--control-plane-probe-interval=" + probeInterval.String(), "--otlp-endpoint=" + e.collector, "-v=4",
	}})
}

var env environment // set only by TestMain

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "integration:", err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	log.SetLogger(logr.Discard()) // discards the logs of the tests' own clients
	SetDefaultEventuallyTimeout(patience)
	SetDefaultEventuallyPollingInterval(100 * time.Millisecond)
	start, done := context.WithTimeout(context.Background(), 15*time.Minute) // everything may have to be built first
	defer done()
	env.management, err = playground.StartManagement(start, playground.ManagementOptions{
		ControlPlaneOptions: playground.ControlPlaneOptions{Progress: os.Stderr},
	})
	if err != nil {
		return 1, err
	}
	defer func() { _ = env.management.Stop() }()
	if env.binary, err = playground.Build(start, true); err != nil {
		return 1, err
	}
	if env.command, err = playground.BuildCommand(start); err != nil {
		return 1, err
	}
	if env.cloud, err = playground.StartSimulator(start, playground.SimulatorOptions{}); err != nil {
		return 1, err
	}
	defer func() { _ = env.cloud.Stop() }()
	env.admin = simulator.Admin{URL: env.cloud.URL}
	if env.client, err = scenario.NewClient(env.management.AdminConfig()); err != nil {
		return 1, err
	}
	var stop func()
	if env.traces, env.collector, stop, err = startCollector(start); err != nil {
		return 1, err
	}
	defer stop()
	if env.drover, err = env.startDrover(start); err != nil {
		return 1, err
	}
	code = m.Run()
	if err := searchLog(); err != nil {
		return 1, err
	}
	return code, nil
}

// searchLog looks for secrets in the manager's log of all tests.
func searchLog() error {
	text, err := os.ReadFile(env.drover.Log)
	if err != nil {
		return err
	}
	if i := bytes.Index(text, []byte(marked)); i >= 0 {
		return fmt.Errorf("a secret is in the manager's log: …%s…", text[max(0, i-200):min(len(text), i+20)])
	}
	return nil
}

// tenant is the namespace of one test, with the objects of an adopted cluster. None of them is
// created yet.
type tenant struct {
	*WithT
	scenario.Adopted
	t   *testing.T
	ctx context.Context
}

func newTenant(t *testing.T) *tenant {
	t.Helper()
	name := strings.ToLower(strings.NewReplacer("/", "-", "_", "-").Replace(t.Name()))
	kubeconfig, err := env.management.Kubeconfig("integration", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	s := &tenant{WithT: NewWithT(t), t: t, ctx: t.Context(), Adopted: scenario.Adopted{
		Namespace: name, Name: "prod", Kubeconfig: kubeconfig, Endpoint: env.cloud.URL, Token: env.cloud.Token,
	}}
	s.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	return s
}

func (s *tenant) create(objects ...client.Object) {
	s.t.Helper()
	for _, o := range objects {
		s.Expect(env.client.Create(s.ctx, o)).To(Succeed(), "%T %s", o, o.GetName())
	}
}

// meta returns the metadata of an object in this namespace.
func (s *tenant) meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: s.Namespace, Name: name}
}

func (s *tenant) kubeconfigSecret(data []byte) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: s.meta("prod-adopted"), Data: map[string][]byte{"value": data}}
}

func (s *tenant) credentials() *corev1.Secret {
	return scenario.Credentials(s.meta("prod-credentials"), "simulated", map[string][]byte{"token": []byte(s.Token)})
}

// read fetches the current state of an object.
func read[T client.Object](s *tenant, o T) T {
	s.t.Helper()
	s.Expect(env.client.Get(s.ctx, client.ObjectKeyFromObject(o), o)).To(Succeed())
	return o
}

// update changes an object as a user would. It retries on conflicts.
func update[T client.Object](s *tenant, o T, change func(T)) {
	s.t.Helper()
	s.Eventually(func() error {
		if err := env.client.Get(s.ctx, client.ObjectKeyFromObject(o), o); err != nil {
			return err
		}
		change(o)
		return env.client.Update(s.ctx, o)
	}).Should(Succeed())
}

// conditioned is a Drover object with conditions.
type conditioned interface {
	client.Object
	conditions.Getter
}

// says waits for a condition with the given reason and a message that contains the words.
func (s *tenant) says(o conditioned, kind, reason, words string) {
	s.t.Helper()
	s.Eventually(func(g Gomega) {
		g.Expect(env.client.Get(s.ctx, client.ObjectKeyFromObject(o), o)).To(Succeed())
		c := conditions.Get(o, kind)
		g.Expect(c).NotTo(BeNil())
		g.Expect(c.Reason).To(Equal(reason), c.Message)
		g.Expect(c.Message).To(ContainSubstring(words))
		g.Expect(c.Message).NotTo(ContainSubstring(marked))
		g.Expect(c.ObservedGeneration).To(Equal(o.GetGeneration()))
	}).Should(Succeed())
}

// atRest checks that nothing writes the object any more.
func (s *tenant) atRest(o client.Object, during time.Duration) {
	s.t.Helper()
	var version string
	var since time.Time
	s.Eventually(func() bool {
		if now := read(s, o).GetResourceVersion(); now != version {
			version, since = now, time.Now()
		}
		return time.Since(since) >= during
	}, patience, 250*time.Millisecond).Should(BeTrue())
}

// refusesChange checks that a change is refused with the words. It retries when the object changes
// meanwhile.
func (s *tenant) refusesChange(o client.Object, change func(), words string) {
	s.t.Helper()
	s.Eventually(func(g Gomega) {
		g.Expect(env.client.Get(s.ctx, client.ObjectKeyFromObject(o), o)).To(Succeed())
		change()
		g.Expect(env.client.Update(s.ctx, o)).To(MatchError(ContainSubstring(words)))
	}, 10*time.Second).Should(Succeed())
}

// isGone waits until an object is deleted.
func (s *tenant) isGone(o client.Object) {
	s.t.Helper()
	s.Eventually(func() bool { return apierrors.IsNotFound(env.client.Get(s.ctx, client.ObjectKeyFromObject(o), o)) }).Should(BeTrue())
}

// edited returns the management cluster's kubeconfig with a change.
func (s *tenant) edited(change func(*clientcmdapi.Cluster, *clientcmdapi.AuthInfo)) []byte {
	s.t.Helper()
	config, err := clientcmd.Load(s.Kubeconfig)
	s.Expect(err).NotTo(HaveOccurred())
	context := config.Contexts[config.CurrentContext]
	change(config.Clusters[context.Cluster], config.AuthInfos[context.AuthInfo])
	data, err := clientcmd.Write(*config)
	s.Expect(err).NotTo(HaveOccurred())
	return data
}

// impostor starts a TLS server that answers with handler, and returns a kubeconfig whose CA trusts
// it.
func (s *tenant) impostor(handler http.HandlerFunc) []byte {
	s.t.Helper()
	server := httptest.NewTLSServer(handler)
	s.t.Cleanup(server.Close)
	return s.edited(func(c *clientcmdapi.Cluster, u *clientcmdapi.AuthInfo) {
		c.Server, c.CertificateAuthorityData = server.URL, pemOf(server)
		*u = clientcmdapi.AuthInfo{Token: marked}
	})
}
