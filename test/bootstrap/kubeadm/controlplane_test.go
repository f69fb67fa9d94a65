// SPDX-License-Identifier: Apache-2.0

package kubeadm

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/secret"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	controlplanev1 "github.com/drover-io/drover/api/controlplane/v1beta1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/cloud/simulated/simulator/body"
	"github.com/drover-io/drover/cloud/simulated/wire"
	"github.com/drover-io/drover/test/internal/scenario"
)

// TestKubeadmControlPlane tests that a cluster with Cluster API's own control plane gets a VM for
// it, and workers from DroverConfigs. These use only what the contract provides: the kubeconfig
// that the control plane provider creates from the cluster's CA. Nothing on that VM runs "kubeadm
// init", because the API server exists already, with the same CA.
func TestKubeadmControlPlane(t *testing.T) {
	bare, objects := house.Bare(t, "gold")
	s := stage{bare}
	s.Do(scenario.Create(s.Ctx, s.Rig.Client, s.byKubeadmControlPlane(objects)...))
	s.Until("the control plane's provider has found its API server", func(ctx context.Context) (string, error) {
		cluster := s.Cluster()
		err := s.Rig.Client.Get(ctx, client.ObjectKeyFromObject(cluster), cluster)
		if err == nil && !ptr.Deref(cluster.Status.Initialization.ControlPlaneInitialized, false) {
			return scenario.Message(cluster, clusterv1.ClusterControlPlaneInitializedCondition), nil
		}
		return "", err
	})
	s.Until("its machine has a VM", func(context.Context) (string, error) {
		instances := slices.DeleteFunc(s.Live(s.Books()), func(r simulator.SnapshotResource) bool { return r.Kind != wire.Instance })
		if len(instances) != 1 {
			return fmt.Sprintf("%d VMs", len(instances)), nil
		}
		return "", nil
	})

	pool := s.NewPool("workers", 2)
	pool.Config = bootstrapv1.DroverConfigSpec{
		NodeLabels: map[string]string{"pool": "batch"},
		NodeTaints: []corev1.Taint{{Key: "dedicated", Value: "batch", Effect: corev1.TaintEffectNoSchedule}},
	}
	s.Do(scenario.Create(s.Ctx, s.Rig.Client, pool.Objects()...))
	s.Until("two machines are ready", scenario.All(pool.Ready(s.Rig.Client, 2), s.described))
	s.Until("their certificates are approved", s.approved("DroverApproved"))

	s.Do(scenario.Delete(s.Ctx, s.Rig.Client, s.Cluster()))
	s.Empty()
}

// byKubeadmControlPlane replaces the adopted control plane with a KubeadmControlPlane of one
// machine. It stores the workload cluster's CA where the provider looks for one before it generates
// its own.
func (s stage) byKubeadmControlPlane(objects []client.Object) []client.Object {
	s.Helper()
	endpoint := clusterv1.APIEndpoint{}
	objects = slices.DeleteFunc(objects, func(o client.Object) bool {
		adopted, is := o.(*controlplanev1.AdoptedControlPlane)
		if is {
			endpoint = adopted.Spec.ControlPlaneEndpoint
		}
		return is
	})
	machine := scenario.Pool{Cluster: s.Adopted}.Template(s.Tenant.Name+"-control-plane", infrav1.SimulatedMachine{})
	controlPlane := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "controlplane.cluster.x-k8s.io/v1beta2", "kind": "KubeadmControlPlane",
		"spec": map[string]any{
			"replicas": int64(1), "version": body.DefaultKubeletVersion, "kubeadmConfigSpec": map[string]any{"format": "cloud-config"},
			"machineTemplate": map[string]any{"spec": map[string]any{"infrastructureRef": map[string]any{
				"apiGroup": infrav1.GroupVersion.Group, "kind": "DroverMachineTemplate", "name": machine.Name,
			}}},
		},
	}}
	controlPlane.SetNamespace(s.Namespace)
	controlPlane.SetName(s.Tenant.Name)
	for _, o := range objects {
		switch o := o.(type) {
		case *infrav1.DroverCluster:
			o.Spec.ControlPlaneEndpoint = endpoint
		case *clusterv1.Cluster:
			o.Spec.ControlPlaneRef.APIGroup, o.Spec.ControlPlaneRef.Kind = "controlplane.cluster.x-k8s.io", controlPlane.GetKind()
		}
	}
	authority := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.Namespace, Name: secret.Name(s.Tenant.Name, secret.ClusterCA),
			Labels: map[string]string{clusterv1.ClusterNameLabel: s.Tenant.Name},
		},
		Type: clusterv1.ClusterSecretType, Data: map[string][]byte{},
	}
	for key, file := range map[string]string{secret.TLSCrtDataName: "ca.crt", secret.TLSKeyDataName: "ca.key"} {
		raw, err := os.ReadFile(filepath.Join(s.Rig.Workload.Dir, "pki", file))
		s.Do(err)
		authority.Data[key] = raw
	}
	return append(objects, authority, machine, controlPlane)
}
