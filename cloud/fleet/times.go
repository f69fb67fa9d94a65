// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"time"
)

// DefaultCall bounds one call if the operator sets nothing else. The slowest call that clouds
// document, a create with many parts, is answered within it.
const DefaultCall = 30 * time.Second

// minRepeat is the least time between two calls that ask the same: between answers that an instance
// does not exist, a listing and one that joined Nodes cause, and a Receive that was empty and the
// next.
const minRepeat = time.Second

// Times holds all durations that this package uses, each with its reason.
type Times struct {
	// Call bounds one call.
	Call time.Duration
	// List bounds one complete listing with all its pages.
	List time.Duration
	// CreateHorizon is how long a create without an answer may still take effect: Call, after which
	// the connection is certainly given up, and the same time again, for which a slow cloud may
	// hold a request. Until then, a machine whose creation was not recorded is not absent.
	CreateHorizon time.Duration
	// NoCapacityMemory is how long a failure domain without capacity is not tried: long enough that
	// a thousand machines do not all try in vain, short enough to retry soon (Karpenter uses the
	// same).
	NoCapacityMemory time.Duration
	// DeleteWindow and DeleteWindowMax bound how long deletions are collected into one batch: the
	// first for a single deletion, growing to the second for 25 or more (manyDeletions).
	DeleteWindow, DeleteWindowMax time.Duration
}

// TimesFor returns the durations for a given bound of one call.
func TimesFor(call time.Duration) Times {
	return Times{
		Call:             call,
		List:             2 * time.Minute,
		CreateHorizon:    2 * call,
		NoCapacityMemory: 3 * time.Minute,
		DeleteWindow:     time.Second,
		DeleteWindowMax:  7 * time.Second,
	}
}

// sleepUntil returns true at the given time, and false if it is woken or ctx ends. The zero time
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
