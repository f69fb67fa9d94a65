// SPDX-License-Identifier: Apache-2.0

package orphans

import (
	"context"
	"errors"
	"flag"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/controllers"
	"github.com/drover-io/drover/internal/test/playground"
	"github.com/drover-io/drover/test/internal/scenario"
)

var (
	schedules = flag.Int("schedules", 100, "how many schedules to run")
	seed      = flag.Uint64("seed", 0, "seed of the first schedule; the others follow it. 0: another one each time")
	width     = flag.Int("width", 20, "how many schedules share the processes at a time")
	trusting  = flag.Duration("grace", grace, "the collector's --machine-safety-orphan-vms-grace: if it is much less than the schedules' own, the test must fail")
)

const (
	period = time.Second
	// grace is long enough that a busy computer brings most lost objects back within an eighth of it.
	grace = 16 * time.Second
	// long is enough time for a faulty collector to delete what it must keep. With many tenants,
	// a pass comes late, and the collector acts only after a few passes.
	long = grace + 8*period
	// patience is how long a wave may take to come to rest.
	patience = 15 * time.Minute
	// webhooksOnly is the label of the objects that the manager with the webhooks reconciles.
	webhooksOnly = "webhooks"
)

// bench is shared by the tenants of all waves.
type bench struct {
	management *playground.Management
	admin      simulator.Admin
	cloud      *playground.Simulator
	client     client.Client
	binary     string
	// identity is the prefix of this management cluster's creation tokens.
	identity string

	mu        sync.Mutex
	collector *playground.Process
}

// TestSchedules runs random schedules, wave by wave, until one breaks an invariant. It failed with
// -grace 1s, when the grace period was counted from the listing, when paused clusters were judged,
// when machines under deletion did not own their VMs, and when accounts under deletion were judged
// as well. It does not detect whether the share of the fleet counts: its mass losses are also half
// of the fleet.
func TestSchedules(t *testing.T) {
	ctrl.SetLogger(logr.Discard()) // what matters is in the managers' logs
	first := *seed
	if first == 0 {
		first = rand.Uint64N(1_000_000) * 1000
	}
	t.Logf("%d schedules from -seed %d", *schedules, first)
	b := start(t)
	for done := 0; done < *schedules && !t.Failed(); done += *width {
		b.wave(t, first+uint64(done), min(*width, *schedules-done))
	}
}

// start starts everything except tenants.
func start(t *testing.T) *bench {
	b := &bench{}
	var err error
	check := func(doing string, err error) {
		if err != nil {
			t.Fatalf("%s: %v", doing, err)
		}
	}
	b.binary, err = playground.Build(t.Context(), true)
	check("build drover", err)
	b.management, err = playground.StartManagement(t.Context(), playground.ManagementOptions{
		ControlPlaneOptions: playground.ControlPlaneOptions{Progress: os.Stderr},
	})
	check("start the management cluster", err)
	t.Cleanup(func() {
		if err := b.management.Stop(); err != nil {
			t.Error(err)
		}
	})
	check("install drover", b.management.InstallDrover(t.Context()))
	b.cloud, err = playground.StartSimulator(t.Context(), playground.SimulatorOptions{})
	check("start the simulated cloud", err)
	t.Cleanup(func() {
		if err := b.cloud.Stop(); err != nil {
			t.Error(err)
		}
	})
	b.admin = simulator.Admin{URL: b.cloud.URL}
	brief := simulator.Duration{Duration: 100 * time.Millisecond}
	check("set the cloud up", b.admin.SetSettings(t.Context(), simulator.Settings{
		BootMin: brief, BootMax: brief, Stop: brief, Throttle: simulator.ThrottleNone,
	}))
	b.client, err = scenario.NewClient(b.management.AdminConfig())
	check("make a client", err)
	b.identity, err = controllers.Identity(t.Context(), b.client)
	check("ask for the management cluster's identity", err)
	// The webhooks are served by a manager that reconciles nothing but accounts.
	_, err = b.management.StartDrover(t.Context(), playground.DroverOptions{
		Binary: b.binary, Args: []string{"--run=machines", "--watch-filter=" + webhooksOnly},
	})
	check("start the webhooks", err)
	check("start the collector", b.collect(t.Context()))
	t.Cleanup(func() {
		if t.Failed() {
			b.save(t)
		}
	})
	return b
}

