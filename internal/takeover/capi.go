// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	kubeadmv1 "sigs.k8s.io/cluster-api/api/bootstrap/kubeadm/v1beta2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// These are the API versions of the provider for AWS, and of Cluster API.
var (
	capaAPI = schema.GroupVersion{Group: "infrastructure.cluster.x-k8s.io", Version: "v1beta2"}
	capiAPI = clusterv1.GroupVersion
)

// ClusterAPI is Cluster API with an infrastructure provider of one cloud. It goes on running, but
// the Cluster that has the pools is paused.
func ClusterAPI() System {
	cluster := new(string)
	return System{
		Name: "cluster-api", Cluster: cluster, api: capiAPI,
		Read: func(ctx context.Context, old client.Reader, namespace string, workload client.Reader) (Source, error) {
			return ReadCAPI(ctx, old, namespace, *cluster, workload)
		},
		kinds: slices.Concat(
			kindsOf(capaAPI, "AWSMachine"), kindsOf(capoServerAPI, "OpenStackServer"), kindsOf(capoAPI, "OpenStackMachine"),
			kindsOf(kubeadmv1.GroupVersion, "KubeadmConfig"),
			kindsOf(capiAPI, "Machine", "MachineSet", "MachineDeployment"),
		),
		finalizers: []string{
			"awsmachine.infrastructure.cluster.x-k8s.io",
			"openstackserver.infrastructure.cluster.x-k8s.io", "openstackmachine.infrastructure.cluster.x-k8s.io",
			clusterv1.MachineFinalizer, clusterv1.MachineSetFinalizer, clusterv1.MachineDeploymentFinalizer, metav1.FinalizerDeleteDependents,
		},
	}
}

// CAPI is what Cluster API and a provider have of one Cluster, and the Nodes of that.
type CAPI struct {
	Cluster unstructured.Unstructured
	// Deployments, Sets, Machines, Checks and Pools are Cluster API's own: Pools are MachinePools.
	Deployments, Sets, Machines, Checks, Pools []unstructured.Unstructured
	// Infrastructure is the provider's object of the Cluster, Templates are those of its machines,
	// VMs its machines, Servers what it makes from those on OpenStack, and Configs the bootstrap
	// provider's templates.
	Infrastructure, Templates, VMs, Servers, Configs []unstructured.Unstructured
	Nodes                                            []corev1.Node
}

// ReadCAPI reads a Source, as System.Read.
func ReadCAPI(ctx context.Context, old client.Reader, namespace, cluster string, workload client.Reader) (Source, error) {
	m := &CAPI{}
	m.Cluster.SetGroupVersionKind(capiAPI.WithKind("Cluster"))
	if err := old.Get(ctx, client.ObjectKey{Namespace: namespace, Name: cluster}, &m.Cluster); err != nil {
		return nil, fmt.Errorf("reading Cluster %s of %s: %w", cluster, namespace, err)
	}
	for kind, items := range map[schema.GroupVersionKind]*[]unstructured.Unstructured{
		capiAPI.WithKind("MachineDeployment"): &m.Deployments, capiAPI.WithKind("MachineSet"): &m.Sets, capiAPI.WithKind("Machine"): &m.Machines,
		capiAPI.WithKind("MachineHealthCheck"): &m.Checks, capiAPI.WithKind("MachinePool"): &m.Pools,
		capaAPI.WithKind("AWSCluster"): &m.Infrastructure, capaAPI.WithKind("AWSMachineTemplate"): &m.Templates,
		capaAPI.WithKind("AWSMachine"):       &m.VMs,
		capoAPI.WithKind("OpenStackCluster"): &m.Infrastructure, capoAPI.WithKind("OpenStackMachineTemplate"): &m.Templates,
		capoAPI.WithKind("OpenStackMachine"): &m.VMs, capoServerAPI.WithKind("OpenStackServer"): &m.Servers,
		kubeadmv1.GroupVersion.WithKind("KubeadmConfigTemplate"): &m.Configs,
	} {
		if err := readServed(ctx, old, namespace, kind, items); err != nil {
			return nil, err
		}
	}
	for _, items := range []*[]unstructured.Unstructured{&m.Deployments, &m.Sets, &m.Machines, &m.Checks, &m.Pools} {
		*items = slices.DeleteFunc(*items, func(o unstructured.Unstructured) bool {
			name, _, _ := unstructured.NestedString(o.Object, "spec", "clusterName")
			return name != cluster
		})
	}
	var err error
	m.Nodes, err = nodesOf(ctx, workload)
	return m, err
}

