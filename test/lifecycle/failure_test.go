// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/test/internal/scenario"
)

// TestRefusalsAreSaid checks that the condition reports what the cloud refuses, by its error code,
// and names what to look at.
func TestRefusalsAreSaid(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		machine infrav1.SimulatedMachine
		fault   simulator.Fault
		reason  string
		words   []string
	}{
		{name: "type", machine: infrav1.SimulatedMachine{InstanceType: "gigantic"}, reason: infrav1.InvalidSpecReason,
			words: []string{"gigantic"}},
		{name: "image", machine: infrav1.SimulatedMachine{Image: "no-such-image"}, reason: infrav1.InvalidSpecReason,
			words: []string{"no-such-image"}},
		{name: "zone", machine: infrav1.SimulatedMachine{Zone: "mars-1a"}, reason: infrav1.InvalidSpecReason, words: []string{"mars-1a"}},
		{name: "quota", fault: simulator.Fault{Kind: simulator.ErrorBefore, Code: "InstanceLimitExceeded"}, reason: infrav1.QuotaExceededReason},
		{name: "html", fault: simulator.Fault{Kind: simulator.HTML}, reason: infrav1.CloudErrorUnknownReason},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			if test.fault.Kind != "" {
				test.fault.Account, test.fault.Operation = s.Name, "RunInstances"
				if _, err := env.admin.AddFault(s.ctx, test.fault); err != nil {
					t.Fatal(err)
				}
			}
			pool := scenario.Pool{Cluster: s.Adopted, Name: "pool", Replicas: 1, Machine: test.machine}
			s.create(pool.Objects()...)
			s.until("the machine says what is wrong", func(ctx context.Context) (string, error) {
				machines := s.machines()
				if len(machines) == 0 {
					return "there is no DroverMachine yet", nil
				}
				c := conditions.Get(&machines[0], clusterv1.ReadyCondition)
				if c == nil || c.Reason != test.reason {
					return fmt.Sprintf("Ready is %+v, want reason %s", c, test.reason), nil
				}
				for _, w := range test.words {
					if !strings.Contains(c.Message, w) {
						return fmt.Sprintf("the message %q does not say %q", c.Message, w), nil
					}
				}
				return "", nil
			})
			if err := scenario.Delete(s.ctx, env.client, pool.Deployment()); err != nil {
				t.Fatal(err)
			}
			if test.fault.Kind == "" { // nothing was ever created, and the cloud said so: the machine is deleted without a wait
				s.until("nothing is left", s.gone())
			}
		})
	}
}

