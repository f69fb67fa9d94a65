// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/drover-io/drover/cloud"
)

// delays are the first and the maximum retry delay of one code.
type delays struct{ first, max time.Duration }

// delaysOf returns the retry delays of a failed call by its code; cloud.Code documents the same
// values.
func delaysOf(code cloud.Code) delays {
	switch code {
	case cloud.QuotaExceeded, cloud.Unauthorized, cloud.NotFound, cloud.Conflict, cloud.NoCapacity:
		return delays{30 * time.Second, 10 * time.Minute}
	case cloud.InvalidSpec:
		return delays{10 * time.Minute, 10 * time.Minute}
	default:
		return delays{time.Second, time.Minute}
	}
}

// retries remembers how often each object failed in a row. The zero value is ready for use.
type retries struct {
	mu       sync.Mutex
	failures map[types.NamespacedName]int
}

// after returns how long to wait before the next attempt after err, and false if only an event can
// help, such as a changed account or new credentials. Delays double, have a jitter of up to a
// quarter, and are never shorter than what the cloud asked for.
func (r *retries) after(key types.NamespacedName, err error) (time.Duration, bool) {
	var queued *cloud.Queued
	if errors.As(err, &queued) {
		return max(queued.After, time.Millisecond), true // the turn is kept, so this is no failure and gets no jitter
	}
	var cloudErr *cloud.Error
	switch {
	case !errors.As(err, &cloudErr):
	case cloudErr.Final:
		return 0, false
	case cloudErr.RetryAfter > 0:
		return jitter(cloudErr.RetryAfter), true
	}
	d, n := delaysOf(cloud.CodeOf(err)), r.fail(key)
	return jitter(min(d.first<<min(n, 16), d.max)), true
}

func (r *retries) fail(key types.NamespacedName) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failures == nil {
		r.failures = map[types.NamespacedName]int{}
	}
	n := r.failures[key]
	r.failures[key] = n + 1
	return n
}

// forget resets the failure count of key.
func (r *retries) forget(key types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.failures, key)
}

// jitter lengthens d by up to a quarter, to spread the retries of objects that failed together.
func jitter(d time.Duration) time.Duration {
	return d + rand.N(d/4+1)
}
