// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/cluster-api/test/framework"
	"sigs.k8s.io/cluster-api/test/framework/bootstrap"
	"sigs.k8s.io/cluster-api/test/framework/clusterctl"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kind "sigs.k8s.io/kind/pkg/apis/config/v1alpha4"

	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/internal/test/playground"
)

// cloudInCluster is the simulated cloud's address in a kind cluster, and cloudNodePort is its port
// on the node.
const (
	cloudInCluster = "http://simulated-cloud.simulated-cloud:8080"
	cloudNodePort  = 30080
)

// startKind creates a kind cluster and uses clusterctl to turn it into a management cluster:
// cert-manager, Cluster API and Drover run as Pods, from the images of their releases. Drover's
// image must have been built, and is loaded into the cluster. Docker's networks must be reachable
// from here, as on Linux, because the clusters adopt each other, and find the cloud, by the
// addresses of their nodes.
func (s *stage) startKind(ctx context.Context, name string) management {
	first := s.cloud.URL == ""
	var ports []kind.PortMapping
	free, err := playground.FreePorts(1)
	Expect(err).NotTo(HaveOccurred())
	if first {
		ports = append(ports, kind.PortMapping{ContainerPort: cloudNodePort, HostPort: int32(free[0]), ListenAddress: "127.0.0.1"})
	}
	provider := bootstrap.CreateKindBootstrapClusterAndLoadImages(ctx, bootstrap.CreateKindBootstrapClusterAndLoadImagesInput{
		Name:              "drover-e2e-" + name,
		KubernetesVersion: kubernetes,
		Images:            []clusterctl.ContainerImage{{Name: image, LoadBehavior: clusterctl.MustLoadImage}},
		ExtraPortMappings: ports,
		LogFolder:         filepath.Join(s.artifacts, name),
	})
	DeferCleanup(provider.Dispose)
	proxy := framework.NewClusterProxy(name, provider.GetKubeconfigPath(), s.scheme)
	DeferCleanup(proxy.Dispose)
	config := s.config
	if !first {
		config = s.fromOutside(ctx)
	}
	clusterctl.InitManagementClusterAndWatchControllerLogs(ctx, clusterctl.InitManagementClusterAndWatchControllerLogsInput{
		ClusterProxy: proxy, ClusterctlConfigPath: config, LogFolder: filepath.Join(s.artifacts, name, "controllers"),
		CoreProvider: "cluster-api:" + clusterAPI, BootstrapProviders: []string{"-"}, ControlPlaneProviders: []string{"-"},
		InfrastructureProviders: []string{infrastructure},
	}, s.settings.GetIntervals("default", "wait-controllers")...)
	if first {
		s.startCloud(ctx, proxy, free[0])
	}
	return management{proxy: proxy, kubeconfig: fromInside(ctx, proxy, provider.GetKubeconfigPath()), config: config}
}

// startCloud runs the simulated cloud as Pods of the cluster. This process reaches it at the port.
func (s *stage) startCloud(ctx context.Context, proxy framework.ClusterProxy, port int) {
	s.token = rand.Text()
	s.cloud = simulator.Admin{URL: fmt.Sprintf("http://127.0.0.1:%d", port), Token: rand.Text()}
	manifest, err := os.ReadFile("../../config/simulated-cloud.yaml")
	Expect(err).NotTo(HaveOccurred())
	filled := strings.NewReplacer("ADMIN_TOKEN", s.cloud.Token, "TOKEN", s.token, "IMAGE", image).Replace(string(manifest))
	Expect(proxy.CreateOrUpdate(ctx, []byte(filled))).To(Succeed())
	Eventually(func() error { _, err := s.cloud.Snapshot(ctx); return err },
		s.settings.GetIntervals("default", "wait-controllers")...).Should(Succeed())
}

// fromOutside returns clusterctl's configuration for a cluster that does not run the cloud. It
// finds the cloud by the node of the cluster that does.
func (s *stage) fromOutside(ctx context.Context) string {
	text, err := os.ReadFile(s.config)
	Expect(err).NotTo(HaveOccurred())
	cloud := "http://" + net.JoinHostPort(nodeAddress(ctx, s.proxy), strconv.Itoa(cloudNodePort))
	config := filepath.Join(filepath.Dir(s.config), "clusterctl-outside.yaml")
	Expect(os.WriteFile(config, bytes.ReplaceAll(text, []byte(cloudInCluster), []byte(cloud)), 0o600)).To(Succeed())
	return config
}

// nodeAddress returns the address of the cluster's control plane node.
func nodeAddress(ctx context.Context, proxy framework.ClusterProxy) string {
	nodes := &corev1.NodeList{}
	Expect(proxy.GetClient().List(ctx, nodes, client.HasLabels{"node-role.kubernetes.io/control-plane"})).To(Succeed())
	Expect(nodes.Items).To(HaveLen(1))
	for _, address := range nodes.Items[0].Status.Addresses {
		if address.Type == corev1.NodeInternalIP {
			return address.Address
		}
	}
	Fail("the node of " + proxy.GetName() + " has no address")
	return ""
}

// fromInside returns the kubeconfig with an address of the API server that Pods can reach too.
func fromInside(ctx context.Context, proxy framework.ClusterProxy, kubeconfig string) []byte {
	config, err := clientcmd.LoadFromFile(kubeconfig)
	Expect(err).NotTo(HaveOccurred())
	for _, cluster := range config.Clusters {
		cluster.Server = "https://" + net.JoinHostPort(nodeAddress(ctx, proxy), "6443")
	}
	text, err := clientcmd.Write(*config)
	Expect(err).NotTo(HaveOccurred())
	return text
}
