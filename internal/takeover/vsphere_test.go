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

// onVSphere changes the target's account.
func onVSphere(target *Target) *Target {
	target.Account.Spec = infrav1.DroverAccountSpec{Cloud: infrav1.AccountCloud{VSphere: &infrav1.VSphereAccount{Datacenter: "dc1"}}}
	return target
}

// vmsOnVSphere returns a VM for each Machine, with the custom attributes that it adds to its name.
func vmsOnVSphere(machines []unstructured.Unstructured, attributes map[string]string) []tagging.Instance {
	vms := vmsOf(machines, func(*unstructured.Unstructured) map[string]string {
		tags := map[string]string{}
		for key, value := range attributes {
			tags[key] = value
		}
		return tags
	})
	for i := range vms {
		vms[i].ID = vms[i].ID[len(vms[i].ID)-36:]
		vms[i].ProviderID, vms[i].ImageID = "vsphere://"+vms[i].ID, ""
		vms[i].Type = map[bool]string{true: "4 CPUs, 8192 MiB", false: "2 CPUs, 4096 MiB"}[i < 2]
	}
	return vms
}

func newMCMOnVSphere(t *testing.T) *world {
	t.Helper()
	w := readMCM(t, "mcm-vsphere", onVSphere(newTarget()))
	w.vms = vmsOnVSphere(w.Machines, map[string]string{mcmCluster: "blue", mcmRole: "node"})
	return w
}

func newMCOnVSphere(t *testing.T) *mcWorld {
	t.Helper()
	w := readMC(t, "mc-vsphere", onVSphere(newTarget()))
	w.vms = vmsOnVSphere(w.Machines, nil)
	return w
}

// TestFindingsOnVSphere tests each reason of vSphere's that stops a takeover, and each change that
// a plan notes: it is the only finding more than those of the fixture.
func TestFindingsOnVSphere(t *testing.T) {
	t.Parallel()
	spec := func(path string, value any) func(*world) { return class("providerSpec."+path, value) }
	tags := func(key string) func(*world) {
		return func(w *world) {
			of, _, _ := unstructured.NestedMap(w.Classes[0].Object, "providerSpec", "tags")
			of[key] = "1"
			set(&w.Classes[0], "providerSpec.tags", of)
		}
	}
	const (
		one, first = "Machine workers-z1-6d4f5-abcde", "MachineClass workers-z1-5b7c9"
		at         = "providerSpec."
	)
	testFindings(t, newMCMOnVSphere, []finding[*world]{
		{"another cloud", class("provider", "AWS"), Refused, first, "provider", `"AWS"`},
		{"unknown field", spec("surprise", "x"), Refused, first, "providerSpec", `unknown field "surprise"`},
		{"another datacenter", spec("datacenter", "dc2"), Refused, first, at + "datacenter", `"dc2"`},
		{"template elsewhere", spec("templateVM", "/dc2/vm/ubuntu"), Refused, first, at + "templateVM", "not below /dc1/vm"},
		{"template by name", spec("templateVM", "ubuntu"), Noted, first, at + "templateVM", "only as /dc1/vm/ubuntu"},
		{"folder by name", spec("folder", "blue"), Noted, first, at + "folder", "only as /dc1/vm/blue"},
		{"datastore by name", spec("datastore", "san-b"), Noted, first, at + "datastore", "only as /dc1/datastore/san-b"},
		{"cluster of datastores by name", spec("datastoreCluster", "san"), Noted, first, at + "datastoreCluster",
			"only as /dc1/datastore/san"},
		{"network by name", spec("network", "blue"), Noted, first, at + "network", "only as /dc1/network/blue"},
		{"cluster by name", func(w *world) {
			spec("computeCluster", "cluster-b")(w)
			spec("datastoreCluster", "/dc1/datastore/san")(w)
		}, Noted, first, at + "computeCluster", "only as /dc1/host/cluster-b"},
		{"host by name", spec("hostSystem", "esx-1"), Refused, first, at + "hostSystem", "CLUSTER/HOST"},
		{"host elsewhere", spec("hostSystem", "/dc2/host/cluster-b/esx-1"), Refused, first, at + "hostSystem", "not below /dc1/host"},
		{"pool without a path", spec("resourcePool", "workers"), Refused, first, at + "resourcePool", "CLUSTER/Resources/POOL"},
		{"no pool", spec("resourcePool", nil), Refused, first, at + "resourcePool", "there is none"},
		{"reserved memory", spec("memoryReservationLockedToMax", true), Lost, first, at + "memoryReservationLockedToMax", "not reserved"},
		{"switch", spec("switchUuid", "50 21"), Lost, first, at + "switchUuid", "path alone"},
		{"guest ID", spec("guestId", "coreos64Guest"), Lost, first, at + "guestId", "guest ID"},
		{"vApp", spec("vapp.properties", map[string]any{"a": "b"}), Lost, first, at + "vapp", "vApp properties"},
		{"customization", spec("customization", "linux"), Lost, first, at + "customization", "no customization"},
		{"old role", tags("kubernetes.io/role/node"), Refused, first, at + "tags", "the attribute kubernetes.io/role/node"},
		{"old cluster", tags("kubernetes.io/cluster/blue"), Refused, first, at + "tags", "the attribute kubernetes.io/cluster/blue"},
		{"another cluster's VM", func(w *world) { w.vms[0].Tags[mcmCluster] = "red" }, Refused, one, "", `of another cluster, "red"`},
		{"a stray", func(w *world) {
			w.vms = append(w.vms, tagging.Instance{Resource: cloud.Resource{ID: "x"}, Tags: map[string]string{mcmCluster: "blue", mcmRole: "node"}},
				tagging.Instance{Resource: cloud.Resource{ID: "y"}, Tags: map[string]string{mcmCluster: "red", mcmRole: "node"}})
		}, Noted, "VM x", "", "is of no Machine"},
		{"another size", func(w *world) { w.vms[0].Type = "2 CPUs, 8192 MiB" }, Noted, one, "", "the next rollout makes it 4 CPUs, 8192 MiB"},
		{"provider ID of another form", func(w *world) { w.Nodes[0].Spec.ProviderID = "vsphere://eu/x" }, Refused, one, "",
			"names no VM of this cloud"},
		{"not the same VM", func(w *world) { set(&w.Machines[0], "spec.providerID", "vsphere://eu/x") }, Refused, one, "spec.providerID",
			"not the same VM"},
	})
}

