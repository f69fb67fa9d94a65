// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/tagging"
)

// Target is where the machines go: an adopted Cluster of the management cluster.
type Target struct {
	Namespace, Cluster string
	Account            *infrav1.DroverAccount
	// Identity is the management cluster's, as controllers.Identity returns it.
	Identity string
	// OwnershipID is that of the Cluster's DroverCluster.
	OwnershipID string
	// Bootstrap is the template that new machines are set up with, apart from the labels and taints
	// of each pool.
	Bootstrap *bootstrapv1.DroverConfigTemplate
	// Refuses returns what Drover's webhook refuses of a setup, with paths below "spec"; nil: only
	// the management cluster judges.
	Refuses func(*bootstrapv1.DroverConfigSpec) field.ErrorList
}

// instance returns the cloud's ID of the VM with this provider ID, or "" if it is none.
func (t *Target) instance(providerID string) string {
	switch account := &t.Account.Spec; {
	case account.Cloud.KubeVirt != nil:
		return instanceOnKubeVirt(providerID)
	case account.Cloud.OpenStack != nil:
		return instanceOnOpenStack(providerID)
	case account.Cloud.VSphere != nil:
		return instanceOnVSphere(providerID)
	case account.Cloud.Azure != nil:
		return instanceOnAzure(providerID)
	case account.Cloud.GCP != nil:
		return instanceOnGCP(providerID)
	}
	return instanceOnAWS(providerID)
}

// token returns the creation token of a machine. It is the same in each run.
func (t *Target) token(m Machine) string {
	token := tagging.ImportToken(t.Identity, t.OwnershipID, m.Instance)
	if t.Account.Spec.Cloud.VSphere != nil { // vCenter finds a VM only by its UUID; half of the digest leaves room for it
		return token[:len(token)-16] + "-" + m.Instance
	}
	return token
}

// Tags returns the tags that make the VM the DroverMachine's.
func (t *Target) Tags(m Machine) map[string]string {
	return map[string]string{
		cloud.TagOwnership: t.OwnershipID, cloud.TagToken: t.token(m), cloud.TagMachine: t.Namespace + "/" + m.Name,
	}
}

// hook holds the deletion of a Machine, by whomever, before it is drained.
const hook = clusterv1.PreDrainDeleteHookAnnotationPrefix + "/import"

// Mark is the annotation of all objects that stand for another system's machines, from when they
// are made until the takeover is complete. Its value is the tag key that the VMs lose then. A
// Cluster that a takeover has paused has it, too, without a value.
const Mark = "drover.io/imported"

// commitMark is the annotation of a Cluster from when a commit takes its first step that can't be
// undone until the commit is done. Nothing else tells of each such step: some leave no trace in what
// is staged.
const commitMark = Mark + "-commit"

// imported is the template hash of the MachineSets. Cluster API accepts any text.
const imported = "imported"

// Objects returns what stands for the pools, in the order in which it is made.
func (t *Target) Objects(p *Plan) (all []client.Object) {
	made := map[string]bool{}
	for i := range p.Pools {
		if pool := &p.Pools[i]; pool.Machine != nil && !made[pool.Template] {
			made[pool.Template] = true
			all = append(all, t.machineTemplate(pool))
		}
	}
	for i := range p.Pools {
		pool := &p.Pools[i]
		d := t.deployment(pool)
		all = append(all, t.configTemplate(pool), d)
		if len(pool.Machines) == 0 {
			continue // Cluster API makes the MachineSet
		}
		set := t.machineSet(pool, d)
		all = append(all, set)
		for _, m := range pool.Machines {
			all = append(all, t.machine(m, pool, set), t.droverMachine(m, pool, set))
		}
	}
	for i := range p.Pools {
		if pool := &p.Pools[i]; pool.Health != nil {
			all = append(all, t.healthCheck(pool))
		}
	}
	return all
}

func (t *Target) meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: t.Namespace, Name: name, Labels: map[string]string{clusterv1.ClusterNameLabel: t.Cluster},
	}
}

// marked is meta with the Mark.
func (t *Target) marked(name string, pool *Pool) metav1.ObjectMeta {
	meta := t.meta(name)
	meta.Annotations = map[string]string{Mark: pool.role()}
	return meta
}

