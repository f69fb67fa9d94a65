// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/cloud/simulated/wire"
)

// span is how long faults last. Those with a duration of their own (a restart, a lag) may end a
// little later.
const span = 14 * time.Second

// action is an event at a time after the start. what determines which other fields are used.
type action struct {
	at   time.Duration
	what string
	// n selects: a number of replicas, or one of several machines or managers.
	n int
	// lasts is the duration of a condition, and delay its effect on calls.
	lasts, delay time.Duration
	// line is the connection: "management", "workload" or "cloud", or the kind of objects that a
	// lag affects.
	line string
	// chance is the probability that a call is hit.
	chance float64
	// fault is a fault of the simulated cloud.
	fault simulator.Fault
}

func (a action) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%5.1fs %s", a.at.Seconds(), a.what)
	if a.line != "" {
		fmt.Fprintf(&b, " %s", a.line)
	}
	fmt.Fprintf(&b, " n=%d", a.n)
	if a.lasts > 0 {
		fmt.Fprintf(&b, " for %.1fs", a.lasts.Seconds())
	}
	if a.delay > 0 {
		fmt.Fprintf(&b, " by %.1fs", a.delay.Seconds())
	}
	if a.chance > 0 {
		fmt.Fprintf(&b, " chance %.1f", a.chance)
	}
	if f := a.fault; f.Kind != "" {
		fmt.Fprintf(&b, ": %s %s %s ×%d %.1fs", f.Operation, f.Kind, f.Code, f.Count, f.Delay.Seconds())
	}
	return b.String()
}

// choice is an action that may be drawn, with a probability proportional to its weight.
type choice struct {
	weight int
	what   string
	fill   func(*rand.Rand, *action)
}

func draw(r *rand.Rand, choices []choice) action {
	sum := 0
	for _, c := range choices {
		sum += c.weight
	}
	n := r.IntN(sum)
	for _, c := range choices {
		if n -= c.weight; n < 0 {
			a := action{what: c.what, at: time.Duration(r.Int64N(int64(span)))}
			if c.fill != nil {
				c.fill(r, &a)
			}
			return a
		}
	}
	panic("no choice")
}

// between returns a random duration, in tenths of a second.
func between(r *rand.Rand, from, to float64) time.Duration {
	return time.Duration((from + r.Float64()*(to-from)) * float64(time.Second)).Round(100 * time.Millisecond)
}

