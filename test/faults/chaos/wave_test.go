// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/test/internal/faultproxy"
	"github.com/drover-io/drover/test/internal/rig"
	"github.com/drover-io/drover/test/internal/scenario"
)

const (
	// seats is the number of managers.
	seats = 2
	// lease is the default duration of the lease: how long others wait for a leader that fell
	// silent. A shorter one is lost on a busy computer, again and again.
	lease = 15 * time.Second
	// calm is how long recovery may take after the last fault. The longest wait of a correct
	// manager is 3 minutes, until it asks for capacity again.
	calm = 20 * time.Minute
	// slow is the duration above which recovery is logged.
	slow = 30 * time.Second
	// glance is the interval at which the cloud's records are read.
	glance = 300 * time.Millisecond
)

// wave is a set of schedules that share the processes.
type wave struct {
	rig      *rig.Rig
	world    world
	managers []*manager
	tenants  []*tenant
	actions  []action
	settings simulator.Settings

	mu     sync.Mutex
	start  time.Time
	log    []string
	broken []error
	faults sync.WaitGroup
	// restarting ensures that only one API server restarts at a time.
	restarting sync.Mutex
}

func (w *wave) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.log = append(w.log, fmt.Sprintf("%6.2fs %s", time.Since(w.start).Seconds(), fmt.Sprintf(format, args...)))
}

// run runs n schedules, from seed on, from setup to deletion.
func (w *wave) run(t *testing.T, seed uint64, n int) {
	ctx := t.Context()
	begin := time.Now()
	w.actions, w.settings = storm(seed)
	for i := range n {
		made, err := w.rig.NewTenant(ctx, fmt.Sprintf("s%d", seed+uint64(i)))
		if err != nil {
			t.Fatal(err)
		}
		x := &tenant{Tenant: made, rig: w.rig, world: w.world, seed: seed + uint64(i), actions: schedule(seed + uint64(i)),
			played: map[string]int{}, failed: map[string]int{}}
		x.Inventory.IdleSeconds = 2
		if x.armed() {
			x.OrphanPolicy = infrav1.OrphanPolicyDelete
		}
		w.tenants = append(w.tenants, x)
	}
	defer w.end(t)
	w.each(t, "set up", func(ctx context.Context, x *tenant) error { return x.setUp(ctx) })

	watching, stop := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() { w.watch(watching) })
	defer watch.Wait()
	defer stop()

	w.reach(t, "Available", func(ctx context.Context, x *tenant) (string, error) { return x.Available(w.rig.View)(ctx) })
	ready := time.Since(begin)
	w.rage(t)
	raged := time.Since(begin)
	w.reach(t, "at rest", func(ctx context.Context, x *tenant) (string, error) { return x.atRest(ctx) })
	rested := time.Since(begin)
	w.each(t, "delete the pools", func(ctx context.Context, x *tenant) error { return x.deletePools(ctx) })
	w.reach(t, "gone", func(ctx context.Context, x *tenant) (string, error) { return x.gone(ctx) })
	gone := time.Since(begin)
	w.release(t)
	w.reach(t, "still gone", func(ctx context.Context, x *tenant) (string, error) { return x.gone(ctx) }) // nothing appeared late
	t.Logf("seeds %d to %d: %s to be available, %s of faults, %s to rest, %s to be gone, %s to be released", seed, seed+uint64(n)-1,
		round(ready), round(raged-ready), round(rested-raged), round(gone-rested), round(time.Since(begin)-gone))
}

func round(d time.Duration) time.Duration { return d.Round(100 * time.Millisecond) }

// rage starts the faults, and ends them.
func (w *wave) rage(t *testing.T) {
	if t.Failed() {
		return
	}
	settings := rig.Settings()
	settings.ConsistencyLag, settings.PageSize, settings.Latency = w.settings.ConsistencyLag, w.settings.PageSize, w.settings.Latency
	if err := w.world.set(t.Context(), w, settings); err != nil {
		t.Fatal(err)
	}
	for _, x := range w.tenants {
		x.Cloud.SetRule(x.lines.rule)
		x.API.SetRule(x.lines.rule)
	}
	for _, m := range w.managers {
		m.seat.API.SetRule(w.dispatch)
	}
	w.mu.Lock()
	w.start = time.Now()
	w.mu.Unlock()
	var all sync.WaitGroup
	for _, x := range w.tenants {
		all.Go(func() { x.play(t.Context(), w.start) })
	}
	all.Go(func() { w.storm(t.Context()) })
	all.Wait()
	w.faults.Wait()
	w.rig.Settle()

	if err := w.world.set(t.Context(), w, rig.Settings()); err != nil {
		t.Fatal(err)
	}
	for _, m := range w.managers {
		m.seat.API.SetRule(nil)
	}
	w.each(t, "heal", func(ctx context.Context, x *tenant) error { return x.heal(ctx) })
}

