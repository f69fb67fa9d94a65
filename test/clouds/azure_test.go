// SPDX-License-Identifier: Apache-2.0

package clouds

import (
	"context"
	"maps"
	"strings"
	"testing"
	"time"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/azure/armstub"
	"github.com/drover-io/drover/test/internal/rig"
	"github.com/drover-io/drover/test/takeover"
)

// onAzure is a stand-in for Azure.
var onAzure = row{
	start:   rig.StartOnAzure,
	standIn: func(s *rig.Stage) standIn { return s.Azure },
	prefix: func(s *rig.Stage) string {
		return "azure:///subscriptions/" + armstub.Subscription + "/resourceGroups/nodes-" + s.Tenant.Name +
			"/providers/Microsoft.Compute/virtualMachines/"
	},
	id:    "NAME",
	disks: 2, // a network interface is one, too
	lose:  func(s *stage, id string) { s.Azure.Remove(id) },
	endpoint: &endpoint{
		spec: infrav1.LoadBalancerCloud{Azure: &infrav1.AzureLoadBalancer{SubnetID: armstub.Subnet}},
		host: `^198\.51\.`,
		once: []string{"PUT loadBalancers/backendAddressPools", "PUT publicIPAddresses"},
	},
	fleet: func(t *testing.T, n int) counted {
		stub := armstub.New(t, armstub.Options{
			Tenant: tenant, Client: "client", Secret: "secret", PageSize: 1000, Boot: 5 * time.Second, Stop: 10 * time.Second,
		})
		return counted{account(t, stub), stub, smallest(), func(int) []string { return []string{"1", "2", "3"} }, n * 11 / 10}
	},
	// Azure deletes the parts of the former with their VMs, and the latter does so itself.
	mcm: &handover{place: managedAzure, writes: map[string]int{
		"PATCH virtualMachines/providers/tags": times, "PATCH networkInterfaces/providers/tags": 2, "PATCH disks/providers/tags": 2 * 2,
	}},
	mc: &handover{place: controlledAzure, writes: map[string]int{
		"PATCH virtualMachines/providers/tags": times, "PATCH networkInterfaces/providers/tags": times,
		"PATCH publicIPAddresses/providers/tags": times,
		"PATCH disks/providers/tags":             2 * times,
	}},
	change: func(m *infrav1.DroverMachineFields) { m.Cloud.Azure.AdminUsername = "operators" },
	end:    onlyVolumes,
}

const times = (3 + 2 + 1) * 2 // stages, rollbacks and a commit, of two machines

// managedAzure is Azure for machine-controller-manager.
func managedAzure(s *rig.Stage) takeover.Place {
	const role = "kubernetes.io-role-node"
	place := oldAzure(s, true)
	place.Cloud, place.Role, place.Tags = "Azure", role, map[string]string{"kubernetes.io-cluster-taken": "1", role: "1"}
	place.Spec = map[string]any{
		"location": armstub.Location, "resourceGroup": "Nodes-taken", "tags": map[string]any{"kubernetes.io-cluster-taken": "1", role: "1"},
		"subnetInfo": map[string]any{"vnetName": "vnet", "vnetResourceGroup": strings.Split(armstub.Subnet, "/")[4], "subnetName": "nodes"},
		"properties": map[string]any{
			"hardwareProfile": map[string]any{"vmSize": "Standard_D2s_v5"}, "zone": int64(1),
			"storageProfile": map[string]any{"imageReference": map[string]any{"id": armstub.Image},
				"osDisk": map[string]any{"diskSizeGB": int64(50), "createOption": "FromImage"}},
		},
	}
	return place
}

// controlledAzure is Azure for machine-controller.
func controlledAzure(s *rig.Stage) takeover.Place {
	place := oldAzure(s, false)
	place.Cloud, place.UID, place.Role = "azure", "Machine-UID", "Machine-UID"
	place.Spec = map[string]any{
		"location": armstub.Location, "resourceGroup": "Nodes-mc", "vmSize": "Standard_D2s_v5", "vnetName": "vnet", "subnetName": "nodes",
		"vnetResourceGroup": strings.Split(armstub.Subnet, "/")[4], "imageID": armstub.Image, "zones": []any{"1"},
	}
	return place
}

// onlyVolumes waits until only the disks are left that a CSI driver has attached.
func onlyVolumes(s *stage) {
	s.Helper()
	volumes := map[string]bool{}
	for _, e := range s.Azure.Books() {
		if e.Tags["csi"] != "" {
			volumes[e.Name] = true
		}
	}
	if len(volumes) != 2 {
		s.Errorf("the volumes %v are there, want one of each machine", volumes)
	}
	s.Until("only the volumes are left", func(ctx context.Context) (string, error) { return s.Left(ctx, rig.Except{Instances: volumes}) })
}

// oldAzure is Azure as the old systems see it. cascade says whether it deletes the parts of their
// VMs.
func oldAzure(s *rig.Stage, cascade bool) takeover.Place {
	prefix := "azure:///subscriptions/" + armstub.Subscription + "/resourceGroups/nodes-" + s.Tenant.Name +
		"/providers/Microsoft.Compute/virtualMachines/"
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
