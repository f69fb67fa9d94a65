// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"fmt"
	"os"
	"testing"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	kubeadmv1 "sigs.k8s.io/cluster-api/api/bootstrap/kubeadm/v1beta2"
	controlplanev1 "sigs.k8s.io/cluster-api/api/controlplane/kubeadm/v1beta2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/simulated/simulator/body"
	"github.com/drover-io/drover/internal/test/playground"
	"github.com/drover-io/drover/test/internal/scenario"
	"github.com/drover-io/drover/test/internal/whole"
)

// components are the static Pods of a control plane, and the programs in their images.
var components = []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"}

// longPatience is how long a guest may take to become a control plane.
const longPatience = 2 * patience

// TestControlPlane makes a cluster of one control-plane machine from the flavor kubeadm, in a
// guest: Cluster API's kubeadm providers write its user data, the real kubeadm initializes it, and
// the real kubelet and containerd run the control plane's programs. The guest and the controllers
// reach the API server through the simulated cloud's load balancer. Then it deletes the cluster.
func TestControlPlane(t *testing.T) {
	g := NewWithT(t)
	ctrl.SetLogger(logr.Discard())
	h := newHypervisor(t)
	h.image, h.network = "prebuilt", "10.0.0.0/9" // the stage's networks are in it
	m := newMirror(t, h.images, components...)
	binary, err := playground.Build(t.Context(), false)
	g.Expect(err).NotTo(HaveOccurred())
	s, err := whole.Start(t.Context(), whole.Options{Dir: t.TempDir(), Progress: os.Stderr, Binary: binary, Dress: m.dress})
	t.Cleanup(func() { g.Expect(s.Stop()).To(Succeed()) })
	g.Expect(err).NotTo(HaveOccurred())
	h.start(t, s.Admin)
	until := func(what string, check scenario.Check) {
		t.Helper()
		took, err := scenario.Wait(t.Context(), longPatience, check)
		if err != nil {
			h.show(t)
		}
		g.Expect(err).NotTo(HaveOccurred(), "waiting until %s", what)
		t.Logf("%5.1fs until %s", took.Seconds(), what)
	}

	g.Expect(s.Create(t.Context(), "cluster-template-kubeadm.yaml", whole.Name, 1, 0)).To(Succeed())
	until("the control plane is initialized", s.Initialized)
	until("the control plane is healthy", s.Healthy(1))
	isControlPlane(t, s)
	g.Expect(scenario.Delete(t.Context(), s.Client, s.Cluster())).To(Succeed())
	until("nothing is left", s.Gone)
	g.Expect(h.guests).To(HaveLen(1))
	for _, guest := range h.guests {
		g.Eventually(guest.Done(), "1m").Should(BeClosed(), "the guest still runs")
	}
}