// dispatch passes a call to the management cluster to the tenant that it concerns.
func (w *wave) dispatch(ctx context.Context, c faultproxy.Call, at faultproxy.Point) faultproxy.Verdict {
	for _, x := range w.tenants {
		if x.Namespace == c.Namespace {
			return x.lines.rule(ctx, c, at)
		}
	}
	return faultproxy.Verdict{}
}

// storm runs the actions against the processes.
func (w *wave) storm(ctx context.Context) {
	for _, a := range w.actions {
		if !waitUntil(ctx, w.start.Add(a.at)) {
			return
		}
		w.note("%s", a)
		w.faults.Go(func() {
			if err := w.do(ctx, a); err != nil {
				w.note("   %s failed: %v", a.what, err)
			}
		})
	}
}

func (w *wave) do(ctx context.Context, a action) error {
	m := w.managers[a.n%len(w.managers)]
	switch a.what {
	case "kill manager":
		m.signal(syscall.SIGKILL)
	case "terminate manager":
		m.signal(syscall.SIGTERM)
	case "freeze manager":
		resume := m.signal(syscall.SIGSTOP)
		waitUntil(ctx, time.Now().Add(a.lasts))
		resume()
	case "webhooks down":
		for _, m := range w.managers {
			m.signal(syscall.SIGKILL)
		}
	case "lag caches":
		m.seat.API.SetLag(func(c faultproxy.Call) time.Duration {
			if a.line == "" || c.Resource == a.line {
				return a.delay
			}
			return 0
		})
		waitUntil(ctx, time.Now().Add(a.lasts))
		m.seat.API.SetLag(nil)
	case "cut watches":
		m.seat.API.CutStreams()
	case "restart management API server":
		w.restarting.Lock()
		defer w.restarting.Unlock()
		return w.rig.Management.RestartAPIServer(ctx)
	case "restart workload API server":
		w.restarting.Lock()
		defer w.restarting.Unlock()
		return w.rig.Workload.RestartAPIServer(ctx)
	case "cloud down":
		rise, err := w.world.fall(ctx, w, simulator.DownMode(a.line))
		if err != nil {
			return err
		}
		waitUntil(ctx, time.Now().Add(a.lasts))
		return rise(ctx)
	default:
		return fmt.Errorf("nobody knows how to %s", a.what)
	}
	return nil
}

// watch checks the cloud's records periodically.
func (w *wave) watch(ctx context.Context) {
	for waitUntil(ctx, time.Now().Add(glance)) {
		snapshot, err := w.rig.Snapshot(ctx)
		if err != nil {
			continue // only at the end of the test
		}
		for _, x := range w.tenants {
			if err := x.watch(snapshot); err != nil {
				w.mu.Lock()
				w.broken = append(w.broken, fmt.Errorf("seed %d: %w", x.seed, err))
				w.mu.Unlock()
			}
		}
	}
}

// violation returns the first violation that watch has found, or nil.
func (w *wave) violation() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.broken) > 0 {
		return w.broken[0]
	}
	return nil
}

