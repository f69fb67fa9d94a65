// SPDX-License-Identifier: Apache-2.0

// Package lifecycle runs Drover's manager, with its shipped roles, against a real API server,
// Cluster API's own manager and the simulated cloud, and tests machines from creation to deletion.
// One cluster is management and workload cluster at once. Each test has its own namespace and its
// own cloud account.
package lifecycle

import (
	"context"
	"flag"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/internal/test/playground"
	"github.com/drover-io/drover/test/internal/scenario"
)

// patience bounds each of these tests, which takes this long only when something is broken.
const patience = 30 * time.Minute

// lateAfter is the time after which a machine whose Node is not ready counts as late.
const lateAfter = 15 * time.Second

// The orphan collector's times, scaled down. The grace period is longer than the longest create
// that is not slowed on purpose, and longer than a busy computer takes to notice what is announced
// in it.
const (
	orphanPeriod = time.Second
	orphanGrace  = 8 * time.Second
)

// environment is shared by all tests.
type environment struct {
	management *playground.Management
	cloud      *playground.Simulator
	admin      simulator.Admin
	client     client.Client
	view       *scenario.View
	binary     string
	drover     *playground.Process
}

var env environment // set by TestMain only

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "lifecycle:", err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	log.SetLogger(logr.Discard()) // the tests' own clients need no log
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	start, done := context.WithTimeout(ctx, 15*time.Minute) // it may have to build everything
	defer done()

	env.management, err = playground.StartManagement(start, playground.ManagementOptions{
		ControlPlaneOptions: playground.ControlPlaneOptions{
			Progress:              os.Stderr,
			ControllerManagerArgs: []string{"--node-monitor-grace-period=16s", "--node-monitor-period=2s"},
			Controllers: append(playground.DefaultControllers(), // these two bind and attach volumes
				"persistentvolume-attach-detach-controller", "persistentvolume-binder-controller"),
		},
		CoreArgs: []string{"--feature-gates=MachineTaintPropagation=true"}, // alpha in Cluster API 1.14
	})
	if err != nil {
		return 1, err
	}
	defer func() { _ = env.management.Stop() }()
	if env.binary, err = playground.Build(start, true); err != nil {
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
	if env.drover, err = startDrover(start); err != nil {
		return 1, err
	}
	env.view, err = scenario.Follow(ctx, env.management.AdminConfig(), "", &clusterv1.Cluster{}, &clusterv1.Machine{},
		&clusterv1.MachineDeployment{},
		&infrav1.DroverMachine{}, &infrav1.DroverAccount{}, &infrav1.DroverCluster{}, &corev1.Node{})
	if err != nil {
		return 1, err
	}
	// Tests mostly wait, so more of them run at once than there are cores.
	flag.Parse()
	if err := flag.Set("test.parallel", strconv.Itoa(max(6, runtime.GOMAXPROCS(0)))); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

// startDrover starts the manager. There is only one, so it needs no leader election, which it could
// lose on a busy computer.
func startDrover(ctx context.Context, args ...string) (*playground.Process, error) {
	return env.management.StartDrover(ctx, playground.DroverOptions{
		Binary: env.binary,
		Args: append([]string{
			"--leader-elect=false", "--cloud-call-timeout=10s", "--ambient-credentials-namespaces=operator", "--simulated-endpoint=" + env.cloud.URL,
			"-v=2",
			"--machine-safety-orphan-vms-period=" + orphanPeriod.String(), "--machine-safety-orphan-vms-grace=" + orphanGrace.String(),
			"--machine-safety-overshooting-period=1s", "--node-late-after=" + lateAfter.String(),
		}, args...),
		Env: []string{"DROVER_SIMULATED_TOKEN=" + env.cloud.Token}, // the operator's own credentials
	})
}

// stage is one test's cluster with its own cloud account.
type stage struct {
	*testing.T
	scenario.Adopted
	ctx context.Context
}

// newStage creates a cluster that is ready for machines, and deletes it when the test ends.
func newStage(t *testing.T, change ...func(*scenario.Adopted)) *stage {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	name := strings.ToLower(strings.NewReplacer("/", "-", "_", "-").Replace(t.Name()))
	kubeconfig, err := env.management.Kubeconfig("lifecycle", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	s := &stage{T: t, ctx: ctx, Adopted: scenario.Adopted{
		Namespace: name, Name: name, Kubeconfig: kubeconfig, Endpoint: env.cloud.URL, Token: "token-of-" + name,
		Inventory: infrav1.InventorySpec{IdleSeconds: 2, ActiveSeconds: 1},
	}}
	for _, c := range change {
		c(&s.Adopted)
	}
	if err := env.admin.SetAccount(ctx, simulator.AccountOptions{Name: name, Tokens: []string{"token-of-" + name}}); err != nil {
		t.Fatal(err)
	}
	s.create(s.Objects()...)
	t.Cleanup(s.leave)
	return s
}

// leave fails the test if a pool was frozen that never had too many machines, and then deletes the
// test's namespace without waiting. The leftovers would keep the managers busy until the last test
// ends.
func (s *stage) leave() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), 30*time.Second)
	defer cancel()
	if err := s.neverFrozen(ctx); err != nil {
		s.Error(err)
	}
	if s.Failed() {
		return
	}
	if err := scenario.Delete(ctx, env.client, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.Namespace}}); err != nil {
		s.Error(err)
	}
}

