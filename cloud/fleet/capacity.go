// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"crypto/sha256"
	"maps"
	"sync"
	"time"

	"github.com/drover-io/drover/cloud"
)

// capacity remembers which failure domains had no capacity for which kind of machine.
type capacity struct {
	ttl       time.Duration
	mu        sync.Mutex
	noneUntil map[shortage]lack
}

type shortage struct {
	domain string
	shape  [sha256.Size]byte
}

type lack struct {
	until time.Time
	words string // of the cloud; "" if it said nothing
}

// choose returns the first domain that is not known to lack capacity, or NoCapacity.
func (c *capacity) choose(shape [sha256.Size]byte, domains []string) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	wait, words := c.ttl, ""
	for _, d := range domains {
		known := c.noneUntil[shortage{d, shape}]
		left := time.Until(known.until)
		if left <= 0 {
			return d, nil
		}
		wait = min(wait, left)
		if known.words != "" {
			words = "; the last answer: " + known.words
		}
	}
	e := cloud.Errorf(cloud.NoCapacity, "none of the failure domains %q recently had capacity for this kind of machine%s", domains, words)
	e.RetryAfter = wait
	return "", e
}

// refused returns the error for a create that the cloud has refused in a domain, with when to try
// the next of the domains. The refused one is left out for a while, unless the driver has
// something else to try there.
func (c *capacity) refused(s shortage, domains []string, e *cloud.Error) error {
	if e.RetryAfter == 0 {
		c.remember(s, e.Message, domains)
	}
	_, err := c.choose(s.shape, domains)
	return &cloud.Error{Code: e.Code, Message: e.Message, RetryAfter: max(e.RetryAfter, retryAfter(err), minWait), Err: e}
}

// remember records that a domain had no capacity, and what the cloud said. The others of the domains
// that are known to lack it are left out for as long. A refusal may take minutes to come; otherwise
// the first domains would be tried again before the last ones are tried at all.
func (c *capacity) remember(s shortage, words string, domains []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	until := now.Add(c.ttl)
	maps.DeleteFunc(c.noneUntil, func(_ shortage, l lack) bool { return !now.Before(l.until) })
	for _, d := range domains {
		if known, ok := c.noneUntil[shortage{d, s.shape}]; ok {
			c.noneUntil[shortage{d, s.shape}] = lack{until, known.words}
		}
	}
	c.noneUntil[s] = lack{until, words}
}
