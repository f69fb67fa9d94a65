// SPDX-License-Identifier: Apache-2.0

package crash

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	"github.com/drover-io/drover/bootstrap"
	"github.com/drover-io/drover/test/internal/faultproxy"
	"github.com/drover-io/drover/test/internal/rig"
	"github.com/drover-io/drover/test/internal/scenario"
)

var (
	width = flag.Int("width", 24, "how many machines go through their lives at once, each in a namespace of its own")
	lives = flag.Int("lives", 3, "at how many points, far from each other, the manager dies in each step of one machine's life")
	where = flag.String("cloud", "simulated", "where the machines are made: simulated, aws, azure or gcp for a stand-in, vsphere for govmomi's vCenter, or kubevirt")
	only  = flag.String("points", "", "regular expression: die only at points whose line in the list matches")
)

const (
	// patience is the timeout for everything that must come true in the end. What EC2 does not show
	// counts as absent only after more than two minutes.
	patience = 30 * time.Minute
	// slow is the duration above which a step is logged.
	slow = 45 * time.Second
	// gather is how long the test waits for further points once all else is done.
	gather = 3 * time.Second
	// hold is how long a call is held at most while the test waits for others. It is shorter than
	// the shortest timeout that Drover gives a call, 10 s.
	hold = 6 * time.Second
)

// TestCrashAtEveryStep enumerates the points, and crashes the manager at each of them.
func TestCrashAtEveryStep(t *testing.T) {
	ctrl.SetLogger(logr.Discard()) // what matters is in the managers' logs
	begin, ok := map[string]func(context.Context, ...string) (*rig.Rig, error){
		"simulated": rig.Start, "aws": rig.StartOnAWS, "azure": rig.StartOnAzure, "gcp": rig.StartOnGCP, "vsphere": rig.StartOnVSphere,
		"kubevirt": rig.StartOnKubeVirt,
	}[*where]
	if !ok {
		t.Fatalf("-cloud %s: there is no such", *where)
	}
	r, err := begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	h := &harness{rig: r}
	defer h.end(t)
	seat, err := r.NewSeat(t.Context(), "management")
	if err != nil {
		t.Fatal(err)
	}
	h.seat = seat
	if err := h.start(t.Context()); err != nil {
		t.Fatal(err)
	}

	wanted, err := regexp.Compile(*only)
	if err != nil {
		t.Fatal(err)
	}
	todo := h.reference(t)
	if t.Failed() {
		return
	}
	total, certain := 0, 0
	for _, s := range steps {
		t.Logf("%d points in %s:%s", len(todo[s.name]), s.name, list(todo[s.name]))
		todo[s.name] = slices.DeleteFunc(todo[s.name], func(p point) bool { return !wanted.MatchString(p.String()) })
		total += len(todo[s.name])
		for _, p := range todo[s.name] {
			if !h.chance[p] {
				certain++
			}
		}
	}
	missed := h.crash(t, todo, *lives)
	if !t.Failed() && len(missed) > 0 {
		missed = h.crash(t, missed.byStep(), 1) // points that were not reached after an earlier crash are reached without one
	}
	t.Logf("the manager was killed %d times, at %d of %d points; not met again:%s", h.kills, total-len(missed), total, list(missed))
	// Chance decides which conditions go into one patch, and who writes first. So a point that one
	// tenant reached need not be reached again.
	missed = slices.DeleteFunc(missed, func(p point) bool { return h.chance[p] })
	if len(missed) > certain/10 {
		t.Errorf("%d of %d points were not met, though every tenant came to them without a crash: is the enumeration still true?", len(missed),
			certain)
	}
}

// step is a part of a machine's life, and of its cluster's.
type step struct {
	name string
	act  func(*tenant, context.Context) error
	goal func(*tenant) scenario.Check
	// lost is for steps that start with a VM and a Node of which the manager knows nothing: it was
	// killed between the cloud's answer and the write of the provider ID. act ran before the next
	// manager started.
	lost bool
}

