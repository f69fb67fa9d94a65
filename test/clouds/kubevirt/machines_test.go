// SPDX-License-Identifier: Apache-2.0

package kubevirt_test

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	kubevirtv1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/test/internal/virt"
)

func newToken() string { return strings.ToLower(rand.Text()) }

func request(owner string, spec *infrav1.DroverMachineFields) cloud.Request {
	token := newToken()
	return cloud.Request{Token: token, OwnershipID: owner, Namespace: "team-a", Name: "blue-" + token[:8], UserData: []byte("#cloud-config\n"),
		Spec: spec}
}

// newOwner returns an ownership ID. After the test, it deletes all machines with this ID and checks
// that nothing is left.
func newOwner(t testing.TB) string {
	owner := "test-" + newToken()[:16]
	t.Cleanup(func() {
		d, _ := connect(t, account())
		until(t, "nothing is left of "+owner, func() bool { return deleteAll(t, d, owner) == 0 && len(infra.left(t, owner)) == 0 })
	})
	return owner
}

// deleteAll performs one step of the deletion of everything with the ownership ID, VMs first, and
// returns how many resources it found.
func deleteAll(t testing.TB, d cloud.Driver, owner string) int {
	ctx := withoutEnd(t)
	found := listed(t, d, owner)
	now := slices.DeleteFunc(slices.Clone(found), func(r cloud.Resource) bool { return r.Kind != cloud.KindInstance })
	if len(now) == 0 {
		now = found
	}
	now = slices.DeleteFunc(slices.Clone(now), func(r cloud.Resource) bool { return r.State == cloud.StateStopping })
	for batch := range slices.Chunk(now, 50) {
		NewWithT(t).Expect(errors.Join(d.Delete(ctx, batch)...)).To(Succeed())
	}
	return len(found)
}

func listed(t testing.TB, d cloud.Driver, owner string) []cloud.Resource {
	t.Helper()
	found, err := d.List(withoutEnd(t))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return slices.DeleteFunc(found, func(r cloud.Resource) bool { return r.OwnershipID != owner })
}

// theInstance returns the token's instance from a live read, or an empty resource.
func theInstance(t testing.TB, d cloud.Driver, token string) cloud.Resource {
	t.Helper()
	found, err := d.Describe(t.Context(), []cloud.Reference{{Token: token}})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	for _, r := range found {
		if r.Kind == cloud.KindInstance {
			return r
		}
	}
	return cloud.Resource{}
}

func runs(t testing.TB, d cloud.Driver, token string) cloud.Resource {
	t.Helper()
	var r cloud.Resource
	until(t, "the machine runs", func() bool { r = theInstance(t, d, token); return r.State == cloud.StateRunning })
	return r
}

