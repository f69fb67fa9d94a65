// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/tagging"
)

// onGCP changes the target's account.
func onGCP(target *Target) *Target {
	target.Account.Spec = infrav1.DroverAccountSpec{Cloud: infrav1.AccountCloud{GCP: &infrav1.GCPAccount{ProjectID: "nodes-4711",
		Region: "europe-west4"}}}
	return target
}

// vmsOnGCP returns a VM for each Machine, with the tags that tagged adds to its name, as the driver
// finds them.
func vmsOnGCP(machines []unstructured.Unstructured, tagged func(*unstructured.Unstructured) map[string]string) []tagging.Instance {
	vms := vmsOf(machines, tagged)
	for i := range vms {
		zone := map[bool]string{true: "europe-west4-a/", false: "europe-west4-b/"}[i < 2]
		vms[i].ID, vms[i].ImageID = zone+vms[i].Tags["Name"], ""
		vms[i].ProviderID = "gce://nodes-4711/" + vms[i].ID
		vms[i].Type = map[bool]string{true: "n2-standard-4", false: "e2-standard-2"}[i < 2]
	}
	return vms
}

func newMCMOnGCP(t *testing.T) *world {
	t.Helper()
	w := readMCM(t, "mcm-gcp", onGCP(newTarget()))
	w.vms = vmsOnGCP(w.Machines, func(*unstructured.Unstructured) map[string]string {
		return map[string]string{"kubernetes-io-cluster-blue": "", "kubernetes-io-role-node": ""}
	})
	return w
}

func newMCOnGCP(t *testing.T) *mcWorld {
	t.Helper()
	w := readMC(t, "mc-gcp", onGCP(newTarget()))
	w.vms = vmsOnGCP(w.Machines, func(m *unstructured.Unstructured) map[string]string {
		return map[string]string{"machine_uid": string(m.GetUID())}
	})
	return w
}

// TestFindingsOnGCP tests each reason of Google Cloud's that stops a takeover, and each change that
// a plan notes: it is the only finding more than those of the fixture.
func TestFindingsOnGCP(t *testing.T) {
	t.Parallel()
	spec := func(path string, value any) func(*world) { return class("providerSpec."+path, value) }
	disk := func(at int, field string, value any) func(*world) {
		return func(w *world) {
			disks, _, _ := unstructured.NestedSlice(w.Classes[0].Object, "providerSpec", "disks")
			disks[at].(map[string]any)[field] = value
			set(&w.Classes[0], "providerSpec.disks", disks)
		}
	}
	nic := func(field string, value any) func(*world) {
		return func(w *world) { item(w, "networkInterfaces", 0, field, value) }
	}
	const (
		one, first = "Machine workers-z1-6d4f5-abcde", "MachineClass workers-z1-5b7c9"
		at         = "providerSpec."
	)
	testFindings(t, newMCMOnGCP, []finding[*world]{
		{"another cloud", class("provider", "AWS"), Refused, first, "provider", `"AWS"`},
		{"unknown field", spec("surprise", "x"), Refused, first, "providerSpec", `unknown field "surprise"`},
		{"reference to a Secret", spec("secretRef", map[string]any{"name": "x", "namespace": "y"}), Noted, first, at + "secretRef", "ignores it"},
		{"reference to credentials", spec("credentialsSecretRef", map[string]any{"name": "x"}), Noted, first, at + "credentialsSecretRef",
			"ignores it"},
		{"another region", spec("region", "us-east1"), Refused, first, at + "region", `"us-east1"`},
		{"another region's zone", spec("zone", "us-east1-b"), Refused, first, at + "zone", `"us-east1-b"`},
		{"protected", spec("deletionProtection", true), Refused, first, at + "deletionProtection", "would refuse"},
		{"disk is kept", disk(1, "autoDelete", false), Lost, first, at + "disks.autoDelete", "deleted with them"},
		{"disk with labels", disk(1, "labels", map[string]any{"a": "b"}), Noted, first, at + "disks.labels", "machine's labels"},
		{"no boot disk", disk(0, "boot", false), Refused, first, at + "disks.boot", "no disk"},
		{"no interface", spec("networkInterfaces", []any{}), Refused, first, at + "networkInterfaces", "there is none"},
		{"access by IPv6 of IPv4 only", nic("ipv6accessType", "EXTERNAL"), Noted, first, at + "networkInterfaces.ipv6accessType", "IPV4_IPV6"},
		{"range that is not used", nic("useAliasIPs", false), Noted, first, at + "networkInterfaces.ipCidrRange", "useAliasIPs"},
		{"two accounts", spec("serviceAccounts", []any{map[string]any{"email": "a"}, map[string]any{"email": "b"}}), Refused, first, at +
			"serviceAccounts", "there are 2"},
		{"preemptible", spec("scheduling.preemptible", true), Noted, first, at + "scheduling.preemptible", "spot machines"},
		{"no role", spec("tags", []any{"kubernetes-io-cluster-blue"}), Refused, first, at + "tags", "0 keys contain kubernetes-io-role-"},
		{"another type", func(w *world) { w.vms[0].Type = "n2-standard-8" }, Noted, one, "", "the next rollout makes it n2-standard-4"},
		{"another project", func(w *world) {
			w.Nodes[0].Spec.ProviderID = strings.Replace(w.Nodes[0].Spec.ProviderID, "nodes-4711", "other", 1)
		}, Refused, one, "", "its Node has gce://other/"},
		{"another zone", func(w *world) {
			w.Nodes[0].Spec.ProviderID = strings.Replace(w.Nodes[0].Spec.ProviderID, "west4-a", "west4-c", 1)
		}, Refused, one, "", "no VM europe-west4-c/"},
		{"provider ID of another form", func(w *world) { w.Nodes[0].Spec.ProviderID = "gce:///x" }, Refused, one, "",
			"names no VM of this cloud"},
		{"not the same VM", func(w *world) { set(&w.Machines[0], "spec.providerID", "gce:///nodes-4711/europe-west4-a/x") }, Refused, one,
			"spec.providerID", "not the same VM"},
	})
}

