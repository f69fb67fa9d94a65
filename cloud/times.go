// SPDX-License-Identifier: Apache-2.0

package cloud

import "time"

// Times holds every duration that this package goes by, in one place with its reason. Tests scale them.
type Times struct {
	// Call bounds one call. The slowest call that clouds document, a create with many parts, answers within it.
	Call time.Duration
	// List bounds one complete listing with all its pages.
	List time.Duration
	// Settle is how long a create of which no answer came may still take effect: longer than Call, so that the
	// connection is surely given up, plus what a slow cloud may hold a request. A machine whose creation was never
	// recorded is not believed to be absent before.
	Settle time.Duration
	// NoCapacityMemory is how long a failure domain without capacity is left alone: long enough that a thousand
	// machines do not ask in vain, short enough to come back soon (Karpenter uses the same).
	NoCapacityMemory time.Duration
	// DeleteWindow and DeleteWindowMax bound how long deletions are collected into one batch: the first for a single
	// deletion, growing to the second while hundreds are under way.
	DeleteWindow, DeleteWindowMax time.Duration
}

// DefaultTimes are the durations in production.
func DefaultTimes() Times {
	return Times{
		Call:             30 * time.Second,
		List:             2 * time.Minute,
		Settle:           time.Minute,
		NoCapacityMemory: 3 * time.Minute,
		DeleteWindow:     time.Second,
		DeleteWindowMax:  6 * time.Second,
	}
}