func (t *Target) machineTemplate(pool *Pool) *infrav1.DroverMachineTemplate {
	return &infrav1.DroverMachineTemplate{
		TypeMeta: typeMeta(infrav1.GroupVersion.String(), "DroverMachineTemplate"), ObjectMeta: t.marked(pool.Template, pool),
		Spec: infrav1.DroverMachineTemplateSpec{Template: infrav1.DroverMachineTemplateResource{Spec: *pool.Machine}},
	}
}

func (t *Target) configTemplate(pool *Pool) *bootstrapv1.DroverConfigTemplate {
	c := &bootstrapv1.DroverConfigTemplate{
		TypeMeta: typeMeta(bootstrapv1.GroupVersion.String(), "DroverConfigTemplate"), ObjectMeta: t.marked(pool.Name, pool),
		Spec: *t.Bootstrap.Spec.DeepCopy(),
	}
	spec := &c.Spec.Template.Spec
	pool.setUp(spec)
	if len(pool.NodeLabels) > 0 {
		if spec.NodeLabels == nil {
			spec.NodeLabels = map[string]string{}
		}
		maps.Copy(spec.NodeLabels, pool.NodeLabels)
	}
	for _, taint := range pool.NodeTaints {
		if !slices.ContainsFunc(spec.NodeTaints, func(has corev1.Taint) bool { return has.MatchTaint(&taint) }) {
			spec.NodeTaints = append(spec.NodeTaints, taint)
		}
	}
	return c
}

// setUp adds what the pool's machines have in addition to the Target's template.
func (p *Pool) setUp(spec *bootstrapv1.DroverConfigSpec) {
	more := p.Config.DeepCopy()
	spec.Format = cmp.Or(more.Format, spec.Format)
	spec.NodeNameSource = cmp.Or(more.NodeNameSource, spec.NodeNameSource)
	spec.Kubelet.MaxPods = cmp.Or(more.Kubelet.MaxPods, spec.Kubelet.MaxPods)
	spec.Files = append(spec.Files, more.Files...)
	spec.PreKubeletCommands = append(spec.PreKubeletCommands, more.PreKubeletCommands...)
	spec.PostKubeletCommands = append(spec.PostKubeletCommands, more.PostKubeletCommands...)
	spec.Host.Users = append(spec.Host.Users, more.Host.Users...)
	spec.Host.NTPServers = append(spec.Host.NTPServers, more.Host.NTPServers...)
	if spec.Join.Method == bootstrapv1.JoinKubeadm { // otherwise nothing checks
		spec.Join.IgnorePreflightErrors = append(spec.Join.IgnorePreflightErrors, more.Join.IgnorePreflightErrors...)
	}
}

func (t *Target) deployment(pool *Pool) *clusterv1.MachineDeployment {
	if pool.Deployment != nil {
		return t.sameDeployment(pool)
	}
	labels := map[string]string{clusterv1.ClusterNameLabel: t.Cluster, clusterv1.MachineDeploymentNameLabel: pool.Name}
	d := &clusterv1.MachineDeployment{
		TypeMeta: typeMeta(clusterv1.GroupVersion.String(), "MachineDeployment"), ObjectMeta: t.marked(pool.Name, pool),
		Spec: clusterv1.MachineDeploymentSpec{
			ClusterName: t.Cluster, Replicas: ptr.To(pool.Replicas), Selector: metav1.LabelSelector{MatchLabels: labels},
			Template: clusterv1.MachineTemplateSpec{
				ObjectMeta: clusterv1.ObjectMeta{Labels: maps.Clone(labels)},
				Spec: clusterv1.MachineSpec{
					ClusterName: t.Cluster, Version: pool.Version, FailureDomain: pool.FailureDomain,
					Bootstrap:         clusterv1.Bootstrap{ConfigRef: reference(bootstrapv1.GroupVersion.Group, "DroverConfigTemplate", pool.Name)},
					InfrastructureRef: reference(infrav1.GroupVersion.Group, "DroverMachineTemplate", pool.Template),
					Deletion:          clusterv1.MachineDeletionSpec{NodeDrainTimeoutSeconds: seconds(pool.DrainTimeout)},
				},
			},
			// as the other system, which replaces one machine of a pool at a time
			Remediation: clusterv1.MachineDeploymentRemediationSpec{MaxInFlight: ptr.To(intstr.FromInt32(1))},
		},
	}
	maps.Copy(d.Spec.Template.Labels, pool.MachineLabels)
	if pool.MinReadySeconds > 0 {
		d.Spec.Template.Spec.MinReadySeconds = ptr.To(pool.MinReadySeconds)
	}
	if pool.Paused {
		d.Spec.Paused = ptr.To(true)
	}
	if pool.MaxSurge != nil || pool.MaxUnavailable != nil {
		d.Spec.Rollout.Strategy = clusterv1.MachineDeploymentRolloutStrategy{
			Type:          clusterv1.RollingUpdateMachineDeploymentStrategyType,
			RollingUpdate: clusterv1.MachineDeploymentRolloutStrategyRollingUpdate{MaxSurge: pool.MaxSurge, MaxUnavailable: pool.MaxUnavailable},
		}
	}
	return d
}

