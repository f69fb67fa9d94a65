// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/test/internal/rig"
	"github.com/drover-io/drover/test/internal/stack"
	"github.com/drover-io/drover/test/takeover"
)

// TestTakeover takes servers over that were made as machine-controller-manager makes them, with a
// port and a volume of their names: there, back, and there again. Then the pool is Drover's: it
// rolls, goes, and nothing is left.
func TestTakeover(t *testing.T) {
	t.Parallel()
	const role = "kubernetes.io-role-node"
	o := onOpenStack(t, "taken")
	tags := map[string]any{"kubernetes.io-cluster-taken": "1", role: "1"}
	o.takenOver(takeover.MachineControllerManager(), takeover.Place{
		Cloud: "OpenStack", Role: role, Tags: map[string]string{"kubernetes.io-cluster-taken": "1", role: "1"},
		Spec: map[string]any{
			"apiVersion": "openstack.machine.gardener.cloud/v1alpha1", "kind": "MachineProviderConfig", "spec": map[string]any{
				"flavorName": "small", "imageName": "node-image", "region": stack.Region, "availabilityZone": "az-1",
				"securityGroups": []any{"default"},
				"networkID":      o.idOf("networks", "nodes"), "subnetID": o.idOf("subnets", "nodes"), "podNetworkCidr": "10.244.0.0/16",
				"rootDiskSize": int64(1), "rootDiskType": "fast", "tags": tags,
			},
		},
		Launch: func(name string, tags map[string]string) (id, own, node string) {
			id = o.launch(name, tags, o.port(name, ""), o.volume(name, tags), false)
			return id, "openstack:///" + stack.Region + "/" + id, "openstack:///" + id
		},
	}, map[string]int{
		"POST compute/servers/metadata": 6, "PUT compute/servers/metadata": 4, "DELETE compute/servers/metadata": 2,
		"PUT compute/servers/tags": 12, "DELETE compute/servers/tags": 8, "PUT compute/servers/os-volume_attachments": 10,
		"POST volume/volumes/metadata": 6, "DELETE volume/volumes/metadata": 8, "PUT network/ports": 10,
	}, (*takeover.Old).AddMCM)
}

// TestTakeoverFromMachineController is TestTakeover for servers of machine-controller, with a port
// of Nova's, a volume that Nova deletes, and a floating IP, which machine-controller releases
// itself.
func TestTakeoverFromMachineController(t *testing.T) {
	t.Parallel()
	const address = "kubermatic.io/release-openstack-floating-ip"
	o := onOpenStack(t, "mc")
	o.takenOver(takeover.MachineController(), takeover.Place{
		Cloud: "openstack", UID: "machine-uid", Role: "machine-uid",
		Spec: map[string]any{
			"region": stack.Region, "image": "node-image", "flavor": "small", "securityGroups": []any{"default"}, "network": "nodes",
			"floatingIpPool":   "public",
			"availabilityZone": "az-1", "rootDiskSizeGB": int64(1), "rootDiskVolumeType": "fast",
		},
		Launch: func(name string, tags map[string]string) (id, own, node string) {
			id = o.launch(name, tags, map[string]any{"uuid": o.idOf("networks", "nodes")}, o.volume("", map[string]string{}), true)
			o.addresses[id] = o.floatingIP(id)
			return id, "openstack:///" + id, "openstack:///" + id
		},
		Complete: func(machine *unstructured.Unstructured, id string) {
			machine.SetAnnotations(map[string]string{address: o.addresses[id]})
			machine.SetFinalizers(append(machine.GetFinalizers(), address))
		},
	}, map[string]int{
		"POST compute/servers/metadata": 6, "PUT compute/servers/metadata": 4, "DELETE compute/servers/metadata": 2,
		"PUT compute/servers/tags": 12, "DELETE compute/servers/tags": 8, "PUT network/floatingips": 10,
	}, (*takeover.Old).AddMC)
}

