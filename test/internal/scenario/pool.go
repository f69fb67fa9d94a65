// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/simulated/simulator/body"
)

// Pool is a set of equal worker machines: a MachineDeployment with its templates.
type Pool struct {
	// Cluster of the pool.
	Cluster Adopted
	// Name of the MachineDeployment, its templates and its MachineHealthCheck.
	Name string
	// Replicas at creation.
	Replicas int32
	// Version of Kubernetes in the Machines' spec. By default it is the one in the simulated image.
	// Cluster API counts machines whose kubelet has another version, or that name none, as out of
	// date.
	Version string
	// MaxSurge of a rolling update. 0 keeps the default, 1.
	MaxSurge int
	// Machine is the spec for the cloud. The zero value keeps the defaults.
	Machine infrav1.SimulatedMachine
	// Config is the machines' bootstrap config. The zero value keeps the defaults.
	Config bootstrapv1.DroverConfigSpec
}

func (p Pool) meta(name string) metav1.ObjectMeta { return p.Cluster.meta(name) }

// Objects returns the pool's objects in an order in which they can be created.
func (p Pool) Objects() []client.Object {
	return []client.Object{p.Template(p.Name, p.Machine), p.ConfigTemplate(), p.Deployment()}
}

// Template returns a DroverMachineTemplate for the pool.
func (p Pool) Template(name string, machine infrav1.SimulatedMachine) *infrav1.DroverMachineTemplate {
	t := &infrav1.DroverMachineTemplate{ObjectMeta: p.meta(name)}
	t.Spec.Template.Spec = infrav1.DroverMachineFields{
		AccountRef: infrav1.LocalReference{Name: p.Cluster.Name},
		Cloud:      infrav1.MachineCloud{Simulated: &machine},
	}
	p.Cluster.dress(t)
	return t
}

// ConfigTemplate returns the pool's DroverConfigTemplate.
func (p Pool) ConfigTemplate() *bootstrapv1.DroverConfigTemplate {
	t := &bootstrapv1.DroverConfigTemplate{ObjectMeta: p.meta(p.Name)}
	t.Spec.Template.Spec = p.Config
	return t
}

// Deployment returns the pool's MachineDeployment.
func (p Pool) Deployment() *clusterv1.MachineDeployment {
	if p.Version == "" {
		p.Version = body.DefaultKubeletVersion
	}
	md := &clusterv1.MachineDeployment{ObjectMeta: p.meta(p.Name), Spec: clusterv1.MachineDeploymentSpec{
		ClusterName: p.Cluster.Name,
		Replicas:    ptr.To(p.Replicas),
		Selector:    metav1.LabelSelector{MatchLabels: p.labels()},
		Template: clusterv1.MachineTemplateSpec{
			ObjectMeta: clusterv1.ObjectMeta{Labels: p.labels()},
			Spec: clusterv1.MachineSpec{
				ClusterName: p.Cluster.Name,
				Version:     p.Version,
				Bootstrap: clusterv1.Bootstrap{ConfigRef: clusterv1.ContractVersionedObjectReference{
					APIGroup: bootstrapv1.GroupVersion.Group, Kind: "DroverConfigTemplate", Name: p.Name,
				}},
				InfrastructureRef: clusterv1.ContractVersionedObjectReference{
					APIGroup: infrav1.GroupVersion.Group, Kind: "DroverMachineTemplate", Name: p.Name,
				},
			},
		},
	}}
	if p.MaxSurge > 0 {
		md.Spec.Rollout.Strategy = clusterv1.MachineDeploymentRolloutStrategy{
			Type: clusterv1.RollingUpdateMachineDeploymentStrategyType,
			RollingUpdate: clusterv1.MachineDeploymentRolloutStrategyRollingUpdate{
				MaxSurge: ptr.To(intstr.FromInt(p.MaxSurge)), MaxUnavailable: ptr.To(intstr.FromInt(0)),
			},
		}
	}
	return md
}

func (p Pool) labels() map[string]string { return map[string]string{"pool": p.Name} }

// HealthCheck returns a MachineHealthCheck that replaces the pool's machines whose Node is gone, or
// not ready for the given number of seconds.
func (p Pool) HealthCheck(seconds int32) *clusterv1.MachineHealthCheck {
	notReady := func(status corev1.ConditionStatus) clusterv1.UnhealthyNodeCondition {
		return clusterv1.UnhealthyNodeCondition{Type: corev1.NodeReady, Status: status, TimeoutSeconds: ptr.To(seconds)}
	}
	return &clusterv1.MachineHealthCheck{ObjectMeta: p.meta(p.Name), Spec: clusterv1.MachineHealthCheckSpec{
		ClusterName: p.Cluster.Name,
		Selector:    metav1.LabelSelector{MatchLabels: p.labels()},
		Checks: clusterv1.MachineHealthCheckChecks{
			UnhealthyNodeConditions: []clusterv1.UnhealthyNodeCondition{notReady(corev1.ConditionUnknown), notReady(corev1.ConditionFalse)},
		},
	}}
}