// sameDeployment returns the other system's MachineDeployment, with the target's own names.
func (t *Target) sameDeployment(pool *Pool) *clusterv1.MachineDeployment {
	d := &clusterv1.MachineDeployment{
		TypeMeta: typeMeta(clusterv1.GroupVersion.String(), "MachineDeployment"), ObjectMeta: t.marked(pool.Name, pool),
		Spec: *pool.Deployment.DeepCopy(),
	}
	maps.Copy(d.Annotations, pool.Annotations)
	labels := map[string]string{clusterv1.ClusterNameLabel: t.Cluster, clusterv1.MachineDeploymentNameLabel: pool.Name}
	d.Spec.ClusterName, d.Spec.Replicas, d.Spec.Selector = t.Cluster, ptr.To(pool.Replicas), metav1.LabelSelector{MatchLabels: labels}
	template := &d.Spec.Template
	if template.Labels == nil {
		template.Labels = map[string]string{}
	}
	maps.Copy(template.Labels, pool.MachineLabels)
	maps.Copy(template.Labels, labels)
	template.Spec.ClusterName, template.Spec.Version = t.Cluster, pool.Version
	template.Spec.Bootstrap = clusterv1.Bootstrap{ConfigRef: reference(bootstrapv1.GroupVersion.Group, "DroverConfigTemplate", pool.Name)}
	template.Spec.InfrastructureRef = reference(infrav1.GroupVersion.Group, "DroverMachineTemplate", pool.Template)
	return d
}

// machineSet returns the MachineSet that d adopts: its template is d's as it is stored, so that
// nothing is rolled out.
func (t *Target) machineSet(pool *Pool, d *clusterv1.MachineDeployment) *clusterv1.MachineSet {
	set := &clusterv1.MachineSet{
		TypeMeta: typeMeta(clusterv1.GroupVersion.String(), "MachineSet"), ObjectMeta: t.marked(pool.Set, pool),
		Spec: clusterv1.MachineSetSpec{
			ClusterName: t.Cluster, Replicas: ptr.To(pool.Replicas), Selector: *d.Spec.Selector.DeepCopy(), Template: *d.Spec.Template.DeepCopy(),
		},
	}
	for _, labels := range []map[string]string{set.Spec.Selector.MatchLabels, set.Spec.Template.Labels, set.Labels} {
		labels[clusterv1.MachineDeploymentUniqueLabel] = imported
	}
	set.Labels[clusterv1.MachineDeploymentNameLabel] = d.Name
	return set
}

// labelsOf returns the labels of a MachineSet's machines.
func labelsOf(set *clusterv1.MachineSet) map[string]string {
	all := maps.Clone(set.Spec.Template.Labels)
	all[clusterv1.MachineSetNameLabel] = set.Name
	return all
}

func (t *Target) machine(m Machine, pool *Pool, set *clusterv1.MachineSet) *clusterv1.Machine {
	spec := *set.Spec.Template.Spec.DeepCopy()
	spec.Version, spec.ProviderID = m.Version, m.ProviderID
	// Nothing reads this Secret, because the machine is set up.
	spec.Bootstrap = clusterv1.Bootstrap{DataSecretName: ptr.To(m.Name + "-" + imported)}
	spec.InfrastructureRef = reference(infrav1.GroupVersion.Group, "DroverMachine", m.Name)
	machine := &clusterv1.Machine{
		TypeMeta: typeMeta(clusterv1.GroupVersion.String(), "Machine"), ObjectMeta: t.marked(m.Name, pool), Spec: spec,
	}
	maps.Copy(machine.Annotations, set.Spec.Template.Annotations)
	machine.Labels, machine.Annotations[hook] = labelsOf(set), ""
	return machine
}

