// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Defaults of machine-controller-manager's flags, which hold where a Machine does not say.
const (
	mcmDrainTimeout    = 2 * time.Hour
	mcmHealthTimeout   = 10 * time.Minute
	mcmCreationTimeout = 20 * time.Minute
)

// mcmConditions are the Node conditions that its flag --node-conditions names by default.
const mcmConditions = "KernelDeadlock,ReadonlyFilesystem,DiskPressure,NetworkUnavailable"

// mcmPlacement is the annotation with the placement of a machine on AWS, as EC2's API has it.
const mcmPlacement = "machine.sapcloud.io/awsPlacement"

var mcmAPI = schema.GroupVersion{Group: "machine.sapcloud.io", Version: "v1alpha1"}

// MCM is what machine-controller-manager has in one namespace, and the Nodes of its cluster.
type MCM struct {
	Deployments, Sets, Machines, Classes []unstructured.Unstructured
	Nodes                                []corev1.Node
	// Autoscalers are the Deployments of cluster-autoscalers that may scale the pools.
	Autoscalers []appsv1.Deployment
}

// ReadMCM reads a Source, as System.Read.
func ReadMCM(ctx context.Context, old client.Reader, namespace string, workload client.Reader) (Source, error) {
	m := &MCM{}
	for kind, items := range map[string]*[]unstructured.Unstructured{
		"MachineDeployment": &m.Deployments, "MachineSet": &m.Sets, "Machine": &m.Machines, "MachineClass": &m.Classes,
	} {
		if err := read(ctx, old, namespace, mcmAPI, kind, items); err != nil {
			return nil, err
		}
	}
	var err error
	if m.Nodes, err = nodesOf(ctx, workload); err != nil {
		return nil, err
	}
	m.Autoscalers, err = deploymentsOf(ctx, old, namespace, autoscaler)
	return m, err
}

// read lists the objects of a kind.
func read(ctx context.Context, old client.Reader, namespace string, api schema.GroupVersion, kind string,
	items *[]unstructured.Unstructured) error {
	list := listOf(api, kind)
	if err := old.List(ctx, list, client.InNamespace(namespace)); err != nil {
		return fmt.Errorf("listing the %ss of %s: %w", kind, api.Group, err)
	}
	*items = list.Items
	return nil
}

func nodesOf(ctx context.Context, workload client.Reader) ([]corev1.Node, error) {
	nodes := &corev1.NodeList{}
	if err := workload.List(ctx, nodes); err != nil {
		return nil, fmt.Errorf("listing the Nodes: %w", err)
	}
	return nodes.Items, nil
}

