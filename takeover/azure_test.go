// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
	"github.com/drover-io/drover/cloud"
)

const (
	onAzureSubscription = "00000000-1111-2222-3333-444444444444"
	onAzureURN          = "Canonical:ubuntu-24_04-lts:server:24.04.202605010"
	onAzureGallery      = "/CommunityGalleries/gardenlinux-4711/Images/gardenlinux/Versions/1877.1.0"
)

// onAzure changes the target's account.
func onAzure(target *Target) *Target {
	target.Account.Spec = infrav1.CloudAccountSpec{Azure: &infrav1.AzureAccount{
		SubscriptionID: onAzureSubscription, Location: "westeurope", ResourceGroup: "nodes",
	}}
	return target
}

// vmsOnAzure returns a VM for each Machine, with the tags that tagged adds to its name, as the
// driver finds them.
func vmsOnAzure(machines []unstructured.Unstructured, tagged func(*unstructured.Unstructured) map[string]string) []cloud.Tagged {
	vms := vmsOf(machines, tagged)
	for i := range vms {
		first := i < 2
		vms[i].ID = "/subscriptions/" + onAzureSubscription + "/resourceGroups/nodes/providers/Microsoft.Compute/virtualMachines/" + vms[i].Tags["Name"]
		vms[i].ProviderID = "azure://" + vms[i].ID
		vms[i].ImageID = map[bool]string{true: onAzureURN, false: onAzureGallery}[first]
		vms[i].Type = map[bool]string{true: "Standard_D4s_v5", false: "Standard_D2s_v5"}[first]
	}
	return vms
}

func newMCMOnAzure(t *testing.T) *world {
	t.Helper()
	w := readMCM(t, "mcm-azure", onAzure(newTarget()))
	w.vms = vmsOnAzure(w.Machines, func(*unstructured.Unstructured) map[string]string {
		return map[string]string{"kubernetes.io-cluster-blue": "1", "kubernetes.io-role-node": "1"}
	})
	return w
}

func newMCOnAzure(t *testing.T) *mcWorld {
	t.Helper()
	w := readMC(t, "mc-azure", onAzure(newTarget()))
	w.vms = vmsOnAzure(w.Machines, func(m *unstructured.Unstructured) map[string]string {
		return map[string]string{"Machine-UID": string(m.GetUID())}
	})
	return w
}

