// SPDX-License-Identifier: Apache-2.0

package openstack

import (
	"testing"

	. "github.com/onsi/gomega"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
)

// TestVolumes: all disks go in the create, and with the server. Only a machine that names a type of volume needs the newer microversion.
func TestVolumes(t *testing.T) {
	for name, test := range map[string]struct {
		root    *infrav1.OpenStackVolume
		volumes []infrav1.OpenStackVolume
		version string
		image   bool // the server's own
		want    []disk
	}{
		"none": {version: "2.61", image: true},
		"root": {
			root: &infrav1.OpenStackVolume{SizeGiB: 50, Type: "ssd"}, version: "2.67",
			want: []disk{{Source: "image", Destination: "volume", SizeGiB: 50, VolumeType: "ssd", DeleteOnTermination: true}},
		},
		"further": {
			volumes: []infrav1.OpenStackVolume{{SizeGiB: 10}}, version: "2.61", image: true,
			want: []disk{
				{Source: "image", Destination: "local", DeleteOnTermination: true},
				{Source: "blank", Destination: "volume", BootIndex: -1, SizeGiB: 10, DeleteOnTermination: true},
			},
		},
		"both": {
			root: &infrav1.OpenStackVolume{SizeGiB: 50}, volumes: []infrav1.OpenStackVolume{{SizeGiB: 10}, {SizeGiB: 20, Type: "ssd"}}, version: "2.67",
			want: []disk{
				{Source: "image", Destination: "volume", SizeGiB: 50, DeleteOnTermination: true},
				{Source: "blank", Destination: "volume", BootIndex: -1, SizeGiB: 10, DeleteOnTermination: true},
				{Source: "blank", Destination: "volume", BootIndex: -1, SizeGiB: 20, VolumeType: "ssd", DeleteOnTermination: true},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			p := ordinary(t)
			d := connected(t, p)
			req := requested(func(m *infrav1.OpenStackMachine) { m.RootVolume, m.Volumes = test.root, test.volumes })
			_, err := d.Ensure(t.Context(), req)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(p.ops()).To(Equal([]string{"CreateToken", "ListServers", "ListFlavors", "ListImages", "ListNetworks", "CreateServer"}))
			from, err := d.image(t.Context(), req.Spec.OpenStack.Image)
			g.Expect(err).NotTo(HaveOccurred())
			if len(test.want) > 0 {
				test.want[0].UUID = from.ID
			}
			var sent struct{ Server newServer }
			p.sent("CreateServer", &sent)
			g.Expect(sent.Server.Disks).To(Equal(test.want))
			g.Expect(sent.Server.ImageRef).To(Equal(map[bool]string{true: from.ID}[test.image]))
			g.Expect(p.calls[len(p.calls)-1].req.Header.Get("X-Openstack-Nova-Api-Version")).To(Equal(test.version))

			offering, err := d.Offering(t.Context(), req.Spec)
			g.Expect(err).NotTo(HaveOccurred())
			have, size := offering.Capacity["ephemeral-storage"], "1Gi"
			if test.root != nil {
				size = "50Gi"
			}
			g.Expect(have.String()).To(Equal(size))
		})
	}
}
