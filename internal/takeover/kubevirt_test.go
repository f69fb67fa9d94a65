// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"maps"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/tagging"
)

// onKubeVirt changes the target's account.
func onKubeVirt(target *Target) *Target {
	target.Account.Spec = infrav1.DroverAccountSpec{
		Cloud: infrav1.AccountCloud{KubeVirt: &infrav1.KubeVirtAccount{Namespace: "blue-machines"}}}
	return target
}

// vmsOnKubeVirt returns a VM for each Machine, with the labels that it adds to its name. The first
// two are of one pool.
func vmsOnKubeVirt(machines []unstructured.Unstructured, labels map[string]string, sizes, images [2]string) []tagging.Instance {
	vms := vmsOf(machines, func(*unstructured.Unstructured) map[string]string { return maps.Clone(labels) })
	for i := range vms {
		if vms[i].Tags == nil {
			vms[i].Tags = map[string]string{}
		}
		vms[i].ProviderID = "kubevirt://" + vms[i].ID
		vms[i].Type, vms[i].ImageID = sizes[i/2], images[i/2]
	}
	return vms
}

func newMCMOnKubeVirt(t *testing.T) *world {
	t.Helper()
	w := readMCM(t, "mcm-kubevirt", onKubeVirt(newTarget()))
	w.vms = vmsOnKubeVirt(w.Machines, map[string]string{mcmCluster: "blue", mcmRole: "node"},
		[2]string{"4 CPUs, 8000 MiB", "2 CPUs, 4096 MiB"},
		[2]string{"https://images.example.com/ubuntu-24.04.qcow2", "docker://quay.io/containerdisks/ubuntu:24.04"})
	return w
}

func newMCOnKubeVirt(t *testing.T) *mcWorld {
	t.Helper()
	w := readMC(t, "mc-kubevirt", onKubeVirt(newTarget()))
	w.vms = vmsOnKubeVirt(w.Machines, map[string]string{}, [2]string{"4 CPUs, 8192 MiB", "virtualmachineinstancetype small"},
		[2]string{"docker://quay.io/containerdisks/ubuntu:24.04", ""})
	return w
}

