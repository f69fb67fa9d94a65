// SPDX-License-Identifier: Apache-2.0

// Package move moves a cluster with running machines from one management cluster to another and
// back, with the real clusterctl. A move drops the status and changes UIDs, and must not affect any
// machine.
package move

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	controlplanev1 "github.com/drover-io/drover/api/controlplane/v1beta1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/bootstrap/token"
	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/internal/test/playground"
	"github.com/drover-io/drover/test/internal/faultproxy"
	"github.com/drover-io/drover/test/internal/scenario"
)

// patience bounds every wait. quiet is how long a test checks that nothing happens: several polls
// of the inventory.
const (
	patience = 10 * time.Minute
	quiet    = 3 * time.Second
)

// adopter is the user of the workload cluster as which Drover and Cluster API connect.
const adopter = "adopter"

// site is a management cluster with its own Drover manager, which talks to the API server through a
// proxy.
type site struct {
	*playground.Management
	api    *faultproxy.Proxy
	client client.Client
	view   *scenario.View
	drover *playground.Process
}

// stage has two sites and what both share: a workload cluster with its own control plane, and a
// cloud.
type stage struct {
	*testing.T
	scenario.Adopted
	ctx            context.Context
	binary         string // the manager, built with the race detector
	source, target *site
	workload       *playground.ControlPlane
	nodes          client.WithWatch
	cloud          *playground.Simulator
	admin          simulator.Admin
	line           *faultproxy.Proxy // between the managers and the cloud
	pool           scenario.Pool
	ctl            string // path of clusterctl
	tokens         *tokens
}

func newStage(t *testing.T) *stage {
	log.SetLogger(logr.Discard()) // discards the logs of the test's own clients
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	t.Cleanup(cancel)
	s := &stage{T: t, ctx: ctx}
	tools, err := playground.FindTools(ctx, os.Stderr, "clusterctl", "etcd", "kube-apiserver", "kube-controller-manager", "capi-core")
	s.must(err)
	s.ctl = tools["clusterctl"]
	s.binary, err = playground.Build(ctx, true)
	s.must(err)
	s.startCloud()
	s.must(s.startClusters(tools))

	nodes, err := scenario.Scheme()
	s.must(err)
	s.nodes, err = client.NewWithWatch(s.workload.AdminConfig(), client.Options{Scheme: nodes})
	s.must(err)
	s.tokens = s.watchTokens()
	s.must(scenario.Create(ctx, s.nodes, scenario.Rights(adopter)...))
	kubeconfig, err := s.workload.Kubeconfig(adopter)
	s.must(err)
	s.Adopted = scenario.Adopted{
		Namespace: "blue", Name: "blue", Kubeconfig: kubeconfig, Endpoint: s.line.URL(), Token: "token-of-blue",
		Inventory: infrav1.InventorySpec{IdleSeconds: 1, ActiveSeconds: 1}, OrphanPolicy: infrav1.OrphanPolicyDelete,
	}
	s.pool = scenario.Pool{Cluster: s.Adopted, Name: "pool", Replicas: 3,
		Machine: infrav1.SimulatedMachine{DataDisks: []infrav1.SimulatedDataDisk{{SizeGiB: 1}}}}
	return s
}

func (s *stage) startCloud() {
	var err error
	s.cloud, err = playground.StartSimulator(s.ctx, playground.SimulatorOptions{})
	s.must(err)
	s.Cleanup(func() { _ = s.cloud.Stop() })
	s.admin = simulator.Admin{URL: s.cloud.URL}
	ms := func(n int) simulator.Duration {
		return simulator.Duration{Duration: time.Duration(n) * time.Millisecond}
	}
	s.must(s.admin.SetSettings(s.ctx, simulator.Settings{BootMin: ms(100), BootMax: ms(200), Stop: ms(200)}))
	s.must(s.admin.SetAccount(s.ctx, simulator.AccountOptions{Name: "blue", Tokens: []string{"token-of-blue"}}))
	s.line, err = faultproxy.Start(faultproxy.Options{Name: "cloud", Upstream: s.cloud.URL, Parse: faultproxy.Cloud})
	s.must(err)
	s.Cleanup(s.line.Close)
}