// TestFindingsOfMachineControllerOnGCP is TestFindingsOnGCP for machine-controller.
func TestFindingsOfMachineControllerOnGCP(t *testing.T) {
	t.Parallel()
	const (
		pool, one = "MachineDeployment workers", "Machine workers-6d4f5-abcde"
		value     = "spec.template.spec.providerSpec.value."
		at        = value + "cloudProviderSpec."
	)
	spec := func(path string, to any) func(*mcWorld) { return inPool(at+path, to) }
	secret := map[string]any{"secretKeyRef": map[string]any{"namespace": "kube-system", "name": "x", "key": "y"}}
	testFindings(t, newMCOnGCP, []finding[*mcWorld]{
		{"unknown field", spec("surprise", "x"), Refused, pool, at[:len(at)-1], `unknown field "surprise"`},
		{"another project", spec("projectID", "x"), Refused, pool, at + "projectID", `"x"`},
		{"another region's zone", spec("zone", "us-east1-b"), Refused, pool, at + "zone", `"us-east1-b"`},
		{"type from a Secret", spec("machineType", secret), Refused, pool, at + "machineType", "comes from a Secret"},
		{"no image", spec("customImage", ""), Noted, pool, at + "customImage", "ubuntu-2404-lts-amd64"},
		{"dual stack without a public address", inPool(value+"network", map[string]any{"ipFamily": "IPv4+IPv6"}), Noted, pool,
			value + "network", "only IPv4"},
		{"a service account", spec("disableMachineServiceAccount", false), Lost, pool, at + "disableMachineServiceAccount", "no service account"},
		{"another Machine's VM", func(w *mcWorld) { w.vms[0].Tags["machine_uid"] = "x" }, Refused, one, "", `of another Machine, "x"`},
	})
	w := newMCOnGCP(t)
	inPool(value+"operatingSystem", "rhel")(w)
	spec("customImage", "")(w)
	NewWithT(t).Expect(w.plan().Findings).To(ContainElement(And(HaveField("Severity", Refused), HaveField("Field", at+"customImage"))))
}

