// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"context"
	"net/http/httptest"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/gcp/gcpstub"
	"github.com/drover-io/drover/cloud/simulated/simulator/body"
	"github.com/drover-io/drover/test/internal/rig"
)

// gceArguments are kernel arguments that make cloud-init read the metadata server. Google's name
// server, which resolves its name, is not there.
const gceArguments = " cc:{datasource_list: [GCE], datasource: {GCE: {metadata_url: \"http://" + gcpstub.MetadataAddress +
	"/computeMetadata/v1/\"}}}end_cc"

// gcp tests a machine of a stand-in for Compute Engine. The guest has the firmware tables and the
// metadata server of Google Cloud, with what Google was told.
func (s *stand) gcp(t *testing.T) {
	g := NewWithT(t)
	const project = "nodes-guests"
	run := apart(t)
	stub, err := rig.StartGCPStub("a key", project, 1, func(told gcpstub.Guest) (off func()) {
		return run(func(ctx context.Context) (*guest, error) { return s.fromGCP(ctx, t, told) })
	})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(stub.Close)
	cluster := s.clusterOf(t, "gcp", func(o client.Object) {
		rig.DressGCP(o, "https://"+stub.Address, stub.CA, project, "a key")
		if template, ok := o.(*infrav1.DroverMachineTemplate); ok {
			template.Spec.Template.Spec.Cloud.GCP.Metadata = map[string]string{"ssh-keys": "debian:" + alicesKey}
		}
	})
	config := s.common()
	config.PreKubeletCommands = []string{
		"test \"$(cat /run/cloud-init/cloud-id)\" = gce",
		namedByCloud,
		"grep -q IMarked /home/debian/.ssh/authorized_keys",
	}
	pool := s.pool("gcp", "", config)
	pool.Cluster = cluster
	s.becomesNode(t, pool, func(machine *clusterv1.Machine) {
		g.Expect(machine.Spec.ProviderID).To(Equal("gce://" + project + "/" + machine.Status.FailureDomain + "/" + machine.Name))
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

// fromGCP boots a guest from the prebuilt image. It has no disk with data.
func (s *stand) fromGCP(ctx context.Context, t *testing.T, told gcpstub.Guest) (*guest, error) {
	metadata := httptest.NewServer(told.MetadataServer())
	t.Cleanup(metadata.Close)
	g := &guest{
		elsewhere: true, network: everything,
		tables:   []string{"type=1,manufacturer=Google,product=Google Compute Engine"},
		services: map[string]string{gcpstub.MetadataAddress: metadata.Listener.Addr().String()},
		machine: body.Machine{
			InstanceID: told.Name, Hostname: told.Name, Zone: told.Zone, IP: told.IP, UserData: told.UserData(), CPU: told.CPUs, MemoryMiB: 1280,
			// enough of what was told
		},
	}
	return g, s.hypervisor.power(ctx, g, "prebuilt", anyMAC, func(string) (string, error) { return gceArguments, nil })
}