// startClusters starts all three clusters in parallel.
func (s *stage) startClusters(tools playground.Tools) error {
	var wg sync.WaitGroup
	var errs [3]error
	wg.Go(func() { s.source, errs[0] = s.startSite("source", tools) })
	wg.Go(func() { s.target, errs[1] = s.startSite("target", tools) })
	wg.Go(func() {
		if s.workload, errs[2] = playground.StartControlPlane(s.ctx,
			playground.ControlPlaneOptions{Name: "workload", Tools: tools}); errs[2] == nil {
			s.Cleanup(func() { _ = s.workload.Stop() })
		}
	})
	wg.Wait()
	return errors.Join(errs[:]...)
}

func (s *stage) startSite(name string, tools playground.Tools) (*site, error) {
	m, err := playground.StartManagement(s.ctx, playground.ManagementOptions{
		ControlPlaneOptions: playground.ControlPlaneOptions{Name: name, Tools: tools},
	})
	if err != nil {
		return nil, err
	}
	s.Cleanup(func() { _ = m.Stop() })
	at := &site{Management: m}
	if err := s.startDrover(at); err != nil {
		return nil, err
	}
	if at.client, err = scenario.NewClient(m.AdminConfig()); err != nil {
		return nil, err
	}
	at.view, err = scenario.Follow(s.ctx, m.AdminConfig(), "",
		&clusterv1.Cluster{}, &clusterv1.Machine{}, &clusterv1.MachineDeployment{}, &infrav1.DroverAccount{}, &infrav1.DroverCluster{},
		&infrav1.DroverMachine{}, &bootstrapv1.DroverConfig{}, &controlplanev1.AdoptedControlPlane{})
	return at, err
}

func (s *stage) startDrover(at *site) (err error) {
	if err := at.InstallDrover(s.ctx); err != nil {
		return err
	}
	at.api, err = faultproxy.Start(faultproxy.Options{Name: at.Name, Upstream: at.URL, CA: at.CA(), Parse: faultproxy.Kubernetes})
	if err != nil {
		return err
	}
	s.Cleanup(at.api.Close)
	kubeconfig, err := at.ServiceAccountKubeconfig(s.ctx, "drover-system", "drover-manager")
	file := filepath.Join(at.Dir, "drover-through-proxy.kubeconfig")
	if err == nil {
		err = at.api.WriteKubeconfig(file, kubeconfig)
	}
	if err == nil {
		at.drover, err = at.StartDrover(s.ctx, playground.DroverOptions{Binary: s.binary, Args: []string{
			"--kubeconfig=" + file, "-v=2", "--machine-safety-orphan-vms-period=1s", "--machine-safety-orphan-vms-grace=2s",
		}})
	}
	return err
}

// clusterctl moves the stage's namespace and returns clusterctl's output.
func (s *stage) clusterctl(from, to *site) (string, error) {
	out, err := s.clusterctlMove(from, to).CombinedOutput()
	return string(out), err
}

func (s *stage) clusterctlMove(from, to *site) *exec.Cmd {
	home := s.TempDir()
	config := filepath.Join(home, "clusterctl.yaml")
	s.must(os.WriteFile(config, nil, 0o600))
	const nowhere = "http://127.0.0.1:1" // clusterctl needs only the two clusters
	cmd := exec.CommandContext(s.ctx, s.ctl, "move", "--kubeconfig="+from.AdminKubeconfig(), "--to-kubeconfig="+to.AdminKubeconfig(),
		"--namespace="+s.Namespace, "--config="+config)
	cmd.Env = append(os.Environ(), "HOME="+home, "XDG_CONFIG_HOME="+home, "CLUSTERCTL_DISABLE_VERSIONCHECK=true",
		"HTTP_PROXY="+nowhere, "HTTPS_PROXY="+nowhere, "http_proxy="+nowhere, "https_proxy="+nowhere)
	return cmd
}

