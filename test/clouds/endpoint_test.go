// SPDX-License-Identifier: Apache-2.0

package clouds

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/test/internal/scenario"
)

// endpoint is what TestEndpoint must know of a cloud.
type endpoint struct {
	spec infrav1.LoadBalancerCloud
	// host is a regular expression of its address.
	host string
	// zones are those of the load balancer, and all that a control plane is offered. Without any, a
	// target may be in each.
	zones []string
	// once are calls that are made once: each change of targets, for example.
	once []string
}

// TestEndpoint tests the life of a load balancer, which most clouds take some time for: the cluster
// gets its address, a machine of the control plane becomes its target and stops being one, and with
// the cluster all its parts go. Each part is made once.
func TestEndpoint(t *testing.T) {
	e := here.endpoint
	needs(t, e != nil)
	s, objects := bare(t, "endpoint")
	balancers := s.standIn.(interface {
		BalancersMade() int
		Left(tag, value string) []string
	})
	for _, o := range objects {
		if c, ok := o.(*infrav1.DroverCluster); ok {
			c.Spec.Endpoint.LoadBalancer.AccountRef = c.Spec.AccountRefs[0]
			c.Spec.Endpoint.LoadBalancer.Cloud = e.spec
		}
	}
	s.Do(scenario.Create(s.Ctx, s.Rig.Client, objects...))
	s.Until("the endpoint has an address", s.Endpoint(infrav1.NoTargetsReason))
	infra := s.Infra()
	if p := infra.Spec.ControlPlaneEndpoint; !regexp.MustCompile(e.host).MatchString(p.Host) || p.Port != 6443 {
		t.Errorf("the endpoint is %+v", p)
	}
	if zones := infra.Spec.Creation.LoadBalancerZones; !slices.Equal(slices.Sorted(slices.Values(zones)), e.zones) {
		t.Errorf("the load balancer has zones %q", zones)
	}
	s.Until("the control plane is offered the load balancer's zones alone", s.offered(e.zones))

	machine := s.NewControlPlane("cp-0")
	s.Until("the machine is a target that answers", s.Endpoint(infrav1.ReadyReason))
	made := s.standIn.Calls()
	t.Logf("calls until then: %v", made)
	for _, once := range e.once {
		if made[once] != 1 {
			t.Errorf("%d calls %s, want 1", made[once], once)
		}
	}
	if n := balancers.BalancersMade(); n != 1 {
		t.Errorf("%d load balancers were made", n)
	}

	s.Do(scenario.Delete(s.Ctx, s.Rig.Client, machine))
	s.Until("the machine is gone", scenario.Empty(s.Rig.Client, &clusterv1.MachineList{}, s.Namespace))
	s.Do(scenario.Delete(s.Ctx, s.Rig.Client, s.Cluster()))
	s.Until("the cluster is gone", scenario.Empty(s.Rig.Client, &infrav1.DroverClusterList{}, s.Namespace))
	if left := balancers.Left(cloud.TagOwnership, infra.Spec.Creation.OwnershipID); len(left) > 0 {
		t.Errorf("%q are left", left)
	}
	s.Until("the record has its life", s.recorded(infra.Spec.Creation.LoadBalancerToken,
		"Creating the load balancer", "Recorded the load balancer", "Deleting the load balancer", "The load balancer is deleted"))
	t.Logf("calls in all: %v", s.standIn.Calls())
	unobjected(t, s.standIn)
}

// offered checks that the control plane is offered these failure domains and no other, or all when
// there are none.
func (s *stage) offered(zones []string) scenario.Check {
	return func(context.Context) (string, error) {
		var all, offered []string
		for _, domain := range s.Infra().Status.FailureDomains {
			all = append(all, domain.Name)
			if ptr.Deref(domain.ControlPlane, false) {
				offered = append(offered, domain.Name)
			}
		}
		if want := map[bool][]string{true: all, false: zones}[len(zones) == 0]; len(offered) == 0 || !slices.Equal(offered, want) {
			return fmt.Sprintf("of %q it is offered %q", all, offered), nil
		}
		return "", nil
	}
}

// recorded checks that the manager's log has each line about a token once, in this order.
func (s *stage) recorded(token string, lines ...string) scenario.Check {
	return func(context.Context) (string, error) {
		logged, err := s.Rig.Logged(token)
		var found []string
		for _, line := range logged {
			if i := slices.IndexFunc(lines, func(said string) bool { return strings.Contains(line, said) }); i >= 0 {
				found = append(found, lines[i])
			}
		}
		if !slices.Equal(found, lines) {
			return fmt.Sprintf("the log says %q", found), err
		}
		return "", err
	}
}
