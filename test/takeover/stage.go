// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	"github.com/drover-io/drover/internal/test/playground"
	"github.com/drover-io/drover/test/internal/faultproxy"
	"github.com/drover-io/drover/test/internal/rig"
	"github.com/drover-io/drover/test/internal/scenario"
)

// PatientWithNodes is an argument for the workload cluster's kube-controller-manager: it does not
// miss the kubelets of machines that have none.
const PatientWithNodes = "--node-monitor-grace-period=1h0m0s"

// Stage is a cluster with machines of an old system, whose objects are in a namespace
// of the management cluster.
type Stage struct {
	*rig.Stage
	Old        *Old
	management *faultproxy.Proxy // of the command
	kubeconfig string            // of an administrator of the management cluster, through the proxy
	nodes      string            // of the workload cluster, through the tenant's proxy
	binary     string
}

// Start starts a stage for an old system, which has nothing yet in the place.
func Start(stage *rig.Stage, of System, place Place) *Stage {
	stage.Helper()
	s, name := &Stage{Stage: stage}, stage.Tenant.Name
	m := s.Rig.Management
	admin := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: "importer"}}
	s.Do(scenario.Create(s.Ctx, s.Rig.Client, admin, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name + "-importer"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: s.Namespace, Name: admin.Name}},
	}))
	raw, err := m.ServiceAccountKubeconfig(s.Ctx, s.Namespace, admin.Name)
	s.Do(err)
	s.management, err = faultproxy.Start(faultproxy.Options{Name: "importer", Upstream: m.URL, CA: m.CA(), Parse: faultproxy.Kubernetes})
	s.Do(err)
	s.Cleanup(s.management.Close)
	s.kubeconfig, s.nodes = filepath.Join(s.TempDir(), "management"), filepath.Join(s.TempDir(), "workload")
	s.Do(s.management.WriteKubeconfig(s.kubeconfig, raw))
	s.Do(os.WriteFile(s.nodes, s.Kubeconfig, 0o600))
	s.binary, err = playground.BuildCommand(s.Ctx)
	s.Do(err)
	config := &bootstrapv1.DroverConfigTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: "base"}}
	s.Do(s.Rig.Client.Create(s.Ctx, config))
	s.Old = &Old{Stage: s, System: of, Place: place, namespace: name + "-old"}
	s.Do(s.Rig.Client.Create(s.Ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.Old.namespace}}))
	return s
}

// Run runs the command of the system's page in the book for a step, with further arguments.
func (s *Stage) Run(step string, args ...string) (out, errs string, code int) {
	s.Helper()
	p := s.begin(step, args...)
	s.end(p)
	return p.out.String(), p.errs.String(), p.cmd.ProcessState.ExitCode()
}

// process is a run of the command.
type process struct {
	cmd       *exec.Cmd
	out, errs bytes.Buffer
}

func (s *Stage) begin(step string, args ...string) *process {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Ctx, s.Patience)
	s.Cleanup(cancel)
	p := &process{cmd: exec.CommandContext(ctx, s.binary,
		append(append(s.command(step), "--allow-endpoints=127.0.0.0/8,::1/128", "--timeout="+(s.Patience-10*time.Second).String()), args...)...)}
	p.cmd.Env = append(os.Environ(), "KUBECONFIG="+s.kubeconfig)
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.errs
	s.Do(p.cmd.Start())
	return p
}

// end waits for the end of a process.
func (s *Stage) end(p *process) {
	s.Helper()
	err := p.cmd.Wait()
	if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
		s.Fatal(err)
	}
}

// Done runs a step, and kills the command after each of its writes, as often as it takes. If
// somebody undoes a write before the next run, as Cluster API does with the finalizers that a
// rollback takes off, the next run is killed after the write that follows it.
func (s *Stage) Done(step string, args ...string) {
	s.Helper()
	last, nth := "", int32(1)
	for n := 0; ; n++ {
		wrote := s.killed(step, nth, args...)
		if wrote == "" {
			s.Logf("%s was killed after each of %d writes", step, n)
			return
		}
		if n > 200 {
			s.Fatalf("%s does not come to an end", step)
		}
		_, wrote, _ = strings.Cut(wrote, " ") // without its number
		if nth = 1; wrote == last {
			nth = 2
		}
		last = wrote
	}
}

// Killed runs a step, and kills the command after its first write. It returns false if there is
// nothing left to write: then the step must be done.
func (s *Stage) Killed(step string, args ...string) bool {
	s.Helper()
	return s.killed(step, 1, args...) != ""
}

