// SPDX-License-Identifier: Apache-2.0

package vsphere

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/vmware/govmomi/vim25/types"
	"k8s.io/utils/ptr"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
)

// planTTL is how long resolved names and templates are cached: long enough for a pool's machines
// to share the look-ups, short enough for a changed template. If the cache is wrong, a clone fails
// and resets it.
const planTTL = 5 * time.Minute

// plan holds what the names in a machine's fields resolve to.
type plan struct {
	template   template
	folder     types.ManagedObjectReference
	pool       types.ManagedObjectReference
	host       *types.ManagedObjectReference
	store      *types.ManagedObjectReference
	pod        *types.ManagedObjectReference // the datastore cluster; each machine gets one of its datastores
	policy     []types.BaseVirtualMachineProfileSpec
	networks   []types.BaseVirtualDeviceBackingInfo
	tags       []string          // IDs of the tags to attach
	attributes map[string]string // values of the custom attributes, by key
}

// template is what a clone starts from.
type template struct {
	name      string // for messages
	ref       types.ManagedObjectReference
	cpus      int32
	memoryMiB int32
	guest     string
	version   string // its hardware version
	devices   []types.BaseVirtualDevice
	snapshot  *types.ManagedObjectReference // the snapshot that a linked clone is made from
}

// plan resolves the names, or returns the cached result.
func (d *driver) plan(ctx context.Context, s *session, spec *infrav1.VSphereMachine, domain string) (*plan, error) {
	where, err := d.place(ctx, s, domain)
	if err != nil {
		return nil, err
	}
	kind, err := json.Marshal([]any{spec.Template, spec.ContentLibrary, spec.CloneMode, spec.Snapshot, spec.Folder, spec.ResourcePool,
		spec.Host, spec.Datastore,
		spec.DatastoreCluster, spec.StoragePolicy, spec.Networks, spec.Tags, spec.CustomAttributes, where})
	if err != nil {
		return nil, &cloud.Error{Code: cloud.InvalidSpec, Message: "the machine's fields can't be encoded", Err: err}
	}
	p, err := d.plans.Get(ctx, string(kind), func(ctx context.Context) (*plan, error) {
		return d.resolve(ctx, s, where.withPlacement(spec),
			where)
	})
	if err == nil {
		d.clones.addTemplate(p.template.ref)
	}
	return p, err
}

// resolve resolves fields in which the failure domain's names have already been set.
func (d *driver) resolve(ctx context.Context, s *session, spec *infrav1.VSphereMachine, where place) (p *plan, err error) {
	p = &plan{}
	if p.template, err = d.template(ctx, s, spec); err != nil {
		return nil, err
	}
	switch {
	case where.Pool != nil:
		p.pool = *where.Pool
	case spec.ResourcePool == "":
		return nil, cloud.Invalid("resourcePool is not set, and no failure domain has one")
	default:
		if p.pool, err = s.child(ctx, "resource pool", "host", spec.ResourcePool, "ResourcePool", "VirtualApp"); err != nil {
			return nil, where.refusal(err)
		}
	}
	if spec.Host != "" {
		host, err := s.child(ctx, "host", "host", spec.Host, "HostSystem")
		if err != nil {
			return nil, err
		}
		p.host = &host
	}
	if p.folder, err = s.child(ctx, "folder", "vm", spec.Folder, "Folder"); err != nil {
		return nil, err
	}
	if err := s.storage(ctx, p, spec); err != nil {
		if where.Datastore != "" && p.store == nil {
			err = where.refusal(err)
		}
		return nil, err
	}
	if where.Store != nil {
		p.store = where.Store
	}
	for _, n := range spec.Networks {
		backing, err := d.network(ctx, s, n.Name)
		if err != nil {
			return nil, err
		}
		p.networks = append(p.networks, backing)
	}
	if p.tags, err = d.tagIDs(ctx, s, spec.Tags); err != nil {
		return nil, err
	}
	p.attributes, err = s.attributeKeys(ctx, d.page, spec.CustomAttributes)
	return p, err
}

