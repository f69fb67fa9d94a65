// SPDX-License-Identifier: Apache-2.0

package armstub

import (
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"
)

// bucket limits calls of one kind, as "Understand throttling at Microsoft.Compute" describes it.
type bucket struct {
	name string
	left float64
	at   time.Time // when left was right
}

// SetBuckets limits creates and deletes of machines, each by a bucket that holds left calls now and
// gets perMinute more. Without it, nothing is limited.
func (c *Cloud) SetBuckets(left, perMinute int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.perMinute = float64(perMinute)
	c.buckets = map[string]*bucket{}
	for op, name := range map[string]string{"PUT virtualMachines": "PutVM", "DELETE virtualMachines": "DeleteVM"} {
		c.buckets[op] = &bucket{"Microsoft.Compute/" + name, float64(left), time.Now()}
	}
}

// Throttled returns how many calls the buckets refused.
func (c *Cloud) Throttled() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.throttled
}

// draw takes a call from its bucket, and returns the headers of its answer.
func (c *Cloud) draw(op string) (map[string]string, *failure) {
	b := c.buckets[op]
	if b == nil {
		return nil, nil
	}
	now := time.Now()
	b.left, b.at = b.left+now.Sub(b.at).Minutes()*c.perMinute, now
	header := map[string]string{}
	var fail *failure
	if b.left < 1 {
		c.throttled++
		fail = refuse(http.StatusTooManyRequests, "TooManyRequests",
			"The server rejected the request because too many requests have been received for this subscription.")
		fail.header = header
		header["Retry-After"] = strconv.Itoa(int(math.Ceil((1 - b.left) / c.perMinute * 60)))
	} else {
		b.left--
	}
	header["x-ms-ratelimit-remaining-resource"] = fmt.Sprintf("%s;%d", b.name, int(b.left))
	return header, fail
}