// steps are in order.
var steps = []step{
	{"create", (*tenant).create, (*tenant).ready, false},
	{"roll", (*tenant).roll, (*tenant).ready, false},
	{"adopt", (*tenant).keep, (*tenant).ready, true},
	{"forget", (*tenant).forget, (*tenant).forgotten, true},
	{"delete", (*tenant).delete, (*tenant).gone, false},
	{"leave", (*tenant).leave, (*tenant).left, false},
}

type missed []point

func (m missed) byStep() map[string][]point {
	todo := map[string][]point{}
	for _, p := range m {
		todo[p.step] = append(todo[p.step], p)
	}
	return todo
}

// harness runs tenants through the steps.
type harness struct {
	rig     *rig.Rig
	seat    *rig.Seat
	tenants []*tenant
	who     []*tenant      // those that take part in the step
	chance  map[point]bool // points that only some tenants reached without a crash
	made    int
	kills   int
}

// end dumps the tenants and keeps the logs after a failure (go test -artifacts).
func (h *harness) end(t *testing.T) {
	if t.Failed() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		for _, x := range h.tenants {
			if missing, err := x.ready()(ctx); missing != "" || err != nil {
				t.Logf("%s:\n%s", x.Name, h.rig.Dump(ctx, x.Namespace))
			}
		}
		if err := h.rig.Save(t.ArtifactDir()); err != nil {
			t.Log(err)
		}
	}
	if h.seat != nil {
		defer h.seat.Close()
	}
	if err := h.rig.Stop(); err != nil {
		t.Error(err)
	}
}

func (h *harness) start(ctx context.Context) error {
	// Only one manager runs here, so it need not wait for another's lease.
	return h.seat.Start(ctx, "--leader-elect=false", "--cloud-call-timeout=10s")
}

// reference takes some tenants through all steps without faults, and returns the points of each
// step.
func (h *harness) reference(t *testing.T) map[string][]point {
	points := map[string][]point{}
	h.chance = map[point]bool{}
	h.batch(t, 3, func(s step) {
		h.who = h.tenants
		h.reset()
		h.act(t, s)
		h.reach(t, s)
		h.quiet(t)
		all, chance := enumerate(s.name, h.calls())
		points[s.name] = all
		maps.Copy(h.chance, chance)
	})
	return points
}

// crash brings tenants to all points and kills the manager there. It handles many tenants at a
// time, because a held call waits for the others, and several points in the life of each. It
// returns the points that no call reached.
func (h *harness) crash(t *testing.T, points map[string][]point, lives int) (left missed) {
	todo, n := map[string][][]point{}, 0
	for _, s := range steps {
		todo[s.name] = divide(points[s.name], lives)
		n = max(n, len(todo[s.name]))
	}
	for ; n > 0 && !t.Failed(); n -= *width {
		h.batch(t, min(n, *width), func(s step) {
			now := todo[s.name][:min(*width, len(todo[s.name]))]
			todo[s.name] = todo[s.name][len(now):]
			h.who = h.tenants
			if s.name == "roll" || s.lost {
				h.who = h.tenants[:len(now)] // the other tenants do not need the step
			}
			h.arm(now)
			h.act(t, s)
			for h.gather(t, s) {
				h.kill()
				if err := h.start(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			for _, x := range h.tenants {
				for _, trap := range x.open() {
					left = append(left, trap.point)
				}
				x.set()
			}
			h.reach(t, s)
		})
	}
	return left
}

// batch creates n tenants, takes them through the steps, and removes them.
func (h *harness) batch(t *testing.T, n int, take func(step)) {
	begin := time.Now()
	for range n {
		h.made++
		made, err := h.rig.NewTenant(t.Context(), fmt.Sprintf("t%03d", h.made))
		if err != nil {
			t.Fatal(err)
		}
		h.tenants = append(h.tenants, &tenant{Tenant: made, rig: h.rig, calls: map[string]int{}, pools: []scenario.Pool{made.NewPool("a", 1)}})
	}
	h.seat.API.SetRule(h.dispatch)
	// All tenants share one binding for bootstrap tokens. It is deleted so that the first tenant
	// that needs it recreates it.
	binding := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: bootstrap.BindingName}}
	if err := scenario.Delete(t.Context(), h.rig.Nodes, binding); err != nil {
		t.Fatal(err)
	}
	for _, s := range steps {
		from := time.Now()
		var shown time.Duration
		if s.name == "forget" { // terminated instances are no longer shown, as in most clouds, so they cannot be looked up
			shown = time.Millisecond
		}
		if err := h.rig.Remember(t.Context(), shown); err != nil {
			t.Fatal(err)
		}
		take(s)
		if t.Failed() {
			return
		}
		t.Logf("%d tenants: %s took %s", len(h.who), s.name, time.Since(from).Round(100*time.Millisecond))
	}
	h.clear(t)
	t.Logf("%d tenants took %s", n, time.Since(begin).Round(100*time.Millisecond))
}

