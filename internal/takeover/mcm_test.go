// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/bootstrap/render"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/tagging"
)

var update = flag.Bool("update", false, "write the golden plans")

// world is what a plan is made from.
type world struct {
	*MCM
	vms    []tagging.Instance
	target *Target
}

// newWorld reads the fixture. Each of its Machines has a VM.
func newWorld(t *testing.T) *world {
	t.Helper()
	w := readMCM(t, "mcm", newTarget())
	w.vms = vmsOf(w.Machines, func(*unstructured.Unstructured) map[string]string {
		return map[string]string{"kubernetes.io/cluster/blue": "1", "kubernetes.io/role/node": "1"}
	})
	return w
}

// readMCM reads a fixture's objects of machine-controller-manager.
func readMCM(t *testing.T, fixture string, target *Target) *world {
	t.Helper()
	w := &world{MCM: &MCM{}, target: target}
	w.Nodes = readFixture(t, fixture, map[string]*[]unstructured.Unstructured{
		"MachineDeployment": &w.Deployments, "MachineSet": &w.Sets, "Machine": &w.Machines, "MachineClass": &w.Classes,
	})
	return w
}

// class changes a field of the first MachineClass.
func class(path string, value any) func(*world) {
	return func(w *world) { set(&w.Classes[0], path, value) }
}

// readFixture reads a fixture's objects by kind, and returns its Nodes.
func readFixture(t *testing.T, name string, into map[string]*[]unstructured.Unstructured) (nodes []corev1.Node) {
	t.Helper()
	data, err := os.ReadFile("testdata/" + name + ".yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects(t, data) {
		if of := into[o.GetKind()]; of != nil {
			*of = append(*of, o)
		}
		if o.GetKind() == "Node" {
			node := corev1.Node{}
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &node); err != nil {
				t.Fatal(err)
			}
			nodes = append(nodes, node)
		}
	}
	return nodes
}

func newTarget() *Target {
	target := &Target{
		Namespace: "blue", Cluster: "blue", Identity: "1a2b3c4d", OwnershipID: "6f1c",
		Account: &infrav1.DroverAccount{ObjectMeta: metav1.ObjectMeta{Name: "prod"}, Spec: infrav1.DroverAccountSpec{
			Cloud: infrav1.AccountCloud{AWS: &infrav1.AWSAccount{Region: "eu-central-1"}},
		}},
		Bootstrap: &bootstrapv1.DroverConfigTemplate{},
	}
	target.Bootstrap.Spec.Template.Spec.OperatingSystem = "ubuntu-24.04"
	target.Refuses = func(spec *bootstrapv1.DroverConfigSpec) field.ErrorList {
		return render.Validate(spec, field.NewPath("spec"))
	}
	return target
}

// vmsOf returns a VM for each Machine, with the tags that tagged adds to its name.
func vmsOf(machines []unstructured.Unstructured, tagged func(*unstructured.Unstructured) map[string]string) (vms []tagging.Instance) {
	for i := range machines {
		zone := map[bool]string{true: "eu-central-1a", false: "eu-central-1b"}[i < 2]
		id, _, _ := unstructured.NestedString(machines[i].Object, "spec", "providerID")
		tags := tagged(&machines[i])
		tags["Name"] = machines[i].GetName()
		vms = append(vms, tagging.Instance{
			Resource: cloud.Resource{
				ID: id[strings.LastIndex(id, "/")+1:], ProviderID: "aws:///" + zone + id[strings.LastIndex(id, "/"):], State: cloud.StateRunning,
				ImageID: "ami-0a1b2c3d4e5f60718",
			},
			Type: "m5.large", Tags: tags,
		})
	}
	return vms
}

func objects(t *testing.T, data []byte) []unstructured.Unstructured {
	t.Helper()
	var list struct{ Items []map[string]any }
	if err := yaml.Unmarshal(data, &list); err != nil {
		t.Fatal(err)
	}
	all := make([]unstructured.Unstructured, len(list.Items))
	for i, item := range list.Items {
		raw, err := json.Marshal(item)
		if err == nil {
			item = nil
			err = utiljson.Unmarshal(raw, &item) // with whole numbers as an API server's
		}
		if err != nil {
			t.Fatal(err)
		}
		all[i].Object = item
	}
	return all
}

// plan makes the plan, with the VMs compared.
func (w *world) plan(drop ...string) *Plan {
	return planOf(w.MCM, w.vms, w.target, drop)
}

