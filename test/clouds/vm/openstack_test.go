// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-io/drover/cloud/simulated/simulator/body"
	"github.com/drover-io/drover/cloud/simulated/wire"
	"github.com/drover-io/drover/test/internal/rig"
	"github.com/drover-io/drover/test/internal/stack"
)

// configDriveArguments are kernel arguments that make cloud-init read a config drive. The image
// does not configure this.
const configDriveArguments = " cc:{datasource_list: [ConfigDrive]}end_cc"

// openStack tests a machine of a real OpenStack, whose hypervisor boots nothing. The guest gets a
// config drive with the data from Nova's metadata service, including the user data that Nova
// received.
func (s *stand) openStack(t *testing.T) {
	g := NewWithT(t)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	nova, err := stack.Enter(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { stop(); nova.Leave() })
	nova.Power(ctx, func(told stack.Guest) (off func()) {
		off, err := s.fromNova(ctx, nova, told)
		if err != nil {
			t.Error(err)
			return func() {}
		}
		return off
	})
	cluster := s.clusterOf(t, "openstack", func(o client.Object) { rig.DressOpenStack(o, nova.Door(), nova.Project) })
	pool := s.pool("nova", "", s.common())
	pool.Cluster = cluster
	s.becomesNode(t, pool)
	g.Eventually(func() (left []string, err error) {
		books, err := nova.Books(t.Context())
		for _, e := range books {
			if e.Namespace == cluster.Namespace && e.State != wire.Terminated {
				left = append(left, fmt.Sprint(e.Kind, " ", e.ID))
			}
		}
		return left, err
	}, time.Minute, time.Second).Should(BeEmpty())
}

// fromNova boots a guest from the prebuilt image.
func (s *stand) fromNova(ctx context.Context, nova *stack.Cloud, told stack.Guest) (off func(), err error) {
	files := map[string][]byte{}
	for _, name := range []string{"meta_data.json", "network_data.json", "vendor_data.json", "user_data"} {
		if files["openstack/latest/"+name], err = nova.Metadata(ctx, told.ID, told.IP, name); err != nil {
			return nil, err
		}
	}
	var its struct {
		Links []struct {
			MAC string `json:"ethernet_mac_address"`
		}
	}
	if err := json.Unmarshal(files["openstack/latest/network_data.json"], &its); err != nil {
		return nil, fmt.Errorf("read the network of %s: %w", told.ID, err)
	}
	if len(its.Links) != 1 {
		return nil, fmt.Errorf("%s has %d interfaces, and can have one", told.ID, len(its.Links))
	}
	g := &guest{elsewhere: true, machine: body.Machine{
		InstanceID: told.ID, Hostname: told.Hostname, IP: told.IP, UserData: told.UserData, CPU: 2, MemoryMiB: 1280,
		// more than Nova's smallest flavor has
	}}
	err = s.hypervisor.power(ctx, g, "prebuilt", its.Links[0].MAC, func(path string) (string, error) {
		return configDriveArguments, s.hypervisor.writeDisk(ctx, path, "config-2", files)
	})
	if err != nil {
		return nil, err
	}
	return g.Kill, nil
}
