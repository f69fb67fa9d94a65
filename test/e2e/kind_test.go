// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/cluster-api/test/framework"
	"sigs.k8s.io/cluster-api/test/framework/bootstrap"
	"sigs.k8s.io/cluster-api/test/framework/clusterctl"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kind "sigs.k8s.io/kind/pkg/apis/config/v1alpha4"

	"github.com/drover-io/drover/cloud/simulated/simulator"
)

// cloudInCluster is the simulated cloud's address in a kind cluster, and the port of its node that leads there.
const (
	cloudInCluster = "http://simulated-cloud.simulated-cloud:8080"
	cloudNodePort  = 30080
)

// startKind makes a kind cluster and, by clusterctl, a management cluster of it: cert-manager, Cluster API and Drover as Pods, from the
// images that their releases name; Drover's was built before, and is brought there. Docker's networks must be reachable from
// here, as they are on Linux: the cluster adopts itself by its node's address.
func (s *stage) startKind(ctx context.Context, scheme *runtime.Scheme) {
	port := freePort()
	provider := bootstrap.CreateKindBootstrapClusterAndLoadImages(ctx, bootstrap.CreateKindBootstrapClusterAndLoadImagesInput{
		Name:              "drover-e2e",
		KubernetesVersion: kubernetes,
		Images:            []clusterctl.ContainerImage{{Name: image, LoadBehavior: clusterctl.MustLoadImage}},
		ExtraPortMappings: []kind.PortMapping{{ContainerPort: cloudNodePort, HostPort: port, ListenAddress: "127.0.0.1"}},
		LogFolder:         filepath.Join(s.artifacts, "kind"),
	})
	DeferCleanup(provider.Dispose)
	s.proxy = framework.NewClusterProxy("management", provider.GetKubeconfigPath(), scheme)
	DeferCleanup(s.proxy.Dispose)
	clusterctl.InitManagementClusterAndWatchControllerLogs(ctx, clusterctl.InitManagementClusterAndWatchControllerLogsInput{
		ClusterProxy: s.proxy, ClusterctlConfigPath: s.config, LogFolder: filepath.Join(s.artifacts, "controllers"),
		CoreProvider: "cluster-api:" + clusterAPI, BootstrapProviders: []string{"-"}, ControlPlaneProviders: []string{"-"},
		InfrastructureProviders: []string{infrastructure},
	}, s.settings.GetIntervals("default", "wait-controllers")...)

	s.token = rand.Text()
	s.cloud = simulator.Admin{URL: fmt.Sprintf("http://127.0.0.1:%d", port), Token: rand.Text()}
	manifest, err := os.ReadFile("../../config/simulated-cloud.yaml")
	Expect(err).NotTo(HaveOccurred())
	filled := strings.NewReplacer("ADMIN_TOKEN", s.cloud.Token, "TOKEN", s.token, "IMAGE", image).Replace(string(manifest))
	Expect(s.proxy.CreateOrUpdate(ctx, []byte(filled))).To(Succeed())
	Eventually(func() error { _, err := s.cloud.Snapshot(ctx); return err }, s.settings.GetIntervals("default", "wait-controllers")...).Should(Succeed())
	s.kubeconfig = s.fromInside(ctx, provider.GetKubeconfigPath())
}

// fromInside is the kubeconfig with the address at which Pods, too, reach the API server.
func (s *stage) fromInside(ctx context.Context, kubeconfig string) []byte {
	nodes := &corev1.NodeList{}
	Expect(s.proxy.GetClient().List(ctx, nodes, client.HasLabels{"node-role.kubernetes.io/control-plane"})).To(Succeed())
	Expect(nodes.Items).To(HaveLen(1))
	config, err := clientcmd.LoadFromFile(kubeconfig)
	Expect(err).NotTo(HaveOccurred())
	for _, address := range nodes.Items[0].Status.Addresses {
		if address.Type == corev1.NodeInternalIP {
			for _, cluster := range config.Clusters {
				cluster.Server = "https://" + net.JoinHostPort(address.Address, "6443")
			}
		}
	}
	text, err := clientcmd.Write(*config)
	Expect(err).NotTo(HaveOccurred())
	return text
}

// freePort is one that nobody listens on.
func freePort() int32 {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	Expect(err).NotTo(HaveOccurred())
	defer func() { _ = l.Close() }()
	return int32(l.Addr().(*net.TCPAddr).Port)
}
