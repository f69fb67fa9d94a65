// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/drover-io/drover/test/internal/rig"
)

var (
	schedules = flag.Int("schedules", 50, "how many schedules to run")
	seed      = flag.Uint64("seed", 0, "seed of the first schedule; the others follow it. 0: another one each time")
	where     = flag.String("cloud", "simulated",
		"where the machines are made: simulated, aws, azure or gcp for a stand-in, vsphere for govmomi's vCenter, or kubevirt")
	shipped = flag.Bool("shipped", false, "run the managers as they are shipped, without the race detector: they are faster then, and so meet other moments")
	width   = flag.Int("width", 25, "how many schedules share the processes at a time")
)

// TestSchedules runs random schedules, wave by wave, until one breaks an invariant.
func TestSchedules(t *testing.T) {
	ctrl.SetLogger(logr.Discard()) // what matters is in the managers' logs
	first := *seed
	if first == 0 {
		first = rand.Uint64N(1_000_000) * 1000
	}
	t.Logf("%d schedules from -seed %d", *schedules, first)
	world, ok := worlds[*where]
	if !ok {
		t.Fatalf("-cloud %s: there is no such", *where)
	}
	r, err := world.start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if *shipped {
		if err := r.Ship(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	managers, stop := keepManagers(t, r)
	defer func() {
		stop()
		if t.Failed() {
			if err := r.Save(t.ArtifactDir()); err != nil {
				t.Log(err)
			}
		}
		if err := r.Stop(); err != nil {
			t.Error(err)
		}
	}()
	for done := 0; done < *schedules && !t.Failed(); done += *width {
		w := &wave{rig: r, world: world, managers: managers}
		w.run(t, first+uint64(done), min(*width, *schedules-done))
	}
}

// keepManagers starts the managers and returns when all are ready.
func keepManagers(t *testing.T, r *rig.Rig) (managers []*manager, stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running, all sync.WaitGroup
	for i := range seats {
		seat, err := r.NewSeat(t.Context(), fmt.Sprintf("manager-%d", i))
		if err != nil {
			t.Fatal(err)
		}
		m := &manager{seat: seat}
		managers = append(managers, m)
		running.Add(1)
		all.Go(func() { m.keep(ctx, sync.OnceFunc(running.Done)) })
	}
	running.Wait()
	return managers, func() {
		cancel()
		all.Wait()
		for _, m := range managers {
			m.seat.Close()
		}
	}
}