// TestFindingsOfMachineControllerOnVSphere is TestFindingsOnVSphere for machine-controller, which
// knows a VM by its name.
func TestFindingsOfMachineControllerOnVSphere(t *testing.T) {
	t.Parallel()
	const (
		pool, one = "MachineDeployment workers", "Machine workers-6d4f5-abcde"
		at        = "spec.template.spec.providerSpec.value.cloudProviderSpec."
	)
	spec := func(path string, to any) func(*mcWorld) {
		return func(w *mcWorld) {
			set(&w.Deployments[0], at+path, to)
			set(&w.Sets[0], at+path, to)
		}
	}
	secret := map[string]any{"secretKeyRef": map[string]any{"namespace": "kube-system", "name": "x", "key": "y"}}
	testFindings(t, newMCOnVSphere, []finding[*mcWorld]{
		{"unknown field", spec("surprise", "x"), Refused, pool, at[:len(at)-1], `unknown field "surprise"`},
		{"another datacenter", spec("datacenter", "dc2"), Refused, pool, at + "datacenter", `"dc2"`},
		{"folder from a Secret", spec("folder", secret), Refused, pool, at + "folder", "comes from a Secret"},
		{"template by name", spec("templateVMName", "ubuntu"), Noted, pool, at + "templateVMName", "only as /dc1/vm/ubuntu"},
		{"folder by name", spec("folder", "blue"), Noted, pool, at + "folder", "only as /dc1/vm/blue"},
		{"networks by name", spec("networks", []any{"nodes", "lab"}), Noted, pool, at + "networks", "only as /dc1/network/lab"},
		{"pool without a path", spec("resourcePool", "workers"), Refused, pool, at + "resourcePool", "CLUSTER/Resources/POOL"},
		{"no pool", spec("resourcePool", ""), Refused, pool, at + "resourcePool", "there is none"},
		{"tags", spec("tags", []any{map[string]any{"name": "a", "categoryID": "b"}}), Lost, pool, at + "tags", "get none"},
		{"group", spec("vmGroup", "gpu"), Lost, pool, at + "vmGroup", "no group"},
		{"another name", func(w *mcWorld) { w.vms[0].Tags["Name"] = "x" }, Refused, one, "", `has the name "x"`},
		{"two of one name", func(w *mcWorld) {
			again := w.vms[0]
			again.ID = "x"
			w.vms = append(w.vms, again)
		}, Refused, one, "", "2 VMs have its name"},
		{"gone", func(w *mcWorld) { w.vms = w.vms[1:] }, Refused, one, "", "no VM"},
	})
	w := newMCOnVSphere(t)
	before := len(w.plan().Findings)
	w.vms = append(w.vms, tagging.Instance{Resource: cloud.Resource{ID: "x"}, Tags: map[string]string{"Name": "anybody's"}})
	NewWithT(t).Expect(w.plan().Findings).To(HaveLen(before), "a VM of another name is nobody's business")
}

// TestPlaceOnVSphere tests which of several fields decides where VMs are, and that failure domains
// can say it instead.
func TestPlaceOnVSphere(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	w := newMCMOnVSphere(t)
	place := func() *infrav1.VSphereMachine {
		p := w.plan()
		g.Expect(p.Blocked()).To(Equal(0), "%v", p.Findings)
		return p.Pools[1].Machine.Cloud.VSphere
	}
	set(&w.Classes[0], "providerSpec.computeCluster", "cluster-b")
	g.Expect(place()).To(And(HaveField("ResourcePool", "cluster-b/Resources"), HaveField("Host", ""), HaveField("Datastore", "")))
	set(&w.Classes[0], "providerSpec.hostSystem", "/dc1/host/cluster-c/esx-1")
	set(&w.Classes[0], "providerSpec.datastoreCluster", "san")
	g.Expect(place()).To(And(HaveField("ResourcePool", "cluster-c/Resources"), HaveField("Host", "cluster-c/esx-1"),
		HaveField("DatastoreCluster", "san")))
	for _, field := range []string{"hostSystem", "computeCluster", "resourcePool"} {
		set(&w.Classes[0], "providerSpec."+field, nil)
	}
	w.target.Account.Spec.Cloud.VSphere.ZoneCategory = "k8s-zone"
	g.Expect(place()).To(HaveField("ResourcePool", ""))
}