// readServed adds the objects of a kind, if the API server has the kind.
func readServed(ctx context.Context, old client.Reader, namespace string, kind schema.GroupVersionKind,
	items *[]unstructured.Unstructured) error {
	var more []unstructured.Unstructured
	err := read(ctx, old, namespace, kind.GroupVersion(), kind.Kind, &more)
	if meta.IsNoMatchError(err) {
		return nil
	}
	*items = append(*items, more...)
	return err
}

// Plan implements Source.
func (m *CAPI) Plan(target *Target, drop []string) *Plan {
	p := &Plan{drop: drop}
	p.checkCluster(&m.Cluster)
	for i := range m.Pools {
		p.findingsFor("MachinePool", m.Pools[i].GetName()).addRefused("",
			"its cloud keeps its machines at a number: replace it by a MachineDeployment first")
	}
	for i := range m.Deployments {
		if pool := m.pool(p, &m.Deployments[i], target); pool != nil {
			p.Pools = append(p.Pools, *pool)
		}
	}
	workers := slices.Clone(m.Machines)
	workers = slices.DeleteFunc(workers, func(o unstructured.Unstructured) bool {
		_, is := o.GetLabels()[clusterv1.MachineControlPlaneLabel]
		if is {
			p.findingsFor("Machine", o.GetName()).addNote("", "it is of the control plane: it stays with Cluster %s", m.Cluster.GetName())
		}
		return is
	})
	p.checkUnowned(m.Deployments, m.Sets, workers)
	for i := range m.VMs {
		p.known = append(p.known, m.VMs[i].GetName())
	}
	p.versions()
	p.joinable(target)
	p.checkDrop()
	return p
}

// checkCluster refuses Clusters whose machines can't be taken over now, or never.
func (p *Plan) checkCluster(cluster *unstructured.Unstructured) {
	s := p.findingsFor("Cluster", cluster.GetName())
	s.checkPause(cluster)
	if cluster.GetDeletionTimestamp() != nil {
		s.addRefused("metadata.deletionTimestamp", "it is being deleted")
	}
	spec := &clusterv1.ClusterSpec{}
	if !s.decode(cluster.Object, "spec", spec) {
		return
	}
	if spec.Topology.IsDefined() {
		s.addRefused("spec.topology", "its ClusterClass would make the pools again")
	}
	if strings.Contains(spec.InfrastructureRef.Kind, "Managed") || strings.Contains(spec.ControlPlaneRef.Kind, "Managed") {
		s.addRefused("spec.controlPlaneRef", "its cloud manages it, %s: only machines of a Cluster with an AWSCluster or an OpenStackCluster can be taken over", spec.ControlPlaneRef.Kind)
	}
}

// checkPause refuses a Cluster that is not paused.
func (s findings) checkPause(cluster *unstructured.Unstructured) {
	if paused, _, _ := unstructured.NestedBool(cluster.Object, "spec", "paused"); !paused {
		s.addRefused("spec.paused", "it is not paused: pause it, and leave it paused until the takeover is committed or rolled back")
	}
}