func (t *Target) droverMachine(m Machine, pool *Pool, set *clusterv1.MachineSet) *infrav1.DroverMachine {
	c := &infrav1.DroverMachine{
		TypeMeta: typeMeta(infrav1.GroupVersion.String(), "DroverMachine"), ObjectMeta: t.marked(m.Name, pool),
		Spec: infrav1.DroverMachineSpec{
			ProviderID: m.ProviderID, Creation: infrav1.DroverMachineCreation{Token: t.token(m)},
		},
	}
	if pool.Machine != nil {
		c.Spec.DroverMachineFields = *pool.Machine.DeepCopy()
	}
	c.Labels, c.Finalizers = labelsOf(set), []string{infrav1.MachineFinalizer}
	c.Annotations[clusterv1.TemplateClonedFromNameAnnotation] = pool.Template
	c.Annotations[clusterv1.TemplateClonedFromGroupKindAnnotation] = "DroverMachineTemplate." + infrav1.GroupVersion.Group
	return c
}

// healthCheck replaces machines as the other system does. It is made when the takeover is complete.
func (t *Target) healthCheck(pool *Pool) *clusterv1.MachineHealthCheck {
	check := &clusterv1.MachineHealthCheck{
		TypeMeta: typeMeta(clusterv1.GroupVersion.String(), "MachineHealthCheck"), ObjectMeta: t.marked(pool.Name, pool),
		Spec: *pool.Health.DeepCopy(),
	}
	check.Spec.ClusterName = t.Cluster
	check.Spec.Selector = metav1.LabelSelector{MatchLabels: map[string]string{clusterv1.MachineDeploymentNameLabel: pool.Name}}
	return check
}

// Try asks the management cluster whether it would accept the templates and pools, and makes
// nothing. What it refuses becomes a finding.
func (t *Target) Try(ctx context.Context, c client.Client, p *Plan) error {
	for _, o := range t.Objects(p) {
		switch o.(type) {
		case *clusterv1.Machine, *infrav1.DroverMachine, *clusterv1.MachineSet:
			continue // they repeat what the templates say
		}
		kind := o.GetObjectKind().GroupVersionKind().Kind
		there := o.DeepCopyObject().(client.Object)
		if err := c.Get(ctx, client.ObjectKeyFromObject(o), there); err == nil && there.GetAnnotations()[Mark] != "" {
			continue // made by an earlier run
		}
		err := c.Create(ctx, o.DeepCopyObject().(client.Object), client.DryRunAll)
		if err == nil {
			continue
		}
		about := p.findingsFor(kind, o.GetName())
		switch causes := causesOf(err); {
		case apierrors.IsAlreadyExists(err):
			about.addRefused("metadata.name", "namespace %s has one of this name already", t.Namespace)
		case len(causes) > 0:
			for _, cause := range causes {
				about.addRefused(cause.Field, "%s", cause.Message)
			}
		default:
			return fmt.Errorf("asking whether %s %s would be accepted: %w", kind, o.GetName(), err)
		}
	}
	return nil
}

// causesOf returns why an API server refuses an object, if it is for what the object says: by its
// schema, a webhook or a policy, and not for the user's rights.
func causesOf(err error) []metav1.StatusCause {
	refused, is := errors.AsType[*apierrors.StatusError](err)
	if !is {
		return nil
	}
	status := &refused.ErrStatus
	judged := apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsForbidden(err)
	if judged && status.Details != nil && len(status.Details.Causes) > 0 {
		return status.Details.Causes
	}
	if apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || strings.Contains(status.Message, "denied the request") ||
		strings.Contains(status.Message, "denied request") {
		return []metav1.StatusCause{{Message: status.Message}}
	}
	return nil
}

func typeMeta(version, kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: version, Kind: kind}
}

func reference(group, kind, name string) clusterv1.ContractVersionedObjectReference {
	return clusterv1.ContractVersionedObjectReference{APIGroup: group, Kind: kind, Name: name}
}

// seconds returns the duration in whole seconds, of which the field holds at most 68 years.
func seconds(d time.Duration) *int32 { return ptr.To(int32(min(d/time.Second, math.MaxInt32))) }
