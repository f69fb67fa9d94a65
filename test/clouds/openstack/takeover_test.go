// SPDX-License-Identifier: Apache-2.0

package openstack_test

import (
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/tagging"
)

// theirs is a server that another system has made, with what is its own.
type theirs struct {
	ID, Name string
	own      []string
	writes   int // of Tag
}

// sight is all that Tag changes.
type sight struct {
	Server struct {
		Name     string
		Metadata map[string]string
		Tags     []string
		Volumes  []struct {
			ID     string
			Delete bool `json:"delete_on_termination"`
		} `json:"os-extended-volumes:volumes_attached"`
	}
	Ports []struct {
		ID, Name, Description string
		Tags                  []string
	}
	Volumes []struct {
		ID, Name string
		Metadata map[string]string
	}
	FloatingIPs []struct {
		ID, Description string
		Port            string `json:"port_id"`
	}
}

func (w *tenant) see(server string) (s sight) {
	w.t.Helper()
	w.do(w.compute, http.MethodGet, "servers/"+server, nil, &s)
	w.do(w.network, http.MethodGet, "ports?device_id="+server+"&fields=id&fields=name&fields=description&fields=tags", nil, &s)
	w.do(w.volume, http.MethodGet, "volumes/detail", nil, &s)
	w.do(w.network, http.MethodGet, "floatingips", nil, &s)
	return s
}

// launch makes a server, and waits until it runs.
func (w *tenant) launch(server map[string]any) string {
	w.t.Helper()
	var made, now struct{ Server struct{ ID, Status string } }
	w.do(w.compute, http.MethodPost, "servers", map[string]any{"server": server}, &made)
	until(w.t, "it runs", func() bool {
		w.do(w.compute, http.MethodGet, "servers/"+made.Server.ID, nil, &now)
		return now.Server.Status == "ACTIVE"
	})
	return made.Server.ID
}

func (w *tenant) idOf(kind, name string) string {
	w.t.Helper()
	var found map[string][]struct{ ID string }
	w.do(w.network, http.MethodGet, kind+"?name="+name, nil, &found)
	NewWithT(w.t).Expect(found[kind]).To(HaveLen(1))
	return found[kind][0].ID
}

// likeMCM makes a server as machine-controller-manager does for a class with a subnet and a volume
// type: with a port and a volume of its name, which Nova keeps.
func (w *tenant) likeMCM(name string) theirs {
	w.t.Helper()
	var port struct{ Port struct{ ID string } }
	w.do(w.network, http.MethodPost, "ports", map[string]any{"port": map[string]any{
		"name": name, "network_id": w.idOf("networks", "nodes"), "fixed_ips": []any{map[string]any{"subnet_id": w.idOf("subnets", "nodes")}},
	}}, &port)
	w.do(w.network, http.MethodPut, "ports/"+port.Port.ID+"/tags",
		map[string]any{"tags": []string{"kubernetes.io-cluster-blue", "kubernetes.io-role-node"}}, nil)
	tags := map[string]string{"kubernetes.io-cluster-blue": "1", "kubernetes.io-role-node": "1"}
	server := foreignServer(w, name)
	server["networks"], server["metadata"] = []any{map[string]any{"port": port.Port.ID}}, tags
	server["block_device_mapping_v2"] = []any{map[string]any{
		"uuid": w.makeVolume(name, tags), "boot_index": 0, "source_type": "volume", "destination_type": "volume", "delete_on_termination": false,
	}}
	return theirs{w.launch(server), name, []string{name}, 6} // metadata, two tags; the port; mark and attachment of the volume
}

