// SPDX-License-Identifier: Apache-2.0

package whole

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

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	controlplanev1 "sigs.k8s.io/cluster-api/api/controlplane/kubeadm/v1beta2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/kubeconfig"
	"sigs.k8s.io/controller-runtime/pkg/client"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/cloud/simulated/simulator/body"
	"github.com/drover-io/drover/test/playground"
	"github.com/drover-io/drover/test/scenario"
)

// Namespace holds the clusters, Name is that of the first.
const (
	Namespace = "team"
	Name      = "one"
)

// Stage is a management cluster with all providers, and a simulated cloud that can make control
// planes.
type Stage struct {
	Client     client.Client
	Management *playground.Management
	Cloud      *playground.Simulator
	Admin      simulator.Admin

	dir        string
	clusterctl string
}

// Missing returns what this computer lacks, or "".
func Missing() string {
	if _, err := exec.LookPath("ip"); err != nil || os.Geteuid() != 0 {
		return "control planes in namespaces need root and the program ip of iproute2"
	}
	return ""
}

// Options are what a Stage needs.
type Options struct {
	// Dir is a folder of the caller's, for data and logs.
	Dir string
	// Progress gets a line for each part that starts.
	Progress io.Writer
	// Binary is the drover program. By default it is built with the race detector.
	Binary string
}

// Start starts everything. Stop must be called even after an error.
func Start(ctx context.Context, o Options) (*Stage, error) {
	s := &Stage{dir: o.Dir}
	tools, err := playground.FindTools(ctx, os.Stderr, "clusterctl", "kubeadm", "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
	if err != nil {
		return s, err
	}
	s.clusterctl = tools["clusterctl"]
	config, err := s.config(tools)
	if err != nil {
		return s, err
	}
	s.Cloud, err = playground.StartSimulator(ctx, playground.SimulatorOptions{Binary: o.Binary, Dir: filepath.Join(s.dir, "cloud"), Args: []string{"--config=" + config}})
	if err != nil {
		return s, err
	}
	s.Admin = simulator.Admin{URL: s.Cloud.URL}
	s.Management, err = playground.StartManagement(ctx, playground.ManagementOptions{
		ControlPlaneOptions: playground.ControlPlaneOptions{Name: "management", Dir: filepath.Join(s.dir, "management"), Progress: o.Progress},
	})
	if err == nil {
		_, err = s.Management.StartKubeadmBootstrap(ctx)
	}
	if err == nil {
		_, err = s.Management.StartKubeadmControlPlane(ctx)
	}
	if err == nil {
		_, err = s.Management.StartDrover(ctx, playground.DroverOptions{Binary: o.Binary, Args: []string{"--simulated-endpoint=" + s.Cloud.URL, "--leader-elect=false"}})
	}
	if err != nil {
		return s, err
	}
	return s, s.prepare(ctx)
}

// Stop stops everything.
func (s *Stage) Stop() error {
	var errs []error
	if s.Management != nil {
		errs = append(errs, s.Management.Stop())
	}
	if s.Cloud != nil {
		errs = append(errs, s.Cloud.Stop())
	}
	return errors.Join(errs...)
}

// config writes the simulated cloud's configuration, and returns its path.
func (s *Stage) config(tools playground.Tools) (string, error) {
	var path []string
	for _, program := range tools {
		path = append(path, filepath.Dir(program))
	}
	slices.Sort(path)
	text, err := sigsyaml.Marshal(simulator.Options{Bodies: body.Options{ControlPlanePath: slices.Compact(path)}})
	if err != nil {
		return "", err
	}
	file := filepath.Join(s.dir, "simulated.yaml")
	return file, os.WriteFile(file, text, 0o600)
}

// prepare creates the namespace, and the credentials of the simulated cloud in it.
func (s *Stage) prepare(ctx context.Context) error {
	scheme, err := scenario.Scheme()
	if err != nil {
		return err
	}
	if err := controlplanev1.AddToScheme(scheme); err != nil {
		return err
	}
	if s.Client, err = client.New(s.Management.AdminConfig(), client.Options{Scheme: scheme}); err != nil {
		return err
	}
	return scenario.Create(ctx, s.Client,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: Namespace}},
		scenario.Credentials(metav1.ObjectMeta{Namespace: Namespace, Name: "simulated-credentials"}, "simulated", map[string][]byte{"token": []byte(s.Cloud.Token)}),
	)
}

// Create creates what clusterctl generates from a file in templates, but for what is there already.
func (s *Stage) Create(ctx context.Context, template, cluster string, controlPlanes, workers int) error {
	root, err := playground.Root(ctx)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, s.clusterctl, "generate", "cluster", cluster, "--from", filepath.Join(root, "templates", template),
		"--target-namespace", Namespace, "--kubernetes-version", body.DefaultKubeletVersion,
		"--control-plane-machine-count", fmt.Sprint(controlPlanes), "--worker-machine-count", fmt.Sprint(workers),
		"--kubeconfig", s.Management.AdminKubeconfig())
	cmd.Stderr = os.Stderr
	text, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("clusterctl generate cluster: %w", err)
	}
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	for {
		o := &unstructured.Unstructured{}
		if err := decoder.Decode(o); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := s.Client.Create(ctx, o); client.IgnoreAlreadyExists(err) != nil {
			return fmt.Errorf("creating %s %s: %w", o.GetKind(), o.GetName(), err)
		}
	}
}

// Cluster returns the first cluster, with its key alone.
func (s *Stage) Cluster() *clusterv1.Cluster {
	return &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: Name}}
}

// ControlPlane returns the first cluster's control plane, with its key alone.
func (s *Stage) ControlPlane() *controlplanev1.KubeadmControlPlane {
	return &controlplanev1.KubeadmControlPlane{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: Name}}
}

// Machines returns the control planes' machines.
func (s *Stage) Machines(ctx context.Context) ([]clusterv1.Machine, error) {
	list := &clusterv1.MachineList{}
	err := s.Client.List(ctx, list, client.InNamespace(Namespace), client.HasLabels{clusterv1.MachineControlPlaneLabel})
	return list.Items, err
}

// Config returns the administrator's configuration of the first cluster, which is there once the
// cluster is initialized.
func (s *Stage) Config(ctx context.Context) (*rest.Config, error) {
	raw, err := kubeconfig.FromSecret(ctx, s.Client, client.ObjectKeyFromObject(s.Cluster()))
	if err != nil {
		return nil, err
	}
	return clientcmd.RESTConfigFromKubeConfig(raw)
}

// Ask begins to ask the first cluster's endpoint.
func (s *Stage) Ask(ctx context.Context) (*Asker, error) {
	config, err := s.Config(ctx)
	if err != nil {
		return nil, err
	}
	return ask(ctx, config)
}
