// SPDX-License-Identifier: Apache-2.0

package vsphere

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"io"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
)

// unpacked decodes gzip+base64, as cloud-init does.
func unpacked(t testing.TB, text string) []byte {
	t.Helper()
	packed, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestDHCP: an adapter without addresses gets its IPv4 address with DHCP. Only an adapter that
// differs from that needs a configuration.
func TestDHCP(t *testing.T) {
	const on, off = infrav1.FeatureEnabled, infrav1.FeatureDisabled
	addresses := []string{"2001:db8::10/64"}
	for name, test := range map[string]struct {
		network             infrav1.VSphereNetwork
		dhcp4, dhcp6, needs bool
	}{
		"the default":             {infrav1.VSphereNetwork{}, true, false, false},
		"as the default":          {infrav1.VSphereNetwork{DHCP4: on, DHCP6: off}, true, false, false},
		"without":                 {infrav1.VSphereNetwork{DHCP4: off}, false, false, true},
		"IPv6":                    {infrav1.VSphereNetwork{DHCP4: off, DHCP6: on}, false, true, true},
		"addresses":               {infrav1.VSphereNetwork{Addresses: addresses}, false, false, true},
		"addresses and DHCP":      {infrav1.VSphereNetwork{Addresses: addresses, DHCP4: on}, true, false, true},
		"addresses, without DHCP": {infrav1.VSphereNetwork{Addresses: addresses, DHCP4: off}, false, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			e := ethernet(test.network, 0, "02:00:00:00:00:01")
			g.Expect([]any{e["dhcp4"], e["dhcp6"]}).To(Equal([]any{test.dhcp4, test.dhcp6}))
			g.Expect(configured(test.network)).To(Equal(test.needs))
		})
	}
}

