// SPDX-License-Identifier: Apache-2.0

package openstack

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/tagging"
)

const theirID = "7c1f3f2e-6a44-4a8b-9d0f-2d3b1a6c5e4f"

// theirs returns a server that another system has made, and the tags that make it the driver's.
func theirs() (server, map[string]string) {
	return server{
		ID: theirID, Name: "blue-a", Status: "ACTIVE", Metadata: map[string]string{"cluster": "1", "role": "1"}, Tags: []string{"worker"},
		Volumes: []attachment{{ID: "root"}, {ID: "data"}},
	}, map[string]string{cloud.TagOwnership: "owner-1", cloud.TagToken: "id-" + theirID, cloud.TagMachine: "team-a/blue-a"}
}

// taken is theirs after Tag.
func taken() server {
	s, tags := theirs()
	for key, value := range tags {
		s.Metadata[key] = value
	}
	s.Tags = append(s.Tags, markerTag, tokenTag(tags[cloud.TagToken]))
	s.Volumes[0].DeleteOnTermination = true
	return s
}

func oneServer(g Gomega, s server) func() (*http.Response, error) {
	body, err := json.Marshal(map[string]any{"server": s})
	g.Expect(err).NotTo(HaveOccurred())
	return madeUp(http.StatusOK, nil, string(body))
}

// written accepts all writes of a Tagger.
func written(p *playback) *playback {
	for _, op := range []string{
		"UpdateServerMetadata", "ReplaceServerMetadata", "DeleteServerMetadata", "AddServerTag", "DeleteServerTag", "UpdatePort",
		"UpdateFloatingIP",
		"UpdateVolumeMetadata", "DeleteVolumeMetadata", "UpdateVolumeAttachment",
	} {
		p.play(op, madeUp(http.StatusAccepted, http.Header{"X-Openstack-Request-Id": {"req-1"}}, ""))
	}
	return p
}

// writes returns the writes so far: operation, end of the path, and body.
func (p *playback) writes() (all []string) {
	for _, c := range p.calls {
		if c.req.Method != http.MethodGet && c.op != "CreateToken" {
			_, path, _ := strings.Cut(c.req.URL.Path, theirID)
			all = append(all, strings.TrimSpace(c.op+" "+path+" "+string(c.body)))
		}
	}
	return all
}

// TestTag: a server's metadata come first, and the tag by which it is listed comes last.
func TestTag(t *testing.T) {
	g := NewWithT(t)
	p := written(ordinary(t))
	s, tags := theirs()
	p.play("GetServer", oneServer(g, s))
	p.play("ListPorts", listing(g, "ports", []port{{ID: "p-1", Name: "another"}, {ID: "p-2", Name: "blue-a"}}, false))
	p.play("ListVolumes", listing(g, "volumes", []volume{{ID: "elsewhere", Name: "blue-a"}, {ID: "root", Name: "blue-a"}}, false))
	p.play("ListFloatingIPs", floatingIPsThere(g, floatingIP{ID: "f-1"}, floatingIP{ID: "f-2"}))
	d := connected(t, p)
	g.Expect(d.Tag(t.Context(), theirID, tags, []string{"blue-a", "f-1"})).To(Succeed())
	g.Expect(p.writes()).To(HaveExactElements(
		`UpdateServerMetadata /metadata {"metadata":{"drover-creation-token":"id-`+theirID+`","drover-machine":"team-a/blue-a","drover-ownership-id":"owner-1"}}`,
		HavePrefix("AddServerTag /tags/drover-creation-"),
		`UpdatePort  {"port":{"description":"drover-ownership-id=owner-1 drover-port=0 drover-machine=team-a/blue-a","name":"drover-creation-token=id-`+theirID+`"}}`,
		`UpdateVolumeMetadata  {"metadata":{"drover-machine":"team-a/blue-a","drover-ownership-id":"owner-1"}}`,
		`UpdateVolumeAttachment /os-volume_attachments/root {"volumeAttachment":{"delete_on_termination":true,"volumeId":"root"}}`,
		`UpdateFloatingIP  {"floatingip":{"description":"drover-creation-token=id-`+theirID+`"}}`,
		"AddServerTag /tags/drover",
	))

	p = written(ordinary(t))
	p.play("GetServer", oneServer(g, taken()))
	g.Expect(connected(t, p).Tag(t.Context(), theirID, tags, nil)).To(Succeed())
	g.Expect(p.ops()).To(Equal([]string{"CreateToken", "GetServer"}), "nothing of its own, and done before")
}

