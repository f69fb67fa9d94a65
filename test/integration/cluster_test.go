// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	controlplanev1 "github.com/drover-io/drover/api/controlplane/v1beta1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
)

// TestCluster tests that a cluster gets its ownership ID once, the zones of its accounts, and the
// endpoint of its control plane.
func TestCluster(t *testing.T) {
	s := newTenant(t)
	infra, cluster := s.DroverCluster(), s.Cluster()
	s.create(s.kubeconfigSecret(s.Kubeconfig), s.credentials(), s.Account(), infra, s.ControlPlane(), cluster)
	s.says(infra, clusterv1.ReadyCondition, infrav1.ReadyReason, "")

	id := infra.Spec.Creation.OwnershipID
	s.Expect(id).To(MatchRegexp(`^[a-z0-9]{26}$`))
	s.Expect(infra.Status.Initialization.Provisioned).To(Equal(ptr.To(true)))
	s.Expect(conditions.IsFalse(infra, clusterv1.PausedCondition)).To(BeTrue())
	var zones []string
	for _, domain := range infra.Status.FailureDomains {
		zones = append(zones, domain.Name)
		s.Expect(domain.ControlPlane).To(Equal(ptr.To(true)))
	}
	s.Expect(zones).To(Equal([]string{"sim-1a", "sim-1b", "sim-1c"}))

	s.Eventually(func(g Gomega) {
		g.Expect(env.client.Get(s.ctx, client.ObjectKeyFromObject(cluster), cluster)).To(Succeed())
		g.Expect(env.client.Get(s.ctx, client.ObjectKeyFromObject(infra), infra)).To(Succeed())
		g.Expect(conditions.IsTrue(cluster, clusterv1.ClusterInfrastructureReadyCondition)).To(BeTrue())
		g.Expect(conditions.IsTrue(cluster, clusterv1.AvailableCondition)).To(BeTrue(),
			conditions.GetMessage(cluster, clusterv1.AvailableCondition))
		g.Expect(cluster.Status.FailureDomains).To(HaveLen(3))
		g.Expect(cluster.Spec.ControlPlaneEndpoint.IsValid()).To(BeTrue())
		g.Expect(infra.Spec.ControlPlaneEndpoint).To(Equal(cluster.Spec.ControlPlaneEndpoint))
	}).Should(Succeed())

	for _, other := range []string{"somebody-else", ""} {
		s.refusesChange(infra, func() { infra.Spec.Creation.OwnershipID = other }, "ownershipID is set once")
	}
	s.atRest(infra, 3*time.Second)
	s.Expect(infra.Spec.Creation.OwnershipID).To(Equal(id))

	// "clusterctl move" keeps the spec, drops the status and changes the UID.
	s.Expect(env.client.Delete(s.ctx, cluster)).To(Succeed())
	s.isGone(cluster)
	moved := s.DroverCluster()
	moved.Spec.Creation.OwnershipID = id
	s.create(moved, s.ControlPlane(), s.Cluster())
	s.says(moved, clusterv1.ReadyCondition, infrav1.ReadyReason, "")
	s.Expect(moved.Spec.Creation.OwnershipID).To(Equal(id))
	s.Expect(moved.Status.FailureDomains).To(HaveLen(3))
}

// TestClusterWaitsForAccount tests that a cluster waits for the zones of its accounts. A later
// problem with an account is reported and stops nothing.
func TestClusterWaitsForAccount(t *testing.T) {
	s := newTenant(t)
	infra := s.DroverCluster()
	s.create(infra)
	s.says(infra, clusterv1.ReadyCondition, infrav1.WaitingForOwnerReason, "infrastructureRef")
	s.Expect(infra.Spec.Creation.OwnershipID).To(BeEmpty())
	s.create(s.kubeconfigSecret(s.Kubeconfig), s.ControlPlane(), s.Cluster())
	s.says(infra, clusterv1.ReadyCondition, infrav1.WaitingForAccountReason, `Waiting for DroverAccount "prod" to exist`)
	s.Expect(infra.Status.Initialization.Provisioned).To(BeNil())
	s.Expect(infra.Spec.Creation.OwnershipID).NotTo(BeEmpty())

	account := s.Account()
	s.create(s.credentials(), account)
	s.says(infra, clusterv1.ReadyCondition, infrav1.ReadyReason, "")
	s.Expect(infra.Status.Initialization.Provisioned).To(Equal(ptr.To(true)))

	update(s, account, func(a *infrav1.DroverAccount) { a.Spec.CredentialsRef.Name = "nothing" })
	s.says(infra, clusterv1.ReadyCondition, infrav1.ReadyReason, `"prod" is not ready`)
	s.Expect(conditions.IsTrue(infra, clusterv1.ReadyCondition)).To(BeTrue())
	s.Expect(infra.Status.Initialization.Provisioned).To(Equal(ptr.To(true)))
	s.Expect(infra.Status.FailureDomains).To(HaveLen(3))
}

