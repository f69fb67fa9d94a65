// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"path/filepath"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/test/framework"
	"sigs.k8s.io/cluster-api/test/framework/clusterctl"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// spec is one of our own, in the shape of Cluster API's, where those want a KubeadmControlPlane: a namespace and a cluster in it, of
// which nothing is left in the end.
type spec struct {
	*stage
	name      string
	namespace *corev1.Namespace
	clusterctl.ApplyClusterTemplateAndWaitResult
}

func newSpec(name string) *spec {
	s := &spec{stage: shared, name: name}
	BeforeEach(func() {
		ctx := context.Background() // of Events, which are followed until the end
		namespace, cancel := framework.SetupSpecNamespace(ctx, name, s.proxy, s.artifacts, s.secrets)
		s.namespace = namespace
		DeferCleanup(func(ctx context.Context) {
			framework.DumpSpecResourcesAndCleanup(ctx, name, s.proxy, s.config, s.artifacts, namespace, cancel, s.Cluster, s.settings.GetIntervals, false)
		})
	})
	return s
}

// apply makes a cluster of the flavour, and waits for its workers.
func (s *spec) apply(ctx context.Context, flavor string, workers int64) {
	clusterctl.ApplyClusterTemplateAndWait(ctx, clusterctl.ApplyClusterTemplateAndWaitInput{
		ClusterProxy: s.proxy,
		ConfigCluster: clusterctl.ConfigClusterInput{
			LogFolder: filepath.Join(s.artifacts, "clusters", s.proxy.GetName()), ClusterctlConfigPath: s.config, KubeconfigPath: s.proxy.GetKubeconfigPath(),
			InfrastructureProvider: infrastructure, Flavor: flavor, Namespace: s.namespace.Name, ClusterName: s.namespace.Name,
			KubernetesVersion: kubernetes, ControlPlaneMachineCount: ptr.To[int64](1), WorkerMachineCount: ptr.To(workers),
		},
		ControlPlaneWaiters:          waiters,
		WaitForClusterIntervals:      s.intervals("wait-cluster"),
		WaitForControlPlaneIntervals: s.intervals("wait-control-plane"),
		WaitForMachineDeployments:    s.intervals("wait-worker-nodes"),
	}, &s.ApplyClusterTemplateAndWaitResult)
}

func (s *spec) intervals(key string) []any { return s.settings.GetIntervals(s.name, key) }

// change changes the cluster's pool.
func (s *spec) change(ctx context.Context, c client.Client, how func(*clusterv1.MachineDeployment)) {
	pool := s.MachineDeployments[0]
	Expect(c.Get(ctx, client.ObjectKeyFromObject(pool), pool)).To(Succeed())
	before := pool.DeepCopy()
	how(pool)
	Expect(c.Patch(ctx, pool, client.MergeFrom(before))).To(Succeed())
}

// machines are the cluster's.
func (s *spec) machines(ctx context.Context, g Gomega, c client.Client) []clusterv1.Machine {
	list := &clusterv1.MachineList{}
	g.Expect(c.List(ctx, list, client.InNamespace(s.namespace.Name))).To(Succeed())
	return list.Items
}
