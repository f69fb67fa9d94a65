// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"flag"
	"net/http"
	"slices"
	"testing"
	"time"

	"k8s.io/utils/ptr"

	"github.com/drover-io/drover/test/internal/faultproxy"
	"github.com/drover-io/drover/test/internal/scenario"
)

var machines = flag.Int("machines", 10, "how many machines TestCalls makes")

// TestMachineDeployment tests that the machines of a MachineDeployment, each with a port, become
// Ready Nodes with data from Nova's metadata service, roll and are deleted. A server that somebody
// deletes is replaced. In the end nothing is left.
func TestMachineDeployment(t *testing.T) {
	t.Parallel()
	const n = 20
	s := start(t, "blue")
	pool := s.NewPool("md", n)
	pool.MaxSurge = n / 2
	s.Do(scenario.Create(s.Ctx, s.Rig.Client, pool.Objects()...))
	s.Until("all machines are ready", scenario.All(pool.Ready(s.Rig.Client, n), s.nodes(n)))
	made := s.calls()
	t.Logf("calls to make %d machines: %v", n, made)
	if ports, servers := s.live(); ports != n || len(servers) != n {
		t.Errorf("%d servers and %d ports, want %d of each", len(servers), ports, n)
	}
	if made["POST compute/servers"] != n || made["POST network/ports"] != n || made["POST identity/auth"] != 1 {
		t.Errorf("want one create of a server and of a port for each machine, and one login for all")
	}

	s.Do(pool.Roll(s.Ctx, s.Rig.Client, pool.Name+"-2", pool.Machine))
	s.Until("all have rolled", scenario.All(pool.Ready(s.Rig.Client, n), pool.Current(s.Rig.Client), s.nodes(n)))

	// The health check comes only now: on a busy computer a machine may take longer to start than
	// the check allows.
	s.Do(scenario.Create(s.Ctx, s.Rig.Client, pool.HealthCheck(60)))
	_, servers := s.live()
	s.Do(s.OpenStack.Delete(s.Ctx, servers[0]))
	s.Until("the one that was deleted is replaced", func(ctx context.Context) (string, error) {
		if _, now := s.live(); slices.Contains(now, servers[0]) {
			return servers[0] + " is there", nil
		}
		return scenario.All(pool.Ready(s.Rig.Client, n), s.nodes(n))(ctx)
	})

	s.calls()
	s.Do(pool.Scale(s.Ctx, s.Rig.Client, 0))
	s.Empty()
	gone := s.calls()
	t.Logf("calls to delete them: %v", gone)
	if gone["DELETE compute/servers"] != n || gone["DELETE network/ports"] != n {
		t.Errorf("want one delete of a server and of a port for each machine")
	}
}

// TestCalls counts the calls for machines without their own ports, with listings at the default
// intervals: to create, to idle and to delete.
func TestCalls(t *testing.T) {
	t.Parallel()
	s, n := start(t, "plain"), *machines
	s.calls()
	const active, idle, rest = 5 * time.Second, time.Minute, 90 * time.Second
	began := time.Now()
	pool := s.NewPool("md", int32(n))
	s.Do(scenario.Create(s.Ctx, s.Rig.Client, pool.Objects()...))
	s.Until("all machines are ready", scenario.All(pool.Ready(s.Rig.Client, int32(n)), s.nodes(n)))
	s.costs("to make them", "POST compute/servers", n, time.Since(began), active, 2)

	scenario.Pause(s.Ctx, rest)
	s.costs("while nothing happens", "", n, rest, idle, 0.1*rest.Minutes()/10)

	began = time.Now()
	s.Do(pool.Scale(s.Ctx, s.Rig.Client, 0))
	s.Empty()
	s.costs("to delete them", "DELETE compute/servers", n, time.Since(began), active, 1.1)
}

