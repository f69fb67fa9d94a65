// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"sync"
	"time"

	"github.com/drover-io/drover/cloud"
)

const (
	// createsUnderWay is how many creates of one account may be under way. Each holds one of the
	// manager's workers until it is answered, and a slow cloud must not hold all workers.
	createsUnderWay = 12
	// createsAgain is when to retry if that many are under way.
	createsAgain = 250 * time.Millisecond
)

// creates bounds the creates under way in an account. After a create without an answer, it allows
// only one at a time until one is answered. Otherwise a cloud that does not answer would hold
// workers until its calls time out. The zero value is ready for use.
type creates struct {
	mu         sync.Mutex
	unanswered time.Time // since when creates get no answer; zero: they do
	underWay   int
}

// enter begins a create, or returns why it can't.
func (c *creates) enter() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case !c.unanswered.IsZero() && c.underWay > 0:
		return cloud.Errorf(cloud.Unavailable, "the cloud has left creates without an answer since %s; they are tried one at a time", c.unanswered.UTC().Format(time.RFC3339))
	case c.underWay >= createsUnderWay:
		return &cloud.Queued{After: createsAgain}
	}
	c.underWay++
	return nil
}

func (c *creates) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.underWay--
}

// answered records whether a create was answered.
func (c *creates) answered(yes bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case yes:
		c.unanswered = time.Time{}
	case c.unanswered.IsZero():
		c.unanswered = time.Now()
	}
}
