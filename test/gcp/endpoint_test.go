// SPDX-License-Identifier: Apache-2.0

package gcp

import (
	"strings"
	"testing"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/gcp/gcpstub"
	"github.com/drover-io/drover/test/internal/scenario"
)

// TestEndpoint tests the life of a proxy Network Load Balancer, of whose parts Compute Engine takes
// some time for each: the cluster gets its address, a machine of the control plane becomes its
// target and stops being one, and with the cluster all its parts go. Each part is made once.
func TestEndpoint(t *testing.T) {
	s, objects := house.Bare(t, "endpoint")
	for _, o := range objects {
		if c, ok := o.(*infrav1.DroverCluster); ok {
			c.Spec.Endpoint.LoadBalancer.AccountRef = c.Spec.AccountRefs[0]
			c.Spec.Endpoint.LoadBalancer.Cloud.GCP = &infrav1.GCPLoadBalancer{Network: gcpstub.Network}
		}
	}
	s.Do(scenario.Create(s.Ctx, s.Rig.Client, objects...))
	s.Until("the endpoint has an address", s.Endpoint(infrav1.NoTargetsReason))
	infra := s.Infra()
	if e := infra.Spec.ControlPlaneEndpoint; !strings.HasPrefix(e.Host, "198.51.") || e.Port != 6443 {
		t.Errorf("the endpoint is %+v", e)
	}
	if zones := infra.Spec.Creation.LoadBalancerZones; len(zones) != len(gcpstub.Zones()) {
		t.Errorf("the load balancer has zones %q", zones)
	}

	machine := s.NewControlPlane("cp-0")
	s.Until("the machine is a target that answers", s.Endpoint(infrav1.ReadyReason))
	made := s.GCP.Calls()
	t.Logf("calls until then: %v", made)
	if n := made["POST networkEndpointGroups/attachNetworkEndpoints"]; n != 1 {
		t.Errorf("%d calls attached a target, want 1", n)
	}
	if n := s.GCP.BalancersMade(); n != 1 {
		t.Errorf("%d load balancers were made", n)
	}

	s.Do(scenario.Delete(s.Ctx, s.Rig.Client, machine))
	s.Until("the machine is gone", scenario.Empty(s.Rig.Client, &clusterv1.MachineList{}, s.Namespace))
	s.Do(scenario.Delete(s.Ctx, s.Rig.Client, s.Cluster()))
	s.Until("the cluster is gone", scenario.Empty(s.Rig.Client, &infrav1.DroverClusterList{}, s.Namespace))
	if left := s.GCP.Left(cloud.TagOwnership, infra.Spec.Creation.OwnershipID); len(left) > 0 {
		t.Errorf("%q are left", left)
	}
	t.Logf("calls in all: %v", s.GCP.Calls())
	if objections := s.GCP.Objections(); len(objections) > 0 {
		t.Errorf("Google's discovery document: %v", objections)
	}
}