func planOf(source Source, vms []tagging.Instance, target *Target, drop []string) *Plan {
	p := source.Plan(target, drop)
	for _, keys := range p.KeySets() {
		p.MatchInstances(keys, vms, target)
	}
	return p
}

// fixtures returns the plans of all fixtures by the name of their golden files.
func fixtures() map[string]func(*testing.T) (*Target, *Plan) {
	mcm := func(read func(*testing.T) *world) func(*testing.T) (*Target, *Plan) {
		return func(t *testing.T) (*Target, *Plan) { w := read(t); return w.target, w.plan() }
	}
	mc := func(read func(*testing.T) *mcWorld) func(*testing.T) (*Target, *Plan) {
		return func(t *testing.T) (*Target, *Plan) { w := read(t); return w.target, w.plan() }
	}
	capi := func(read func(*testing.T) *capiWorld) func(*testing.T) (*Target, *Plan) {
		return func(t *testing.T) (*Target, *Plan) { w := read(t); return w.target, w.plan() }
	}
	return map[string]func(*testing.T) (*Target, *Plan){
		"plan": mcm(newWorld), "plan-azure": mcm(newMCMOnAzure), "plan-gcp": mcm(newMCMOnGCP), "plan-kubevirt": mcm(newMCMOnKubeVirt),
		"plan-openstack": mcm(newServers), "plan-vsphere": mcm(newMCMOnVSphere),
		"mc-plan": mc(newMCWorld), "mc-plan-azure": mc(newMCOnAzure), "mc-plan-gcp": mc(newMCOnGCP), "mc-plan-kubevirt": mc(newMCOnKubeVirt),
		"mc-plan-openstack": mc(newMCServers), "mc-plan-vsphere": mc(newMCOnVSphere),
		"capi-plan": capi(newCAPIWorld), "capi-plan-openstack": capi(newCAPIServers),
	}
}

// TestGoldenPlans compares the plans of the fixtures, which nothing stops, as text and as YAML.
func TestGoldenPlans(t *testing.T) {
	for file, of := range fixtures() {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			target, plan := of(t)
			golden(t, target, plan, file)
		})
	}
}

