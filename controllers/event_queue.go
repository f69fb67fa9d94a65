// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"sync"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// EventQueue enqueues objects for their reconciler from outside Kubernetes. Add never blocks.
// Requests added before the reconciler starts wait for it. The zero value is ready for use.
type EventQueue struct {
	mu      sync.Mutex
	queue   workqueue.TypedRateLimitingInterface[reconcile.Request]
	pending []reconcile.Request
}

// Add enqueues the requests.
func (t *EventQueue) Add(requests ...reconcile.Request) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.queue == nil {
		t.pending = append(t.pending, requests...)
		return
	}
	for _, r := range requests {
		t.queue.Add(r)
	}
}

// Source returns the source for the reconciler's builder.
func (t *EventQueue) Source() source.Source {
	return source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.queue = queue
		for _, r := range t.pending {
			queue.Add(r)
		}
		t.pending = nil
		return nil
	})
}
