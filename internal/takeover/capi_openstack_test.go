// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/tagging"
)

// newCAPIServers is newCAPIWorld for OpenStack. Nova has more servers, of others.
func newCAPIServers(t *testing.T) *capiWorld {
	t.Helper()
	w := &capiWorld{CAPI: &CAPI{}, target: onOpenStack(newTarget())}
	var clusters []unstructured.Unstructured
	w.Nodes = readFixture(t, "capi-openstack", map[string]*[]unstructured.Unstructured{
		"Cluster": &clusters, "MachineDeployment": &w.Deployments, "MachineSet": &w.Sets, "Machine": &w.Machines, "OpenStackServer": &w.Servers,
		"OpenStackCluster": &w.Infrastructure, "OpenStackMachineTemplate": &w.Templates, "OpenStackMachine": &w.VMs,
		"KubeadmConfigTemplate": &w.Configs,
	})
	w.Cluster = clusters[0]
	w.vms = serversOf(w.Machines, func(*unstructured.Unstructured) map[string]string { return map[string]string{} })
	for i := range w.vms {
		w.vms[i].Tags["Name"] = w.VMs[i].GetName()
	}
	w.vms = append(w.vms, tagging.Instance{Resource: cloud.Resource{ID: "x", State: cloud.StateRunning}, Tags: map[string]string{"Name": "x"}})
	return w
}

// TestNodesOfOpenStackKeepTheirName tests that new Nodes are named as the old ones, after their
// server. Nova's instance data have this name with a domain, "novalocal" by default, under which
// the driver can't report it.
func TestNodesOfOpenStackKeepTheirName(t *testing.T) {
	t.Parallel()
	const field = "spec.template.spec.joinConfiguration.nodeRegistration.name"
	for name, lost := range map[string]bool{
		"{{ local_hostname }}": false, "{{ v1.local_hostname }}": false, "{{local-hostname}}": false, "{{ ds.meta_data.name }}": false,
		"{{ ds.meta_data.local_hostname }}": true, "{{ ds.meta_data.hostname }}": true,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			w := newCAPIServers(t)
			w.target.Bootstrap.Spec.Template.Spec.NodeNameSource = bootstrapv1.NodeNameHostname
			for i := range w.Configs {
				set(&w.Configs[i], field, name)
			}
			p := w.plan()
			for i := range p.Pools {
				g.Expect(w.target.configTemplate(&p.Pools[i]).Spec.Template.Spec.NodeNameSource).To(Equal(bootstrapv1.NodeNameMachine))
			}
			finding := And(HaveField("Severity", Lost), HaveField("Field", field))
			if lost {
				g.Expect(p.Findings).To(ContainElement(finding))
				return
			}
			g.Expect(p.Findings).NotTo(ContainElement(finding))
		})
	}
}