// each calls do for all tenants at once, and retries errors for up to a minute.
func (w *wave) each(t *testing.T, what string, do func(context.Context, *tenant) error) {
	t.Helper()
	if t.Failed() {
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var all sync.WaitGroup
	errs := make([]error, len(w.tenants))
	for i, x := range w.tenants {
		all.Go(func() {
			errs[i] = do(ctx, x)
			for errs[i] != nil && waitUntil(ctx, time.Now().Add(200*time.Millisecond)) { // until managers and their webhooks are back
				errs[i] = do(ctx, x)
			}
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Errorf("%s: %v", what, err)
	}
}

// reach waits until a check is true for all tenants.
func (w *wave) reach(t *testing.T, what string, check func(context.Context, *tenant) (string, error)) {
	t.Helper()
	if t.Failed() {
		return
	}
	begin, open := time.Now(), w.tenants
	last := map[*tenant]string{}
	NewGomega(func(message string, _ ...int) { t.Error(message) }).Eventually(func(g Gomega) {
		if err := w.violation(); err != nil {
			StopTrying("an invariant is broken").Wrap(err).Now()
		}
		var still []*tenant
		var sentences []string
		for _, x := range open {
			missing, err := check(t.Context(), x)
			if took := time.Since(begin); missing == "" && err == nil && took > slow {
				t.Logf("seed %d took %s to be %s; the last to come was: %s", x.seed, round(took), what, last[x])
			}
			if missing != "" || err != nil {
				still, last[x] = append(still, x), missing
				sentences = append(sentences, strings.TrimSpace(fmt.Sprintf("seed %d: %s %v", x.seed, missing, errors.Join(err))))
			}
		}
		open = still
		g.Expect(sentences).To(BeEmpty(), what)
	}, calm, "300ms").Should(Succeed())
	if t.Failed() {
		for _, x := range open {
			t.Logf("seed %d is not %s:\n%s", x.seed, what, w.rig.Dump(context.Background(), x.Namespace))
		}
	}
}

// release deletes Clusters and namespaces, and the Nodes that Cluster API leaves behind when a
// Cluster is deleted as a whole.
func (w *wave) release(t *testing.T) {
	w.each(t, "delete the Clusters", func(ctx context.Context, x *tenant) error {
		return scenario.Delete(ctx, w.rig.Client, x.Cluster())
	})
	w.reach(t, "released", func(ctx context.Context, x *tenant) (string, error) {
		return scenario.Empty(w.rig.View, &clusterv1.ClusterList{}, x.Namespace)(ctx)
	})
	w.each(t, "delete the namespaces", func(ctx context.Context, x *tenant) error {
		nodes := &corev1.NodeList{}
		if err := w.rig.Nodes.List(ctx, nodes); err != nil {
			return err
		}
		for i := range nodes.Items {
			if strings.HasPrefix(nodes.Items[i].Name, x.Name+"-") {
				if err := scenario.Delete(ctx, w.rig.Nodes, &nodes.Items[i]); err != nil {
					return err
				}
			}
		}
		return scenario.Delete(ctx, w.rig.Client, x.Adopted.Objects()[0])
	})
}

// end checks what must hold for the whole wave. After a failure it logs what was done and how to
// repeat it.
func (w *wave) end(t *testing.T) {
	if err := w.violation(); err != nil {
		t.Errorf("an invariant is broken: %v", err)
	}
	for _, x := range w.tenants {
		for _, line := range x.log {
			if strings.Contains(line, "INVARIANT") {
				t.Errorf("seed %d: %s", x.seed, line)
			}
		}
	}
	w.secrets(t)
	w.count(t)
	if t.Failed() {
		first := w.tenants[0].seed
		t.Logf("again: go test -C test ./faults/chaos -run TestSchedules -cloud %s -seed %d -schedules %d -width %d", *where, first,
			len(w.tenants), len(w.tenants))
		t.Logf("the storm:\n%s", strings.Join(w.log, "\n"))
		for _, x := range w.tenants {
			t.Logf("seed %d:\n%s", x.seed, strings.Join(x.log, "\n"))
		}
	}
	for _, x := range w.tenants {
		x.Close()
	}
}

// count logs how often each action was played, so that a reader sees that all of them happen.
func (w *wave) count(t *testing.T) {
	played, failed := map[string]int{}, map[string]int{}
	var claims int64
	for _, x := range w.tenants {
		claims += x.claims.Load()
		for what, n := range x.played {
			played[what] += n
			failed[what] += x.failed[what]
		}
	}
	var all []string
	for _, what := range slices.Sorted(maps.Keys(played)) {
		all = append(all, fmt.Sprintf("%s %d (%d failed)", what, played[what], failed[what]))
	}
	t.Logf("played: %s; hostile guests made %d certificate requests and Nodes", strings.Join(all, ", "), claims)
}

// secrets searches the managers' logs for the tenants' tokens.
func (w *wave) secrets(t *testing.T) {
	for _, m := range w.managers {
		for _, log := range m.logs() {
			raw, err := os.ReadFile(log)
			if err != nil {
				t.Error(err)
			}
			if i := strings.Index(string(raw), "token-of-"); i >= 0 {
				t.Errorf("a secret is in %s: …%s…", log, raw[max(0, i-100):min(len(raw), i+100)])
			}
		}
	}
}

// waitUntil waits until a time. It returns false if ctx ends first.
func waitUntil(ctx context.Context, at time.Time) bool {
	return scenario.Pause(ctx, time.Until(at))
}

func mergePatch(text string) client.Patch { return client.RawPatch(types.MergePatchType, []byte(text)) }
