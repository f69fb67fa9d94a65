// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"sync"
	"testing"
	"time"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/cloud/simulated/simulator/body"
	"github.com/drover-io/drover/cloud/simulated/wire"
	"github.com/drover-io/drover/test/internal/scenario"
	"github.com/drover-io/drover/test/internal/whole"
)

const (
	// lastMinor is the release of Kubernetes that the cluster has first.
	lastMinor = "v1.35.4"
	// targetLag is how long the load balancer takes to use new targets, and to no longer use former
	// ones.
	targetLag = 5 * time.Second
)

// TestLife takes a whole cluster through its life: it grows, is upgraded to another minor and patch
// release, becomes its own management cluster and rolls there, comes back, and shrinks. Meanwhile
// the load balancer is slow and its calls fail, and a client asks the endpoint. In the end the
// control plane is rolled without Drover's hook, to show what the hook is for.
func TestLife(t *testing.T) {
	s := start(t, whole.Options{Releases: []string{lastMinor, whole.LastPatch}})
	s.do(s.CreateOf(s.ctx, lastMinor, "cluster-template-kubeadm.yaml", whole.Name, 1, 1))
	s.until("the first machine answers", s.Initialized)
	asker := s.ask()
	s.until("the worker is ready", s.Workers(1))
	s.until("all is of the last minor release", s.Runs(lastMinor))
	s.do(s.Scale(s.ctx, 3))
	s.until("the control plane has three healthy machines", s.Healthy(3))

	s.disturb()
	s.upgrade(whole.LastPatch)
	s.upgrade(body.DefaultKubeletVersion)
	s.Logf("grown and upgraded: %s", s.judge(asker))

	asker = s.ask()
	s.do(s.MoveIn(s.ctx))
	s.until("the cluster, its own management cluster, is healthy", s.Healthy(3))
	s.roll("its own management cluster replaces all machines")
	s.do(s.MoveOut(s.ctx))
	s.until("the cluster is healthy after the move", s.Healthy(3))
	s.Logf("its own management cluster: %s", s.judge(asker))

	asker = s.ask()
	stop := s.takeHooks()
	s.roll("all machines are replaced without the hook")
	stop()
	s.Logf("without the hook: %s", asker.End())

	asker = s.ask()
	s.do(s.Scale(s.ctx, 1))
	s.until("the control plane has one healthy machine", s.Healthy(1))
	s.Logf("from 3 to 1: %s", s.judge(asker))
	s.do(scenario.Delete(s.ctx, s.Client, s.Cluster()))
	s.until("nothing is left", s.Gone)
}

// disturb makes the load balancer slow, and lets a third of the calls that change it fail or lose
// their answers.
func (s *stage) disturb() {
	settings, err := s.Admin.Settings(s.ctx)
	s.do(err)
	settings.TargetLag = simulator.Duration{Duration: targetLag}
	s.do(s.Admin.SetSettings(s.ctx, settings))
	for _, f := range []simulator.Fault{
		{Kind: simulator.ErrorBefore, Code: wire.RequestLimitExceeded, RetryAfter: 1, Operation: wire.PutLoadBalancer, Probability: 0.2},
		{Kind: simulator.CutAfter, Operation: wire.PutLoadBalancer, Probability: 0.2},
	} {
		_, err := s.Admin.AddFault(s.ctx, f)
		s.do(err)
	}
}

// upgrade upgrades the control plane, and then the workers.
func (s *stage) upgrade(release string) {
	s.Helper()
	old, err := s.Names(s.ctx)
	s.do(err)
	s.do(s.UpgradeControlPlane(s.ctx, release))
	s.until("the control plane is of "+release, s.Healthy(3, old...))
	s.do(s.UpgradeWorkers(s.ctx, release))
	s.until("all is of "+release, scenario.All(s.Workers(1), s.Runs(release)))
}

// roll replaces all machines of the control plane.
func (s *stage) roll(what string) {
	s.Helper()
	old, err := s.Names(s.ctx)
	s.do(err)
	s.do(s.Roll(s.ctx))
	s.until(what, s.Healthy(3, old...))
}

// takeHooks takes Drover's hook off each Machine that is being deleted, as if nobody had set it,
// until stop is called.
func (s *stage) takeHooks() (stop func()) {
	ctx, cancel := context.WithCancel(s.ctx)
	var working sync.WaitGroup
	working.Go(func() {
		for ; ctx.Err() == nil; time.Sleep(50 * time.Millisecond) {
			machines, err := s.Machines(ctx)
			for i := range machines {
				m := &machines[i]
				if _, has := m.Annotations[infrav1.EndpointHook]; has && !m.DeletionTimestamp.IsZero() {
					err = scenario.Patch(ctx, s.Client, m, func() { delete(m.Annotations, infrav1.EndpointHook) })
				}
			}
			if err != nil && ctx.Err() == nil {
				s.Log(err)
			}
		}
	})
	return func() {
		cancel()
		working.Wait()
	}
}