// golden compares a plan, which nothing may stop, with the files of this name.
func golden(t *testing.T, target *Target, p *Plan, file string) {
	t.Helper()
	NewWithT(t).Expect(p.Blocked()).To(Equal(0), "%+v", p.Findings)
	var text, objects bytes.Buffer
	for name, err := range map[string]error{"text": target.Print(&text, p), "objects": target.PrintYAML(&objects, p)} {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, got := range map[string]string{file + ".txt": text.String(), file + ".yaml": objects.String()} {
		path := filepath.Join("testdata", name)
		if *update {
			if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		NewWithT(t).Expect(got).To(Equal(string(want)), "%s: 'go test ./takeover -update' writes it", name)
	}
}

// set sets a field of an object, and nil removes it. The path is that of the field, with dots.
func set(o *unstructured.Unstructured, path string, value any) {
	parts := strings.Split(path, ".")
	if value == nil {
		unstructured.RemoveNestedField(o.Object, parts...)
		return
	}
	if err := unstructured.SetNestedField(o.Object, value, parts...); err != nil {
		panic(err)
	}
}

// device and networkInterface set a field of the first class's first or second one.
func device(w *world, at int, path string, value any) {
	item(w, "blockDevices", at, path, value)
}

func networkInterface(w *world, path string, value any) {
	item(w, "networkInterfaces", 0, path, value)
}

func item(w *world, list string, at int, path string, value any) {
	all, _, _ := unstructured.NestedSlice(w.Classes[0].Object, "providerSpec", list)
	one := unstructured.Unstructured{Object: all[at].(map[string]any)}
	set(&one, path, value)
	set(&w.Classes[0], "providerSpec."+list, all)
}

// TestFindings tests each reason that stops a takeover, and each change that a plan notes: it is
// the only finding more than those of the fixture.
func TestFindings(t *testing.T) {
	t.Parallel()
	deployment := func(path string, value any) func(*world) {
		return func(w *world) { set(&w.Deployments[0], path, value) }
	}
	// both changes the template of the first pool and of its MachineSet
	both := func(path string, value any) func(*world) {
		return func(w *world) {
			set(&w.Deployments[0], "spec.template.spec."+path, value)
			set(&w.Sets[0], "spec.template.spec."+path, value)
		}
	}
	machine := func(path string, value any) func(*world) {
		return func(w *world) { set(&w.Machines[0], path, value) }
	}
	provider := func(path string, value any) func(*world) { return class("providerSpec."+path, value) }
	const (
		pool, one, first = "MachineDeployment workers-z1", "Machine workers-z1-6d4f5-abcde", "MachineClass workers-z1-5b7c9"
		deleted          = "2026-11-01T10:00:00Z"
	)
	testFindings(t, newWorld, []finding[*world]{
		// the pool
		{"pool deleted", deployment("metadata.deletionTimestamp", deleted), Refused, pool, "metadata.deletionTimestamp", "is being deleted"},
		{"pool frozen", deployment("metadata.labels", map[string]any{"freeze": "True"}), Refused, pool, "metadata.labels", "frozen"},
		{"rollback", deployment("spec.rollbackTo", map[string]any{"revision": int64(1)}), Refused, pool, "spec.rollbackTo", "under way"},
		{"in place", deployment("spec.strategy", map[string]any{"type": "InPlaceUpdate",
			"inPlaceUpdate": map[string]any{"orchestrationType": "Auto"}}), Lost, pool, "spec.strategy.type", "in place"},
		{"preserved ones", deployment("spec.autoPreserveFailedMachineMax", int64(1)), Lost, pool, "spec.autoPreserveFailedMachineMax",
			"no failed machines"},
		{"deadline", deployment("spec.progressDeadlineSeconds", int64(600)), Noted, pool, "spec.progressDeadlineSeconds", "no deadline"},
		{"namespace of the class", func(w *world) {
			set(&w.Deployments[0], "spec.template.spec.class.namespace", "x")
			set(&w.Sets[0], "spec.template.spec.class.namespace", "x")
		}, Noted, pool, "spec.template.spec.class.namespace", "ignores it"},
		{"unknown field", deployment("spec.surprise", "x"), Refused, pool, "spec", `unknown field "surprise"`},
		{"scaling", func(w *world) {
			set(&w.Deployments[0], "spec.replicas", int64(3))
			set(&w.Sets[0], "spec.replicas", int64(3))
		}, Refused, pool, "spec.replicas", "has 2 Machines"},
		{"set scaling", func(w *world) { set(&w.Sets[0], "spec.replicas", int64(3)) }, Refused, pool, "spec.replicas", "3 in MachineSet"},
		{"rolling out", func(w *world) { set(&w.Sets[1], "spec.replicas", int64(1)) }, Refused, pool, "", "2 MachineSets have machines"},
		{"not rolled out", func(w *world) { set(&w.Sets[0], "spec.template.spec.drainTimeout", "2h") }, Refused, pool, "spec.template",
			"differs from that of MachineSet"},
		{"set frozen", func(w *world) { set(&w.Sets[0], "metadata.labels", map[string]any{"freeze": "True"}) }, Refused,
			"MachineSet workers-z1-6d4f5", "metadata.labels", "frozen"},
		{"set of nobody", func(w *world) { set(&w.Sets[1], "metadata.ownerReferences", nil) }, Refused, "MachineSet workers-z1-85c9b", "",
			"no MachineDeployment"},
		{"annotations", both("nodeTemplate.metadata.annotations", map[string]any{"a": "1"}), Lost, pool,
			"spec.template.spec.nodeTemplate.metadata.annotations", "annotations a"},
		{"placement", func(w *world) {
			both("nodeTemplate.metadata.annotations", map[string]any{mcmPlacement: `{"HostId":"h-0","Tenancy":"host"}`})(w)
			class("providerSpec.placement", nil)(w)
		}, Lost, pool, "spec.template.spec.nodeTemplate.metadata.annotations.machine.sapcloud.io/awsPlacement",
			"tenancy, hostID or placementGroup"},
		{"placement of the class", both("nodeTemplate.metadata.annotations", map[string]any{mcmPlacement: `{"HostId":"h-0"}`}), Lost, pool,
			"spec.template.spec.nodeTemplate.metadata.annotations", "annotations " + mcmPlacement},
		{"no placement", func(w *world) {
			both("nodeTemplate.metadata.annotations", map[string]any{mcmPlacement: ""})(w)
			class("providerSpec.placement", nil)(w)
		}, Lost, pool, "spec.template.spec.nodeTemplate.metadata.annotations", "annotations " + mcmPlacement},
		{"node spec", both("nodeTemplate.spec.unschedulable", true), Lost, pool, "spec.template.spec.nodeTemplate.spec", "only the taints"},
		{"preserve timeout", both("machinePreserveTimeout", "96h"), Noted, pool, "spec.template.spec.machinePreserveTimeout", "skip-remediation"},
		{"update timeout", both("inPlaceUpdateTimeout", "20m"), Noted, pool, "spec.template.spec.inPlaceUpdateTimeout", "replaces"},
		{"versions", func(w *world) { w.Nodes[0].Status.NodeInfo.KubeletVersion = "v1.32.0" }, Noted, pool, "", "v1.32.0, v1.33.1"},
		// machines
		{"machine deleted", machine("metadata.deletionTimestamp", deleted), Refused, one, "metadata.deletionTimestamp", "is being deleted"},
		{"by force", machine("metadata.labels.force-deletion", "True"), Refused, one, "metadata.labels", "by force"},
		{"phase", machine("status.currentStatus.phase", "CrashLoopBackOff"), Refused, one, "status.currentStatus.phase", `"CrashLoopBackOff"`},
		{"another class", machine("spec.class.name", "spot-2d41f"), Refused, one, "spec.class", "spot-2d41f"},
		{"machine of nobody", func(w *world) {
			stray := w.Machines[0].DeepCopy()
			stray.SetName("stray")
			stray.SetOwnerReferences(nil)
			w.Machines = append(w.Machines, *stray)
		}, Refused, "Machine stray", "", "no MachineSet"},
		{"no label", machine("metadata.labels.node", nil), Refused, one, "metadata.labels", "label node is missing"},
		{"no Node", machine("metadata.labels.node", "other"), Refused, one, "metadata.labels", "Node other does not exist"},
		{"not Ready", func(w *world) { w.Nodes[0].Status.Conditions[0].Status = corev1.ConditionUnknown }, Refused, one, "", "is not Ready"},
		{"Node deleted", func(w *world) { now := metav1.Now(); w.Nodes[0].DeletionTimestamp = &now }, Refused, one, "", "is being deleted"},
		{"preserved", machine("metadata.annotations", map[string]any{mcmPreserve: "now"}), Refused, one, "metadata.annotations", mcmPreserve},
		{"preserved Node", func(w *world) { w.Nodes[0].Annotations = map[string]string{mcmPreserve: "when-failed"} }, Refused, one,
			"metadata.annotations", mcmPreserve},
		{"updated in place", func(w *world) {
			w.Nodes[0].Labels = map[string]string{"node.machine.sapcloud.io/selected-for-update": "true"}
		}, Refused, one, "", "updated in place"},
		{"Node of no VM", func(w *world) { w.Nodes[0].Spec.ProviderID = "" }, Refused, one, "", "names no VM of this cloud"},
		{"not the same VM", machine("spec.providerID", "aws:///eu-central-1/i-0000000000000000b"), Refused, one, "spec.providerID",
			"not the same VM"},
		{"unknown field of a machine", machine("spec.surprise", "x"), Refused, one, "spec", `unknown field "surprise"`},
		// VMs
		{"no VM", func(w *world) { w.vms = w.vms[1:] }, Refused, one, "", "no VM i-0000000000000000a"},
		{"stopped", func(w *world) { w.vms[0].State = cloud.StateStopped }, Refused, one, "", "Stopped, not running"},
		{"two of one name", func(w *world) {
			again := w.vms[0]
			again.ID = "i-0f"
			w.vms = append(w.vms, again)
		}, Refused, one, "", "2 VMs have its name, i-0000000000000000a and i-0f"},
		{"another name", func(w *world) { w.vms[0].Tags["Name"] = "x" }, Refused, one, "", `has the name "x"`},
		{"another zone", func(w *world) { w.vms[0].ProviderID = "aws:///eu-central-1c/i-0000000000000000a" }, Refused, one, "",
			"is aws:///eu-central-1c/i-0"},
		{"tags of another machine", func(w *world) { w.vms[0].Token = "other" }, Refused, one, "", "tags of Drover already"},
		{"tags of another cluster", func(w *world) { w.vms[0].OwnershipID = "other" }, Refused, one, "", "tags of Drover already"},
		{"another type", func(w *world) { w.vms[0].Type = "m5.xlarge" }, Noted, one, "", "the next rollout makes it m5.large"},
		{"another image", func(w *world) { w.vms[0].ImageID = "ami-0" }, Noted, one, "", "the next rollout uses"},
		{"orphan", func(w *world) {
			w.vms = append(w.vms, tagging.Instance{Resource: cloud.Resource{ID: "i-0f"}, Tags: map[string]string{"Name": "x"}})
		}, Noted, "VM i-0f", "", "of no Machine"},
		// the class
		{"class deleted", class("metadata.deletionTimestamp", deleted), Refused, first, "metadata.deletionTimestamp", "is being deleted"},
		{"another cloud", class("provider", "Azure"), Refused, first, "provider", `"Azure"`},
		{"virtual capacity", class("nodeTemplate.virtualCapacity", map[string]any{"x": "1"}), Lost, first, "nodeTemplate.virtualCapacity",
			"do not get it"},
		{"unknown field of the cloud", provider("surprise", "x"), Refused, first, "providerSpec", `unknown field "surprise"`},
		{"region", provider("region", "eu-west-1"), Refused, first, "providerSpec.region", `"eu-west-1"`},
		{"no role", provider("tags", map[string]any{"kubernetes.io/cluster/blue": "1"}), Refused, first, "providerSpec.tags",
			"0 keys contain kubernetes.io/role/"},
		{"source check", provider("srcAndDstChecksEnabled", false), Lost, first, "providerSpec.srcAndDstChecksEnabled", "stays on"},
		{"disks kept", func(w *world) { device(w, 0, "ebs.deleteOnTermination", false) }, Lost, first,
			"providerSpec.blockDevices.ebs.deleteOnTermination", "deleted with them"},
		{"no device", func(w *world) { device(w, 1, "noDevice", "x") }, Noted, first, "providerSpec.blockDevices.noDevice", "ignores it"},
		{"instance store", func(w *world) { device(w, 1, "virtualName", "ephemeral0") }, Noted, first,
			"providerSpec.blockDevices.virtualName", "ignores it"},
		{"half of the CPU options", provider("cpuOptions.threadsPerCore", nil), Noted, first, "providerSpec.cpuOptions", "ignores"},
		{"root of a snapshot", func(w *world) { device(w, 0, "ebs.snapshotID", "snap-0") }, Lost, first,
			"providerSpec.blockDevices.ebs.snapshotID", "from the image"},
		{"no root", func(w *world) { device(w, 0, "deviceName", "/dev/sda1") }, Refused, first, "providerSpec.blockDevices.deviceName",
			"root volume"},
		{"no interface", provider("networkInterfaces", []any{}), Refused, first, "providerSpec.networkInterfaces", "there is none"},
		{"efa-only", func(w *world) { networkInterface(w, "interfaceType", "efa-only") }, Lost, first,
			"providerSpec.networkInterfaces.interfaceType", `"efa-only"`},
		{"another card", func(w *world) { networkInterface(w, "networkCardIndex", int64(1)) }, Refused, first,
			"providerSpec.networkInterfaces.deviceIndex", "index 0 on card 0"},
		{"prefixes", func(w *world) { networkInterface(w, "ipv6PrefixCount", int64(1)) }, Lost, first,
			"providerSpec.networkInterfaces.ipv6PrefixCount", "no IPv6 prefixes"},
		{"interfaces kept", func(w *world) { networkInterface(w, "deleteOnTermination", false) }, Lost, first,
			"providerSpec.networkInterfaces.deleteOnTermination", "deleted with them"},
		{"description", func(w *world) { networkInterface(w, "description", "x") }, Noted, first, "providerSpec.networkInterfaces.description",
			"tags instead"},
		{"public address of several", func(w *world) {
			all, _, _ := unstructured.NestedSlice(w.Classes[0].Object, "providerSpec", "networkInterfaces")
			one := runtime.DeepCopyJSON(all[0].(map[string]any))
			one["associatePublicIPAddress"] = true
			set(&w.Classes[0], "providerSpec.networkInterfaces", append(all, one))
		}, Lost, first, "providerSpec.networkInterfaces.associatePublicIPAddress", "several network interfaces"},
		{"price beside a market", func(w *world) {
			provider("spotPrice", "0.1")(w)
			provider("instanceMarketOptions", map[string]any{"marketType": "spot"})(w)
		}, Noted, first, "providerSpec.spotPrice", "beside instanceMarketOptions"},
		{"market", provider("instanceMarketOptions", map[string]any{"marketType": "interruptible-capacity-reservation"}), Lost, first,
			"providerSpec.instanceMarketOptions.marketType", "can't be bought"},
		{"placement group", provider("placement.groupId", "pg-0"), Lost, first, "providerSpec.placement.groupId", "by name"},
		{"partition", provider("placement.partitionNumber", int64(2)), Lost, first, "providerSpec.placement.partitionNumber",
			"no placement group"},
		{"affinity", provider("placement.affinity", "host"), Lost, first, "providerSpec.placement.affinity", "not bound"},
		{"no metadata", provider("instanceMetadataOptions.httpEndpoint", "disabled"), Lost, first,
			"providerSpec.instanceMetadataOptions.httpEndpoint", "reach the instance metadata"},
		{"tokens", provider("instanceMetadataOptions.httpTokens", nil), Noted, first, "providerSpec.instanceMetadataOptions", "session token"},
		// its autoscaler
		{"autoscaler", func(w *world) {
			container := corev1.Container{Command: []string{"./cluster-autoscaler", "--nodes=1:5:old.spot-x", "--nodes=0:7:other.workers-z1",
				"--nodes=2:9:old.workers-z1"}}
			w.Autoscalers = []appsv1.Deployment{{Spec: appsv1.DeploymentSpec{
				Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{container}}}}}}
		}, Noted, pool, "", "between 2 and 9 machines"},
	})
}