// These types have the fields of machine-controller-manager's API, v0.63. Fields that they do not
// have are refused.
type (
	mcmDeploymentSpec struct {
		Replicas                     int32                 `json:"replicas"`
		Selector                     *metav1.LabelSelector `json:"selector"`
		Template                     mcmTemplate           `json:"template"`
		Strategy                     mcmStrategy           `json:"strategy"`
		MinReadySeconds              int32                 `json:"minReadySeconds"`
		RevisionHistoryLimit         *int32                `json:"revisionHistoryLimit"`
		Paused                       bool                  `json:"paused"`
		RollbackTo                   *struct{ Revision int64 }
		ProgressDeadlineSeconds      *int32 `json:"progressDeadlineSeconds"`
		AutoPreserveFailedMachineMax *int32 `json:"autoPreserveFailedMachineMax"`
	}
	mcmStrategy struct {
		Type          string `json:"type"`
		RollingUpdate *struct {
			MaxUnavailable *intstr.IntOrString `json:"maxUnavailable"`
			MaxSurge       *intstr.IntOrString `json:"maxSurge"`
		} `json:"rollingUpdate"`
		InPlaceUpdate map[string]any `json:"inPlaceUpdate"`
	}
	mcmSetSpec struct {
		Replicas                     int32                 `json:"replicas"`
		Selector                     *metav1.LabelSelector `json:"selector"`
		MachineClass                 any                   `json:"machineClass"` // deprecated, and not read
		Template                     mcmTemplate           `json:"template"`
		MinReadySeconds              int32                 `json:"minReadySeconds"`
		AutoPreserveFailedMachineMax *int32                `json:"autoPreserveFailedMachineMax"`
	}
	mcmTemplate struct {
		metav1.ObjectMeta `json:"metadata"`
		Spec              mcmMachineSpec `json:"spec"`
	}
	mcmMachineSpec struct {
		Class        mcmClassRef `json:"class"`
		ProviderID   string      `json:"providerID"`
		NodeTemplate struct {
			metav1.ObjectMeta `json:"metadata"`
			Spec              corev1.NodeSpec `json:"spec"`
		} `json:"nodeTemplate"`
		DrainTimeout           *metav1.Duration `json:"drainTimeout"`
		HealthTimeout          *metav1.Duration `json:"healthTimeout"`
		CreationTimeout        *metav1.Duration `json:"creationTimeout"`
		InPlaceUpdateTimeout   *metav1.Duration `json:"inPlaceUpdateTimeout"`
		MachinePreserveTimeout *metav1.Duration `json:"machinePreserveTimeout"`
		DisableHealthTimeout   bool             `json:"disableHealthTimeout"`
		MaxEvictRetries        *int32           `json:"maxEvictRetries"`
		NodeConditions         *string          `json:"nodeConditions"`
	}
	mcmClassRef struct {
		APIGroup  string `json:"apiGroup"`
		Kind      string `json:"kind"`
		Name      string `json:"name"`
		Namespace string `json:"namespace"` // in all of its samples, and in no version's API
	}
)

// decode reads a part of an object into one of the types, and refuses what the type does not have.
func (s findings) decode(from map[string]any, field string, into any) bool {
	data, err := json.Marshal(from[field])
	if err == nil {
		d := json.NewDecoder(bytes.NewReader(data))
		d.DisallowUnknownFields()
		err = d.Decode(into)
	}
	if err != nil {
		s.addRefused(field, "%s: this version of Drover does not support it", strings.TrimPrefix(err.Error(), "json: "))
	}
	return err == nil
}

// Plan implements Source.
func (m *MCM) Plan(target *Target, drop []string) *Plan {
	p := &Plan{drop: drop}
	for i := range m.Deployments {
		if pool := m.pool(p, &m.Deployments[i], target); pool != nil {
			p.Pools = append(p.Pools, *pool)
		}
	}
	p.checkUnowned(m.Deployments, m.Sets, m.Machines)
	m.classes(p, target)
	for i := range p.Pools {
		for j := range p.Pools[i].Machines {
			one := &p.Pools[i].Machines[j]
			if one.Identity = p.Pools[i].cluster; p.Pools[i].named {
				one.OwnedResources = []string{one.Name}
			}
		}
	}
	p.versions()
	p.joinable(target)
	p.checkDrop()
	return p
}

// checkUnowned sorts the pools, and refuses what belongs to none.
func (p *Plan) checkUnowned(deployments, sets, machines []unstructured.Unstructured) {
	slices.SortFunc(p.Pools, func(a, b Pool) int { return strings.Compare(a.Name, b.Name) })
	for i := range sets {
		if set := &sets[i]; !owned(set, deployments) {
			p.findingsFor("MachineSet", set.GetName()).addRefused("", "it belongs to no MachineDeployment: delete it, or let one adopt it")
		}
	}
	for i := range machines {
		p.known = append(p.known, machines[i].GetName())
		if machine := &machines[i]; !owned(machine, sets) {
			p.findingsFor("Machine", machine.GetName()).addRefused("", "it belongs to no MachineSet: delete it, or let one adopt it")
		}
	}
}