// capo is Cluster API with its provider for OpenStack.
var capo = takeover.ClusterAPI("OpenStack", "v1beta1", map[string]string{"OpenStackServer": "v1alpha1"})

// TestTakeoverFromClusterAPI is TestTakeover for servers of Cluster API's provider, with a port and
// a trunk of their own, and a volume that Nova deletes.
func TestTakeoverFromClusterAPI(t *testing.T) {
	t.Parallel()
	o := onOpenStack(t, "capo")
	named := func(name string) map[string]any { return map[string]any{"filter": map[string]any{"name": name}} }
	o.takenOver(capo, takeover.Place{
		Spec: map[string]any{
			"flavor": "small", "image": named("node-image"), "securityGroups": []any{named("default")},
			"ports":      []any{map[string]any{"network": named("nodes"), "trunk": true}},
			"rootVolume": map[string]any{"sizeGiB": int64(1), "type": "fast"},
		},
		ClusterSpec:   map[string]any{"identityRef": map[string]any{"name": "cloud-config", "cloudName": "openstack", "region": stack.Region}},
		ClusterStatus: map[string]any{"network": map[string]any{"id": o.idOf("networks", "nodes"), "name": "nodes"}},
		Launch: func(name string, _ map[string]string) (id, own, node string) {
			port := o.port(name+"-0", "Created by cluster-api-provider-openstack cluster capo-old")
			o.call(http.MethodPost, "network/trunks", map[string]any{"trunk": map[string]any{"port_id": port["port"], "name": name + "-0"}}, nil)
			id = o.launch(name, map[string]string{}, port, o.volume(name+"-root", map[string]string{}), true)
			return id, "openstack:///" + id, "openstack:///" + id
		},
		Complete: o.server,
	}, map[string]int{
		"POST compute/servers/metadata": 6, "PUT compute/servers/metadata": 4,
		"PUT compute/servers/tags": 12, "DELETE compute/servers/tags": 8, "PUT network/ports": 10,
	}, func(old *takeover.Old, p takeover.Pool) {
		old.AddCluster()
		old.AddCAPI(p)
		old.Pause(true)
	})
}

// server makes the OpenStackServer of an OpenStackMachine, which Cluster API's provider has in
// between.
func (o *old) server(machine *unstructured.Unstructured, id string) {
	o.Helper()
	ports := []any{}
	for _, port := range o.portsOf(id) {
		ports = append(ports, map[string]any{"id": port})
	}
	made := &unstructured.Unstructured{Object: map[string]any{}}
	made.SetAPIVersion("infrastructure.cluster.x-k8s.io/v1alpha1")
	made.SetKind("OpenStackServer")
	made.SetNamespace(machine.GetNamespace())
	made.SetName(machine.GetName())
	made.SetLabels(map[string]string{clusterv1.ClusterNameLabel: machine.GetLabels()[clusterv1.ClusterNameLabel]})
	made.SetFinalizers([]string{"openstackserver.infrastructure.cluster.x-k8s.io"})
	made.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(machine, machine.GroupVersionKind())})
	o.Do(o.Rig.Client.Create(o.Ctx, made))
	before := made.DeepCopy()
	made.Object["status"] = map[string]any{"ready": true, "instanceID": id, "resources": map[string]any{"ports": ports}}
	o.Do(o.Rig.Client.Status().Patch(o.Ctx, made, client.MergeFrom(before)))
}

// old makes servers as the old systems do.
type old struct {
	*rig.Stage
	made      []string          // the IDs of ports, volumes and floating IPs
	addresses map[string]string // floating IPs, by server
}

func onOpenStack(t *testing.T, name string) *old {
	t.Helper()
	return &old{Stage: house.Stage(t, name), addresses: map[string]string{}}
}

