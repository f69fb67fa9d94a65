// SPDX-License-Identifier: Apache-2.0

package azure

import (
	"context"
	"maps"
	"strings"
	"testing"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/azure/armstub"
	"github.com/drover-io/drover/test/internal/rig"
	"github.com/drover-io/drover/test/takeover"
)

// TestTakeover takes VMs over that were made as machine-controller-manager makes them, with parts
// that Azure deletes with them: there, back, and there again. Then the pool is Drover's: it rolls,
// goes, and only the disks that a CSI driver has attached are left.
func TestTakeover(t *testing.T) {
	const role = "kubernetes.io-role-node"
	s := house.Stage(t, "taken")
	place := onAzure(s, true)
	place.Cloud, place.Role, place.Tags = "Azure", role, map[string]string{"kubernetes.io-cluster-taken": "1", role: "1"}
	place.Spec = map[string]any{
		"location": armstub.Location, "resourceGroup": "Nodes-taken", "tags": map[string]any{"kubernetes.io-cluster-taken": "1", role: "1"},
		"subnetInfo": map[string]any{"vnetName": "vnet", "vnetResourceGroup": strings.Split(armstub.Subnet, "/")[4], "subnetName": "nodes"},
		"properties": map[string]any{
			"hardwareProfile": map[string]any{"vmSize": "Standard_D2s_v5"}, "zone": int64(1),
			"storageProfile": map[string]any{"imageReference": map[string]any{"id": armstub.Image}, "osDisk": map[string]any{"diskSizeGB": int64(50), "createOption": "FromImage"}},
		},
	}
	takenOver(takeover.Start(s, takeover.MachineControllerManager(), place), (*takeover.Old).AddMCM, map[string]int{
		"PATCH virtualMachines/providers/tags": (3 + 2 + 1) * 2, "PATCH networkInterfaces/providers/tags": 2, "PATCH disks/providers/tags": 2 * 2,
	})
}

// TestTakeoverFromMachineController is TestTakeover for VMs of machine-controller, which deletes
// their parts itself.
func TestTakeoverFromMachineController(t *testing.T) {
	s := house.Stage(t, "mc")
	place := onAzure(s, false)
	place.Cloud, place.UID, place.Role = "azure", "Machine-UID", "Machine-UID"
	place.Spec = map[string]any{
		"location": armstub.Location, "resourceGroup": "Nodes-mc", "vmSize": "Standard_D2s_v5", "vnetName": "vnet", "subnetName": "nodes",
		"vnetResourceGroup": strings.Split(armstub.Subnet, "/")[4], "imageID": armstub.Image, "zones": []any{"1"},
	}
	const times = (3 + 2 + 1) * 2 // stages, rollbacks and a commit, of two machines
	takenOver(takeover.Start(s, takeover.MachineController(), place), (*takeover.Old).AddMC, map[string]int{
		"PATCH virtualMachines/providers/tags": times, "PATCH networkInterfaces/providers/tags": times, "PATCH publicIPAddresses/providers/tags": times,
		"PATCH disks/providers/tags": 2 * times,
	})
}

// takenOver takes a pool of two machines over, which add makes.
func takenOver(s *takeover.Stage, add func(*takeover.Old, takeover.Pool), writes map[string]int) {
	s.Helper()
	s.Azure.SetKeep(false)
	pool := takeover.Pool{Name: "a", Replicas: 2, Labels: map[string]any{"pool": "a"}}
	add(s.Old, pool)
	s.Whole(pool, func(m *infrav1.DroverMachineFields) { m.Cloud.Azure.AdminUsername = "operators" }, writes)
	volumes := map[string]bool{}
	for _, e := range s.Azure.Books() {
		if e.Tags["csi"] != "" {
			volumes[e.Name] = true
		}
	}
	if len(volumes) != pool.Replicas {
		s.Errorf("the volumes %v are there, want one of each machine", volumes)
	}
	s.Until("only the volumes are left", func(ctx context.Context) (string, error) { return s.Left(ctx, rig.Except{Instances: volumes}) })
	if objections := s.Azure.Objections(); len(objections) > 0 {
		s.Errorf("Microsoft's models: %v", objections)
	}
}

// onAzure is Azure as the old systems see it. cascade says whether it deletes the parts of their
// VMs.
func onAzure(s *rig.Stage, cascade bool) takeover.Place {
	prefix := "azure:///subscriptions/" + armstub.Subscription + "/resourceGroups/nodes-" + s.Tenant.Name + "/providers/Microsoft.Compute/virtualMachines/"
	return takeover.Place{
		Launch: func(name string, tags map[string]string) (id, own, node string) {
			s.Azure.LaunchWith(name, tags, cascade)
			return name, "azure:///" + armstub.Location + "/" + name, prefix + name
		},
		VMs: func() map[string]takeover.VM {
			all := map[string]takeover.VM{}
			for _, e := range s.Azure.Books() {
				if e.State != "" { // a part has none
					all[e.Name] = takeover.VM{State: map[bool]string{true: "running", false: e.State}[e.State == "Succeeded"], Tags: e.Tags}
				}
			}
			for _, e := range s.Azure.Books() {
				if vm, has := all[e.Attached]; has {
					for key, value := range e.Tags {
						vm.Tags[e.Name+" "+key] = value
					}
				}
			}
			return all
		},
		Calls: func() map[string]int {
			calls := s.Azure.Calls()
			maps.DeleteFunc(calls, func(op string, _ int) bool { return strings.HasPrefix(op, "GET ") || strings.HasPrefix(op, "POST ") })
			return calls
		},
	}
}