// dress changes the flavor to what the guests of this site need: a control plane with the mirror, a
// network for Pods, keys that cost little, and time, and health checks that replace no guest
// because it is slow. The addons would need more images.
func (m *mirror) dress(o *unstructured.Unstructured) error {
	if o.GetKind() == "MachineHealthCheck" {
		return unstructured.SetNestedField(o.Object, map[string]any{"nodeStartupTimeoutSeconds": int64(0)}, "spec", "checks")
	}
	if o.GetKind() != "KubeadmControlPlane" {
		return nil
	}
	kcp := &controlplanev1.KubeadmControlPlane{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, kcp); err != nil {
		return err
	}
	// A handshake with RSA takes an interpreted guest so long that Kubernetes' programs give up.
	kcp.Spec.KubeadmConfigSpec.ClusterConfiguration.EncryptionAlgorithm = kubeadmv1.EncryptionAlgorithmECDSAP256
	spec, init := &kcp.Spec.KubeadmConfigSpec, &kcp.Spec.KubeadmConfigSpec.InitConfiguration
	spec.Files = []kubeadmv1.File{
		{Path: "/etc/cni/net.d/10-pods.conflist", Content: cniConfig},
		{Path: "/etc/containerd/certs.d/registry.k8s.io/hosts.toml", Content: fmt.Sprintf("server = %q\n", m.forGuests())},
	}
	const kubeadm = "/usr/bin/kubeadm"
	spec.PreKubeadmCommands = []string{
		fmt.Sprintf("curl -fsS -o %s %s/dl.k8s.io/release/%s/bin/linux/amd64/kubeadm", kubeadm, m.forGuests(), kcp.Spec.Version),
		"chmod 755 " + kubeadm,
	}
	init.SkipPhases = []string{"addon/kube-proxy", "addon/coredns"}
	init.NodeRegistration.IgnorePreflightErrors = []string{"ImagePull", "SystemVerification"} // the addons' images are missing
	seconds := ptr.To(int32(longPatience.Seconds()))
	init.Timeouts = kubeadmv1.Timeouts{
		ControlPlaneComponentHealthCheckSeconds: seconds, KubeletHealthCheckSeconds: seconds,
		KubernetesAPICallSeconds: seconds, EtcdAPICallSeconds: seconds,
	}
	spec.JoinConfiguration.Timeouts = init.Timeouts // they must be the same
	var err error
	o.Object, err = runtime.DefaultUnstructuredConverter.ToUnstructured(kcp)
	return err
}

// isControlPlane checks the only machine: its Node, the Pods on it, and what Drover says of it.
func isControlPlane(t *testing.T, s *whole.Stage) {
	t.Helper()
	g := NewWithT(t)
	machines, err := s.Machines(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(machines).To(HaveLen(1))
	machine := &machines[0]
	vm := &infrav1.DroverMachine{}
	g.Expect(s.Client.Get(t.Context(), client.ObjectKey{Namespace: machine.Namespace, Name: machine.Spec.InfrastructureRef.Name},
		vm)).To(Succeed())
	g.Expect(conditions.IsTrue(vm, clusterv1.ReadyCondition)).To(BeTrue(), scenario.Message(vm, clusterv1.ReadyCondition))

	config, err := s.Config(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	workload, err := scenario.NewClient(config)
	g.Expect(err).NotTo(HaveOccurred())
	nodes, pods := &corev1.NodeList{}, &corev1.PodList{}
	g.Expect(workload.List(t.Context(), nodes)).To(Succeed())
	g.Expect(nodes.Items).To(HaveLen(1))
	node := &nodes.Items[0]
	g.Expect(node.Name).To(Equal(machine.Status.NodeRef.Name))
	g.Expect(node.Labels).To(HaveKey("node-role.kubernetes.io/control-plane"))
	g.Expect(node.Spec.ProviderID).To(Equal(vm.Spec.ProviderID))
	g.Expect(firstWriter(node, "f:providerID")).To(Equal("kubelet"))
	g.Expect(node.Status.NodeInfo.KubeletVersion).To(Equal(body.DefaultKubeletVersion))
	g.Expect(node.Status.NodeInfo.OSImage).To(HavePrefix("Debian GNU/Linux 12"))
	g.Expect(node.Status.NodeInfo.ContainerRuntimeVersion).To(HavePrefix("containerd://"))

	g.Expect(workload.List(t.Context(), pods, client.InNamespace(metav1.NamespaceSystem))).To(Succeed())
	var running []string
	for _, pod := range pods.Items {
		g.Expect(pod.Annotations).To(HaveKey(corev1.MirrorPodAnnotationKey))
		g.Expect(pod.Status.ContainerStatuses).To(HaveLen(1))
		status := pod.Status.ContainerStatuses[0]
		g.Expect(status.ContainerID).To(HavePrefix("containerd://"))
		g.Expect(status.State.Running).NotTo(BeNil(), "%s: %+v", pod.Name, status.State)
		component := pod.Labels["component"]
		g.Expect(status.Image).To(HavePrefix("registry.k8s.io/" + component + ":"))
		running = append(running, component)
	}
	g.Expect(running).To(ConsistOf(components))
}