// makeVolume makes a volume, and waits until it can be used.
func (w *tenant) makeVolume(name string, metadata map[string]string) string {
	w.t.Helper()
	var made struct{ Volume volume }
	w.do(w.volume, http.MethodPost, "volumes", map[string]any{"volume": map[string]any{
		"name": name, "size": 1, "volume_type": "fast", "imageRef": w.image(), "metadata": metadata,
	}}, &made)
	until(w.t, "the volume can be used", func() bool {
		var now struct{ Volume volume }
		w.do(w.volume, http.MethodGet, "volumes/"+made.Volume.ID, nil, &now)
		return now.Volume.Status == "available"
	})
	return made.Volume.ID
}

// likeMC makes a server as machine-controller does for a spec with a root disk and a pool of
// floating IPs: with a port and a volume of Nova's.
func (w *tenant) likeMC(name string) theirs {
	w.t.Helper()
	server := foreignServer(w, name)
	server["networks"], server["metadata"] = []any{map[string]any{"uuid": w.idOf("networks", "nodes")}},
		map[string]string{"machine-uid": "uid-a"}
	server["block_device_mapping_v2"] = []any{map[string]any{
		"uuid": w.image(), "boot_index": 0, "source_type": "image", "destination_type": "volume", "volume_size": 1, "delete_on_termination": true,
	}}
	id := w.launch(server)
	var ports struct{ Ports []struct{ ID string } }
	w.do(w.network, http.MethodGet, "ports?device_id="+id, nil, &ports)
	var made struct {
		FloatingIP struct{ ID string } `json:"floatingip"`
	}
	w.do(w.network, http.MethodPost, "floatingips", map[string]any{"floatingip": map[string]any{
		"floating_network_id": w.idOf("networks", "public"), "port_id": ports.Ports[0].ID,
	}}, &made)
	return theirs{id, name, []string{made.FloatingIP.ID}, 4} // metadata, two tags; the floating IP
}

// likeCAPO makes a server as Cluster API's provider does: with a port and a trunk of its own, which
// Nova keeps, and a volume, which Nova deletes. Its port has a description.
func (w *tenant) likeCAPO(name string) theirs {
	w.t.Helper()
	var port struct{ Port struct{ ID string } }
	w.do(w.network, http.MethodPost, "ports", map[string]any{"port": map[string]any{
		"name": name + "-0", "description": "Created by cluster-api-provider-openstack cluster capo-old",
		"network_id": w.idOf("networks", "nodes"),
		"fixed_ips":  []any{map[string]any{"subnet_id": w.idOf("subnets", "nodes")}},
	}}, &port)
	w.do(w.network, http.MethodPost, "trunks", map[string]any{"trunk": map[string]any{"port_id": port.Port.ID, "name": name + "-0"}}, nil)
	server := foreignServer(w, name)
	server["networks"] = []any{map[string]any{"port": port.Port.ID}}
	server["block_device_mapping_v2"] = []any{map[string]any{
		"uuid": w.makeVolume(name+"-root", nil), "boot_index": 0, "source_type": "volume", "destination_type": "volume",
		"delete_on_termination": true,
	}}
	return theirs{w.launch(server), name, []string{port.Port.ID}, 4} // metadata, two tags; the port
}

