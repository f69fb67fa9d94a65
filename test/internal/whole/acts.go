// SPDX-License-Identifier: Apache-2.0

package whole

import (
	"context"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
	controlplanev1 "sigs.k8s.io/cluster-api/api/controlplane/kubeadm/v1beta2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/cloud/simulated/wire"
	"github.com/drover-io/drover/test/internal/scenario"
)

// Initialized checks that the first cluster's control plane has its first machine.
func (s *Stage) Initialized(ctx context.Context) (string, error) {
	cluster := s.Cluster()
	if err := s.Client.Get(ctx, client.ObjectKeyFromObject(cluster), cluster); err != nil {
		return "", err
	}
	if !ptr.Deref(cluster.Status.Initialization.ControlPlaneInitialized, false) {
		return scenario.Message(cluster, clusterv1.ClusterControlPlaneInitializedCondition), nil
	}
	return "", nil
}

// Healthy checks that the control plane has n machines, none of those named, all with a healthy
// member of etcd.
func (s *Stage) Healthy(n int32, without ...string) scenario.Check {
	return func(ctx context.Context) (string, error) {
		kcp := s.ControlPlane()
		if err := s.Client.Get(ctx, client.ObjectKeyFromObject(kcp), kcp); err != nil {
			return "", err
		}
		machines, err := s.Machines(ctx)
		if err != nil {
			return "", err
		}
		if i := slices.IndexFunc(machines, func(m clusterv1.Machine) bool { return slices.Contains(without, m.Name) }); i >= 0 {
			return fmt.Sprintf("Machine %s is still there: %s", machines[i].Name,
				scenario.Message(&machines[i], clusterv1.MachineReadyCondition)), nil
		}
		have, ready := ptr.Deref(kcp.Status.Replicas, 0), ptr.Deref(kcp.Status.ReadyReplicas, 0)
		if have != n || ready != n || len(machines) != int(n) {
			return fmt.Sprintf("%d machines, %d ready: %s", have, ready,
				scenario.Message(kcp, controlplanev1.KubeadmControlPlaneAvailableCondition)), nil
		}
		return missing(kcp, kcp.Status.Conditions, controlplanev1.KubeadmControlPlaneAvailableCondition,
			controlplanev1.KubeadmControlPlaneEtcdClusterHealthyCondition,
			controlplanev1.KubeadmControlPlaneControlPlaneComponentsHealthyCondition), nil
	}
}

// Available checks that a cluster of a ClusterClass has all its machines, and that they are up to
// date.
func (s *Stage) Available(name string) scenario.Check {
	return func(ctx context.Context) (string, error) {
		cluster := &clusterv1.Cluster{}
		if err := s.Client.Get(ctx, client.ObjectKey{Namespace: Namespace, Name: name}, cluster); err != nil {
			return "", err
		}
		return missing(cluster, cluster.Status.Conditions, clusterv1.ClusterTopologyReconciledCondition,
			clusterv1.ClusterControlPlaneMachinesReadyCondition,
			clusterv1.ClusterWorkerMachinesReadyCondition, clusterv1.ClusterControlPlaneMachinesUpToDateCondition,
			clusterv1.ClusterAvailableCondition), nil
	}
}

// missing says which of the wanted conditions is not True, and why, or "".
func missing(o conditions.Getter, all []metav1.Condition, wanted ...string) string {
	for _, condition := range wanted {
		if !slices.ContainsFunc(all, func(c metav1.Condition) bool { return c.Type == condition && c.Status == metav1.ConditionTrue }) {
			return condition + ": " + scenario.Message(o, condition)
		}
	}
	return ""
}

// Workers checks that the first cluster's pool has n ready machines.
func (s *Stage) Workers(n int32) scenario.Check {
	return func(ctx context.Context) (string, error) {
		md := s.pool()
		if err := s.Client.Get(ctx, client.ObjectKeyFromObject(md), md); err != nil {
			return "", err
		}
		if ready := ptr.Deref(md.Status.ReadyReplicas, 0); ready != n {
			return fmt.Sprintf("%d workers are ready", ready), nil
		}
		return "", nil
	}
}

func (s *Stage) pool() *clusterv1.MachineDeployment {
	return &clusterv1.MachineDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: Name + "-md-0"}}
}

// ScaleWorkers changes the number of workers.
func (s *Stage) ScaleWorkers(ctx context.Context, replicas int32) error {
	md := s.pool()
	return scenario.Patch(ctx, s.Client, md, func() { md.Spec.Replicas = &replicas })
}

// Scale changes the number of machines of the control plane.
func (s *Stage) Scale(ctx context.Context, replicas int32) error {
	kcp := s.ControlPlane()
	return scenario.Patch(ctx, s.Client, kcp, func() { kcp.Spec.Replicas = &replicas })
}

