// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	controlplanev1 "sigs.k8s.io/cluster-api/api/controlplane/kubeadm/v1beta2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/cloud/simulated/simulator/body"
	"github.com/drover-io/drover/test/playground"
	"github.com/drover-io/drover/test/scenario"
)

const (
	namespace, name = "team", "one"
	// second is a small cluster of a ClusterClass.
	second = "two"
	// patience bounds everything that must come true in the end.
	patience = 5 * time.Minute
)

// stage is a management cluster with all providers, and a simulated cloud that can make control
// planes.
type stage struct {
	*testing.T
	ctx        context.Context
	client     client.Client
	management *playground.Management
	admin      simulator.Admin
	cloud      *playground.Simulator
	clusterctl string
}

func newStage(t *testing.T) *stage {
	if _, err := exec.LookPath("ip"); err != nil || os.Geteuid() != 0 {
		t.Skip("control planes in namespaces need root and the program ip of iproute2")
	}
	s := &stage{T: t, ctx: t.Context()}
	tools, err := playground.FindTools(s.ctx, os.Stderr, "clusterctl", "kubeadm", "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
	s.do(err)
	s.clusterctl = tools["clusterctl"]
	s.cloud, err = playground.StartSimulator(s.ctx, playground.SimulatorOptions{Args: []string{"--config=" + s.config(tools)}})
	s.do(err)
	t.Cleanup(func() { s.end(s.cloud.Stop()) })
	s.admin = simulator.Admin{URL: s.cloud.URL}

	s.management, err = playground.StartManagement(s.ctx, playground.ManagementOptions{
		ControlPlaneOptions: playground.ControlPlaneOptions{Name: "management", Progress: os.Stderr},
	})
	s.do(err)
	t.Cleanup(func() { s.end(s.management.Stop()) })
	_, err = s.management.StartKubeadmBootstrap(s.ctx)
	s.do(err)
	_, err = s.management.StartKubeadmControlPlane(s.ctx)
	s.do(err)
	_, err = s.management.StartDrover(s.ctx, playground.DroverOptions{Args: []string{"--simulated-endpoint=" + s.cloud.URL, "--leader-elect=false"}})
	s.do(err)
	scheme, err := scenario.Scheme()
	s.do(err)
	s.do(controlplanev1.AddToScheme(scheme))
	s.client, err = client.New(s.management.AdminConfig(), client.Options{Scheme: scheme})
	s.do(err)
	return s
}

// config writes the simulated cloud's configuration, and returns its path.
func (s *stage) config(tools playground.Tools) string {
	var path []string
	for _, program := range tools {
		path = append(path, filepath.Dir(program))
	}
	slices.Sort(path)
	text, err := sigsyaml.Marshal(simulator.Options{Bodies: body.Options{ControlPlanePath: slices.Compact(path)}})
	s.do(err)
	file := filepath.Join(s.TempDir(), "simulated.yaml")
	s.do(os.WriteFile(file, text, 0o600))
	return file
}

func (s *stage) do(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func (s *stage) end(err error) {
	if err != nil {
		s.Error(err)
	}
}

// until waits for a check. If it does not come true, the test fails, and prints what every machine
// says.
func (s *stage) until(what string, check scenario.Check) {
	s.Helper()
	took, err := scenario.Wait(s.ctx, patience, check)
	if err != nil {
		s.Errorf("waiting until %s: %v", what, err)
		s.consoles()
		s.FailNow()
	}
	s.Logf("%5.1fs until %s", took.Seconds(), what)
}

// consoles prints the machines' consoles.
func (s *stage) consoles() {
	books, err := s.admin.Snapshot(s.ctx)
	if err != nil {
		s.Log(err)
		return
	}
	for _, r := range books.Resources {
		if report, err := s.admin.Body(s.ctx, r.ID); err == nil {
			s.Logf("%s %s (%s):", r.ID, r.Name, report.Phase)
			for _, line := range report.Console {
				s.Log("  ", line)
			}
		}
	}
}

// prepare creates the namespace, and the credentials of the simulated cloud in it.
func (s *stage) prepare() {
	s.do(scenario.Create(s.ctx, s.client,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		scenario.Credentials(metav1.ObjectMeta{Namespace: namespace, Name: "simulated-credentials"}, "simulated", map[string][]byte{"token": []byte(s.cloud.Token)}),
	))
}

// create creates what clusterctl generates from a template, but for what is there already.
func (s *stage) create(template, cluster string, controlPlanes, workers int) {
	root, err := playground.Root(s.ctx)
	s.do(err)
	cmd := exec.CommandContext(s.ctx, s.clusterctl, "generate", "cluster", cluster, "--from", filepath.Join(root, "templates", template),
		"--target-namespace", namespace, "--kubernetes-version", body.DefaultKubeletVersion,
		"--control-plane-machine-count", fmt.Sprint(controlPlanes), "--worker-machine-count", fmt.Sprint(workers),
		"--kubeconfig", s.management.AdminKubeconfig())
	cmd.Stderr = os.Stderr
	text, err := cmd.Output()
	s.do(err)
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	for {
		o := &unstructured.Unstructured{}
		err := decoder.Decode(o)
		if errors.Is(err, io.EOF) {
			return
		}
		s.do(err)
		s.do(client.IgnoreAlreadyExists(s.client.Create(s.ctx, o)))
	}
}

func (s *stage) cluster() *clusterv1.Cluster {
	return &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}

func (s *stage) controlPlane() *controlplanev1.KubeadmControlPlane {
	return &controlplanev1.KubeadmControlPlane{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}

// machines returns the control plane's machines.
func (s *stage) machines(ctx context.Context) ([]clusterv1.Machine, error) {
	list := &clusterv1.MachineList{}
	err := s.client.List(ctx, list, client.InNamespace(namespace), client.HasLabels{clusterv1.MachineControlPlaneLabel})
	return list.Items, err
}
