// SPDX-License-Identifier: Apache-2.0

package whole

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
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
	"github.com/drover-io/drover/cloud/simulated/wire"
	"github.com/drover-io/drover/internal/test/playground"
	"github.com/drover-io/drover/test/internal/scenario"
)

// Namespace holds the clusters, Name is that of the first.
const (
	Namespace = "team"
	Name      = "one"
)

// LastPatch is a release of Kubernetes before body.DefaultKubeletVersion. Its programs are the same
// ones, linked with this version.
const LastPatch = "v1.36.2"

// Stage is a management cluster with all providers, and a simulated cloud that can make control
// planes.
type Stage struct {
	Client     client.Client
	Management *playground.Management
	Cloud      *playground.Simulator
	Admin      simulator.Admin

	options    Options
	clusterctl string
	inside     *playground.Management // the first cluster, once it has been its own management cluster
	outside    client.Client          // of Management, meanwhile
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
	// Binary is the manager. By default it is built with the race detector.
	Binary string
	// Releases are further releases of Kubernetes that machines can have: each is in an image of
	// its own. The default release is always there.
	Releases []string
	// Args are appended to the command lines of Cluster API's core manager and its kubeadm control
	// plane provider.
	Args []string
	// Dress changes an object of a template before it is created. By default none is changed.
	Dress func(*unstructured.Unstructured) error
}

// coreArgs returns what is appended to the command line of Cluster API's core manager. A VM ends
// without closing its connections. A client notices that after up to 45 s, and Cluster API probes
// every 10 s; by default, it reports a lost connection after 50 s, and the restored one only when
// it looks at the Cluster again, up to ten minutes later.
func (o Options) coreArgs() []string {
	return append(slices.Clone(o.Args), "--remote-connection-grace-period=2m")
}

// Start starts everything. Stop must be called even after an error.
func Start(ctx context.Context, o Options) (*Stage, error) {
	s := &Stage{options: o}
	tools, err := playground.FindTools(ctx, os.Stderr, "clusterctl", "kubeadm", "etcd", "kube-apiserver", "kube-controller-manager",
		"kube-scheduler")
	if err != nil {
		return s, err
	}
	s.clusterctl = tools["clusterctl"]
	config, err := s.config(ctx, tools)
	if err != nil {
		return s, err
	}
	s.Cloud, err = playground.StartSimulator(ctx,
		playground.SimulatorOptions{Dir: filepath.Join(o.Dir, "cloud"), Args: []string{"--config=" + config}})
	if err != nil {
		return s, err
	}
	s.Admin = simulator.Admin{URL: s.Cloud.URL}
	s.Management, err = playground.StartManagement(ctx, playground.ManagementOptions{
		ControlPlaneOptions: playground.ControlPlaneOptions{Name: "management", Dir: filepath.Join(o.Dir, "management"), Progress: o.Progress},
		CoreArgs:            o.coreArgs(),
	})
	if err == nil {
		s.Client, err = s.prepare(ctx, s.Management)
	}
	if err == nil {
		err = scenario.Create(ctx, s.Client,
			scenario.Credentials(metav1.ObjectMeta{Namespace: Namespace, Name: "simulated-credentials"}, "simulated",
				map[string][]byte{"token": []byte(s.Cloud.Token)}))
	}
	return s, err
}

// Stop stops everything.
func (s *Stage) Stop() error {
	var errs []error
	for _, m := range []*playground.Management{s.inside, s.Management} {
		if m != nil {
			errs = append(errs, m.Stop())
		}
	}
	if s.Cloud != nil {
		errs = append(errs, s.Cloud.Stop())
	}
	return errors.Join(errs...)
}

