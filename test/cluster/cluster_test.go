// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
	controlplanev1 "sigs.k8s.io/cluster-api/api/controlplane/kubeadm/v1beta2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/kubeconfig"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/cloud/simulated/wire"
	"github.com/drover-io/drover/test/scenario"
)

// TestWholeCluster makes a cluster of three control-plane machines and two workers from the flavor
// kubeadm, has one machine of the control plane fail and be replaced, makes the control plane small
// again, and deletes the cluster. Meanwhile a client asks the endpoint. A second, small cluster is
// made from the ClusterClass.
func TestWholeCluster(t *testing.T) {
	s := newStage(t)
	s.prepare()
	s.create("cluster-template-kubeadm.yaml", name, 3, 2)
	s.until("the first machine answers", s.initialized)
	asking := s.ask()
	s.until("the control plane has three healthy machines", s.healthy(3, nil))
	s.until("the workers are ready", s.workers(2))

	s.hurryRemediation()
	lost := s.powerOff()
	s.until("the machine is replaced", s.healthy(3, []string{lost}))
	s.scale(1)
	s.until("the control plane has one healthy machine", s.healthy(1, nil))

	asked, failed, twice, errs := asking.end()
	t.Logf("%d requests to the endpoint, %d failed once, %d twice: %v", asked, failed, twice, errs)
	if asked < 300 || twice > 0 {
		t.Errorf("%d of %d requests failed, also on a new connection", twice, asked)
	}

	s.create("clusterclass-drover-kubeadm.yaml", second, 1, 1)
	s.create("cluster-template-topology-kubeadm.yaml", second, 1, 1)
	s.until("a cluster of the class is available", s.available(second))

	s.do(scenario.Delete(s.ctx, s.client, s.cluster()))
	s.do(scenario.Delete(s.ctx, s.client, &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: second}}))
	s.until("nothing is left", s.gone)
}

// available checks that a cluster has all its machines, and that they are up to date.
func (s *stage) available(name string) scenario.Check {
	return func(ctx context.Context) (string, error) {
		cluster := &clusterv1.Cluster{}
		if err := s.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, cluster); err != nil {
			return "", err
		}
		for _, condition := range []string{
			clusterv1.ClusterTopologyReconciledCondition, clusterv1.ClusterControlPlaneMachinesReadyCondition, clusterv1.ClusterWorkerMachinesReadyCondition,
			clusterv1.ClusterControlPlaneMachinesUpToDateCondition, clusterv1.ClusterAvailableCondition,
		} {
			if !isTrue(cluster.Status.Conditions, condition) {
				return condition + ": " + scenario.Message(cluster, condition), nil
			}
		}
		return "", nil
	}
}

// initialized checks that the control plane has its first machine.
func (s *stage) initialized(ctx context.Context) (string, error) {
	cluster := s.cluster()
	if err := s.client.Get(ctx, client.ObjectKeyFromObject(cluster), cluster); err != nil {
		return "", err
	}
	if !ptr.Deref(cluster.Status.Initialization.ControlPlaneInitialized, false) {
		return scenario.Message(cluster, clusterv1.ClusterControlPlaneInitializedCondition), nil
	}
	return "", nil
}

// healthy checks that the control plane has n machines, none of those named, all with a healthy
// member of etcd.
func (s *stage) healthy(n int32, without []string) scenario.Check {
	return func(ctx context.Context) (string, error) {
		kcp := s.controlPlane()
		if err := s.client.Get(ctx, client.ObjectKeyFromObject(kcp), kcp); err != nil {
			return "", err
		}
		machines, err := s.machines(ctx)
		if err != nil {
			return "", err
		}
		if i := slices.IndexFunc(machines, func(m clusterv1.Machine) bool { return slices.Contains(without, m.Name) }); i >= 0 {
			return fmt.Sprintf("Machine %s is still there: %s", machines[i].Name, scenario.Message(&machines[i], clusterv1.MachineReadyCondition)), nil
		}
		have, ready := ptr.Deref(kcp.Status.Replicas, 0), ptr.Deref(kcp.Status.ReadyReplicas, 0)
		if have != n || ready != n || len(machines) != int(n) {
			return fmt.Sprintf("%d machines, %d ready: %s", have, ready, scenario.Message(kcp, controlplanev1.KubeadmControlPlaneAvailableCondition)), nil
		}
		for _, condition := range []string{
			controlplanev1.KubeadmControlPlaneAvailableCondition, controlplanev1.KubeadmControlPlaneEtcdClusterHealthyCondition,
			controlplanev1.KubeadmControlPlaneControlPlaneComponentsHealthyCondition,
		} {
			if !isTrue(kcp.Status.Conditions, condition) {
				return condition + ": " + scenario.Message(kcp, condition), nil
			}
		}
		return "", nil
	}
}