// checkPaused refuses the takeover unless the old Cluster is paused, and its controllers have seen
// that for each of its objects.
func (t *Takeover) checkPaused(ctx context.Context, p *Plan) error {
	cluster := &unstructured.Unstructured{}
	cluster.SetGroupVersionKind(capiAPI.WithKind("Cluster"))
	if err := t.Old.Get(ctx, client.ObjectKey{Namespace: t.OldNamespace, Name: *t.System.Cluster}, cluster); err != nil {
		return fmt.Errorf("reading Cluster %s of %s: %w", *t.System.Cluster, t.OldNamespace, err)
	}
	p.findingsFor("Cluster", cluster.GetName()).checkPause(cluster)
	all := []unstructured.Unstructured{*cluster}
	for _, kind := range []string{"MachineDeployment", "MachineSet", "Machine"} {
		var items []unstructured.Unstructured
		if err := read(ctx, t.Old, t.OldNamespace, capiAPI, kind, &items); err != nil {
			return err
		}
		for i := range items {
			if items[i].GetLabels()[clusterv1.ClusterNameLabel] == cluster.GetName() {
				all = append(all, items[i])
			}
		}
	}
	for i := range all {
		o := &all[i]
		list, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
		if !slices.ContainsFunc(list, func(item any) bool {
			condition, _ := item.(map[string]any)
			return condition["type"] == clusterv1.PausedCondition && condition["status"] == "True"
		}) {
			p.findingsFor(o.GetKind(), o.GetName()).addRefused("status.conditions",
				"its controller has not seen the pause: wait until its condition Paused is True")
		}
	}
	return nil
}

// pool plans one MachineDeployment, or returns nil if it can't be read.
func (m *CAPI) pool(p *Plan, d *unstructured.Unstructured, target *Target) *Pool {
	s := p.findingsFor("MachineDeployment", d.GetName())
	spec := &clusterv1.MachineDeploymentSpec{}
	if !s.decode(d.Object, "spec", spec) {
		return nil
	}
	s.checkNotPausedOrDeleting(d)
	pool := &Pool{
		Name: d.GetName(), Template: d.GetName(), Replicas: ptr.Deref(spec.Replicas, 1), Deployment: spec,
		Annotations: maps.Clone(d.GetAnnotations()),
	}
	maps.DeleteFunc(pool.Annotations, func(key, _ string) bool {
		return key == corev1.LastAppliedConfigAnnotation || key == clusterv1.RevisionAnnotation
	})
	smallest, largest := pool.Annotations[clusterv1.AutoscalerMinSizeAnnotation], pool.Annotations[clusterv1.AutoscalerMaxSizeAnnotation]
	if smallest != "" && largest != "" {
		s.sized(pool, &Size{Min: smallest, Max: largest})
		delete(pool.Annotations, clusterv1.AutoscalerMinSizeAnnotation)
		delete(pool.Annotations, clusterv1.AutoscalerMaxSizeAnnotation)
	}
	m.health(s, pool)
	m.config(s, pool, target)
	m.infrastructure(s, pool, target)
	set, setSpec := m.activeSet(s, d)
	if set == nil {
		return pool
	}
	pool.Set = set.GetName()
	if n := ptr.Deref(setSpec.Replicas, 1); n != pool.Replicas {
		s.addRefused("spec.replicas", "it is %d, and %d in MachineSet %s: wait until the pool is scaled", pool.Replicas, n, set.GetName())
	}
	if rolled(&setSpec.Template.Spec, &spec.Template.Spec) {
		s.addRefused("spec.template", "it differs from that of MachineSet %s: wait until the pool is rolled out", set.GetName())
	}
	machines := of(set, m.Machines)
	if len(machines) != int(pool.Replicas) {
		s.addRefused("spec.replicas", "it is %d, and MachineSet %s has %d Machines: wait until the pool is scaled", pool.Replicas, set.GetName(),
			len(machines))
	}
	for _, machine := range machines {
		if one := m.machine(p, machine, pool, target); one != nil {
			pool.Machines = append(pool.Machines, *one)
		}
	}
	return pool
}

// rolled reports whether Cluster API would replace machines of one template by those of the other.
func rolled(a, b *clusterv1.MachineSpec) bool {
	return a.Version != b.Version || a.FailureDomain != b.FailureDomain || a.InfrastructureRef != b.InfrastructureRef ||
		!equality.Semantic.DeepEqual(a.Bootstrap, b.Bootstrap)
}

// checkNotPausedOrDeleting refuses objects that are being deleted, or that are paused by
// themselves.
func (s findings) checkNotPausedOrDeleting(o *unstructured.Unstructured) {
	if o.GetDeletionTimestamp() != nil {
		s.addRefused("metadata.deletionTimestamp", "it is being deleted")
	}
	if _, is := o.GetAnnotations()[clusterv1.PausedAnnotation]; is {
		s.addRefused("metadata.annotations", "%s is set: take it off, and pause the Cluster", clusterv1.PausedAnnotation)
	}
}

