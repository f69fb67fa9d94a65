// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// heldNodeRetry is the minimum time before the removal of a held Node is retried.
const heldNodeRetry = 15 * time.Second

// nodeRemovals limits how fast the Nodes of gone VMs are removed from a cluster. When many VMs
// vanish at once, the cause may not be their end, and a Node that was not removed is unharmed.
// max(3, 10 %) of the cluster's machines per minute is more than clouds lose on an ordinary day. It
// leaves people up to about ten minutes to notice the rest. It does not limit deletions by users.
// The zero value is ready for use.
type nodeRemovals struct {
	mu       sync.Mutex
	limiters map[client.ObjectKey]*rate.Limiter
}

// after returns how long to wait before a Node of a cluster with so many machines may be removed. 0
// means now, and counts the removal.
func (n *nodeRemovals) after(cluster client.ObjectKey, machines int) time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	for key, limiter := range n.limiters {
		if key != cluster && limiter.Tokens() >= float64(limiter.Burst()) {
			delete(n.limiters, key) // no recent removals, so a new limiter is equivalent
		}
	}
	many := max(3, machines/10)
	limiter := n.limiters[cluster]
	if limiter == nil {
		limiter = rate.NewLimiter(rate.Every(time.Minute/time.Duration(many)), many)
		if n.limiters == nil {
			n.limiters = map[client.ObjectKey]*rate.Limiter{}
		}
		n.limiters[cluster] = limiter
	}
	limiter.SetLimit(rate.Every(time.Minute / time.Duration(many)))
	limiter.SetBurst(many)
	turn := limiter.Reserve()
	wait := turn.Delay()
	if wait > 0 {
		turn.Cancel()
	}
	return wait
}
