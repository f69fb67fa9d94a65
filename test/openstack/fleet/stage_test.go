// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drover-io/drover/cloud/simulated/wire"
	"github.com/drover-io/drover/test/faultproxy"
	"github.com/drover-io/drover/test/rig"
	"github.com/drover-io/drover/test/scenario"
	"github.com/drover-io/drover/test/stack"
)

// The hypervisor is a fake, but all else is not: a server takes seconds of a processor, and on a
// busy computer as many minutes.
var house = rig.House{Patience: 40 * time.Minute, CallTimeout: 2 * time.Minute}

func TestMain(m *testing.M) { os.Exit(house.Main(m, rig.StartOnOpenStack)) }

// stage is a cluster whose machines are servers of the OpenStack.
type stage struct{ *rig.Stage }

// start sets a stage of this name.
func start(t *testing.T, name string) *stage {
	t.Helper()
	return &stage{house.Stage(t, name)}
}

// nodes checks that so many Nodes are Ready, and no other instance lives.
func (s *stage) nodes(n int) scenario.Check {
	if strings.Contains(s.Namespace, "regional") {
		return s.Nodes(n, "openstack://"+stack.Region+"/")
	}
	return s.Nodes(n, "openstack:///")
}

// live counts what the tenant has in the cloud, and returns the servers' IDs.
func (s *stage) live() (ports int, servers []string) {
	s.Helper()
	for _, r := range s.Live(s.Books()) {
		if r.Kind == wire.Instance {
			servers = append(servers, r.ID)
		} else {
			ports++
		}
	}
	return ports, servers
}

// calls counts those of the account, by what they are, and begins anew.
func (s *stage) calls() map[string]int {
	all := map[string]int{}
	for _, c := range s.Cloud.Calls() {
		all[c.Verb]++
	}
	s.Cloud.Reset()
	return all
}

// sent checks that a call of this kind was made.
func (s *stage) sent(verb string) scenario.Check {
	return func(context.Context) (string, error) {
		if slices.ContainsFunc(s.Cloud.Calls(), func(c faultproxy.Call) bool { return c.Verb == verb }) {
			return "", nil
		}
		return "no " + verb, nil
	}
}

// signal sends one to services of the OpenStack.
func (s *stage) signal(name string, services ...string) {
	out, err := exec.CommandContext(s.Ctx, "../../../hack/openstack/signal", append([]string{name}, services...)...).CombinedOutput()
	if err != nil {
		s.Errorf("signal: %v\n%s", err, out)
	}
}

// costs holds what has just been done to one call of a kind for each machine ("" for none), and few
// others. Listings, each of which reads the servers and the ports, and looks, which the machines
// share, belong to the time that it took, which the computer decides. Of few machines they are most
// of the calls; from 300 machines on, all calls together keep to the budget for each.
func (s *stage) costs(what, verb string, machines int, took, pace time.Duration, budget float64) {
	s.Helper()
	calls, all := s.calls(), 0
	for _, n := range calls {
		all += n
	}
	listings := calls["GET network/ports"]
	others := all - 2*listings
	if verb != "" {
		others -= calls[verb]
	}
	each := float64(all) / float64(machines)
	s.Logf("calls %s: %v in %.0f s, %.3f for each of %d", what, calls, took.Seconds(), each, machines)
	if verb != "" && calls[verb] != machines {
		s.Errorf("%d of %s %s, want %d", calls[verb], verb, what, machines)
	}
	const names = 10
	if most := int(took/pace) + names; others > most {
		s.Errorf("%d calls %s beside them and listings, want at most %d", others, what, most)
	}
	if most := int(took/pace) + 3; listings > most {
		s.Errorf("%d listings %s, want at most %d", listings, what, most)
	}
	if machines >= 300 && each > budget {
		s.Errorf("%.3f calls %s for each machine, want at most %.3f", each, what, budget)
	}
}