// owned reports whether one of the owners controls o.
func owned(o *unstructured.Unstructured, owners []unstructured.Unstructured) bool {
	ref := metav1.GetControllerOf(o)
	return ref != nil && slices.ContainsFunc(owners, func(x unstructured.Unstructured) bool { return x.GetUID() == ref.UID })
}

// of returns those of the objects that owner controls.
func of(owner *unstructured.Unstructured, objects []unstructured.Unstructured) (owned []*unstructured.Unstructured) {
	for i := range objects {
		if metav1.IsControlledBy(&objects[i], owner) {
			owned = append(owned, &objects[i])
		}
	}
	slices.SortFunc(owned, func(a, b *unstructured.Unstructured) int { return strings.Compare(a.GetName(), b.GetName()) })
	return owned
}

// pool plans one MachineDeployment, or returns nil if it can't be read.
func (m *MCM) pool(p *Plan, d *unstructured.Unstructured, target *Target) *Pool {
	s := p.findingsFor("MachineDeployment", d.GetName())
	spec := &mcmDeploymentSpec{}
	if !s.decode(d.Object, "spec", spec) {
		return nil
	}
	s.settled(d)
	pool := &Pool{
		Name: d.GetName(), Replicas: spec.Replicas, Paused: spec.Paused, MinReadySeconds: spec.MinReadySeconds,
		Template: spec.Template.Spec.Class.Name,
	}
	s.strategy(pool, &spec.Strategy)
	if spec.RollbackTo != nil {
		s.addRefused("spec.rollbackTo", "a rollback is under way")
	}
	if spec.RevisionHistoryLimit != nil {
		s.addNote("spec.revisionHistoryLimit", "Cluster API keeps no history of MachineSets that it does not need")
	}
	if spec.ProgressDeadlineSeconds != nil {
		s.addNote("spec.progressDeadlineSeconds", "Cluster API has no deadline for a rollout")
	}
	if ptr.Deref(spec.AutoPreserveFailedMachineMax, 0) > 0 {
		s.addLost("spec.autoPreserveFailedMachineMax", "Cluster API keeps no failed machines")
	}
	s.template(pool, &spec.Template.Spec, m.placed(pool.Template))
	s.sized(pool, m.size(d))
	set, setSpec := m.activeSet(s, d)
	if set == nil {
		return pool
	}
	pool.Set = set.GetName()
	if setSpec.Replicas != spec.Replicas {
		s.addRefused("spec.replicas", "it is %d, and %d in MachineSet %s: wait until the pool is scaled", spec.Replicas, setSpec.Replicas,
			set.GetName())
	}
	if !equality.Semantic.DeepEqual(setSpec.Template.Spec, spec.Template.Spec) {
		s.addRefused("spec.template", "it differs from that of MachineSet %s: wait until the pool is rolled out", set.GetName())
	}
	machines := of(set, m.Machines)
	if len(machines) != int(spec.Replicas) {
		s.addRefused("spec.replicas", "it is %d, and MachineSet %s has %d Machines: wait until the pool is scaled", spec.Replicas, set.GetName(),
			len(machines))
	}
	for _, machine := range machines {
		if one := m.machine(p, machine, &spec.Template.Spec, target); one != nil {
			pool.Machines = append(pool.Machines, *one)
		}
	}
	return pool
}

// sized sets the limits of the pool's autoscaler, if it has one.
func (s findings) sized(pool *Pool, size *Size) {
	if pool.Size = size; size != nil {
		s.addNote("", "its cluster-autoscaler keeps it between %s and %s machines: commit writes that into its annotations", size.Min, size.Max)
	}
}

// size returns the limits that a flag of a cluster-autoscaler sets for a pool, or nil. The flag is
// --nodes=MIN:MAX:NAMESPACE.NAME.
func (m *MCM) size(d *unstructured.Unstructured) *Size {
	for i := range m.Autoscalers {
		for _, c := range m.Autoscalers[i].Spec.Template.Spec.Containers {
			for _, arg := range slices.Concat(c.Command, c.Args) {
				value, is := strings.CutPrefix(arg, "--nodes=")
				parts := strings.SplitN(value, ":", 3)
				if is && len(parts) == 3 && parts[2] == d.GetNamespace()+"."+d.GetName() {
					return &Size{Min: parts[0], Max: parts[1]}
				}
			}
		}
	}
	return nil
}