// everything sets all fields of a machine.
func everything(m *infrav1.KubeVirtMachine) {
	m.CPU = infrav1.KubeVirtCPU{Cores: 2, Sockets: 2, Threads: 1, Placement: infrav1.KubeVirtCPUDedicated, Model: "host-passthrough"}
	m.RootDisk = infrav1.KubeVirtRootDisk{Bus: "scsi", DataVolume: &infrav1.KubeVirtDataVolume{
		Source: infrav1.KubeVirtDataVolumeSource{HTTP: &infrav1.KubeVirtHTTPSource{URL: "https://images.example.com/node.qcow2"}}, SizeGiB: 10,
		StorageClassName: "fast", AccessMode: "ReadWriteOnce", VolumeMode: "Filesystem",
	}}
	m.DataDisks = []infrav1.KubeVirtDataDisk{
		{Name: "data", DataVolume: &infrav1.KubeVirtDataVolume{SizeGiB: 1,
			Source: infrav1.KubeVirtDataVolumeSource{Blank: &infrav1.KubeVirtBlankSource{}}}},
		{Name: "scratch", EmptyGiB: 1, Bus: "sata"},
		{Name: "tools", ContainerDisk: &infrav1.KubeVirtContainerDisk{Image: "registry.example.com/tools:1", PullSecret: "pull",
			PullPolicy: "IfNotPresent"}},
	}
	m.Networks = []infrav1.KubeVirtNetwork{{Name: "default", Model: "e1000"}, {Name: "vlan", Multus: "nets/vlan-7"},
		{Name: "fast", Multus: "nets/sriov", Binding: "SRIOV"}}
	m.CloudInit, m.NetworkData = infrav1.KubeVirtConfigDrive, "version: 2"
	m.RunStrategy, m.EvictionStrategy, m.TerminationGraceSeconds = infrav1.KubeVirtRerunOnFailure, "External", ptr.To(int64(60))
	m.NodeSelector = map[string]string{"pool": "vms"}
	m.RequiredNodes = []infrav1.KubeVirtNodeCondition{{Key: "zone", Operator: "In", Values: []string{"a", "b"}}}
	m.PreferredNodes = []infrav1.KubeVirtNodeCondition{{Key: "ssd", Operator: "Exists"}}
	m.Spread = []infrav1.KubeVirtSpread{{TopologyKey: "kubernetes.io/hostname", MaxSkew: 1, WhenUnsatisfiable: "ScheduleAnyway",
		MatchLabels: map[string]string{"team": "blue"}}}
	m.Tolerations = []infrav1.KubeVirtToleration{{Key: "dedicated", Operator: "Equal", Value: "vms", Effect: "NoExecute",
		Seconds: ptr.To(int64(300))}}
	m.Firmware = infrav1.KubeVirtFirmware{Bootloader: "UEFI", SecureBoot: infrav1.FeatureEnabled}
	m.TPM = infrav1.KubeVirtTPMEphemeral
	m.Labels, m.Annotations = map[string]string{"team": "blue"}, map[string]string{"example.com/cost-center": "42"}
}

// TestMachine tests that the fields of a machine reach KubeVirt, that its webhooks accept them, and
// that the volumes are created, listed and deleted with the machine.
func TestMachine(t *testing.T) {
	g := NewWithT(t)
	owner := newOwner(t)
	d, _ := connect(t, account(infrav1.KubeVirtFailureDomain{Name: "rack-a", NodeSelector: map[string]string{"rack": "a"}}))
	req := request(owner, machine(everything))
	req.FailureDomain = "rack-a"
	made, err := d.Ensure(t.Context(), req)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(made.ProviderID).To(Equal("kubevirt://" + req.Token))
	g.Expect(made.FailureDomain).To(Equal("rack-a"))

	vm := &kubevirtv1.VirtualMachine{}
	g.Expect(infra.Admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: req.Token}, vm)).To(Succeed())
	spec := vm.Spec.Template.Spec
	g.Expect(vm.Labels).To(HaveKeyWithValue("team", "blue"))
	g.Expect(vm.Annotations).To(HaveKeyWithValue("example.com/cost-center", "42"))
	g.Expect(vm.Annotations).To(HaveKeyWithValue(cloud.TagMachine, "team-a/"+req.Name))
	g.Expect(*vm.Spec.RunStrategy).To(Equal(kubevirtv1.RunStrategyRerunOnFailure))
	g.Expect(*spec.EvictionStrategy).To(Equal(kubevirtv1.EvictionStrategyExternal))
	g.Expect(spec.Hostname).To(Equal(req.Name))
	g.Expect(spec.NodeSelector).To(Equal(map[string]string{"pool": "vms", "rack": "a"}))
	g.Expect(spec.Domain.CPU.DedicatedCPUPlacement).To(BeTrue())
	g.Expect(spec.Domain.Memory.Guest.Value()).To(BeEquivalentTo(128 << 20))
	g.Expect(*spec.Domain.Firmware.Bootloader.EFI.SecureBoot).To(BeTrue())
	g.Expect(spec.Networks).To(HaveLen(3))
	g.Expect(spec.Domain.Devices.Interfaces[0].Masquerade).NotTo(BeNil())
	g.Expect(spec.Domain.Devices.Interfaces[1].Bridge).NotTo(BeNil())
	g.Expect(spec.Domain.Devices.Interfaces[2].SRIOV).NotTo(BeNil())
	g.Expect(spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms).To(HaveLen(1))
	g.Expect(spec.TopologySpreadConstraints[0].LabelSelector.MatchLabels).To(HaveKeyWithValue(cloud.TagOwnership, owner))
	g.Expect(*spec.Tolerations[0].TolerationSeconds).To(BeEquivalentTo(300))
	g.Expect(spec.Volumes).To(HaveLen(5))
	g.Expect(spec.Volumes[1].CloudInitConfigDrive.UserDataSecretRef.Name).To(Equal(req.Token))
	g.Expect(spec.Volumes[1].CloudInitConfigDrive.NetworkDataSecretRef.Name).To(Equal(req.Token))
	secret := &corev1.Secret{}
	g.Expect(infra.Admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: req.Token}, secret)).To(Succeed())
	g.Expect(secret.Data).To(Equal(map[string][]byte{"userdata": req.UserData, "networkdata": []byte("version: 2")}))

	until(t, "the volumes are shown", func() bool {
		found, err := d.Describe(t.Context(), []cloud.Reference{{Token: req.Token}})
		g.Expect(err).NotTo(HaveOccurred())
		return len(found) == 4 // the VM, two volumes, the Secret
	})
}

