// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"sync"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// maxNodeWorkers is how many workers of NodeReconciler one workload cluster may occupy. It is a
// fifth of the default of all workers, so that a cluster that hangs leaves most of them to others.
const maxNodeWorkers = 10

// nodeWorkers counts the busy workers by workload cluster. The zero value is ready for use.
type nodeWorkers struct {
	mu   sync.Mutex
	busy map[client.ObjectKey]int
}

// begin reports whether another worker may work for the cluster; if so, end must follow.
func (w *nodeWorkers) begin(cluster client.ObjectKey) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.busy[cluster] >= maxNodeWorkers {
		return false
	}
	if w.busy == nil {
		w.busy = map[client.ObjectKey]int{}
	}
	w.busy[cluster]++
	return true
}

func (w *nodeWorkers) end(cluster client.ObjectKey) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.busy[cluster]--; w.busy[cluster] == 0 {
		delete(w.busy, cluster)
	}
}
