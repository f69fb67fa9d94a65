// SPDX-License-Identifier: Apache-2.0

package vsphere

import (
	"errors"
	"net/http"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/tagging"
)

// droverKeys are those that rollback takes off.
var droverKeys = []string{cloud.TagMachine, cloud.TagToken, cloud.TagOwnership}

// importedTags returns the tags that make a VM that others made the driver's.
func importedTags(m *simulator.VirtualMachine) map[string]string {
	return map[string]string{cloud.TagOwnership: "blue", cloud.TagToken: "1a2b3c4d-0123456789abcdef-" + m.Config.Uuid,
		cloud.TagMachine: "team/" + m.Name}
}

// eventually repeats a call of a Tagger until it is done.
func eventually(do func() error) error {
	for {
		err := do()
		if _, queued := errors.AsType[*cloud.Queued](err); !queued {
			return err
		}
	}
}

// copyOf clones a VM as a person would, with its options, in a folder of its own.
func (v *vcsim) copyOf(t testing.TB, m *simulator.VirtualMachine) {
	t.Helper()
	folder := v.folder(t, "copies")
	var options []types.BaseOptionValue
	for key, value := range v.options(m) {
		options = append(options, &types.OptionValue{Key: key, Value: value})
	}
	v.theirs(t, func(s *session) error {
		_, err := methods.CloneVM_Task(t.Context(), s,
			&types.CloneVM_Task{This: m.Self, Folder: folder, Name: "copy", Spec: types.VirtualMachineCloneSpec{
				Config: &types.VirtualMachineConfigSpec{ExtraConfig: options}, PowerOn: true,
			}})
		return err
	})
}

// TestTagger: a VM that others made becomes a machine, with one write, and theirs again. It is
// listed, read and watched by the token, and deleted. A copy of it is none.
func TestTagger(t *testing.T) {
	g := NewWithT(t)
	v := start(t, 3)
	d := v.driver(t)
	theirs, another := v.named("DC0_C0_RP1_VM1"), v.named("DC0_C0_RP1_VM2")
	g.Expect(theirs.Config.InstanceUuid).NotTo(Equal(theirs.Config.Uuid))
	id, before, tags := theirs.Config.Uuid, v.options(theirs), importedTags(theirs)
	ref := cloud.Reference{Token: tags[cloud.TagToken], OwnershipID: "blue", ProviderID: "vsphere://" + id}
	tag := func() { g.Expect(eventually(func() error { return d.Tag(t.Context(), id, tags, nil) })).To(Succeed()) }
	g.Expect(v.counted(tag)["ReconfigVM_Task"]).To(Equal(1))
	g.Expect(v.counted(tag)).To(Equal(map[string]int{"FindAllByUuid": 1, "RetrievePropertiesEx": 1}), "it was done")

	v.copyOf(t, theirs)
	one := ConsistOf(And(
		HaveField("ID", id), HaveField("ProviderID", "vsphere://"+id), HaveField("Token", ref.Token), HaveField("OwnershipID", "blue"),
		HaveField("State", cloud.StateRunning),
		HaveField("Addresses", ContainElement(clusterv1.MachineAddress{Type: clusterv1.MachineInternalDNS, Address: theirs.Name})),
	))
	for name, d := range map[string]*driver{"the same process": d, "another": v.driver(t)} {
		g.Expect(d.List(t.Context())).To(one, name)
		g.Expect(d.Describe(t.Context(), []cloud.Reference{ref})).To(one, name)
		g.Expect(d.Tagged(t.Context(), droverKeys)).To(ConsistOf(And(HaveField("ID", id), HaveField("Partial", false))), "%s: not the copy", name)
	}

	l := listen(t, d) // it makes calls, so those of a Tag are counted before
	g.Eventually(l.resources, "2m").Should(ConsistOf(HaveField("ID", id)))
	untag := func() {
		g.Expect(eventually(func() error { return d.Untag(t.Context(), []string{id, another.Config.Uuid}, droverKeys) })).To(Succeed())
	}
	g.Expect(v.counted(untag)["ReconfigVM_Task"]).To(Equal(1))
	g.Expect(v.counted(untag)).NotTo(HaveKey("ReconfigVM_Task"))
	g.Expect(v.options(theirs)).To(Equal(before), "all is as it was")
	g.Expect(v.driver(t).List(t.Context())).To(BeEmpty())
	g.Eventually(l.resources, "2m").Should(BeEmpty())

	tag()
	g.Eventually(l.resources, "2m").Should(ConsistOf(HaveField("ID", id)))
	found, err := d.Describe(t.Context(), []cloud.Reference{ref})
	g.Expect(err).NotTo(HaveOccurred())
	for range 2 { // power off, destroy
		g.Expect(d.Delete(t.Context(), found)).To(ConsistOf(BeNil()))
	}
	g.Expect(d.Describe(t.Context(), []cloud.Reference{ref})).To(BeEmpty())
	g.Expect(v.Context.Map.Get(theirs.Self)).To(BeNil())
	g.Expect(v.vms()).To(HaveLen(3), "the template, the other one and the copy")
}