// finding is a change of a fixture, and what a plan then has more: one Finding.
type finding[W any] struct {
	name                   string
	change                 func(W)
	severity               Severity
	object, field, message string
}

// testFindings tests that each change of the fixture leads to one more finding, and that what a
// takeover would lose can be dropped.
func testFindings[W interface{ plan(drop ...string) *Plan }](t *testing.T, fixture func(*testing.T) W, cases []finding[W]) {
	t.Helper()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			w := fixture(t)
			before := w.plan().sorted()
			c.change(w)
			p := w.plan()
			more := slices.DeleteFunc(p.sorted(), func(f Finding) bool { return slices.Contains(before, f) })
			g.Expect(more).To(ConsistOf(And(
				HaveField("Severity", c.severity), HaveField("Object", c.object), HaveField("Field", c.field),
				HaveField("Message", ContainSubstring(c.message)),
			)))
			g.Expect(p.Blocked() == 0).To(Equal(c.severity == Noted))
			if c.severity != Lost {
				return
			}
			p = w.plan(c.field)
			g.Expect(p.Blocked()).To(Equal(0), "dropped knowingly")
			g.Expect(p.Findings).To(ContainElement(And(HaveField("Severity", Dropped), HaveField("Field", c.field))))
		})
	}
}

// TestDropNothing tests that a field to drop that no object has is refused.
func TestDropNothing(t *testing.T) {
	t.Parallel()
	p := newWorld(t).plan("providerSpec.srcAndDstChecksEnabled")
	NewWithT(t).Expect(p.Findings).To(ContainElement(And(HaveField("Severity", Refused),
		HaveField("Object", "--drop providerSpec.srcAndDstChecksEnabled"))))
}