// TestNoCapacityMovesToAnotherZone checks that a create moves from a zone without capacity to
// another one, and that the zone is remembered: later machines do not try it again.
func TestNoCapacityMovesToAnotherZone(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	full := []string{"sim-1a", "sim-1c"}
	for _, zone := range full {
		change := simulator.CapacityChange{Region: "sim-1", Zone: zone, InstanceType: "medium", Instances: 0}
		if err := env.admin.SetCapacity(s.ctx, change); err != nil {
			t.Fatal(err)
		}
	}
	refused := func() (calls int) {
		t.Helper()
		audit, err := env.admin.Audit(s.ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range audit.Rows {
			if r.Account == s.Name && r.Operation == "RunInstances" && r.Outcome == "InsufficientInstanceCapacity" {
				calls += r.Calls
			}
		}
		return calls
	}
	pool := scenario.Pool{Cluster: s.Adopted, Name: "pool", Replicas: 6, Machine: infrav1.SimulatedMachine{InstanceType: "medium"}}
	s.create(pool.Objects()...)
	s.until("six machines are ready", pool.Ready(env.view, 6))
	if n := refused(); n > 6*len(full) { // all machines may have tried at the same moment
		t.Errorf("%d creates of six machines were refused in %d zones", n, len(full))
	}

	// The start zone is random. A machine that is bound to one of the full zones tries it if no
	// other machine has.
	for _, zone := range full {
		scout := pool
		scout.Name, scout.Replicas = "scout-"+zone, 1
		deployment := scout.Deployment()
		deployment.Spec.Template.Spec.FailureDomain = zone
		s.create(scout.Template(scout.Name, scout.Machine), scout.ConfigTemplate(), deployment)
	}
	s.until("the machines of the full zones say so", func(context.Context) (string, error) {
		said := 0
		for _, m := range s.machines() {
			if c := conditions.Get(&m, clusterv1.ReadyCondition); c != nil && c.Reason == infrav1.NoCapacityReason {
				said++
			}
		}
		if said < len(full) {
			return fmt.Sprintf("%d of %d say that there is no capacity", said, len(full)), nil
		}
		return "", nil
	})
	known := refused()
	if known < len(full) {
		t.Errorf("%d creates were refused for want of capacity, and %d zones have none", known, len(full))
	}
	if err := pool.Scale(s.ctx, env.client, 12); err != nil {
		t.Fatal(err)
	}
	s.until("twelve machines are ready", pool.Ready(env.view, 12))
	if n := refused(); n != known {
		t.Errorf("%d creates of machines that came later were refused: it was known where there is no capacity", n-known)
	}
	for _, m := range s.machines() {
		if m.Spec.ProviderID != "" && m.Status.FailureDomain != "sim-1b" {
			t.Errorf("DroverMachine %s is in %q, and only sim-1b had capacity", m.Name, m.Status.FailureDomain)
		}
	}
}

// TestMachinesSpreadOverZones checks that the machines of one account spread over its zones.
func TestMachinesSpreadOverZones(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	pool := scenario.Pool{Cluster: s.Adopted, Name: "pool", Replicas: 12}
	s.create(pool.Objects()...)
	s.until("twelve machines are ready", pool.Ready(env.view, 12))
	zones := map[string]int{}
	for _, m := range s.machines() {
		zones[m.Status.FailureDomain]++
	}
	if len(zones) < 2 { // three zones and twelve machines: one of 3^11 runs fails by chance
		t.Errorf("all machines are in one zone: %v", zones)
	}
}

// TestCredentialsAreRotated checks that rejected credentials stop only the calls, and that new ones
// are used as soon as the Secret holds them.
func TestCredentialsAreRotated(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	pool := scenario.Pool{Cluster: s.Adopted, Name: "pool", Replicas: 1}
	s.create(pool.Objects()...)
	s.until("a machine is ready", pool.Ready(env.view, 1))

	if err := env.admin.SetAccount(s.ctx, simulator.AccountOptions{Name: s.Name, Tokens: []string{"new-token-of-" + s.Name}}); err != nil {
		t.Fatal(err)
	}
	s.until("the account says that it is refused", s.account(infrav1.UnauthorizedReason))
	if err := pool.Scale(s.ctx, env.client, 2); err != nil {
		t.Fatal(err)
	}
	machine := s.machines()[0]
	s.stays("the running machine", func() string {
		wrong, err := s.ready(&machine, infrav1.ReadyReason)(s.ctx)
		if err != nil {
			return err.Error()
		}
		return wrong
	})
	secret := &corev1.Secret{}
	if err := env.client.Get(s.ctx, client.ObjectKey{Namespace: s.Namespace, Name: s.Name + "-credentials"}, secret); err != nil {
		t.Fatal(err)
	}
	secret.Data["token"] = []byte("new-token-of-" + s.Name)
	if err := env.client.Update(s.ctx, secret); err != nil {
		t.Fatal(err)
	}
	s.until("both machines are ready", pool.Ready(env.view, 2))
	s.until("the account is ready again", s.account(infrav1.ReadyReason))
}

func (s *stage) account(reason string) scenario.Check {
	return func(ctx context.Context) (string, error) {
		account := &infrav1.DroverAccount{}
		if err := env.view.Get(ctx, client.ObjectKey{Namespace: s.Namespace, Name: s.Name}, account); err != nil {
			return "", err
		}
		c := conditions.Get(account, clusterv1.ReadyCondition)
		if c == nil || c.Reason != reason {
			return fmt.Sprintf("DroverAccount has Ready %+v, want reason %s", c, reason), nil
		}
		return "", nil
	}
}