// TestTwoClusters tests that of two clusters in one project, neither touches the other's machines,
// even when all of its own are deleted. The provider IDs of the second cluster include the region,
// in its kubelets too.
func TestTwoClusters(t *testing.T) {
	t.Parallel()
	one, other := start(t, "one"), start(t, "regional")
	for _, s := range []*stage{one, other} {
		s.Do(scenario.Create(s.Ctx, s.Rig.Client, s.NewPool("md", 2).Objects()...))
	}
	for _, s := range []*stage{one, other} {
		s.Until("its machines are ready", scenario.All(s.NewPool("md", 2).Ready(s.Rig.Client, 2), s.nodes(2)))
	}
	_, before := other.live()
	one.Do(one.NewPool("md", 2).Scale(one.Ctx, one.Rig.Client, 0))
	one.Empty()
	if _, after := other.live(); !slices.Equal(slices.Sorted(slices.Values(before)), slices.Sorted(slices.Values(after))) {
		t.Errorf("the other cluster's servers were %v, and are %v", before, after)
	}
	other.Do(other.NewPool("md", 2).Scale(other.Ctx, other.Rig.Client, 0))
	other.Empty()
}

// TestNovaRestarts kills Nova's and Neutron's services during creates and lets them restart. Each
// machine is created once. A server that the killed conductor was building stays in BUILD for ever,
// and its machine is replaced.
func TestNovaRestarts(t *testing.T) {
	s := start(t, "restart")
	pool := s.NewPool("md", 4)
	check := pool.HealthCheck(60)
	check.Spec.Checks.NodeStartupTimeoutSeconds = ptr.To[int32](180)
	s.Do(scenario.Create(s.Ctx, s.Rig.Client, append(pool.Objects(), check)...))
	s.Until("a create is under way", s.sent("POST compute/servers"))
	s.signal("KILL", "nova-api", "nova-conductor", "neutron")
	s.Until("all machines are ready", scenario.All(pool.Ready(s.Rig.Client, 4), s.nodes(4)))
	t.Logf("calls: %v", s.calls())
	s.Do(pool.Scale(s.Ctx, s.Rig.Client, 0))
	s.Empty()
}

// TestNovaHangs stops Nova with a pending create, and kills the manager. Nova tells the next
// manager that there is no server, because it handles the create after that request. The manager
// must not send another create, and takes the server that appears. The zones, which the manager
// reads before anything else, are answered in Nova's place.
func TestNovaHangs(t *testing.T) {
	s := start(t, "killed")
	s.Cloud.SetRule(func(_ context.Context, c faultproxy.Call, at faultproxy.Point) faultproxy.Verdict {
		if c.Verb == "POST compute/servers" && at == faultproxy.Before {
			s.signal("STOP", "nova-api")
		}
		return faultproxy.Verdict{}
	})
	pool := s.NewPool("md", 1)
	s.Do(scenario.Create(s.Ctx, s.Rig.Client, pool.Objects()...))
	s.Until("a create is under way", s.sent("POST compute/servers"))
	scenario.Pause(s.Ctx, 2*time.Second) // until the request has reached Nova
	s.Seat.Process.Kill()
	zones := faultproxy.Answer{Status: http.StatusOK, ContentType: "application/json",
		Body: []byte(`{"availabilityZoneInfo": [{"zoneName": "nova", "zoneState": {"available": true}}]}`)}
	s.Cloud.SetRule(func(_ context.Context, c faultproxy.Call, _ faultproxy.Point) (v faultproxy.Verdict) {
		if c.Verb == "GET compute/os-availability-zone" {
			v.Answer = &zones
		}
		return v
	})
	s.calls()
	s.Do(s.StartManager(s.Ctx))
	s.Until("the next manager looks for a server", s.sent("GET compute/servers"))
	s.Cloud.SetRule(nil)
	s.signal("CONT", "nova-api")
	s.Until("the machine is ready", scenario.All(pool.Ready(s.Rig.Client, 1), s.nodes(1)))
	if calls := s.calls(); calls["POST compute/servers"] != 0 {
		t.Errorf("the next manager's calls: %v, want no create", calls)
	}
	s.Do(pool.Scale(s.Ctx, s.Rig.Client, 0))
	s.Empty()
}
