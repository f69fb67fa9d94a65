// SPDX-License-Identifier: Apache-2.0

package kubevirt_test

import (
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-io/drover/test/internal/virt"
)

// kubelet answers the API server's requests to node-1's kubelet until the test ends.
func (c *cluster) kubelet(t testing.TB, answer http.HandlerFunc) {
	t.Helper()
	g := NewWithT(t)
	server := httptest.NewTLSServer(answer)
	t.Cleanup(server.Close)
	node := &corev1.Node{}
	g.Expect(c.Admin.Get(t.Context(), client.ObjectKey{Name: virt.NodeName}, node)).To(Succeed())
	before := node.DeepCopy()
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}}
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(server.Listener.Addr().(*net.TCPAddr).Port)
	g.Expect(c.Admin.Status().Patch(t.Context(), node, client.MergeFrom(before))).To(Succeed())
}

// end ends a guest from within, as a shutdown does.
func (c *cluster) end(t testing.TB, name string) {
	t.Helper()
	c.change(t, name, func(vmi *kubevirtv1.VirtualMachineInstance) { vmi.Status.Phase = kubevirtv1.Succeeded })
}

// change changes the status of a guest as virt-handler does.
func (c *cluster) change(t testing.TB, name string, change func(*kubevirtv1.VirtualMachineInstance)) {
	t.Helper()
	NewWithT(t).Eventually(func() error {
		vmi := &kubevirtv1.VirtualMachineInstance{}
		if err := c.Admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, vmi); err != nil {
			return err
		}
		change(vmi)
		return c.Node.Handler.Update(t.Context(), vmi)
	}, "2m", "100ms").Should(Succeed())
}

// setCondition returns a change that sets a condition.
func setCondition(kind kubevirtv1.VirtualMachineInstanceConditionType,
	status corev1.ConditionStatus) func(*kubevirtv1.VirtualMachineInstance) {
	return func(vmi *kubevirtv1.VirtualMachineInstance) {
		vmi.Status.Conditions = slices.DeleteFunc(vmi.Status.Conditions,
			func(c kubevirtv1.VirtualMachineInstanceCondition) bool { return c.Type == kind })
		vmi.Status.Conditions = append(vmi.Status.Conditions, kubevirtv1.VirtualMachineInstanceCondition{Type: kind, Status: status})
	}
}

// evict requests the eviction of a guest's pod, as a drain of its node does, until virt-api has
// noticed. KubeVirt never lets such a pod be evicted directly.
func (c *cluster) evict(t testing.TB, name string) {
	t.Helper()
	g := NewWithT(t)
	g.Eventually(func() error {
		pods := &corev1.PodList{}
		g.Expect(c.Admin.List(t.Context(), pods, client.InNamespace(namespace))).To(Succeed())
		i := slices.IndexFunc(pods.Items, func(p corev1.Pod) bool { return p.Annotations[kubevirtv1.DomainAnnotation] == name })
		g.Expect(i).To(BeNumerically(">=", 0), "the guest has a pod")
		return c.Admin.SubResource("eviction").Create(t.Context(), &pods.Items[i], &policyv1.Eviction{})
	}, "2m", "500ms").Should(MatchError(ContainSubstring("triggered evacuation of VMI")))
}

// plug adds a volume to the VM's spec, as virt-api does for an addvolume request.
func (c *cluster) plug(t testing.TB, vm, volume string) {
	t.Helper()
	g := NewWithT(t)
	g.Eventually(func() error {
		o := &kubevirtv1.VirtualMachine{}
		if err := c.Admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: vm}, o); err != nil {
			return err
		}
		spec := &o.Spec.Template.Spec
		spec.Domain.Devices.Disks = append(spec.Domain.Devices.Disks, kubevirtv1.Disk{
			Name: volume, DiskDevice: kubevirtv1.DiskDevice{Disk: &kubevirtv1.DiskTarget{Bus: kubevirtv1.DiskBusSCSI}},
		})
		spec.Volumes = append(spec.Volumes, kubevirtv1.Volume{Name: volume, VolumeSource: kubevirtv1.VolumeSource{
			DataVolume: &kubevirtv1.DataVolumeSource{Name: volume, Hotpluggable: true},
		}})
		return c.Admin.Update(t.Context(), o)
	}, "1m", "100ms").Should(Succeed())
}
