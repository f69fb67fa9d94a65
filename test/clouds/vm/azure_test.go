// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"context"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/azure/armstub"
	"github.com/drover-io/drover/cloud/simulated/simulator/body"
	"github.com/drover-io/drover/test/internal/rig"
)

// azure tests a machine of a stand-in for Azure. The guest has the firmware tables, the
// provisioning disk, the metadata service and the agent's service of Azure, with what Azure was
// told. It reports that it is provisioned.
func (s *stand) azure(t *testing.T) {
	g := NewWithT(t)
	const group = "Nodes-guests"
	var reports sync.Map
	run := apart(t)
	stub, err := rig.StartAzureStub("a secret", group, 1, func(told armstub.Guest) (off func()) {
		return run(func(ctx context.Context) (*guest, error) {
			return s.fromAzure(ctx, t, told, func(state string) { reports.Store(told.Name, state) })
		})
	})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(stub.Close)
	cluster := s.clusterOf(t, "azure", func(o client.Object) {
		rig.DressAzure(o, "https://"+stub.Address, stub.CA, group, "a secret")
		if template, ok := o.(*infrav1.DroverMachineTemplate); ok {
			template.Spec.Template.Spec.Cloud.Azure.AdminUsername, template.Spec.Template.Spec.Cloud.Azure.SSHKeys = "ops", []string{alicesKey}
		}
	})
	config := s.common()
	config.PreKubeletCommands = []string{
		"test \"$(cat /run/cloud-init/cloud-id)\" = azure",
		namedByCloud,
		"grep -q IMarked /home/ops/.ssh/authorized_keys",
	}
	pool := s.pool("azure", "", config)
	pool.Cluster = cluster
	s.becomesNode(t, pool, func(machine *clusterv1.Machine) {
		g.Expect(machine.Spec.ProviderID).To(Equal("azure:///subscriptions/" + armstub.Subscription + "/resourceGroups/" +
			strings.ToLower(group) +
			"/providers/Microsoft.Compute/virtualMachines/" + machine.Name))
		state, _ := reports.Load(machine.Name)
		g.Expect(state).To(Equal("Ready"))
	})
	g.Eventually(func() (left []string) {
		for _, e := range stub.Books() {
			if e.State != "Gone" {
				left = append(left, e.Name)
			}
		}
		return left
	}, time.Minute, time.Second).Should(BeEmpty())
}

// fromAzure boots a guest from the prebuilt image.
func (s *stand) fromAzure(ctx context.Context, t *testing.T, told armstub.Guest, report func(state string)) (*guest, error) {
	document, err := told.ProvisioningDisk()
	if err != nil {
		return nil, err
	}
	metadata, wire := httptest.NewServer(told.Metadata(strings.ReplaceAll(anyMAC, ":", ""))), httptest.NewServer(armstub.Wire(report))
	t.Cleanup(metadata.Close)
	t.Cleanup(wire.Close)
	g := &guest{
		elsewhere: true, network: everything,
		tables: []string{"type=1,manufacturer=Microsoft Corporation,product=Virtual Machine,uuid=" + armstub.VMID, "type=3,asset=" +
			armstub.ChassisTag},
		services: map[string]string{armstub.MetadataAddress: metadata.Listener.Addr().String(),
			armstub.WireAddress: wire.Listener.Addr().String()},
		machine: body.Machine{
			InstanceID: told.Name, Hostname: told.ComputerName, Zone: told.Zone, IP: told.IP, UserData: told.UserData, CPU: told.CPUs,
			MemoryMiB: 1280, // enough of what was told
		},
	}
	return g, s.hypervisor.power(ctx, g, "prebuilt", anyMAC, func(path string) (string, error) {
		return " cc:{datasource_list: [Azure]}end_cc", s.hypervisor.writeDisk(ctx, path, "ovf", map[string][]byte{"ovf-env.xml": document})
	})
}