// TestNamesOfPorts: a port that is given by its ID gets its name and description back, whatever
// they were, also if Tag was cut off after the first of two ports. Other ports stay as they are.
func TestNamesOfPorts(t *testing.T) {
	g := NewWithT(t)
	s, tags := theirs()
	const first, second = "a1f0c1de-0000-4000-8000-000000000001", "a1f0c1de-0000-4000-8000-000000000002"
	ports := []port{
		{ID: first, Name: "blue-a-0", Description: "Created by another"}, {ID: "p-3", Name: "another", Description: "mine"},
		{ID: second, Name: "blue-a", Description: "data"},
	}
	markers := `"description":"drover-ownership-id=owner-1 drover-port=%s drover-machine=team-a/blue-a","name":"drover-creation-token=id-` +
		theirID + `"}}`
	rename := func(index string) string { return "UpdatePort  {\"port\":{" + strings.Replace(markers, "%s", index, 1) }
	p := written(ordinary(t))
	p.play("GetServer", oneServer(g, s))
	p.play("ListPorts", listing(g, "ports", ports, false))
	p.play("ListFloatingIPs", floatingIPsThere(g))
	g.Expect(connected(t, p).Tag(t.Context(), theirID, tags, []string{first, second})).To(Succeed())
	g.Expect(p.writes()).To(HaveExactElements(
		And(HavePrefix("UpdateServerMetadata"), ContainSubstring(
			`"drover-port-description-`+first+`":"Created by another","drover-port-description-`+second+`":"data","drover-port-name-`+first+`":"blue-a-0"}`)),
		HavePrefix("AddServerTag /tags/drover-creation-"), rename("0"), rename("1"), "AddServerTag /tags/drover",
	))

	half := taken()
	half.Metadata[portNameKey+first], half.Metadata[portDescriptionKey+first], half.Metadata[portDescriptionKey+second] = "blue-a-0",
		"Created by another", "data"
	ports[0].Name, ports[0].Description = portName(tags[cloud.TagToken]), describePort("owner-1", 0, "", "team-a/blue-a")
	p = written(ordinary(t))
	p.play("GetServer", oneServer(g, half))
	p.play("ListPorts", listing(g, "ports", ports, false))
	p.play("ListFloatingIPs", floatingIPsThere(g))
	g.Expect(connected(t, p).Tag(t.Context(), theirID, tags, []string{first, second})).To(Succeed())
	g.Expect(p.writes()).To(HaveExactElements(rename("1")))

	ports[2].Name, ports[2].Description = portName(tags[cloud.TagToken]), describePort("owner-1", 1, "", "team-a/blue-a")
	p = written(ordinary(t))
	p.play("GetServer", oneServer(g, half))
	p.play("ListPorts", listing(g, "ports", []port{ports[0], ports[2]}, false))
	p.play("ListVolumes", listing(g, "volumes", []volume{}, false))
	p.play("ListFloatingIPs", floatingIPsThere(g))
	g.Expect(connected(t, p).Untag(t.Context(), []string{theirID},
		[]string{cloud.TagOwnership, cloud.TagToken, cloud.TagMachine})).To(Succeed())
	g.Expect(p.writes()).To(HaveExactElements(
		"DeleteServerTag /tags/drover",
		`UpdatePort  {"port":{"description":"Created by another","name":"blue-a-0"}}`,
		`UpdatePort  {"port":{"description":"data","name":"blue-a"}}`,
		HavePrefix("DeleteServerTag /tags/drover-creation-"), `ReplaceServerMetadata /metadata {"metadata":{"cluster":"1","role":"1"}}`,
	))
}

