// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"encoding/json"
	"slices"
	"testing"

	. "github.com/onsi/gomega"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
)

// poolNamed returns the plan's pool of a name.
func poolNamed(p *Plan, name string) *Pool {
	return &p.Pools[slices.IndexFunc(p.Pools, func(pool Pool) bool { return pool.Name == name })]
}

// TestLabelsThatMachineControllerAdds tests that new Nodes have what its webhook gives each
// Machine.
func TestLabelsThatMachineControllerAdds(t *testing.T) {
	t.Parallel()
	const field, system = "spec.template.spec.metadata.labels", "v1.machine-controller.kubermatic.io/operating-system"
	g := NewWithT(t)
	w := newMCWorld(t)
	for i := range 2 { // the Machines of the pool workers
		set(&w.Machines[i], "spec.metadata.labels", map[string]any{
			system: "ubuntu", "topology.kubernetes.io/zone": "zone-a", "example.com/own": string(w.Machines[i].GetUID()), "kubernetes.io/x": "y",
		})
	}
	p := w.plan()
	g.Expect(poolNamed(p, "workers").NodeLabels).To(And(
		HaveKeyWithValue(system, "ubuntu"), HaveKeyWithValue("topology.kubernetes.io/zone", "zone-a"), Not(HaveKey("example.com/own")),
		Not(HaveKey("kubernetes.io/x")),
	))
	g.Expect(p.Findings).To(ContainElement(And(HaveField("Severity", Lost), HaveField("Field", field),
		HaveField("Message", ContainSubstring("kubernetes.io/x")))))
	g.Expect(poolNamed(p, "spot").NodeLabels).To(HaveKeyWithValue("k8c.io/aws-spot", "aws-node-termination-handler"))
	g.Expect(poolNamed(p, "spot").NodeLabels).To(HaveKeyWithValue(system, "flatcar"), "without a Machine that has it")

	w = newMCWorld(t)
	inPool(field, map[string]any{system: "mine"})(w)
	g.Expect(poolNamed(w.plan(), "workers").NodeLabels).To(HaveKeyWithValue(system, "mine"), "the pool's own value")
}

// TestValuesOfMachineController tests the forms in which a pool may write a value.
func TestValuesOfMachineController(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]mcVar{
		`"a"`: {value: "a"}, `8`: {value: "8"}, `2.50`: {value: "2.50"}, `true`: {value: "true"}, `null`: {}, `{}`: {},
		`{"value": 3}`:                       {value: "3"},
		`{"value": "a", "secretKeyRef": {}}`: {value: "a"},
		`{"value": "a", "configMapKeyRef": {"namespace": "", "name": "", "key": ""}}`:             {value: "a"},
		`{"secretKeyRef": {"namespace": "kube-system", "name": "x", "key": "y"}}`:                 {from: true},
		`{"value": "", "configMapKeyRef": {"namespace": "kube-system", "name": "x", "key": "y"}}`: {from: true},
	} {
		var got mcVar
		if err := json.Unmarshal([]byte(text), &got); err != nil || got != want {
			t.Errorf("%s is %+v, %v; want %+v", text, got, err, want)
		}
	}
}

// TestNewMachinesCanJoin tests that a plan says what would keep all new machines of a pool from
// being made, or from getting a certificate.
func TestNewMachinesCanJoin(t *testing.T) {
	t.Parallel()
	const at = "spec.template.spec.nodeNameSource"
	hostname := func(w *mcWorld) *mcWorld {
		w.target.Bootstrap.Spec.Template.Spec.NodeNameSource = bootstrapv1.NodeNameHostname
		return w
	}
	named := HaveField("Field", at)
	g := NewWithT(t)
	g.Expect(hostname(newMCOnGCP(t)).plan().Findings).To(ContainElement(And(named, HaveField("Severity", Refused))))
	g.Expect(hostname(newMCServers(t)).plan().Findings).To(ContainElement(And(named, HaveField("Severity", Noted))))
	g.Expect(hostname(newMCWorld(t)).plan().Findings).NotTo(ContainElement(named), "AWS reports these names")

	w := newMCWorld(t) // its pool spot names no image
	none := HaveField("Message", ContainSubstring("names no image, and has no machine"))
	g.Expect(w.plan().Findings).NotTo(ContainElement(none))
	set(&w.Deployments[1], "spec.replicas", int64(0))
	w.Sets, w.Machines = w.Sets[:2], w.Machines[:2]
	g.Expect(w.plan().Findings).To(ContainElement(And(HaveField("Object", "MachineDeployment spot"), HaveField("Severity", Refused), none)))
}

// TestMetadataOfVMsOnKubeVirt tests that new VMs have what machine-controller copies from their
// Machines, and what it adds for Flatcar.
func TestMetadataOfVMsOnKubeVirt(t *testing.T) {
	t.Parallel()
	const field = "spec.template.metadata.annotations"
	g := NewWithT(t)
	w := newMCOnKubeVirt(t)
	set(&w.Deployments[0], "spec.template.metadata.labels", map[string]any{"machine": "workers", "cluster.x-k8s.io/role": "x"})
	set(&w.Deployments[0], field, map[string]any{"example.com/rack": "a", "cdi.kubevirt.io/storage.bind.immediate.requested": "true"})
	p := w.plan()
	vm := func(p *Plan, name string) *infrav1.KubeVirtMachine { return poolNamed(p, name).Machine.Cloud.KubeVirt }
	g.Expect(vm(p, "workers").Labels).To(And(HaveKeyWithValue("machine", "workers"), HaveKeyWithValue("cluster.x-k8s.io/role", "worker")))
	g.Expect(vm(p, "workers").Annotations).To(And(HaveKeyWithValue("example.com/rack", "a"), HaveLen(4)))
	g.Expect(p.Findings).To(ContainElement(And(HaveField("Severity", Lost), HaveField("Field", field),
		HaveField("Message", ContainSubstring("cdi.kubevirt.io")))))
	p = w.plan(field)
	g.Expect(p.Blocked()).To(Equal(0))
	g.Expect(refusals(t, w.target, p)).To(BeEmpty())
	g.Expect(vm(p, "small").Annotations).To(HaveKeyWithValue("kubevirt.io/placePCIDevicesOnRootComplex", "true"))
	g.Expect(vm(p, "workers").Annotations).NotTo(HaveKey("kubevirt.io/placePCIDevicesOnRootComplex"))
}