// child finds what a machine's field names, below the datacenter's folder for its kind.
func (s *session) child(ctx context.Context, what, folder, name string, kinds ...string) (types.ManagedObjectReference, error) {
	ref, err := s.find(ctx, what, path.Join(s.vcenter.datacenter, folder)+strings.TrimSuffix("/"+name, "/"))
	if err == nil && !slices.Contains(kinds, ref.Type) {
		return ref, cloud.Errorf(cloud.InvalidSpec, "%q is a %s, not a %s", cloud.Clip(name, 512), ref.Type, what)
	}
	return ref, err
}

// template reads what a clone starts from: the configuration of the template or, for a linked
// clone, of its snapshot.
func (d *driver) template(ctx context.Context, s *session, spec *infrav1.VSphereMachine) (t template, err error) {
	if lib := spec.ContentLibrary; lib.Item != "" {
		t.name = fmt.Sprintf("template %q of content library %q", cloud.Clip(lib.Item, 255), cloud.Clip(lib.Library, 255))
		t.ref, err = s.libraryTemplate(ctx, lib)
	} else {
		t.name = fmt.Sprintf("template %q", cloud.Clip(spec.Template, 512))
		t.ref, err = s.child(ctx, "template", "vm", spec.Template, "VirtualMachine")
	}
	if err != nil {
		return t, err
	}
	read := func(ref types.ManagedObjectReference, paths ...string) (vm, error) {
		found, err := s.readObjects(ctx, d.page, []types.ManagedObjectReference{ref},
			append(paths, "config.hardware", "config.guestId", "config.version"))
		if err == nil && len(found) == 0 {
			err = cloud.Errorf(cloud.NotFound, "%s, or its snapshot, was just removed", t.name)
		}
		return append(found, vm{})[0], err
	}
	found, err := read(t.ref, "snapshot")
	if err != nil {
		return t, err
	}
	if spec.CloneMode == infrav1.VSphereCloneLinked {
		all, _ := found.properties["snapshot"].(types.VirtualMachineSnapshotInfo)
		if t.snapshot, err = snapshotOf(all, spec.Snapshot); err != nil {
			return t, cloud.Errorf(cloud.InvalidSpec, "%s has %v, but a linked clone needs one", t.name, err)
		}
		if found, err = read(*t.snapshot); err != nil {
			return t, err
		}
	}
	hardware, ok := found.properties["config.hardware"].(types.VirtualHardware)
	if !ok {
		return t, cloud.Errorf(cloud.Unavailable, "vCenter can't read the configuration of %s now", t.name)
	}
	t.cpus, t.memoryMiB, t.devices = hardware.NumCPU, hardware.MemoryMB, hardware.Device
	t.guest, t.version = found.text("config.guestId"), found.text("config.version")
	return t, nil
}

// snapshotOf returns the current snapshot for no name. Otherwise it returns the snapshot with this
// path or, if there is none, the only one whose path ends with the name.
func snapshotOf(all types.VirtualMachineSnapshotInfo, name string) (*types.ManagedObjectReference, error) {
	if name == "" && all.CurrentSnapshot == nil {
		return nil, errors.New("no snapshot")
	}
	if name == "" {
		return all.CurrentSnapshot, nil
	}
	var exact, ending []types.ManagedObjectReference
	var walk func(path string, trees []types.VirtualMachineSnapshotTree)
	walk = func(path string, trees []types.VirtualMachineSnapshotTree) {
		for _, tree := range trees {
			path := path + "/" + tree.Name
			if path == "/"+name {
				exact = append(exact, tree.Snapshot)
			}
			if strings.HasSuffix(path, "/"+name) {
				ending = append(ending, tree.Snapshot)
			}
			walk(path, tree.ChildSnapshotList)
		}
	}
	walk("", all.RootSnapshotList)
	if len(exact) == 1 {
		ending = exact
	}
	switch len(ending) {
	case 0:
		return nil, fmt.Errorf("no snapshot %q", cloud.Clip(name, 512))
	case 1:
		return &ending[0], nil
	}
	return nil, fmt.Errorf("%d snapshots %q: use a longer path, or rename one", len(ending), cloud.Clip(name, 512))
}

