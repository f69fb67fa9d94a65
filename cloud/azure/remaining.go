// SPDX-License-Identifier: Apache-2.0

package azure

import (
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

// remaining remembers for which classes of calls Azure's buckets are empty. Everybody in the
// subscription draws on them, and a call that they refuse makes the wait longer. The zero value is
// ready for use.
type remaining struct {
	mu    sync.Mutex
	until map[cloud.Class]time.Time
}

// note reads what an answer says of the buckets that its call drew on, for example
// "Microsoft.Compute/PutVM;99,Microsoft.Compute/PutVMSubscription;0".
func (r *remaining) note(class cloud.Class, header http.Header) {
	for bucket := range strings.SplitSeq(header.Get("X-Ms-Ratelimit-Remaining-Resource"), ",") {
		at := strings.LastIndexByte(bucket, ';')
		if n, err := strconv.Atoi(strings.TrimSpace(bucket[at+1:])); at < 0 || err != nil || n > 0 {
			continue
		}
		r.mu.Lock()
		if r.until == nil {
			r.until = map[cloud.Class]time.Time{}
		}
		r.until[class] = time.Now().Add(remainingHold)
		r.mu.Unlock()
	}
}

// check returns an error if no call of the class is to be sent now.
func (r *remaining) check(op string, class cloud.Class) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if wait := time.Until(r.until[class]); wait > 0 {
		return &cloud.Error{Code: cloud.Throttled, RetryAfter: wait, Message: op + ": not sent, because Azure has no calls of this kind left for the subscription"}
	}
	return nil
}
