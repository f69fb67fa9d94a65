// SPDX-License-Identifier: Apache-2.0

package vsphere

import (
	"maps"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
	"github.com/drover-io/drover/test/rig"
	"github.com/drover-io/drover/test/takeover"
	"github.com/drover-io/drover/test/vcenter"
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
	takenOver(t, takeover.Start(s, takeover.MachineControllerManager(), place), (*takeover.Old).AddMCM)
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
	takenOver(t, takeover.Start(s, takeover.MachineController(), place), (*takeover.Old).AddMC)
}

// takenOver takes a pool of two machines over, which add makes.
func takenOver(t *testing.T, s *takeover.Stage, add func(*takeover.Old, takeover.Pool)) {
	t.Helper()
	g := NewWithT(t)
	pool := takeover.Pool{Name: "a", Replicas: 2, Labels: map[string]any{"pool": "a"}}
	add(s.Old, pool)
	s.Old.Lease(time.Now().Add(-time.Hour))
	before, began := s.Picture(), s.VCenter.Calls()
	g.Expect(before.VMs).To(And(HaveLen(2), HaveEach(HaveField("Tags", Not(HaveKey(HavePrefix("drover-")))))))

	out, errs, code := s.Run("plan")
	g.Expect(code).To(Equal(0), out+errs)
	g.Expect(s.Picture()).To(Equal(before), "a plan changes nothing")
	s.Done("stage")
	out, errs, code = s.Run("check")
	g.Expect(code).To(Equal(0), out+errs)
	s.Done("rollback")
	g.Expect(s.Picture()).To(Equal(before), "rolled back before the switch")
	s.Done("stage")
	s.Done("switch")
	s.Still(before, 2)
	s.Done("rollback")
	g.Expect(s.Picture()).To(Equal(before), "rolled back after the switch")

	s.Done("stage")
	s.Done("switch")
	s.Still(before, 2)
	s.Done("commit")
	s.Committed(before)
	g.Expect(made(s.VCenter.Calls(), began)).To(Equal(map[string]int{"ReconfigVM_Task": 5 * 2}), "one for each machine in each of three stages and two rollbacks")

	s.Roll(pool, func(m *infrav1.CloudMachineFields) { m.VSphere.MemoryMiB *= 2 })
	g.Expect(made(s.VCenter.Calls(), began)).To(And(HaveKeyWithValue("CloneVM_Task", 2), HaveKeyWithValue("Destroy_Task", 2)))
	s.Scale("a", 0)
	s.Empty()
	for _, vm := range s.VCenter.VMs() {
		g.Expect(vm.Gone).To(BeTrue(), vm.Name)
	}
	g.Expect(s.Count(&clusterv1.MachineList{})).To(Equal(0))
}

// made returns how often VMs were made, changed or deleted since calls were counted.
func made(calls, since map[string]int) map[string]int {
	all := map[string]int{}
	for op, n := range calls {
		if n > since[op] && strings.HasSuffix(op, "_Task") {
			all[op] = n - since[op]
		}
	}
	return all
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
	}
}
