// SPDX-License-Identifier: Apache-2.0

package vsphere

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	_ "github.com/vmware/govmomi/pbm/simulator" // the storage policy service
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
)

// sent creates a machine, and returns vCenter's clone request, because vcsim ignores most of it.
func sent(t *testing.T, v *vcsim, edit ...func(*infrav1.VSphereMachine)) types.VirtualMachineCloneSpec {
	t.Helper()
	template := v.replace(func(*heldVM) {})
	if _, err := v.driver(t).Ensure(t.Context(), request(fmt.Sprintf("sent-%d", len(v.vms())), edit...)); err != nil {
		t.Fatal(err)
	}
	if len(template.sent) != 1 {
		t.Fatalf("%d clones were asked for", len(template.sent))
	}
	return template.sent[0]
}

// added returns the devices of one type that a request adds.
func added[T any](spec types.VirtualMachineCloneSpec) (all []T) {
	for _, c := range spec.Config.DeviceChange {
		c := c.GetVirtualDeviceConfigSpec()
		if device, ok := c.Device.(T); ok && c.Operation == types.VirtualDeviceConfigSpecOperationAdd {
			all = append(all, device)
		}
	}
	return all
}

// TestRequestDevices: a clone requests devices, a TPM and secure boot in vSphere's terms.
func TestRequestDevices(t *testing.T) {
	g := NewWithT(t)
	v := start(t)
	spec := sent(t, v, func(m *infrav1.VSphereMachine) {
		m.CoresPerSocket, m.SecureBoot, m.TPM = 2, infrav1.FeatureEnabled, infrav1.VSphereTPMVirtual
		m.PCIDevices = []infrav1.VSpherePCIDevice{{VendorID: 4318, DeviceID: 7864}, {VGPUProfile: "grid_t4-8q"}}
		m.Networks = []infrav1.VSphereNetwork{{Name: "VM Network", MACAddress: "00:50:56:00:00:07"}}
	})
	g.Expect(spec.PowerOn).To(BeTrue())
	g.Expect(*spec.Config.NumCoresPerSocket).To(BeEquivalentTo(2))
	g.Expect(*spec.Config.Flags.DiskUuidEnabled).To(BeTrue())
	g.Expect(*spec.Config.BootOptions.EfiSecureBootEnabled).To(BeTrue())
	g.Expect(*spec.Config.MemoryReservationLockedToMax).To(BeTrue())
	g.Expect(added[*types.VirtualTPM](spec)).To(HaveLen(1))
	g.Expect(spec.TpmProvisionPolicy).To(BeEmpty(), "the template has none to be replaced")
	devices := added[*types.VirtualPCIPassthrough](spec)
	g.Expect(devices).To(HaveLen(2))
	kind := devices[0].Backing.(*types.VirtualPCIPassthroughDynamicBackingInfo).AllowedDevice
	g.Expect(kind).To(ConsistOf(types.VirtualPCIPassthroughAllowedDevice{VendorId: 4318, DeviceId: 7864}))
	g.Expect(devices[1].Backing.(*types.VirtualPCIPassthroughVmiopBackingInfo).Vgpu).To(Equal("grid_t4-8q"))
	cards := added[types.BaseVirtualEthernetCard](spec)
	g.Expect(cards).To(HaveLen(1))
	g.Expect(cards[0].GetVirtualEthernetCard().MacAddress).To(Equal("00:50:56:00:00:07"))
	keys := map[int32]bool{}
	for _, c := range spec.Config.DeviceChange {
		if c := c.GetVirtualDeviceConfigSpec(); c.Operation == types.VirtualDeviceConfigSpecOperationAdd {
			keys[c.Device.GetVirtualDevice().Key] = true
		}
	}
	g.Expect(keys).To(HaveLen(4), "what is new has a key of its own")

	own := plan{template: template{devices: []types.BaseVirtualDevice{&types.VirtualTPM{}}}}
	replaced, err := own.cloneSpec(request("tpm", func(m *infrav1.VSphereMachine) { m.TPM = infrav1.VSphereTPMVirtual }), "id")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(replaced.TpmProvisionPolicy).To(Equal("replace"), "no two machines have one identity")
	g.Expect(replaced.Config.DeviceChange).To(BeEmpty())
}

