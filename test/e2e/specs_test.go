// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"slices"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/test/e2e"
	"sigs.k8s.io/cluster-api/test/framework"
	"sigs.k8s.io/cluster-api/test/framework/clusterctl"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// waiters wait for an adopted control plane, which has no machines.
var waiters = clusterctl.ControlPlaneWaiters{
	WaitForControlPlaneInitialized: func(ctx context.Context, input clusterctl.ApplyCustomClusterTemplateAndWaitInput,
		result *clusterctl.ApplyCustomClusterTemplateAndWaitResult) {
		Eventually(func(g Gomega) {
			cluster := &clusterv1.Cluster{}
			g.Expect(input.ClusterProxy.GetClient().Get(ctx, client.ObjectKeyFromObject(result.Cluster), cluster)).To(Succeed())
			g.Expect(ptr.Deref(cluster.Status.Initialization.ControlPlaneInitialized, false)).To(BeTrue())
		}, input.WaitForControlPlaneIntervals...).Should(Succeed())
	},
	WaitForControlPlaneMachinesReady: func(context.Context, clusterctl.ApplyCustomClusterTemplateAndWaitInput,
		*clusterctl.ApplyCustomClusterTemplateAndWaitResult) {
	},
}

var _ = Describe("A cluster", func() {
	for _, flavor := range []string{"adopted", "topology"} {
		Context("of the flavor "+flavor, func() {
			e2e.QuickStartSpec(context.Background(), func() e2e.QuickStartSpecInput {
				return e2e.QuickStartSpecInput{
					E2EConfig: shared.settings, ClusterctlConfigPath: shared.config, BootstrapClusterProxy: shared.proxy, ArtifactFolder: shared.artifacts,
					InfrastructureProvider: ptr.To(infrastructure), Flavor: ptr.To(flavor), WorkerMachineCount: ptr.To[int64](3),
					ControlPlaneWaiters: waiters, PostNamespaceCreated: shared.secrets,
				}
			})
		})
	}
})

var _ = Describe("A MachineDeployment is scaled", func() {
	e2e.MachineDeploymentScaleSpec(context.Background(), func() e2e.MachineDeploymentScaleSpecInput {
		return e2e.MachineDeploymentScaleSpecInput{
			E2EConfig: shared.settings, ClusterctlConfigPath: shared.config, BootstrapClusterProxy: shared.proxy, ArtifactFolder: shared.artifacts,
			InfrastructureProvider: ptr.To(infrastructure), Flavor: "adopted", ControlPlaneWaiters: waiters, PostNamespaceCreated: shared.secrets,
		}
	})
})

var _ = Describe("A MachineDeployment heals", func() {
	e2e.MachineDeploymentRemediationSpec(context.Background(), func() e2e.MachineDeploymentRemediationSpecInput {
		return e2e.MachineDeploymentRemediationSpecInput{
			E2EConfig: shared.settings, ClusterctlConfigPath: shared.config, BootstrapClusterProxy: shared.proxy, ArtifactFolder: shared.artifacts,
			InfrastructureProvider: ptr.To(infrastructure), ControlPlaneWaiters: waiters, PostNamespaceCreated: shared.secrets,
		}
	})
})

// of returns a filter for objects of the given kinds.
func of(kinds ...string) func(corev1.ObjectReference, []metav1.OwnerReference) bool {
	return func(o corev1.ObjectReference, _ []metav1.OwnerReference) bool {
		return slices.Contains(kinds, o.Kind)
	}
}

var _ = Describe("A cluster goes in order", func() {
	e2e.ClusterDeletionSpec(context.Background(), func() e2e.ClusterDeletionSpecInput {
		return e2e.ClusterDeletionSpecInput{
			E2EConfig: shared.settings, ClusterctlConfigPath: shared.config, BootstrapClusterProxy: shared.proxy, ArtifactFolder: shared.artifacts,
			InfrastructureProvider: ptr.To(infrastructure), Flavor: ptr.To("topology"), ControlPlaneWaiters: waiters,
			PostNamespaceCreated: shared.secrets,
			ClusterDeletionPhases: []e2e.ClusterDeletionPhase{
				{ObjectFilter: of("MachineDeployment", "MachineSet", "Machine"), BlockingObjectFilter: of("Machine")},
				{ObjectFilter: of("AdoptedControlPlane"), BlockingObjectFilter: of("AdoptedControlPlane")},
				{ObjectFilter: of("DroverCluster"), BlockingObjectFilter: of("DroverCluster")},
			},
		}
	})
})

var _ = Describe("Many clusters", Ordered, func() {
	const clusters, machines = 10, 10
	Context("are made at once", func() {
		// The waits of the spec itself expect control plane machines, so they are skipped.
		e2e.ScaleSpec(context.Background(), func() e2e.ScaleSpecInput {
			return e2e.ScaleSpecInput{
				E2EConfig: shared.settings, ClusterctlConfigPath: shared.config, BootstrapClusterProxy: shared.proxy, ArtifactFolder: shared.artifacts,
				InfrastructureProvider: ptr.To(infrastructure), Flavor: ptr.To("topology"), PostNamespaceCreated: shared.secrets,
				ClusterCount: ptr.To[int64](clusters), WorkerPerMachineDeploymentCount: ptr.To[int64](machines),
				SkipWaitForCreation: true, SkipUpgrade: true, SkipCleanup: true,
			}
		})
	})

	It("have all their machines, and go", func(ctx SpecContext) {
		const namespace = "scale" // the namespace of ScaleSpec
		c := shared.proxy.GetClient()
		Eventually(func(g Gomega) {
			list := &clusterv1.MachineList{}
			g.Expect(c.List(ctx, list, client.InNamespace(namespace))).To(Succeed())
			var waiting []string
			for i := range list.Items {
				if m := &list.Items[i]; m.Status.Phase != string(clusterv1.MachinePhaseRunning) {
					waiting = append(waiting, fmt.Sprintf("%s is %s: %s", m.Name, m.Status.Phase, conditions.GetMessage(m, clusterv1.ReadyCondition)))
				}
			}
			g.Expect(waiting).To(BeEmpty(), "%d of %d machines wait", len(waiting), len(list.Items))
			g.Expect(list.Items).To(HaveLen(clusters * machines))
		}, "10m", "1s").Should(Succeed())
		// DeleteAllClustersAndWait fails if a cluster is deleted while it describes the clusters.
		Expect(c.DeleteAllOf(ctx, &clusterv1.Cluster{}, client.InNamespace(namespace))).To(Succeed())
		Eventually(func(g Gomega) {
			list := &clusterv1.ClusterList{}
			g.Expect(c.List(ctx, list, client.InNamespace(namespace))).To(Succeed())
			g.Expect(list.Items).To(BeEmpty())
		}, "10m", "1s").Should(Succeed())
		framework.DeleteNamespace(ctx, framework.DeleteNamespaceInput{Deleter: c, Name: namespace})
	})
})