// TestFindingsOnAzure tests each reason of Azure's that stops a takeover, and each change that a
// plan notes: it is the only finding more than those of the fixture.
func TestFindingsOnAzure(t *testing.T) {
	t.Parallel()
	spec := func(path string, value any) func(*world) { return class("providerSpec."+path, value) }
	const (
		one, first = "Machine workers-z1-6d4f5-abcde", "MachineClass workers-z1-5b7c9"
		at         = "providerSpec."
		storage    = "properties.storageProfile."
	)
	testFindings(t, newMCMOnAzure, []finding[*world]{
		{"another cloud", class("provider", "AWS"), Refused, first, "provider", `"AWS"`},
		{"unknown field", spec("surprise", "x"), Refused, first, "providerSpec", `unknown field "surprise"`},
		{"another location", spec("location", "northeurope"), Refused, first, at + "location", `"northeurope"`},
		{"another group", spec("resourceGroup", "other"), Refused, first, at + "resourceGroup", `"other"`},
		{"another cloud of Microsoft's", spec("cloudConfiguration.name", "AzureChina"), Refused, first, at + "cloudConfiguration.name", `"AzureChina"`},
		{"no URN", spec(storage+"imageReference.urn", "ubuntu"), Refused, first, at + storage + "imageReference.urn", "PUBLISHER:OFFER:SKU:VERSION"},
		{"attached disk", spec(storage+"osDisk.createOption", "Attach"), Lost, first, at + storage + "osDisk.createOption", "from the image"},
		{"disk of an image", func(w *world) {
			disks, _, _ := unstructured.NestedSlice(w.Classes[0].Object, "providerSpec", "properties", "storageProfile", "dataDisks")
			disks[0].(map[string]any)["imageRef"] = map[string]any{"id": "x"}
			set(&w.Classes[0], at+storage+"dataDisks", disks)
		}, Lost, first, at + storage + "dataDisks.imageRef", "are empty"},
		{"another set", spec("properties.machineSet", map[string]any{"id": "x", "kind": "y"}), Refused, first, at + "properties.machineSet.kind", `"y"`},
		{"no role", spec("tags", map[string]any{"kubernetes.io-cluster-blue": "1"}), Refused, first, at + "tags", "0 keys contain kubernetes.io-role-"},
		{"another size", func(w *world) { w.vms[0].Type = "Standard_D8s_v5" }, Noted, one, "", "the next rollout makes it Standard_D4s_v5"},
		{"another image", func(w *world) { w.vms[0].ImageID = "x" }, Noted, one, "", "the next rollout uses " + onAzureURN},
		{"another subscription", func(w *world) {
			w.Nodes[0].Spec.ProviderID = strings.Replace(w.Nodes[0].Spec.ProviderID, onAzureSubscription, "11111111-1111-2222-3333-444444444444", 1)
		}, Refused, one, "", "no VM /subscriptions/11111111"},
		{"provider ID of another form", func(w *world) { w.Nodes[0].Spec.ProviderID = "azure:///westeurope/x" }, Refused, one, "", "names no VM of this cloud"},
		{"not the same VM", func(w *world) { set(&w.Machines[0], "spec.providerID", "azure:///westeurope/x") }, Refused, one, "spec.providerID", "not the same VM"},
		{"a stray", func(w *world) {
			w.vms = append(w.vms, cloud.Tagged{Resource: cloud.Resource{ID: "x"}, Tags: map[string]string{"kubernetes.io-cluster-blue": "1", "kubernetes.io-role-node": "1"}})
		}, Noted, "VM x", "", "is of no Machine"},
	})
}

// TestFindingsOfMachineControllerOnAzure is TestFindingsOnAzure for machine-controller.
func TestFindingsOfMachineControllerOnAzure(t *testing.T) {
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
	testFindings(t, newMCOnAzure, []finding[*mcWorld]{
		{"unknown field", spec("surprise", "x"), Refused, pool, at[:len(at)-1], `unknown field "surprise"`},
		{"another subscription", spec("subscriptionID", "x"), Refused, pool, at + "subscriptionID", `"x"`},
		{"another location", spec("location", "northeurope"), Refused, pool, at + "location", `"northeurope"`},
		{"group from a Secret", spec("resourceGroup", secret), Refused, pool, at + "resourceGroup", "comes from a Secret"},
		{"zones", spec("zones", []any{"1", "2"}), Refused, pool, at + "zones", "there are 2"},
		{"basic address", spec("publicIPSKU", "basic"), Noted, pool, at + "publicIPSKU", "Standard"},
		{"another Machine's VM", func(w *mcWorld) { w.vms[0].Tags["Machine-UID"] = "x" }, Refused, one, "", `of another Machine, "x"`},
		{"another name", func(w *mcWorld) { w.vms[0].Tags["Name"] = "x" }, Refused, one, "", `has the name "x"`},
	})
}

// TestTokensOnAzure tests that a token fits where a path would not, differs by VM, and is not known
// to those who know the VM's ID only.
func TestTokensOnAzure(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	w := newMCMOnAzure(t)
	seen := map[string]bool{}
	for _, pool := range w.plan().Pools {
		for _, m := range pool.Machines {
			token := w.target.token(m)
			g.Expect(token).To(MatchRegexp(`^1a2b3c4d-[0-9a-f]{32}$`))
			seen[token] = true
			other := *w.target
			other.OwnershipID = "another"
			g.Expect(other.token(m)).NotTo(Equal(token), "of another cluster")
			g.Expect(w.target.token(m)).To(Equal(token), "in the next run")
		}
	}
	g.Expect(seen).To(HaveLen(3))
}