// TestLongNameOfPort: a machine's name that does not fit into a port's description is no loss.
func TestLongNameOfPort(t *testing.T) {
	g := NewWithT(t)
	s, tags := theirs()
	s.Name = strings.Repeat("a", 253)
	tags[cloud.TagMachine] = "team-a/" + s.Name
	p := written(ordinary(t))
	p.play("GetServer", oneServer(g, s))
	p.play("ListPorts", listing(g, "ports", []port{{ID: "p-1", Name: s.Name}}, false))
	p.play("ListVolumes", listing(g, "volumes", []volume{}, false))
	p.play("ListFloatingIPs", floatingIPsThere(g))
	g.Expect(connected(t, p).Tag(t.Context(), theirID, tags, []string{s.Name})).To(Succeed())
	g.Expect(p.writes()[0]).To(ContainSubstring(`"drover-port-name-p-1":"` + s.Name + `"`))
	g.Expect(p.writes()[2]).NotTo(ContainSubstring(tags[cloud.TagMachine]), "Neutron accepts 255 characters")
}

// TestTagRefused: nothing is written if a text would be lost, or if the server does not exist.
func TestTagRefused(t *testing.T) {
	g := NewWithT(t)
	for name, c := range map[string]struct {
		change func(p *playback)
		own    string
		want   cloud.Code
		says   string
		writes int
	}{
		"no server": {func(p *playback) { p.play("GetServer", recorded(t, "server-gone")) }, "blue-a", cloud.NotFound, "404", 0},
		"floating IP with a description": {func(p *playback) {
			p.play("ListFloatingIPs", floatingIPsThere(g, floatingIP{ID: "f-1", Description: "mine"}))
		}, "f-1", cloud.Conflict, "floating IP f-1 has a description", 0},
		"old Nova": {func(p *playback) {
			p.play("ListVolumes", listing(g, "volumes", []volume{{ID: "root", Name: "blue-a"}}, false))
			p.play("UpdateVolumeAttachment", madeUp(http.StatusNotAcceptable, http.Header{"X-Openstack-Request-Id": {"req-1"}},
				`{"computeFault": {"code": 406, "message": "Version 2.85 is not supported by the API."}}`))
		}, "blue-a", cloud.InvalidSpec, "Ussuri", 4},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			p := written(ordinary(t))
			s, tags := theirs()
			p.play("GetServer", oneServer(g, s))
			p.play("ListVolumes", listing(g, "volumes", []volume{}, false))
			p.play("ListFloatingIPs", floatingIPsThere(g))
			c.change(p)
			err := connected(t, p).Tag(t.Context(), theirID, tags, []string{c.own})
			g.Expect(cloud.CodeOf(err)).To(Equal(c.want), "%v", err)
			g.Expect(err).To(MatchError(ContainSubstring(c.says)))
			g.Expect(p.writes()).To(HaveLen(c.writes))
		})
	}
}

// TestUntag: the tag by which a server is listed goes first, and its metadata go last, at once.
// Other keys go one by one.
func TestUntag(t *testing.T) {
	g := NewWithT(t)
	p := written(ordinary(t))
	s := taken()
	token := s.Metadata[cloud.TagToken]
	mark := map[string]string{cloud.TagOwnership: "owner-1", cloud.TagMachine: "team-a/blue-a", "cluster": "1"}
	p.play("GetServer", oneServer(g, s))
	p.play("ListPorts", listing(g, "ports", []port{{ID: "p-2", Name: portName(token),
		Description: describePort("owner-1", 0, "", "team-a/blue-a")}}, false))
	p.play("ListVolumes", listing(g, "volumes", []volume{{ID: "root", Name: "blue-a", Metadata: mark}, {ID: "data", Name: "blue-a"}}, false))
	p.play("ListFloatingIPs", floatingIPsThere(g, floatingIP{ID: "f-1", Description: portName(token)}))
	d := connected(t, p)
	g.Expect(d.Untag(t.Context(), []string{theirID}, []string{cloud.TagOwnership, cloud.TagToken, cloud.TagMachine})).To(Succeed())
	g.Expect(p.writes()).To(HaveExactElements(
		"DeleteServerTag /tags/drover",
		`UpdateFloatingIP  {"floatingip":{"description":""}}`,
		`UpdateVolumeAttachment /os-volume_attachments/root {"volumeAttachment":{"delete_on_termination":false,"volumeId":"root"}}`,
		"DeleteVolumeMetadata", "DeleteVolumeMetadata",
		`UpdatePort  {"port":{"description":"","name":"blue-a"}}`,
		HavePrefix("DeleteServerTag /tags/drover-creation-"),
		`ReplaceServerMetadata /metadata {"metadata":{"cluster":"1","role":"1"}}`,
	))

	for name, there := range map[string]func() (*http.Response, error){"no server": recorded(t, "server-gone"),
		"not taken": oneServer(g, server{ID: theirID})} {
		p := written(ordinary(t))
		p.play("GetServer", there)
		g.Expect(connected(t, p).Untag(t.Context(), []string{theirID}, []string{cloud.TagToken})).To(Succeed(), name)
		g.Expect(p.writes()).To(BeEmpty(), name)
	}

	p = written(ordinary(t))
	p.play("DeleteServerMetadata", recorded(t, "server-gone")) // 404 is also the answer if there is no such key
	g.Expect(connected(t, p).Untag(t.Context(), []string{theirID, theirID}, []string{"role"})).To(Succeed())
	g.Expect(p.writes()).To(Equal([]string{"DeleteServerMetadata /metadata/role", "DeleteServerMetadata /metadata/role"}))
}