// TestFindingsOfMachineControllerOnKubeVirt tests each reason of KubeVirt's that stops a takeover,
// and each change that a plan notes: it is the only finding more than those of the fixture.
func TestFindingsOfMachineControllerOnKubeVirt(t *testing.T) {
	t.Parallel()
	const (
		pool, one = "MachineDeployment workers", "Machine workers-6d4f5-abcde"
		template  = "spec.template.spec."
		at        = template + "providerSpec.value.cloudProviderSpec."
		vm        = at + "virtualMachine."
		disk      = vm + "template.primaryDisk."
	)
	secret := map[string]any{"secretKeyRef": map[string]any{"namespace": "kube-system", "name": "x", "key": "y"}}
	name := func(to string) func(*mcWorld) {
		return func(w *mcWorld) {
			w.Machines[0].SetName(to)
			set(&w.Machines[0], "spec.providerID", "kubevirt://"+to)
			w.Nodes[0].Spec.ProviderID = "kubevirt://" + to
			w.vms[0].ID, w.vms[0].ProviderID, w.vms[0].Tags["Name"] = to, "kubevirt://"+to, to
		}
	}
	testFindings(t, newMCOnKubeVirt, []finding[*mcWorld]{
		{"unknown field", inPool(at+"surprise", "x"), Refused, pool, at[:len(at)-1], `unknown field "surprise"`},
		{"another namespace", inPool(template+"metadata.annotations", map[string]any{mcNamespace: "red-machines"}), Refused, pool, template +
			"metadata.annotations", `"red-machines"`},
		{"annotations", inPool(template+"metadata.annotations", map[string]any{mcNamespace: "blue-machines", "a": "b"}), Lost, pool, template +
			"metadata.annotations", "the annotations a"},
		{"cluster from a Secret", inPool(at+"clusterName", secret), Refused, pool, at + "clusterName", "comes from a Secret"},
		{"whole CPUs", inPool(vm+"template", map[string]any{
			"cpus": "4", "memory": "8Gi", "primaryDisk": map[string]any{
				"osImage": "docker://quay.io/containerdisks/ubuntu:24.04", "size": "40Gi", "storageClassName": "fast",
				"storageAccessType": "ReadWriteMany",
			}, "secondaryDisks": []any{map[string]any{"size": "10G"}},
		}), Lost, pool, vm + "template.cpus", "reserves a part"},
		{"memory", inPool(vm+"template.memory", "8 gigs"), Refused, pool, vm + "template.memory", `"8 gigs"`},
		{"revision", inPool(vm+"preference.revisionName", "x"), Lost, pool, vm + "preference", "by kind and name"},
		{"source", inPool(disk+"source", "s3"), Refused, pool, disk + "source", `"s3"`},
		{"headers", inPool(disk+"extraHeaders", []any{"a: b"}), Lost, pool, disk + "extraHeaders", "without them"},
		{"headers of a Secret", inPool(disk+"extraHeadersSecretRef", "x"), Lost, pool, disk + "extraHeadersSecretRef", "without these"},
		{"claim", inPool(disk+"storageTarget", "pvc"), Noted, pool, disk + "storageTarget", "larger"},
		{"any mode", inPool(disk+"storageAccessType", ""), Noted, pool, disk + "storageAccessType", "prefers"},
		{"a few bytes", inPool(disk+"size", "40G"), Noted, pool, disk + "size", "38 GiB"},
		{"policy", inPool(vm+"dnsPolicy", "None"), Lost, pool, vm + "dnsPolicy", "ClusterFirst"},
		{"name servers", inPool(vm+"dnsConfig", map[string]any{"nameservers": []any{"192.0.2.1"}}), Lost, pool, vm + "dnsConfig", "name servers"},
		{"queues", inPool(vm+"enableNetworkMultiQueue", true), Lost, pool, vm + "enableNetworkMultiQueue", "one queue"},
		{"queues by default", inPool(vm+"enableNetworkMultiQueue", nil), Noted, pool, vm + "enableNetworkMultiQueue", "by default"},
		{"eviction by default", inPool(vm+"evictionStrategy", nil), Noted, pool, vm + "evictionStrategy", "interruptible"},
		{"flavor", inPool(vm+"flavor.name", "x"), Noted, pool, vm + "flavor", "does not use it"},
		{"affinity of pods", inPool(at+"affinity.podAffinityPreset", "hard"), Noted, pool, at + "affinity.podAffinityPreset", "does not use it"},
		{"skew", inPool(at+"topologySpreadConstraints", []any{map[string]any{"maxSkew": "two", "topologyKey": "x"}}), Refused, pool, at +
			"topologySpreadConstraints.maxSkew", "no number"},
		{"no provider ID of KubeVirt's", func(w *mcWorld) { w.Nodes[0].Spec.ProviderID = "kubermatic://kubevirt/uid-a" }, Refused, one, "",
			"names no VM of this cloud"},
		{"a name with a dot", func(w *mcWorld) { w.Nodes[0].Spec.ProviderID = "kubevirt://a.b" }, Refused, one, "", "names no VM of this cloud"},
		{"an owner", func(w *mcWorld) { w.vms[0].Tags[ownerKey] = "Machine workers-6d4f5-abcde" }, Refused, one, "",
			"owned by Machine workers-6d4f5-abcde"},
		{"gone", func(w *mcWorld) { w.vms = w.vms[1:] }, Refused, one, "", "no VM"},
		{"another size", func(w *mcWorld) { w.vms[0].Type = "2 CPUs, 8192 MiB" }, Noted, one, "", "the next rollout makes it 4 CPUs, 8192 MiB"},
		{"another image", func(w *mcWorld) { w.vms[0].ImageID = "https://x/y" }, Noted, one, "", "the next rollout uses docker://quay.io"},
	})
	g := NewWithT(t)
	w := newMCOnKubeVirt(t)
	before := len(w.plan().Findings)
	w.vms = append(w.vms, tagging.Instance{Resource: cloud.Resource{ID: "x"}, Tags: map[string]string{"Name": "anybody's"}})
	g.Expect(w.plan().Findings).To(HaveLen(before), "a VM of another name is nobody's business")
	for _, vm := range []string{"workers-" + strings.Repeat("x", 55), "a"} {
		name(vm)(w)
		g.Expect(w.plan().Findings).To(HaveLen(before), "a name of any length")
	}
}

// TestImageOfMachineController tests how an image's form tells where it comes from.
func TestImageOfMachineController(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	for image, is := range map[string]infrav1.KubeVirtDataVolumeSource{
		"docker://x/y":      {Registry: &infrav1.KubeVirtRegistrySource{URL: "docker://x/y", PullMethod: "node"}},
		"oci-archive://x/y": {Registry: &infrav1.KubeVirtRegistrySource{URL: "oci-archive://x/y", PullMethod: "node"}},
		"https://x/y":       {HTTP: &infrav1.KubeVirtHTTPSource{URL: "https://x/y"}},
		"ubuntu":            {PVC: &infrav1.KubeVirtObjectSource{Name: "ubuntu"}},
		"images/ubuntu":     {PVC: &infrav1.KubeVirtObjectSource{Namespace: "images", Name: "ubuntu"}},
	} {
		g.Expect((findings{plan: &Plan{}}).mcKubeVirtImage("", &mcKubeVirtPrimary{OSImage: mcVar{value: image}})).To(Equal(is))
	}
}

