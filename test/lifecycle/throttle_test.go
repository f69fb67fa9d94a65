// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/cloud/simulated/wire"
	"github.com/drover-io/drover/internal/test/playground"
	"github.com/drover-io/drover/test/internal/scenario"
)

// strictCloud starts a cloud for one test that throttles with the figures of EC2. It runs no
// kubelets: a hundred of them under the race detector would be too much.
func strictCloud(t *testing.T, network string) (*playground.Simulator, simulator.Admin) {
	t.Helper()
	return ownCloud(t, network, "--throttle=ec2", "--latency=100ms", "--no-pods")
}

// ownCloud starts a cloud for one test. Its machines have addresses of the given network. All
// clusters of these tests register their Nodes in one cluster, where no address may occur twice.
func ownCloud(t *testing.T, network string, args ...string) (*playground.Simulator, simulator.Admin) {
	t.Helper()
	config := filepath.Join(t.TempDir(), "cloud.yaml")
	if err := os.WriteFile(config, []byte("networks: [{name: default, cidr: "+network+"}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cloud, err := playground.StartSimulator(t.Context(), playground.SimulatorOptions{Args: append(args, "--config="+config)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cloud.Stop() })
	return cloud, simulator.Admin{URL: cloud.URL}
}

// likeEC2 puts a cluster on a strict cloud, and sets the rate limits of its account to the figures
// of EC2.
func likeEC2(cloud *playground.Simulator) func(*scenario.Adopted) {
	return func(a *scenario.Adopted) {
		a.Endpoint, a.Token = cloud.URL, cloud.Token
		a.RateLimits = &infrav1.RateLimits{
			Create: infrav1.RateLimit{PerSecond: "2", Burst: 5},
			Delete: infrav1.RateLimit{PerSecond: "5", Burst: 50},
			Read:   infrav1.RateLimit{PerSecond: "20", Burst: 100},
		}
	}
}

// throttled asserts that fewer than 2 % of all calls, and of the creates, were throttled.
func throttled(t *testing.T, admin simulator.Admin) {
	t.Helper()
	audit, err := admin.Audit(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, op := range []string{"", wire.RunInstances} {
		all, refused := audit.Calls(op), audit.Calls(op, wire.RequestLimitExceeded)
		t.Logf("of %d calls (%q) %d were throttled", all, op, refused)
		if refused*50 >= all {
			t.Errorf("of %d calls (%q) %d were throttled, want under 2 %%", all, op, refused)
		}
	}
}

// TestHundredMachinesThrottled creates a hundred machines, more than EC2 lets an account create at
// once.
func TestHundredMachinesThrottled(t *testing.T) {
	t.Parallel()
	cloud, admin := strictCloud(t, "10.80.0.0/16")
	s := newStage(t, likeEC2(cloud))
	pool := scenario.Pool{Cluster: s.Adopted, Name: "pool", Replicas: 100}
	start := time.Now()
	s.create(pool.Objects()...)
	s.until("a hundred machines are ready", pool.Ready(env.view, 100))
	t.Logf("a hundred machines were ready after %s", time.Since(start).Round(time.Second))
	throttled(t, admin)
	if err := scenario.Delete(s.ctx, env.client, pool.Deployment()); err != nil {
		t.Fatal(err)
	}
	s.soon("nothing is left", s.gone())
	throttled(t, admin)
	if snapshot, err := admin.Snapshot(s.ctx); err != nil || len(snapshot.Live()) != 0 {
		t.Errorf("%d resources are left in the cloud (%v)", len(snapshot.Live()), err)
	}
}

// TestTwoClustersShareOneBucket runs two clusters with the same credentials. To the cloud they are
// one account, so they must share its rate limit. Each on its own would send twice as many calls as
// are allowed.
func TestTwoClustersShareOneBucket(t *testing.T) {
	t.Parallel()
	cloud, admin := strictCloud(t, "10.81.0.0/16")
	one := newStage(t, likeEC2(cloud))
	two := newStage(t, likeEC2(cloud), func(a *scenario.Adopted) { a.Namespace, a.Name = a.Namespace+"-2", a.Name+"-2" })
	const each = 12
	var pools []scenario.Pool
	for _, s := range []*stage{one, two} {
		s.until("the cluster is available", s.Available(env.view))
		pools = append(pools, scenario.Pool{Cluster: s.Adopted, Name: "pool", Replicas: each})
	}
	for i, s := range []*stage{one, two} {
		s.create(pools[i].Objects()...)
	}
	one.until("both pools are ready", scenario.All(pools[0].Ready(env.view, each), pools[1].Ready(env.view, each)))
	snapshot, err := admin.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if n := len(snapshot.Instances()); n != 2*each { // a create whose answer is late is retried, and must not create a second VM
		t.Errorf("%d VMs were made, want %d", n, 2*each)
	}
	throttled(t, admin)
	for i, s := range []*stage{one, two} {
		if err := scenario.Delete(s.ctx, env.client, pools[i].Deployment()); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range []*stage{one, two} {
		s.soon("nothing is left", s.gone())
	}
}
