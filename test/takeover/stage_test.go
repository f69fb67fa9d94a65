// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1alpha1"
	"github.com/drover-io/drover/test/playground"
	"github.com/drover-io/drover/test/rig"
)

var house = rig.House{Patience: 3 * time.Minute}

func TestMain(m *testing.M) { os.Exit(house.Main(m, begin)) }

// begin starts the rig with a workload cluster that does not miss the kubelets of machines that
// have none, and with the kinds of machine-controller-manager.
func begin(ctx context.Context, args ...string) (*rig.Rig, error) {
	r, err := rig.StartOnAWS(ctx, append(args, "--node-monitor-grace-period=1h0m0s")...)
	if err == nil {
		err = installKinds(ctx, r.Client)
	}
	return r, err
}

// stage is a cluster with machines of machine-controller-manager, whose objects are in a namespace
// of the management cluster.
type stage struct {
	*rig.Stage
	old        *old
	kubeconfig string // of an administrator of the management cluster
	nodes      string // of the workload cluster
	binary     string
}

// start starts a stage of this name with pools of the old system.
func start(t *testing.T, name string, pools ...pool) *stage {
	t.Helper()
	s := &stage{Stage: house.Stage(t, name), nodes: house.Rig.Workload.AdminKubeconfig()}
	raw, err := s.Rig.Management.Kubeconfig("importer", "system:masters")
	s.Do(err)
	s.kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	s.Do(os.WriteFile(s.kubeconfig, raw, 0o600))
	s.binary, err = playground.Build(s.Ctx, false)
	s.Do(err)
	config := &bootstrapv1.CloudInitConfigTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: "base"}}
	s.Do(s.Rig.Client.Create(s.Ctx, config))
	s.old = &old{stage: s, namespace: name + "-old"}
	s.Do(s.Rig.Client.Create(s.Ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.old.namespace}}))
	for _, p := range pools {
		s.old.add(p)
	}
	return s
}

// page is the page of the book whose commands the tests run.
const page = "../../docs/migrate/machine-controller-manager.md"

// run runs the page's command for a step, with further arguments.
func (s *stage) run(step string, args ...string) (out, errs string, code int) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Ctx, s.Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.binary, append(append(s.command(step), "--allow-endpoints=127.0.0.0/8,::1/128"), args...)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+s.kubeconfig)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
		s.Fatal(err)
	}
	return stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()
}

// command returns the arguments of the page's command for a step, with the stage's values.
func (s *stage) command(step string) []string {
	s.Helper()
	data, err := os.ReadFile(page)
	s.Do(err)
	_, text, found := strings.Cut(string(data), "\ndrover import machine-controller-manager "+step+" ")
	if !found {
		s.Fatalf("%s has no command for %s", page, step)
	}
	text, _, _ = strings.Cut(strings.ReplaceAll(text, "\\\n", " "), "\n")
	words := strings.Fields(text)
	for i, word := range words {
		value, known := map[string]string{
			"--namespace": s.Namespace, "--cluster": s.Tenant.Name, "--bootstrap": "base", "--from": s.kubeconfig,
			"--from-namespace": s.old.namespace, "--nodes": s.nodes,
		}[word]
		if known {
			words[i+1] = value
		} else if strings.HasPrefix(word, "-") {
			s.Fatalf("%s has the option %s, which the test does not know", page, word)
		}
	}
	return append([]string{"import", "machine-controller-manager", step}, words...)
}

// count returns how many objects of a kind the stage's namespace has.
func (s *stage) count(list client.ObjectList) int {
	s.Helper()
	s.Do(s.Rig.Client.List(s.Ctx, list, client.InNamespace(s.Namespace)))
	return meta.LenList(list)
}