// TestMachinesOnAWS tests what new machines have of a class where the provider for AWS
// (https://github.com/gardener/machine-controller-manager-provider-aws/tree/v0.29.0/pkg/aws) does
// something else than the fields' names say.
func TestMachinesOnAWS(t *testing.T) {
	t.Parallel()
	interfaces := func(all ...map[string]any) func(*world) {
		return func(w *world) {
			list := make([]any, len(all))
			for i, one := range all {
				one["subnetID"], one["securityGroupIDs"] = "subnet-0a1b2c3d4e5f60718", []any{"sg-0a1b2c3d4e5f60718"}
				list[i] = one
			}
			class("providerSpec.networkInterfaces", list)(w)
		}
	}
	const on, off = infrav1.FeatureEnabled, infrav1.FeatureDisabled
	for name, c := range map[string]struct {
		change func(*world)
		want   func(*infrav1.AWSMachine) any
		to     any
	}{
		"IPv6 address": {interfaces(map[string]any{"ipv6AddressCount": int64(1)}),
			func(m *infrav1.AWSMachine) any { return []any{m.IPv6AddressCount, m.PrimaryIPv6} }, []any{int32(1), on}},
		"IPv6 address, not primary": {interfaces(map[string]any{"ipv6AddressCount": int64(2), "primaryIpv6": false}),
			func(m *infrav1.AWSMachine) any { return []any{m.IPv6AddressCount, m.PrimaryIPv6} },
			[]any{int32(2), infrav1.FeatureState("")}},
		"primary without a count": {interfaces(map[string]any{"primaryIpv6": true}),
			func(m *infrav1.AWSMachine) any { return []any{m.IPv6AddressCount, m.PrimaryIPv6} },
			[]any{int32(0), infrav1.FeatureState("")}},
		"no public address": {interfaces(map[string]any{"associatePublicIPAddress": false}),
			func(m *infrav1.AWSMachine) any { return m.PublicIP }, off},
		"a public address": {interfaces(map[string]any{"associatePublicIPAddress": true}),
			func(m *infrav1.AWSMachine) any { return m.PublicIP }, on},
		"no public address of several": {interfaces(map[string]any{"associatePublicIPAddress": false}, map[string]any{}),
			func(m *infrav1.AWSMachine) any { return []any{m.PublicIP, len(m.NetworkInterfaces)} },
			[]any{infrav1.FeatureState(""), 1}},
		"devices": {func(w *world) {
			device(w, 1, "noDevice", "x")
			device(w, 1, "virtualName", "ephemeral0")
			device(w, 1, "ebs.kmsKeyID", "alias/data")
		}, func(m *infrav1.AWSMachine) any {
			return []any{len(m.Volumes), m.Volumes[0].SizeGiB, m.Volumes[0].KMSKeyID}
		},
			[]any{1, int32(100), ""}},
		"monitoring": {class("providerSpec.monitoring", true),
			func(m *infrav1.AWSMachine) any { return m.DetailedMonitoring }, infrav1.FeatureState("")},
		"price beside a market": {func(w *world) {
			class("providerSpec.spotPrice", "0.1")(w)
			class("providerSpec.instanceMarketOptions", map[string]any{"marketType": "capacity-block"})(w)
		}, func(m *infrav1.AWSMachine) any { return m.Market }, infrav1.AWSMarket{Type: infrav1.AWSMarketCapacityBlock}},
		"price": {class("providerSpec.spotPrice", "0.1"), func(m *infrav1.AWSMachine) any { return m.Market },
			infrav1.AWSMarket{Type: infrav1.AWSMarketSpot, MaxPriceUSD: "0.1"}},
		"half of the CPU options": {class("providerSpec.cpuOptions", map[string]any{"coreCount": int64(2)}),
			func(m *infrav1.AWSMachine) any { return m.CPUOptions }, infrav1.AWSCPUOptions{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			w := newWorld(t)
			c.change(w)
			p := w.plan()
			g.Expect(p.Blocked()).To(Equal(0), "%+v", p.Findings)
			g.Expect(refusals(t, w.target, p)).To(BeEmpty())
			pool := p.Pools[slices.IndexFunc(p.Pools, func(pool Pool) bool { return pool.Name == "workers-z1" })]
			g.Expect(c.want(pool.Machine.Cloud.AWS)).To(Equal(c.to))
		})
	}
}

// TestPlacementAmongAnnotations tests that dropping the annotations of Nodes does not drop where
// EC2 places the machines, and that the annotation is nothing of another cloud's.
func TestPlacementAmongAnnotations(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const field = "spec.template.spec.nodeTemplate.metadata.annotations"
	annotated := func(w *world) *world {
		for _, o := range []*unstructured.Unstructured{&w.Deployments[0], &w.Sets[0]} {
			set(o, field, map[string]any{mcmPlacement: `{"Tenancy":"dedicated"}`, "a": "1"})
		}
		set(&w.Classes[0], "providerSpec.placement", nil)
		return w
	}
	lost := func(p *Plan) (fields []string) {
		for _, f := range p.Findings {
			if f.Severity == Lost {
				fields = append(fields, f.Field)
			}
		}
		return fields
	}
	g.Expect(lost(annotated(newWorld(t)).plan())).To(Equal([]string{field + "." + mcmPlacement, field}))
	g.Expect(lost(annotated(newWorld(t)).plan(field))).To(Equal([]string{field + "." + mcmPlacement}))
	g.Expect(lost(annotated(newMCMOnVSphere(t)).plan())).To(Equal([]string{field}))
}