// settled refuses objects that are frozen or being deleted.
func (s findings) settled(o *unstructured.Unstructured) {
	if o.GetDeletionTimestamp() != nil {
		s.addRefused("metadata.deletionTimestamp", "it is being deleted")
	}
	if o.GetLabels()["freeze"] == "True" {
		s.addRefused("metadata.labels", "it is frozen, because it had too many machines: wait until the label freeze is gone")
	}
}

// activeSet returns the MachineSet that has the pool's machines, or nil. More than one is refused.
func (m *MCM) activeSet(s findings, d *unstructured.Unstructured) (active *unstructured.Unstructured, spec *mcmSetSpec) {
	var names []string
	for _, set := range of(d, m.Sets) {
		one, about := &mcmSetSpec{}, s.plan.findingsFor("MachineSet", set.GetName())
		if !about.decode(set.Object, "spec", one) {
			continue
		}
		if one.Replicas == 0 && len(of(set, m.Machines)) == 0 {
			continue // of an earlier revision, or of a pool of 0
		}
		about.settled(set)
		names = append(names, set.GetName())
		active, spec = set, one
	}
	if len(names) > 1 {
		s.addRefused("", "%d MachineSets have machines, %s: wait until the pool is rolled out", len(names), strings.Join(names, " and "))
		return nil, nil
	}
	return active, spec
}

func (s findings) strategy(pool *Pool, strategy *mcmStrategy) {
	switch strategy.Type {
	case "", "RollingUpdate":
		if r := strategy.RollingUpdate; r != nil {
			pool.MaxSurge, pool.MaxUnavailable = r.MaxSurge, r.MaxUnavailable
		}
	case "Recreate":
		pool.MaxSurge, pool.MaxUnavailable = ptr.To(intstr.FromInt32(0)), ptr.To(intstr.FromString("100%"))
		s.addNote("spec.strategy.type", "Recreate becomes maxSurge 0 and maxUnavailable 100%%, which also deletes all machines first")
	default:
		s.addLost("spec.strategy.type", "%s updates machines in place; Drover replaces them", strategy.Type)
	}
}

// placed reports whether the annotation mcmPlacement places the machines of a class: on AWS, if the
// class has no placement of its own
// (https://github.com/gardener/machine-controller-manager-provider-aws/blob/master/pkg/aws/core.go).
func (m *MCM) placed(class string) bool {
	return slices.ContainsFunc(m.Classes, func(c unstructured.Unstructured) bool {
		provider, _, _ := unstructured.NestedString(c.Object, "provider")
		placement, _, _ := unstructured.NestedFieldNoCopy(c.Object, "providerSpec", "placement")
		return c.GetName() == class && provider == "AWS" && placement == nil
	})
}

