// SPDX-License-Identifier: Apache-2.0

package vsphere

import (
	"testing"

	. "github.com/onsi/gomega"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
)

// TestTwoTemplatesOfOneName: names are paths, so each template is found in its own folder. A name
// that exists only in other folders is not found. Verified to fail when the path was ignored.
func TestTwoTemplatesOfOneName(t *testing.T) {
	g := NewWithT(t)
	v := start(t)
	d := v.driver(t)
	original := v.named("DC0_C0_RP1_VM0")
	g.Expect(d.vcenter.withSession(t.Context(), func(s *session) error {
		root, err := s.child(t.Context(), "folder", "vm", "", "Folder")
		g.Expect(err).NotTo(HaveOccurred())
		folder, err := methods.CreateFolder(t.Context(), s, &types.CreateFolder{This: root, Name: "old"})
		g.Expect(err).NotTo(HaveOccurred())
		_, err = methods.CloneVM_Task(t.Context(), s, &types.CloneVM_Task{This: original.Self, Folder: folder.Returnval, Name: original.Name,
			Spec: types.VirtualMachineCloneSpec{Location: types.VirtualMachineRelocateSpec{Pool: original.ResourcePool}}})
		return err
	})).To(Succeed())
	found := map[types.ManagedObjectReference]bool{}
	for _, name := range []string{original.Name, "old/" + original.Name} {
		g.Expect(d.vcenter.withSession(t.Context(), func(s *session) error {
			p, err := d.plan(t.Context(), s, machine(func(m *infrav1.VSphereMachine) { m.Template = name }).Cloud.VSphere, "")
			if err == nil {
				found[p.template.ref] = true
			}
			return err
		})).To(Succeed())
	}
	g.Expect(found).To(HaveLen(2))
	g.Expect(found).To(HaveKey(original.Self))
	_, err := d.Ensure(t.Context(), request("m", func(m *infrav1.VSphereMachine) { m.Template = "new/" + original.Name }))
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.NotFound))
}

// TestOtherDatacenter: objects in another datacenter are not found, even if the account's user may
// see them. Verified to fail when dots in a path were followed.
func TestOtherDatacenter(t *testing.T) {
	g := NewWithT(t)
	v := start(t)
	d := v.driver(t)
	g.Expect(d.vcenter.withSession(t.Context(), func(s *session) error {
		made, err := methods.CreateDatacenter(t.Context(), s, &types.CreateDatacenter{This: v.model.ServiceContent.RootFolder, Name: "DC1"})
		g.Expect(err).NotTo(HaveOccurred())
		datacenter := v.Context.Map.Get(made.Returnval).(*simulator.Datacenter)
		folder := v.Context.Map.Get(datacenter.NetworkFolder).(*simulator.Folder)
		v.Context.WithLock(folder, func() {
			theirs := &mo.Network{}
			theirs.Name = "theirs"
			v.Context.Map.PutEntity(folder, v.Context.Map.NewEntity(theirs))
			folder.ChildEntity = append(folder.ChildEntity, theirs.Self)
		})
		_, err = s.find(t.Context(), "network", "DC1/network/theirs")
		return err
	})).To(Succeed(), "it is there")
	for _, name := range []string{"theirs", "../../DC1/network/theirs", "DC1/network/theirs"} {
		_, err := d.Ensure(t.Context(), request("m", func(m *infrav1.VSphereMachine) { m.Networks = []infrav1.VSphereNetwork{{Name: name}} }))
		g.Expect(cloud.CodeOf(err)).To(Equal(cloud.NotFound), name)
	}
}

// TestRefusedPlaces: vCenter's faults for a full datastore, a folder that the user may not use and
// a host in maintenance have their codes, name what is wrong, and leave nothing behind. Verified to
// fail without the code of a full datastore, and without the privilege's name.
func TestRefusedPlaces(t *testing.T) {
	g := NewWithT(t)
	v := start(t)
	d := v.driver(t)
	template := v.replace(func(*heldVM) {})
	for fault, want := range map[types.BaseMethodFault]struct {
		code  cloud.Code
		words string
	}{
		&types.NoDiskSpace{Datastore: "san-a"}: {cloud.NoCapacity, "NoDiskSpace"},
		&types.NoPermission{PrivilegeId: "VirtualMachine.Inventory.CreateFromExisting"}: {cloud.Unauthorized,
			"VirtualMachine.Inventory.CreateFromExisting"},
		&types.InvalidHostState{}: {cloud.Unavailable, "InvalidHostState"},
	} {
		template.fault = fault
		_, err := d.Ensure(t.Context(), request("m"))
		g.Expect(err).NotTo(HaveOccurred())
		_, err = d.Ensure(t.Context(), request("m"))
		g.Expect(cloud.CodeOf(err)).To(Equal(want.code), want.words)
		g.Expect(err).To(MatchError(ContainSubstring(want.words)))
		g.Expect(d.List(t.Context())).To(BeEmpty())
	}
}