// activeSet returns the MachineSet that has the pool's machines, or nil. More than one is refused.
func (m *CAPI) activeSet(s findings, d *unstructured.Unstructured) (active *unstructured.Unstructured, spec *clusterv1.MachineSetSpec) {
	var names []string
	for _, set := range of(d, m.Sets) {
		one, about := &clusterv1.MachineSetSpec{}, s.plan.findingsFor("MachineSet", set.GetName())
		if !about.decode(set.Object, "spec", one) {
			continue
		}
		if ptr.Deref(one.Replicas, 1) == 0 && len(of(set, m.Machines)) == 0 {
			continue // of an earlier revision, or of a pool of 0
		}
		about.checkNotPausedOrDeleting(set)
		names = append(names, set.GetName())
		active, spec = set, one
	}
	if len(names) > 1 {
		s.addRefused("", "%d MachineSets have machines, %s: wait until the pool is rolled out", len(names), strings.Join(names, " and "))
		return nil, nil
	}
	return active, spec
}

// health takes over the MachineHealthCheck that selects the pool's machines.
func (m *CAPI) health(s findings, pool *Pool) {
	of := labels.Set{clusterv1.ClusterNameLabel: m.Cluster.GetName(), clusterv1.MachineDeploymentNameLabel: pool.Name}
	maps.Copy(of, pool.Deployment.Template.Labels)
	var names []string
	for i := range m.Checks {
		o := &m.Checks[i]
		about, spec := s.plan.findingsFor("MachineHealthCheck", o.GetName()), &clusterv1.MachineHealthCheckSpec{}
		if !about.decode(o.Object, "spec", spec) {
			continue
		}
		selector, err := metav1.LabelSelectorAsSelector(&spec.Selector)
		if err != nil {
			about.addRefused("spec.selector", "%s", err)
			continue
		}
		if !selector.Matches(of) {
			continue
		}
		if spec.Remediation.TemplateRef.IsDefined() {
			about.addLost("spec.remediation.templateRef", "unhealthy machines are replaced: its template is of the old provider")
			spec.Remediation.TemplateRef = clusterv1.MachineHealthCheckRemediationTemplateReference{}
		}
		about.addNote("", "commit makes one of its content for each pool; this one then selects no worker: delete it after commit")
		names, pool.Health = append(names, o.GetName()), spec
	}
	if len(names) > 1 {
		s.addRefused("", "%d MachineHealthChecks select its machines, %s: Drover makes one", len(names), strings.Join(names, " and "))
	}
}

// kept are the parts of annotations of a Machine with which its users protect it.
var kept = []string{
	clusterv1.MachineSkipRemediationAnnotation, clusterv1.ExcludeNodeDrainingAnnotation, clusterv1.ExcludeWaitForNodeVolumeDetachAnnotation,
	clusterv1.PreDrainDeleteHookAnnotationPrefix, clusterv1.PreTerminateDeleteHookAnnotationPrefix,
}

// machineLabels are those that Cluster API sets on each Machine of a pool.
var machineLabels = []string{
	clusterv1.ClusterNameLabel, clusterv1.MachineDeploymentNameLabel, clusterv1.MachineSetNameLabel, clusterv1.MachineDeploymentUniqueLabel,
}

