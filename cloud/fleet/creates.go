// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"sync"
	"time"

	"github.com/drover-io/drover/cloud"
)

const (
	// maxConcurrentCreates is how many creates of one account may be under way. Each holds one of
	// the manager's workers until it is answered, and a slow cloud must not hold all workers.
	maxConcurrentCreates = 12
	// createRetryDelay is when to retry if that many are under way.
	createRetryDelay = 250 * time.Millisecond
)

// creates bounds the creates under way in an account. After a create without an answer, it allows
// only one at a time until one is answered. Otherwise a cloud that does not answer would hold
// workers until its calls time out. The zero value is ready for use.
type creates struct {
	mu              sync.Mutex
	unansweredSince time.Time // since when creates get no answer; zero: they do
	inFlight        int
}

// begin begins a create, or returns why it can't.
func (c *creates) begin() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case !c.unansweredSince.IsZero() && c.inFlight > 0:
		return cloud.Errorf(cloud.Unavailable, "creates have had no response since %s; they are tried one at a time", c.unansweredSince.UTC().Format(time.RFC3339))
	case c.inFlight >= maxConcurrentCreates:
		return &cloud.Queued{After: createRetryDelay}
	}
	c.inFlight++
	return nil
}

func (c *creates) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inFlight--
}

// recordAnswer records whether a create was answered.
func (c *creates) recordAnswer(answered bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case answered:
		c.unansweredSince = time.Time{}
	case c.unansweredSince.IsZero():
		c.unansweredSince = time.Now()
	}
}

// Unfinished wraps the error of a create that ended after the cloud had accepted a part of it, so
// that something of the machine may exist, whatever the error's code says.
type Unfinished struct{ Err error }

func (u *Unfinished) Error() string { return u.Err.Error() }

// Unwrap returns the error of the create.
func (u *Unfinished) Unwrap() error { return u.Err }
