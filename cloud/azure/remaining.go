// SPDX-License-Identifier: Apache-2.0

package azure

import (
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/drover-io/drover/cloud"
)

// remainingHold is how long no call of a class is sent after Azure said that none is left. In this
// time, its buckets take in eight calls ("Understand throttling at Microsoft.Compute").
const remainingHold = time.Second

// remaining keeps the calls of each class that are under way within what Azure's buckets hold.
// Everybody in the subscription draws on them, and a call that they refuse makes the wait longer.
// The zero value is ready for use.
type remaining struct {
	mu      sync.Mutex
	classes map[cloud.Class]*remainder
}

// remainder is what is known of the buckets that the calls of one class draw on.
type remainder struct {
	underWay  int
	hasReport bool      // Azure said how many calls are left
	left      int       // in the emptiest bucket, as the last answer said
	until     time.Time // no call before this time
}

// begin counts a call that is about to be sent. It returns *cloud.Queued if Azure would refuse the
// call now. Otherwise the caller calls end with the answer's headers, or with nil if none came.
func (r *remaining) begin(class cloud.Class) (end func(http.Header), err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.classes == nil {
		r.classes = map[cloud.Class]*remainder{}
	}
	c := r.classes[class]
	if c == nil {
		c = &remainder{}
		r.classes[class] = c
	}
	wait := time.Until(c.until)
	if wait <= 0 && c.hasReport && c.underWay >= max(c.left, 1) { // after a hold, one call asks for all
		wait = remainingHold
	}
	if wait > 0 {
		return nil, &cloud.Queued{After: wait}
	}
	c.underWay++
	return func(answer http.Header) {
		r.mu.Lock()
		defer r.mu.Unlock()
		c.underWay--
		c.note(answer)
	}, nil
}

// note reads what an answer says of the buckets that its call drew on, for example
// "Microsoft.Compute/PutVM;99,Microsoft.Compute/PutVMSubscription;0".
func (c *remainder) note(answer http.Header) {
	least := math.MaxInt
	for bucket := range strings.SplitSeq(answer.Get("X-Ms-Ratelimit-Remaining-Resource"), ",") {
		at := strings.LastIndexByte(bucket, ';')
		if n, err := strconv.Atoi(strings.TrimSpace(bucket[at+1:])); at >= 0 && err == nil {
			least = min(least, n)
		}
	}
	if least == math.MaxInt {
		return
	}
	c.hasReport, c.left = true, least
	if least <= 0 {
		c.until = time.Now().Add(remainingHold)
	}
}