// takenOver takes a pool of two machines over, which add makes. writes are the calls that change
// something: "stage" runs three times, "rollback" twice and "commit" once.
func (o *old) takenOver(of takeover.System, place takeover.Place, writes map[string]int, add func(*takeover.Old, takeover.Pool)) {
	o.Helper()
	place.VMs, place.Calls = o.vms, o.writes
	pool := takeover.Pool{Name: "a", Replicas: 2, Labels: map[string]any{"pool": "a"}}
	s := takeover.Start(o.Stage, of, place)
	add(s.Old, pool)
	s.Whole(pool, func(m *infrav1.DroverMachineFields) { m.Cloud.OpenStack.Metadata = map[string]string{"team": "blue"} }, writes)
	s.Empty()
	s.Until("no server, port, volume and floating IP is left",
		func(context.Context) (string, error) { return strings.Join(o.parts(), ", "), nil })
}

// writes counts the calls that change something.
func (o *old) writes() map[string]int {
	all := map[string]int{}
	for _, c := range o.Cloud.Calls() {
		if !strings.HasPrefix(c.Verb, "GET ") && c.Verb != "POST identity/auth" {
			all[c.Verb]++
		}
	}
	return all
}

// call makes a call to OpenStack.
func (o *old) call(method, path string, body, answer any) {
	o.Helper()
	o.Do(o.OpenStack.Do(o.Ctx, method, path, body, answer))
}

func (o *old) idOf(kind, name string) string {
	o.Helper()
	var found map[string][]struct{ ID string }
	o.call(http.MethodGet, "network/"+kind+"?name="+name, nil, &found)
	if len(found[kind]) != 1 {
		o.Fatalf("%d %s have the name %s", len(found[kind]), kind, name)
	}
	return found[kind][0].ID
}

// port makes a port, and returns it as a new server names it.
func (o *old) port(name, description string) map[string]any {
	o.Helper()
	var made struct{ Port struct{ ID string } }
	o.call(http.MethodPost, "network/ports", map[string]any{"port": map[string]any{
		"name": name, "description": description, "network_id": o.idOf("networks", "nodes"),
		"fixed_ips": []any{map[string]any{"subnet_id": o.idOf("subnets", "nodes")}},
	}}, &made)
	o.made = append(o.made, made.Port.ID)
	return map[string]any{"port": made.Port.ID}
}

// volume makes a volume that can be booted from, and returns it as a new server names it.
func (o *old) volume(name string, metadata map[string]string) map[string]any {
	o.Helper()
	var made struct{ Volume struct{ ID, Status string } }
	o.call(http.MethodPost, "volume/volumes", map[string]any{"volume": map[string]any{"name": name, "size": 1, "volume_type": "fast",
		"metadata": metadata}}, &made)
	id := made.Volume.ID
	o.made = append(o.made, id)
	o.Until("the volume can be used", func(context.Context) (string, error) {
		o.call(http.MethodGet, "volume/volumes/"+id, nil, &made)
		return map[bool]string{false: made.Volume.Status}[made.Volume.Status == "available"], nil
	})
	o.call(http.MethodPost, "volume/volumes/"+id+"/action", map[string]any{"os-set_bootable": map[string]any{"bootable": true}}, nil)
	return map[string]any{"uuid": id, "source_type": "volume"}
}

// launch makes a server that boots from a volume, which Nova deletes with it or keeps.
func (o *old) launch(name string, metadata map[string]string, network, volume map[string]any, deletes bool) (id string) {
	o.Helper()
	var made struct {
		Server  struct{ ID string }
		Flavors []struct{ ID, Name string }
	}
	o.call(http.MethodGet, "compute/flavors", nil, &made)
	at := slices.IndexFunc(made.Flavors, func(f struct{ ID, Name string }) bool { return f.Name == "small" })
	maps.Copy(volume, map[string]any{"boot_index": 0, "destination_type": "volume", "delete_on_termination": deletes})
	o.call(http.MethodPost, "compute/servers", map[string]any{"server": map[string]any{
		"name": name, "metadata": metadata, "networks": []any{network}, "availability_zone": "az-1", "flavorRef": made.Flavors[at].ID,
		"block_device_mapping_v2": []any{volume},
	}}, &made)
	return made.Server.ID
}