// collect starts the collector.
func (b *bench) collect(ctx context.Context) error {
	p, err := b.management.StartDrover(ctx, playground.DroverOptions{Binary: b.binary, Args: []string{
		"--run=safety", "--leader-elect=false", "--cloud-call-timeout=10s",
		"--machine-safety-overshooting-period=0", "--machine-safety-apiserver-statuscheck-period=0",
		"--machine-safety-orphan-vms-period=" + period.String(), "--machine-safety-orphan-vms-grace=" + trusting.String(),
	}})
	b.mu.Lock()
	defer b.mu.Unlock()
	b.collector = p
	return err
}

// restart kills the collector, between two sightings of whatever it tracks, and starts another one.
func (b *bench) restart(ctx context.Context) error {
	b.mu.Lock()
	b.collector.Kill()
	b.mu.Unlock()
	return b.collect(ctx)
}

// save keeps the managers' logs.
func (b *bench) save(t *testing.T) {
	logs, err := filepath.Glob(filepath.Join(b.management.Dir, "drover-*.log"))
	for _, log := range logs {
		text, e := os.ReadFile(log)
		err = errors.Join(err, e, os.WriteFile(filepath.Join(t.ArtifactDir(), filepath.Base(log)), text, 0o600))
	}
	if err != nil {
		t.Log(err)
	}
}

// wave runs n schedules at once: their faults and mistakes, then the rest.
func (b *bench) wave(t *testing.T, first uint64, n int) {
	begin := time.Now()
	tenants := make([]*tenant, n)
	each := func(what string, do func(context.Context, *tenant) error) time.Duration {
		begin := time.Now()
		if t.Failed() {
			return 0
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		var all sync.WaitGroup
		for i := range tenants {
			all.Go(func() {
				if err := do(ctx, tenants[i]); err != nil {
					t.Errorf("seed %d: %s: %v\nIt went so:\n%s", first+uint64(i), what, err, tenants[i].history())
				}
			})
		}
		all.Wait()
		return time.Since(begin).Round(100 * time.Millisecond)
	}
	for i := range tenants {
		tenants[i] = newTenant(b, first+uint64(i))
	}
	each("set it up", func(ctx context.Context, x *tenant) error { return x.setUp(ctx) })
	watching, stop := context.WithCancel(t.Context())
	var watchers sync.WaitGroup
	watchers.Go(func() { watch(watching, b, tenants) })
	var storm sync.WaitGroup
	storm.Go(func() {
		r := rand.New(rand.NewPCG(first, 2))
		for range r.IntN(3) {
			if !scenario.Pause(watching, between(r, 2, 8)) {
				return
			}
			if err := b.restart(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
	played := each("play", func(ctx context.Context, x *tenant) error { return x.play(ctx) })
	storm.Wait()
	rested := each("come to rest", func(ctx context.Context, x *tenant) error { return x.rest(ctx) })
	stop()
	watchers.Wait()
	each("look back", func(_ context.Context, x *tenant) error { return x.violation() })
	each("clear away", func(ctx context.Context, x *tenant) error { return x.clear(ctx) })
	var orphans, asked, late int
	for _, x := range tenants {
		orphans, asked = orphans+x.collected, asked+x.asked
		if x.late {
			late++
		}
	}
	t.Logf("seeds %d to %d: %s, of which %s of mistakes and %s to rest; %d orphans went, %d times a person was asked; %d proved nothing, for the computer was too slow",
		first, first+uint64(n)-1, time.Since(begin).Round(100*time.Millisecond), played, rested, orphans, asked, late)
	if late == n {
		t.Errorf("none of %d schedules proves anything, because this computer was too slow for them: run fewer at a time (-width)", n)
	}
	if orphans == 0 && n > 10 {
		t.Error("the collector has collected nothing")
	}
}

// watch checks the cloud's records periodically.
func watch(ctx context.Context, b *bench, tenants []*tenant) {
	for scenario.Pause(ctx, 200*time.Millisecond) {
		snapshot, err := b.admin.Snapshot(ctx)
		if err != nil {
			continue // only at the end of the test
		}
		at := time.Now() // no earlier than the time of the snapshot
		of := map[string][]simulator.SnapshotResource{}
		for _, r := range snapshot.Live() {
			of[r.Account] = append(of[r.Account], r)
		}
		for _, x := range tenants {
			x.see(at, of[x.Name])
		}
	}
}

// between returns a random duration between from and to, in seconds.
func between(r *rand.Rand, from, to float64) time.Duration {
	return time.Duration((from + r.Float64()*(to-from)) * float64(time.Second)).Round(100 * time.Millisecond)
}
