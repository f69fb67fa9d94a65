// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// newMCServers is newMCWorld for OpenStack.
func newMCServers(t *testing.T) *mcWorld {
	t.Helper()
	w := readMC(t, "mc-openstack", onOpenStack(newTarget()))
	w.vms = serversOf(w.Machines, func(m *unstructured.Unstructured) map[string]string {
		return map[string]string{"machine-uid": string(m.GetUID())}
	})
	return w
}

// TestFindingsOfMachineControllerOnOpenStack tests each reason of OpenStack's that stops a
// takeover, and each change that a plan notes: it is the only finding more than those of the
// fixture.
func TestFindingsOfMachineControllerOnOpenStack(t *testing.T) {
	t.Parallel()
	const (
		pool, one = "MachineDeployment workers", "Machine workers-6d4f5-abcde"
		value     = "spec.template.spec.providerSpec.value"
		at        = value + ".cloudProviderSpec."
	)
	spec := func(path string, to any) func(*mcWorld) { return inPool(at+path, to) }
	secret := map[string]any{"secretKeyRef": map[string]any{"namespace": "kube-system", "name": "x", "key": "y"}}
	testFindings(t, newMCServers, []finding[*mcWorld]{
		{"another cloud", inPool(value+".cloudProvider", "aws"), Refused, pool, value + ".cloudProvider", `"aws"`},
		{"unknown field", spec("surprise", "x"), Refused, pool, value + ".cloudProviderSpec", `unknown field "surprise"`},
		{"region", spec("region", "RegionTwo"), Refused, pool, at + "region", `"RegionTwo"`},
		{"zone from a Secret", spec("availabilityZone", secret), Refused, pool, at + "availabilityZone", "comes from a Secret"},
		{"no network", func(w *mcWorld) { spec("network", "")(w); spec("networks", nil)(w) }, Refused, pool, at + "network", "there is none"},
		{"no group", spec("securityGroups", nil), Noted, pool, at + "securityGroups", "kubernetes-v1"},
		{"subnet", spec("subnet", "x"), Noted, pool, at + "subnet", "does not use it"},
		{"volume type without a volume", spec("rootDiskSizeGB", nil), Noted, pool, at + "rootDiskVolumeType", "no effect"},
		{"volume of no size", spec("rootDiskSizeGB", int64(0)), Refused, pool, at + "rootDiskSizeGB", "at least 1"},
		{"device path", spec("trustDevicePath", true), Noted, pool, at + "trustDevicePath", "no effect any more"},
		{"limit of volumes", spec("nodeVolumeAttachLimit", int64(20)), Noted, pool, at + "nodeVolumeAttachLimit", "CSI driver"},
		{"floating IP that was free", func(w *mcWorld) { w.Machines[0].SetAnnotations(nil) }, Noted, one, "metadata.annotations",
			"it stays when the machine goes"},
		{"regional provider ID", func(w *mcWorld) {
			w.Nodes[0].Spec.ProviderID = "openstack://RegionOne/00000000-0000-4000-8000-00000000000a"
		}, Refused, one, "", "regionalProviderIDs"},
		{"provider ID of no cloud", func(w *mcWorld) { w.Nodes[0].Spec.ProviderID = "kubermatic://openstack/uid-a" }, Refused, one, "",
			"names no VM of this cloud"},
		{"VM of another Machine", func(w *mcWorld) { w.vms[0].Tags["machine-uid"] = "x" }, Refused, one, "",
			`the tag machine-uid of another Machine, "x"`},
	})
}
