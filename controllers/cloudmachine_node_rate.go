// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// nodeHold is how long a Node that has to stay is left alone at least.
const nodeHold = 15 * time.Second

// nodeRemovals limits how fast the Nodes of VMs that are gone are removed from a cluster: when many
// vanish at once, the reason may be another than their end, and a Node that is still there is one
// that nothing happened to. max(3, 10 %) of the cluster's machines a minute is more than clouds
// lose on an ordinary day, and leaves people an hour or so to notice the rest. It does not slow
// what users delete. The zero value is ready for use.
type nodeRemovals struct {
	mu       sync.Mutex
	limiters map[client.ObjectKey]*rate.Limiter
}

// after returns when a Node of a cluster with so many machines may be removed; 0 means now, and
// counts it.
func (n *nodeRemovals) after(cluster client.ObjectKey, machines int) time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	for key, limiter := range n.limiters {
		if key != cluster && limiter.Tokens() >= float64(limiter.Burst()) {
			delete(n.limiters, key) // nothing was removed of late: as good as new
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
