// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"path/filepath"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/test/framework"
	"sigs.k8s.io/cluster-api/test/framework/clusterctl"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// spec is one of Drover's own specs, which replace those of Cluster API that need a
// KubeadmControlPlane. It has a namespace with a cluster in it, and deletes both in the end.
type spec struct {
	*stage
	name      string
	namespace *corev1.Namespace
	clusterctl.ApplyClusterTemplateAndWaitResult
}

func newSpec(name string) *spec {
	s := &spec{stage: shared, name: name}
	BeforeEach(func() {
		ctx := context.Background() // for Events, which are watched until the end
		namespace, cancel := framework.SetupSpecNamespace(ctx, name, s.proxy, s.artifacts, s.secrets)
		s.namespace = namespace
		DeferCleanup(func(ctx context.Context) {
			framework.DumpSpecResourcesAndCleanup(ctx, name, s.proxy, s.config, s.artifacts, namespace, cancel, s.Cluster,
				s.settings.GetIntervals, false)
		})
	})
	return s
}

// apply creates a cluster from the flavor, and waits for its workers.
func (s *spec) apply(ctx context.Context, flavor string, workers int64) {
	clusterctl.ApplyClusterTemplateAndWait(ctx, clusterctl.ApplyClusterTemplateAndWaitInput{
		ClusterProxy: s.proxy,
		ConfigCluster: clusterctl.ConfigClusterInput{
			LogFolder: filepath.Join(s.artifacts, "clusters", s.proxy.GetName()), ClusterctlConfigPath: s.config,
			KubeconfigPath:         s.proxy.GetKubeconfigPath(),
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

// change patches the cluster's pool.
func (s *spec) change(ctx context.Context, c client.Client, how func(*clusterv1.MachineDeployment)) {
	pool := s.MachineDeployments[0]
	Expect(c.Get(ctx, client.ObjectKeyFromObject(pool), pool)).To(Succeed())
	before := pool.DeepCopy()
	how(pool)
	Expect(c.Patch(ctx, pool, client.MergeFrom(before))).To(Succeed())
}

// staysAndGrows checks that the machines stay, adds one, and returns all of them.
func (s *spec) staysAndGrows(ctx context.Context, c client.Client, before map[string]string) map[string]string {
	Consistently(func(g Gomega) { g.Expect(s.nodes(ctx, g, c)).To(Equal(before)) }, "20s", "1s").Should(Succeed())
	n := len(before) + 1
	s.change(ctx, c, func(pool *clusterv1.MachineDeployment) { pool.Spec.Replicas = ptr.To(int32(n)) })
	Eventually(func(g Gomega) { g.Expect(s.nodes(ctx, g, c)).To(HaveLen(n)) }, s.intervals("wait-worker-nodes")...).Should(Succeed())
	after := s.nodes(ctx, Default, c)
	for machine, node := range before {
		Expect(after).To(HaveKeyWithValue(machine, node))
	}
	return after
}

// machines returns the cluster's Machines.
func (s *spec) machines(ctx context.Context, g Gomega, c client.Client) []clusterv1.Machine {
	list := &clusterv1.MachineList{}
	g.Expect(c.List(ctx, list, client.InNamespace(s.namespace.Name))).To(Succeed())
	return list.Items
}

// nodes returns the Node name and provider ID of each running Machine that has a Node.
func (s *spec) nodes(ctx context.Context, g Gomega, c client.Client) map[string]string {
	found := map[string]string{}
	for _, m := range s.machines(ctx, g, c) {
		if m.Status.NodeRef.IsDefined() && m.Status.Phase == string(clusterv1.MachinePhaseRunning) {
			found[m.Name] = m.Status.NodeRef.Name + " " + m.Spec.ProviderID
		}
	}
	return found
}

// available checks that the cluster is available.
func (s *spec) available(ctx context.Context, g Gomega, c client.Client) {
	cluster := &clusterv1.Cluster{}
	g.Expect(c.Get(ctx, client.ObjectKeyFromObject(s.Cluster), cluster)).To(Succeed())
	for _, condition := range cluster.Status.Conditions {
		if condition.Type == clusterv1.ClusterAvailableCondition {
			g.Expect(condition.Status).To(Equal(metav1.ConditionTrue), condition.Message)
			return
		}
	}
	g.Expect(cluster.Status.Conditions).To(ContainElement(HaveField("Type", clusterv1.ClusterAvailableCondition)))
}
