// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// settle is how long changes are collected before a condition is checked again. It is short for a
// person, but long enough that a fleet's thousands of changes do not each cost a check of all
// objects.
const settle = 20 * time.Millisecond

// View is a cache of the objects of some kinds that follows the cluster by watches. Read from it as
// from a client.
type View struct {
	client.Reader

	mu      sync.Mutex
	changed chan struct{} // closed and replaced at the next change
}

// Follow returns a View once its cache has synced. It follows the cluster until ctx ends.
func Follow(ctx context.Context, config *rest.Config, namespace string, kinds ...client.Object) (*View, error) {
	scheme, err := Scheme()
	if err != nil {
		return nil, err
	}
	options := cache.Options{Scheme: scheme, DefaultTransform: cache.TransformStripManagedFields()}
	if namespace != "" {
		options.DefaultNamespaces = map[string]cache.Config{namespace: {}}
	}
	c, err := cache.New(config, options)
	if err != nil {
		return nil, fmt.Errorf("follow a cluster: %w", err)
	}
	v := &View{Reader: c, changed: make(chan struct{})}
	go func() { _ = c.Start(ctx) }() // it ends with ctx and returns no other error
	for _, kind := range kinds {
		informer, err := c.GetInformer(ctx, kind)
		if err != nil {
			return nil, fmt.Errorf("follow %T: %w", kind, err)
		}
		if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { v.wake() },
			UpdateFunc: func(any, any) { v.wake() },
			DeleteFunc: func(any) { v.wake() },
		}); err != nil {
			return nil, fmt.Errorf("follow %T: %w", kind, err)
		}
	}
	if !c.WaitForCacheSync(ctx) {
		return nil, fmt.Errorf("follow a cluster: %w", context.Cause(ctx))
	}
	return v, nil
}

func (v *View) wake() {
	v.mu.Lock()
	defer v.mu.Unlock()
	close(v.changed)
	v.changed = make(chan struct{})
}

// Changed returns a channel that is closed when anything changes after the call.
func (v *View) Changed() <-chan struct{} {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.changed
}

// Until waits until check returns "". Any other result is a sentence about what is missing, which
// becomes part of the error when ctx ends. Until calls check again after each change.
func (v *View) Until(ctx context.Context, what string, check func(context.Context) (missing string, err error)) error {
	for {
		changed := v.Changed()
		missing, err := check(ctx)
		if err == nil && missing == "" {
			return nil
		}
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("waiting until %s: %w", what, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting until %s: %w; still: %s", what, context.Cause(ctx), missing)
		case <-changed:
		}
		Pause(ctx, settle)
	}
}

// Pause waits for d. It returns false if ctx ends first.
func Pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