// TestTagged: VMs are found by custom attributes, of which empty ones do not count, and by name.
func TestTagged(t *testing.T) {
	g := NewWithT(t)
	v := start(t, 3)
	d := v.driver(t)
	theirs, another := v.named("DC0_C0_RP1_VM1"), v.named("DC0_C0_RP1_VM2")
	cluster, role := v.attribute(t, d, "cluster", "VirtualMachine"), v.attribute(t, d, "role", "")
	for m, fields := range map[*simulator.VirtualMachine]map[int32]string{theirs: {cluster: "blue", role: "node"},
		another: {cluster: "red", role: ""}} {
		v.theirs(t, func(s *session) (err error) {
			for key, value := range fields {
				if _, err = methods.SetField(t.Context(), s, &types.SetField{This: *s.content.CustomFieldsManager, Entity: m.Self, Key: key,
					Value: value}); err != nil {
					return err
				}
			}
			return nil
		})
	}
	find := func(keys ...string) []tagging.Instance {
		t.Helper()
		found, err := d.Tagged(t.Context(), keys)
		g.Expect(err).NotTo(HaveOccurred())
		return found
	}
	g.Expect(find()).To(BeEmpty(), "never all")
	g.Expect(find("Name")).To(HaveLen(3))
	g.Expect(find("cluster")).To(HaveLen(2))
	g.Expect(find("cluster", "role")).To(ConsistOf(And(
		HaveField("ID", theirs.Config.Uuid), HaveField("ProviderID", "vsphere://"+theirs.Config.Uuid), HaveField("Token", ""),
		HaveField("Type", "1 CPUs, 32 MiB"),
		HaveField("State", cloud.StateRunning), HaveField("Tags",
			Equal(map[string]string{"cluster": "blue", "role": "node", "Name": theirs.Name})),
	)))
	v.Context.WithLock(another, func() { another.Config.Template = true })
	g.Expect(find("cluster")).To(HaveLen(1), "a template is no machine")

	id := theirs.Config.Uuid
	for range 2 {
		calls := v.counted(func() {
			g.Expect(d.Untag(t.Context(), []string{id, "00000000-0000-4000-8000-00000000000a"}, []string{"role"})).To(Succeed())
		})
		g.Expect(calls).NotTo(HaveKey("ReconfigVM_Task"))
		g.Expect(find("role")).To(BeEmpty())
		g.Expect(find("cluster")).To(ConsistOf(HaveField("Tags", Not(HaveKey("role")))), "as if it had never had it")
	}
	g.Expect(v.options(theirs)).NotTo(HaveKey(ContainSubstring("role")))
}

