// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

var mcAPI = schema.GroupVersion{Group: "cluster.k8s.io", Version: "v1alpha1"}

// mcDrainTimeout is the default of machine-controller's flag -skip-eviction-after.
const mcDrainTimeout = 2 * time.Hour

// These are the tag keys with the UID of the VM's Machine, on AWS and on OpenStack. By this alone,
// machine-controller recognizes a VM.
const (
	mcKey       = "Machine-UID"
	mcServerKey = "machine-uid"
)

// MC is what machine-controller has in one namespace, and the Nodes of its cluster.
type MC struct {
	Deployments, Sets, Machines []unstructured.Unstructured
	Nodes                       []corev1.Node
}

// ReadMC reads a Source, as System.Read.
func ReadMC(ctx context.Context, old client.Reader, namespace string, workload client.Reader) (Source, error) {
	m := &MC{}
	for kind, items := range map[string]*[]unstructured.Unstructured{
		"MachineDeployment": &m.Deployments, "MachineSet": &m.Sets, "Machine": &m.Machines,
	} {
		if err := read(ctx, old, namespace, mcAPI, kind, items); err != nil {
			return nil, err
		}
	}
	var err error
	m.Nodes, err = nodesOf(ctx, workload)
	return m, err
}

// These types have the fields of machine-controller's API, v1.62. Fields that they do not have are
// refused.
type (
	mcDeploymentSpec struct {
		Replicas *int32                `json:"replicas"`
		Selector *metav1.LabelSelector `json:"selector"`
		Template mcTemplate            `json:"template"`
		Strategy *struct {
			Type          string `json:"type"`
			RollingUpdate *struct {
				MaxUnavailable *intstr.IntOrString `json:"maxUnavailable"`
				MaxSurge       *intstr.IntOrString `json:"maxSurge"`
			} `json:"rollingUpdate"`
		} `json:"strategy"`
		MinReadySeconds         *int32 `json:"minReadySeconds"`
		RevisionHistoryLimit    *int32 `json:"revisionHistoryLimit"`
		Paused                  bool   `json:"paused"`
		ProgressDeadlineSeconds *int32 `json:"progressDeadlineSeconds"`
	}
	mcSetSpec struct {
		Replicas        *int32                `json:"replicas"`
		MinReadySeconds int32                 `json:"minReadySeconds"`
		DeletePolicy    string                `json:"deletePolicy"`
		Selector        *metav1.LabelSelector `json:"selector"`
		Template        mcTemplate            `json:"template"`
	}
	mcTemplate struct {
		metav1.ObjectMeta `json:"metadata"`
		Spec              mcMachineSpec `json:"spec"`
	}
	mcMachineSpec struct {
		metav1.ObjectMeta `json:"metadata"`
		Name              string         `json:"name"`
		Taints            []corev1.Taint `json:"taints"`
		ProviderSpec      struct {
			Value map[string]any `json:"value"`
		} `json:"providerSpec"`
		Versions struct {
			Kubelet string `json:"kubelet"`
		} `json:"versions"`
		ProviderID string `json:"providerID"`
	}
	mcProviderConfig struct {
		SSHPublicKeys        []string       `json:"sshPublicKeys"`
		CAPublicKey          string         `json:"caPublicKey"`
		CloudProvider        string         `json:"cloudProvider"`
		CloudProviderSpec    map[string]any `json:"cloudProviderSpec"`
		OperatingSystem      string         `json:"operatingSystem"`
		OperatingSystemSpec  any            `json:"operatingSystemSpec"`
		OverwriteCloudConfig *string        `json:"overwriteCloudConfig"`
		Network              *struct {
			CIDR     string `json:"cidr"`
			Gateway  string `json:"gateway"`
			IPFamily string `json:"ipFamily"`
			DNS      struct {
				Servers []string `json:"servers"`
			} `json:"dns"`
		} `json:"network"`
	}
)