// TestDeletion tests that a deletion is complete only when the volumes and the Secret are gone too,
// not just the VM. Volumes that somebody else attached to the VM stay.
func TestDeletion(t *testing.T) {
	g := NewWithT(t)
	owner := newOwner(t)
	d, calls := connect(t, account())
	req := request(owner, machine(func(m *infrav1.KubeVirtMachine) {
		m.RootDisk = infrav1.KubeVirtRootDisk{DataVolume: &infrav1.KubeVirtDataVolume{SizeGiB: 1, Source: infrav1.KubeVirtDataVolumeSource{
			Registry: &infrav1.KubeVirtRegistrySource{URL: "docker://registry.example.com/node:1"},
		}}}
	}))
	made, err := d.Ensure(t.Context(), req)
	g.Expect(err).NotTo(HaveOccurred())
	plugged := &cdiv1.DataVolume{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "pvc-" + newToken()}, Spec: cdiv1.DataVolumeSpec{
		Source: &cdiv1.DataVolumeSource{Blank: &cdiv1.DataVolumeBlankImage{}},
		Storage: &cdiv1.StorageSpec{Resources: corev1.VolumeResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}}},
	}}
	g.Expect(infra.Admin.Create(t.Context(), plugged)).To(Succeed())
	t.Cleanup(func() { _ = infra.Admin.Delete(withoutEnd(t), plugged) })
	running := runs(t, d, req.Token)
	g.Expect(running.ID).To(Equal(made.ID))
	g.Expect(running.Addresses).To(HaveLen(1), "no link-local address, and none of the guest's own bridges")
	shown := len(listed(t, d, owner))
	infra.plug(t, req.Token, plugged.Name)
	until(t, "the volume is filled", func() bool {
		g.Expect(infra.Admin.Get(t.Context(), client.ObjectKeyFromObject(plugged), plugged)).To(Succeed())
		return plugged.Status.Phase == cdiv1.Succeeded
	})
	g.Expect(listed(t, d, owner)).To(HaveLen(shown))

	calls.reset()
	g.Expect(d.Delete(t.Context(), []cloud.Resource{running})).To(Equal([]error{nil}))
	var last []cloud.Resource
	until(t, "the VM is gone", func() bool {
		found, err := d.Describe(t.Context(), []cloud.Reference{{Token: req.Token}})
		g.Expect(err).NotTo(HaveOccurred())
		last = found
		return !slices.ContainsFunc(found, func(r cloud.Resource) bool { return r.Kind == cloud.KindInstance })
	})
	g.Expect(last).NotTo(BeEmpty(), "the Secret is there still")
	until(t, "all is gone", func() bool {
		found, err := d.Describe(t.Context(), []cloud.Reference{{Token: req.Token}})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(errors.Join(d.Delete(t.Context(), found)...)).To(Succeed())
		return len(found) == 0
	})
	g.Expect(infra.left(t, owner)).To(BeEmpty())
	g.Expect(calls.count("DeleteVirtualMachine")).To(Equal(1))
	g.Expect(infra.Admin.Get(t.Context(), client.ObjectKeyFromObject(plugged), plugged)).To(Succeed())
	g.Expect(plugged.DeletionTimestamp).To(BeNil())
	claim := &corev1.PersistentVolumeClaim{}
	g.Expect(infra.Admin.Get(t.Context(), client.ObjectKeyFromObject(plugged), claim)).To(Succeed())
	g.Expect(claim.DeletionTimestamp).To(BeNil())

	other := foreignVM(req.Token) // the name is free again, and another VM takes it
	g.Expect(infra.Admin.Create(t.Context(), other)).To(Succeed())
	t.Cleanup(func() { _ = infra.Admin.Delete(withoutEnd(t), other) })
	g.Expect(d.Delete(t.Context(), []cloud.Resource{running})).To(Equal([]error{nil}))
	g.Expect(infra.Admin.Get(t.Context(), client.ObjectKeyFromObject(other), other)).To(Succeed())
	g.Expect(other.DeletionTimestamp).To(BeNil(), "what has the name by now is another")
}

