// SPDX-License-Identifier: Apache-2.0

package azure

import (
	"strings"
	"testing"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/azure/armstub"
	"github.com/drover-io/drover/test/internal/scenario"
)

// TestEndpoint tests the life of a public Standard Load Balancer, which Azure takes some time for:
// the cluster gets its address, a machine of the control plane becomes its target and stops being
// one, and with the cluster it goes, and its public address, too. Each is made once.
func TestEndpoint(t *testing.T) {
	s, objects := house.Bare(t, "endpoint")
	for _, o := range objects {
		if c, ok := o.(*infrav1.DroverCluster); ok {
			c.Spec.Endpoint.LoadBalancer.AccountRef = c.Spec.AccountRefs[0]
			c.Spec.Endpoint.LoadBalancer.Cloud.Azure = &infrav1.AzureLoadBalancer{SubnetID: armstub.Subnet}
		}
	}
	s.Do(scenario.Create(s.Ctx, s.Rig.Client, objects...))
	s.Until("the endpoint has an address", s.Endpoint(infrav1.NoTargetsReason))
	infra := s.Infra()
	if e := infra.Spec.ControlPlaneEndpoint; !strings.HasPrefix(e.Host, "198.51.") || e.Port != 6443 {
		t.Errorf("the endpoint is %+v", e)
	}
	if zones := infra.Spec.Creation.LoadBalancerZones; len(zones) != 0 {
		t.Errorf("the load balancer has zones %q: a target may be in any", zones)
	}

	machine := s.NewControlPlane("cp-0")
	s.Until("the machine is a target that answers", s.Endpoint(infrav1.ReadyReason))
	made := s.Azure.Calls()
	t.Logf("calls until then: %v", made)
	if n := made["PUT loadBalancers/backendAddressPools"]; n != 1 {
		t.Errorf("%d calls changed the targets, want 1", n)
	}
	if n := made["PUT publicIPAddresses"]; n != 1 {
		t.Errorf("%d calls created a public address, want 1", n)
	}
	if n := s.Azure.BalancersMade(); n != 1 {
		t.Errorf("%d load balancers were made", n)
	}

	s.Do(scenario.Delete(s.Ctx, s.Rig.Client, machine))
	s.Until("the machine is gone", scenario.Empty(s.Rig.Client, &clusterv1.MachineList{}, s.Namespace))
	s.Do(scenario.Delete(s.Ctx, s.Rig.Client, s.Cluster()))
	s.Until("the cluster is gone", scenario.Empty(s.Rig.Client, &infrav1.DroverClusterList{}, s.Namespace))
	if left := s.Azure.Left(cloud.TagOwnership, infra.Spec.Creation.OwnershipID); len(left) > 0 {
		t.Errorf("%q are left", left)
	}
	t.Logf("calls in all: %v", s.Azure.Calls())
	if objections := s.Azure.Objections(); len(objections) > 0 {
		t.Errorf("Microsoft's models: %v", objections)
	}
}