// TestClusterWaitsForAdoption tests that the infrastructure waits for the kubeconfig. Cluster API
// connects to the workload cluster once its infrastructure is provisioned. If there is no
// kubeconfig then, it retries only after half a minute.
func TestClusterWaitsForAdoption(t *testing.T) {
	s := newTenant(t)
	infra, cluster := s.DroverCluster(), s.Cluster()
	s.create(s.credentials(), s.Account(), infra, s.ControlPlane(), cluster)
	s.says(infra, clusterv1.ReadyCondition, infrav1.WaitingForAPIServerReason, `AdoptedControlPlane "prod"`)
	s.Eventually(func() []clusterv1.FailureDomain { return read(s, infra).Status.FailureDomains }).Should(HaveLen(3))
	s.Expect(infra.Status.Initialization.Provisioned).To(BeNil())
	s.Expect(infra.Spec.Creation.OwnershipID).NotTo(BeEmpty())

	s.create(s.kubeconfigSecret(s.Kubeconfig))
	s.says(infra, clusterv1.ReadyCondition, infrav1.ReadyReason, "")
	s.Expect(infra.Status.Initialization.Provisioned).To(Equal(ptr.To(true)))
	var probed *metav1.Condition
	s.Eventually(func() bool {
		probed = conditions.Get(read(s, cluster), clusterv1.ClusterRemoteConnectionProbeCondition)
		return probed != nil && probed.Status == metav1.ConditionTrue
	}).Should(BeTrue())
	ready := conditions.Get(infra, clusterv1.ReadyCondition).LastTransitionTime
	s.t.Logf("Cluster API was connected %s after the infrastructure was ready", probed.LastTransitionTime.Sub(ready.Time))
}

// TestClusterSeesOwnNamespaceOnly tests that a cluster can't use an account of another namespace.
func TestClusterSeesOwnNamespaceOnly(t *testing.T) {
	s := newTenant(t)
	s.create(s.credentials(), s.Account())
	t.Run("other", func(t *testing.T) {
		other := newTenant(t)
		infra := other.DroverCluster()
		other.create(infra, other.kubeconfigSecret(other.Kubeconfig), other.ControlPlane(), other.Cluster())
		other.says(infra, clusterv1.ReadyCondition, infrav1.WaitingForAccountReason, "to exist in this namespace")
	})
}

// TestClusterManagedByOthers tests that Drover does not touch a cluster that is managed externally:
// it adds no finalizer, condition or field.
func TestClusterManagedByOthers(t *testing.T) {
	s := newTenant(t)
	infra := s.DroverCluster()
	infra.Annotations = map[string]string{clusterv1.ManagedByAnnotation: "somebody"}
	s.create(infra, s.kubeconfigSecret(s.Kubeconfig), s.ControlPlane(), s.Cluster())
	adopted := s.ControlPlane()
	s.Eventually(func() *bool { return read(s, adopted).Status.Initialization.ControlPlaneInitialized }).ShouldNot(BeNil())
	s.atRest(infra, 2*time.Second)
	s.Expect(infra.Finalizers).To(BeEmpty())
	s.Expect(infra.Spec.Creation.OwnershipID).To(BeEmpty())
	s.Expect(infra.Status).To(BeZero())

	// When the cluster is handed over later, Drover removes its finalizer.
	update(s, infra, func(i *infrav1.DroverCluster) { delete(i.Annotations, clusterv1.ManagedByAnnotation) })
	s.Eventually(func() []string { return read(s, infra).Finalizers }).Should(ConsistOf(infrav1.ClusterFinalizer))
	update(s, infra, func(i *infrav1.DroverCluster) {
		i.Annotations = map[string]string{clusterv1.ManagedByAnnotation: "somebody"}
	})
	s.Eventually(func() []string { return read(s, infra).Finalizers }).Should(BeEmpty())
}