// TestNames tests that a resource with only the name, or only the labels, is not Drover's: it is
// never adopted, listed or changed.
func TestNames(t *testing.T) {
	g := NewWithT(t)
	owner := newOwner(t)
	d, _ := connect(t, account())

	req := request(owner, machine(nil))
	theirs := foreignVM(req.Token)
	g.Expect(infra.Admin.Create(t.Context(), theirs)).To(Succeed())
	t.Cleanup(func() { _ = infra.Admin.Delete(withoutEnd(t), theirs) })
	for range 2 { // the second attempt finds its own Secret
		_, err := d.Ensure(t.Context(), req)
		g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Conflict), "%v", err)
	}
	g.Expect(theInstance(t, d, req.Token)).To(Equal(cloud.Resource{}))

	req = request(owner, machine(nil))
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: req.Token},
		Data: map[string][]byte{"theirs": []byte("kept")}}
	g.Expect(infra.Admin.Create(t.Context(), secret)).To(Succeed())
	t.Cleanup(func() { _ = infra.Admin.Delete(withoutEnd(t), secret) })
	_, err := d.Ensure(t.Context(), req)
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Conflict), "%v", err)
	g.Expect(infra.Admin.Get(t.Context(), client.ObjectKeyFromObject(secret), secret)).To(Succeed())
	g.Expect(secret.Data).To(Equal(map[string][]byte{"theirs": []byte("kept")}))

	req = request(owner, machine(nil))
	made, err := d.Ensure(t.Context(), req)
	g.Expect(err).NotTo(HaveOccurred())
	clone := foreignVM("copy-" + newToken()[:8])
	clone.Labels = map[string]string{cloud.TagOwnership: owner, cloud.TagToken: req.Token}
	g.Expect(infra.Admin.Create(t.Context(), clone)).To(Succeed())
	g.Expect(theInstance(t, d, req.Token).ID).To(Equal(made.ID))
	g.Expect(d.Delete(t.Context(), []cloud.Resource{made})).To(Equal([]error{nil}))
	until(t, "the machine is gone", func() bool { return theInstance(t, d, req.Token).ID == "" })
	g.Expect(infra.Admin.Get(t.Context(), client.ObjectKeyFromObject(clone), clone)).To(Succeed())
	g.Expect(infra.Admin.Delete(t.Context(), clone)).To(Succeed())
}

