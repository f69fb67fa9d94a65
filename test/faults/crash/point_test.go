// SPDX-License-Identifier: Apache-2.0

package crash

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/drover-io/drover/test/internal/faultproxy"
	"github.com/drover-io/drover/test/internal/rig"
)

// repeats is how many calls of one kind in one step are separate points. A listing that comes every
// second is the same point each time.
const repeats = 2

// point is a moment at which the manager dies: before one of its calls is forwarded, or after the
// call was executed and before the answer.
type point struct {
	// step is the name of the step, line the proxy of the call, and kind its kind.
	step, line, kind string
	// nth is the call's number among those of its kind in the step, from 1.
	nth int
	at  faultproxy.Point
}

func (p point) String() string {
	if p == (point{}) {
		return "no point"
	}
	return fmt.Sprintf("%-6s %-6s %-10s %s (%d)", p.step, p.at, p.line, p.kind, p.nth)
}

// enumerate returns the points of a step, in order of time, from the calls of several tenants that
// took the step. chance has the points that only some of the tenants reached.
func enumerate(step string, tenants [][]faultproxy.Call) (points []point, chance map[point]bool) {
	came := map[point]int{}
	for _, calls := range tenants {
		slices.SortStableFunc(calls, func(a, b faultproxy.Call) int { return a.At.Compare(b.At) })
		count := map[string]int{}
		for _, c := range calls {
			if !counts(c) {
				continue
			}
			key := c.Proxy + c.Kind()
			if count[key]++; count[key] > repeats {
				continue
			}
			for _, at := range []faultproxy.Point{faultproxy.Before, faultproxy.After} {
				p := point{step, c.Proxy, c.Kind(), count[key], at}
				if came[p]++; came[p] == 1 {
					points = append(points, p)
				}
			}
		}
	}
	chance = map[point]bool{}
	for _, p := range points {
		chance[p] = came[p] < len(tenants)
	}
	return points, chance
}

// divide forms groups of points that are far from each other. points must be in order of time.
func divide(points []point, size int) [][]point {
	groups := make([][]point, (len(points)+size-1)/size)
	for i, p := range points {
		groups[i%len(groups)] = append(groups[i%len(groups)], p)
	}
	return groups
}

// counts reports whether the manager is to be killed at a call.
func counts(c faultproxy.Call) bool { return c.Proxy == "cloud" || (c.Write() && rig.Ours(c)) }

// trap holds the call at its point until the manager is dead. If the manager gives up the call
// earlier (its own deadline expires while other points are still to come), the trap holds the next
// call of the same kind instead.
type trap struct {
	point point

	mu     sync.Mutex
	number int       // of the call, once it has arrived
	held   time.Time // since when a call is held; zero: none is
	dead   bool
}

func newTrap(p point) *trap { return &trap{point: p} }

// hold holds a call until its caller is dead or gives up.
func (t *trap) hold(ctx context.Context) faultproxy.Verdict {
	<-ctx.Done()
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.dead {
		t.held, t.number = time.Time{}, 0
	}
	return faultproxy.Verdict{Cut: true}
}

// catches reports whether a call is the trap's, and if so records it as held. nth is the number of
// calls of its kind so far.
func (t *trap) catches(c faultproxy.Call, at faultproxy.Point, nth int) bool {
	if c.Proxy != t.point.line || c.Kind() != t.point.kind {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if at == faultproxy.Before && t.number == 0 && nth >= t.point.nth {
		t.number = c.Number
	}
	if at == t.point.at && t.number == c.Number {
		t.held = time.Now()
		return true
	}
	return false
}

// holds returns how long a call has been in the trap, or 0 when none is.
func (t *trap) holds() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.held.IsZero() {
		return 0
	}
	return max(time.Since(t.held), 1)
}

// spring tells the trap that the manager dies now, and reports whether it holds a call.
func (t *trap) spring() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.dead = !t.held.IsZero()
	return t.dead
}

// list returns the points, one per line.
func list(points []point) string {
	var b strings.Builder
	for i, p := range points {
		fmt.Fprintf(&b, "\n%4d %s", i+1, p)
	}
	return b.String()
}
