// SPDX-License-Identifier: Apache-2.0

package crash

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/drover-io/drover/test/faultproxy"
	"github.com/drover-io/drover/test/rig"
)

// repeats is how many calls of one kind in one step are points of their own: a listing that comes
// every second is the same point each time.
const repeats = 2

// point is where the manager dies: before a call of its is forwarded, or after it was done and
// before the answer.
type point struct {
	// step is the scenario's name, line who the call goes to, kind what it is.
	step, line, kind string
	// nth call of that kind in the step, from 1 on.
	nth int
	at  faultproxy.Point
}

func (p point) String() string {
	if p == (point{}) {
		return "no point"
	}
	return fmt.Sprintf("%-6s %-6s %-10s %s (%d)", p.step, p.at, p.line, p.kind, p.nth)
}

// enumerate makes the points of a step from the calls of several tenants that took it.
func enumerate(step string, tenants [][]faultproxy.Call) []point {
	var points []point
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
				if !slices.Contains(points, p) {
					points = append(points, p)
				}
			}
		}
	}
	return points
}

// divide makes groups of points that are far from each other; points are in the order of their
// coming.
func divide(points []point, size int) [][]point {
	groups := make([][]point, (len(points)+size-1)/size)
	for i, p := range points {
		groups[i%len(groups)] = append(groups[i%len(groups)], p)
	}
	return groups
}

// counts tells whether a call is one to die at.
func counts(c faultproxy.Call) bool { return c.Proxy == "cloud" || (c.Write() && rig.Ours(c)) }

// trap holds the call that is its point until the manager is dead. When the manager gives the call
// up before (its own deadline is over, while other points are still to come), the next call of the
// same kind is held in its place.
type trap struct {
	point point

	mu     sync.Mutex
	number int       // of the call, once it came
	held   time.Time // since when a call is; zero: none is
	dead   bool
}

func newTrap(p point) *trap { return &trap{point: p} }

// hold keeps a call until who made it is dead, or gave up.
func (t *trap) hold(ctx context.Context) faultproxy.Verdict {
	<-ctx.Done()
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.dead {
		t.held, t.number = time.Time{}, 0
	}
	return faultproxy.Verdict{Cut: true}
}

// catches tells whether a call is the trap's, which it is in from then on. nth is how many of its
// kind there were.
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

// holds tells for how long a call has been in the trap; 0 means that none is.
func (t *trap) holds() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.held.IsZero() {
		return 0
	}
	return max(time.Since(t.held), 1)
}

// spring lets the trap know that the manager dies now, and tells whether a call is in it.
func (t *trap) spring() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.dead = !t.held.IsZero()
	return t.dead
}

// list is the points, one in a line.
func list(points []point) string {
	var b strings.Builder
	for i, p := range points {
		fmt.Fprintf(&b, "\n%4d %s", i+1, p)
	}
	return b.String()
}
