// SPDX-License-Identifier: Apache-2.0

package driverkit

import (
	"sync"
	"time"

	"github.com/drover-io/drover/cloud"
)

// loginCooldown is how long refused credentials are not tried again. Identity services lock a user
// out after a few failures within minutes (vCenter: 5 within 3 minutes by default). Changed
// credentials make a new driver, which tries at once.
const loginCooldown = time.Minute

// LoginGuard remembers that credentials were refused, so that they are not tried once for each
// machine. The zero value is ready for use.
type LoginGuard struct {
	mu      sync.Mutex
	refused error
	at      time.Time
}

// Allow returns the last refusal if it is less than loginCooldown old; nil: log in.
func (g *LoginGuard) Allow() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.refused != nil && time.Since(g.at) < loginCooldown {
		return g.refused
	}
	return nil
}

// Done records the result of a login.
func (g *LoginGuard) Done(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.refused = nil; cloud.CodeOf(err) == cloud.Unauthorized {
		g.refused, g.at = err, time.Now()
	}
}