// network returns the backing of an adapter in a network.
func (d *driver) network(ctx context.Context, s *session, name string) (types.BaseVirtualDeviceBackingInfo, error) {
	ref, err := s.child(ctx, "network", "network", name, "Network", "DistributedVirtualPortgroup", "OpaqueNetwork")
	if err != nil {
		return nil, err
	}
	read := func(ref types.ManagedObjectReference, paths ...string) (vm, error) {
		found, err := s.readObjects(ctx, d.page, []types.ManagedObjectReference{ref}, paths)
		if err == nil && len(found) == 0 {
			err = cloud.Errorf(cloud.NotFound, "network %q was just removed", cloud.Clip(name, 512))
		}
		return append(found, vm{})[0], err
	}
	switch ref.Type {
	case "DistributedVirtualPortgroup":
		group, err := read(ref, "key", "config.distributedVirtualSwitch")
		if err != nil {
			return nil, err
		}
		above, ok := group.properties["config.distributedVirtualSwitch"].(types.ManagedObjectReference)
		if !ok {
			return nil, cloud.Errorf(cloud.InvalidSpec, "port group %q has no switch, or the account's user may not see it", cloud.Clip(name, 512))
		}
		dvs, err := read(above, "uuid")
		if err != nil {
			return nil, err
		}
		return &types.VirtualEthernetCardDistributedVirtualPortBackingInfo{Port: types.DistributedVirtualSwitchPortConnection{
			SwitchUuid: dvs.text("uuid"), PortgroupKey: group.text("key"),
		}}, nil
	case "OpaqueNetwork":
		opaque, err := read(ref, "summary")
		summary, _ := opaque.properties["summary"].(types.OpaqueNetworkSummary)
		return &types.VirtualEthernetCardOpaqueNetworkBackingInfo{
			OpaqueNetworkId: summary.OpaqueNetworkId, OpaqueNetworkType: summary.OpaqueNetworkType,
		}, err
	}
	return &types.VirtualEthernetCardNetworkBackingInfo{
		VirtualDeviceDeviceBackingInfo: types.VirtualDeviceDeviceBackingInfo{DeviceName: path.Base(name)}, Network: &ref,
	}, nil
}

// cloneSpec returns the specification of the complete machine.
func (p *plan) cloneSpec(req cloud.Request, id string) (*types.VirtualMachineCloneSpec, error) {
	spec := req.Spec.Cloud.VSphere
	options, err := options(req)
	if err != nil {
		return nil, err
	}
	marks, err := p.marks()
	if err != nil {
		return nil, err
	}
	options = append(options, marks...)
	devices, err := p.template.changes(spec, p.networks, req.Token)
	if err != nil {
		return nil, err
	}
	upgrade, err := p.template.upgradeOf(spec.HardwareVersion)
	if err != nil {
		return nil, err
	}
	for _, change := range devices {
		if change := change.GetVirtualDeviceConfigSpec(); change.FileOperation != "" {
			change.Profile = p.policy
		}
	}
	clone := &types.VirtualMachineCloneSpec{
		PowerOn:  true,
		Location: types.VirtualMachineRelocateSpec{Folder: &p.folder, Pool: &p.pool, Host: p.host, Datastore: p.store, Profile: p.policy},
		Config: &types.VirtualMachineConfigSpec{
			InstanceUuid: id, Uuid: id,
			NumCPUs: spec.CPUs, MemoryMB: spec.MemoryMiB,
			Flags:        &types.VirtualMachineFlagInfo{DiskUuidEnabled: ptr.To(true)}, // CSI drivers find disks by their UUID
			DeviceChange: devices,
			ExtraConfig:  options,
			BootOptions:  bootOptions(spec),
			Firmware:     firmwareOf(spec),

			ScheduledHardwareUpgradeInfo: upgrade,
		},
	}
	if spec.CoresPerSocket > 0 {
		clone.Config.NumCoresPerSocket = &spec.CoresPerSocket
	}
	if len(spec.PCIDevices) > 0 { // a device accesses memory directly, so all of it must be resident
		clone.Config.MemoryReservationLockedToMax = ptr.To(true)
	}
	if spec.TPM == infrav1.VSphereTPMVirtual && p.template.hasTPM() {
		clone.TpmProvisionPolicy = string(types.VirtualMachineCloneSpecTpmProvisionPolicyReplace)
	}
	if spec.CloneMode == infrav1.VSphereCloneLinked {
		clone.Snapshot = p.template.snapshot
		clone.Location.DiskMoveType = string(types.VirtualMachineRelocateDiskMoveOptionsCreateNewChildDiskBacking)
	}
	return clone, nil
}