// TestTagged: servers are found by their metadata, and are partial while they lack the last tag.
func TestTagged(t *testing.T) {
	g := NewWithT(t)
	p := ordinary(t)
	theirs, _ := theirs()
	theirs.Flavor.Name, theirs.Image = "small", map[string]any{"id": "image-1"}
	ours, partial := taken(), taken()
	ours.ID, partial.ID, ours.Image = "ours", "partial", ""
	partial.Tags = nil
	p.play("ListServers", listing(g, "servers", []server{theirs, ours, partial, {ID: "another", Name: "x"}}, false))
	d := connected(t, p)
	found := func(keys ...string) (found []tagging.Instance) {
		found, err := d.Tagged(t.Context(), keys)
		g.Expect(err).NotTo(HaveOccurred())
		return found
	}
	g.Expect(found()).To(BeEmpty(), "never all that the account has")
	g.Expect(found("cluster", "nothing")).To(BeEmpty())
	g.Expect(found("cluster", "role")).To(HaveLen(3))
	g.Expect(found("Name")).To(HaveLen(4), "each server has one")
	g.Expect(found("cluster", "role")[0]).To(And(
		HaveField("Type", "small"), HaveField("ImageID", "image-1"), HaveField("Partial", false),
		HaveField("ProviderID", "openstack:///"+theirID),
		HaveField("Tags", HaveKeyWithValue("Name", "blue-a")),
	))
	g.Expect(found(cloud.TagOwnership, cloud.TagToken)).To(ConsistOf(
		And(HaveField("ID", "ours"), HaveField("Partial", false), HaveField("ImageID", "")),
		And(HaveField("ID", "partial"), HaveField("Partial", true)),
	))
}

// TestTakenAddress: a floating IP of a server that others made is found by the machine's token,
// also when the server and Nova's port are gone. For other machines, nothing is asked.
func TestTakenAddress(t *testing.T) {
	for name, token := range map[string]string{"by digest": tagging.ImportToken("1a2b3c4d", "owner-1", theirID), "by ID": "id-" + theirID} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			p := ordinary(t)
			p.play("GetServer", madeUp(http.StatusNotFound, nil,
				`{"itemNotFound": {"code": 404, "message": "Instance `+theirID+` could not be found."}}`))
			p.play("ListFloatingIPs", floatingIPsThere(g, floatingIP{ID: "f-1", Description: portName(token)},
				floatingIP{ID: "f-2", Description: "mine"}))
			d := connected(t, p)
			ref := cloud.Reference{Token: token, OwnershipID: "owner-1", ProviderID: "openstack:///" + theirID}
			found, err := d.Describe(t.Context(), []cloud.Reference{ref})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(found).To(ConsistOf(cloud.Resource{Kind: cloud.KindAddress, ID: "f-1", Token: ref.Token, OwnershipID: "owner-1"}))
			asked := p.count("ListFloatingIPs")
			ref.Token = "another"
			_, err = d.Describe(t.Context(), []cloud.Reference{ref})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(p.count("ListFloatingIPs")).To(Equal(asked))
		})
	}
}