// TestTagRefused: a VM that does not exist, or that can't be told from another, is not tagged. The
// failure of a task is reported once, and the next call starts another.
func TestTagRefused(t *testing.T) {
	g := NewWithT(t)
	v := start(t, 3)
	d := v.driver(t)
	theirs, another := v.named("DC0_C0_RP1_VM1"), v.named("DC0_C0_RP1_VM2")
	id, tags := theirs.Config.Uuid, importedTags(theirs)
	tag := func() error { return d.Tag(t.Context(), id, tags, nil) }
	g.Expect(cloud.CodeOf(d.Tag(t.Context(), "00000000-0000-4000-8000-00000000000a", tags, nil))).To(Equal(cloud.NotFound))

	undo := v.refuse("ReconfigVM_Task", &types.NoPermission{PrivilegeId: "VirtualMachine.Config.AdvancedConfig"})
	err := eventually(tag)
	undo()
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unauthorized), "%v", err)

	hold := make(chan struct{})
	task := simulator.CreateTask(types.ManagedObjectReference{Type: "Held", Value: "held"}, "reconfigure",
		func(*simulator.Task) (types.AnyType, types.BaseMethodFault) {
			<-hold
			return nil, &types.HostNotConnected{}
		})
	d.writes.begin(theirs.Self, task.Run(v.Context))
	calls := v.counted(func() {
		for range 2 {
			g.Expect(tag()).To(BeAssignableToTypeOf(&cloud.Queued{}), "it runs")
		}
	})
	g.Expect(calls).NotTo(HaveKey("ReconfigVM_Task"))
	close(hold)
	task.Wait()
	g.Expect(cloud.CodeOf(tag())).To(Equal(cloud.Unavailable))
	g.Expect(v.counted(func() { g.Expect(eventually(tag)).To(Succeed()) })["ReconfigVM_Task"]).To(Equal(1))
	g.Expect(eventually(func() error { return d.Untag(t.Context(), []string{id}, droverKeys) })).To(Succeed())

	was := another.Config.Uuid
	rename := func(uuid string) {
		v.theirs(t, func(s *session) error {
			_, err := methods.ReconfigVM_Task(t.Context(), s,
				&types.ReconfigVM_Task{This: another.Self, Spec: types.VirtualMachineConfigSpec{Uuid: uuid}})
			return err
		})
	}
	rename(id)
	err = tag()
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Conflict))
	g.Expect(err).To(MatchError(ContainSubstring("2 VMs")))
	rename(was)
	g.Expect(eventually(tag)).To(Succeed())
}

// TestTaggedUnreadable: a VM whose configuration can't be read may be a machine.
func TestTaggedUnreadable(t *testing.T) {
	g := NewWithT(t)
	v := start(t, 2)
	d := v.driver(t)
	theirs := v.named("DC0_C0_RP1_VM1")
	config := theirs.Config
	set := func(to *types.VirtualMachineConfigInfo) {
		v.turn.Lock()
		defer v.turn.Unlock()
		v.Context.WithLock(theirs, func() { theirs.Config = to })
	}
	set(nil)
	_, err := d.Tagged(t.Context(), droverKeys)
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unavailable))
	g.Expect(err).To(MatchError(ContainSubstring(theirs.Name)))
	g.Expect(d.Tagged(t.Context(), []string{"Name"})).To(HaveLen(1))
	r := cloud.Resource{Kind: cloud.KindInstance, ID: config.Uuid, Token: "1a2b3c4d-" + config.Uuid, OwnershipID: "blue"}
	found := vm{ref: theirs.Self, indexed: cloud.Reference{Token: r.Token,
		OwnershipID: r.OwnershipID}} // vcsim's index depends on the configuration
	g.Expect(cloud.CodeOf(d.deleteOne(t.Context(), nil, r, []vm{found}, nil))).To(Equal(cloud.Unavailable),
		"its token alone does not make it the machine's")
	set(config)
	g.Expect(d.Tagged(t.Context(), droverKeys)).To(BeEmpty())
}

// TestTagInterrupted: the connection ends after the one write of each step, and the next process
// finds that it was made.
func TestTagInterrupted(t *testing.T) {
	g := NewWithT(t)
	v := start(t, 2)
	theirs := v.named("DC0_C0_RP1_VM1")
	id, before, tags := theirs.Config.Uuid, v.options(theirs), importedTags(theirs)
	for _, do := range []func(*driver) error{
		func(d *driver) error { return d.Tag(t.Context(), id, tags, nil) },
		func(d *driver) error { return d.Untag(t.Context(), []string{id}, droverKeys) },
	} {
		cuts := 0
		for cut := true; cut; {
			cut = false
			v.spoil(func(operation string, send func() (*http.Response, error)) (*http.Response, error) {
				resp, err := send()
				if operation == "ReconfigVM_Task" {
					cut = true
					cuts++
					return nil, errors.New("cut")
				}
				return resp, err
			})
			d := v.driver(t)
			g.Expect(eventually(func() error { return do(d) }) != nil).To(Equal(cut))
			v.spoil(nil)
			g.Expect(cuts).To(BeNumerically("<", 3))
		}
		g.Expect(cuts).To(Equal(1))
	}
	g.Expect(v.options(theirs)).To(Equal(before))
}