// TestStoragePolicy: the policy's name becomes its ID, for the VM and each of its new disks.
func TestStoragePolicy(t *testing.T) {
	g := NewWithT(t)
	v := start(t)
	const id = "aa6d5a82-1c88-45da-85d3-3d74b91a5bad" // "vSAN Default Storage Policy", in vcsim and in every vCenter
	wanted := ConsistOf(HaveField("ProfileId", id))
	spec := sent(t, v, func(m *infrav1.VSphereMachine) {
		m.StoragePolicy, m.DataDisks = "vSAN Default Storage Policy", []infrav1.VSphereDataDisk{{SizeGiB: 10}}
	})
	g.Expect(spec.Location.Profile).To(wanted)
	g.Expect(spec.Config.DeviceChange).To(HaveLen(1))
	g.Expect(spec.Config.DeviceChange[0].GetVirtualDeviceConfigSpec().Profile).To(wanted)
	_, err := v.driver(t).Ensure(t.Context(), request("other", func(m *infrav1.VSphereMachine) { m.StoragePolicy = "nothing" }))
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.NotFound))
}

// placer gives vcsim what it needs to recommend a datastore for a clone. vcsim itself considers
// only disks.
type placer struct {
	*simulator.StorageResourceManager
	full  bool // recommends nothing
	asked []types.StoragePlacementSpec
}

// RecommendDatastores implements the method of vSphere's API, as vcsim calls it.
func (p *placer) RecommendDatastores(ctx *simulator.Context, req *types.RecommendDatastores) soap.HasFault {
	p.asked = append(p.asked, req.StorageSpec)
	pod := &req.StorageSpec.PodSelectionSpec
	if !p.full {
		pod.InitialVmConfig = []types.VmPodConfigForPlacement{{StoragePod: *pod.StoragePod}}
	}
	return p.StorageResourceManager.RecommendDatastores(ctx, req)
}

// TestDatastoreCluster: Storage DRS is asked for each machine, and its recommendation is used.
func TestDatastoreCluster(t *testing.T) {
	g := NewWithT(t)
	v := start(t)
	manager := v.Context.Map.Get(*v.model.ServiceContent.StorageResourceManager).(*simulator.StorageResourceManager)
	p := &placer{StorageResourceManager: manager, full: true}
	v.Context.Map.Put(p)
	pod := v.Context.Map.Any("StoragePod").(*simulator.StoragePod)
	store := v.Context.Map.Any("Datastore").Reference()
	pod.PodStorageDrsEntry.StorageDrsConfig.PodConfig.Enabled = true
	pod.ChildEntity = append(pod.ChildEntity, store)
	inCluster := func(m *infrav1.VSphereMachine) { m.Datastore, m.DatastoreCluster = "", pod.Name }

	d := v.driver(t)
	_, err := d.Ensure(t.Context(), request("full", inCluster))
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.NoCapacity), "a cluster without room")
	p.full = false

	_, err = d.Ensure(t.Context(), request("first", inCluster))
	g.Expect(err).NotTo(HaveOccurred())
	template := v.replace(func(*heldVM) {})
	calls := v.counted(func() { _, err = d.Ensure(t.Context(), request("second", inCluster)) })
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(calls).To(Equal(map[string]int{"FindAllByUuid": 2, "RecommendDatastores": 1, "CloneVM_Task": 1}), "what a machine costs to make")
	g.Expect(*template.sent[0].Location.Datastore).To(Equal(store))
	asked := p.asked[len(p.asked)-1]
	g.Expect(asked.Type).To(Equal("clone"))
	g.Expect(*asked.Vm).To(Equal(template.Self))
	g.Expect(asked.CloneSpec.Config.InstanceUuid).To(Equal(identityOf("second")))

	req := request("third", inCluster)
	req.FailureDomain = "rack-a"
	calls = v.counted(func() { _, err = d.Ensure(t.Context(), req) })
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(calls).NotTo(HaveKey("RecommendDatastores"), "the failure domain's datastore goes before")
}