// changes returns how the machine's devices differ from its template's.
func (t template) changes(spec *infrav1.VSphereMachine, networks []types.BaseVirtualDeviceBackingInfo,
	token string) ([]types.BaseVirtualDeviceConfigSpec, error) {
	var all []types.BaseVirtualDeviceConfigSpec
	change := func(how types.VirtualDeviceConfigSpecOperation, device types.BaseVirtualDevice,
		file types.VirtualDeviceConfigSpecFileOperation) {
		all = append(all, &types.VirtualDeviceConfigSpec{Operation: how, Device: device, FileOperation: file})
	}
	key := int32(0)
	newKey := func() int32 { key--; return key } // new devices have negative keys that the client chooses
	root, units := t.disks()
	if root == nil && (spec.DiskGiB > 0 || len(spec.DataDisks) > 0) {
		return nil, cloud.Errorf(cloud.InvalidSpec, "%s has no disk", t.name)
	}
	if spec.DiskGiB > 0 {
		if root.CapacityInKB > int64(spec.DiskGiB)<<20 {
			return nil, cloud.Errorf(cloud.InvalidSpec, "diskGiB is %d, but the disk of %s has %d: disks can't shrink", spec.DiskGiB, t.name,
				root.CapacityInKB>>20)
		}
		larger := *root
		larger.CapacityInKB, larger.CapacityInBytes = int64(spec.DiskGiB)<<20, int64(spec.DiskGiB)<<30
		change(types.VirtualDeviceConfigSpecOperationEdit, &larger, "")
	}
	for _, disk := range spec.DataDisks {
		unit := int32(0)
		for units[unit] || unit == 7 { // 7 is the SCSI controller's own
			unit++
		}
		if unit > 15 {
			return nil, cloud.Errorf(cloud.InvalidSpec, "the disk controller of %s has no free slot for %d more disks", t.name, len(spec.DataDisks))
		}
		units[unit] = true
		change(types.VirtualDeviceConfigSpecOperationAdd, &types.VirtualDisk{
			VirtualDevice: types.VirtualDevice{
				Key: newKey(), ControllerKey: root.ControllerKey, UnitNumber: &unit,
				Backing: &types.VirtualDiskFlatVer2BackingInfo{DiskMode: string(types.VirtualDiskModePersistent), ThinProvisioned: ptr.To(true)},
			},
			CapacityInKB: int64(disk.SizeGiB) << 20,
		}, types.VirtualDeviceConfigSpecFileOperationCreate)
	}
	for _, device := range spec.PCIDevices {
		change(types.VirtualDeviceConfigSpecOperationAdd, &types.VirtualPCIPassthrough{
			VirtualDevice: types.VirtualDevice{Key: newKey(), Backing: pciBacking(device)},
		}, "")
	}
	if spec.TPM == infrav1.VSphereTPMVirtual && !t.hasTPM() {
		change(types.VirtualDeviceConfigSpecOperationAdd, &types.VirtualTPM{VirtualDevice: types.VirtualDevice{Key: newKey()}}, "")
	}
	if len(networks) == 0 {
		return all, nil
	}
	for _, device := range t.devices {
		if card, ok := device.(types.BaseVirtualEthernetCard); ok {
			change(types.VirtualDeviceConfigSpecOperationRemove, card.(types.BaseVirtualDevice), "")
		}
	}
	for i, backing := range networks {
		card := types.VirtualEthernetCard{VirtualDevice: types.VirtualDevice{
			Key: newKey(), Backing: backing, Connectable: &types.VirtualDeviceConnectInfo{StartConnected: true, AllowGuestControl: true,
				Connected: true},
		}}
		if address := macOf(spec.Networks, token, i); address != "" {
			card.AddressType, card.MacAddress = string(types.VirtualEthernetCardMacTypeManual), address
		}
		change(types.VirtualDeviceConfigSpecOperationAdd,
			&types.VirtualVmxnet3{VirtualVmxnet: types.VirtualVmxnet{VirtualEthernetCard: card}}, "")
	}
	return all, nil
}

