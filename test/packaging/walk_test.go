// SPDX-License-Identifier: Apache-2.0

package packaging

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-io/drover/cloud/simulated/simulator/body"
	"github.com/drover-io/drover/internal/test/playground"
	"github.com/drover-io/drover/test/internal/scenario"
)

// Each cloud takes half a minute, or programs that take many to build and start, and a whole cluster
// needs managers that most tests do without. So suites run the others.
var (
	walked = flag.String("clouds", "aws", "on which clouds the commands of the pages are run: simulated,aws,azure,gcp,vsphere,kubevirt,openstack")
	whole  = flag.Bool("whole", false, "run the commands of the page about whole clusters, too")
)

// mark begins a block that no test runs, and is followed by the reason.
const (
	mark           = "# No test runs this: "
	noControlPlane = "the machines in tests run no control plane."
)

// untried are what these tests do without, and the book says so.
var untried = []string{"a kind cluster", "a real registry", "a published release"}

// ground is a cloud on which the commands of the pages are run.
type ground struct {
	title string // of the pages' section
	// tool is the cloud's own. Commands of it are shown and not run, and so are other ones.
	tool  string
	other []string
	// start starts what stands for the cloud, whose guests run as bodies of the fleet.
	start func(t *testing.T, w *walk, fleet *body.Fleet) stand
}

// stand is what a user of the cloud has.
type stand struct {
	env   []string          // what the cloud's tool printed
	files map[string]string // what the page has the user save
	// values are the page's example values, each before the one that the stand-in has for it.
	values []string
	// account is added below the only line in a flavor that begins with the first one.
	account [2]string
	// provider is the prefix of the Nodes' provider IDs.
	provider string
}

// walk is a management cluster, installed by clusterctl. It is the adopted cluster, too.
type walk struct {
	ctl        clusterctl
	release    string // its folder
	management *playground.Management
	admin      client.Client
	simulated  *playground.Simulator
	running    atomic.Int32 // guests
}

// TestFirstNode runs the commands of docs/adopt-a-cluster.md for each cloud, from nothing to three
// workers and back, and those of docs/whole-clusters.md.
func TestFirstNode(t *testing.T) {
	names := strings.Split(*walked, ",")
	for _, name := range names {
		if _, ok := grounds[name]; !ok {
			t.Fatalf("there is no cloud %q; there are %q", name, slices.Sorted(maps.Keys(grounds)))
		}
	}
	w := newWalk(t)
	for _, name := range names {
		g := grounds[name]
		t.Run(name, func(t *testing.T) { w.adopt(t, g) })
		if *whole && name != "simulated" {
			t.Run("a whole cluster on "+name, func(t *testing.T) { w.whole(t, g) })
		}
	}
}

// TestCommandsNotRun tests that the blocks which the pages mark have commands of the cloud's own tool
// alone, and that the book says what else was not tried.
func TestCommandsNotRun(t *testing.T) {
	proven := string(read(t, root(t)+"/docs/proven.md"))
	for _, what := range untried {
		if !strings.Contains(proven, what) {
			t.Errorf("docs/proven.md does not say that %s was not tried", what)
		}
	}
	for name, g := range grounds {
		blocks := steps(t, "docs/adopt-a-cluster.md", g.title, "1.", "2.", "3.", "4.", "6.")
		if name != "simulated" {
			blocks = append(blocks, steps(t, "docs/whole-clusters.md", g.title, "1.", "2.", "3.", "4.", "5.")...)
		}
		own := regexp.MustCompile(`^([A-Z]+=\$\(|read -r [A-Z ]+ < <\()?` + g.tool + ` |^[A-Z]+=/`)
		for _, block := range blocks {
			block, marked := strings.CutPrefix(block, mark)
			why, lines, _ := strings.Cut(block, "\n")
			if !marked || why == noControlPlane {
				continue
			}
			for line := range strings.Lines(lines) { // one that begins with spaces continues another one
				line = strings.TrimSuffix(line, "\n")
				if !strings.HasPrefix(line, "  ") && !(g.tool != "" && own.MatchString(line)) && !slices.Contains(g.other, line) {
					t.Errorf("the page says that no test runs this command, which is not %s's own: %s", g.title, line)
				}
			}
		}
	}
}