// TestFindingsOnKubeVirt is the same for machine-controller-manager, which knows a VM by its
// labels.
func TestFindingsOnKubeVirt(t *testing.T) {
	t.Parallel()
	spec := func(path string, value any) func(*world) { return class("providerSpec."+path, value) }
	volume := func(value map[string]any) func(*world) {
		return func(w *world) {
			all, _, _ := unstructured.NestedSlice(w.Classes[0].Object, "providerSpec", "additionalVolumes")
			value["name"] = "more"
			set(&w.Classes[0], "providerSpec.additionalVolumes", append(all, value))
		}
	}
	const (
		one, first = "Machine workers-z1-6d4f5-abcde", "MachineClass workers-z1-5b7c9"
		at         = "providerSpec."
	)
	testFindings(t, newMCMOnKubeVirt, []finding[*world]{
		{"another cloud", class("provider", "AWS"), Refused, first, "provider", `"AWS"`},
		{"unknown field", spec("surprise", "x"), Refused, first, "providerSpec", `unknown field "surprise"`},
		{"limits", spec("resources.limits", map[string]any{"memory": "9Gi"}), Lost, first, at + "resources.limits", "no limits"},
		{"overhead", spec("resources.overcommitGuestOverhead", true), Lost, first, at + "resources.overcommitGuestOverhead", "beside the guest"},
		{"huge pages", spec("memory.hugepages", map[string]any{"pageSize": "2Mi"}), Lost, first, at + "memory.hugepages", "do not have it"},
		{"features of the CPU", spec("cpu.features", []any{map[string]any{"name": "apic"}}), Lost, first, at + "cpu.features", "do not have it"},
		{"cache", spec("devices.disks", []any{map[string]any{"name": "root-disk", "disk": map[string]any{"bus": "scsi"}, "cache": "none"}}), Lost,
			first, at + "devices.disks.cache", "do not have it"},
		{"queues of disks", spec("devices.blockMultiQueue", true), Lost, first, at + "devices.blockMultiQueue", "one queue"},
		{"queues of cards", spec("devices.networkInterfaceMultiqueue", true), Lost, first, at + "devices.networkInterfaceMultiqueue",
			"one queue"},
		{"archive", spec("rootVolume.contentType", "archive"), Lost, first, at + "rootVolume.contentType", `"archive"`},
		{"source", spec("rootVolume.source", map[string]any{"s3": map[string]any{"url": "x"}}), Refused, first, at + "rootVolume.source", `"s3"`},
		{"field of a source", spec("rootVolume.source.http.extraHeaders", []any{"a: b"}), Lost, first, at + "rootVolume.source.http.extraHeaders",
			"do not have it"},
		{"selector", spec("rootVolume.pvc.selector", map[string]any{"matchLabels": map[string]any{"a": "b"}}), Lost, first, at +
			"rootVolume.pvc.selector", "do not have it"},
		{"others' claim", volume(map[string]any{"volumeSource": map[string]any{"persistentVolumeClaim": map[string]any{"claimName": "x"}}}),
			Lost, first,
			at + "additionalVolumes.volumeSource", "the volume more, which is not"},
		{"policy", spec("dnsPolicy", "Default"), Lost, first, at + "dnsPolicy", "ClusterFirst"},
		{"name servers", spec("dnsConfig", map[string]any{"nameservers": []any{"192.0.2.1"}}), Lost, first, at + "dnsConfig", "name servers"},
		{"no tags", spec("tags", map[string]any{mcmCluster: "blue"}), Refused, first, at + "tags", "0 keys contain " + mcmRole},
		{"another cluster's VM", func(w *world) { w.vms[0].Tags[mcmCluster] = "red" }, Refused, one, "", `of another cluster, "red"`},
		{"not the same VM", func(w *world) { set(&w.Machines[0], "spec.providerID", "kubevirt://x") }, Refused, one, "spec.providerID",
			"not the same VM"},
		{"another size", func(w *world) { w.vms[0].Type = "2 CPUs, 8192 MiB" }, Noted, one, "", "the next rollout makes it 4 CPUs, 8000 MiB"},
		{"a stray", func(w *world) {
			w.vms = append(w.vms, tagging.Instance{Resource: cloud.Resource{ID: "x"}, Tags: map[string]string{mcmCluster: "blue", mcmRole: "node"}})
		}, Noted, "VM x", "", "is of no Machine"},
	})
}

// TestQuantity: a quantity is rounded up to whole units, and one that no machine can have is refused
// instead of being taken for another.
func TestQuantity(t *testing.T) {
	t.Parallel()
	for text, c := range map[string]struct {
		shift    int
		want     int32
		severity Severity // "" for none
	}{
		"":                    {0, 0, ""},
		"4":                   {0, 4, ""},
		"8Gi":                 {20, 8192, ""},
		"1500M":               {20, 1431, Noted},
		"4294967300":          {0, 0, Refused}, // 4 in 32 bits
		"-1":                  {0, 0, Refused},
		"9223372036854775807": {30, 0, Refused},
		"many":                {0, 0, Refused},
	} {
		plan := &Plan{}
		got := findings{plan: plan}.quantity("f", text, c.shift)
		severity := Severity("")
		if len(plan.Findings) > 0 {
			severity = plan.Findings[0].Severity
		}
		if got != c.want || severity != c.severity {
			t.Errorf("%q is %d (%s), want %d (%s)", text, got, severity, c.want, c.severity)
		}
	}
}