func isTrue(conditions []metav1.Condition, kind string) bool {
	return slices.ContainsFunc(conditions, func(c metav1.Condition) bool { return c.Type == kind && c.Status == metav1.ConditionTrue })
}

func (s *stage) workers(n int32) scenario.Check {
	return func(ctx context.Context) (string, error) {
		md := &clusterv1.MachineDeployment{}
		if err := s.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name + "-md-0"}, md); err != nil {
			return "", err
		}
		if ready := ptr.Deref(md.Status.ReadyReplicas, 0); ready != n {
			return fmt.Sprintf("%d workers are ready", ready), nil
		}
		return "", nil
	}
}

// ask begins to ask the cluster's endpoint, with its administrator's kubeconfig.
func (s *stage) ask() *asker {
	raw, err := kubeconfig.FromSecret(s.ctx, s.client, client.ObjectKeyFromObject(s.cluster()))
	s.do(err)
	config, err := clientcmd.RESTConfigFromKubeConfig(raw)
	s.do(err)
	a, err := ask(s.ctx, config)
	s.do(err)
	s.Cleanup(func() { a.stop() })
	return a
}

// hurryRemediation makes the control plane's health check replace machines soon.
func (s *stage) hurryRemediation() {
	check := &clusterv1.MachineHealthCheck{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name + "-control-plane"}}
	s.do(scenario.Patch(s.ctx, s.client, check, func() {
		for i := range check.Spec.Checks.UnhealthyNodeConditions {
			check.Spec.Checks.UnhealthyNodeConditions[i].TimeoutSeconds = ptr.To[int32](1)
		}
	}))
}

// scale changes the number of machines of the control plane.
func (s *stage) scale(replicas int32) {
	kcp := s.controlPlane()
	s.do(scenario.Patch(s.ctx, s.client, kcp, func() { kcp.Spec.Replicas = &replicas }))
}

// powerOff switches off the newest machine of the control plane, and returns its name.
func (s *stage) powerOff() string {
	machines, err := s.machines(s.ctx)
	s.do(err)
	newest := slices.MaxFunc(machines, func(a, b clusterv1.Machine) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	m := &infrav1.CloudMachine{}
	s.do(s.client.Get(s.ctx, client.ObjectKey{Namespace: namespace, Name: newest.Spec.InfrastructureRef.Name}, m))
	books, err := s.admin.Snapshot(s.ctx)
	s.do(err)
	for _, r := range books.Resources {
		if r.Kind == wire.Instance && len(m.Status.Addresses) > 0 && slices.ContainsFunc(m.Status.Addresses, func(a clusterv1.MachineAddress) bool { return a.Address == r.PrivateIP }) {
			s.do(s.admin.Act(s.ctx, r.ID, simulator.ActStop))
			return newest.Name
		}
	}
	s.Fatalf("Machine %s has no VM", newest.Name)
	return ""
}

// gone checks that nothing is left in the cloud or in the namespace.
func (s *stage) gone(ctx context.Context) (string, error) {
	books, err := s.admin.Snapshot(ctx)
	if err != nil {
		return "", err
	}
	for _, r := range books.Resources {
		if r.State != wire.Terminated {
			return fmt.Sprintf("%s %s is %s", r.Kind, r.ID, r.State), nil
		}
	}
	return scenario.All(
		scenario.Empty(s.client, &clusterv1.ClusterList{}, namespace),
		scenario.Empty(s.client, &clusterv1.MachineList{}, namespace),
		scenario.Empty(s.client, &infrav1.CloudClusterList{}, namespace),
		scenario.Empty(s.client, &infrav1.CloudMachineList{}, namespace),
	)(ctx)
}