func newWalk(t *testing.T) *walk {
	t.Helper()
	w := &walk{release: release(t)}
	var err error
	if w.management, err = playground.StartManagement(t.Context(), playground.ManagementOptions{
		ControlPlaneOptions: playground.ControlPlaneOptions{Progress: os.Stderr},
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.management.Stop(); err != nil {
			t.Error(err)
		}
	})
	if *whole {
		_, err = w.management.StartKubeadmBootstrap(t.Context())
		if err == nil {
			_, err = w.management.StartKubeadmControlPlane(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if w.simulated, err = playground.StartSimulator(t.Context(), playground.SimulatorOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.simulated.Stop(); err != nil {
			t.Error(err)
		}
	})
	if err := w.management.InstallCertManagerKinds(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.ctl = newClusterctlFor(t, w.release, "- name: cluster-api", "  type: CoreProvider", "  url: "+coreRepository(t),
		"cert-manager:", "  externallyProvisioned: true")
	w.ctl.env = slices.DeleteFunc(w.ctl.env, func(e string) bool { return strings.HasPrefix(e, "DROVER_") }) // the pages must set them
	w.ctl.env = append(w.ctl.env, "KUBECONFIG="+w.management.AdminKubeconfig(),
		"DROVER_ALLOW_ENDPOINTS=127.0.0.0/8", "DROVER_SIMULATED_ENDPOINT="+w.simulated.URL)
	w.ctl.run(t, "init", "--infrastructure", "drover:"+version, "--bootstrap", "-", "--control-plane", "-")
	if err := w.management.ServeDrover(t.Context()); err != nil {
		t.Fatal(err)
	}
	// This process does the work of the Deployment's Pods.
	if _, err := w.management.StartDrover(t.Context(), playground.DroverOptions{Args: []string{
		"--leader-elect=false", "--simulated-endpoint=" + w.simulated.URL,
	}}); err != nil {
		t.Fatal(err)
	}
	if w.admin, err = scenario.NewClient(w.management.AdminConfig()); err != nil {
		t.Fatal(err)
	}
	command, err := playground.BuildCommand(t.Context()) // with the race detector, it has another name
	if err != nil {
		t.Fatal(err)
	}
	programs := t.TempDir()
	if err := os.Symlink(command, programs+"/drover"); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", programs+":"+os.Getenv("PATH"))
	return w
}

// adopt runs the commands of docs/adopt-a-cluster.md.
func (w *walk) adopt(t *testing.T, g ground) {
	const page = "docs/adopt-a-cluster.md"
	u := w.begin(t, g)
	kubeconfig, err := w.management.Kubeconfig("drover")
	if err != nil {
		t.Fatal(err)
	}
	u.save(t, map[string]string{
		"admin.kubeconfig": string(read(t, w.management.AdminKubeconfig())), "blue.kubeconfig": string(kubeconfig),
		"drover-adopter.yaml": pageBlock(t, page, "yaml", "name: drover-adopter\n"),
	})
	u.follow(t, steps(t, page, g.title, "1.", "2.", "3.", "4."))
	until(t, w.nodes(3, u.provider))
	u.follow(t, steps(t, page, g.title, "6."))
	until(t, w.nodes(0, ""))
	u.end(t)
}

// whole runs the commands of docs/whole-clusters.md. No guest runs a control plane, so there is one
// machine, whose load balancer waits for it.
func (w *walk) whole(t *testing.T, g ground) {
	const page = "docs/whole-clusters.md"
	u := w.begin(t, g)
	u.follow(t, steps(t, page, g.title, "1."))
	u.follow(t, steps(t, "docs/adopt-a-cluster.md", g.title, "2."))
	u.follow(t, steps(t, page, g.title, "2.", "3.", "4."))
	until(t, u.run(1)) // OpenStack's hypervisor is looked at from time to time
	u.follow(t, steps(t, page, g.title, "5."))
	u.end(t)
}

// nodes checks that there are n Nodes, all of them Ready, and whose provider IDs begin with the
// prefix.
func (w *walk) nodes(n int, prefix string) scenario.Check {
	return func(ctx context.Context) (string, error) {
		list := &corev1.NodeList{}
		if err := w.admin.List(ctx, list); err != nil {
			return "", err
		}
		ready := 0
		for _, node := range list.Items {
			for _, c := range node.Status.Conditions {
				if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue && strings.HasPrefix(node.Spec.ProviderID, prefix) {
					ready++
				}
			}
		}
		if ready != n || len(list.Items) != n {
			return fmt.Sprintf("of %d Nodes, %d are Ready and %s…", len(list.Items), ready, prefix), nil
		}
		return "", nil
	}
}

// user is somebody who follows a page, in a folder of their own.
type user struct {
	*walk
	ground
	stand
	folder  string
	exports string // what their shell has from earlier blocks
}

func (w *walk) begin(t *testing.T, g ground) *user {
	t.Helper()
	u := &user{walk: w, ground: g, folder: t.TempDir()}
	u.stand = g.start(t, w, body.NewFleet(t.Context(), body.Options{}))
	u.save(t, u.files)
	flavors, err := filepath.Glob(w.release + "/cluster-template-*.yaml")
	if err != nil || len(flavors) == 0 {
		t.Fatalf("no flavors: %v", err)
	}
	for _, flavor := range flavors {
		text := string(read(t, flavor))
		before, after, found := strings.Cut(text, u.account[0]+"\n")
		if !found || u.account[0] == "" {
			continue
		}
		write := func(text string) {
			if err := os.WriteFile(flavor, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write(before + u.account[0] + "\n" + u.account[1] + after)
		t.Cleanup(func() { write(text) })
	}
	return u
}

func (u *user) save(t *testing.T, files map[string]string) {
	t.Helper()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(u.folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// follow runs the blocks of a page in one shell's environment, and leaves out those that the page
// marks.
func (u *user) follow(t *testing.T, blocks []string) {
	t.Helper()
	ctl := u.ctl
	ctl.env = slices.Concat(ctl.env, u.env)
	for _, commands := range blocks {
		if strings.HasPrefix(commands, mark) {
			continue
		}
		commands = strings.NewReplacer(u.values...).Replace(commands)
		ctl.shell(t, u.folder, u.exports+commands)
		for line := range strings.Lines(commands) {
			if strings.HasPrefix(line, "export ") {
				u.exports += line
			}
		}
	}
}

// end removes what the page leaves to its users, and checks that no guest runs.
func (u *user) end(t *testing.T) {
	t.Helper()
	u.ctl.shell(t, u.folder, "kubectl delete namespace team-a --timeout=5m")
	until(t, u.run(0))
}

// run checks that so many guests run.
func (u *user) run(want int32) scenario.Check {
	return func(context.Context) (string, error) {
		if n := u.running.Load(); n != want {
			return fmt.Sprintf("%d VMs run, want %d", n, want), nil
		}
		return "", nil
	}
}

// count counts the guests that a stand-in switches on and off.
func count[G any](running *atomic.Int32, power func(G) (off func())) func(G) (off func()) {
	return func(guest G) (off func()) {
		running.Add(1)
		stop := power(guest)
		return sync.OnceFunc(func() {
			stop()
			running.Add(-1)
		})
	}
}

// steps returns the blocks of a page's numbered sections, in the order of the page. Of those with
// sections for each cloud, it returns what is before them, and the cloud's own.
func steps(t *testing.T, page, cloud string, numbers ...string) (blocks []string) {
	t.Helper()
	sections := strings.Split(string(read(t, root(t)+"/"+page)), "\n## ")
	for _, number := range numbers {
		found := len(blocks)
		for _, section := range sections {
			if !strings.HasPrefix(section, number+" ") {
				continue
			}
			for i, part := range strings.Split(section, "\n### ") {
				if i > 0 && !strings.HasPrefix(part, cloud+"\n") {
					continue
				}
				blocks = append(blocks, pageBlocks(part, "sh")...)
			}
		}
		if len(blocks) == found {
			t.Fatalf("%s has no commands in section %s for %s", page, number, cloud)
		}
	}
	return blocks
}
