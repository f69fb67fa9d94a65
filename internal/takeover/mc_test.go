// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/drover-io/drover/cloud/tagging"
)

// mcWorld is what a plan for machine-controller is made from.
type mcWorld struct {
	*MC
	vms    []tagging.Instance
	target *Target
}

func newMCWorld(t *testing.T) *mcWorld {
	t.Helper()
	w := readMC(t, "mc", newTarget())
	w.vms = vmsOf(w.Machines, func(m *unstructured.Unstructured) map[string]string {
		return map[string]string{"Machine-UID": string(m.GetUID())}
	})
	return w
}

// readMC reads a fixture's objects of machine-controller.
func readMC(t *testing.T, fixture string, target *Target) *mcWorld {
	t.Helper()
	w := &mcWorld{MC: &MC{}, target: target}
	w.Nodes = readFixture(t, fixture, map[string]*[]unstructured.Unstructured{
		"MachineDeployment": &w.Deployments, "MachineSet": &w.Sets, "Machine": &w.Machines,
	})
	return w
}

// inPool changes a field of the first pool, and of its MachineSet.
func inPool(path string, to any) func(*mcWorld) {
	return func(w *mcWorld) {
		set(&w.Deployments[0], path, to)
		set(&w.Sets[0], path, to)
	}
}

func (w *mcWorld) plan(drop ...string) *Plan {
	return planOf(w.MC, w.vms, w.target, drop)
}

