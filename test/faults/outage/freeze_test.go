// SPDX-License-Identifier: Apache-2.0

package outage

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/test/internal/faultproxy"
	"github.com/drover-io/drover/test/internal/scenario"
)

// TestFreezeIsCutOff interrupts a freeze at each of its writes, and then the unreachable API server
// answers again. Nothing may stay frozen, not even an object that Drover's cache did not show as
// frozen when Drover unfroze the rest.
//
// The test failed when Drover wrote the condition last, and, with the lag, when Drover checked
// nothing again after it had unfrozen the cluster.
func TestFreezeIsCutOff(t *testing.T) {
	s := start(t, "freeze", 1, "--machine-safety-apiserver-statuscheck-period=6s", "--machine-safety-apiserver-statuscheck-timeout=1s")
	s.Until("the machine is ready", s.pool.Ready(s.Rig.View, 1))
	s.Until("the cluster is known to be reachable", s.reachable(infrav1.ReachableReason))

	for _, write := range []struct{ resource, subresource string }{
		{"droverclusters", "status"}, {"droverclusters", ""}, {"machinehealthchecks", ""}, {"machinedeployments", ""}, {"machinesets", ""},
	} {
		var tried atomic.Bool
		s.Seat.API.SetRule(func(_ context.Context, c faultproxy.Call, _ faultproxy.Point) faultproxy.Verdict {
			if c.Verb != "patch" || c.Resource != write.resource || c.Subresource != write.subresource {
				return faultproxy.Verdict{}
			}
			tried.Store(true)
			return faultproxy.Verdict{Cut: true}
		})
		s.line(false)
		s.Until("freezing comes to "+write.resource+" "+write.subresource, func(context.Context) (string, error) {
			if !tried.Load() {
				return "it has not", nil
			}
			return "", nil
		})
		s.line(true)
		scenario.Pause(s.Ctx, 3*time.Second) // the API server is probed again, and answers
		s.Seat.API.SetRule(nil)
		s.Until("nothing is frozen", s.frozen(false))
		s.Until("it says so", s.reachable(infrav1.ReachableReason))
	}

	s.Seat.API.SetLag(func(c faultproxy.Call) time.Duration {
		if c.Resource == "machinesets" {
			return 8 * time.Second
		}
		return 0
	})
	s.line(false)
	s.Until("all is frozen", s.frozen(true))
	s.line(true)
	s.Until("it says that it is unfrozen", s.reachable(infrav1.ReachableReason))
	s.Seat.API.SetLag(nil)
	s.Until("nothing is frozen", s.frozen(false))
}

// line opens or cuts the connection to the workload cluster.
func (s *stage) line(open bool) {
	if open {
		s.API.SetRule(nil)
		return
	}
	s.API.SetRule(func(context.Context, faultproxy.Call, faultproxy.Point) faultproxy.Verdict {
		return faultproxy.Verdict{Cut: true}
	})
	s.API.CutStreams()
}