// template maps what the pool says of each machine. If placed, an annotation says where it is, too.
func (s findings) template(pool *Pool, t *mcmMachineSpec, placed bool) {
	const at = "spec.template.spec."
	duration := func(d *metav1.Duration, otherwise time.Duration) time.Duration {
		if d == nil {
			return otherwise
		}
		return d.Duration
	}
	pool.DrainTimeout = duration(t.DrainTimeout, mcmDrainTimeout)
	if !t.DisableHealthTimeout {
		pool.Health = mcmHealth(duration(t.HealthTimeout, mcmHealthTimeout), ptr.Deref(t.NodeConditions, mcmConditions))
		pool.Health.Checks.NodeStartupTimeoutSeconds = seconds(duration(t.CreationTimeout, mcmCreationTimeout))
	}
	if t.MaxEvictRetries != nil {
		s.addNote(at+"maxEvictRetries", "Cluster API evicts until the drain timeout")
	}
	if t.InPlaceUpdateTimeout != nil {
		s.addNote(at+"inPlaceUpdateTimeout", "Drover replaces machines")
	}
	if t.MachinePreserveTimeout != nil {
		s.addNote(at+"machinePreserveTimeout", "the annotation cluster.x-k8s.io/skip-remediation keeps a machine, without a time limit")
	}
	if t.Class.Namespace != "" {
		s.addNote(at+"class.namespace", "machine-controller-manager ignores it")
	}
	node := &t.NodeTemplate
	s.nodeLabels(pool, at+"nodeTemplate.metadata.labels", node.Labels)
	pool.NodeTaints = slices.Clone(node.Spec.Taints)
	for i := range pool.NodeTaints {
		pool.NodeTaints[i].TimeAdded = nil
	}
	annotations := maps.Clone(node.Annotations)
	if placed && annotations[mcmPlacement] != "" {
		s.addLost(at+"nodeTemplate.metadata.annotations."+mcmPlacement,
			"EC2 does not place new machines as it says: set tenancy, hostID or placementGroup in the next template")
		delete(annotations, mcmPlacement)
	}
	if len(annotations) > 0 {
		s.addLost(at+"nodeTemplate.metadata.annotations", "new Nodes do not get the annotations %s",
			strings.Join(slices.Sorted(maps.Keys(annotations)), ", "))
	}
	rest := node.Spec.DeepCopy()
	rest.Taints = nil
	if !equality.Semantic.DeepEqual(*rest, corev1.NodeSpec{}) {
		s.addLost(at+"nodeTemplate.spec", "of this, new Nodes get only the taints")
	}
}

// mcmHealth finds a Node unhealthy that for some time is not Ready, says nothing, or has one of the
// conditions, which commas separate.
func mcmHealth(after time.Duration, conditions string) *clusterv1.MachineHealthCheckSpec {
	check := &clusterv1.MachineHealthCheckSpec{}
	add := func(kind corev1.NodeConditionType, is corev1.ConditionStatus) {
		check.Checks.UnhealthyNodeConditions = append(check.Checks.UnhealthyNodeConditions,
			clusterv1.UnhealthyNodeCondition{Type: kind, Status: is, TimeoutSeconds: seconds(after)},
			clusterv1.UnhealthyNodeCondition{Type: kind, Status: corev1.ConditionUnknown, TimeoutSeconds: seconds(after)})
	}
	add(corev1.NodeReady, corev1.ConditionFalse)
	for kind := range strings.SplitSeq(conditions, ",") {
		if kind != "" {
			add(corev1.NodeConditionType(kind), corev1.ConditionTrue)
		}
	}
	return check
}

// versions sets each pool's version to that of most of its Nodes, or of all pools' Nodes.
func (p *Plan) versions() {
	all := map[string]int{}
	for i := range p.Pools {
		for _, m := range p.Pools[i].Machines {
			all[m.Version]++
		}
	}
	for i := range p.Pools {
		pool := &p.Pools[i]
		own := map[string]int{}
		for _, m := range pool.Machines {
			own[m.Version]++
		}
		s := p.findingsFor("MachineDeployment", pool.Name)
		if len(own) > 1 {
			s.addNote("", "its Nodes have the versions %s; the next rollout makes them equal", strings.Join(slices.Sorted(maps.Keys(own)), ", "))
		}
		if pool.Version = most(own); pool.Version == "" {
			pool.Version = most(all)
		}
		if pool.Version == "" {
			s.addRefused("", "no Node says which version its machines have: scale one pool to 1 first")
		}
	}
}

// most returns the key with the highest count, and the last in order of those.
func most(count map[string]int) (key string) {
	for _, k := range slices.Sorted(maps.Keys(count)) {
		if count[k] >= count[key] {
			key = k
		}
	}
	return key
}