func (s *stage) create(objects ...client.Object) {
	s.Helper()
	if err := scenario.Create(s.ctx, env.client, objects...); err != nil {
		s.Fatal(err)
	}
}

// until waits for a check, and shows the relevant objects if it does not come true.
func (s *stage) until(what string, check scenario.Check) {
	s.Helper()
	if err := env.view.Until(s.ctx, what, check); err != nil {
		s.Fatalf("%v\n%s", err, s.describe())
	}
}

// describe returns what each machine waits for.
func (s *stage) describe() string {
	var b strings.Builder
	ctx := context.WithoutCancel(s.ctx)
	accounts := &infrav1.DroverAccountList{}
	_ = env.view.List(ctx, accounts, client.InNamespace(s.Namespace))
	for i := range accounts.Items {
		fmt.Fprintf(&b, "DroverAccount %s: %s\n", accounts.Items[i].Name, scenario.Message(&accounts.Items[i], clusterv1.ReadyCondition))
	}
	machines := &infrav1.DroverMachineList{}
	_ = env.view.List(ctx, machines, client.InNamespace(s.Namespace))
	for i := range machines.Items {
		m := &machines.Items[i]
		fmt.Fprintf(&b, "DroverMachine %s: %s %s: %s\n", m.Name, m.Spec.ProviderID, m.Status.InstanceState,
			scenario.Message(m, clusterv1.ReadyCondition))
	}
	owners := &clusterv1.MachineList{}
	_ = env.view.List(ctx, owners, client.InNamespace(s.Namespace))
	for i := range owners.Items {
		m := &owners.Items[i]
		fmt.Fprintf(&b, "Machine %s: %s\n", m.Name, scenario.Message(m, clusterv1.ReadyCondition))
	}
	select {
	case <-env.drover.Done():
		fmt.Fprintf(&b, "Drover has ended: %v", env.drover.Wait())
	default:
		fmt.Fprintf(&b, "Drover's log: %s", env.drover.Log)
	}
	return b.String()
}

// live returns the instances of the test's account that are not terminated.
func (s *stage) live() []simulator.SnapshotResource {
	s.Helper()
	var live []simulator.SnapshotResource
	for _, r := range s.resources() {
		if r.Kind == "instance" {
			live = append(live, r)
		}
	}
	return live
}

// resources returns everything in the test's account that costs money.
func (s *stage) resources() []simulator.SnapshotResource {
	s.Helper()
	snapshot, err := env.admin.Snapshot(s.ctx)
	if err != nil {
		s.Fatal(err)
	}
	var ours []simulator.SnapshotResource
	for _, r := range snapshot.Live() {
		if r.Account == s.Name {
			ours = append(ours, r)
		}
	}
	return ours
}

// gone checks that nothing is left: no object, VM, dependant, Secret or token.
func (s *stage) gone() scenario.Check {
	return func(ctx context.Context) (string, error) {
		left, err := s.Left(ctx, env.client, env.client)
		if err != nil {
			return "", err
		}
		left.Nodes, left.BootstrapTokens = 0, 0 // shared with other tests; checked by name where it matters
		if left != (scenario.Left{}) {
			return left.String(), nil
		}
		if n := len(s.resources()); n > 0 {
			return fmt.Sprintf("%d resources are left in the cloud", n), nil
		}
		return "", nil
	}
}

// machines returns the test's DroverMachines from the API server.
func (s *stage) machines() []infrav1.DroverMachine {
	s.Helper()
	list := &infrav1.DroverMachineList{}
	if err := env.client.List(s.ctx, list, client.InNamespace(s.Namespace)); err != nil {
		s.Fatal(err)
	}
	return list.Items
}

// refused asserts that the API server rejects o, with all the words in its answer.
func (s *stage) refused(o client.Object, words ...string) {
	s.Helper()
	err := env.client.Create(s.ctx, o)
	if err == nil {
		s.Errorf("%T %s was admitted, want it refused", o, o.GetName())
		_ = env.client.Delete(s.ctx, o)
		return
	}
	if !apierrors.IsInvalid(err) && !apierrors.IsForbidden(err) && !apierrors.IsBadRequest(err) &&
		!apierrors.IsRequestEntityTooLargeError(err) {
		s.Errorf("%T %s failed by other means: %v", o, o.GetName(), err)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			s.Errorf("%T %s was refused with %q, which does not say %q", o, o.GetName(), err, w)
		}
	}
}

// quiet is how long a test watches that nothing happens: several polls of the inventory, which come
// every second or two in these tests.
const quiet = 6 * time.Second

// stays asserts that look finds nothing wrong for the duration of quiet.
func (s *stage) stays(what string, look func() (wrong string)) {
	s.Helper()
	end := time.NewTimer(quiet)
	defer end.Stop()
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for {
		if wrong := look(); wrong != "" {
			s.Fatalf("%s did not stay as it was: %s", what, wrong)
		}
		select {
		case <-end.C:
			return
		case <-tick.C:
		}
	}
}