// dispatch passes a call to the management cluster to the tenant that it concerns.
func (h *harness) dispatch(ctx context.Context, c faultproxy.Call, at faultproxy.Point) faultproxy.Verdict {
	for _, x := range h.tenants {
		if x.Namespace == c.Namespace {
			return x.rule(ctx, c, at)
		}
	}
	return faultproxy.Verdict{}
}

// arm sets traps at each group of points, one group per tenant.
func (h *harness) arm(groups [][]point) {
	for i, points := range groups {
		var traps []*trap
		for _, p := range points {
			traps = append(traps, newTrap(p))
		}
		h.tenants[i].set(traps...)
	}
}

// gather waits until each tenant with a trap holds a call in it, or has done everything. It also
// returns when one call has been held for long enough, because the caller of a held call gives up
// sooner or later. It reports whether any call is held.
func (h *harness) gather(t *testing.T, s step) (caught bool) {
	t.Helper()
	var done time.Time
	NewWithT(t).Eventually(func() error {
		caught = false
		open := 0
		var errs []error
		for _, x := range h.tenants {
			d := x.held()
			caught = caught || d > 0
			switch {
			case d > hold:
				return nil
			case d > 0, len(x.open()) == 0:
				continue
			}
			open++
			missing, err := s.goal(x)(t.Context())
			if err != nil || missing != "" {
				errs = append(errs, errors.Join(fmt.Errorf("%s has done neither all nor one of %s: %s", x.Name, list(pointsOf(x.open())),
					missing), err))
			}
		}
		switch {
		case open == 0:
			return nil
		case len(errs) > 0:
			done = time.Time{}
			return errors.Join(errs...)
		case done.IsZero():
			done = time.Now()
		}
		if time.Since(done) < gather {
			return fmt.Errorf("%d tenants may still come to their points", open)
		}
		return nil
	}, patience, "100ms").Should(Succeed())
	return caught
}

func pointsOf(traps []*trap) (all []point) {
	for _, t := range traps {
		all = append(all, t.point)
	}
	return all
}

// kill crashes the manager.
func (h *harness) kill() {
	for _, x := range h.tenants {
		x.spring()
	}
	h.seat.Process.Kill()
	h.kills++
}

