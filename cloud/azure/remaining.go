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
	hasReport bool // Azure said how many calls are left
	// left is how many are left in the emptiest bucket. Answers may come in another order than Azure
	// gave them, so only that to a call which was sent after the last lower one may raise it.
	left    int
	lowered int       // how often an answer lowered left
	until   time.Time // no call before this time
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
	lowered := c.lowered
	return func(answer http.Header) {
		r.mu.Lock()
		defer r.mu.Unlock()
		c.underWay--
		c.note(answer, lowered == c.lowered)
	}, nil
}

// note reads what an answer says of the buckets that its call drew on, for example
// "Microsoft.Compute/PutVM;99,Microsoft.Compute/PutVMSubscription;0". isNewer says that the call
// was sent after the last answer that lowered what is left.
func (c *remainder) note(answer http.Header, isNewer bool) {
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
	switch {
	case !c.hasReport || least < c.left:
		c.hasReport, c.left = true, least
		c.lowered++
	case isNewer:
		c.left = least
	}
	if least <= 0 {
		c.until = time.Now().Add(remainingHold)
	}
}