// TestMachine: a machine with disks, networks and a failure domain becomes a VM that has them.
func TestMachine(t *testing.T) {
	g := NewWithT(t)
	v := start(t)
	d := v.driver(t)
	req := request("full", func(m *infrav1.VSphereMachine) {
		m.DiskGiB, m.DataDisks, m.CoresPerSocket = 40, []infrav1.VSphereDataDisk{{SizeGiB: 100}, {SizeGiB: 5}}, 2
		m.Networks = []infrav1.VSphereNetwork{
			{Name: "DC0_DVPG0", MTU: 9000},
			{Name: "VM Network", DHCP6: infrav1.FeatureEnabled, Addresses: []string{"192.0.2.10/24"}, Gateway4: "192.0.2.1",
				Nameservers:   []string{"192.0.2.53"},
				SearchDomains: []string{"example.com"}, Routes: []infrav1.VSphereRoute{{To: "198.51.100.0/24", Via: "192.0.2.254", Metric: 100}}},
		}
	})
	req.FailureDomain = "rack-b"
	_, err := d.Ensure(t.Context(), req)
	g.Expect(err).NotTo(HaveOccurred())
	m := v.with(cloud.TagToken, "full")[0]

	g.Expect(m.Config.Hardware.NumCPU).To(BeEquivalentTo(4))
	g.Expect(m.Config.Hardware.MemoryMB).To(BeEquivalentTo(8192))
	var sizes []int64
	var macs []string
	for _, device := range m.Config.Hardware.Device {
		switch device := device.(type) {
		case *types.VirtualDisk:
			sizes = append(sizes, device.CapacityInKB>>20)
		case types.BaseVirtualEthernetCard:
			macs = append(macs, device.GetVirtualEthernetCard().MacAddress)
		}
	}
	g.Expect(sizes).To(Equal([]int64{40, 100, 5}))
	g.Expect(macs).To(Equal([]string{mac("full", 0), mac("full", 1)}))
	pool := v.Context.Map.Get(*m.ResourcePool).(mo.Entity).Entity()
	g.Expect(pool.Name).To(Equal("DC0_C0_RP1"), "the failure domain's, instead of the machine's own")

	options := v.options(m)
	g.Expect(options).To(HaveKeyWithValue(cloud.TagOwnership, "blue"))
	g.Expect(options).To(HaveKeyWithValue(cloud.TagMachine, "team/m-full"))
	g.Expect(options).To(HaveKeyWithValue("guestinfo.userdata.encoding", "gzip+base64"))
	g.Expect(options).To(HaveKeyWithValue("guestinfo.metadata.encoding", "gzip+base64"))
	g.Expect(unpacked(t, options["guestinfo.userdata"])).To(BeEquivalentTo("#cloud-config\n"))
	g.Expect(unpacked(t, options["guestinfo.metadata"])).To(MatchJSON(`{
		"instance-id": "` + identityOf("full") + `", "local-hostname": "m-full",
		"network": {"version": 2, "ethernets": {
			"nic0": {"match": {"macaddress": "` + macs[0] + `"}, "set-name": "eth0", "dhcp4": true, "dhcp6": false, "mtu": 9000},
			"nic1": {"match": {"macaddress": "` + macs[1] + `"}, "set-name": "eth1", "dhcp4": false, "dhcp6": true, "addresses": ["192.0.2.10/24"],
				"nameservers": {"addresses": ["192.0.2.53"], "search": ["example.com"]},
				"gateway4": "192.0.2.1", "routes": [{"to": "198.51.100.0/24", "via": "192.0.2.254", "metric": 100}]}
		}}}`))

	found, err := d.List(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(found).To(HaveLen(1))
	g.Expect(found[0].FailureDomain).To(Equal("rack-b"))
}

// TestMetadataIsTheSame: a repeated create sends the same bytes as the first one. Verified to fail
// when the default routes came from a map.
func TestMetadataIsTheSame(t *testing.T) {
	g := NewWithT(t)
	req := request("same", func(m *infrav1.VSphereMachine) {
		m.Networks = []infrav1.VSphereNetwork{{Name: "VM Network", Gateway4: "192.0.2.1", Gateway6: "2001:db8::1"}}
	})
	first, err := metadata(req)
	g.Expect(err).NotTo(HaveOccurred())
	for range 50 {
		again, err := metadata(req)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(string(again)).To(Equal(string(first)))
	}
}

// TestLinkedClone: a linked clone needs a snapshot, the current or the named one. It shares that
// snapshot's disks and starts with its devices. Verified to fail with the current snapshot, and
// with the template's own devices, instead of the named one's.
func TestLinkedClone(t *testing.T) {
	g := NewWithT(t)
	v := start(t)
	d := v.driver(t)
	original := v.named("DC0_C0_RP1_VM0")
	snapshots := map[int]types.ManagedObjectReference{}
	g.Expect(d.vcenter.withSession(t.Context(), func(s *session) error {
		for i, name := range []string{"base", "patched", "base"} { // each is a child of the previous one
			if _, err := methods.CreateSnapshot_Task(t.Context(), s, &types.CreateSnapshot_Task{This: original.Self, Name: name}); err != nil {
				return err
			}
			v.settle()
			snapshots[i] = *original.Snapshot.CurrentSnapshot
		}
		return nil
	})).To(Succeed())
	old := v.Context.Map.Get(snapshots[1]).(*simulator.VirtualMachineSnapshot)
	v.Context.WithLock(old, func() { old.Config.Hardware.MemoryMB = 12345 })
	ask := func(name string) (types.VirtualMachineCloneSpec, template) {
		req := request("linked", func(m *infrav1.VSphereMachine) { m.CloneMode, m.Snapshot = infrav1.VSphereCloneLinked, name })
		var spec *types.VirtualMachineCloneSpec
		var from template
		g.Expect(d.vcenter.withSession(t.Context(), func(s *session) error {
			p, err := d.plan(t.Context(), s, req.Spec.Cloud.VSphere, "")
			g.Expect(err).NotTo(HaveOccurred())
			from = p.template
			spec, err = p.cloneSpec(req, identityOf(req.Token))
			return err
		})).To(Succeed())
		return *spec, from
	}
	for name, which := range map[string]int{"": 2, "patched": 1, "base/patched": 1, "base": 0, "patched/base": 2, "base/patched/base": 2} {
		spec, from := ask(name)
		g.Expect(*spec.Snapshot).To(Equal(snapshots[which]), name)
		g.Expect(spec.Location.DiskMoveType).To(Equal("createNewChildDiskBacking"))
		g.Expect(from.memoryMiB == 12345).To(Equal(which == 1), "the configuration is that of snapshot %q", name)
	}
	_, err := d.Ensure(t.Context(), request("linked",
		func(m *infrav1.VSphereMachine) { m.CloneMode, m.Snapshot = infrav1.VSphereCloneLinked, "patched" }))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(d.List(t.Context())).To(HaveLen(1))

	_, err = d.Ensure(t.Context(), request("none",
		func(m *infrav1.VSphereMachine) { m.CloneMode, m.Snapshot = infrav1.VSphereCloneLinked, "atched" }))
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.InvalidSpec))
	g.Expect(err).To(MatchError(ContainSubstring(`no snapshot "atched"`)))
	twins := types.VirtualMachineSnapshotInfo{RootSnapshotList: []types.VirtualMachineSnapshotTree{{Name: "base"}, {Name: "base"}}}
	_, err = snapshotOf(twins, "base")
	g.Expect(err).To(MatchError(ContainSubstring("2 snapshots")), "the first is not as good as the other")
}

