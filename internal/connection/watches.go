// SPDX-License-Identifier: Apache-2.0

// Package connection ends the watches of lost connections to workload clusters. It imports no
// package of Drover.
package connection

import (
	"context"
	"sync"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// Watches are the watches of controllers in workload clusters. ClusterCache stops a connection's
// cache when the connection is lost. What waits for a cache that had not synced until then waits
// until the manager ends, and keeps the cache in memory. Watches ends it. The zero value is ready
// for use.
type Watches struct {
	mu   sync.Mutex
	ends map[watch]context.CancelFunc
}

type watch struct {
	cluster client.ObjectKey
	name    string
}

// Until returns a controller in which the next watch of the same name and cluster, or End, ends the
// one before.
func Until[R comparable](w *Watches, cluster client.ObjectKey, name string,
	controller clustercache.SourceWatcher[R]) clustercache.SourceWatcher[R] {
	return replacing[R]{controller, w, watch{cluster, name}}
}

type replacing[R comparable] struct {
	controller clustercache.SourceWatcher[R]
	watches    *Watches
	is         watch
}

// Watch implements clustercache.SourceWatcher.
func (r replacing[R]) Watch(src source.TypedSource[R]) error {
	return r.controller.Watch(source.TypedFunc[R](func(ctx context.Context, queue workqueue.TypedRateLimitingInterface[R]) error {
		return src.Start(r.watches.replace(ctx, r.is), queue)
	}))
}

// replace returns the context of a watch, and ends the watch before it.
func (w *Watches) replace(ctx context.Context, is watch) context.Context {
	ctx, end := context.WithCancel(ctx)
	w.mu.Lock()
	defer w.mu.Unlock()
	if before, ok := w.ends[is]; ok {
		before()
	}
	if w.ends == nil {
		w.ends = map[watch]context.CancelFunc{}
	}
	w.ends[is] = end
	return ctx
}

// End ends the watches of a cluster that is gone.
func (w *Watches) End(cluster client.ObjectKey) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for is, end := range w.ends {
		if is.cluster == cluster {
			end()
			delete(w.ends, is)
		}
	}
}
