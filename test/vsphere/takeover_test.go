// SPDX-License-Identifier: Apache-2.0

package vsphere

import (
	"maps"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/internal/test/vcenter"
	"github.com/drover-io/drover/test/internal/rig"
	"github.com/drover-io/drover/test/takeover"
)

const (
	mcmCluster = "mcm.gardener.cloud/cluster"
	mcmRole    = "mcm.gardener.cloud/role"
)

// TestTakeover takes VMs over that were made as machine-controller-manager makes them, with the
// command killed after each of its writes: there, back, and there again. Rolled back, each VM has
// the options and attributes that it had. Then the pool is Drover's: it rolls, goes, and nothing is
// left.
func TestTakeover(t *testing.T) {
	s := house.Stage(t, "taken")
	place := onVSphere(s)
	place.Cloud, place.Role, place.Tags = "vsphere", mcmRole, map[string]string{mcmCluster: "taken", mcmRole: "node"}
	for _, key := range []string{mcmCluster, mcmRole} {
		s.Do(s.VCenter.MakeAttribute(s.Ctx, key))
	}
	place.Spec = map[string]any{
		"region": "eu", "datacenter": vcenter.Datacenter, "datastore": vcenter.Datastore, "resourcePool": vcenter.ResourcePool,
		"templateVM": vcenter.Template, "numCpus": int64(2), "memory": int64(4096), "systemDisk": map[string]any{"size": int64(20)},
		"tags": map[string]any{mcmCluster: "taken", mcmRole: "node"}, "sshKeys": []any{"ssh-ed25519 AAAA operators"},
	}
	takenOver(takeover.Start(s, takeover.MachineControllerManager(), place), (*takeover.Old).AddMCM)
}

// TestTakeoverFromMachineController is TestTakeover for VMs of machine-controller, which knows them
// by their names.
func TestTakeoverFromMachineController(t *testing.T) {
	s := house.Stage(t, "mc")
	place := onVSphere(s)
	place.Cloud = "vsphere"
	place.Spec = map[string]any{
		"datacenter": vcenter.Datacenter, "datastore": vcenter.Datastore, "resourcePool": vcenter.ResourcePool,
		"templateVMName": vcenter.Template, "cpus": int64(2), "memoryMB": int64(4096), "diskSizeGB": int64(20),
	}
	takenOver(takeover.Start(s, takeover.MachineController(), place), (*takeover.Old).AddMC)
}

// takenOver takes a pool of two machines over, which add makes. In each of three stages and two
// rollbacks, a machine needs one write.
func takenOver(s *takeover.Stage, add func(*takeover.Old, takeover.Pool)) {
	s.Helper()
	pool := takeover.Pool{Name: "a", Replicas: 2, Labels: map[string]any{"pool": "a"}}
	add(s.Old, pool)
	s.Whole(pool, func(m *infrav1.DroverMachineFields) { m.Cloud.VSphere.MemoryMiB *= 2 }, map[string]int{"ReconfigVM_Task": 5 * pool.Replicas})
	s.Empty()
	for _, vm := range s.VCenter.VMs() {
		NewWithT(s.T).Expect(vm.Gone).To(BeTrue(), vm.Name)
	}
}

// onVSphere is a vCenter as the old systems see it. The provider IDs of their Machines do not
// matter: machine-controller-manager's have a region.
func onVSphere(s *rig.Stage) takeover.Place {
	return takeover.Place{
		Launch: func(name string, tags map[string]string) (id, own, node string) {
			s.Helper()
			id, err := s.VCenter.Launch(name, map[string]string{"disk.enableUUID": "TRUE"})
			s.Do(err)
			for key, value := range tags {
				s.Do(s.VCenter.SetAttribute(s.Ctx, id, key, value))
			}
			return id, "vsphere://eu/" + id, "vsphere://" + id
		},
		VMs: func() map[string]takeover.VM {
			all := map[string]takeover.VM{}
			for _, vm := range s.VCenter.VMs() {
				tags := maps.Clone(vm.Options)
				maps.Copy(tags, vm.Attributes)
				maps.DeleteFunc(tags, func(key, value string) bool { return key == mcmRole && value == "" }) // none, to machine-controller-manager
				state := "running"
				if !vm.On {
					state = "off"
				}
				all[vm.UUID] = takeover.VM{State: state, Tags: tags}
			}
			return all
		},
		Calls: func() map[string]int {
			calls := s.VCenter.Calls()
			maps.DeleteFunc(calls, func(op string, _ int) bool { return !strings.HasSuffix(op, "_Task") })
			return calls
		},
	}
}
