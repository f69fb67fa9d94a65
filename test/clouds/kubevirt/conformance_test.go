// SPDX-License-Identifier: Apache-2.0

// Package kubevirt_test tests the KubeVirt driver against a real Kubernetes API server with
// KubeVirt's own virt-api, its webhooks, virt-controller and CDI's controller, with the permissions
// from the book. The nodes and their storage are stand-ins. "make test-kubevirt" builds the
// programs that it needs. The package must not import controllers.
package kubevirt_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	kubevirtv1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/conformance"
	driver "github.com/drover-io/drover/cloud/kubevirt"
)

func TestConformance(t *testing.T) {
	undo, err := infra.AllowTakeover(t.Context(), namespace) // a VM's tags are taken off and put back
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { NewWithT(t).Expect(undo(withoutEnd(t))).To(Succeed()) })
	conformance.Run(t, conformance.Target{
		Cloud: driver.Cloud(),
		Account: account(
			infrav1.KubeVirtFailureDomain{Name: "rack-a", NodeSelector: map[string]string{"rack": "a"}},
			infrav1.KubeVirtFailureDomain{Name: "rack-b", NodeSelector: map[string]string{"rack": "b"}}),
		Credentials:    credentials(),
		BadCredentials: badCredentials(t),
		Machine:        machine(nil),
		Balancer:       clusterIP(),
		Refused: map[string]conformance.Refused{
			"unknown instancetype": {Machine: machine(func(m *infrav1.KubeVirtMachine) {
				m.CPU, m.MemoryMiB = infrav1.KubeVirtCPU{}, 0
				m.Instancetype = infrav1.KubeVirtInstancetype{Name: "enormous", Kind: "VirtualMachineInstancetype"}
			}), Code: cloud.InvalidSpec, OfferingToo: true},
			"two interfaces of one name": {Machine: machine(sameNetworks), Code: cloud.InvalidSpec},
			"a label that is none": {Machine: machine(func(m *infrav1.KubeVirtMachine) {
				m.Labels = map[string]string{"team": "a b"}
			}), Code: cloud.InvalidSpec},
			"an annotation that is none": {Machine: machine(func(m *infrav1.KubeVirtMachine) {
				m.Annotations = map[string]string{"a b": ""}
			}), Code: cloud.InvalidSpec},
			"unknown domain": {Machine: machine(nil), FailureDomain: "rack-z", Code: cloud.InvalidSpec},
		},
		Machines: 60,
		Timeout:  5 * time.Minute, // virt-controller is slow with many deletions on two busy cores
		Calls: conformance.Calls{
			Probe:    2, // the first probe also asks for the place
			Create:   2, // the Secret and the VM
			Again:    2, // the Secret, which exists, and a read of the VM
			List:     6, // VMIs, volumes, VMs, Secrets, EndpointSlices, Services
			Describe: 6,
			Page:     500,
			Delete:   5, // one for each VM
			Balancer: 2, // the Service and its EndpointSlice
			Targets:  1, // the EndpointSlice; a read of the Service comes before
		},
		Inject: map[cloud.Code]func(testing.TB) func(){
			cloud.QuotaExceeded: noQuota,
		},
		Foreign: func(t testing.TB) func() bool {
			theirs := foreignVM("theirs")
			NewWithT(t).Expect(infra.Admin.Create(t.Context(), theirs)).To(Succeed())
			t.Cleanup(func() { _ = infra.Admin.Delete(withoutEnd(t), theirs) })
			return func() bool {
				now := &kubevirtv1.VirtualMachine{}
				err := infra.Admin.Get(t.Context(), client.ObjectKeyFromObject(theirs), now)
				return err == nil && now.UID == theirs.UID && now.DeletionTimestamp == nil
			}
		},
		Remaining: func(t testing.TB, owner string) []string { return infra.left(t, owner) },
	})
}

// noQuota leaves no room for a VM, as an operator's ResourceQuota does. It also sets the status
// that the quota controller would write.
func noQuota(t testing.TB) (undo func()) {
	t.Helper()
	g := NewWithT(t)
	none := corev1.ResourceList{"count/virtualmachines.kubevirt.io": resource.MustParse("0")}
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "no-vms"},
		Spec: corev1.ResourceQuotaSpec{Hard: none}}
	g.Expect(infra.Admin.Create(t.Context(), quota)).To(Succeed())
	quota.Status = corev1.ResourceQuotaStatus{Hard: none, Used: none}
	g.Expect(infra.Admin.Status().Update(t.Context(), quota)).To(Succeed())
	// The API server reads quotas through a watch.
	probe := foreignVM("probe")
	until(t, "the quota is in force", func() bool { return infra.Admin.Create(t.Context(), probe.DeepCopy(), client.DryRunAll) != nil })
	return func() {
		g.Expect(infra.Admin.Delete(withoutEnd(t), quota)).To(Succeed())
		until(t, "the quota is out of force", func() bool { return infra.Admin.Create(withoutEnd(t), probe.DeepCopy(), client.DryRunAll) == nil })
	}
}

// foreignVM returns somebody else's VM in the same namespace.
func foreignVM(name string) *kubevirtv1.VirtualMachine {
	return &kubevirtv1.VirtualMachine{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: kubevirtv1.VirtualMachineSpec{
			RunStrategy: ptr.To(kubevirtv1.RunStrategyHalted),
			Template: &kubevirtv1.VirtualMachineInstanceTemplateSpec{Spec: kubevirtv1.VirtualMachineInstanceSpec{
				Domain: kubevirtv1.DomainSpec{Memory: &kubevirtv1.Memory{Guest: mebibytes(64)}},
			}},
		},
	}
}