// TestFindingsOfClusterAPIOnOpenStack tests each reason of OpenStack's that stops a takeover, and
// each change that a plan notes: it is the only finding more than those of the fixture.
func TestFindingsOfClusterAPIOnOpenStack(t *testing.T) {
	t.Parallel()
	const (
		pool, first, second = "MachineDeployment workers", "OpenStackMachineTemplate workers-v2", "OpenStackMachineTemplate small"
		one, server         = "Machine workers-6d4f5-abcde", "OpenStackServer workers-6d4f5-abcde"
		at                  = "spec.template.spec"
		id                  = "00000000-0000-4000-8000-00000000000a"
	)
	spec := func(path string, value any) func(*capiWorld) {
		return func(w *capiWorld) { set(&w.Templates[0], at+"."+path, value) }
	}
	small := func(path string, value any) func(*capiWorld) {
		return func(w *capiWorld) { set(&w.Templates[1], at+"."+path, value) }
	}
	port := func(key string, value any) func(*capiWorld) {
		return small("ports", []any{map[string]any{key: value}})
	}
	of := func(path string, value any) func(*capiWorld) {
		return func(w *capiWorld) { set(&w.Servers[0], path, value) }
	}
	filter := map[string]any{"filter": map[string]any{"name": "x", "tags": []any{"x"}}}
	// nothing is known of what the provider has found for the small pool.
	nothing := func(change func(*capiWorld)) func(*capiWorld) {
		return func(w *capiWorld) {
			small("image", map[string]any{"id": id})(w)
			set(&w.Servers[2], "status.resolved", nil)
			change(w)
		}
	}
	byID := func(change func(*capiWorld)) func(*capiWorld) {
		return func(w *capiWorld) { set(&w.Infrastructure[0], "spec.subnets", nil); nothing(change)(w) }
	}
	testFindings(t, newCAPIServers, []finding[*capiWorld]{
		{"another cloud", func(w *capiWorld) {
			set(&w.Deployments[0], at+".infrastructureRef.kind", "AWSMachineTemplate")
			set(&w.Sets[0], at+".infrastructureRef.kind", "AWSMachineTemplate")
		}, Refused, pool, at + ".infrastructureRef", "it is AWSMachineTemplate"},
		{"no OpenStackCluster", func(w *capiWorld) { w.Infrastructure = nil }, Refused, "Cluster old", "spec.infrastructureRef",
			"no OpenStackCluster old"},
		{"unreadable OpenStackCluster", func(w *capiWorld) { set(&w.Infrastructure[0], "spec.tags", "x") }, Refused, "OpenStackCluster old", "",
			"does not support it"},
		{"region", func(w *capiWorld) { set(&w.Infrastructure[0], "spec.identityRef.region", "RegionTwo") }, Refused, "OpenStackCluster old",
			"spec.identityRef.region", `"RegionTwo"`},
		{"region of a template", spec("identityRef.region", "RegionTwo"), Refused, first, at + ".identityRef.region", `"RegionTwo"`},
		// machines
		{"no OpenStackServer", func(w *capiWorld) { w.Servers[0].SetOwnerReferences(w.Servers[1].GetOwnerReferences()) }, Refused,
			"OpenStackMachine workers-6d4f5-abcde", "", "version 0.12 or later"},
		{"server deleted", func(w *capiWorld) { now := metav1.Now(); w.Servers[0].SetDeletionTimestamp(&now) }, Refused, server,
			"metadata.deletionTimestamp", "being deleted"},
		{"server not of the Cluster", of("metadata.labels", nil), Refused, server, "metadata.labels", "does not see that Cluster old is paused"},
		{"another server", of("status.instanceID", "x"), Refused, server, "status.instanceID", "not the same server"},
		{"no ports", of("status.resources", nil), Refused, server, "status.resources.ports", "the server's own"},
		{"regional provider ID", func(w *capiWorld) {
			w.Nodes[0].Spec.ProviderID = "openstack://RegionOne/" + id
			set(&w.Machines[0], "spec.providerID", "openstack://RegionOne/"+id)
		}, Refused, one, "", "regionalProviderIDs"},
		// servers
		{"no server", func(w *capiWorld) { w.vms = w.vms[1:] }, Refused, one, "", "no VM " + id},
		{"another name", func(w *capiWorld) { w.vms[2].Tags["Name"] = "y" }, Refused, "Machine small-7f8d9-klmno", "", `has the name "y"`},
		{"two of a name", func(w *capiWorld) { w.vms[3].Tags["Name"] = "workers-6d4f5-abcde" }, Refused, one, "", "2 VMs have its name"},
		{"stopped", func(w *capiWorld) { w.vms[0].State = cloud.StateStopped }, Refused, one, "", "is Stopped"},
		{"Drover's already", func(w *capiWorld) { w.vms[0].Token = "x" }, Refused, one, "", "tags of Drover already"},
		{"another type", func(w *capiWorld) { w.vms[0].Type = "m1.tiny" }, Noted, one, "", "the next rollout makes it m1.large"},
		// OpenStackMachineTemplate
		{"unknown field", spec("surprise", "x"), Refused, first, at, `unknown field "surprise"`},
		{"image of nobody", func(w *capiWorld) { set(&w.Servers[2], "status.resolved.imageID", nil) }, Refused, second, at + ".image.imageRef",
			"name its ID"},
		{"server group", byID(small("serverGroup", map[string]any{"filter": map[string]any{"name": "x"}})), Refused, second, at + ".serverGroup",
			"name its ID"},
		{"network", byID(port("network", filter)), Refused, second, at + ".ports.network", "name its ID"},
		{"no network", nothing(func(w *capiWorld) {
			set(&w.Infrastructure[0], "status.network", nil)
			set(&w.Templates[0], at+".ports", nil)
		}), Refused, second, at + ".ports.network", "name its ID"},
		{"subnet", nothing(func(w *capiWorld) {}), Refused, second, at + ".ports.fixedIPs.subnet", "name its ID"},
		{"groups", func(w *capiWorld) {
			set(&w.Servers[2], "status.resolved.ports", []any{
				map[string]any{"fixedIPs": []any{map[string]any{"subnet": "30000000-0000-4000-8000-000000000001"}}}})
			small("securityGroups", []any{filter})(w)
		}, Refused, second, at + ".securityGroups", "name its ID"},
		{"trunk", small("trunk", true), Noted, second, at + ".ports.trunk", "ports of its subports stay"},
		{"tags of a port", port("tags", []any{"x"}), Lost, second, at + ".ports.tags", "new ports have none"},
		{"port that is down", port("adminStateUp", false), Lost, second, at + ".ports.adminStateUp", "new ports are up"},
		{"host", port("hostID", "x"), Lost, second, at + ".ports.hostID", "host of their server"},
		{"offload", port("profile", map[string]any{"ovsHWOffload": true}), Lost, second, at + ".ports.profile.ovsHWOffload", "Yoga"},
		{"uplink", port("propagateUplinkStatus", true), Lost, second, at + ".ports.propagateUplinkStatus", "default"},
		{"values", port("valueSpecs", []any{map[string]any{"name": "a", "key": "b", "value": "c"}}), Lost, second, at + ".ports.valueSpecs",
			"without them"},
		{"local disk", small("additionalBlockDevices",
			[]any{map[string]any{"name": "tmp", "sizeGiB": int64(1), "storage": map[string]any{"type": "Local"}}}), Lost, second, at +
			".additionalBlockDevices", "tmp, which is on the host"},
		{"volume", small("additionalBlockDevices", []any{map[string]any{"name": "tmp", "sizeGiB": int64(1),
			"storage": map[string]any{"type": "Volume"}}}), Noted, second, at + ".additionalBlockDevices", "the volume tmp of new machines"},
		{"hint", small("schedulerHintAdditionalProperties",
			[]any{map[string]any{"name": "n", "value": map[string]any{"type": "Number", "number": int64(1)}}}), Lost, second, at +
			".schedulerHintAdditionalProperties", "the hint n, which is a number"},
		{"pool of addresses", small("floatingIPPoolRef",
			map[string]any{"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "OpenStackFloatingIPPool", "name": "x"}), Lost, second, at +
			".floatingIPPoolRef", "stay claimed"},
	})
}

// TestClusterAPIChoicesOnOpenStack tests what the provider for OpenStack decides from several
// fields.
func TestClusterAPIChoicesOnOpenStack(t *testing.T) {
	t.Parallel()
	const at, cluster = "spec.template.spec.", "OpenStackCluster"
	printed := func(t *testing.T, w *capiWorld) string {
		t.Helper()
		var out strings.Builder
		if err := w.target.PrintYAML(&out, w.plan()); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	ports := func(one map[string]any) func(*capiWorld) {
		return func(w *capiWorld) { set(&w.Templates[1], at+"ports", []any{one}) }
	}
	x, y := "50000000-0000-4000-8000-000000000001", "50000000-0000-4000-8000-000000000002"
	for _, c := range []struct {
		name   string
		change func(*capiWorld)
		want   string
	}{
		{"flavor by ID", func(w *capiWorld) { set(&w.Templates[0], at+"flavorID", "9") }, `flavor: "9"`},
		{"IDs", ports(map[string]any{
			"network": map[string]any{"id": x}, "fixedIPs": []any{map[string]any{"subnet": map[string]any{"id": y}, "ipAddress": "192.0.2.1"}},
		}), "- fixedIPs:\n            - ipAddress: 192.0.2.1\n              subnetID: " + y + "\n            network: " + x},
		{"address without a subnet", ports(map[string]any{"network": map[string]any{"id": x},
			"fixedIPs": []any{map[string]any{"ipAddress": "192.0.2.1"}}}),
			"- fixedIPs:\n            - ipAddress: 192.0.2.1\n            network: " + x},
		{"own groups", ports(map[string]any{"securityGroups": []any{map[string]any{"id": x}}}), "securityGroups:\n            - " + x +
			"\n          tags:"},
		{"groups of the machine", func(w *capiWorld) {
			group := map[string]any{"filter": map[string]any{"name": "own"}}
			set(&w.Templates[1], at+"securityGroups", []any{group, group})
		}, "securityGroups:\n            - 20000000-0000-4000-8000-000000000001\n            - own\n          tags:"},
		{"no managed groups", func(w *capiWorld) {
			set(&w.Infrastructure[0], "spec.managedSecurityGroups", nil)
			set(&w.Templates[1], at+"securityGroups", []any{map[string]any{"id": x}})
		}, "securityGroups:\n            - " + x + "\n"},
		{"port security on", ports(map[string]any{"disablePortSecurity": false}), "portSecurity: Enabled"},
		{"MAC address", ports(map[string]any{"macAddress": "fa:16:3e:00:00:01"}), "macAddress: fa:16:3e:00:00:01"},
		{"pairs need port security", ports(map[string]any{"disablePortSecurity": true,
			"allowedAddressPairs": []any{map[string]any{"ipAddress": "192.0.2.0/24"}}}),
			"network: 10000000-0000-4000-8000-000000000001\n            portSecurity: Disabled\n"},
		{"address pair", ports(map[string]any{"allowedAddressPairs": []any{map[string]any{"ipAddress": "192.0.2.0/24",
			"macAddress": "fa:16:3e:00:00:01"}}}),
			"- allowedAddressPairs:\n            - ipAddress: 192.0.2.0/24\n              macAddress: fa:16:3e:00:00:01\n"},
		{"trunk of the machine", func(w *capiWorld) { set(&w.Templates[1], at+"trunk", true) },
			"securityGroups:\n            - 20000000-0000-4000-8000-000000000001\n            trunk: Enabled\n"},
		{"server group by ID", func(w *capiWorld) { set(&w.Templates[1], at+"serverGroup", map[string]any{"id": x}) }, "serverGroupID: " + x},
		{"image by ID", func(w *capiWorld) { set(&w.Templates[1], at+"image", map[string]any{"id": x}) }, "image:\n            id: " + x},
		{"volume in a zone", func(w *capiWorld) {
			set(&w.Templates[1], at+"rootVolume", map[string]any{"sizeGiB": int64(7),
				"availabilityZone": map[string]any{"from": "Name", "name": "az-7"}})
		}, "rootVolume:\n            availabilityZone: az-7\n            sizeGiB: 7\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newCAPIServers(t)
			g := NewWithT(t)
			g.Expect(printed(t, w)).NotTo(ContainSubstring(c.want), cluster)
			c.change(w)
			g.Expect(w.plan().Blocked()).To(Equal(0), "%+v", w.plan().Findings)
			g.Expect(printed(t, w)).To(ContainSubstring(c.want))
		})
	}
}

// TestAddressesInTheClusterNetwork tests that a port without a network has the subnets of the
// cluster, whatever addresses it names: so does the provider.
func TestAddressesInTheClusterNetwork(t *testing.T) {
	t.Parallel()
	w := newCAPIServers(t)
	set(&w.Templates[1], "spec.template.spec.ports", []any{map[string]any{"fixedIPs": []any{map[string]any{"ipAddress": "192.0.2.1"}}}})
	p, g := w.plan(), NewWithT(t)
	g.Expect(p.Pools[0].Machine.Cloud.OpenStack.Ports[0].FixedIPs).To(ConsistOf(
		And(HaveField("SubnetID", "30000000-0000-4000-8000-000000000001"), HaveField("IPAddress", "")),
	))
}

// TestPrimarySubnet tests that ports in the network of the cluster are only in its primary subnet.
func TestPrimarySubnet(t *testing.T) {
	t.Parallel()
	w, g := newCAPIServers(t), NewWithT(t)
	const id = "30000000-0000-4000-8000-0000000000ff"
	set(&w.Infrastructure[0], "spec.primarySubnet", map[string]any{"id": id})
	set(&w.Templates[1], "spec.template.spec.ports", nil)
	g.Expect(w.plan().Pools[0].Machine.Cloud.OpenStack.Ports[0].FixedIPs).To(ConsistOf(HaveField("SubnetID", id)))
	set(&w.Infrastructure[0], "spec.primarySubnet", map[string]any{"filter": map[string]any{"name": "x"}})
	g.Expect(w.plan().Findings).To(ContainElement(And(HaveField("Severity", Refused),
		HaveField("Message", ContainSubstring("primarySubnet has no ID")))))
}

// TestOwnPortsOfClusterAPI tests that only the ports that the provider has made go with a machine.
func TestOwnPortsOfClusterAPI(t *testing.T) {
	t.Parallel()
	p := newCAPIServers(t).plan()
	g := NewWithT(t)
	g.Expect(p.Pools[0].Machines[0].OwnedResources).To(Equal([]string{"40000000-0000-4000-8000-0000000000c0"}))
	g.Expect(p.Pools[1].Machines[1].OwnedResources).To(HaveLen(3))
	g.Expect(p.Pools[0].role()).To(Equal(nameKey), "no server loses anything at commit")
}

// TestObjectsOfClusterAPIOnOpenStack tests which objects a plan is made from, and which ones commit
// deletes, in their order: what a Machine owns before the Machine, and never those of others.
func TestObjectsOfClusterAPIOnOpenStack(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	data, err := os.ReadFile("testdata/capi-openstack.yaml")
	g.Expect(err).NotTo(HaveOccurred())
	all := objects(t, data)
	another := all[len(all)-4].DeepCopy() // an OpenStackServer that no Machine has, such as a bastion
	g.Expect(another.GetKind()).To(Equal("OpenStackServer"))
	another.SetName("bastion")
	another.SetOwnerReferences(nil)
	aws := &unstructured.Unstructured{}
	aws.SetGroupVersionKind(capaAPI.WithKind("AWSMachineTemplate"))
	aws.SetNamespace("capo")
	aws.SetName("aws")
	build := fake.NewClientBuilder().WithObjects(another, aws)
	for i := range all {
		build.WithObjects(&all[i])
	}
	c := build.Build()
	system := ClusterAPI()
	*system.Cluster = "old"
	source, err := system.Read(t.Context(), c, "capo", c)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(source.(*CAPI).Templates).To(HaveLen(3), "of all providers")
	w := newCAPIServers(t)
	p := planOf(source, w.vms, w.target, nil)
	g.Expect(p.sorted()).To(ConsistOf(w.plan().sorted()))

	take := &Takeover{Target: w.target, System: system, Old: c, OldNamespace: "capo"}
	s := &staged{
		deployments: []*clusterv1.MachineDeployment{{ObjectMeta: metav1.ObjectMeta{Name: "small"}}},
		machines:    []*clusterv1.Machine{{ObjectMeta: metav1.ObjectMeta{Name: "small-7f8d9-klmno"}}},
	}
	chosen, err := take.chooseOld(t.Context(), s)
	g.Expect(err).NotTo(HaveOccurred())
	var names []string
	for _, o := range chosen {
		names = append(names, o.GetKind()+" "+o.GetName())
	}
	g.Expect(names).To(Equal([]string{
		"OpenStackServer small-x1y2z", "OpenStackMachine small-x1y2z", "Machine small-7f8d9-klmno", "MachineSet small-7f8d9",
		"MachineDeployment small",
	}))
	s.machines = nil
	_, err = take.chooseOld(t.Context(), s)
	g.Expect(err).To(MatchError("the old Machine small-7f8d9-klmno of MachineSet small-7f8d9 is not staged: roll back, and stage again"))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, o := range chosen[:2] {
		o.SetFinalizers([]string{strings.ToLower(o.GetKind()) + "." + capoAPI.Group})
		g.Expect(c.Update(ctx, o)).To(Succeed())
		g.Expect(erase(ctx, c, o, system.finalizers...)).To(Succeed(), "the provider's finalizers do not hold it")
	}
}