func TestClusterPaused(t *testing.T) {
	s := newTenant(t)
	infra, cluster := s.DroverCluster(), s.Cluster()
	cluster.Spec.Paused = ptr.To(true)
	infra.OwnerReferences = nil
	s.create(s.kubeconfigSecret(s.Kubeconfig), s.credentials(), s.Account(), infra, s.ControlPlane())
	s.says(infra, clusterv1.ReadyCondition, infrav1.WaitingForOwnerReason, "")
	update(s, infra, func(i *infrav1.DroverCluster) { i.Annotations = map[string]string{clusterv1.PausedAnnotation: ""} })
	s.says(infra, clusterv1.PausedCondition, clusterv1.PausedReason, "annotation")
	s.create(cluster)
	update(s, cluster, func(c *clusterv1.Cluster) { c.Spec.Paused = nil }) // so that Cluster API links the parts
	s.Eventually(func() int { return len(read(s, infra).OwnerReferences) }).Should(Equal(1))
	s.Consistently(func() string { return read(s, infra).Spec.Creation.OwnershipID }, 2*time.Second).Should(BeEmpty())

	update(s, cluster, func(c *clusterv1.Cluster) { c.Spec.Paused = ptr.To(true) })
	s.says(infra, clusterv1.PausedCondition, clusterv1.PausedReason,
		"Cluster spec.paused is set to true, the object has") // before the annotation is removed
	update(s, infra, func(i *infrav1.DroverCluster) { i.Annotations = nil })
	s.Eventually(func() string {
		return conditions.GetMessage(read(s, infra),
			clusterv1.PausedCondition)
	}).Should(Equal("Cluster spec.paused is set to true"))
	s.says(infra, clusterv1.PausedCondition, clusterv1.PausedReason, "Cluster spec.paused")
	s.Expect(infra.Spec.Creation.OwnershipID).To(BeEmpty())

	update(s, cluster, func(c *clusterv1.Cluster) { c.Spec.Paused = nil })
	s.says(infra, clusterv1.PausedCondition, clusterv1.NotPausedReason, "")
	s.says(infra, clusterv1.ReadyCondition, infrav1.ReadyReason, "")
}

// TestClusterIsKeptForItsMachines tests that the ownership ID outlives the machines that need it
// for deletion, even when a whole namespace is deleted.
func TestClusterIsKeptForItsMachines(t *testing.T) {
	s := newTenant(t)
	infra := s.DroverCluster()
	s.create(s.kubeconfigSecret(s.Kubeconfig), s.credentials(), s.Account(), infra, s.ControlPlane(), s.Cluster())
	s.says(infra, clusterv1.ReadyCondition, infrav1.ReadyReason, "")
	machine := &infrav1.DroverMachine{ObjectMeta: s.meta("m"),
		Spec: infrav1.DroverMachineSpec{DroverMachineFields: infrav1.DroverMachineFields{
			AccountRef: infrav1.LocalReference{Name: "prod"}, Cloud: infrav1.MachineCloud{Simulated: &infrav1.SimulatedMachine{}},
		}}}
	machine.Labels = map[string]string{clusterv1.ClusterNameLabel: "prod"}
	s.create(machine)
	s.Expect(env.client.Delete(s.ctx, infra)).To(Succeed())
	s.says(infra, clusterv1.ReadyCondition, infrav1.InUseReason, "Waiting for 1 DroverMachines")
	s.Expect(env.client.Delete(s.ctx, machine)).To(Succeed())
	s.isGone(infra)
}

// TestClusterOddEndpoint tests that a cluster gets its ownership ID even with an endpoint that only
// the Cluster's validation accepts.
func TestClusterOddEndpoint(t *testing.T) {
	s := newTenant(t)
	infra, cluster := s.DroverCluster(), s.Cluster()
	infra.Spec.AccountRefs = nil
	cluster.Spec.ControlPlaneEndpoint = clusterv1.APIEndpoint{Host: "a_b", Port: 443}
	s.create(s.kubeconfigSecret(s.Kubeconfig), infra, s.ControlPlane(), cluster)
	s.says(infra, clusterv1.ReadyCondition, infrav1.ReadyReason, "")
	s.Expect(infra.Spec.Creation.OwnershipID).NotTo(BeEmpty())
	s.says(s.ControlPlane(), clusterv1.AvailableCondition, controlplanev1.EndpointMismatchReason, "the Cluster's is a_b:443")
}