// pciBacking returns the backing for any device of the kind, on any host that has one free, or for
// a share of a graphics card.
func pciBacking(d infrav1.VSpherePCIDevice) types.BaseVirtualDeviceBackingInfo {
	if d.VGPUProfile != "" {
		return &types.VirtualPCIPassthroughVmiopBackingInfo{Vgpu: d.VGPUProfile}
	}
	return &types.VirtualPCIPassthroughDynamicBackingInfo{
		AllowedDevice: []types.VirtualPCIPassthroughAllowedDevice{{VendorId: d.VendorID, DeviceId: d.DeviceID}},
	}
}

func (t template) hasTPM() bool {
	return slices.ContainsFunc(t.devices, func(d types.BaseVirtualDevice) bool { _, ok := d.(*types.VirtualTPM); return ok })
}

// disks returns the first disk and the unit numbers in use on its controller.
func (t template) disks() (root *types.VirtualDisk, units map[int32]bool) {
	units = map[int32]bool{}
	for _, device := range t.devices {
		if disk, ok := device.(*types.VirtualDisk); ok && root == nil {
			root = disk
		}
	}
	for _, device := range t.devices {
		if v := device.GetVirtualDevice(); root != nil && v.ControllerKey == root.ControllerKey && v.UnitNumber != nil {
			units[*v.UnitNumber] = true
		}
	}
	return root, units
}

// Offering returns the template's capacity, with the changes that the machine's own fields make.
func (d *driver) Offering(ctx context.Context, fields *infrav1.DroverMachineFields) (o cloud.Offering, err error) {
	if fields == nil || fields.Cloud.VSphere == nil {
		return o, cloud.Invalid("the machine's spec.cloud.vsphere is not set")
	}
	err = d.vcenter.withSession(ctx, func(s *session) error {
		t, err := d.template(ctx, s, fields.Cloud.VSphere)
		if cloud.CodeOf(err) == cloud.NotFound {
			return &cloud.Error{Code: cloud.InvalidSpec, Message: fmt.Sprintf("no offering: %v", err), Err: err}
		}
		if err == nil {
			o = t.offering(fields.Cloud.VSphere)
		}
		return err
	})
	return o, err
}

func (t template) offering(spec *infrav1.VSphereMachine) cloud.Offering {
	cpus, memory, disk := int64(t.cpus), int64(t.memoryMiB), int64(0)
	if spec.CPUs > 0 {
		cpus = int64(spec.CPUs)
	}
	if spec.MemoryMiB > 0 {
		memory = spec.MemoryMiB
	}
	if root, _ := t.disks(); root != nil {
		disk = max(root.CapacityInKB<<10, int64(spec.DiskGiB)<<30)
	}
	o := driverkit.Offering("amd64", cpus, memory<<20, disk, nil)
	guest := strings.ToLower(t.guest)
	if strings.Contains(guest, "arm") {
		o.Architecture = "arm64"
	}
	if strings.HasPrefix(guest, "win") {
		o.OperatingSystem = "windows"
	}
	return o
}
