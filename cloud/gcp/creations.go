// SPDX-License-Identifier: Apache-2.0

package gcp

import (
	"time"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
)

// creationMemory is how long a creation is remembered after its last request.
const creationMemory = time.Hour

// creations remembers the creations of this process, by token. Without it, a creation only takes
// more calls.
type creations struct{ driverkit.Recent[creation] }

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
	if one, known := c.Get(req.Token); known && one.attempt == req.Attempt && one.zone == zone {
		return one
	}
	return creation{attempt: req.Attempt, zone: zone}
}

// underWay returns the tokens of the machines whose operation is under way.
func (c *creations) underWay() map[string]bool {
	tokens := map[string]bool{}
	for token, one := range c.All() {
		if !one.began.IsZero() {
			tokens[token] = true
		}
	}
	return tokens
}

// isOpen reports whether an instance with the token is being made by this process, and may still be
// refused.
func (c *creations) isOpen(token string) bool {
	one, _ := c.Get(token)
	return !one.began.IsZero() && time.Since(one.began) < undecided
}
