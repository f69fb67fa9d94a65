// SPDX-License-Identifier: Apache-2.0

// Package damage tests that a driver survives answers that no cloud should give. It records what a
// stand-in answers, and replays the answers to new drivers with damage that a seed decides: another
// status, headers that can't be read, a body that is cut or has other bytes, documents whose parts
// are missing, empty, repeated, nested, or of another type.
//
// Whatever the answers are, a method of the driver must return: without a panic, also one that was
// recovered, after a bounded number of calls, without goroutines of its own, and with an error that
// is short and holds no secret. Each driver lives in a bubble of testing/synctest. Its clock is not
// real, so the test does not depend on the speed of the computer.
package damage

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drover-io/drover/cloud"
)

var (
	firstSeed = flag.Uint64("seed", 1, "seed of the first driver that gets damaged answers; the others follow it. 0: another one each time")
	drivers   = flag.Int("drivers", 0, "how many drivers get damaged answers, each from a seed of its own. 0: as many as the test says")
)

// Target is a driver under test.
type Target struct {
	// Connect returns a new driver whose calls go through transport.
	Connect func(transport http.RoundTripper) (cloud.Driver, error)
	// Machine is the machine that the driver creates.
	Machine cloud.Request
	// Balancer is the load balancer that the driver creates. Without Spec, there is none.
	Balancer cloud.BalancerRequest
	// Secrets are texts that no error may contain.
	Secrets []string
	// Recovers reports that the driver is known to recover a panic of its SDK, where the SDK
	// decodes an answer. Every other panic is a failure.
	Recovers func(*cloud.PanicError) bool
	// Drivers is how many drivers get damaged answers, each from a seed of its own.
	Drivers int
	// Failed are the seeds that once failed. They are tried in addition.
	Failed []uint64
}

// maxHeap is how much of the heap may be in use after all drivers are gone, in addition to what was
// in use after the first ones.
const maxHeap = 64 << 20

// Run plays the tape with damage to many drivers, and calls all methods of each.
func Run(t *testing.T, tape *Tape, target Target) {
	first, n := *firstSeed, target.Drivers
	if first == 0 {
		first = rand.Uint64()
	}
	if *drivers > 0 {
		n = *drivers
	}
	seeds := append([]uint64(nil), target.Failed...)
	for i := range uint64(n) {
		seeds = append(seeds, first+i)
	}
	f := newFindings(t)
	before := uint64(0)
	for i, seed := range seeds {
		f.live(tape, &target, seed)
		if i == min(100, len(seeds)/2) {
			before = heap()
		}
	}
	if after := heap(); after > before+maxHeap {
		t.Errorf("%d MiB are in use after %d drivers, %d MiB were after the first", after>>20, len(seeds), before>>20)
	}
	f.checkWorked(len(seeds))
	t.Logf("%d drivers from -seed %d, %d answers; calls by method: %v, errors: %v, known panics: %d", len(seeds), first, f.answers, f.called,
		f.errors, f.recovered)
}

// heap returns how many bytes are in use.
func heap() uint64 {
	runtime.GC()
	runtime.GC() // what finalizers and pools have kept
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// live lets one driver live in a bubble.
func (f *findings) live(tape *Tape, target *Target, seed uint64) {
	f.seed = seed
	defer func() {
		if value := recover(); value != nil {
			f.note("bubble", "%v", value) // goroutines are left that wait for ever
		}
	}()
	synctest.Test(f.t, func(t *testing.T) {
		time.Sleep(time.Until(tape.recorded)) // the bubble's clock starts in the past
		player := tape.play(seed)
		driver, err := target.Connect(player)
		if err != nil {
			t.Fatalf("Connect: %v", err)
		}
		l := life{driver: driver, target: target, random: player.random("requests"), steps: 4, pause: time.Second}
		l.try = func(ctx context.Context, method string, limit time.Duration, do func(context.Context) error) {
			ctx, cancel := context.WithTimeout(ctx, limit)
			defer cancel()
			player.begin(cancel)
			err := f.panicked(method, target, func() error { return do(ctx) })
			f.judge(method, target, err, player)
		}
		l.live(t.Context())
		f.updates += l.updates
		f.answers += player.total
	})
}

// findings collects what is wrong. It reports the same thing once, with the first seed.
type findings struct {
	t         *testing.T
	report    func(text string)
	seed      uint64
	seen      map[string]bool
	called    map[string]int // methods
	errors    map[string]int // by method
	answers   int
	updates   int // of watches
	recovered int
}

func newFindings(t *testing.T) *findings {
	return &findings{t: t, report: func(text string) { t.Error(text) }, seen: map[string]bool{}, called: map[string]int{},
		errors: map[string]int{}}
}

// checkWorked checks that each method has succeeded with some of many drivers: else the driver asks
// for something else than what was recorded.
func (f *findings) checkWorked(drivers int) {
	if drivers < 100 {
		return
	}
	for method, calls := range f.called {
		worked := calls - f.errors[method]
		if method == "Watch" { // it ends with an error
			worked = f.updates
		}
		if worked == 0 {
			f.t.Errorf("%s has never succeeded", method)
		}
	}
}

// note reports that a method failed the test.
func (f *findings) note(method, format string, args ...any) {
	key := method + format
	if !f.seen[key] {
		f.seen[key] = true
		f.report(fmt.Sprintf("%s: %s\nagain: go test -run '^%s$' -drivers 1 -seed %d", method, fmt.Sprintf(format, args...), f.t.Name(), f.seed))
	}
}
