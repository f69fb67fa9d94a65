// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/gophercloud/gophercloud/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/test/internal/scenario"
)

// TestEndpoint tests the life of a load balancer of Octavia: the cluster gets its floating IP, a
// machine of the control plane becomes its member and stops being one, and with the cluster all its
// parts go, but not while somebody has taken its tags off. Each part is made once. Nothing checks
// the members, because this Octavia starts no amphorae: so none ever answers.
func TestEndpoint(t *testing.T) {
	t.Parallel()
	bare, objects := house.Bare(t, "endpoint")
	s := &stage{bare}
	for _, o := range objects {
		if c, ok := o.(*infrav1.DroverCluster); ok {
			c.Spec.Endpoint.LoadBalancer.AccountRef = c.Spec.AccountRefs[0]
			c.Spec.Endpoint.LoadBalancer.Cloud.OpenStack = &infrav1.OpenStackLoadBalancer{Subnet: "nodes", FloatingNetwork: "public"}
		}
	}
	s.Do(scenario.Create(s.Ctx, s.Rig.Client, objects...))
	s.Until("the endpoint has an address", func(ctx context.Context) (string, error) {
		if c := conditions.Get(s.Infra(), infrav1.EndpointReadyCondition); c != nil && strings.Contains(c.Message, "earlier create") {
			return "", fmt.Errorf("nothing was sent before: %s", c.Message)
		}
		return s.Endpoint(infrav1.NoTargetsReason)(ctx)
	})
	infra := s.Infra()
	if e := infra.Spec.ControlPlaneEndpoint; !strings.HasPrefix(e.Host, "198.51.100.") || e.Port != 6443 {
		t.Errorf("the endpoint is %+v", e)
	}

	machine := s.NewControlPlane("cp-0")
	s.Until("the machine is a member, which does not answer", s.Endpoint(infrav1.NoTargetAnswersReason))
	vm := &infrav1.DroverMachineList{}
	s.Do(s.Rig.Client.List(s.Ctx, vm, client.InNamespace(s.Namespace)))
	var address string
	for _, a := range vm.Items[0].Status.Addresses {
		if a.Type == clusterv1.MachineInternalIP {
			address = a.Address
		}
	}
	s.Until("Octavia has it, and no other", s.members(infra, address))
	s.Do(scenario.Delete(s.Ctx, s.Rig.Client, machine))
	s.Until("the machine is gone", scenario.Empty(s.Rig.Client, &clusterv1.MachineList{}, s.Namespace))
	s.Until("Octavia has no member", s.members(infra))

	lb := s.balancers(infra)[0]
	s.tagBalancer(lb.ID, nil)
	s.Do(scenario.Delete(s.Ctx, s.Rig.Client, s.Cluster()))
	s.Until("the load balancer without tags is not taken for gone", s.Endpoint(infrav1.CloudConflictReason))
	s.tagBalancer(lb.ID, lb.Tags)
	s.Until("the cluster is gone", scenario.Empty(s.Rig.Client, &infrav1.DroverClusterList{}, s.Namespace))
	if left := s.balancers(infra); len(left) > 0 {
		t.Errorf("%+v is left", left)
	}
	var floating struct {
		All []struct{ ID, Description string } `json:"floatingips"`
	}
	s.Do(s.OpenStack.Do(s.Ctx, http.MethodGet, "network/floatingips", nil, &floating))
	for _, f := range floating.All {
		if strings.Contains(f.Description, infra.Spec.Creation.LoadBalancerToken) {
			t.Errorf("floating IP %s is left", f.ID)
		}
	}
	calls := s.calls()
	t.Logf("calls in all: %v", calls)
	for _, once := range []string{"POST load-balancer/lbaas", "POST network/floatingips", "DELETE network/floatingips"} {
		if calls[once] != 1 {
			t.Errorf("%d calls %s, want 1", calls[once], once)
		}
	}
	s.Empty()
}

// balancer is a load balancer in Octavia's API.
type balancer struct {
	ID    string
	Tags  []string
	Pools []struct{ ID string }
}

// tagBalancer replaces a load balancer's tags, as soon as Octavia lets anybody change it.
func (s *stage) tagBalancer(id string, tags []string) {
	s.Helper()
	body := map[string]any{"loadbalancer": map[string]any{"tags": append([]string{}, tags...)}}
	s.Until("Octavia has changed the tags", func(ctx context.Context) (string, error) {
		err := s.OpenStack.Do(ctx, http.MethodPut, "load-balancer/lbaas/loadbalancers/"+id, body, nil)
		if gophercloud.ResponseCodeIs(err, http.StatusConflict) {
			return err.Error(), nil
		}
		return "", err
	})
}

// balancers returns the load balancers of a cluster.
func (s *stage) balancers(infra *infrav1.DroverCluster) []balancer {
	s.Helper()
	var answer struct{ LoadBalancers []balancer }
	s.Do(s.OpenStack.Do(s.Ctx, http.MethodGet, "load-balancer/lbaas/loadbalancers?tags="+cloud.TagToken+"="+infra.Spec.Creation.LoadBalancerToken, nil, &answer))
	return answer.LoadBalancers
}

// members checks that the cluster's only load balancer has these members.
func (s *stage) members(infra *infrav1.DroverCluster, want ...string) scenario.Check {
	return func(context.Context) (string, error) {
		all := s.balancers(infra)
		if len(all) != 1 || len(all[0].Pools) != 1 {
			return fmt.Sprintf("there is %+v", all), nil
		}
		var answer struct{ Members []struct{ Address string } }
		s.Do(s.OpenStack.Do(s.Ctx, http.MethodGet, "load-balancer/lbaas/pools/"+all[0].Pools[0].ID+"/members", nil, &answer))
		var now []string
		for _, m := range answer.Members {
			now = append(now, m.Address)
		}
		if !slices.Equal(now, want) {
			return fmt.Sprintf("the members are %q", now), nil
		}
		return "", nil
	}
}
