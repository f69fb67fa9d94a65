// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"sync"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// Trigger brings objects back to their reconciler from outside Kubernetes. Adding never blocks, and
// what is added before the reconciler has started waits for it. The zero value is ready for use.
type Trigger struct {
	mu      sync.Mutex
	queue   workqueue.TypedRateLimitingInterface[reconcile.Request]
	waiting []reconcile.Request
}

// Add asks for the reconciliation of the requests' objects.
func (t *Trigger) Add(requests ...reconcile.Request) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.queue == nil {
		t.waiting = append(t.waiting, requests...)
		return
	}
	for _, r := range requests {
		t.queue.Add(r)
	}
}

// Source is what the reconciler's builder takes.
func (t *Trigger) Source() source.Source {
	return source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.queue = queue
		for _, r := range t.waiting {
			queue.Add(r)
		}
		t.waiting = nil
		return nil
	})
}