// TestQuota tests that an exhausted quota is reported as such, and that the same machine is created
// with the current user data once there is room.
func TestQuota(t *testing.T) {
	g := NewWithT(t)
	owner := newOwner(t)
	d, _ := connect(t, account())
	req := request(owner, machine(nil))
	undo := noQuota(t)
	_, err := d.Ensure(t.Context(), req)
	undo()
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.QuotaExceeded), "%v", err)
	g.Expect(err).To(MatchError(ContainSubstring("exceeded quota: no-vms")))
	g.Expect(theInstance(t, d, req.Token)).To(Equal(cloud.Resource{}))

	req.UserData = []byte("#cloud-config\n# renewed\n")
	_, err = d.Ensure(t.Context(), req)
	g.Expect(err).NotTo(HaveOccurred())
	secret := &corev1.Secret{}
	g.Expect(infra.Admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: req.Token}, secret)).To(Succeed())
	g.Expect(secret.Data["userdata"]).To(Equal(req.UserData))
	runs(t, d, req.Token)
}

// TestRefusal tests that the error contains the webhook's message with the field.
func TestRefusal(t *testing.T) {
	g := NewWithT(t)
	d, _ := connect(t, account())
	_, err := d.Ensure(t.Context(), request(newOwner(t), machine(sameNetworks)))
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.InvalidSpec), "%v", err)
	g.Expect(err).To(MatchError(ContainSubstring("spec.template.spec")))
}

// sameNetworks sets networks that the CRD also refuses, so KubeVirt's webhook must refuse them by
// itself.
func sameNetworks(m *infrav1.KubeVirtMachine) {
	m.Networks = []infrav1.KubeVirtNetwork{{Name: "a"}, {Name: "a", Multus: "b"}}
}

// TestReasons tests that the reason that prevents a machine from running is the message of the
// component that reports it.
func TestReasons(t *testing.T) {
	for name, test := range map[string]struct {
		change  func(*infrav1.KubeVirtMachine)
		failure virt.Failure
		state   cloud.State
		code    cloud.Code
		reason  string
	}{
		"no node": {change: func(m *infrav1.KubeVirtMachine) { m.NodeSelector = map[string]string{virt.NoRoom: "true"} },
			state: cloud.StatePending, code: cloud.NoCapacity,
			reason: "no node is available: node(s) didn't match Pod's node affinity/selector"},
		"no image": {change: onImage, failure: virt.NoImage, state: cloud.StatePending, reason: " is not populated yet: " +
			string(virt.NoImage)},
		"wrong image": {change: onImage, failure: virt.WrongImage, state: cloud.StateFailed, reason: " could not be populated: " +
			string(virt.WrongImage)},
		"no such storage": {change: func(m *infrav1.KubeVirtMachine) {
			onImage(m)
			m.RootDisk.DataVolume.StorageClassName = "nothing"
		}, state: cloud.StatePending, reason: " is not populated yet: PVC spec is missing accessMode and no storageClass to choose profile"},
		"no such claim": {change: func(m *infrav1.KubeVirtMachine) {
			onImage(m)
			m.RootDisk.DataVolume.Source = infrav1.KubeVirtDataVolumeSource{PVC: &infrav1.KubeVirtObjectSource{Name: "nothing"}}
		}, state: cloud.StatePending, reason: " is not populated yet: The source pvc nothing doesn't exist"},
		"no such preference": {change: func(m *infrav1.KubeVirtMachine) {
			m.Preference = infrav1.KubeVirtPreference{Name: "nothing", Kind: "VirtualMachinePreference"}
		}, state: cloud.StatePending, reason: "nothing"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			d, _ := connect(t, account())
			if test.failure != "" {
				infra.Node.Broken.Store(&test.failure)
				t.Cleanup(func() { infra.Node.Broken.Store(nil) })
			}
			req := request(newOwner(t), machine(test.change))
			_, err := d.Ensure(t.Context(), req)
			g.Expect(err).NotTo(HaveOccurred())
			var now cloud.Resource
			g.Eventually(func() string { now = theInstance(t, d, req.Token); return now.Reason }, "2m",
				"100ms").Should(ContainSubstring(test.reason))
			g.Expect(now.State).To(Equal(test.state))
			g.Expect(now.Code).To(Equal(test.code))
		})
	}
}

