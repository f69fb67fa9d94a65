// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/test/internal/scenario"
)

// Infra reads the cluster's DroverCluster.
func (s *Stage) Infra() *infrav1.DroverCluster {
	s.Helper()
	infra := s.DroverCluster()
	s.Do(s.Rig.Client.Get(s.Ctx, client.ObjectKeyFromObject(infra), infra))
	return infra
}

// Endpoint checks that the cluster's endpoint has this reason.
func (s *Stage) Endpoint(reason string) scenario.Check {
	return func(context.Context) (string, error) {
		c := conditions.Get(s.Infra(), infrav1.EndpointReadyCondition)
		if c == nil || c.Reason != reason {
			return fmt.Sprintf("EndpointReady is %+v", c), nil
		}
		return "", nil
	}
}

// NewControlPlane creates a machine of the control plane. No control plane's controller has it, and
// no API server runs in it.
func (s *Stage) NewControlPlane(name string) *clusterv1.Machine {
	s.Helper()
	labels := map[string]string{clusterv1.ClusterNameLabel: s.Tenant.Name, clusterv1.MachineControlPlaneLabel: ""}
	meta := metav1.ObjectMeta{Namespace: s.Namespace, Name: name, Labels: labels}
	template := s.NewPool("cp", 1).Objects()[0].(*infrav1.DroverMachineTemplate)
	vm := &infrav1.DroverMachine{ObjectMeta: meta, Spec: infrav1.DroverMachineSpec{DroverMachineFields: template.Spec.Template.Spec}}
	machine := &clusterv1.Machine{ObjectMeta: meta, Spec: clusterv1.MachineSpec{
		ClusterName: s.Tenant.Name, Bootstrap: clusterv1.Bootstrap{DataSecretName: ptr.To(name)},
		InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: infrav1.GroupVersion.Group, Kind: "DroverMachine", Name: name},
	}}
	s.Do(scenario.Create(s.Ctx, s.Rig.Client,
		&corev1.Secret{ObjectMeta: meta, Data: map[string][]byte{"value": []byte("#cloud-config\n")}}, vm, machine))
	return machine
}