// Plan implements Source.
func (m *MC) Plan(target *Target, drop []string) *Plan {
	p := &Plan{drop: drop}
	for i := range m.Deployments {
		if pool := m.pool(p, &m.Deployments[i], target); pool != nil {
			p.Pools = append(p.Pools, *pool)
		}
	}
	p.checkUnowned(m.Deployments, m.Sets, m.Machines)
	p.versions()
	p.joinable(target)
	p.checkDrop()
	return p
}

// pool plans one MachineDeployment, or returns nil if it can't be read.
func (m *MC) pool(p *Plan, d *unstructured.Unstructured, target *Target) *Pool {
	s := p.findingsFor("MachineDeployment", d.GetName())
	spec := &mcDeploymentSpec{}
	if !s.decode(d.Object, "spec", spec) {
		return nil
	}
	if d.GetDeletionTimestamp() != nil {
		s.addRefused("metadata.deletionTimestamp", "it is being deleted")
	}
	pool := &Pool{
		Name: d.GetName(), Template: d.GetName(), Replicas: ptr.Deref(spec.Replicas, 1), Paused: spec.Paused,
		MinReadySeconds: ptr.Deref(spec.MinReadySeconds, 0), DrainTimeout: mcDrainTimeout,
	}
	if spec.Strategy != nil && spec.Strategy.RollingUpdate != nil {
		pool.MaxSurge, pool.MaxUnavailable = spec.Strategy.RollingUpdate.MaxSurge, spec.Strategy.RollingUpdate.MaxUnavailable
	}
	const size = "cluster.k8s.io/cluster-api-autoscaler-node-group-"
	if smallest, largest := d.GetAnnotations()[size+"min-size"], d.GetAnnotations()[size+"max-size"]; smallest != "" && largest != "" {
		s.sized(pool, &Size{Min: smallest, Max: largest})
	}
	for _, key := range slices.Sorted(maps.Keys(d.GetAnnotations())) {
		if strings.Contains(key, "machine-controller.kubermatic.io/") || strings.HasPrefix(key, "k8c.io/operating-system-profile") {
			s.addNote("metadata.annotations", "the DroverConfigTemplate must say what %s says", key)
		}
	}
	s.mcTemplate(pool, &spec.Template, target)
	set, setSpec := m.activeSet(s, d)
	if set == nil {
		return pool
	}
	pool.Set = set.GetName()
	if n := ptr.Deref(setSpec.Replicas, 1); n != pool.Replicas {
		s.addRefused("spec.replicas", "it is %d, and %d in MachineSet %s: wait until the pool is scaled", pool.Replicas, n, set.GetName())
	}
	if !equality.Semantic.DeepEqual(setSpec.Template.Spec, spec.Template.Spec) {
		s.addRefused("spec.template", "it differs from that of MachineSet %s: wait until the pool is rolled out", set.GetName())
	}
	if setSpec.DeletePolicy != "" && setSpec.DeletePolicy != "Random" {
		p.findingsFor("MachineSet", set.GetName()).addNote("spec.deletePolicy",
			"set spec.deletion.order of the MachineDeployment to %s after the takeover", setSpec.DeletePolicy)
	}
	machines := of(set, m.Machines)
	if len(machines) != int(pool.Replicas) {
		s.addRefused("spec.replicas", "it is %d, and MachineSet %s has %d Machines: wait until the pool is scaled", pool.Replicas, set.GetName(),
			len(machines))
	}
	s.added(pool, machines)
	for _, machine := range machines {
		if one := m.machine(p, machine, target); one != nil {
			p.address(machine, one, pool)
			if pool.role() == nameKey {
				one.Identity = "" // its name is compared anyway
			}
			pool.Machines = append(pool.Machines, *one)
		}
	}
	return pool
}

