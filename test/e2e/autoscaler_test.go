// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/test/e2e"
	"sigs.k8s.io/cluster-api/test/framework"

	"github.com/drover-io/drover/internal/test/playground"
	"github.com/drover-io/drover/test/internal/scenario"
)

var _ = Describe("The cluster-autoscaler scales a pool", func() {
	e2e.AutoscalerSpec(context.Background(), func() e2e.AutoscalerSpecInput {
		return e2e.AutoscalerSpecInput{
			E2EConfig: shared.settings, ClusterctlConfigPath: shared.config, BootstrapClusterProxy: shared.proxy, ArtifactFolder: shared.artifacts,
			InfrastructureProvider: ptr.To(infrastructure), ControlPlaneWaiters: waiters, PostNamespaceCreated: shared.readyForAutoscaler,
			InfrastructureMachineTemplateKind: "drovermachinetemplates", AutoscalerVersion: "v1.36.0",
			InstallOnManagementCluster: true,
			// The autoscaler that is available as a Go module can't scale to zero
			// (kubernetes/autoscaler#8538). Its image can.
			ScaleToAndFromZero: *onKind,
		}
	})
})

// autoscaled returns the flavor of a ClusterClass with the changes that the autoscaler's spec
// needs.
func autoscaled(topology string) string {
	return replace(topology, "        replicas: ${WORKER_MACHINE_COUNT}\n", `        metadata:
          annotations:
            `+clusterv1.AutoscalerMinSizeAnnotation+`: "1"
            `+clusterv1.AutoscalerMaxSizeAnnotation+`: "5"
`)
}

// autoscaler returns the manifests from the book, with shorter delays. On kind, the Pod must not
// run on a simulated machine, which runs no Pods. Without kind nothing runs Pods, so a process
// replaces them and the Deployment has no replicas.
func autoscaler(examples string) string {
	var all []string
	for _, name := range []string{"management.yaml", "workload.yaml", "deployment.yaml"} {
		text, err := os.ReadFile(filepath.Join(examples, name))
		Expect(err).NotTo(HaveOccurred())
		all = append(all, string(text))
	}
	changes := []string{"team-a", "${CLUSTER_NAMESPACE}", "clusterName=blue", "clusterName=${CLUSTER_NAME}",
		"image: cluster-autoscaler:v1.36.0", "image: registry.k8s.io/autoscaling/cluster-autoscaler:${AUTOSCALER_VERSION}",
		"        - --cloud-provider=clusterapi\n", "        - --cloud-provider=clusterapi\n        - " +
			strings.Join(playground.AutoscalerHaste, "\n        - ") + "\n",
		"      serviceAccountName: cluster-autoscaler\n      containers:", "      serviceAccountName: cluster-autoscaler\n" +
			"      nodeSelector: {node-role.kubernetes.io/control-plane: \"\"}\n      tolerations: [{operator: Exists}]\n      containers:"}
	if !*onKind {
		changes = append(changes, "replicas: 1", "replicas: 0")
	}
	return strings.NewReplacer(changes...).Replace(strings.Join(all, "\n---\n"))
}

// readyForAutoscaler prepares a namespace for the cluster and the autoscaler's Pod. If nothing runs
// Pods, it starts the autoscaler as a process.
func (s *stage) readyForAutoscaler(proxy framework.ClusterProxy, namespace string) {
	s.secrets(proxy, namespace)
	Expect(scenario.Create(context.Background(), proxy.GetClient(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "cluster-autoscaler-workload"}, Data: map[string][]byte{"value": s.kubeconfig},
	})).To(Succeed())
	if s.processes == nil {
		return
	}
	autoscaler, err := s.processes.StartAutoscaler(context.Background(), playground.AutoscalerOptions{
		Management: s.kubeconfig, Workload: s.kubeconfig, Namespace: namespace, Cluster: "",
	})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(autoscaler.Kill) // it would look for its namespace every second while other specs run
}
