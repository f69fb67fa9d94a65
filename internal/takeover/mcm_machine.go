// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

const mcmPreserve = "node.machine.sapcloud.io/preserve"

// machine plans one Machine. It returns nil if no VM can be named for it.
func (m *MCM) machine(p *Plan, o *unstructured.Unstructured, template *mcmMachineSpec, target *Target) *Machine {
	s := p.findingsFor("Machine", o.GetName())
	spec := &mcmMachineSpec{}
	if !s.decode(o.Object, "spec", spec) {
		return nil
	}
	if o.GetDeletionTimestamp() != nil {
		s.addRefused("metadata.deletionTimestamp", "it is being deleted: wait until it is gone")
	}
	if o.GetLabels()["force-deletion"] == "True" {
		s.addRefused("metadata.labels", "it is to be deleted by force")
	}
	if phase, _, _ := unstructured.NestedString(o.Object, "status", "currentStatus", "phase"); phase != "Running" {
		s.addRefused("status.currentStatus.phase", "it is %q: wait until it is Running, or delete it", phase)
	}
	if spec.Class.Name != template.Class.Name {
		s.addRefused("spec.class", "it is %s, and its pool has %s: wait until the pool is rolled out", spec.Class.Name, template.Class.Name)
	}
	name := o.GetLabels()["node"]
	if name == "" {
		s.addRefused("metadata.labels", "the label node is missing: it has not become a Node")
		return nil
	}
	at := slices.IndexFunc(m.Nodes, func(n corev1.Node) bool { return n.Name == name })
	if at < 0 {
		s.addRefused("metadata.labels", "its Node %s does not exist", name)
		return nil
	}
	node := &m.Nodes[at]
	machine := s.machineOf(o, node, target)
	if machine == nil {
		return nil
	}
	if own := spec.ProviderID[strings.LastIndex(spec.ProviderID, "/")+1:]; own != machine.instanceName() {
		s.addRefused("spec.providerID", "it is %q, but its Node %s has %q: they are not the same VM", spec.ProviderID, name, node.Spec.ProviderID)
	}
	return machine
}

// nodeOf returns the Node that a Machine's status names, or nil if it does not exist.
func (s findings) nodeOf(o *unstructured.Unstructured, nodes []corev1.Node) *corev1.Node {
	name, _, _ := unstructured.NestedString(o.Object, "status", "nodeRef", "name")
	at := slices.IndexFunc(nodes, func(n corev1.Node) bool { return n.Name == name })
	if at < 0 {
		s.addRefused("status.nodeRef", "its Node %q does not exist: wait until it is there", name)
		return nil
	}
	return &nodes[at]
}

// machineOf plans the Machine of a Node. It returns nil if the Node names no VM.
func (s findings) machineOf(o *unstructured.Unstructured, node *corev1.Node, target *Target) *Machine {
	s.node(o, node)
	machine := &Machine{
		Name: o.GetName(), Node: node.Name, ProviderID: node.Spec.ProviderID, Version: node.Status.NodeInfo.KubeletVersion,
		Instance: target.instance(node.Spec.ProviderID),
	}
	if machine.Instance == "" {
		s.addRefused("", "its Node %s has the provider ID %q, which names no VM of this cloud", node.Name, node.Spec.ProviderID)
		return nil
	}
	return machine
}

// node refuses a machine because of its Node.
func (s findings) node(o *unstructured.Unstructured, node *corev1.Node) {
	if node.DeletionTimestamp != nil {
		s.addRefused("", "its Node %s is being deleted", node.Name)
	}
	ready := slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
	if !ready {
		s.addRefused("", "its Node %s is not Ready", node.Name)
	}
	for _, value := range []string{node.Annotations[mcmPreserve], o.GetAnnotations()[mcmPreserve]} {
		if value != "" && value != "false" {
			s.addRefused("metadata.annotations", "%s is %q: end that first", mcmPreserve, value)
			break
		}
	}
	for _, label := range []string{"node.machine.sapcloud.io/selected-for-update", "node.machine.sapcloud.io/candidate-for-update"} {
		if _, has := node.Labels[label]; has {
			s.addRefused("", "its Node %s has the label %s: it is being updated in place", node.Name, label)
		}
	}
}
