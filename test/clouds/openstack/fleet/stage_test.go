// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drover-io/drover/cloud/simulated/wire"
	"github.com/drover-io/drover/test/internal/faultproxy"
	"github.com/drover-io/drover/test/internal/rig"
	"github.com/drover-io/drover/test/internal/scenario"
	"github.com/drover-io/drover/test/internal/stack"
	"github.com/drover-io/drover/test/takeover"
)

// Only the hypervisor is a fake. A server takes seconds of CPU time, and as many minutes on a busy
// computer.
var house = rig.House{Patience: 40 * time.Minute, CallTimeout: 2 * time.Minute}

func TestMain(m *testing.M) { os.Exit(house.Main(m, begin)) }

// begin starts the rig with the kinds of the systems whose machines Drover takes over.
func begin(ctx context.Context, args ...string) (*rig.Rig, error) {
	r, err := rig.StartOnOpenStack(ctx, append(args, takeover.PatientWithNodes)...)
	if err == nil {
		err = errors.Join(takeover.InstallKinds(ctx, r.Client), takeover.InstallKubeadm(ctx, r.Client),
			takeover.InstallProvider(ctx, r.Client, capo))
	}
	return r, err
}

// stage is a cluster whose machines are OpenStack servers.
type stage struct{ *rig.Stage }

// start starts a stage with this name.
func start(t *testing.T, name string) *stage {
	t.Helper()
	return &stage{house.Stage(t, name)}
}

// nodes checks that n Nodes are Ready, and that no other instance is running.
func (s *stage) nodes(n int) scenario.Check {
	if strings.Contains(s.Namespace, "regional") {
		return s.Nodes(n, "openstack://"+stack.Region+"/")
	}
	return s.Nodes(n, "openstack:///")
}

// live counts the tenant's ports in the cloud, and returns the IDs of its servers.
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

// calls counts the account's calls by verb and path, and resets the counts.
func (s *stage) calls() map[string]int {
	all := map[string]int{}
	for _, c := range s.Cloud.Calls() {
		all[c.Verb]++
	}
	s.Cloud.Reset()
	return all
}

// sent checks that a call with this verb was made.
func (s *stage) sent(verb string) scenario.Check {
	return func(context.Context) (string, error) {
		if slices.ContainsFunc(s.Cloud.Calls(), func(c faultproxy.Call) bool { return c.Verb == verb }) {
			return "", nil
		}
		return "no " + verb, nil
	}
}

// signal sends a signal to OpenStack services.
func (s *stage) signal(name string, services ...string) {
	out, err := exec.CommandContext(s.Ctx, "../../../../hack/openstack/signal", append([]string{name}, services...)...).CombinedOutput()
	if err != nil {
		s.Errorf("signal: %v\n%s", err, out)
	}
}

// costs checks that the last step made one call of the given kind per machine ("" for none), and
// few others. The numbers of listings, each of which reads servers and ports, and of live reads,
// which the machines share, depend on the time, and so on the computer. With few machines they are
// most of the calls. From 300 machines on, all calls together must keep to the budget per machine.
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
