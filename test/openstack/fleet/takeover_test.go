// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1alpha1"
	"github.com/drover-io/drover/cloud/simulated/simulator/body"
	"github.com/drover-io/drover/test/faultproxy"
	"github.com/drover-io/drover/test/playground"
	"github.com/drover-io/drover/test/scenario"
)

const (
	oldGroup  = "machine.sapcloud.io"
	oldKey    = "kubernetes.io-role-node"
	oldParent = "taken-a-6d4f5"
)

// TestTakeover takes servers over that were made as machine-controller-manager makes them, with a
// port and a volume of their names: staged, switched and rolled back, all is as before. Then they
// are Drover's, and scaled to 0: nothing is left of servers, ports and volumes. The command is cut
// off after each of its writes to OpenStack; test/takeover kills it after each of its others.
func TestTakeover(t *testing.T) {
	t.Parallel()
	const n = 2
	s := start(t, "taken")
	g := NewWithT(t)
	o := s.installOld(n)
	o.beat()
	before := o.sight()
	g.Expect(before).To(And(ContainSubstring("taken-a-6d4f5-0"), Not(ContainSubstring("drover"))))

	out := o.run("plan")
	g.Expect(out).To(ContainSubstring("To go with their VMs: what has one of 2 names"))
	g.Expect(o.cut("stage")).To(BeTrue())
	out, err := o.try("check")
	g.Expect(err).To(HaveOccurred())
	g.Expect(out).To(ContainSubstring("has only a part of what it must have"))
	o.done("stage")
	g.Expect(o.sight()).To(And(ContainSubstring("drover-creation-token"), Not(Equal(before))))
	o.run("switch")
	g.Expect(s.machines()).To(HaveLen(n))
	o.done("rollback")
	g.Expect(o.sight()).To(Equal(before), "rolled back after the switch")
	g.Expect(s.machines()).To(BeEmpty())

	o.run("stage")
	o.run("switch")
	o.done("commit")
	g.Expect(strings.Count(before, oldKey+":")).To(Equal(2*n), "servers and volumes have it")
	g.Expect(strings.Count(o.sight(), oldKey+":")).To(Equal(n), "no server has it, so machine-controller-manager finds none")
	for _, c := range s.Cloud.Calls() {
		g.Expect(c.Name).To(BeEmpty(), "no server is made") // the name of a new server
		g.Expect(c.Verb).NotTo(Equal("POST network/ports"))
	}
	d := &clusterv1.MachineDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: "taken-a"}}
	s.Do(scenario.Patch(s.Ctx, s.Rig.Client, d, func() { d.Spec.Replicas = ptr.To[int32](0) }))
	s.Empty()
	s.Until("no server, port and volume is left", func(context.Context) (string, error) {
		return strings.Join(o.parts(), ", "), nil
	})
}

// machines returns the names of the Machines.
func (s *stage) machines() (names []string) {
	s.Helper()
	list := &clusterv1.MachineList{}
	s.Do(s.Rig.Client.List(s.Ctx, list, client.InNamespace(s.Namespace)))
	for _, m := range list.Items {
		names = append(names, m.Name)
	}
	return names
}

// old is what machine-controller-manager has of one pool.
type old struct {
	*stage
	namespace, kubeconfig, nodes, binary string
	servers                              []string
}

