// SPDX-License-Identifier: Apache-2.0

package vsphere

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/types"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
)

// attribute creates a custom attribute for objects of the kind, and returns its key.
func (v *vcsim) attribute(t testing.TB, d *driver, name, kind string) (key int32) {
	t.Helper()
	err := d.vcenter.withSession(t.Context(), func(s *session) error {
		made, err := methods.AddCustomFieldDef(t.Context(), s,
			&types.AddCustomFieldDef{This: *s.content.CustomFieldsManager, Name: name, MoType: kind})
		if err == nil {
			key = made.Returnval.Key
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// values returns a machine's custom attributes.
func (v *vcsim) values(token string) map[int32]string {
	m, values := v.with(cloud.TagToken, token)[0], map[int32]string{}
	v.Context.WithLock(m, func() {
		for _, value := range m.CustomValue {
			value := value.(*types.CustomFieldStringValue)
			values[value.Key] = value.Value
		}
	})
	return values
}

func withAttributes(pairs ...string) func(*infrav1.VSphereMachine) {
	return func(m *infrav1.VSphereMachine) {
		for i := 0; i < len(pairs); i += 2 {
			m.CustomAttributes = append(m.CustomAttributes, infrav1.VSphereAttribute{Name: pairs[i], Value: pairs[i+1]})
		}
	}
}

// TestAttributes: machines get their custom attributes, also from a manager that did not create
// them. Attributes that a machine has are not set again.
func TestAttributes(t *testing.T) {
	g := NewWithT(t)
	v := start(t)
	d := v.driver(t)
	owner, cost := v.attribute(t, d, "owner", "VirtualMachine"), v.attribute(t, d, "cost-center", "")
	add := func(token string, edit ...func(*infrav1.VSphereMachine)) map[string]int {
		return v.counted(func() {
			_, err := d.Ensure(t.Context(), request(token, edit...))
			g.Expect(err).NotTo(HaveOccurred())
		})
	}
	list := func() map[string]int {
		return v.counted(func() { g.Expect(d.List(t.Context())).To(HaveEach(HaveField("Notice", ""))) })
	}
	idle := map[string]int{"RetrievePropertiesEx": 2}
	add("none")
	add("a1", withAttributes("owner", "blue", "cost-center", "4711"))
	g.Expect(add("a2", withAttributes("owner", "blue", "cost-center", "4711"))).To(Equal(map[string]int{"FindAllByUuid": 2,
		"CloneVM_Task": 1}), "what a machine costs to make")
	add("a3", withAttributes("cost-center", "4712"))

	d = v.driver(t) // a new manager
	g.Expect(list()).To(And(HaveKeyWithValue("SetField", 5), HaveKeyWithValue("RetrievePropertiesEx", 3)))
	for token, want := range map[string]map[int32]string{
		"none": {}, "a1": {owner: "blue", cost: "4711"}, "a2": {owner: "blue", cost: "4711"}, "a3": {cost: "4712"},
	} {
		g.Expect(v.values(token)).To(Equal(want), token)
	}
	g.Expect(list()).To(Equal(idle))

	d = v.driver(t)
	g.Expect(list()).NotTo(HaveKey("SetField"), "they are set")
	g.Expect(list()).To(Equal(idle))
}

// TestManyAttributes: many new machines get theirs in parts, so that no listing takes long.
func TestManyAttributes(t *testing.T) {
	g := NewWithT(t)
	v := start(t, maxBatch+20)
	v.own()
	d := v.driver(t)
	cost := v.attribute(t, d, "cost-center", "")
	for _, m := range v.with(cloud.TagOwnership, "blue") {
		v.Context.WithLock(m, func() {
			m.Config.ExtraConfig = append(m.Config.ExtraConfig,
				&types.OptionValue{Key: optionAttributes, Value: fmt.Sprintf(`{"%d": "4711"}`, cost)})
		})
	}
	for _, want := range []int{maxBatch, 20, 0} {
		calls := v.counted(func() { g.Expect(d.List(t.Context())).To(HaveLen(maxBatch + 20)) })
		g.Expect(calls["SetField"]).To(Equal(want))
	}
}

// TestAttributesThatFail: a failure is shown with its machine alone. It does not fail the listing
// and does not delay other machines.
func TestAttributesThatFail(t *testing.T) {
	g := NewWithT(t)
	v := start(t)
	d := v.driver(t)
	first, second := v.attribute(t, d, "first", ""), v.attribute(t, d, "second", "")
	for token, name := range map[string]string{"m": "first", "n": "second"} {
		_, err := d.Ensure(t.Context(), request(token, withAttributes(name, "value")))
		g.Expect(err).NotTo(HaveOccurred())
	}
	g.Expect(d.vcenter.withSession(t.Context(), func(s *session) error {
		_, err := methods.RemoveCustomFieldDef(t.Context(), s, &types.RemoveCustomFieldDef{This: *s.content.CustomFieldsManager, Key: first})
		return err
	})).To(Succeed())
	for range 2 {
		g.Expect(d.List(t.Context())).To(ConsistOf(
			And(HaveField("Token", "m"), HaveField("Notice",
				ContainSubstring("not all custom attributes are set: InvalidSpec: SetField: InvalidArgument (key)"))),
			And(HaveField("Token", "n"), HaveField("Notice", ""))))
	}
	g.Expect(v.values("n")).To(Equal(map[int32]string{second: "value"}))

	d.plans.Reset()
	v.attribute(t, d, "of hosts", "HostSystem")
	for _, name := range []string{"first", "of hosts"} {
		_, err := d.Ensure(t.Context(), request("o", withAttributes("second", "value", name, "value")))
		g.Expect(cloud.CodeOf(err)).To(Equal(cloud.NotFound))
		g.Expect(err).To(MatchError(ContainSubstring(`customAttributes[1]: attribute "` + name + `" for VMs does not exist`)))
	}
	g.Expect(v.with(cloud.TagToken, "o")).To(BeEmpty())
}