// TestHost: the machine goes to the named host, unless its failure domain has its own pool.
// Verified to fail without the host in the request, and when a failure domain's machine kept the
// host.
func TestHost(t *testing.T) {
	g := NewWithT(t)
	v := start(t, 1)
	host := v.Context.Map.Any("HostSystem").(*simulator.HostSystem)
	onHost := func(m *infrav1.VSphereMachine) { m.Host = "DC0_C0/" + host.Name }
	g.Expect(*sent(t, v, onHost).Location.Host).To(Equal(host.Self))
	g.Expect(sent(t, v).Location.Host).To(BeNil(), "vCenter's choice")
	req := request("domain", onHost)
	req.FailureDomain = "rack-b"
	template := v.replace(func(*heldVM) {})
	_, err := v.driver(t).Ensure(t.Context(), req)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(template.sent[0].Location.Host).To(BeNil(), "another pool has other hosts")
}

func TestOffering(t *testing.T) {
	g := NewWithT(t)
	own := template{cpus: 2, memoryMiB: 4096, guest: "ubuntu64Guest",
		devices: []types.BaseVirtualDevice{&types.VirtualDisk{CapacityInKB: 20 << 20}}}
	o := own.offering(&infrav1.VSphereMachine{})
	g.Expect(o.Architecture + "/" + o.OperatingSystem).To(Equal("amd64/linux"))
	g.Expect(o.Capacity.Cpu().Value()).To(BeEquivalentTo(2))
	g.Expect(o.Capacity.Memory().Value()).To(BeEquivalentTo(4 << 30))
	g.Expect(o.Capacity.StorageEphemeral().Value()).To(BeEquivalentTo(20 << 30))
	o = own.offering(&infrav1.VSphereMachine{CPUs: 8, MemoryMiB: 16384, DiskGiB: 40})
	g.Expect(o.Capacity).To(HaveKeyWithValue(corev1.ResourceCPU, HaveField("String()", "8")))
	g.Expect(o.Capacity.Memory().Value()).To(BeEquivalentTo(16 << 30))
	g.Expect(o.Capacity.StorageEphemeral().Value()).To(BeEquivalentTo(40 << 30))
	own.guest = "windows2022srvNext_64Guest"
	g.Expect(own.offering(&infrav1.VSphereMachine{}).OperatingSystem).To(Equal("windows"))
}

// TestFullController: disks use free units, and are refused if there are none.
func TestFullController(t *testing.T) {
	g := NewWithT(t)
	own := template{devices: []types.BaseVirtualDevice{&types.VirtualDisk{VirtualDevice: types.VirtualDevice{ControllerKey: 1000,
		UnitNumber: ptr.To[int32](6)}}}}
	changes, err := own.changes(&infrav1.VSphereMachine{DataDisks: make([]infrav1.VSphereDataDisk, 14)}, nil, "t")
	g.Expect(err).NotTo(HaveOccurred())
	units := map[int32]bool{6: true, 7: true}
	for _, c := range changes {
		unit := *c.GetVirtualDeviceConfigSpec().Device.GetVirtualDevice().UnitNumber
		g.Expect(units).NotTo(HaveKey(unit))
		units[unit] = true
	}
	g.Expect(units).To(HaveLen(16))
	_, err = own.changes(&infrav1.VSphereMachine{DataDisks: make([]infrav1.VSphereDataDisk, 15)}, nil, "t")
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.InvalidSpec))
	_, err = template{}.changes(&infrav1.VSphereMachine{DiskGiB: 1}, nil, "t")
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.InvalidSpec))
}