// breakOff starts a move and kills clusterctl as soon as the target has the first machine.
func (s *stage) breakOff(from, to *site) {
	s.Helper()
	cmd := s.clusterctlMove(from, to)
	s.must(cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	err := wait.PollUntilContextTimeout(s.ctx, 2*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		list := &infrav1.DroverMachineList{}
		err := to.client.List(ctx, list, client.InNamespace(s.Namespace))
		return len(list.Items) > 0, err
	})
	_ = cmd.Process.Kill()
	s.must(err)
	if err := <-ended; err == nil {
		s.Fatal("clusterctl was done before it could be killed")
	}
}

// move moves the cluster while its machines run. The watch for Clusters of the old manager lags, so
// that it sees the deletion of the objects but never the pause that clusterctl set on the Cluster
// before.
func (s *stage) move(from, to *site) {
	s.Helper()
	from.api.SetLag(func(c faultproxy.Call) time.Duration {
		if c.Resource == "clusters" {
			return time.Hour
		}
		return 0
	})
	defer from.api.CutStreams()
	defer from.api.SetLag(nil)
	start := time.Now()
	if out, err := s.clusterctl(from, to); err != nil {
		s.Fatalf("clusterctl move from %s to %s: %v\n%s", from.Name, to.Name, err, out)
	}
	s.Logf("clusterctl moved from %s to %s in %s", from.Name, to.Name, time.Since(start).Round(100*time.Millisecond))
}

func (s *stage) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// until waits for a check of objects to pass.
func (s *stage) until(at *site, what string, check scenario.Check) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.ctx, patience)
	defer cancel()
	if err := at.view.Until(ctx, what, check); err != nil {
		s.Fatalf("at the %s, %v\n%s", at.Name, err, s.describe(at))
	}
}

// soon polls for a state that no watch reports.
func (s *stage) soon(what string, check func() string) {
	s.Helper()
	end := time.NewTimer(patience)
	defer end.Stop()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		missing := check()
		if missing == "" {
			return
		}
		select {
		case <-end.C:
			s.Fatalf("waiting until %s: %s\n%s%s", what, missing, s.describe(s.source), s.describe(s.target))
		case <-tick.C:
		}
	}
}

// wait waits for the duration quiet.
func (s *stage) wait() {
	t := time.NewTimer(quiet)
	defer t.Stop()
	select {
	case <-t.C:
	case <-s.ctx.Done():
	}
}

// describe returns what each object waits for.
func (s *stage) describe(at *site) string {
	var b strings.Builder
	fmt.Fprintf(&b, "--- at the %s:\n", at.Name)
	for _, list := range []client.ObjectList{&infrav1.DroverAccountList{}, &infrav1.DroverClusterList{}, &infrav1.DroverMachineList{},
		&clusterv1.MachineList{}, &bootstrapv1.DroverConfigList{}} {
		_ = at.view.List(context.WithoutCancel(s.ctx), list, client.InNamespace(s.Namespace))
		for _, o := range items(list) {
			fmt.Fprintf(&b, "%T %s: %s\n", o, o.GetName(), scenario.Message(o, clusterv1.ReadyCondition))
		}
	}
	fmt.Fprintf(&b, "Drover's log: %s\n", at.drover.Log)
	return b.String()
}

// tokens counts the bootstrap tokens created in the workload cluster, by machine.
type tokens struct {
	mu   sync.Mutex
	made map[string]int
}

func (t *tokens) all() map[string]int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.made)
}

// watchTokens watches the tokens of the workload cluster. The watch also counts a token that exists
// only for a moment.
func (s *stage) watchTokens() *tokens {
	w, err := s.nodes.Watch(s.ctx, &corev1.SecretList{}, client.InNamespace(metav1.NamespaceSystem),
		client.MatchingFields{"type": string(corev1.SecretTypeBootstrapToken)})
	s.must(err)
	t := &tokens{made: map[string]int{}}
	go func() {
		for e := range w.ResultChan() {
			if o, ok := e.Object.(client.Object); ok && e.Type == watch.Added {
				t.mu.Lock()
				t.made[o.GetAnnotations()[token.MachineAnnotation]]++
				t.mu.Unlock()
			}
		}
	}()
	return t
}
