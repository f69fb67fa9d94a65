// SPDX-License-Identifier: Apache-2.0

package clouds

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/internal/test/vcenter"
	"github.com/drover-io/drover/test/internal/rig"
	"github.com/drover-io/drover/test/internal/scenario"
	"github.com/drover-io/drover/test/takeover"
)

const (
	mcmCluster = "mcm.gardener.cloud/cluster"
	mcmRole    = "mcm.gardener.cloud/role"
)

// onVSphere is govmomi's vCenter. In each of three stages and two rollbacks of a takeover, a machine
// needs one write.
var onVSphere = row{
	start:      rig.StartOnVSphere,
	standIn:    func(s *rig.Stage) standIn { return s.VCenter },
	prefix:     func(*rig.Stage) string { return "vsphere://" },
	lose:       func(s *stage, id string) { s.Do(s.VCenter.Destroy(id)) },
	deployment: dressed,
	mcm:        &handover{place: managedVSphere, writes: map[string]int{"ReconfigVM_Task": 5 * 2}},
	mc:         &handover{place: controlledVSphere, writes: map[string]int{"ReconfigVM_Task": 5 * 2}},
	change:     func(m *infrav1.DroverMachineFields) { m.Cloud.VSphere.MemoryMiB *= 2 },
	end: func(s *stage) {
		s.Empty()
		for _, vm := range s.VCenter.VMs() {
			NewWithT(s.T).Expect(vm.Gone).To(BeTrue(), vm.Name)
		}
	},
}

// dressed gives each VM a tag and a custom attribute by its template, and counts the calls in the
// end. The test was seen to fail without the attribute.
func dressed(s *stage) (scenario.Check, func()) {
	s.Helper()
	s.Do(s.VCenter.MakeTag(s.Ctx, "team", "blue"))
	s.Do(s.VCenter.MakeAttribute(s.Ctx, "cost-center"))
	dress := s.Dress
	s.Dress = func(o client.Object) {
		dress(o)
		if template, ok := o.(*infrav1.DroverMachineTemplate); ok {
			m := template.Spec.Template.Spec.Cloud.VSphere
			m.Tags = []infrav1.VSphereTag{{Category: "team", Name: "blue"}}
			m.CustomAttributes = []infrav1.VSphereAttribute{{Name: "cost-center", Value: "4711"}}
		}
	}
	return s.marked, func() {
		calls := map[string]int{}
		for _, c := range s.Cloud.Calls() {
			calls[c.Verb]++
		}
		s.Logf("calls of vCenter: %v", calls)
		if calls["Login"] != 1 || calls["CloneVM_Task"] != 7 {
			s.Errorf("%d logins and %d clones, want one login for all, and 7 machines: three, three that took their places, and one", calls["Login"],
				calls["CloneVM_Task"])
		}
	}
}

// marked checks that each VM has its tag and its custom attribute.
func (s *stage) marked(ctx context.Context) (string, error) {
	tagged, err := s.VCenter.Tagged(ctx, "blue")
	if err != nil {
		return "", err
	}
	for _, vm := range s.VCenter.VMs() {
		if !vm.Gone && (!slices.Contains(tagged, vm.UUID) || vm.Attributes["cost-center"] != "4711") {
			return fmt.Sprintf("%s lacks its tag or its attribute: it has %v", vm.Name, vm.Attributes), nil
		}
	}
	return "", nil
}

// managedVSphere is a vCenter for machine-controller-manager.
func managedVSphere(s *rig.Stage) takeover.Place {
	place := oldVSphere(s)
	place.Cloud, place.Role, place.Tags = "vsphere", mcmRole, map[string]string{mcmCluster: "taken", mcmRole: "node"}
	for _, key := range []string{mcmCluster, mcmRole} {
		s.Do(s.VCenter.MakeAttribute(s.Ctx, key))
	}
	place.Spec = map[string]any{
		"region": "eu", "datacenter": vcenter.Datacenter, "datastore": vcenter.Datastore, "resourcePool": vcenter.ResourcePool,
		"templateVM": vcenter.Template, "numCpus": int64(2), "memory": int64(4096), "systemDisk": map[string]any{"size": int64(20)},
		"tags": map[string]any{mcmCluster: "taken", mcmRole: "node"}, "sshKeys": []any{"ssh-ed25519 AAAA operators"},
	}
	return place
}

// controlledVSphere is a vCenter for machine-controller, which knows its VMs by their names.
func controlledVSphere(s *rig.Stage) takeover.Place {
	place := oldVSphere(s)
	place.Cloud = "vsphere"
	place.Spec = map[string]any{
		"datacenter": vcenter.Datacenter, "datastore": vcenter.Datastore, "resourcePool": vcenter.ResourcePool,
		"templateVMName": vcenter.Template, "cpus": int64(2), "memoryMB": int64(4096), "diskSizeGB": int64(20),
	}
	return place
}

// oldVSphere is a vCenter as the old systems see it. The provider IDs of their Machines do not
// matter: machine-controller-manager's have a region.
func oldVSphere(s *rig.Stage) takeover.Place {
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