// installOld makes machine-controller-manager's kinds, a pool of n machines, their servers and
// their Nodes.
func (s *stage) installOld(n int) *old {
	s.Helper()
	s.Do(apiextensionsv1.AddToScheme(s.Rig.Client.Scheme()))
	o := &old{stage: s, namespace: "taken-old", kubeconfig: filepath.Join(s.TempDir(), "management"), nodes: filepath.Join(s.TempDir(), "workload")}
	admin := metav1.ObjectMeta{Namespace: s.Namespace, Name: "importer"}
	s.Do(scenario.Create(s.Ctx, s.Rig.Client,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: o.namespace}}, &corev1.ServiceAccount{ObjectMeta: admin},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: admin.Name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
			Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: s.Namespace, Name: admin.Name}},
		},
		&bootstrapv1.CloudInitConfigTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: "base"}},
		&coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Namespace: o.namespace, Name: "machine-controller"},
			Spec:       coordinationv1.LeaseSpec{RenewTime: ptr.To(metav1.NewMicroTime(time.Now().Add(-time.Hour)))},
		}))
	raw, err := s.Rig.Management.ServiceAccountKubeconfig(s.Ctx, s.Namespace, admin.Name)
	s.Do(err)
	s.Do(os.WriteFile(o.kubeconfig, raw, 0o600))
	s.Do(os.WriteFile(o.nodes, s.Kubeconfig, 0o600))
	o.binary, err = playground.Build(s.Ctx, false)
	s.Do(err)
	for _, kind := range []string{"MachineClass", "MachineDeployment", "MachineSet", "Machine"} {
		o.installKind(kind)
	}
	tags, network := map[string]any{"kubernetes.io-cluster-taken": "1", oldKey: "1"}, o.idOf("networks", "nodes")
	subnet := o.idOf("subnets", "nodes")
	o.make("MachineClass", "taken-a", nil, map[string]any{"provider": "OpenStack", "providerSpec": map[string]any{
		"apiVersion": "openstack.machine.gardener.cloud/v1alpha1", "kind": "MachineProviderConfig", "spec": map[string]any{
			"flavorName": "small", "imageName": "node-image", "region": "RegionOne", "availabilityZone": "az-1", "securityGroups": []any{"default"},
			"networkID": network, "subnetID": subnet, "podNetworkCidr": "10.244.0.0/16", "rootDiskSize": int64(1), "rootDiskType": "fast", "tags": tags,
		},
	}})
	machine := map[string]any{"class": map[string]any{"apiGroup": oldGroup, "kind": "MachineClass", "name": "taken-a"}, "drainTimeout": "10s"}
	labels := map[string]any{"name": "taken-a"}
	pool := map[string]any{"spec": map[string]any{
		"replicas": int64(n), "selector": map[string]any{"matchLabels": labels}, "template": map[string]any{"metadata": map[string]any{"labels": labels}, "spec": machine},
	}}
	set := o.make("MachineSet", oldParent, o.make("MachineDeployment", "taken-a", nil, pool), pool)
	for i := range n {
		name := fmt.Sprintf("%s-%d", oldParent, i)
		id := o.launch(name, network, subnet, tags)
		own := map[string]any{"providerID": "openstack:///RegionOne/" + id, "class": machine["class"], "drainTimeout": machine["drainTimeout"]}
		m := o.make("Machine", name, set, map[string]any{"spec": own, "status": map[string]any{"currentStatus": map[string]any{"phase": "Running"}}})
		m.SetLabels(map[string]string{"name": "taken-a", "node": name})
		s.Do(s.Rig.Client.Update(s.Ctx, m))
		o.node(name, id)
	}
	return o
}

func (o *old) installKind(kind string) {
	o.Helper()
	plural := strings.ToLower(kind) + map[bool]string{true: "es", false: "s"}[kind == "MachineClass"]
	o.Do(o.Rig.Client.Create(o.Ctx, &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: plural + "." + oldGroup},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: oldGroup, Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Kind: kind, ListKind: kind + "List", Plural: plural},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1alpha1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: ptr.To(true)}},
			}},
		},
	}))
	o.Until(kind+" is known", func(ctx context.Context) (string, error) {
		list := &unstructured.UnstructuredList{}
		list.SetAPIVersion(oldGroup + "/v1alpha1")
		list.SetKind(kind + "List")
		if err := o.Rig.Client.List(ctx, list); err != nil {
			return err.Error(), nil
		}
		return "", nil
	})
}

// make makes an object with machine-controller-manager's finalizer.
func (o *old) make(kind, name string, owner *unstructured.Unstructured, fields map[string]any) *unstructured.Unstructured {
	o.Helper()
	made := (&unstructured.Unstructured{Object: fields}).DeepCopy()
	made.SetAPIVersion(oldGroup + "/v1alpha1")
	made.SetKind(kind)
	made.SetNamespace(o.namespace)
	made.SetName(name)
	made.SetFinalizers([]string{oldGroup + "/machine-controller-manager"})
	if owner != nil {
		made.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(owner, owner.GroupVersionKind())})
	}
	o.Do(o.Rig.Client.Create(o.Ctx, made))
	return made
}

// call makes a call to OpenStack.
func (o *old) call(method, path string, body, answer any) {
	o.Helper()
	o.Do(o.OpenStack.Do(o.Ctx, method, path, body, answer))
}

