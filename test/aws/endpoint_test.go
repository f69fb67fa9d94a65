// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/test/internal/scenario"
)

// balancing are the calls that only load balancers need.
var balancing = []string{
	"CreateSecurityGroup", "AuthorizeSecurityGroupIngress", "DescribeSecurityGroups", "DeleteSecurityGroup",
	"CreateTargetGroup", "CreateLoadBalancer", "CreateListener", "RegisterTargets", "DeregisterTargets", "DeleteLoadBalancer", "DeleteTargetGroup",
	"DescribeLoadBalancers", "DescribeTargetGroups", "DescribeListeners", "DescribeTargetHealth",
}

// TestEndpoint tests the life of a Network Load Balancer: the cluster gets its DNS name, a machine
// of the control plane becomes its target and stops being one, and with the cluster all its parts
// go. The load balancer is made with few calls, and only once.
func TestEndpoint(t *testing.T) {
	bare, objects := house.Bare(t, "endpoint")
	s := &stage{bare}
	calls := s.counter()
	for _, o := range objects {
		if c, ok := o.(*infrav1.DroverCluster); ok {
			c.Spec.Endpoint.LoadBalancer.AccountRef = c.Spec.AccountRefs[0]
			c.Spec.Endpoint.LoadBalancer.Cloud.AWS = &infrav1.AWSLoadBalancer{Subnets: &infrav1.AWSSelector{IDs: []string{"subnet-0a2", "subnet-0b1"}}}
		}
	}
	s.Do(scenario.Create(s.Ctx, s.Rig.Client, objects...))
	s.Until("the endpoint has an address", s.Endpoint(infrav1.NoTargetsReason))
	infra := s.Infra()
	if host := infra.Spec.ControlPlaneEndpoint.Host; !strings.HasSuffix(host, ".amazonaws.com") {
		t.Errorf("the endpoint is %q", host)
	}
	owner := infra.Spec.Creation.OwnershipID
	s.Until("the control plane is offered the load balancer's zones alone", func(context.Context) (string, error) {
		var offered []string
		for _, domain := range s.Infra().Status.FailureDomains {
			if ptr.Deref(domain.ControlPlane, false) {
				offered = append(offered, domain.Name)
			}
		}
		if !slices.Equal(offered, []string{"us-east-1a", "us-east-1b"}) {
			return fmt.Sprintf("it is offered %q", offered), nil
		}
		return "", nil
	})

	machine := s.NewControlPlane("cp-0")
	s.Until("the machine is a target that answers", s.Endpoint(infrav1.ReadyReason))
	made := calls()
	n := 0
	for _, op := range balancing {
		n += made[op]
	}
	t.Logf("%d calls for the load balancer and its target: %v", n, made)
	atMost(t, "targets registered", made["RegisterTargets"], 1)
	atMost(t, "load balancers made", s.AWS.BalancersMade(), 1)

	s.Do(scenario.Delete(s.Ctx, s.Rig.Client, machine))
	s.Until("the machine is gone", scenario.Empty(s.Rig.Client, &clusterv1.MachineList{}, s.Namespace))
	s.Do(scenario.Delete(s.Ctx, s.Rig.Client, s.Cluster()))
	s.Until("the cluster is gone", scenario.Empty(s.Rig.Client, &infrav1.DroverClusterList{}, s.Namespace))
	if left := s.AWS.Left(cloud.TagOwnership, owner); len(left) > 0 {
		t.Errorf("%q are left", left)
	}
	t.Logf("calls to delete all: %v", calls())
}
