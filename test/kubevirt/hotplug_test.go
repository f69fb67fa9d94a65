// SPDX-License-Identifier: Apache-2.0

package kubevirt_test

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-io/drover/cloud"
)

// TestHotplug: a volume of a workload's, which KubeVirt's CSI driver has made and plugged into a machine, is none of the machine's: it is
// not shown, and it stays with what it holds when the machine goes.
func TestHotplug(t *testing.T) {
	g := NewWithT(t)
	d, _ := connect(t, account())
	owner := newOwner(t)
	req := request(owner, machine(onImage))
	_, err := d.Ensure(t.Context(), req)
	g.Expect(err).NotTo(HaveOccurred())
	runs(t, d, req.Token)
	before := len(listed(t, d, owner))

	volume := &cdiv1.DataVolume{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "pvc-of-a-database"}, Spec: cdiv1.DataVolumeSpec{
		Source: &cdiv1.DataVolumeSource{Blank: &cdiv1.DataVolumeBlankImage{}},
		Storage: &cdiv1.StorageSpec{Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{
			corev1.ResourceStorage: resource.MustParse("1Gi"),
		}}},
	}}
	g.Expect(infra.Admin.Create(t.Context(), volume)).To(Succeed())
	t.Cleanup(func() { g.Expect(infra.Admin.Delete(withoutEnd(t), volume)).To(Succeed()) })
	plug(t, req.Token, volume.Name)
	until(t, "the volume is filled", func() bool {
		g.Expect(infra.Admin.Get(t.Context(), client.ObjectKeyFromObject(volume), volume)).To(Succeed())
		return volume.Status.Phase == cdiv1.Succeeded
	})
	g.Expect(listed(t, d, owner)).To(HaveLen(before))

	g.Expect(d.Delete(t.Context(), []cloud.Resource{theInstance(t, d, req.Token)})).To(Equal([]error{nil}))
	until(t, "nothing is left of the machine", func() bool { return deleteAll(t, d, owner) == 0 && len(infra.left(t, owner)) == 0 })
	g.Expect(infra.Admin.Get(t.Context(), client.ObjectKeyFromObject(volume), volume)).To(Succeed())
	g.Expect(volume.DeletionTimestamp).To(BeNil())
	claim := &corev1.PersistentVolumeClaim{}
	g.Expect(infra.Admin.Get(t.Context(), client.ObjectKeyFromObject(volume), claim)).To(Succeed())
	g.Expect(claim.DeletionTimestamp).To(BeNil())
}

// plug puts a volume into the VM's specification, as virt-api does when it is asked to add one.
func plug(t testing.TB, vm, volume string) {
	t.Helper()
	g := NewWithT(t)
	g.Eventually(func() error {
		o := &kubevirtv1.VirtualMachine{}
		if err := infra.Admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: vm}, o); err != nil {
			return err
		}
		spec := &o.Spec.Template.Spec
		spec.Domain.Devices.Disks = append(spec.Domain.Devices.Disks, kubevirtv1.Disk{
			Name: volume, DiskDevice: kubevirtv1.DiskDevice{Disk: &kubevirtv1.DiskTarget{Bus: kubevirtv1.DiskBusSCSI}},
		})
		spec.Volumes = append(spec.Volumes, kubevirtv1.Volume{Name: volume, VolumeSource: kubevirtv1.VolumeSource{
			DataVolume: &kubevirtv1.DataVolumeSource{Name: volume, Hotpluggable: true},
		}})
		return infra.Admin.Update(t.Context(), o)
	}, "1m", "100ms").Should(Succeed())
}
