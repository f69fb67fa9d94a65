// SPDX-License-Identifier: Apache-2.0

package openstack

import (
	"net/http"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
)

// TestVolumes: the create includes all disks, and they are deleted with the server. Only a machine
// with a volume type needs the newer microversion.
func TestVolumes(t *testing.T) {
	for name, test := range map[string]struct {
		root    infrav1.OpenStackVolume
		volumes []infrav1.OpenStackVolume
		version string
		image   bool // on the server itself
		want    []disk
	}{
		"none": {version: "2.61", image: true},
		"root": {
			root: infrav1.OpenStackVolume{SizeGiB: 50, Type: "ssd"}, version: "2.69",
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
			root: infrav1.OpenStackVolume{SizeGiB: 50}, volumes: []infrav1.OpenStackVolume{{SizeGiB: 10}, {SizeGiB: 20, Type: "ssd"}},
			version: "2.69",
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
			from, err := d.image(t.Context(), req.Spec.Cloud.OpenStack.Image)
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
			if test.root.SizeGiB > 0 {
				size = "50Gi"
			}
			g.Expect(have.String()).To(Equal(size))
		})
	}
}

func withOwnVolumes(m *infrav1.OpenStackMachine) {
	ownPorts(m)
	m.RootVolume = infrav1.OpenStackVolume{SizeGiB: 50, Type: "ssd", InMachineZone: infrav1.FeatureEnabled}
	m.Volumes = []infrav1.OpenStackVolume{{SizeGiB: 10}, {SizeGiB: 20, AvailabilityZone: "far"}}
}

// inZone returns a request for a machine with two volumes of its own, in a zone.
func inZone(zone string) cloud.Request {
	req := requested(withOwnVolumes)
	req.FailureDomain = zone
	return req
}

func portsWithVolumes() []port {
	req := requested(withOwnVolumes)
	return []port{
		{ID: "first", Name: portName(req.Token), Description: portDescription(req, 0)},
		{ID: "second", Name: portName(req.Token), Description: portDescription(req, 1)},
	}
}

func ownVolume(id, index, status string) volume {
	return volume{ID: id, Name: portName("recorded-token-0001"), Status: status, Zone: "near", Created: "2026-01-02T03:04:05.000000",
		Metadata: map[string]string{cloud.TagOwnership: "owner-1", volumeIndex: index}}
}

// TestOwnVolumes: volumes with a zone are created before the server, which waits for them. They are
// found only through a port that announces them.
func TestOwnVolumes(t *testing.T) {
	g := NewWithT(t)
	p := ordinary(t)
	d := connected(t, p)
	_, err := d.Ensure(t.Context(), inZone("near"))
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unavailable))
	g.Expect(err).To(MatchError(ContainSubstring("waiting for volume")))
	g.Expect(slices.DeleteFunc(p.ops(), func(op string) bool {
		return !slices.Contains([]string{"CreatePorts", "ListVolumes", "CreateVolume", "CreateServer"}, op)
	})).To(Equal([]string{"CreatePorts", "CreateVolume", "CreateVolume"}))
	var ports struct{ Ports []newPort }
	p.sent("CreatePorts", &ports)
	g.Expect(ports.Ports[0].Description).To(ContainSubstring(" drover-volumes=yes "))
	g.Expect(ports.Ports[1].Description).NotTo(ContainSubstring("drover-volumes"))
	var sent struct{ Volume newVolume }
	p.sent("CreateVolume", &sent)
	g.Expect(sent.Volume).To(Equal(newVolume{SizeGiB: 20, Zone: "far", Name: portName("recorded-token-0001"), Metadata: map[string]string{
		cloud.TagOwnership: "owner-1", cloud.TagMachine: "team-a/blue-1", volumeIndex: "2",
	}}))

	// Another attempt, in another zone: the existing volume decides.
	p.play("ListPorts", listing(g, "ports", portsWithVolumes(), false))
	p.play("ListVolumes", listing(g, "volumes", []volume{ownVolume("root", "0", "available"), ownVolume("data", "2", "available")}, false))
	before := p.count("CreateVolume")
	made, err := connected(t, p).Ensure(t.Context(), inZone("other"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(made.FailureDomain).To(Equal("near"))
	g.Expect(p.count("CreateVolume")).To(Equal(before))
	var server struct{ Server newServer }
	p.sent("CreateServer", &server)
	g.Expect(server.Server.AvailabilityZone).To(Equal("near"))
	g.Expect(server.Server.Disks).To(Equal([]disk{
		{Source: "volume", Destination: "volume", UUID: "root", DeleteOnTermination: true},
		{Source: "blank", Destination: "volume", BootIndex: -1, SizeGiB: 10, DeleteOnTermination: true},
		{Source: "volume", Destination: "volume", UUID: "data", BootIndex: -1, DeleteOnTermination: true},
	}))
	last := p.calls[len(p.calls)-1].req
	g.Expect(last.Header.Get("X-Openstack-Nova-Api-Version")).To(Equal("2.61"), "Nova makes no volume of a type")
}

// TestOwnVolumesAsFound: how each set of existing volumes is handled.
func TestOwnVolumesAsFound(t *testing.T) {
	foreign := ownVolume("theirs", "0", "available")
	foreign.Metadata[cloud.TagOwnership] = "owner-2"
	for name, test := range map[string]struct {
		there  []volume
		code   cloud.Code
		create int
		gone   []string // delete operations
	}{
		"one":       {[]volume{ownVolume("root", "0", "available")}, cloud.Unavailable, 1, nil},
		"not yet":   {[]volume{ownVolume("root", "0", "downloading"), ownVolume("data", "2", "available")}, cloud.Unavailable, 0, nil},
		"attaching": {[]volume{ownVolume("root", "0", "available"), ownVolume("data", "2", "attaching")}, cloud.Unavailable, 0, nil},
		"failed": {[]volume{ownVolume("root", "0", "creating"), ownVolume("data", "2", "error")}, cloud.NoCapacity, 0,
			[]string{"DeleteVolume", "DeleteVolume", "DeletePort", "DeletePort"}},
		"twins":       {[]volume{ownVolume("root", "0", "available"), ownVolume("twin", "0", "available")}, cloud.Conflict, 0, nil}, // ambiguous
		"foreign":     {[]volume{foreign}, cloud.Unavailable, 2, nil},
		"not its own": {[]volume{ownVolume("other", "1", "available"), ownVolume("other", "x", "available")}, cloud.Unavailable, 2, nil},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			p := ordinary(t)
			p.play("ListPorts", listing(g, "ports", portsWithVolumes(), false))
			p.play("ListVolumes", listing(g, "volumes", test.there, false))
			_, err := connected(t, p).Ensure(t.Context(), inZone("near"))
			g.Expect(cloud.CodeOf(err)).To(Equal(test.code), "%v", err)
			g.Expect(p.count("CreateVolume")).To(Equal(test.create))
			g.Expect(p.count("CreateServer")).To(BeZero())
			g.Expect(slices.DeleteFunc(p.ops(), func(op string) bool {
				return op != "DeleteVolume" &&
					op != "DeletePort"
			})).To(HaveExactElements(test.gone))
		})
	}
}

