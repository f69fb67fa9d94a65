// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/test/framework"
	"sigs.k8s.io/cluster-api/util/conditions"
)

// This covers NodeDrainTimeoutSpec, with workers.
var _ = Describe("A node is drained", func() {
	const owner = "owner.node.cluster.x-k8s.io"
	s := newSpec("node-drain")

	It("unless a PodDisruptionBudget forbids it, and then until the timeout", func(ctx SpecContext) {
		s.apply(ctx, "adopted", 2)
		c, pool := s.proxy.GetClient(), s.MachineDeployments[0]
		s.change(ctx, c, func(pool *clusterv1.MachineDeployment) {
			if pool.Spec.Template.Labels == nil {
				pool.Spec.Template.Labels = map[string]string{}
			}
			pool.Spec.Template.Labels[owner] = pool.Name
			pool.Spec.Template.Spec.Deletion.NodeDrainTimeoutSeconds = ptr.To[int32](0) // unlimited
		})
		workload := s.proxy.GetWorkloadCluster(ctx, s.namespace.Name, s.Cluster.Name)
		pods := framework.DeployPodAndWaitInput{
			WorkloadClusterProxy: workload, MachineDeployment: pool, DeploymentName: "unevictable", Namespace: "unevictable-workload",
			NodeSelector: map[string]string{owner: pool.Name}, ModifyDeployment: func(*appsv1.Deployment) {},
			WaitForDeploymentAvailableInterval: s.intervals("wait-worker-nodes"),
		}
		framework.DeployUnevictablePod(ctx, pods)
		DeferCleanup(func(ctx context.Context) {
			framework.DeleteNamespace(ctx, framework.DeleteNamespaceInput{Deleter: workload.GetClient(), Name: pods.Namespace})
		})

		s.change(ctx, c, func(pool *clusterv1.MachineDeployment) { pool.Spec.Replicas = ptr.To[int32](0) })
		blocked := func(g Gomega) {
			machines := s.machines(ctx, g, c)
			g.Expect(machines).To(HaveLen(2))
			for i := range machines {
				deleting := conditions.Get(&machines[i], clusterv1.MachineDeletingCondition)
				g.Expect(deleting).NotTo(BeNil())
				g.Expect(deleting.Reason).To(Equal(clusterv1.MachineDeletingDrainingNodeReason))
				g.Expect(deleting.Message).To(ContainSubstring("disruption budget"))
			}
		}
		Eventually(blocked, "1m", "500ms").Should(Succeed())
		Consistently(blocked, "5s", "500ms").Should(Succeed())

		s.change(ctx, c, func(pool *clusterv1.MachineDeployment) {
			pool.Spec.Template.Spec.Deletion.NodeDrainTimeoutSeconds = ptr.To[int32](1)
		})
		Eventually(func(g Gomega) { g.Expect(s.machines(ctx, g, c)).To(BeEmpty()) }, s.intervals("wait-delete-cluster")...).Should(Succeed())
	})
})