// activeSet returns the MachineSet that has the pool's machines, or nil. More than one is refused.
func (m *MC) activeSet(s findings, d *unstructured.Unstructured) (active *unstructured.Unstructured, spec *mcSetSpec) {
	var names []string
	for _, set := range of(d, m.Sets) {
		one, about := &mcSetSpec{}, s.plan.findingsFor("MachineSet", set.GetName())
		if !about.decode(set.Object, "spec", one) {
			continue
		}
		if ptr.Deref(one.Replicas, 1) == 0 && len(of(set, m.Machines)) == 0 {
			continue // of an earlier revision, or of a pool of 0
		}
		if set.GetDeletionTimestamp() != nil {
			about.addRefused("metadata.deletionTimestamp", "it is being deleted")
		}
		names = append(names, set.GetName())
		active, spec = set, one
	}
	if len(names) > 1 {
		s.addRefused("", "%d MachineSets have machines, %s: wait until the pool is rolled out", len(names), strings.Join(names, " and "))
		return nil, nil
	}
	return active, spec
}

// mcTemplate maps what the pool says of each machine.
func (s findings) mcTemplate(pool *Pool, template *mcTemplate, target *Target) {
	const at = "spec.template.spec."
	t := &template.Spec
	s.nodeLabels(pool, at+"metadata.labels", t.Labels)
	pool.NodeTaints = slices.Clone(t.Taints)
	if own := s.mcAnnotations(at+"metadata.annotations", t.Annotations, target); len(own) > 0 {
		s.addLost(at+"metadata.annotations", "new Nodes do not get the annotations %s", strings.Join(own, ", "))
	}
	config := &mcProviderConfig{}
	const value = at + "providerSpec.value"
	if !s.decode(map[string]any{value: t.ProviderSpec.Value}, value, config) {
		return
	}
	account := &target.Account.Spec
	same := map[string]bool{
		"aws": account.Cloud.AWS != nil, "azure": account.Cloud.Azure != nil, "gce": account.Cloud.GCP != nil,
		"kubevirt": account.Cloud.KubeVirt != nil, "openstack": account.Cloud.OpenStack != nil, "vsphere": account.Cloud.VSphere != nil,
	}
	if !same[config.CloudProvider] {
		s.addRefused(value+".cloudProvider", "it is %q: Drover takes over machines of AWS, Azure, Google Cloud, KubeVirt, OpenStack and vSphere, with a DroverAccount of the same cloud", config.CloudProvider)
		return
	}
	mcLabel(pool, "v1.machine-controller.kubermatic.io/operating-system", config.OperatingSystem)
	s.addNote(value+".operatingSystem", "it is %s: the DroverConfigTemplate must be for it, and say what operatingSystemSpec says",
		config.OperatingSystem)
	if len(config.SSHPublicKeys) > 0 {
		s.addNote(value+".sshPublicKeys", "the DroverConfigTemplate says which keys new machines accept")
	}
	if config.CAPublicKey != "" {
		s.addLost(value+".caPublicKey", "new machines accept no certificates for SSH")
	}
	if ptr.Deref(config.OverwriteCloudConfig, "") != "" {
		s.addLost(value+".overwriteCloudConfig", "kubelets have no built-in cloud provider any more")
	}
	family := ""
	if n := config.Network; n != nil {
		family = n.IPFamily
		if n.CIDR != "" || n.Gateway != "" || len(n.DNS.Servers) > 0 {
			s.addLost(value+".network", "new machines get their addresses and name servers from the subnet")
		}
	}
	switch {
	case account.Cloud.KubeVirt != nil:
		s.mcKubeVirt(pool, config, &template.ObjectMeta, target)
	case account.Cloud.OpenStack != nil:
		s.mcOpenStack(pool, config.CloudProviderSpec, target)
	case account.Cloud.VSphere != nil:
		s.mcVSphere(pool, config, target)
	case account.Cloud.Azure != nil:
		s.mcAzure(pool, config.CloudProviderSpec, config.OperatingSystem, family, target)
	case account.Cloud.GCP != nil:
		s.mcGCP(pool, config, family, target)
	default:
		s.mcAWS(pool, config.CloudProviderSpec, family, target)
	}
}

// mcLabel gives new Nodes a label that machine-controller itself gives each Machine, unless the
// pool has another value.
func mcLabel(pool *Pool, key, value string) {
	if _, has := pool.NodeLabels[key]; has || value == "" {
		return
	}
	if pool.NodeLabels == nil {
		pool.NodeLabels = map[string]string{}
	}
	pool.NodeLabels[key] = value
}

