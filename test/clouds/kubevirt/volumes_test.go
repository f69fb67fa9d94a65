// SPDX-License-Identifier: Apache-2.0

package kubevirt_test

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/test/internal/virt"
)

// onVolumes sets a root disk from an image and two data disks: one from another image with another
// storage class, and one empty.
func onVolumes(m *infrav1.KubeVirtMachine) {
	m.RootDisk = infrav1.KubeVirtRootDisk{DataVolume: &infrav1.KubeVirtDataVolume{SizeGiB: 10, Source: infrav1.KubeVirtDataVolumeSource{
		Registry: &infrav1.KubeVirtRegistrySource{URL: "docker://registry.example.com/node:1"},
	}}}
	m.DataDisks = []infrav1.KubeVirtDataDisk{
		{Name: "tools", DataVolume: &infrav1.KubeVirtDataVolume{SizeGiB: 2, StorageClassName: virt.FastStorage,
			Source: infrav1.KubeVirtDataVolumeSource{
				HTTP: &infrav1.KubeVirtHTTPSource{URL: "https://images.example.com/tools.qcow2"},
			}}},
		{Name: "data", DataVolume: &infrav1.KubeVirtDataVolume{SizeGiB: 1,
			Source: infrav1.KubeVirtDataVolumeSource{Blank: &infrav1.KubeVirtBlankSource{}}}},
	}
}

// onImage sets a root disk with an image that is downloaded.
func onImage(m *infrav1.KubeVirtMachine) {
	m.RootDisk = infrav1.KubeVirtRootDisk{DataVolume: &infrav1.KubeVirtDataVolume{SizeGiB: 1, Source: infrav1.KubeVirtDataVolumeSource{
		HTTP: &infrav1.KubeVirtHTTPSource{URL: "https://images.example.com/node.qcow2"},
	}}}
}

// TestVolumes tests that CDI fills the volumes of a machine, with the sources and storage classes
// from its spec, before the machine runs. Everything that CDI created for the machine is deleted
// with it.
func TestVolumes(t *testing.T) {
	g := NewWithT(t)
	d, _ := connect(t, account())
	req := request(newOwner(t), machine(onVolumes))
	_, err := d.Ensure(t.Context(), req)
	g.Expect(err).NotTo(HaveOccurred())
	running := runs(t, d, req.Token)

	for disk, class := range map[string]string{"root": virt.StandardStorage, "tools": virt.FastStorage, "data": virt.StandardStorage} {
		key := client.ObjectKey{Namespace: namespace, Name: req.Token + "-" + disk}
		volume, claim := &cdiv1.DataVolume{}, &corev1.PersistentVolumeClaim{}
		g.Expect(infra.Admin.Get(t.Context(), key, volume)).To(Succeed())
		g.Expect(volume.Status.Phase).To(Equal(cdiv1.Succeeded), disk)
		g.Expect(infra.Admin.Get(t.Context(), key, claim)).To(Succeed())
		g.Expect(claim.Status.Phase).To(Equal(corev1.ClaimBound), disk)
		g.Expect(ptr.Deref(claim.Spec.StorageClassName, "")).To(Equal(class), disk)
		g.Expect(claim.Annotations).To(HaveKeyWithValue("cdi.kubevirt.io/storage.condition.running.message", "Import Complete"), disk)
	}
	g.Expect(d.Delete(t.Context(), []cloud.Resource{running})).To(Equal([]error{nil}))
	until(t, "claims and their volumes are gone", func() bool { return len(claimsOf(t, req.Token)) == 0 && len(volumesOf(t, req.Token)) == 0 })
}

// claimsOf returns the claims that CDI created for a machine, including temporary ones.
func claimsOf(t testing.TB, token string) []corev1.PersistentVolumeClaim {
	t.Helper()
	all := &corev1.PersistentVolumeClaimList{}
	NewWithT(t).Expect(infra.Admin.List(t.Context(), all, client.InNamespace(namespace),
		client.MatchingLabels{cloud.TagToken: token})).To(Succeed())
	return all.Items
}

// volumesOf returns the volumes that are or were bound to a claim of the machine.
func volumesOf(t testing.TB, token string) (found []corev1.PersistentVolume) {
	t.Helper()
	all := &corev1.PersistentVolumeList{}
	NewWithT(t).Expect(infra.Admin.List(t.Context(), all)).To(Succeed())
	for _, v := range all.Items {
		for _, disk := range []string{"root", "tools", "data"} {
			if v.Spec.ClaimRef != nil && v.Spec.ClaimRef.Namespace == namespace && v.Spec.ClaimRef.Name == token+"-"+disk {
				found = append(found, v)
			}
		}
	}
	return found
}

// TestMended tests that a missing image makes a machine wait and is not final: CDI retries, and the
// machine runs.
func TestMended(t *testing.T) {
	g := NewWithT(t)
	d, _ := connect(t, account())
	infra.Node.Broken.Store(ptr.To(virt.NoImage))
	t.Cleanup(func() { infra.Node.Broken.Store(nil) })
	req := request(newOwner(t), machine(onImage))
	made, err := d.Ensure(t.Context(), req)
	g.Expect(err).NotTo(HaveOccurred())
	until(t, "the machine waits for its image", func() bool {
		now := theInstance(t, d, req.Token)
		g.Expect(now.State).To(Equal(cloud.StatePending))
		return now.Reason == "the volume "+req.Token+"-root is not populated yet: "+string(virt.NoImage)
	})
	g.Expect(infra.Node.Mend(t.Context())).To(Succeed())
	g.Expect(runs(t, d, req.Token).ID).To(Equal(made.ID))
}
