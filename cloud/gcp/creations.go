// SPDX-License-Identifier: Apache-2.0

package gcp

import (
	"sync"
	"time"

	"github.com/drover-io/drover/cloud"
)

// creationMemory is how long a creation is remembered after its last request.
const creationMemory = time.Hour

// creations remembers the creations of this process. Without it, a creation only takes more calls.
// The zero value is ready for use.
type creations struct {
	mu  sync.Mutex
	all map[string]creation // by token
}

// creation is one attempt to create a machine.
type creation struct {
	attempt int
	zone    string
	// began is when the operation was first answered; zero if none is under way. asked is when it
	// last was.
	began, asked time.Time
	// failures counts the operations of the attempt that failed.
	failures int
}

// get returns what is known of an attempt.
func (c *creations) get(req cloud.Request, zone string) creation {
	c.mu.Lock()
	defer c.mu.Unlock()
	if one := c.all[req.Token]; one.attempt == req.Attempt && one.zone == zone {
		return one
	}
	return creation{attempt: req.Attempt, zone: zone}
}

// put records an attempt.
func (c *creations) put(token string, one creation) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all == nil {
		c.all = map[string]creation{}
	}
	for other, old := range c.all {
		if time.Since(old.asked) > creationMemory {
			delete(c.all, other)
		}
	}
	c.all[token] = one
}

// end forgets a machine that was made.
func (c *creations) end(token string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.all, token)
}

// underWay returns the tokens of the machines whose operation is under way.
func (c *creations) underWay() map[string]bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	tokens := map[string]bool{}
	for token, one := range c.all {
		if !one.began.IsZero() {
			tokens[token] = true
		}
	}
	return tokens
}

// isOpen reports whether an instance with the token is being made by this process, and may still be
// refused.
func (c *creations) isOpen(token string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	one := c.all[token]
	return !one.began.IsZero() && time.Since(one.began) < undecided
}
