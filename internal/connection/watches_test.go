// SPDX-License-Identifier: Apache-2.0

package connection

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// running starts what it is to watch, as a controller that runs does.
type running struct{ ctx context.Context }

func (r running) Watch(src source.Source) error { return src.Start(r.ctx, nil) }

// TestWatches: a watch ends when a cluster has another connection, or is gone. Others go on.
func TestWatches(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	var w Watches
	begin := func(cluster, name string) (begun context.Context) {
		controller := Until(&w, client.ObjectKey{Namespace: "team", Name: cluster}, name, running{t.Context()})
		g.Expect(controller.Watch(source.Func(func(ctx context.Context, _ workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
			begun = ctx
			return nil
		}))).To(Succeed())
		return begun
	}
	first, nodes, other := begin("blue", "requests"), begin("blue", "nodes"), begin("green", "requests")
	g.Expect(first.Err()).NotTo(HaveOccurred())
	second := begin("blue", "requests")
	g.Expect(first.Err()).To(MatchError(context.Canceled))
	g.Expect(second.Err()).NotTo(HaveOccurred())
	g.Expect(nodes.Err()).NotTo(HaveOccurred())
	w.End(client.ObjectKey{Namespace: "team", Name: "blue"})
	g.Expect(second.Err()).To(MatchError(context.Canceled))
	g.Expect(nodes.Err()).To(MatchError(context.Canceled))
	g.Expect(other.Err()).NotTo(HaveOccurred())
	g.Expect(w.ends).To(HaveLen(1))
}