func (o *old) idOf(kind, name string) string {
	o.Helper()
	var found map[string][]struct{ ID string }
	o.call(http.MethodGet, "network/"+kind+"?name="+name+"&project_id="+o.OpenStack.Project, nil, &found)
	if len(found[kind]) != 1 {
		o.Fatalf("%d %s have the name %s", len(found[kind]), kind, name)
	}
	return found[kind][0].ID
}

// launch makes a server with a port and a volume of its name, which Nova keeps, and waits until it
// runs.
func (o *old) launch(name, network, subnet string, tags map[string]any) string {
	o.Helper()
	var made struct {
		Port, Volume, Server struct{ ID, Status string }
		Flavors              []struct{ ID, Name string }
	}
	o.call(http.MethodPost, "network/ports", map[string]any{"port": map[string]any{
		"name": name, "network_id": network, "fixed_ips": []any{map[string]any{"subnet_id": subnet}},
	}}, &made)
	o.call(http.MethodPost, "volume/volumes", map[string]any{"volume": map[string]any{"name": name, "size": 1, "volume_type": "fast", "metadata": tags}}, &made)
	o.Until("the volume can be used", func(context.Context) (string, error) {
		o.call(http.MethodGet, "volume/volumes/"+made.Volume.ID, nil, &made)
		return map[bool]string{false: made.Volume.Status}[made.Volume.Status == "available"], nil
	})
	o.call(http.MethodPost, "volume/volumes/"+made.Volume.ID+"/action", map[string]any{"os-set_bootable": map[string]any{"bootable": true}}, nil)
	o.call(http.MethodGet, "compute/flavors", nil, &made)
	server := map[string]any{
		"name": name, "metadata": tags, "networks": []any{map[string]any{"port": made.Port.ID}}, "availability_zone": "az-1",
		"block_device_mapping_v2": []any{map[string]any{
			"uuid": made.Volume.ID, "boot_index": 0, "source_type": "volume", "destination_type": "volume", "delete_on_termination": false,
		}},
	}
	for _, f := range made.Flavors {
		if f.Name == "small" {
			server["flavorRef"] = f.ID
		}
	}
	o.call(http.MethodPost, "compute/servers", map[string]any{"server": server}, &made)
	o.Until("the server runs", func(context.Context) (string, error) {
		o.call(http.MethodGet, "compute/servers/"+made.Server.ID, nil, &made)
		return map[bool]string{false: made.Server.Status}[made.Server.Status == "ACTIVE"], nil
	})
	o.servers = append(o.servers, made.Server.ID)
	return made.Server.ID
}

// node makes the Node of a server, as a kubelet and OpenStack's cloud controller would.
func (o *old) node(name, id string) {
	o.Helper()
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: []string{"node.machine.sapcloud.io/machine-controller"}},
		Spec:       corev1.NodeSpec{ProviderID: "openstack:///" + id},
	}
	o.Do(o.Rig.Nodes.Create(o.Ctx, node))
	patch := client.MergeFrom(node.DeepCopy())
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: name}}
	node.Status.NodeInfo.KubeletVersion = body.DefaultKubeletVersion
	for kind, is := range map[corev1.NodeConditionType]corev1.ConditionStatus{
		corev1.NodeReady: corev1.ConditionTrue, corev1.NodeMemoryPressure: corev1.ConditionFalse,
		corev1.NodeDiskPressure: corev1.ConditionFalse, corev1.NodePIDPressure: corev1.ConditionFalse,
	} {
		node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{Type: kind, Status: is, LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now()})
	}
	o.Do(o.Rig.Nodes.Status().Patch(o.Ctx, node, patch))
}

// beat renews the Leases of the Nodes, as kubelets do, until the test ends.
func (o *old) beat() {
	ctx, cancel := context.WithCancel(o.Ctx)
	done := make(chan struct{})
	o.Cleanup(func() { cancel(); <-done })
	renew := func() {
		for i := range o.servers {
			lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: fmt.Sprintf("%s-%d", oldParent, i)}}
			err := o.Rig.Nodes.Get(ctx, client.ObjectKeyFromObject(lease), lease)
			lease.Spec.RenewTime = ptr.To(metav1.NowMicro())
			if err == nil {
				err = o.Rig.Nodes.Update(ctx, lease)
			} else if client.IgnoreNotFound(err) == nil {
				err = o.Rig.Nodes.Create(ctx, lease)
			}
			if err != nil && ctx.Err() == nil {
				o.Log(err)
			}
		}
	}
	go func() {
		defer close(done)
		ticker := time.NewTicker(5 * time.Second)
		defer ticker.Stop()
		for {
			renew()
			select {
			case <-ticker.C:
			case <-ctx.Done():
				return
			}
		}
	}()
}