// loseRecords creates VMs of which the manager knows nothing, runs the step's act, and starts a
// manager that must find them.
func (h *harness) loseRecords(t *testing.T, s step) {
	t.Helper()
	armed := map[*tenant][]*trap{}
	record := point{s.name, "management", "patch drovermachines {spec.providerID}", 1, faultproxy.Before}
	for i, x := range h.who {
		armed[x] = x.open()
		x.lost = x.NewPool(s.name, 1)
		if i%2 == 1 { // a kubelet configured by Ignition never knows its provider ID
			x.lost.Config.Format = bootstrapv1.FormatIgnition
		}
		x.set(newTrap(record))
	}
	h.each(t, func(ctx context.Context, x *tenant) error {
		return scenario.Create(ctx, h.rig.Client, x.lost.Objects()...)
	})
	NewWithT(t).Eventually(func(g Gomega) {
		for _, x := range h.who {
			g.Expect(x.lostNodes(t.Context())).To(Equal(1), "Nodes of "+x.lost.Name)
			g.Expect(x.held()).To(BeNumerically(">", 0), "the provider ID is about to be written")
		}
	}, patience, "50ms").Should(Succeed())
	h.kill()
	h.each(t, func(ctx context.Context, x *tenant) error { return s.act(x, ctx) })
	for _, x := range h.who {
		x.set(armed[x]...)
	}
	h.reset()
	if err := h.start(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func (h *harness) act(t *testing.T, s step) {
	t.Helper()
	switch {
	case len(h.who) == 0:
	case s.lost:
		h.loseRecords(t, s)
	default:
		h.each(t, func(ctx context.Context, x *tenant) error { return s.act(x, ctx) })
	}
}

// each calls do for all tenants of the step at once.
func (h *harness) each(t *testing.T, do func(context.Context, *tenant) error) {
	t.Helper()
	var wg sync.WaitGroup
	errs := make([]error, len(h.who))
	for i, x := range h.who {
		wg.Go(func() { errs[i] = do(t.Context(), x) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// reach waits until all tenants have reached the goal of a step, and checks the invariants.
func (h *harness) reach(t *testing.T, s step) {
	t.Helper()
	begin, open := time.Now(), h.who
	NewWithT(t).Eventually(func() error {
		snapshot, err := h.rig.Snapshot(t.Context())
		if err != nil {
			return err
		}
		var still []*tenant
		var lines []string
		for _, x := range open {
			if err := x.Twice(snapshot); err != nil {
				return StopTrying(fmt.Sprintf("killed at %v", x.died)).Wrap(err)
			}
			missing, err := s.goal(x)(t.Context())
			if err != nil || missing != "" {
				still, x.missing = append(still, x), missing
				lines = append(lines, fmt.Sprintf("%s (killed at %v): %s %v", x.Name, x.died, missing, err))
			} else if took := time.Since(begin); took > slow {
				t.Logf("%s took %s (killed at %v): the last to come was: %s", s.name, took.Round(time.Second), x.died, x.missing)
			}
		}
		open = still
		if len(lines) > 0 {
			return errors.New(strings.Join(lines, "\n"))
		}
		return nil
	}, patience, "200ms").Should(Succeed(), s.name)
}

// quiet waits until no more writes come.
func (h *harness) quiet(t *testing.T) {
	t.Helper()
	writes := func() (n int) {
		for _, calls := range h.calls() {
			n += len(slices.DeleteFunc(calls, func(c faultproxy.Call) bool { return !c.Write() }))
		}
		return n
	}
	last, since := writes(), time.Now()
	NewWithT(t).Eventually(func() time.Duration {
		if n := writes(); n != last {
			last, since = n, time.Now()
		}
		return time.Since(since)
	}, patience, "100ms").Should(BeNumerically(">", 2*time.Second), "the manager has nothing more to write")
}

// reset forgets the calls so far.
func (h *harness) reset() {
	h.seat.API.Reset()
	for _, x := range h.tenants {
		x.API.Reset()
		x.Cloud.Reset()
	}
}

// calls returns the calls of each tenant.
func (h *harness) calls() [][]faultproxy.Call {
	var all [][]faultproxy.Call
	management := h.seat.API.Calls()
	for _, x := range h.tenants {
		calls := slices.Concat(x.API.Calls(), x.Cloud.Calls())
		for _, c := range management {
			if c.Namespace == x.Namespace {
				calls = append(calls, c)
			}
		}
		all = append(all, calls)
	}
	return all
}

// clear removes the tenants. Nothing is left of their machines.
func (h *harness) clear(t *testing.T) {
	t.Helper()
	h.who = h.tenants
	h.each(t, func(ctx context.Context, x *tenant) error { return x.leave(ctx) })
	h.reach(t, step{name: "still gone", goal: (*tenant).left}) // nothing appeared late
	h.each(t, func(ctx context.Context, x *tenant) error {
		return scenario.Delete(ctx, h.rig.Client, x.Adopted.Objects()[0]) // the namespace
	})
	for _, x := range h.tenants {
		x.Close()
	}
	h.tenants, h.who = nil, nil
}