// TestInterfacesOnGCP tests which settings of a class's interface new machines have: the provider
// (pkg/gcp/machine_controller_util.go of
// https://github.com/gardener/machine-controller-manager-provider-gcp) reads some only with others.
func TestInterfacesOnGCP(t *testing.T) {
	t.Parallel()
	pods := []infrav1.GCPAliasIPRange{{Range: "/24", SecondaryRange: "pods"}}
	const both = "IPV4_IPV6"
	public := infrav1.GCPNetworkInterface{StackType: both, PublicIPv6: "Enabled", AliasIPRanges: pods}
	for name, c := range map[string]struct {
		stack, access string
		alias         bool
		want          infrav1.GCPNetworkInterface
	}{
		"ranges":                    {alias: true, want: infrav1.GCPNetworkInterface{AliasIPRanges: pods}},
		"ranges, and IPv4 only":     {"IPV4_ONLY", "", true, infrav1.GCPNetworkInterface{StackType: "IPV4_ONLY", AliasIPRanges: pods}},
		"neither":                   {},
		"IPv4 only":                 {"IPV4_ONLY", "EXTERNAL", false, infrav1.GCPNetworkInterface{}},
		"IPv6":                      {both, "EXTERNAL", false, public},
		"private IPv6":              {both, "INTERNAL", false, infrav1.GCPNetworkInterface{StackType: both, AliasIPRanges: pods}},
		"IPv6, and ranges":          {both, "EXTERNAL", true, public},
		"access by IPv6 and ranges": {"", "EXTERNAL", true, infrav1.GCPNetworkInterface{AliasIPRanges: pods}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			w := newMCMOnGCP(t)
			for field, value := range map[string]any{"stackType": c.stack, "ipv6accessType": c.access, "useAliasIPs": c.alias} {
				item(w, "networkInterfaces", 0, field, value)
			}
			p := w.plan()
			g.Expect(p.Blocked()).To(Equal(0), "%+v", p.Findings)
			g.Expect(refusals(t, w.target, p)).To(BeEmpty())
			pool := p.Pools[slices.IndexFunc(p.Pools, func(pool Pool) bool { return pool.Name == "workers-z1" })]
			nic := pool.Machine.Cloud.GCP.NetworkInterfaces[0]
			nic.Subnetwork, nic.HostProject = "", ""
			g.Expect(nic).To(Equal(c.want))
		})
	}
}

// TestStackOfMachineController tests that new machines have IPv6 only where machine-controller sets
// it up (pkg/cloudprovider/provider/gce/service.go of
// https://github.com/kubermatic/machine-controller): beside a public address of IPv4.
func TestStackOfMachineController(t *testing.T) {
	t.Parallel()
	const value = "spec.template.spec.providerSpec.value."
	for family, public := range map[string]bool{"IPv4+IPv6": true, "IPv6+IPv4": false, "IPv4": true, "IPv6": true} {
		t.Run(family, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			w := newMCOnGCP(t)
			inPool(value+"network", map[string]any{"ipFamily": family})(w)
			inPool(value+"cloudProviderSpec.assignPublicIPAddress", public)(w)
			p := w.plan()
			g.Expect(refusals(t, w.target, p)).To(BeEmpty())
			pool := p.Pools[slices.IndexFunc(p.Pools, func(pool Pool) bool { return pool.Name == "workers" })]
			nic := pool.Machine.Cloud.GCP.NetworkInterfaces[0]
			dual := family == "IPv4+IPv6"
			g.Expect(nic.StackType == infrav1.GCPStackIPv4IPv6).To(Equal(dual))
			g.Expect(nic.PublicIPv6 == infrav1.FeatureEnabled).To(Equal(dual))
			noted := slices.ContainsFunc(p.Findings, func(f Finding) bool { return f.Field == value+"network" })
			g.Expect(noted).To(Equal(!dual && family != "IPv4"))
		})
	}
}
