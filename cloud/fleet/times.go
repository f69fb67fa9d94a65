// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"time"
)

// DefaultCall bounds a call where the operator says nothing else: the slowest that clouds document,
// a create with many parts, answers within it.
const DefaultCall = 30 * time.Second

// Times holds every duration that this package goes by, in one place with its reason.
type Times struct {
	// Call bounds one call.
	Call time.Duration
	// List bounds one complete listing with all its pages.
	List time.Duration
	// Settle is how long a create of which no answer came may still take effect: Call, after which
	// the connection is surely given up, and as long again for what a slow cloud may hold a
	// request. A machine whose creation was never recorded is not believed to be absent before.
	Settle time.Duration
	// NoCapacityMemory is how long a failure domain without capacity is left alone: long enough
	// that a thousand machines do not ask in vain, short enough to come back soon (Karpenter uses
	// the same).
	NoCapacityMemory time.Duration
	// DeleteWindow and DeleteWindowMax bound how long deletions are collected into one batch: the
	// first for a single deletion, growing to the second while hundreds are under way.
	DeleteWindow, DeleteWindowMax time.Duration
}

// TimesFor returns the durations that go with a bound for one call.
func TimesFor(call time.Duration) Times {
	return Times{
		Call:             call,
		List:             2 * time.Minute,
		Settle:           2 * call,
		NoCapacityMemory: 3 * time.Minute,
		DeleteWindow:     time.Second,
		DeleteWindowMax:  7 * time.Second,
	}
}

// sleepUntil returns true when the time has come, false when woken or ctx ended. The zero time
// never comes.
func sleepUntil(ctx context.Context, at time.Time, wakeup <-chan struct{}) bool {
	var due <-chan time.Time
	if !at.IsZero() {
		timer := time.NewTimer(time.Until(at))
		defer timer.Stop()
		due = timer.C
	}
	select {
	case <-due:
		return true
	case <-wakeup:
		return false
	case <-ctx.Done():
		return false
	}
}