// machine plans one Machine. It returns nil if no VM can be named for it.
func (m *CAPI) machine(p *Plan, o *unstructured.Unstructured, pool *Pool, target *Target) *Machine {
	s := p.findingsFor("Machine", o.GetName())
	spec := &clusterv1.MachineSpec{}
	if !s.decode(o.Object, "spec", spec) {
		return nil
	}
	s.checkNotPausedOrDeleting(o)
	if phase, _, _ := unstructured.NestedString(o.Object, "status", "phase"); phase != string(clusterv1.MachinePhaseRunning) {
		s.addRefused("status.phase", "it is %q: wait until it is Running, or delete it", phase)
	}
	for _, key := range slices.Sorted(maps.Keys(o.GetLabels())) {
		if _, of := pool.Deployment.Template.Labels[key]; !of && !slices.Contains(machineLabels, key) {
			s.addLost("metadata.labels", "the new Machine does not have %s, and its Node loses it if it is from there", key)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(o.GetAnnotations())) {
		if key == clusterv1.DeleteMachineAnnotation {
			s.addRefused("metadata.annotations", "%s is set: it is the next to be deleted", key)
		}
		if slices.ContainsFunc(kept, func(part string) bool { return strings.HasPrefix(key, part) }) {
			s.addNote("metadata.annotations", "set %s on the new Machine, too", key)
		}
	}
	node := s.nodeOf(o, m.Nodes)
	if node == nil {
		return nil
	}
	machine := s.machineOf(o, node, target)
	if machine == nil {
		return nil
	}
	if pool.Machine != nil && pool.Machine.Cloud.AWS != nil {
		machine.Identity = "owned"
	}
	if spec.ProviderID != machine.ProviderID {
		s.addRefused("spec.providerID", "it is %q, but its Node %s has %q: they are not the same VM", spec.ProviderID, node.Name,
			node.Spec.ProviderID)
	}
	vm := slices.IndexFunc(m.VMs, func(vm unstructured.Unstructured) bool { return metav1.IsControlledBy(&vm, o) })
	if vm < 0 {
		s.addRefused("spec.infrastructureRef", "it owns no %s", spec.InfrastructureRef.Kind)
		return nil
	}
	if m.VMs[vm].GetDeletionTimestamp() != nil {
		p.findingsFor(m.VMs[vm].GetKind(), m.VMs[vm].GetName()).addRefused("metadata.deletionTimestamp", "it is being deleted")
	}
	if name := m.VMs[vm].GetName(); name != machine.Name {
		machine.VM = name
	}
	if m.VMs[vm].GetKind() == "OpenStackMachine" {
		m.capoMachine(p, &m.VMs[vm], machine)
	}
	return machine
}

// infrastructure maps the template of the pool's machines.
func (m *CAPI) infrastructure(s findings, pool *Pool, target *Target) {
	ref := pool.Deployment.Template.Spec.InfrastructureRef
	at := slices.IndexFunc(m.Templates, func(o unstructured.Unstructured) bool { return o.GetKind() == ref.Kind && o.GetName() == ref.Name })
	account := &target.Account.Spec
	switch {
	case (ref.Kind != "AWSMachineTemplate" || account.Cloud.AWS == nil) &&
		(ref.Kind != "OpenStackMachineTemplate" || account.Cloud.OpenStack == nil):
		s.addRefused("spec.template.spec.infrastructureRef",
			"it is %s: Drover takes over machines of AWSMachineTemplates and OpenStackMachineTemplates, with a DroverAccount of the same cloud",
			ref.Kind)
	case at < 0:
		s.addRefused("spec.template.spec.infrastructureRef", "%s %s does not exist", ref.Kind, ref.Name)
	case account.Cloud.OpenStack != nil:
		m.capo(s.plan, pool, &m.Templates[at], target)
	default:
		m.capa(s.plan, pool, &m.Templates[at], target)
	}
}

// infrastructureCluster reads the provider's object of the Cluster.
func (m *CAPI) infrastructureCluster(p *Plan, kind string, into any) (s findings, ok bool) {
	ref := &clusterv1.ContractVersionedObjectReference{}
	from, _, _ := unstructured.NestedMap(m.Cluster.Object, "spec")
	s = p.findingsFor("Cluster", m.Cluster.GetName())
	if !s.decode(from, "infrastructureRef", ref) {
		return s, false
	}
	at := slices.IndexFunc(m.Infrastructure, func(o unstructured.Unstructured) bool {
		return o.GetKind() == ref.Kind &&
			o.GetName() == ref.Name
	})
	if at < 0 || ref.Kind != kind {
		s.addRefused("spec.infrastructureRef", "there is no %s %s", kind, ref.Name)
		return s, false
	}
	s = p.findingsFor(kind, ref.Name)
	data, err := json.Marshal(m.Infrastructure[at].Object)
	if err == nil {
		err = json.Unmarshal(data, into)
	}
	if err != nil {
		s.addRefused("", "%s: this version of Drover does not support it", err)
	}
	return s, err == nil
}
