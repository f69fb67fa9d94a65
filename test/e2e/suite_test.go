// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/cluster-api/test/e2e"
	"sigs.k8s.io/cluster-api/test/framework"
	"sigs.k8s.io/cluster-api/test/framework/clusterctl"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/yaml"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	controlplanev1 "github.com/drover-io/drover/api/controlplane/v1beta1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/internal/test/playground"
	"github.com/drover-io/drover/test/internal/scenario"
)

const (
	version        = "v0.1.0"
	nextVersion    = "v0.1.1"
	image          = "ghcr.io/drover-io/drover:" + version
	kubernetes     = "v1.36.3"
	clusterAPI     = "v1.14.2"
	infrastructure = "drover:" + version
)

var (
	onKind  = flag.Bool("kind", false, "run the specs on a kind cluster, with Drover's image, which must have been built; needs Docker and the Internet")
	offline = flag.String("clusterctl", "", "a configuration of clusterctl's that names Cluster API and cert-manager, where the Internet can't be reached")
)

// management is a management cluster.
type management struct {
	proxy framework.ClusterProxy
	// kubeconfig reaches the cluster from wherever Drover runs.
	kubeconfig []byte
	// config is the path of the clusterctl configuration with which Drover was installed.
	config string
	// processes are the cluster's processes, and drover is its manager. Both are nil for a kind
	// cluster.
	processes *playground.Management
	drover    *playground.Process
}

// stage holds what all specs share.
type stage struct {
	management
	// start starts a management cluster with Cluster API and Drover.
	start func(ctx context.Context, name string) management
	// artifacts is the folder for logs and for the objects of failed specs.
	artifacts string
	settings  *clusterctl.E2EConfig
	scheme    *runtime.Scheme
	// cloud is the admin API of the simulated cloud, which only tests use. token is the account's
	// token.
	cloud simulator.Admin
	token string
}

func TestE2E(t *testing.T) {
	RegisterFailHandler(Fail)
	ctrl.SetLogger(GinkgoLogr)
	RunSpecs(t, "Cluster API's specs, with machines of Drover's")
}

// This process starts the clusters, so the specs run one after the other.
var shared = &stage{}

var _ = BeforeSuite(func(ctx SpecContext) {
	s, folder := shared, GinkgoT().TempDir()
	s.artifacts = filepath.Join(folder, "artifacts")
	s.config = s.release(ctx, folder)
	s.settings = &clusterctl.E2EConfig{
		Variables: map[string]string{
			"KUBERNETES_VERSION": kubernetes, "KUBERNETES_VERSION_UPGRADE_FROM": kubernetes,
			e2e.AutoscalerWorkloadYAMLPath: filepath.Join(folder, "autoscaler.yaml"),
		},
		Intervals: map[string][]string{
			"default/wait-controllers": {"5m", "1s"},
			"default/wait-cluster":     {"1m", "500ms"}, "default/wait-control-plane": {"1m", "500ms"}, "default/wait-worker-nodes": {"3m", "500ms"},
			"default/wait-machine-remediation": {"3m", "500ms"}, "default/wait-delete-cluster": {"3m", "500ms"},
			"default/wait-autoscaler": {"3m", "500ms"},
		},
	}
	s.scheme = runtime.NewScheme()
	framework.TryAddDefaultSchemes(s.scheme)
	for _, add := range []func(*runtime.Scheme) error{infrav1.AddToScheme, bootstrapv1.AddToScheme, controlplanev1.AddToScheme} {
		Expect(add(s.scheme)).To(Succeed())
	}
	s.start = s.startPlayground
	if *onKind {
		s.start = s.startKind
	}
	s.management = s.start(ctx, "management")
})

var _ = AfterSuite(func(ctx SpecContext) {
	if shared.processes != nil {
		for _, p := range []*playground.Process{shared.drover, shared.processes.Core()} {
			Expect(p.Done()).NotTo(BeClosed(), func() string { return fmt.Sprint(p.Name, ": ", p.Wait()) })
		}
	}
	if shared.cloud.URL != "" {
		snapshot, err := shared.cloud.Snapshot(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(snapshot.Live()).To(BeEmpty(), "every spec has deleted its cluster")
	}
})

// The end of a log is what people see first, so it says why the suite failed.
var _ = ReportAfterSuite("what failed", func(r Report) {
	for _, s := range r.SpecReports.WithState(types.SpecStateFailureStates) {
		fmt.Printf("\n%s: %.1500s\n", s.FullText(), s.FailureMessage())
	}
})

// startPlayground starts a management cluster that consists of processes, without Docker.
func (s *stage) startPlayground(ctx context.Context, name string) management {
	processes, err := playground.StartManagement(ctx, playground.ManagementOptions{
		ControlPlaneOptions: playground.ControlPlaneOptions{Name: name, Progress: os.Stderr},
	})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(processes.Stop)
	Expect(processes.StartScheduler(ctx)).To(Succeed())
	Expect(processes.InstallDrover(ctx)).To(Succeed())
	if s.cloud.URL == "" {
		cloud, err := playground.StartSimulator(ctx, playground.SimulatorOptions{})
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(cloud.Stop)
		s.cloud, s.token = simulator.Admin{URL: cloud.URL}, cloud.Token
	}
	drover, err := processes.StartDrover(ctx, s.options())
	Expect(err).NotTo(HaveOccurred())
	kubeconfig, err := os.ReadFile(processes.AdminKubeconfig())
	Expect(err).NotTo(HaveOccurred())
	proxy := framework.NewClusterProxy(name, processes.AdminKubeconfig(), s.scheme)
	DeferCleanup(proxy.Dispose)
	publish(ctx, proxy, processes.URL, processes.CA())
	return management{proxy, kubeconfig, s.config, processes, drover}
}

// publish writes the ConfigMap with the cluster's address, as kubeadm does. The specs of the
// autoscaler and of remediation read it.
func publish(ctx context.Context, proxy framework.ClusterProxy, url string, ca []byte) {
	info, err := clientcmd.Write(clientcmdapi.Config{Clusters: map[string]*clientcmdapi.Cluster{"": {Server: url,
		CertificateAuthorityData: ca}}})
	Expect(err).NotTo(HaveOccurred())
	Expect(scenario.Create(ctx, proxy.GetClient(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespacePublic, Name: "cluster-info"},
		Data:       map[string]string{"kubeconfig": string(info)},
	})).To(Succeed())
}