// done runs a step, and cuts the connection after each of its writes to OpenStack.
func (o *old) done(step string) {
	o.Helper()
	n := 0
	for o.cut(step) {
		if n++; n > 50 {
			o.Fatalf("%s does not come to an end", step)
		}
	}
	o.Logf("%s was cut off after each of %d writes", step, n)
}

// cut runs a step, and cuts the connection after its first write to OpenStack. It returns false if
// there is nothing left to write: then the step must be done.
func (o *old) cut(step string) bool {
	o.Helper()
	var wrote atomic.Bool
	o.Cloud.SetRule(func(_ context.Context, c faultproxy.Call, at faultproxy.Point) faultproxy.Verdict {
		writes := !strings.HasPrefix(c.Verb, "GET ") && c.Verb != "POST identity/auth" // nobody else writes meanwhile
		return faultproxy.Verdict{Cut: at == faultproxy.After && writes && c.Status < http.StatusBadRequest && !wrote.Swap(true)}
	})
	out, err := o.try(step)
	o.Cloud.SetRule(nil)
	if err == nil == wrote.Load() {
		o.Fatalf("%s, cut off: %t: %v\n%s", step, wrote.Load(), err, out)
	}
	return wrote.Load()
}

// run runs a step of the command, which must succeed.
func (o *old) run(step string) string {
	o.Helper()
	began := time.Now()
	out, err := o.try(step)
	if err != nil {
		o.Fatalf("%s: %v\n%s", step, err, out)
	}
	o.Logf("%5.1fs for %s", time.Since(began).Seconds(), step)
	return out
}

// try runs a step of the command.
func (o *old) try(step string) (out string, err error) {
	o.Helper()
	cmd := exec.CommandContext(o.Ctx, o.binary, "import", "machine-controller-manager", step, "--namespace", o.Namespace, "--cluster", o.Tenant.Name, "--bootstrap", "base",
		"--from-namespace", o.namespace, "--nodes", o.nodes, "--confirm", o.Tenant.Name, "--allow-endpoints=127.0.0.0/8,::1/128")
	cmd.Env = append(os.Environ(), "KUBECONFIG="+o.kubeconfig)
	raw, err := cmd.CombinedOutput()
	return string(raw), err
}

// sight is all that a takeover changes of the servers, their ports and volumes.
func (o *old) sight() string {
	o.Helper()
	var all []any
	for _, id := range o.servers {
		var now struct {
			Server struct {
				Name, Status string
				Metadata     map[string]string
				Tags         []string
				Volumes      any `json:"os-extended-volumes:volumes_attached"`
			}
			Ports   []struct{ ID, Name, Description string }
			Volumes []struct {
				ID, Name string
				Metadata map[string]string
			}
		}
		o.call(http.MethodGet, "compute/servers/"+id, nil, &now)
		o.call(http.MethodGet, "network/ports?device_id="+id, nil, &now)
		o.call(http.MethodGet, "volume/volumes/detail?name="+now.Server.Name, nil, &now)
		all = append(all, now)
	}
	return fmt.Sprintf("%+v", all)
}

// parts lists what there is of the pool, by its names.
func (o *old) parts() (left []string) {
	o.Helper()
	var now struct {
		Servers, Volumes []struct{ ID, Name string }
		Ports            []struct{ ID, Name, Description string }
	}
	o.call(http.MethodGet, "compute/servers", nil, &now)
	o.call(http.MethodGet, "volume/volumes", nil, &now)
	o.call(http.MethodGet, "network/ports", nil, &now)
	for _, one := range append(now.Servers, now.Volumes...) {
		if strings.HasPrefix(one.Name, oldParent) {
			left = append(left, one.Name)
		}
	}
	for _, p := range now.Ports {
		if strings.Contains(p.Name+p.Description, oldParent) {
			left = append(left, "port "+p.Name)
		}
	}
	return left
}