// TestFindingsOfMachineController tests each reason that stops a takeover, and each change that a
// plan notes: it is the only finding more than those of the fixture.
func TestFindingsOfMachineController(t *testing.T) {
	t.Parallel()
	deployment := func(path string, value any) func(*mcWorld) {
		return func(w *mcWorld) { set(&w.Deployments[0], path, value) }
	}
	both := func(path string, value any) func(*mcWorld) {
		return func(w *mcWorld) {
			set(&w.Deployments[0], "spec.template.spec."+path, value)
			set(&w.Sets[0], "spec.template.spec."+path, value)
		}
	}
	machine := func(path string, value any) func(*mcWorld) {
		return func(w *mcWorld) { set(&w.Machines[0], path, value) }
	}
	const (
		pool, one, first = "MachineDeployment workers", "Machine workers-6d4f5-abcde", "MachineSet workers-6d4f5"
		deleted          = "2026-11-01T10:00:00Z"
		value            = "providerSpec.value"
		cloudSpec        = value + ".cloudProviderSpec"
		at               = "spec.template.spec."
	)
	secret := map[string]any{"secretKeyRef": map[string]any{"namespace": "kube-system", "name": "x", "key": "y"}}
	testFindings(t, newMCWorld, []finding[*mcWorld]{
		// pools
		{"unknown field", deployment("spec.surprise", "x"), Refused, pool, "spec", `unknown field "surprise"`},
		{"deleted", deployment("metadata.deletionTimestamp", deleted), Refused, pool, "metadata.deletionTimestamp", "being deleted"},
		{"tuned kubelet", deployment("metadata.annotations", map[string]any{
			"k8c.io/operating-system-profile": "osp-ubuntu", "v1.kubelet-config.machine-controller.kubermatic.io/MaxPods": "50",
			"cluster.k8s.io/cluster-api-autoscaler-node-group-min-size": "1", "cluster.k8s.io/cluster-api-autoscaler-node-group-max-size": "5",
		}), Noted, pool, "metadata.annotations", "MaxPods"},
		{"another template", deployment(at+"versions.kubelet", "1.34.0"), Refused, pool, "spec.template", "rolled out"},
		{"two sets", func(w *mcWorld) { set(&w.Sets[1], "spec.replicas", int64(1)) }, Refused, pool, "", "2 MachineSets"},
		{"set deleted", func(w *mcWorld) { set(&w.Sets[0], "metadata.deletionTimestamp", deleted) }, Refused, first, "metadata.deletionTimestamp",
			"being deleted"},
		{"order of deletions", func(w *mcWorld) { set(&w.Sets[0], "spec.deletePolicy", "Oldest") }, Noted, first, "spec.deletePolicy", "Oldest"},
		{"set of nobody", func(w *mcWorld) { w.Sets[1].SetOwnerReferences(nil) }, Refused, "MachineSet workers-85c9b", "",
			"belongs to no MachineDeployment"},
		{"a machine more", func(w *mcWorld) {
			set(&w.Deployments[0], "spec.replicas", int64(3))
			set(&w.Sets[0], "spec.replicas", int64(3))
		}, Refused, pool, "spec.replicas", "has 2 Machines"},
		{"annotations", both("metadata.annotations", map[string]any{"a": "b"}), Lost, pool, at + "metadata.annotations",
			"do not get the annotations a"},
		{"another cloud", both(value+".cloudProvider", "hetzner"), Refused, pool, at + value + ".cloudProvider", `"hetzner"`},
		{"unknown field of all clouds", both(value+".surprise", "x"), Refused, pool, at + value, `unknown field "surprise"`},
		{"CA of SSH", both(value+".caPublicKey", "x"), Lost, pool, at + value + ".caPublicKey", "no certificates"},
		{"cloud config", both(value+".overwriteCloudConfig", "x"), Lost, pool, at + value + ".overwriteCloudConfig",
			"no built-in cloud provider"},
		{"static network", both(value+".network.gateway", "10.0.0.1"), Lost, pool, at + value + ".network", "from the subnet"},
		// AWS
		{"unknown field of AWS", both(cloudSpec+".surprise", "x"), Refused, pool, at + cloudSpec, `unknown field "surprise"`},
		{"region", both(cloudSpec+".region", "eu-west-1"), Refused, pool, at + cloudSpec + ".region", `"eu-west-1"`},
		{"profile from a Secret", both(cloudSpec+".instanceProfile", secret), Refused, pool, at + cloudSpec + ".instanceProfile",
			"comes from a Secret"},
		// machines
		{"unknown field of a machine", machine("spec.surprise", "x"), Refused, one, "spec", `unknown field "surprise"`},
		{"machine deleted", machine("metadata.deletionTimestamp", deleted), Refused, one, "metadata.deletionTimestamp", "is being deleted"},
		{"failed", machine("status.errorReason", "CreateError"), Refused, one, "status.errorReason", "CreateError"},
		{"ignored", machine("metadata.annotations", map[string]any{"machine-controller.kubermatic.io/initializers": "x"}), Refused, one,
			"metadata.annotations", "initializers"},
		{"no Node", machine("status.nodeRef", nil), Refused, one, "status.nodeRef", "does not exist"},
		{"another's Node", func(w *mcWorld) { w.Nodes[0].Labels["machine-controller/owned-by"] = "x" }, Refused, one, "status.nodeRef",
			"another Machine"},
		{"Node not Ready", func(w *mcWorld) { w.Nodes[0].Status.Conditions[0].Status = corev1.ConditionUnknown }, Refused, one, "",
			"is not Ready"},
		{"Node deleted", func(w *mcWorld) { now := metav1.Now(); w.Nodes[0].DeletionTimestamp = &now }, Refused, one, "", "is being deleted"},
		{"provider ID of no cloud", func(w *mcWorld) { w.Nodes[0].Spec.ProviderID = "kubermatic://aws/uid-a" }, Refused, one, "",
			"names no VM of this cloud"},
		{"not the same VM", machine("spec.providerID", "aws:///eu-central-1a/i-0000000000000000b"), Refused, one, "spec.providerID",
			"not the same VM"},
		// VMs
		{"no VM", func(w *mcWorld) { w.vms = w.vms[1:] }, Refused, one, "", "no VM i-0000000000000000a"},
		{"VM of another Machine", func(w *mcWorld) { w.vms[0].Tags["Machine-UID"] = "x" }, Refused, one, "",
			`the tag Machine-UID of another Machine, "x"`},
		{"another image", func(w *mcWorld) { w.vms[0].ImageID = "ami-0" }, Noted, one, "", "the next rollout uses"},
	})
	t.Run("persistent spot request", func(t *testing.T) {
		t.Parallel()
		w := newMCWorld(t)
		for _, o := range []*unstructured.Unstructured{&w.Deployments[1], &w.Sets[2]} {
			set(o, at+cloudSpec+".spotInstanceConfig.persistentRequest", true)
		}
		NewWithT(t).Expect(w.plan().Findings).To(ContainElement(And(
			HaveField("Severity", Refused), HaveField("Field", at+cloudSpec+".spotInstanceConfig.persistentRequest"),
		)))
	})
}