// TestHands tests that a tenant's changes to a VM are reported correctly.
func TestHands(t *testing.T) {
	g := NewWithT(t)
	owner := newOwner(t)
	d, _ := connect(t, account())
	deleted, halted, ended, paused := request(owner, machine(nil)), request(owner, machine(nil)), request(owner, machine(nil)),
		request(owner, machine(nil))
	vm := func(req cloud.Request) *kubevirtv1.VirtualMachine {
		vm := &kubevirtv1.VirtualMachine{}
		g.Expect(infra.Admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: req.Token}, vm)).To(Succeed())
		return vm
	}
	for _, req := range []cloud.Request{deleted, halted, ended, paused} {
		_, err := d.Ensure(t.Context(), req)
		g.Expect(err).NotTo(HaveOccurred())
		runs(t, d, req.Token)
	}
	g.Expect(infra.Admin.Delete(t.Context(), vm(deleted))).To(Succeed())
	until(t, "the deleted VM is gone", func() bool { return theInstance(t, d, deleted.Token).ID == "" })

	before := vm(halted)
	after := before.DeepCopy()
	after.Spec.RunStrategy = ptr.To(kubevirtv1.RunStrategyHalted)
	g.Expect(infra.Admin.Patch(t.Context(), after, client.MergeFrom(before))).To(Succeed())
	until(t, "the halted VM is stopped", func() bool { return theInstance(t, d, halted.Token).State == cloud.StateStopped })

	infra.change(t, paused.Token, setCondition(kubevirtv1.VirtualMachineInstancePaused, corev1.ConditionTrue))
	stopped := theInstance(t, d, paused.Token)
	g.Expect(stopped.State).To(Equal(cloud.StateStopped))
	g.Expect(stopped.Reason).To(Equal("it is paused"))
	infra.change(t, paused.Token, setCondition(kubevirtv1.VirtualMachineInstancePaused, corev1.ConditionFalse))
	g.Expect(theInstance(t, d, paused.Token).State).To(Equal(cloud.StateRunning))

	infra.end(t, ended.Token)
	until(t, "the guest that has ended is stopped", func() bool { return theInstance(t, d, ended.Token).State == cloud.StateStopped })
	again, err := d.Ensure(t.Context(), ended)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(again.ID).To(Equal(string(vm(ended).UID)), "it is not made again")
}

// TestDrain tests what KubeVirt's own webhook reports when the node of a VM is drained. A VM with
// the eviction strategy External is about to be reclaimed. A VM that is migrated stays as it is.
func TestDrain(t *testing.T) {
	g := NewWithT(t)
	owner := newOwner(t)
	d, _ := connect(t, account())
	strategy := func(s infrav1.KubeVirtEvictionStrategy) cloud.Request {
		req := request(owner, machine(func(m *infrav1.KubeVirtMachine) { m.EvictionStrategy = s }))
		made, err := d.Ensure(t.Context(), req)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(made.Interruptible).To(Equal(s == "External"), "known from the first answer on")
		now := runs(t, d, req.Token)
		g.Expect(now.Interruptible).To(Equal(s == "External"))
		g.Expect(now.Notice).To(BeEmpty())
		return req
	}
	external := strategy("External")
	infra.evict(t, external.Token)
	now := theInstance(t, d, external.Token)
	g.Expect(now.State).To(Equal(cloud.StateRunning))
	g.Expect(now.Reclaim).To(Equal(cloud.ReclaimAdvised))
	g.Expect(now.Notice).To(ContainSubstring("node-1 is being drained"))

	moved := strategy("LiveMigrate")
	before := theInstance(t, d, moved.Token)
	infra.change(t, moved.Token, setCondition(kubevirtv1.VirtualMachineInstanceIsMigratable, corev1.ConditionTrue))
	infra.evict(t, moved.Token)
	now = theInstance(t, d, moved.Token)
	g.Expect(now.Reclaim).To(BeEmpty())
	g.Expect(now.Notice).To(ContainSubstring("KubeVirt migrates the VM"))
	infra.change(t, moved.Token, func(vmi *kubevirtv1.VirtualMachineInstance) { // as the virt-handler of the new node does
		vmi.Status.NodeName, vmi.Status.EvacuationNodeName = "node-2", ""
		vmi.Labels[kubevirtv1.NodeNameLabel] = "node-2"
	})
	after := theInstance(t, d, moved.Token)
	after.Reason = before.Reason
	g.Expect(after).To(Equal(before), "it keeps its machine, and nothing is said any more")
}