// added gives new Nodes the labels that all Machines of a pool have and the pool has not: those of
// machine-controller's webhook.
func (s findings) added(pool *Pool, machines []*unstructured.Unstructured) {
	const field = "spec.template.spec.metadata.labels"
	var common map[string]string
	for i, o := range machines {
		labels, _, _ := unstructured.NestedStringMap(o.Object, "spec", "metadata", "labels")
		if i == 0 {
			common = labels
		}
		maps.DeleteFunc(common, func(key, value string) bool {
			_, has := pool.NodeLabels[key]
			_, on := pool.MachineLabels[key]
			return has || on || labels[key] != value
		})
	}
	s.nodeLabels(pool, field, common)
	if len(common) > 0 {
		s.addNote(field, "new Nodes have %s, too, which the webhook has given all Machines", strings.Join(slices.Sorted(maps.Keys(common)), ", "))
	}
}

// text returns the value of a field, which must be in the MachineDeployment.
func (s findings) text(field string, v mcVar) string {
	if v.from {
		s.addRefused(field, "it comes from a Secret or a ConfigMap, which Drover does not read: the MachineDeployment must have the value")
	}
	return v.value
}

// machine plans one Machine. It returns nil if no VM can be named for it.
func (m *MC) machine(p *Plan, o *unstructured.Unstructured, target *Target) *Machine {
	s := p.findingsFor("Machine", o.GetName())
	spec := &mcMachineSpec{}
	if !s.decode(o.Object, "spec", spec) {
		return nil
	}
	if o.GetDeletionTimestamp() != nil {
		s.addRefused("metadata.deletionTimestamp", "it is being deleted: wait until it is gone")
	}
	if reason, _, _ := unstructured.NestedString(o.Object, "status", "errorReason"); reason != "" {
		s.addRefused("status.errorReason", "it is %s: delete the Machine, or wait until it is healthy", reason)
	}
	const initializers = "machine-controller.kubermatic.io/initializers"
	if o.GetAnnotations()[initializers] != "" {
		s.addRefused("metadata.annotations", "%s is set, so nobody looks after it: end that first", initializers)
	}
	node := s.nodeOf(o, m.Nodes)
	if node == nil {
		return nil
	}
	if owner, has := node.Labels["machine-controller/owned-by"]; has && owner != string(o.GetUID()) {
		s.addRefused("status.nodeRef", "its Node %s has the label of another Machine, %s", node.Name, owner)
	}
	machine := s.machineOf(o, node, target)
	if machine == nil {
		return nil
	}
	machine.Identity = string(o.GetUID())
	if own := spec.ProviderID[strings.LastIndex(spec.ProviderID, "/")+1:]; own != "" && own != machine.instanceName() {
		s.addRefused("spec.providerID", "it is %q, but its Node %s has %q: they are not the same VM", spec.ProviderID, node.Name,
			node.Spec.ProviderID)
	}
	return machine
}

// mcVar is a field that may come from elsewhere.
type mcVar struct {
	value string
	from  bool // a Secret or a ConfigMap
}

// UnmarshalJSON reads a text, a number, a truth value, or an object with a value or references. An
// empty reference is none.
func (v *mcVar) UnmarshalJSON(data []byte) error {
	var plain any
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber() // as it is written
	if err := d.Decode(&plain); err != nil {
		return err
	}
	if fields, is := plain.(map[string]any); is {
		for _, field := range []string{"secretKeyRef", "configMapKeyRef"} {
			ref, _ := fields[field].(map[string]any)
			name, _ := ref["name"].(string)
			key, _ := ref["key"].(string)
			v.from = v.from || name != "" && key != ""
		}
		plain = fields["value"]
	}
	switch is := plain.(type) {
	case string:
		v.value = is
	case json.Number:
		v.value = is.String()
	case bool:
		v.value = map[bool]string{true: "true", false: "false"}[is]
	}
	return nil
}
