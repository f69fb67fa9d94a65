// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"sync"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// Trigger enqueues objects for their reconciler from outside Kubernetes. Add never blocks. Requests
// added before the reconciler starts wait for it. The zero value is ready for use.
type Trigger struct {
	mu      sync.Mutex
	queue   workqueue.TypedRateLimitingInterface[reconcile.Request]
	waiting []reconcile.Request
}

// Add enqueues the requests.
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

// Source returns the source for the reconciler's builder.
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