// TestOwnVolumesRefused: an exceeded volume quota is reported at once, and nothing of the machine
// is left. The error for a cloud without Cinder says so.
func TestOwnVolumesRefused(t *testing.T) {
	g := NewWithT(t)
	p := ordinary(t)
	p.play("CreateVolume", recorded(t, "volume-over-quota"))
	_, err := connected(t, p).Ensure(t.Context(), inZone("near"))
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.QuotaExceeded), "%v", err)
	g.Expect(p.count("DeletePort")).To(Equal(2))

	p = ordinary(t)
	d := connected(t, p)
	session, err := d.sessions.get(t.Context(), nil)
	g.Expect(err).NotTo(HaveOccurred())
	delete(session.services, volumes)
	_, err = d.Ensure(t.Context(), inZone("near"))
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.InvalidSpec))
	g.Expect(err).To(MatchError(ContainSubstring("no service volumev3")))
}

// TestOwnVolumesGo: a port that leads to volumes is reported only after they are gone. Without such
// ports there is no extra call.
func TestOwnVolumesGo(t *testing.T) {
	g := NewWithT(t)
	p := ordinary(t)
	d := connected(t, p)
	p.play("ListPorts", listing(g, "ports", portsOfTrunk(""), false))
	_, err := d.List(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(p.count("ListVolumes")).To(BeZero())

	p.play("ListPorts", listing(g, "ports", portsWithVolumes(), false))
	foreign := ownVolume("theirs", "0", "available")
	foreign.Metadata[cloud.TagOwnership] = "owner-2"
	p.play("ListVolumes", listing(g, "volumes", []volume{ownVolume("root", "0", "deleting"), foreign, {ID: "loose", Name: "loose"}}, false))
	found, err := d.Describe(t.Context(), []cloud.Reference{{Token: "recorded-token-0001"}})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(found).To(ConsistOf(
		cloud.Resource{Kind: cloud.KindDisk, ID: "root", Token: "recorded-token-0001", OwnershipID: "owner-1", State: cloud.StateStopping,
			CreatedAt: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)},
		cloud.Resource{Kind: cloud.KindNIC, ID: "second", Token: "recorded-token-0001", OwnershipID: "owner-1"},
	))
	g.Expect(p.calls[len(p.calls)-1].req.URL.Query().Get("name")).To(Equal(portName("recorded-token-0001")))
	p.play("ListPorts", recorded(t, "ports-trunk"))
	p.play("ListVolumes", recorded(t, "volumes"))
	g.Expect(d.Describe(t.Context(), []cloud.Reference{{Token: "recorded-token-0006"}})).To(ConsistOf(
		And(HaveField("Kind", cloud.KindNIC), HaveField("ID", HavePrefix("trunk/"))),
		And(HaveField("Kind", cloud.KindDisk), HaveField("CreatedAt.Year()", BeNumerically(">", 2000))), HaveField("Kind", cloud.KindDisk),
	))
	p.play("DeleteVolume", madeUp(http.StatusBadRequest, nil,
		`{"badRequest": {"code": 400, "message": "Invalid volume: Volume status must be available or error."}}`))
	g.Expect(cloud.CodeOf(d.Delete(t.Context(), found)[0])).To(Equal(cloud.Conflict))
	p.play("ListPorts", listing(g, "ports", portsWithVolumes(), false))
	p.play("ListVolumes", listing(g, "volumes", []volume{}, false))
	g.Expect(d.List(t.Context())).To(ConsistOf(HaveField("ID", "first"), HaveField("ID", "second")))
}