// killed runs a step, kills the command after its nth write, and returns that write, or "" if there
// were fewer: then the step must be done.
func (s *Stage) killed(step string, nth int32, args ...string) string {
	s.Helper()
	wrote, p := s.cut(step, nth, args...)
	if code := p.cmd.ProcessState.ExitCode(); wrote == "" && (code != 0 || !strings.HasSuffix(p.out.String(), step+": done\n")) {
		s.Fatalf("%s: code %d\n%s%s", step, code, p.out.String(), p.errs.String())
	}
	return wrote
}

// cut runs a step, kills the command after its nth write, and returns that write, or "" if there
// were fewer.
func (s *Stage) cut(step string, n int32, args ...string) (wrote string, p *process) {
	s.Helper()
	var once sync.Once
	var running atomic.Pointer[process]
	var count atomic.Int32
	begun := make(chan struct{})
	kill := func(_ context.Context, c faultproxy.Call, at faultproxy.Point) faultproxy.Verdict {
		if at != faultproxy.After || c.Status >= http.StatusBadRequest || !writes(c) || count.Add(1) < n {
			return faultproxy.Verdict{}
		}
		once.Do(func() {
			wrote = c.String()
			<-begun
			_ = running.Load().cmd.Process.Kill()
		})
		return faultproxy.Verdict{Cut: true}
	}
	proxies := []*faultproxy.Proxy{s.management, s.API, s.Cloud}
	for _, proxy := range proxies {
		proxy.SetRule(kill)
	}
	p = s.begin(step, args...)
	running.Store(p)
	close(begun)
	s.end(p)
	for _, proxy := range proxies {
		proxy.SetRule(nil)
	}
	once.Do(func() {}) // waits for a kill
	if wrote != "" {
		s.Logf("%s was killed after %s", step, wrote)
	}
	return wrote, p
}

// tagging begins the calls by which the command writes to clouds. Nobody else makes them during a
// takeover.
var tagging = []string{
	"CreateTags", "DeleteTags", "ReconfigVM_Task", "SetField", "PATCH ", "POST instances/set",
	"POST compute/servers/", "PUT compute/", "DELETE compute/servers/", "PUT network/", "POST volume/volumes/", "DELETE volume/volumes/",
}

// writes reports whether only the command makes such a call, and it changes something.
func writes(c faultproxy.Call) bool {
	switch c.Proxy {
	case "importer":
		return c.Write()
	case "workload": // Cluster API and Drover use it, too
		return c.Verb == "patch" && c.Resource == "nodes" && slices.Contains(c.Fields, "metadata.finalizers")
	}
	return slices.ContainsFunc(tagging, func(begin string) bool { return strings.HasPrefix(c.Verb, begin) })
}

// command returns the arguments of the page's command for a step, with the stage's values.
func (s *Stage) command(step string) []string {
	s.Helper()
	root, err := playground.Root(s.Ctx)
	s.Do(err)
	page := filepath.Join(root, "docs/migrate", cmp.Or(s.Old.page, s.Old.name)+".md")
	data, err := os.ReadFile(page)
	s.Do(err)
	_, text, found := strings.Cut(string(data), "\ndrover import "+s.Old.name+" "+step+" ")
	if !found {
		s.Fatalf("%s has no command for %s", page, step)
	}
	_, flags, _ := strings.Cut(string(data), "\nflags=\"")
	flags, _, _ = strings.Cut(flags, "\"")
	text, _, _ = strings.Cut(text, "\n")
	words := strings.Fields(strings.Replace(text, "$flags", flags, 1))
	for i, word := range words {
		value, known := map[string]string{
			"--namespace": s.Namespace, "--cluster": s.Tenant.Name, "--bootstrap": "base", "--from": s.kubeconfig,
			"--from-namespace": s.Old.namespace, "--from-cluster": oldCluster, "--nodes": s.nodes,
			"--confirm": s.Tenant.Name,
		}[word]
		if known {
			words[i+1] = value
		} else if strings.HasPrefix(word, "-") {
			s.Fatalf("%s has the option %s, which the test does not know", page, word)
		}
	}
	return append([]string{"import", s.Old.name, step}, words...)
}

// Count returns how many objects of a kind the stage's namespace has.
func (s *Stage) Count(list client.ObjectList) int {
	s.Helper()
	s.Do(s.Rig.Client.List(s.Ctx, list, client.InNamespace(s.Namespace)))
	return meta.LenList(list)
}
