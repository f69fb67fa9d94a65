// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"time"

	"golang.org/x/time/rate"

	"github.com/drover-io/drover/cloud/simulated/wire"
)

// The presets of Settings.Throttle.
const (
	// ThrottleGenerous does not limit a few hundred machines.
	ThrottleGenerous = "generous"
	// ThrottleEC2 has EC2's own limits (its API throttling limits: RunInstances 2/s burst 5,
	// non-mutating 20/s burst 100, other mutating 5/s burst 50).
	ThrottleEC2 = "ec2"
	// ThrottleNone never throttles.
	ThrottleNone = "none"
)

type bucket struct {
	perSecond rate.Limit
	burst     int
}

type preset struct{ run, read, other bucket }

func throttlePreset(name string) (preset, bool) {
	switch name {
	case ThrottleGenerous, "":
		return preset{bucket{100, 200}, bucket{50, 200}, bucket{50, 100}}, true
	case ThrottleEC2:
		return preset{bucket{2, 5}, bucket{20, 100}, bucket{5, 50}}, true
	case ThrottleNone:
		b := bucket{rate.Inf, 1}
		return preset{b, b, b}, true
	}
	return preset{}, false
}

// throttle holds one account's token buckets.
type throttle struct{ run, read, other *rate.Limiter }

func newThrottle(p preset) *throttle {
	return &throttle{
		rate.NewLimiter(p.run.perSecond, p.run.burst),
		rate.NewLimiter(p.read.perSecond, p.read.burst),
		rate.NewLimiter(p.other.perSecond, p.other.burst),
	}
}

// allow takes a token for op, or returns how long to wait. A refused call takes none.
func (t *throttle) allow(op string, now time.Time) (time.Duration, bool) {
	limiter := t.other
	switch op {
	case wire.RunInstances:
		limiter = t.run
	case wire.DescribeInstances, wire.DescribeResources, wire.DescribeCatalog, wire.GetConsoleOutput:
		limiter = t.read
	}
	r := limiter.ReserveN(now, 1)
	wait := r.DelayFrom(now)
	if wait > 0 {
		r.CancelAt(now)
	}
	return wait, wait == 0
}