// UpgradeControlPlane replaces the control plane's machines by those of a release of Kubernetes.
func (s *Stage) UpgradeControlPlane(ctx context.Context, release string) error {
	name, err := s.template(ctx, Name+"-control-plane", release)
	if err != nil {
		return err
	}
	kcp := s.ControlPlane()
	return scenario.Patch(ctx, s.Client, kcp, func() {
		kcp.Spec.Version, kcp.Spec.MachineTemplate.Spec.InfrastructureRef.Name = release, name
	})
}

// UpgradeWorkers does the same with the workers.
func (s *Stage) UpgradeWorkers(ctx context.Context, release string) error {
	md := s.pool()
	name, err := s.template(ctx, md.Name, release)
	if err != nil {
		return err
	}
	return scenario.Patch(ctx, s.Client, md, func() {
		md.Spec.Template.Spec.Version, md.Spec.Template.Spec.InfrastructureRef.Name = release, name
	})
}

// template creates a template like the named one, with the image of a release, and returns its
// name.
func (s *Stage) template(ctx context.Context, name, release string) (string, error) {
	old := &infrav1.DroverMachineTemplate{}
	if err := s.Client.Get(ctx, client.ObjectKey{Namespace: Namespace, Name: name}, old); err != nil {
		return "", err
	}
	t := &infrav1.DroverMachineTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: name + "-" + release},
		Spec: *old.Spec.DeepCopy()}
	t.Spec.Template.Spec.Cloud.Simulated.Image = ImageName(release)
	return t.Name, s.Client.Create(ctx, t)
}

// Runs checks that all Nodes and the API servers of the first cluster are of a release.
func (s *Stage) Runs(release string) scenario.Check {
	return func(ctx context.Context) (string, error) {
		config, err := s.Config(ctx)
		if err != nil {
			return "", err
		}
		c, err := kubernetes.NewForConfig(config)
		if err != nil {
			return "", err
		}
		version, err := c.Discovery().ServerVersion()
		if err != nil {
			return err.Error(), nil
		}
		if version.GitVersion != release {
			return "an API server is of " + version.GitVersion, nil
		}
		nodes, err := c.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err.Error(), nil
		}
		for _, n := range nodes.Items {
			if have := n.Status.NodeInfo.KubeletVersion; have != release {
				return fmt.Sprintf("Node %s is of %s", n.Name, have), nil
			}
		}
		return "", nil
	}
}

// Roll replaces all machines of the control plane.
func (s *Stage) Roll(ctx context.Context) error {
	kcp := s.ControlPlane()
	return scenario.Patch(ctx, s.Client, kcp, func() { kcp.Spec.Rollout.After = metav1.Now() })
}

// HurryRemediation makes the control plane's health check replace machines soon.
func (s *Stage) HurryRemediation(ctx context.Context) error {
	check := &clusterv1.MachineHealthCheck{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: Name + "-control-plane"}}
	return scenario.Patch(ctx, s.Client, check, func() {
		for i := range check.Spec.Checks.UnhealthyNodeConditions {
			check.Spec.Checks.UnhealthyNodeConditions[i].TimeoutSeconds = ptr.To[int32](1)
		}
	})
}

// PowerOff switches off the newest machine of the control plane, and returns its name.
func (s *Stage) PowerOff(ctx context.Context) (string, error) {
	machines, err := s.Machines(ctx)
	if err != nil {
		return "", err
	}
	newest := slices.MaxFunc(machines, func(a, b clusterv1.Machine) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	m := &infrav1.DroverMachine{}
	if err := s.Client.Get(ctx, client.ObjectKey{Namespace: Namespace, Name: newest.Spec.InfrastructureRef.Name}, m); err != nil {
		return "", err
	}
	books, err := s.Admin.Snapshot(ctx)
	if err != nil {
		return "", err
	}
	for _, r := range books.Resources {
		if r.Kind == wire.Instance && slices.ContainsFunc(m.Status.Addresses,
			func(a clusterv1.MachineAddress) bool { return a.Address == r.PrivateIP }) {
			return newest.Name, s.Admin.Act(ctx, r.ID, simulator.ActStop)
		}
	}
	return "", fmt.Errorf("machine %s has no VM", newest.Name)
}

// Gone checks that nothing is left in the cloud or in the namespace.
func (s *Stage) Gone(ctx context.Context) (string, error) {
	books, err := s.Admin.Snapshot(ctx)
	if err != nil {
		return "", err
	}
	for _, r := range books.Resources {
		if r.State != wire.Terminated {
			return fmt.Sprintf("%s %s is %s", r.Kind, r.ID, r.State), nil
		}
	}
	return scenario.All(
		scenario.Empty(s.Client, &clusterv1.ClusterList{}, Namespace),
		scenario.Empty(s.Client, &clusterv1.MachineList{}, Namespace),
		scenario.Empty(s.Client, &infrav1.DroverClusterList{}, Namespace),
		scenario.Empty(s.Client, &infrav1.DroverMachineList{}, Namespace),
	)(ctx)
}
