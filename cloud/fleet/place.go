// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"sync"
	"time"

	"github.com/drover-io/drover/cloud"
)

// maxPlace is the longest place, in characters.
const maxPlace = 512

// place holds where an account's machines are, and where its credentials were proved to lead. The
// account calls its cloud only while the two are the same. An answer from another place proves
// nothing, and a machine made there is lost.
type place struct {
	mu     sync.Mutex
	pinned string // recorded for the account
	proved string // by a Probe with these credentials
}

// check returns nil if the credentials are proved to lead to the account's place.
func (p *place) check() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.proved == "":
		return &cloud.Error{Code: cloud.Unavailable, Message: "the DroverAccount is not connected: its condition Ready says why",
			RetryAfter: time.Second}
	case p.pinned == "":
		return &cloud.Error{Code: cloud.Unavailable, Message: "waiting for the account's place to be recorded", RetryAfter: time.Second}
	}
	return p.conflict()
}

// conflict returns an error if the credentials lead elsewhere. It needs the lock.
func (p *place) conflict() error {
	if p.pinned == "" || p.proved == p.pinned {
		return nil
	}
	return cloud.Errorf(cloud.Conflict, "the credentials lead to %q, and the account's machines are in %q: nothing is listed, created or deleted with them; "+
		"restore the credentials of %q, or create another DroverAccount for %q", p.proved, p.pinned, p.pinned, p.proved)
}

// prove records where a Probe has led. proved is true if that is the account's place, and was not
// known before.
func (p *place) prove(to string) (proved bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	changed := p.proved != to
	p.proved = to
	err = p.conflict()
	return changed && p.pinned != "" && err == nil, err
}

// pin records the account's place.
func (p *place) pin(to string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pinned = to
}