// portsOf waits until a server has ports, and returns their IDs.
func (o *old) portsOf(server string) (ids []string) {
	o.Helper()
	o.Until("the server has a port", func(context.Context) (string, error) {
		var now struct{ Ports []struct{ ID string } }
		o.call(http.MethodGet, "network/ports?device_id="+server, nil, &now)
		for _, p := range now.Ports {
			ids = append(ids, p.ID)
		}
		return map[bool]string{true: "it has none"}[len(ids) == 0], nil
	})
	return ids
}

// floatingIP gives a server a floating IP.
func (o *old) floatingIP(server string) string {
	o.Helper()
	var made struct {
		FloatingIP struct{ ID string } `json:"floatingip"`
	}
	o.call(http.MethodPost, "network/floatingips", map[string]any{"floatingip": map[string]any{
		"floating_network_id": o.idOf("networks", "public"), "port_id": o.portsOf(server)[0],
	}}, &made)
	o.made = append(o.made, made.FloatingIP.ID)
	return made.FloatingIP.ID
}

// vms returns what a takeover changes of the servers and their parts: metadata, tags, names and
// descriptions, and which volumes Nova deletes.
func (o *old) vms() map[string]takeover.VM {
	o.Helper()
	var now struct {
		Servers []struct {
			ID, Name, Status string
			Metadata         map[string]string
			Tags             []string
			Volumes          []struct {
				ID     string
				Delete bool `json:"delete_on_termination"`
			} `json:"os-extended-volumes:volumes_attached"`
		}
		Ports []struct {
			ID, Name, Description string
			Device                string `json:"device_id"`
			Tags                  []string
		}
		Volumes []struct {
			ID, Name string
			Metadata map[string]string
		}
		Addresses []struct{ ID, Description string } `json:"floatingips"`
	}
	o.call(http.MethodGet, "compute/servers/detail?name=^"+o.Tenant.Name+"-", nil, &now)
	o.call(http.MethodGet, "network/ports", nil, &now)
	o.call(http.MethodGet, "volume/volumes/detail", nil, &now)
	o.call(http.MethodGet, "network/floatingips", nil, &now)
	all := map[string]takeover.VM{}
	for _, s := range now.Servers {
		tags := s.Metadata
		tags["name"], tags["tags"] = s.Name, fmt.Sprint(s.Tags)
		for _, p := range now.Ports {
			if p.Device == s.ID {
				tags["port "+p.ID] = fmt.Sprint(p.Name, p.Description, p.Tags)
			}
		}
		for _, attached := range s.Volumes {
			for _, v := range now.Volumes {
				if v.ID == attached.ID {
					tags["volume "+v.ID] = fmt.Sprint(v.Name, v.Metadata, attached.Delete)
				}
			}
		}
		for _, f := range now.Addresses {
			if f.ID == o.addresses[s.ID] {
				tags["floating IP"] = f.Description
			}
		}
		state := map[bool]string{true: "running", false: s.Status}[s.Status == "ACTIVE"]
		all[s.ID] = takeover.VM{State: state, Tags: tags}
	}
	return all
}

// parts lists what there is of the pool, by names and IDs.
func (o *old) parts() (left []string) {
	o.Helper()
	for _, kind := range []string{"compute/servers", "volume/volumes", "network/ports", "network/trunks", "network/floatingips"} {
		var now map[string][]struct{ ID, Name, Description string }
		o.call(http.MethodGet, kind, nil, &now)
		for _, all := range now {
			for _, one := range all {
				if slices.Contains(o.made, one.ID) || strings.Contains(one.Name+" "+one.Description, o.Tenant.Name+"-a-") {
					left = append(left, kind+" "+one.ID)
				}
			}
		}
	}
	return left
}
