// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/tagging"
)

// onOpenStack changes the target's account.
func onOpenStack(target *Target) *Target {
	target.Account.Spec = infrav1.DroverAccountSpec{Cloud: infrav1.AccountCloud{OpenStack: &infrav1.OpenStackAccount{Region: "RegionOne"}}}
	return target
}

// serversOf returns a server for each Machine, with the metadata that tagged adds to its name.
func serversOf(machines []unstructured.Unstructured, tagged func(*unstructured.Unstructured) map[string]string) []tagging.Instance {
	vms := vmsOf(machines, tagged)
	for i := range vms {
		vms[i].ProviderID, vms[i].ImageID, vms[i].FailureDomain = "openstack:///"+vms[i].ID, "", "az-1"
		vms[i].Type = map[bool]string{true: "m1.large", false: "m1.small"}[i < 2]
	}
	return vms
}

// newServers is newWorld for OpenStack.
func newServers(t *testing.T) *world {
	t.Helper()
	w := readMCM(t, "mcm-openstack", onOpenStack(newTarget()))
	w.vms = serversOf(w.Machines, func(*unstructured.Unstructured) map[string]string {
		return map[string]string{"kubernetes.io-cluster-blue": "1", "kubernetes.io-role-node": "1"}
	})
	return w
}

// TestFindingsOnOpenStack tests each reason of OpenStack's that stops a takeover, and each change
// that a plan notes: it is the only finding more than those of the fixture.
func TestFindingsOnOpenStack(t *testing.T) {
	t.Parallel()
	spec := func(path string, value any) func(*world) { return class("providerSpec.spec."+path, value) }
	const (
		one, first, second = "Machine workers-z1-6d4f5-abcde", "MachineClass workers-z1-5b7c9", "MachineClass small-2d41f"
		at                 = "providerSpec.spec."
		server             = "00000000-0000-4000-8000-00000000000a"
	)
	testFindings(t, newServers, []finding[*world]{
		{"another cloud", class("provider", "AWS"), Refused, first, "provider", `"AWS"`},
		{"unknown field", spec("surprise", "x"), Refused, first, "providerSpec", `unknown field "surprise"`},
		{"capacity that is none", class("nodeTemplate.virtualCapacity", map[string]any{"x": "1"}), Lost, first, "nodeTemplate.virtualCapacity",
			"do not get it"},
		{"region", spec("region", "RegionTwo"), Refused, first, at + "region", `"RegionTwo"`},
		{"no role", spec("tags", map[string]any{"kubernetes.io-cluster-blue": "1"}), Refused, first, at + "tags",
			"0 keys contain kubernetes.io-role-"},
		{"network and networks", spec("networks", []any{map[string]any{"name": "x"}}), Refused, first, at + "networks", "one of them must go"},
		{"no network", spec("networkID", ""), Refused, first, at + "networkID", "neither"},
		{"subnets of no network", func(w *world) { set(&w.Classes[1], at+"subnetID", "x") }, Noted, second, at + "subnetIDs", "no effect"},
		{"two networks of pods", spec("podNetworkCIDRs", []any{"fd00::/56"}), Noted, first, at + "podNetworkCIDRs", "100.96.0.0/11, fd00::/56"},
		{"volume type without a volume", spec("rootDiskSize", nil), Noted, first, at + "rootDiskType", "no effect"},
		{"provider ID of another form", func(w *world) { w.Nodes[0].Spec.ProviderID = "openstack:///RegionOne/" + server }, Refused, one, "",
			"names no VM of this cloud"},
		{"regional provider ID", func(w *world) { w.Nodes[0].Spec.ProviderID = "openstack://RegionOne/" + server }, Refused, one, "",
			"regionalProviderIDs"},
		{"not the same VM", func(w *world) { set(&w.Machines[0], "spec.providerID", "openstack:///RegionOne/x") }, Refused, one,
			"spec.providerID", "not the same VM"},
		{"another's name", func(w *world) { w.vms[0].Tags["Name"] = "x" }, Refused, one, "", `has the name "x"`},
		{"stopped", func(w *world) { w.vms[0].State = cloud.StateStopped }, Refused, one, "", "is Stopped"},
		{"Drover's already", func(w *world) { w.vms[0].Token = "x" }, Refused, one, "", "tags of Drover already"},
		{"another type", func(w *world) { w.vms[0].Type = "m1.tiny" }, Noted, one, "", "the next rollout makes it m1.large"},
		{"another image", func(w *world) { w.vms[0].ImageID = server }, Noted, one, "", "the next rollout uses 155d900f"},
	})
}

// TestOwnParts tests which machines of machine-controller-manager have parts of their name: those
// of a class with a subnet, or with a volume type.
func TestOwnParts(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		without []string
		own     bool
	}{
		"both":        {own: true},
		"port":        {[]string{"rootDiskType"}, true},
		"volume":      {[]string{"subnetID", "subnetIDs"}, true},
		"no size":     {[]string{"rootDiskSize", "subnetID", "subnetIDs"}, false},
		"all of Nova": {[]string{"rootDiskType", "subnetID", "subnetIDs"}, false},
	} {
		w := newServers(t)
		for _, field := range c.without {
			set(&w.Classes[0], "providerSpec.spec."+field, nil)
		}
		var want []string
		if c.own {
			want = []string{"workers-z1-6d4f5-abcde"}
		}
		NewWithT(t).Expect(w.plan().Pools[1].Machines[0].OwnedResources).To(Equal(want), name)
	}
}
