// SPDX-License-Identifier: Apache-2.0

package kubevirt_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	kubevirtv1 "kubevirt.io/api/core/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/simulated/simulator/body"
	"github.com/drover-io/drover/internal/test/playground"
	"github.com/drover-io/drover/test/internal/scenario"
	"github.com/drover-io/drover/test/internal/virt"
)

// TestMachineDeployment tests a pool of KubeVirt VMs with Cluster API and Drover's manager. The
// guests read their Secrets and become Ready Nodes. A VM that a tenant deletes is replaced, and so
// is a VM whose node is drained. In the end nothing is left of the pool.
func TestMachineDeployment(t *testing.T) {
	g := NewWithT(t)
	c, kubeconfig := startManagement(t)
	infra.Node.Power.Store(virt.Bodies(body.NewFleet(t.Context(), body.Options{LeaseInterval: metav1.Duration{Duration: 2 * time.Second}})))
	t.Cleanup(func() { infra.Node.Power.Store(nil) })

	cluster := scenario.Adopted{Namespace: "team-a", Name: "blue", Kubeconfig: kubeconfig}
	pool := scenario.Pool{Cluster: cluster, Name: "blue-md-0", Replicas: 3}
	g.Expect(scenario.Create(t.Context(), c, append(onKubeVirt(cluster.Objects()), onKubeVirt(pool.Objects())...)...)).To(Succeed())
	g.Expect(scenario.Create(t.Context(), c, pool.HealthCheck(10))).To(Succeed())

	ready := func() (nodes []corev1.Node) {
		all := &corev1.NodeList{}
		g.Expect(c.List(t.Context(), all)).To(Succeed())
		for _, n := range all.Items {
			for _, condition := range n.Status.Conditions {
				if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue {
					nodes = append(nodes, n)
				}
			}
		}
		return nodes
	}
	until(t, "three Nodes are Ready", func() bool { return len(ready()) == 3 && upToDate(t, c, 3) })
	machines := &infrav1.DroverMachineList{}
	g.Expect(c.List(t.Context(), machines)).To(Succeed())
	g.Expect(machines.Items).To(HaveLen(3))
	owned := &infrav1.DroverCluster{}
	g.Expect(c.Get(t.Context(), client.ObjectKey{Namespace: "team-a", Name: "blue"}, owned)).To(Succeed())
	g.Expect(infra.left(t, owned.Spec.Creation.OwnershipID)).To(HaveLen(9), "three VMs, each with its instance and its Secret")
	for _, n := range ready() {
		g.Expect(n.Spec.ProviderID).To(HavePrefix("kubevirt://"))
	}

	replaced := func(lost string) func() bool {
		return func() bool {
			now := &infrav1.DroverMachineList{}
			g.Expect(c.List(t.Context(), now)).To(Succeed())
			for _, m := range now.Items {
				if strings.HasSuffix(m.Spec.ProviderID, lost) {
					return false
				}
			}
			return len(now.Items) == 3 && len(ready()) == 3 && upToDate(t, c, 3)
		}
	}
	lost := strings.TrimPrefix(machines.Items[0].Spec.ProviderID, "kubevirt://")
	g.Expect(infra.Admin.Delete(t.Context(), &kubevirtv1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: namespace,
		Name: lost}})).To(Succeed())
	until(t, "the machine whose VM was deleted is replaced", replaced(lost))
	g.Expect(infra.left(t, owned.Spec.Creation.OwnershipID)).To(HaveLen(9))

	drained := strings.TrimPrefix(machines.Items[1].Spec.ProviderID, "kubevirt://")
	infra.evict(t, drained)
	until(t, "the machine whose VM was to be evicted has given way", replaced(drained))
	g.Expect(infra.left(t, owned.Spec.Creation.OwnershipID)).To(HaveLen(9))

	g.Expect(pool.Scale(t.Context(), c, 0)).To(Succeed())
	until(t, "no machine is left", func() bool {
		now := &infrav1.DroverMachineList{}
		g.Expect(c.List(t.Context(), now)).To(Succeed())
		return len(now.Items) == 0
	})
	g.Expect(infra.left(t, owned.Spec.Creation.OwnershipID)).To(BeEmpty())
}

// startManagement starts Cluster API and Drover, and returns a client and a kubeconfig of their
// API server.
func startManagement(t *testing.T) (client.Client, []byte) {
	t.Helper()
	log.SetLogger(logr.Discard()) // discards the logs of the test's own clients
	g := NewWithT(t)
	management, err := playground.StartManagement(t.Context(), playground.ManagementOptions{
		ControlPlaneOptions: playground.ControlPlaneOptions{Progress: os.Stderr},
	})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = management.Stop() })
	_, err = management.StartDrover(t.Context(), playground.DroverOptions{Args: []string{"--leader-elect=false", "--cloud-call-timeout=10s"}})
	g.Expect(err).NotTo(HaveOccurred())
	c, err := scenario.NewClient(management.AdminConfig())
	g.Expect(err).NotTo(HaveOccurred())
	kubeconfig, err := management.Kubeconfig("owner", "system:masters")
	g.Expect(err).NotTo(HaveOccurred())
	return c, kubeconfig
}

// upToDate reports whether Cluster API counts n machines of the pool as available.
func upToDate(t *testing.T, c client.Client, n int32) bool {
	md := &clusterv1.MachineDeployment{}
	NewWithT(t).Expect(c.Get(t.Context(), client.ObjectKey{Namespace: "team-a", Name: "blue-md-0"}, md)).To(Succeed())
	return ptr.Deref(md.Status.AvailableReplicas, 0) == n && ptr.Deref(md.Status.Replicas, 0) == n
}

// onKubeVirt changes objects for the simulated cloud into objects for KubeVirt.
func onKubeVirt(objects []client.Object) []client.Object {
	for _, o := range objects {
		switch o := o.(type) {
		case *corev1.Secret:
			if _, ok := o.Data["token"]; ok {
				scenario.FillCredentials(o, "kubevirt", credentials())
			}
		case *infrav1.DroverAccount:
			o.Spec.Cloud.Simulated, o.Spec.Cloud.KubeVirt = nil, account().Cloud.KubeVirt
			o.Spec.Inventory = infrav1.InventorySpec{IdleSeconds: 1, ActiveSeconds: 1}
		case *infrav1.DroverMachineTemplate:
			ref := o.Spec.Template.Spec.AccountRef
			o.Spec.Template.Spec = *machine(func(m *infrav1.KubeVirtMachine) { m.EvictionStrategy = "External" })
			o.Spec.Template.Spec.AccountRef = ref
		}
	}
	return objects
}
