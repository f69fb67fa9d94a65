// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/test/scenario"
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
		if c, ok := o.(*infrav1.CloudCluster); ok {
			c.Spec.Endpoint.LoadBalancer.AccountRef = c.Spec.AccountRefs[0]
			c.Spec.Endpoint.LoadBalancer.AWS = &infrav1.AWSLoadBalancer{Subnets: &infrav1.AWSSelector{IDs: []string{"subnet-0a2", "subnet-0b1"}}}
		}
	}
	s.Do(scenario.Create(s.Ctx, s.Rig.Client, objects...))
	s.Until("the endpoint has an address", s.endpoint(infrav1.NoTargetsReason))
	infra := s.infra()
	if host := infra.Spec.ControlPlaneEndpoint.Host; !strings.HasSuffix(host, ".amazonaws.com") {
		t.Errorf("the endpoint is %q", host)
	}
	owner := infra.Spec.Creation.OwnershipID
	s.Until("the control plane is offered the load balancer's zones alone", func(context.Context) (string, error) {
		var offered []string
		for _, domain := range s.infra().Status.FailureDomains {
			if ptr.Deref(domain.ControlPlane, false) {
				offered = append(offered, domain.Name)
			}
		}
		if !slices.Equal(offered, []string{"us-east-1a", "us-east-1b"}) {
			return fmt.Sprintf("it is offered %q", offered), nil
		}
		return "", nil
	})

	labels := map[string]string{clusterv1.ClusterNameLabel: s.Tenant.Name, clusterv1.MachineControlPlaneLabel: ""}
	meta := metav1.ObjectMeta{Namespace: s.Namespace, Name: "cp-0", Labels: labels}
	template := s.NewPool("cp", 1).Objects()[0].(*infrav1.CloudMachineTemplate)
	vm := &infrav1.CloudMachine{ObjectMeta: meta, Spec: infrav1.CloudMachineSpec{CloudMachineFields: template.Spec.Template.Spec}}
	machine := &clusterv1.Machine{ObjectMeta: meta, Spec: clusterv1.MachineSpec{
		ClusterName: s.Tenant.Name, Bootstrap: clusterv1.Bootstrap{DataSecretName: ptr.To("cp-0")},
		InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: infrav1.GroupVersion.Group, Kind: "CloudMachine", Name: "cp-0"},
	}}
	s.Do(scenario.Create(s.Ctx, s.Rig.Client,
		&corev1.Secret{ObjectMeta: meta, Data: map[string][]byte{"value": []byte("#cloud-config\n")}}, vm, machine))
	s.Until("the machine is a target that answers", s.endpoint(infrav1.ReadyReason))
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
	s.Until("the cluster is gone", scenario.Empty(s.Rig.Client, &infrav1.CloudClusterList{}, s.Namespace))
	if left := s.AWS.Left(cloud.TagOwnership, owner); len(left) > 0 {
		t.Errorf("%q are left", left)
	}
	t.Logf("calls to delete all: %v", calls())
}

func (s *stage) infra() *infrav1.CloudCluster {
	s.Helper()
	infra := s.CloudCluster()
	s.Do(s.Rig.Client.Get(s.Ctx, client.ObjectKeyFromObject(infra), infra))
	return infra
}

// endpoint checks that the endpoint has this reason.
func (s *stage) endpoint(reason string) scenario.Check {
	return func(context.Context) (string, error) {
		c := conditions.Get(s.infra(), infrav1.EndpointReadyCondition)
		if c == nil || c.Reason != reason {
			return fmt.Sprintf("EndpointReady is %+v", c), nil
		}
		return "", nil
	}
}