// TestNamespace tests that a namespace that is being deleted accepts no machine and reports this,
// that its machines are deleted with it, and that a deleted namespace is reported as such.
func TestNamespace(t *testing.T) {
	g := NewWithT(t)
	const doomed = "doomed-machines"
	g.Expect(infra.NewTenant(t.Context(), doomed)).To(Succeed())
	binding := virt.Binding(doomed, virt.User)
	binding.Name, binding.Subjects[0].Namespace = "of-another-namespace", namespace // the namespace of the user
	g.Expect(infra.Admin.Create(t.Context(), binding)).To(Succeed())
	// A finalizer delays the deletion of the permissions, and so of the namespace.
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: doomed, Name: virt.User}}
	for _, o := range []client.Object{role, binding} {
		kept := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":["example.com/kept"]}}`))
		g.Expect(infra.Admin.Patch(t.Context(), o, kept)).To(Succeed())
	}
	spec := account()
	spec.Cloud.KubeVirt.Namespace = doomed
	d, _ := connect(t, spec)
	req := request("test-"+newToken()[:16], machine(nil))
	g.Eventually(func() error { _, err := d.Ensure(t.Context(), req); return err }, "1m", "100ms").Should(Succeed(),
		"once the rights are in force")

	g.Expect(infra.Admin.Delete(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: doomed}})).To(Succeed())
	until(t, "the machine has gone with its namespace", func() bool {
		found, err := d.Describe(t.Context(), []cloud.Reference{{Token: req.Token}})
		g.Expect(err).NotTo(HaveOccurred())
		return len(found) == 0
	})
	_, err := d.Ensure(t.Context(), req)
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Conflict), "%v", err)
	g.Expect(err).To(MatchError(ContainSubstring("being terminated")))
}

// TestCrash tests a manager that dies before or after each call of a create. Another manager
// continues, and there is one VM with its user data.
func TestCrash(t *testing.T) {
	died := errors.New("the manager died")
	for _, op := range []string{"CreateSecret", "PatchSecret", "CreateVirtualMachine", "GetVirtualMachine"} {
		for _, when := range []string{"before", "after"} {
			t.Run(when+" "+op, func(t *testing.T) {
				g := NewWithT(t)
				owner := newOwner(t)
				req := request(owner, machine(nil))
				if op == "PatchSecret" || op == "GetVirtualMachine" { // these calls follow only an interrupted attempt
					d, calls := connect(t, account())
					calls.before = func(op string) error {
						if op == "CreateVirtualMachine" {
							return died
						}
						return nil
					}
					_, err := d.Ensure(t.Context(), req)
					g.Expect(err).To(HaveOccurred())
				}
				d, calls := connect(t, account())
				dies := func(now string) error {
					if now == op {
						return died
					}
					return nil
				}
				if when == "before" {
					calls.before = dies
				} else {
					calls.after = dies
				}
				_, err := d.Ensure(t.Context(), req)
				g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unavailable), "%v", err)

				next, _ := connect(t, account())
				_, err = next.Ensure(t.Context(), req)
				g.Expect(err).NotTo(HaveOccurred())
				runs(t, next, req.Token)
				g.Expect(infra.left(t, owner)).To(ConsistOf("VM "+req.Token, "VMI "+req.Token, "Secret "+req.Token))
			})
		}
	}
}

