// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"slices"
	"testing"

	. "github.com/onsi/gomega"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
)

// poolNamed returns the plan's pool of a name.
func poolNamed(p *Plan, name string) *Pool {
	return &p.Pools[slices.IndexFunc(p.Pools, func(pool Pool) bool { return pool.Name == name })]
}

// TestLabelsThatMachineControllerAdds tests that new Nodes have what its webhook gives each Machine.
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
		HaveKeyWithValue(system, "ubuntu"), HaveKeyWithValue("topology.kubernetes.io/zone", "zone-a"), Not(HaveKey("example.com/own")), Not(HaveKey("kubernetes.io/x")),
	))
	g.Expect(p.Findings).To(ContainElement(And(HaveField("Severity", Lost), HaveField("Field", field), HaveField("Message", ContainSubstring("kubernetes.io/x")))))
	g.Expect(poolNamed(p, "spot").NodeLabels).To(HaveKeyWithValue("k8c.io/aws-spot", "aws-node-termination-handler"))
	g.Expect(poolNamed(p, "spot").NodeLabels).To(HaveKeyWithValue(system, "flatcar"), "without a Machine that has it")

	w = newMCWorld(t)
	inPool(field, map[string]any{system: "mine"})(w)
	g.Expect(poolNamed(w.plan(), "workers").NodeLabels).To(HaveKeyWithValue(system, "mine"), "the pool's own value")
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
	vm := func(p *Plan, name string) *infrav1.KubeVirtMachine { return poolNamed(p, name).Machine.KubeVirt }
	g.Expect(vm(p, "workers").Labels).To(And(HaveKeyWithValue("machine", "workers"), HaveKeyWithValue("cluster.x-k8s.io/role", "worker")))
	g.Expect(vm(p, "workers").Annotations).To(And(HaveKeyWithValue("example.com/rack", "a"), HaveLen(4)))
	g.Expect(p.Findings).To(ContainElement(And(HaveField("Severity", Lost), HaveField("Field", field), HaveField("Message", ContainSubstring("cdi.kubevirt.io")))))
	p = w.plan(field)
	g.Expect(p.Blocked()).To(Equal(0))
	g.Expect(refusals(t, w.target, p)).To(BeEmpty())
	g.Expect(vm(p, "small").Annotations).To(HaveKeyWithValue("kubevirt.io/placePCIDevicesOnRootComplex", "true"))
	g.Expect(vm(p, "workers").Annotations).NotTo(HaveKey("kubevirt.io/placePCIDevicesOnRootComplex"))
}