// config writes the simulated cloud's configuration, and returns its path.
func (s *Stage) config(ctx context.Context, tools playground.Tools) (string, error) {
	images := []simulator.Image{image(body.DefaultKubeletVersion, folders(tools))}
	for _, release := range s.options.Releases {
		programs, err := playground.FindRelease(ctx, os.Stderr, release, "kubeadm", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
		if err != nil {
			return "", err
		}
		images = append(images, image(release, append(folders(programs), filepath.Dir(tools["etcd"]))))
	}
	// Machines' addresses are routed on this computer: another Stage must have others.
	network := wire.Network{Name: "default", CIDR: fmt.Sprintf("10.%d.%d.0/24", 64+rand.IntN(16), rand.IntN(256))}
	text, err := sigsyaml.Marshal(simulator.Options{Images: images, Networks: []wire.Network{network}})
	if err != nil {
		return "", err
	}
	file := filepath.Join(s.options.Dir, "simulated.yaml")
	return file, os.WriteFile(file, text, 0o600)
}

// folders returns the folders of programs.
func folders(tools playground.Tools) (path []string) {
	for _, program := range tools {
		path = append(path, filepath.Dir(program))
	}
	slices.Sort(path)
	return slices.Compact(path)
}

// image returns the image of a release of Kubernetes, whose programs are in the folders.
func image(release string, path []string) simulator.Image {
	return simulator.Image{
		Image:    wire.Image{Name: ImageName(release), Arch: "amd64", OS: "linux"},
		Software: body.Software{KubeletVersion: release, ControlPlanePath: path},
	}
}

// ImageName returns the image of a release of Kubernetes. The flavors' default is that of the
// default release.
func ImageName(release string) string {
	if release == body.DefaultKubeletVersion {
		return "node-image"
	}
	return "node-image-" + release
}

// prepare adds the other providers to a management cluster, creates the namespace, and returns a
// client.
func (s *Stage) prepare(ctx context.Context, m *playground.Management) (client.Client, error) {
	if _, err := m.StartKubeadmBootstrap(ctx); err != nil {
		return nil, err
	}
	if _, err := m.StartKubeadmControlPlane(ctx, s.options.Args...); err != nil {
		return nil, err
	}
	if _, err := m.StartDrover(ctx, playground.DroverOptions{Binary: s.options.Binary,
		Args: []string{"--simulated-endpoint=" + s.Cloud.URL, "--leader-elect=false"}}); err != nil {
		return nil, err
	}
	scheme, err := scenario.Scheme()
	if err != nil {
		return nil, err
	}
	if err := controlplanev1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	c, err := client.New(m.AdminConfig(), client.Options{Scheme: scheme})
	if err != nil {
		return nil, err
	}
	return c, scenario.Create(ctx, c, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: Namespace}})
}

// Create creates what clusterctl generates from a file in templates, but for what is there already.
// Machines have the default release of Kubernetes.
func (s *Stage) Create(ctx context.Context, template, cluster string, controlPlanes, workers int) error {
	return s.CreateOf(ctx, body.DefaultKubeletVersion, template, cluster, controlPlanes, workers)
}

// CreateOf does the same with a release of Kubernetes.
func (s *Stage) CreateOf(ctx context.Context, release, template, cluster string, controlPlanes, workers int) error {
	root, err := playground.Root(ctx)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, s.clusterctl, "generate", "cluster", cluster, "--from", filepath.Join(root, "templates", template),
		"--target-namespace", Namespace, "--kubernetes-version", release,
		"--control-plane-machine-count", fmt.Sprint(controlPlanes), "--worker-machine-count", fmt.Sprint(workers),
		"--kubeconfig", s.Management.AdminKubeconfig())
	cmd.Stderr, cmd.Env = os.Stderr, append(os.Environ(), "DROVER_SIMULATED_IMAGE="+ImageName(release))
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
		if s.options.Dress != nil {
			if err := s.options.Dress(o); err != nil {
				return fmt.Errorf("changing %s %s: %w", o.GetKind(), o.GetName(), err)
			}
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

// Names returns the names of the control planes' machines.
func (s *Stage) Names(ctx context.Context) (names []string, err error) {
	machines, err := s.Machines(ctx)
	for i := range machines {
		names = append(names, machines[i].Name)
	}
	return names, err
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
	return ask(ctx, config, s.targets)
}

// targets says which targets the load balancers have, and which of them are healthy.
func (s *Stage) targets(ctx context.Context) string {
	books, err := s.Admin.Snapshot(ctx)
	if err != nil {
		return err.Error()
	}
	text := ""
	for _, r := range books.Resources {
		if r.Kind == wire.Balancer {
			text += fmt.Sprintf("%s: %v ", r.PrivateIP, r.Targets)
		}
	}
	return text
}