// TestOutage tests that a restarting API server never returns incomplete answers, and that
// everything is unchanged afterwards.
func TestOutage(t *testing.T) {
	g := NewWithT(t)
	owner := newOwner(t)
	d, _ := connect(t, account())
	req := request(owner, machine(nil))
	made, err := d.Ensure(t.Context(), req)
	g.Expect(err).NotTo(HaveOccurred())
	runs(t, d, req.Token)
	infra.StopAPIServer()
	_, err = d.List(t.Context())
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unavailable), "%v", err)
	_, err = d.Ensure(t.Context(), request(owner, machine(nil)))
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unavailable), "%v", err)

	started := make(chan error, 1)
	go func() { started <- infra.StartAPIServer(withoutEnd(t)) }()
	for done := false; !done; { // no listing misses the machine, even during the start
		select {
		case err := <-started:
			g.Expect(err).NotTo(HaveOccurred())
			done = true
		default:
		}
		if found, err := d.List(t.Context()); err == nil {
			g.Expect(found).To(ContainElement(HaveField("ID", made.ID)))
		} else {
			g.Expect(cloud.CodeOf(err)).To(BeElementOf(cloud.Unavailable, cloud.Unauthorized, cloud.Throttled, cloud.Unknown), "%v", err)
		}
	}
	g.Expect(infra.KubeVirt.RestartController(withoutEnd(t), infra.ControlPlane)).To(Succeed())
	g.Expect(runs(t, d, req.Token).ID).To(Equal(made.ID))
}

// TestRights tests that without each permission, the call that needs it fails with Unauthorized,
// and that it works again with the permission.
func TestRights(t *testing.T) {
	g := NewWithT(t)
	owner := newOwner(t)
	d, _ := connect(t, account())
	req := request(owner, machine(nil))
	made, err := d.Ensure(t.Context(), req)
	g.Expect(err).NotTo(HaveOccurred())
	_, err = d.(cloud.Balancer).EnsureBalancer(t.Context(), balancerRequest(owner, clusterIP()))
	g.Expect(err).NotTo(HaveOccurred())
	role := &rbacv1.Role{}
	g.Expect(infra.Admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "drover"}, role)).To(Succeed())
	t.Cleanup(func() { // the other tests need them in any case
		now := &rbacv1.Role{}
		g.Expect(infra.Admin.Get(withoutEnd(t), client.ObjectKeyFromObject(role), now)).To(Succeed())
		now.Rules = role.Rules
		g.Expect(infra.Admin.Update(withoutEnd(t), now)).To(Succeed())
	})
	infra.kubelet(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	for i, rule := range role.Rules {
		if rule.Resources[0] == "virtualmachineinstancetypes" {
			continue // the conformance suite uses one
		}
		need := func() error {
			found, err := d.List(t.Context())
			g.Expect(err == nil || len(found) == 0).To(BeTrue(), "all or nothing")
			return err
		}
		if strings.HasPrefix(rule.Resources[0], "pods") {
			need = func() error { _, err := d.(cloud.Console).Console(t.Context(), made); return err }
		}
		reduced := &rbacv1.Role{}
		g.Expect(infra.Admin.Get(t.Context(), client.ObjectKeyFromObject(role), reduced)).To(Succeed())
		reduced.Rules = slices.Delete(slices.Clone(role.Rules), i, i+1)
		g.Expect(infra.Admin.Update(t.Context(), reduced)).To(Succeed())
		until(t, fmt.Sprintf("%v is missed", rule.Resources), func() bool { return cloud.CodeOf(need()) == cloud.Unauthorized })
		reduced.Rules = role.Rules
		g.Expect(infra.Admin.Update(t.Context(), reduced)).To(Succeed())
		until(t, fmt.Sprintf("%v is back", rule.Resources), func() bool { return need() == nil })
	}
	runs(t, d, req.Token)
}