func TestValidate(t *testing.T) {
	g := NewWithT(t)
	account := &infrav1.DroverAccountSpec{Cloud: infrav1.AccountCloud{VSphere: &infrav1.VSphereAccount{Server: "vcenter.example.com",
		Datacenter: "dc1", CABundle: "no PEM", Thumbprint: "da39a3ee5e6b4b0d3255bfef95601890afd80709",
		NodeAddresses: &infrav1.VSphereNodeAddresses{Exclude: []string{"192.0.2.0/24", "192.0.2.1"}}}}}
	g.Expect(validateAccount(account, field.NewPath("spec"))).To(ConsistOf(
		HaveField("Field", "spec.credentialsRef"), HaveField("Field", "spec.cloud.vsphere.caBundle"),
		HaveField("Field", "spec.cloud.vsphere.thumbprint"),
		HaveField("Field", "spec.cloud.vsphere.nodeAddresses.exclude[1]")))
	_, err := newDriver(cloud.Config{Account: account, Credentials: map[string][]byte{usernameKey: []byte("u")}})
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unauthorized))
	account.Cloud.VSphere.Server = "host/path"
	_, err = newDriver(cloud.Config{Account: account, Credentials: credentials()})
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.InvalidSpec))

	bad := machine(func(m *infrav1.VSphereMachine) {
		m.ExtraConfig[0].Key = "Drover-Creation-Token"
		m.Networks = []infrav1.VSphereNetwork{{
			Addresses: []string{"192.0.2.1"}, Nameservers: []string{"dns"}, Gateway4: "::1", Gateway6: "192.0.2.1",
			Routes: []infrav1.VSphereRoute{{To: "default", Via: "nowhere"}},
		}}
	})
	var fields []string
	for _, e := range union.ValidateMachine(bad, field.NewPath("spec")) {
		fields = append(fields, strings.TrimPrefix(e.Field, "spec.cloud.vsphere."))
	}
	g.Expect(fields).To(ConsistOf("extraConfig[0].key", "networks[0].addresses[0]", "networks[0].nameservers[0]",
		"networks[0].gateway4", "networks[0].gateway6", "networks[0].routes[0].to", "networks[0].routes[0].via"))
}

var vmNames = regexp.MustCompile(`^[a-z0-9][-a-z0-9]{0,62}$`)

// FuzzNames: any machine name gives a valid host name, and a VM name that is safe in an inventory
// path.
func FuzzNames(f *testing.F) {
	for _, name := range []string{"m", "", "../../etc", "a/b", "a%2fb", "x' or 'x", "<b>", "ü", strings.Repeat("a", 300), "-", "A.b.C",
		"\x00"} {
		f.Add(name, "token")
	}
	f.Fuzz(func(t *testing.T, name, token string) {
		if fault := validation.IsDNS1123Label(label(name)); len(fault) > 0 {
			t.Errorf("%q became host name %q: %v", name, label(name), fault)
		}
		if !vmNames.MatchString(vmName(name, token)) {
			t.Errorf("%q became VM %q", name, vmName(name, token))
		}
		if other := name + "x"; label(other) == label(name) {
			t.Errorf("%q and %q became one host name", name, other)
		}
	})
}

// FuzzMetadata: whatever the fields hold, the metadata is JSON with the same values.
func FuzzMetadata(f *testing.F) {
	f.Add("token", "name", "192.0.2.1/24", "a\": 1}\n")
	f.Fuzz(func(t *testing.T, token, name, address, search string) {
		req := request(token, func(m *infrav1.VSphereMachine) {
			m.Networks = []infrav1.VSphereNetwork{{Addresses: []string{address}, SearchDomains: []string{search}}}
		})
		req.Name = name
		text, err := metadata(req)
		if err != nil {
			t.Fatal(err)
		}
		var data struct {
			ID      string `json:"instance-id"`
			Host    string `json:"local-hostname"`
			Network struct {
				Ethernets map[string]struct{ Addresses []string }
			}
		}
		if err := json.Unmarshal(text, &data); err != nil {
			t.Fatal(err)
		}
		got := []string{data.ID, data.Host, data.Network.Ethernets["nic0"].Addresses[0]}
		for i, want := range []string{identityOf(token), label(name), address} {
			if got[i] != strings.ToValidUTF8(want, "\ufffd") && got[i] != want && strings.ToValidUTF8(want, "") == want {
				t.Errorf("wrote %q, read %q", want, got[i])
			}
		}
	})
}
