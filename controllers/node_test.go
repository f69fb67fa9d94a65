// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"

	. "github.com/onsi/gomega"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
)

// TestHangingClusterHoldsNoOther: a workload cluster that hangs occupies only some of the workers,
// and machines that find no free worker come back.
func TestHangingClusterHoldsNoOther(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		const machines = maxNodeWorkers + 5
		var names []string
		for i := range machines {
			names = append(names, fmt.Sprintf("m%d", i+1))
		}
		b := newBench(t, fleetOf(names...)...)
		for _, name := range names {
			b.reconcile(name)
		}
		hang, hanging := make(chan struct{}), 0
		b.node.LateAfter = 0 // each machine is late, so that the workload cluster is asked why
		var mu sync.Mutex
		b.node.Progress = func(context.Context, *clusterv1.Cluster, *clusterv1.Machine) (string, string, error) {
			mu.Lock()
			hanging++
			mu.Unlock()
			<-hang
			return infrav1.NodeMissingReason, "", nil
		}
		var workers sync.WaitGroup
		back := 0
		for _, name := range names {
			workers.Go(func() {
				result, err := b.node.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKey{Namespace: "team-a", Name: name}})
				mu.Lock()
				defer mu.Unlock()
				if err == nil && result.RequeueAfter > 0 {
					back++
				}
			})
		}
		synctest.Wait()
		mu.Lock()
		b.Expect(hanging).To(Equal(maxNodeWorkers))
		b.Expect(back).To(Equal(machines - maxNodeWorkers))
		mu.Unlock()
		b.Expect(b.node.workers.begin(client.ObjectKey{Namespace: "team-b", Name: "other"})).To(BeTrue())
		b.node.workers.end(client.ObjectKey{Namespace: "team-b", Name: "other"})
		close(hang)
		workers.Wait()
		b.Expect(b.node.workers.busy).To(BeEmpty())
	})
}
