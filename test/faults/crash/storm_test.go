// SPDX-License-Identifier: Apache-2.0

package crash

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/go-logr/logr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/simulated/wire"
	"github.com/drover-io/drover/test/internal/rig"
	"github.com/drover-io/drover/test/internal/scenario"
)

const (
	// stormMachines is the number of machines that are created, rolled and deleted.
	stormMachines = 100
	// stormSurge is the maximum surge of the rolling update.
	stormSurge = 25
	// A manager lives for stormShortest to stormLongest after it is ready.
	stormShortest, stormLongest = time.Second, 4 * time.Second
	// stormLasts limits the kills in each step. The rest of the step runs without kills.
	stormLasts = 2 * time.Minute
)

// TestStorm kills the manager at random moments, again and again, while many machines are created,
// rolled and deleted. On AWS, the region has six zones, and the machines have a subnet in one of
// them. In the end, each Machine is Ready and has one VM, and after the deletion nothing is left.
// The test is for -cloud simulated and aws.
func TestStorm(t *testing.T) {
	ctrl.SetLogger(logr.Discard())
	begin, ok := map[string]func(context.Context, ...string) (*rig.Rig, error){"simulated": rig.Start, "aws": rig.StartOnAWS}[*where]
	if !ok {
		t.Skipf("-cloud %s: the storm is for simulated and aws", *where)
	}
	r, err := begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	h := &harness{rig: r}
	defer h.end(t)
	if h.seat, err = r.NewSeat(t.Context(), "management"); err != nil {
		t.Fatal(err)
	}
	if err := h.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	x := h.stormTenant(t)
	for _, s := range []step{
		{"create", (*tenant).create, stormReady, false},
		{"roll", (*tenant).roll, stormReady, false},
		{"delete", (*tenant).delete, (*tenant).gone, false},
	} {
		h.who = h.tenants
		from, before := time.Now(), h.kills
		h.act(t, s)
		h.storm(t, s.goal(x))
		h.reach(t, s)
		if t.Failed() {
			return
		}
		t.Logf("%s of %d machines took %s, with %d kills", s.name, stormMachines, time.Since(from).Round(time.Second), h.kills-before)
	}
	h.clear(t)
}

// stormTenant creates the only tenant.
func (h *harness) stormTenant(t *testing.T) *tenant {
	t.Helper()
	made, err := h.rig.NewTenant(t.Context(), "storm")
	if err != nil {
		t.Fatal(err)
	}
	if made.AWS != nil {
		made.AWS.SetZones("us-east-1a", "us-east-1b", "us-east-1c", "us-east-1d", "us-east-1e", "us-east-1f")
		dress := made.Dress
		made.Dress = func(o client.Object) {
			dress(o)
			if template, ok := o.(*infrav1.DroverMachineTemplate); ok {
				template.Spec.Template.Spec.Cloud.AWS.Subnets = infrav1.AWSSelector{IDs: []string{"subnet-0b1"}}
			}
		}
	}
	pool := made.NewPool("a", stormMachines)
	pool.MaxSurge = stormSurge
	x := &tenant{Tenant: made, rig: h.rig, calls: map[string]int{}, pools: []scenario.Pool{pool}}
	h.tenants = []*tenant{x}
	return x
}

// storm kills managers until the goal is reached or stormLasts is over. When it returns, a manager
// runs.
func (h *harness) storm(t *testing.T, goal scenario.Check) {
	t.Helper()
	for end := time.Now().Add(stormLasts); time.Now().Before(end); {
		lives := stormShortest + rand.N(stormLongest-stormShortest)
		scenario.Pause(t.Context(), lives)
		if missing, err := goal(t.Context()); missing == "" && err == nil {
			return
		}
		h.kill()
		if err := h.start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// stormReady checks that all Machines are Ready and cloned from the current template, and that each
// has one VM.
func stormReady(x *tenant) scenario.Check {
	pools := x.rig.Confirmed(func(r client.Reader) scenario.Check {
		return scenario.All(x.pools[0].Ready(r, stormMachines), x.pools[0].Current(r))
	})
	return scenario.All(pools, func(ctx context.Context) (string, error) {
		snapshot, err := x.rig.Snapshot(ctx)
		if err != nil {
			return "", err
		}
		vms := 0
		for _, r := range x.Live(snapshot) {
			if r.Kind == wire.Instance {
				vms++
			}
		}
		machines := &clusterv1.MachineList{}
		if err := x.rig.Client.List(ctx, machines, client.InNamespace(x.Namespace)); err != nil {
			return "", err
		}
		if vms != stormMachines || len(machines.Items) != stormMachines {
			return fmt.Sprintf("%d VMs live for %d Machines", vms, len(machines.Items)), nil
		}
		return "", errors.Join(x.Twice(snapshot))
	})
}
