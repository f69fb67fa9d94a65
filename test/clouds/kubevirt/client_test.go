// SPDX-License-Identifier: Apache-2.0

package kubevirt_test

import (
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"
	"kubevirt.io/client-go/kubevirt"

	"github.com/drover-io/drover/cloud"
)

// TestTypedClient tests that KubeVirt's own client, which others write their programs with, finds
// what the driver made, understands all of it, and can delete it, and that the driver then reports
// the machine as gone.
func TestTypedClient(t *testing.T) {
	g := NewWithT(t)
	clients, err := kubevirt.NewForConfig(infra.AdminConfig())
	g.Expect(err).NotTo(HaveOccurred())
	typed := clients.KubevirtV1()
	owner := newOwner(t)
	d, _ := connect(t, account())
	req := request(owner, machine(nil))
	_, err = d.Ensure(t.Context(), req)
	g.Expect(err).NotTo(HaveOccurred())
	instance := runs(t, d, req.Token)

	owned := metav1.ListOptions{LabelSelector: cloud.TagOwnership + "=" + owner}
	vms, err := typed.VirtualMachines(namespace).List(t.Context(), owned)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(vms.Items).To(HaveLen(1))
	vm := vms.Items[0]
	g.Expect(vm.Name).To(Equal(req.Token))
	g.Expect(vm.Annotations).To(HaveKeyWithValue(cloud.TagMachine, "team-a/"+req.Name))
	spec := vm.Spec.Template.Spec
	g.Expect(spec.Architecture).To(Equal("amd64"))
	g.Expect(spec.Domain.CPU.Cores).To(BeEquivalentTo(1))
	g.Expect(spec.Domain.Memory.Guest.Value()).To(BeEquivalentTo(128 << 20))
	g.Expect(spec.Volumes[0].ContainerDisk.Image).To(Equal("registry.example.com/node:1"))
	g.Expect(vm.Status.PrintableStatus).To(Equal(kubevirtv1.VirtualMachineStatusRunning))
	vmi, err := typed.VirtualMachineInstances(namespace).Get(t.Context(), req.Token, metav1.GetOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(vmi.IsRunning()).To(BeTrue())
	g.Expect(vmi.OwnerReferences).To(ContainElement(HaveField("UID", vm.UID)))
	g.Expect(instance.Addresses).To(ConsistOf(HaveField("Address", vmi.Status.Interfaces[0].IP)))

	g.Expect(typed.VirtualMachines(namespace).Delete(t.Context(), req.Token, metav1.DeleteOptions{})).To(Succeed())
	until(t, "the driver sees that the VM is gone", func() bool { return theInstance(t, d, req.Token).ID == "" })
}