// sick returns the flavor adopted whose MachineHealthCheck replaces at once what the spec of
// remediation marks.
func sick(adopted string) string {
	adopted = insert(adopted, "    unhealthyNodeConditions:\n", `    - type: e2e.remediation.condition
      status: "False"
      timeoutSeconds: 1
`)
	return replace(adopted, "unhealthyLessThanOrEqualTo: 40%", "unhealthyLessThanOrEqualTo: 100%")
}

// options returns the options for a Drover next to a management cluster of processes.
func (s *stage) options() playground.DroverOptions {
	return playground.DroverOptions{Args: []string{"--simulated-endpoint=" + s.cloud.URL, "--leader-elect=false"}}
}

// release writes a release of Drover with the flavors that some specs need, and a next release
// with the same image. It returns the path of the clusterctl configuration.
func (s *stage) release(ctx context.Context, folder string) string {
	for _, version := range []string{version, nextVersion} {
		cmd := exec.CommandContext(ctx, "hack/release-manifests", folder)
		cmd.Dir, cmd.Env = "../..", append(os.Environ(), "VERSION="+version, "IMAGE="+image)
		out, err := cmd.CombinedOutput()
		Expect(err).NotTo(HaveOccurred(), string(out))
	}

	repository := filepath.Join(folder, "infrastructure-drover", version)
	for flavor, from := range map[string]struct {
		flavor string
		change func(string) string
	}{
		"md-remediation": {"adopted", sick}, "topology-autoscaler": {"topology", autoscaled},
		"upgrades": {"kubeadm", upgrades}, "taints": {"kubeadm", tainted}, "kcp-remediation": {"kubeadm", held},
		"kcp-adoption":    {"kubeadm", adoptable},
		"topology-taints": {"topology-kubeadm", taintedTopology},
	} {
		template := func(flavor string) string { return filepath.Join(repository, "cluster-template-"+flavor+".yaml") }
		text, err := os.ReadFile(template(from.flavor))
		Expect(err).NotTo(HaveOccurred())
		Expect(os.WriteFile(template(flavor), []byte(from.change(string(text))), 0o600)).To(Succeed())
	}
	Expect(os.WriteFile(filepath.Join(folder, "autoscaler.yaml"), []byte(autoscaler("../../docs/examples/autoscaler")), 0o600)).To(Succeed())

	settings := map[string]any{}
	if *offline != "" {
		given, err := os.ReadFile(*offline)
		Expect(err).NotTo(HaveOccurred())
		Expect(yaml.Unmarshal(given, &settings)).To(Succeed())
	}
	providers, _ := settings["providers"].([]any)
	if !*onKind {
		core, err := playground.CoreRepository(ctx, folder)
		Expect(err).NotTo(HaveOccurred())
		providers = append(providers, map[string]any{"name": "cluster-api", "type": "CoreProvider", "url": core})
		settings["cert-manager"] = map[string]any{"externallyProvisioned": true}
	}
	settings["providers"] = append(providers, map[string]any{"name": "drover", "type": "InfrastructureProvider", "url": repository +
		"/infrastructure-components.yaml"})
	settings["DROVER_SIMULATED_ENDPOINT"], settings["CLUSTER_TOPOLOGY"] = cloudInCluster, "true"
	text, err := yaml.Marshal(settings)
	Expect(err).NotTo(HaveOccurred())
	config := filepath.Join(folder, "clusterctl.yaml")
	Expect(os.WriteFile(config, text, 0o600)).To(Succeed())
	return config
}

// secrets creates what a user prepares for a cluster in its namespace: the kubeconfig of the
// adopted cluster, which is the management cluster itself, and the cloud's credentials.
func (s *stage) secrets(proxy framework.ClusterProxy, namespace string) {
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: namespace, Name: name} }
	Expect(scenario.Create(context.Background(), proxy.GetClient(),
		&corev1.Secret{ObjectMeta: meta("adopted-kubeconfig"), Data: map[string][]byte{"value": s.kubeconfig}},
		scenario.Credentials(meta("simulated-credentials"), "simulated", map[string][]byte{"token": []byte(s.token)}),
	)).To(Succeed())
}