func one[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// schedule returns the actions of one tenant.
func schedule(seed uint64) []action {
	r := rand.New(rand.NewPCG(seed, 1))
	which := func(r *rand.Rand, a *action) { a.n = r.IntN(100) }
	disturb := func(from, to float64) func(*rand.Rand, *action) {
		return func(r *rand.Rand, a *action) {
			a.line = one(r, "management", "management", "workload", "cloud")
			a.lasts, a.chance = between(r, from, to), one(r, .1, .3, .6)
		}
	}
	users := []choice{
		{5, "scale", func(r *rand.Rand, a *action) { a.n = r.IntN(4) }},
		{3, "roll", nil},
		{3, "delete machine", which},
		{1, "delete pool", which},
		{2, "add pool", nil},
		{2, "add cluster", nil},
		{1, "drop cluster", which},
		{1, "pause", func(r *rand.Rand, a *action) { a.lasts = between(r, 2, 6) }},
		{2, "rotate credentials", nil},
		{1, "revoke credentials", func(r *rand.Rand, a *action) { a.lasts = between(r, 1, 5) }},
		{1, "edit template", nil},
		{1, "tear out machine", which},
		{1, "swap credentials", func(r *rand.Rand, a *action) { a.lasts = between(r, 2, 6) }},
		{1, "copy machine", func(r *rand.Rand, a *action) {
			which(r, a)
			a.lasts = between(r, 1, 5)
		}},
		{1, "restore machine", which},
		{2, "hostile guest", func(r *rand.Rand, a *action) {
			which(r, a)
			a.lasts = between(r, 2, 6)
		}},
		{1, "move half-way", func(r *rand.Rand, a *action) { a.lasts = between(r, 1, 4) }},
	}
	faults := []choice{
		{9, "cloud fault", func(r *rand.Rand, a *action) { a.fault = fault(r) }},
		{2, "terminate VM", which},
		{2, "make VM vanish", which},
		{4, "cut", disturb(1, 5)},
		{2, "conflict", func(r *rand.Rand, a *action) {
			disturb(1, 4)(r, a)
			a.line = "management"
		}},
		{2, "slow", func(r *rand.Rand, a *action) {
			disturb(2, 5)(r, a)
			a.delay = between(r, .2, 1.5)
		}},
		{1, "hang", func(r *rand.Rand, a *action) {
			disturb(1, 3)(r, a)
			a.delay = between(r, 2, 5)
		}},
		{1, "hang", func(r *rand.Rand, a *action) { // all calls, so that nothing answers at all
			a.line, a.lasts, a.chance = one(r, "workload", "cloud"), between(r, 3, 8), 1
			a.delay = a.lasts
		}},
		{1, "kill connections", func(r *rand.Rand, a *action) { a.line = one(r, "workload", "cloud") }},
		{1, "lose permissions", func(r *rand.Rand, a *action) {
			a.lasts, a.fault = between(r, 1, 5), simulator.Fault{Kind: simulator.ErrorBefore, Code: wire.AuthFailure, Count: math.MaxInt32}
		}},
	}
	var all []action
	for range 3 + r.IntN(4) {
		all = append(all, draw(r, users))
	}
	for range 3 + r.IntN(4) {
		all = append(all, draw(r, faults))
	}
	if r.IntN(8) == 0 {
		all = append(all, action{at: span - time.Second, what: "delete cluster"})
	}
	return sorted(all)
}

// fault draws a fault of the simulated cloud. It omits requests that the cloud rejects as invalid,
// because a correct manager then waits until a user changes something.
func fault(r *rand.Rand) simulator.Fault {
	f := simulator.Fault{
		Operation: one(r, wire.RunInstances, wire.RunInstances, wire.RunInstances, wire.DescribeResources, wire.DescribeResources,
			wire.TerminateInstances, wire.DeleteResources, wire.DescribeCatalog, ""),
		Count: 1 + r.IntN(3),
		Skip:  r.IntN(2),
	}
	f.Kind = one(r, simulator.ErrorBefore, simulator.ErrorBefore, simulator.CutBefore, simulator.ErrorAfter, simulator.ErrorAfter,
		simulator.CutAfter, simulator.CutAfter, simulator.Slow, simulator.SlowAfter, simulator.Late, simulator.Late,
		simulator.TruncatedJSON, simulator.HTML, simulator.Redirect)
	switch f.Operation {
	case wire.RunInstances:
		f.Kind = one(r, f.Kind, f.Kind, f.Kind, f.Kind, f.Kind, simulator.FailBoot, simulator.DeadBody)
	case wire.DescribeResources:
		f.Kind = one(r, f.Kind, f.Kind, simulator.PartialPage)
	}
	switch f.Kind {
	case simulator.ErrorBefore, simulator.ErrorAfter:
		f.Code = one(r, wire.InternalError, wire.ServiceUnavailable, wire.RequestLimitExceeded)
		if f.Operation == wire.RunInstances {
			f.Code = one(r, f.Code, f.Code, wire.IdempotentParameterMismatch, wire.InsufficientInstanceCapacity)
		}
		if f.Code == wire.RequestLimitExceeded {
			f.RetryAfter = one(r, 0, .5, 1)
		}
		if f.Code == wire.InsufficientInstanceCapacity {
			// At least one of the three zones must keep capacity, otherwise machines rightly wait
			// for minutes.
			f.Kind, f.Count = simulator.ErrorBefore, 1
		}
	case simulator.Slow, simulator.SlowAfter, simulator.Late:
		f.Delay.Duration = between(r, .5, 4)
	case simulator.FailBoot, simulator.DeadBody:
		f.Count = 1
	}
	return f
}

// storm returns the actions against the shared processes, and the cloud's settings.
func storm(seed uint64) ([]action, simulator.Settings) {
	r := rand.New(rand.NewPCG(seed, 2))
	seat := func(r *rand.Rand, a *action) { a.n = r.IntN(seats) }
	choices := []choice{
		{4, "kill manager", seat},
		{2, "terminate manager", seat},
		{3, "freeze manager", func(r *rand.Rand, a *action) {
			seat(r, a)
			a.lasts = lease + between(r, .5, 3)
		}},
		{4, "lag caches", func(r *rand.Rand, a *action) {
			seat(r, a)
			a.line = one(r, "", "drovermachines", "machines", "clusters", "droverconfigs")
			a.lasts, a.delay = between(r, 2, 6), between(r, .5, 4)
		}},
		{1, "cut watches", seat},
		{1, "restart management API server", nil},
		{1, "restart workload API server", nil},
		{1, "webhooks down", nil},
		{2, "cloud down", func(r *rand.Rand, a *action) {
			a.lasts, a.line = between(r, 1, 4), string(one(r, simulator.DownCut, simulator.DownUnavailable, simulator.DownHang))
		}},
	}
	var all []action
	for range 4 + r.IntN(4) {
		all = append(all, draw(r, choices))
	}
	var settings simulator.Settings
	settings.ConsistencyLag.Duration = one(r, 0, 0, time.Second, 3*time.Second, 6*time.Second)
	settings.PageSize = one(r, 0, 2, 5)
	settings.Latency.Mean.Duration = one(r, 0, 20*time.Millisecond, 100*time.Millisecond)
	return sorted(all), settings
}

func sorted(all []action) []action {
	slices.SortStableFunc(all, func(a, b action) int { return cmp.Compare(a.at, b.at) })
	return all
}

// TestSeeds checks that schedules are functions of their seeds, and differ.
func TestSeeds(t *testing.T) {
	text := func(seed uint64) string {
		all, settings := storm(seed)
		return fmt.Sprint(schedule(seed), all, settings)
	}
	seen := map[string]uint64{}
	for seed := range uint64(200) {
		s := text(seed)
		if again := text(seed); again != s {
			t.Fatalf("seed %d:\n%s\nand then:\n%s", seed, s, again)
		}
		if other, ok := seen[s]; ok {
			t.Errorf("seeds %d and %d are the same", seed, other)
		}
		seen[s] = seed
	}
}