// TestTakeover tests that servers that others have made become the driver's and theirs again, with
// the connection cut after each write, and that Nova and the driver leave nothing of them.
// What others have attached to them stays.
func TestTakeover(t *testing.T) {
	g := NewWithT(t)
	who := newTenant(t)
	owner := newOwner(t, who)
	calls := &counted{}
	cut := func(do func() error) (n int) {
		for {
			done := false
			calls.after = func(op string) error {
				if done || strings.HasPrefix(op, "List") || strings.HasPrefix(op, "Get") || op == "CreateToken" {
					return nil
				}
				done = true
				n++
				t.Logf("cut after %s", op)
				return errors.New("cut")
			}
			err := do()
			calls.after = nil
			if !done {
				g.Expect(err).NotTo(HaveOccurred())
				return n
			}
			g.Expect(err).To(HaveOccurred())
			g.Expect(n).To(BeNumerically("<", 20))
		}
	}
	d := connect(t, who, calls).(tagging.Tagger)
	keys := []string{cloud.TagMachine, cloud.TagToken, cloud.TagOwnership}
	find := func(keys ...string) (found []tagging.Instance) {
		found, err := d.Tagged(t.Context(), keys)
		g.Expect(err).NotTo(HaveOccurred())
		return found
	}
	for _, made := range []func() theirs{func() theirs { return who.likeMCM("mcm-1") }, func() theirs { return who.likeMC("mc-1") },
		func() theirs { return who.likeCAPO("capo-1") }} {
		of := made()
		data := who.makeVolume("pvc-"+of.Name, nil)
		who.do(who.compute, http.MethodPost, "servers/"+of.ID+"/os-volume_attachments",
			map[string]any{"volumeAttachment": map[string]any{"volumeId": data}}, nil)
		until(t, "the volume of a pod is attached", func() bool { return len(who.see(of.ID).Server.Volumes) == 2 })
		before, token := who.see(of.ID), "1a2b3c4d-"+of.ID
		tags := map[string]string{cloud.TagOwnership: owner, cloud.TagToken: token, cloud.TagMachine: "blue/" + of.Name}
		g.Expect(find(keys...)).To(BeEmpty())
		ref := cloud.Reference{Token: token, OwnershipID: owner, ProviderID: "openstack:///" + of.ID}
		describe := func() []cloud.Resource {
			found, err := d.Describe(t.Context(), []cloud.Reference{ref})
			g.Expect(err).NotTo(HaveOccurred())
			return found
		}
		partly := false
		take := func() {
			g.Expect(cut(func() error {
				if found := find(keys...); len(found) == 1 {
					partly = partly || found[0].Partial
				}
				return d.Tag(t.Context(), of.ID, tags, of.own)
			})).To(Equal(of.writes))
			g.Expect(partly).To(BeTrue())
			g.Expect(find(keys...)).To(ConsistOf(And(HaveField("ID", of.ID), HaveField("Partial", false), HaveField("Type", "small"),
				HaveField("State", cloud.StateRunning))))
			g.Expect(describe()).To(ContainElements(HaveField("ID", of.ID)))
		}
		take()
		calls.reset()
		g.Expect(d.Tag(t.Context(), of.ID, tags, of.own)).To(Succeed())
		for op := range calls.calls {
			g.Expect(op).To(Or(HavePrefix("Get"), HavePrefix("List")), "it was done")
		}
		cut(func() error { return d.Untag(t.Context(), []string{of.ID}, keys) })
		g.Expect(who.see(of.ID)).To(Equal(before), "all is as it was")
		g.Expect(describe()).To(BeEmpty())

		take()
		for _, key := range slices.Sorted(maps.Keys(before.Server.Metadata)) {
			g.Expect(find(key)).To(HaveLen(1))
			g.Expect(d.Untag(t.Context(), []string{of.ID, of.ID}, []string{key})).To(Succeed(), "also one that is gone")
			g.Expect(find(key)).To(BeEmpty())
		}
		until(t, "it is gone, by its token", func() bool {
			found := describe()
			if len(found) > 0 && found[0].Kind == cloud.KindInstance {
				found = found[:1]
			}
			g.Expect(errors.Join(d.Delete(t.Context(), found)...)).To(Succeed())
			return len(found) == 0
		})
		until(t, "nothing is left but the volume of a pod", func() bool {
			var ports struct{ Ports []struct{ ID string } }
			who.do(who.network, http.MethodGet, "ports?device_owner=compute:az-1&device_owner=compute:az-2&device_owner=", nil,
				&ports) // not the router's
			left := who.volumes()
			return len(ports.Ports) == 0 && len(who.floatingIPs()) == 0 && len(left) == 1 && left[0].ID == data && left[0].Status == "available"
		})
		who.do(who.volume, http.MethodDelete, "volumes/"+data, nil, nil)
		until(t, "the volume of a pod is gone", func() bool { return len(who.volumes()) == 0 })
	}
}