// TestAntiAffinity: a group's machines are in one rule of their compute cluster, and an idle group
// costs nothing.
func TestAntiAffinity(t *testing.T) {
	g := NewWithT(t)
	v := start(t)
	d := v.driver(t)
	cluster := v.Context.Map.Any("ClusterComputeResource").(*simulator.ClusterComputeResource)
	members := func() map[string]int {
		n := map[string]int{}
		for _, rule := range cluster.ConfigurationEx.(*types.ClusterConfigInfoEx).Rule {
			r := rule.(*types.ClusterAntiAffinityRuleSpec)
			g.Expect(*r.Enabled).To(BeTrue())
			n[r.Name] = len(r.Vm)
		}
		return n
	}
	add := func(token, owner, group string) {
		req := request(token, func(m *infrav1.VSphereMachine) { m.AntiAffinityGroup = group })
		req.OwnershipID = owner
		_, err := d.Ensure(t.Context(), req)
		g.Expect(err).NotTo(HaveOccurred())
	}
	list := func() map[string]int {
		return v.counted(func() {
			all, err := d.List(t.Context())
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(all).To(HaveEach(HaveField("Notice", "")))
		})
	}
	idle := map[string]int{"RetrievePropertiesEx": 2}

	add("a1", "blue", "workers")
	list()
	g.Expect(members()).To(BeEmpty(), "one alone has nobody to be kept from")
	g.Expect(list()).To(Equal(idle))
	add("a2", "blue", "workers")
	add("r1", "red", "workers")
	add("r2", "red", "workers")
	add("none", "blue", "")
	calls := list()
	g.Expect(calls["ReconfigureComputeResource_Task"]).To(Equal(1), "one change for all")
	blue, red := ruleName("blue", "workers"), ruleName("red", "workers")
	g.Expect(members()).To(Equal(map[string]int{blue: 2, red: 2}), "each cluster has a rule of its own")
	g.Expect(list()).NotTo(HaveKey("ReconfigureComputeResource_Task"))
	g.Expect(list()).To(Equal(idle))

	d = v.driver(t) // a new process checks once, and changes nothing
	g.Expect(list()).NotTo(HaveKey("ReconfigureComputeResource_Task"))
	g.Expect(list()).To(Equal(idle))
	add("a3", "blue", "workers")
	undo := v.refuse("ReconfigureComputeResource_Task", &types.NoPermission{PrivilegeId: "Host.Inventory.EditCluster"})
	all, err := d.List(t.Context())
	g.Expect(err).NotTo(HaveOccurred(), "a rule that can't be set spoils no listing")
	g.Expect(all).To(ContainElements(
		And(HaveField("Token", "a3"), HaveField("Notice", ContainSubstring("Host.Inventory.EditCluster"))),
		And(HaveField("Token", "none"), HaveField("Notice", "")),
		And(HaveField("Token", "r1"), HaveField("Notice", ""))))
	undo()
	list()
	g.Expect(members()).To(Equal(map[string]int{blue: 3, red: 2}))
}

// TestRuleThatFails: the fault of a rule's task is shown with the machines.
func TestRuleThatFails(t *testing.T) {
	g := NewWithT(t)
	v := start(t)
	d := v.driver(t)
	for _, token := range []string{"a1", "a2"} {
		_, err := d.Ensure(t.Context(), request(token, func(m *infrav1.VSphereMachine) { m.AntiAffinityGroup = "workers" }))
		g.Expect(err).NotTo(HaveOccurred())
	}
	cluster := v.Context.Map.Any("ClusterComputeResource").(*simulator.ClusterComputeResource)
	v.Context.Map.Put(&stubbornCluster{cluster})
	all, err := d.List(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(all).To(HaveEach(HaveField("Notice", "")), "the task has begun")
	g.Expect(d.List(t.Context())).To(HaveEach(HaveField("Notice", ContainSubstring("InvalidArgument"))))
}

// stubbornCluster is a cluster whose changes start and fail.
type stubbornCluster struct {
	*simulator.ClusterComputeResource
}

// ReconfigureComputeResourceTask implements the method of vSphere's API, as vcsim calls it.
func (c *stubbornCluster) ReconfigureComputeResourceTask(ctx *simulator.Context, _ *types.ReconfigureComputeResource_Task) soap.HasFault {
	task := simulator.CreateTask(c.ClusterComputeResource, "reconfigureCluster", func(*simulator.Task) (types.AnyType, types.BaseMethodFault) {
		return nil, &types.InvalidArgument{InvalidProperty: "rulesSpec"}
	})
	return &methods.ReconfigureComputeResource_TaskBody{Res: &types.ReconfigureComputeResource_TaskResponse{Returnval: task.Run(ctx)}}
}

// TestIgnition: the configuration is in Ignition's variable, and cloud-init's variable is missing.
func TestIgnition(t *testing.T) {
	g := NewWithT(t)
	v := start(t)
	d := v.driver(t)
	req := request("ignition")
	req.UserData = []byte(" {\"ignition\": {\"version\": \"3.3.0\"}}\n")
	_, err := d.Ensure(t.Context(), req)
	g.Expect(err).NotTo(HaveOccurred())
	options := v.options(v.with(cloud.TagToken, "ignition")[0])
	g.Expect(unpacked(t, options["guestinfo.ignition.config.data"])).To(Equal(req.UserData))
	g.Expect(options).To(HaveKeyWithValue("guestinfo.ignition.config.data.encoding", "gzip+base64"))
	g.Expect(options).NotTo(HaveKey("guestinfo.userdata"))
	g.Expect(options).To(HaveKey("guestinfo.metadata"))

	req = request("static", func(m *infrav1.VSphereMachine) {
		m.Networks = []infrav1.VSphereNetwork{{Name: "VM Network", Addresses: []string{"192.0.2.10/24"}}}
	})
	req.UserData = []byte("{}")
	_, err = d.Ensure(t.Context(), req)
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.InvalidSpec), "Ignition would not set the address")
}
