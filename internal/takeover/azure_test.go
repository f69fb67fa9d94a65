// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/tagging"
)

const (
	onAzureSubscription = "00000000-1111-2222-3333-444444444444"
	onAzureURN          = "Canonical:ubuntu-24_04-lts:server:24.04.202605010"
	onAzureGallery      = "/CommunityGalleries/gardenlinux-4711/Images/gardenlinux/Versions/1877.1.0"
)

// onAzure changes the target's account.
func onAzure(target *Target) *Target {
	target.Account.Spec = infrav1.DroverAccountSpec{Cloud: infrav1.AccountCloud{Azure: &infrav1.AzureAccount{
		SubscriptionID: onAzureSubscription, Location: "westeurope", ResourceGroup: "nodes",
	}}}
	return target
}

// vmsOnAzure returns a VM for each Machine, with the tags that tagged adds to its name, as the
// driver finds them.
func vmsOnAzure(machines []unstructured.Unstructured, tagged func(*unstructured.Unstructured) map[string]string) []tagging.Instance {
	vms := vmsOf(machines, tagged)
	for i := range vms {
		first := i < 2
		vms[i].ID = "/subscriptions/" + onAzureSubscription + "/resourceGroups/nodes/providers/Microsoft.Compute/virtualMachines/" +
			vms[i].Tags["Name"]
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
		{"another cloud of Microsoft's", spec("cloudConfiguration.name", "AzureChina"), Refused, first, at + "cloudConfiguration.name",
			`"AzureChina"`},
		{"no URN", spec(storage+"imageReference.urn", "ubuntu"), Refused, first, at + storage + "imageReference.urn",
			"PUBLISHER:OFFER:SKU:VERSION"},
		{"attached disk", spec(storage+"osDisk.createOption", "Attach"), Lost, first, at + storage + "osDisk.createOption", "from the image"},
		{"disk of an image", func(w *world) {
			disks, _, _ := unstructured.NestedSlice(w.Classes[0].Object, "providerSpec", "properties", "storageProfile", "dataDisks")
			disks[0].(map[string]any)["imageRef"] = map[string]any{"id": "x"}
			set(&w.Classes[0], at+storage+"dataDisks", disks)
		}, Lost, first, at + storage + "dataDisks.imageRef", "are empty"},
		{"another set", spec("properties.machineSet", map[string]any{"id": "x", "kind": "y"}), Refused, first, at + "properties.machineSet.kind",
			`"y"`},
		{"no role", spec("tags", map[string]any{"kubernetes.io-cluster-blue": "1"}), Refused, first, at + "tags",
			"0 keys contain kubernetes.io-role-"},
		{"another size", func(w *world) { w.vms[0].Type = "Standard_D8s_v5" }, Noted, one, "", "the next rollout makes it Standard_D4s_v5"},
		{"another image", func(w *world) { w.vms[0].ImageID = "x" }, Noted, one, "", "the next rollout uses " + onAzureURN},
		{"another subscription", func(w *world) {
			w.Nodes[0].Spec.ProviderID = strings.Replace(w.Nodes[0].Spec.ProviderID, onAzureSubscription, "11111111-1111-2222-3333-444444444444", 1)
		}, Refused, one, "", "no VM /subscriptions/11111111"},
		{"provider ID of another form", func(w *world) { w.Nodes[0].Spec.ProviderID = "azure:///westeurope/x" }, Refused, one, "",
			"names no VM of this cloud"},
		{"not the same VM", func(w *world) { set(&w.Machines[0], "spec.providerID", "azure:///westeurope/x") }, Refused, one, "spec.providerID",
			"not the same VM"},
		{"a stray", func(w *world) {
			w.vms = append(w.vms, tagging.Instance{Resource: cloud.Resource{ID: "x"},
				Tags: map[string]string{"kubernetes.io-cluster-blue": "1", "kubernetes.io-role-node": "1"}})
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
		{"SKU without a size", spec("osDiskSize", nil), Noted, pool, at + "osDiskSKU", "without osDiskSize"},
		{"basic address", spec("publicIPSKU", "basic"), Noted, pool, at + "publicIPSKU", "Standard"},
		{"another image's plan", spec("imagePlan", map[string]any{"publisher": "x", "product": "y", "name": "z"}), Lost, pool, at + "imagePlan",
			"x y z"},
		{"another Machine's VM", func(w *mcWorld) { w.vms[0].Tags["Machine-UID"] = "x" }, Refused, one, "", `of another Machine, "x"`},
		{"another name", func(w *mcWorld) { w.vms[0].Tags["Name"] = "x" }, Refused, one, "", `has the name "x"`},
	})
}

// TestDisksOfMachineControllerOnAzure tests that new machines have no type of disk that
// machine-controller does not ask for.
func TestDisksOfMachineControllerOnAzure(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	w := newMCOnAzure(t)
	inPool("spec.template.spec.providerSpec.value.cloudProviderSpec.osDiskSize", nil)(w)
	p := w.plan()
	g.Expect(refusals(t, w.target, p)).To(BeEmpty())
	pool := p.Pools[slices.IndexFunc(p.Pools, func(pool Pool) bool { return pool.Name == "workers" })]
	g.Expect(pool.Machine.Cloud.Azure.OSDisk).To(HaveValue(BeZero()))
}

// TestPurchasePlansOfMachineController tests that new machines are bought as machine-controller
// buys them, which has plans of its own for two operating systems
// (https://github.com/kubermatic/machine-controller/issues/788).
func TestPurchasePlansOfMachineController(t *testing.T) {
	t.Parallel()
	const at = "spec.template.spec.providerSpec.value."
	reference := func(publisher, offer, sku string) map[string]any {
		return map[string]any{"imageReference": map[string]any{"publisher": publisher, "offer": offer, "sku": sku, "version": "1.2.3"},
			"imagePlan": nil}
	}
	const own, other = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/images/rhel", "Canonical:ubuntu-24_04-lts:server:1.2.3"
	rhel := &infrav1.AzurePlan{Publisher: "redhat", Product: "rhel-byos", Name: "rhel-lvm95"}
	for name, c := range map[string]struct {
		system  string
		change  map[string]any
		running string
		bought  bool // with the plan of the image
		plan    *infrav1.AzurePlan
		finding Severity
	}{
		"Rocky Linux":         {system: "rockylinux", change: reference("resf", "rockylinux-x86_64", "9-base"), bought: true},
		"RHEL":                {system: "rhel", change: reference("RedHat", "rhel-byos", "rhel-lvm95"), bought: true},
		"RHEL, another image": {system: "rhel", change: reference("RedHat", "RHEL", "9-lvm"), finding: Lost},
		"RHEL, an image of its own": {system: "rhel", change: map[string]any{"imageID": own, "imageReference": nil, "imagePlan": nil},
			plan: rhel},
		"RHEL, no image": {system: "rhel", change: map[string]any{"imageReference": nil, "imagePlan": nil},
			running: "RedHat:rhel-byos:rhel-lvm95:9.5.1", bought: true},
		"RHEL, no image, another": {system: "rhel", change: map[string]any{"imageReference": nil, "imagePlan": nil}, running: other,
			finding: Refused},
		"Ubuntu": {system: "ubuntu", change: reference("Canonical", "ubuntu-24_04-lts", "server")},
		"Ubuntu, a plan without a name": {system: "ubuntu", change: map[string]any{
			"imageReference": nil, "imagePlan": map[string]any{"name": "", "publisher": "", "product": ""},
		}, running: other},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			w := newMCOnAzure(t)
			inPool(at+"operatingSystem", c.system)(w)
			for field, to := range c.change {
				inPool(at+"cloudProviderSpec."+field, to)(w)
			}
			for i := range w.vms[:2] {
				w.vms[i].ImageID = c.running
			}
			p := w.plan()
			g.Expect(refusals(t, w.target, p)).To(BeEmpty())
			g.Expect(p.Blocked() > 0).To(Equal(c.finding != ""), "%+v", p.Findings)
			if c.finding != "" {
				g.Expect(p.Findings).To(ContainElement(And(HaveField("Severity", c.finding), HaveField("Message", ContainSubstring("purchase plan")))))
			}
			image := p.Pools[slices.IndexFunc(p.Pools, func(pool Pool) bool { return pool.Name == "workers" })].Machine.Cloud.Azure.Image
			g.Expect(image.Marketplace != nil && image.Marketplace.Plan == infrav1.AzurePlanRequired).To(Equal(c.bought))
			g.Expect(image.Plan).To(Equal(ptr.Deref(c.plan, infrav1.AzurePlan{})))
		})
	}
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
