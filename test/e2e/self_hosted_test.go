// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"path/filepath"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/cluster-api/test/framework"
	"sigs.k8s.io/cluster-api/test/framework/clusterctl"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// This covers SelfHostedSpec, with an adopted cluster.
var _ = Describe("A cluster becomes its own management cluster", func() {
	var own management // the cluster's machines are its Nodes, even while newSpec deletes everything
	BeforeEach(func(ctx SpecContext) { own = shared.start(ctx, "self-hosted") })
	s := newSpec("self-hosted")

	It("and keeps its machines, there and back", func(ctx SpecContext) {
		here, there := s.proxy.GetClient(), own.proxy.GetClient()
		adopted := &corev1.Secret{}
		Expect(here.Get(ctx, client.ObjectKey{Namespace: s.namespace.Name, Name: "adopted-kubeconfig"}, adopted)).To(Succeed())
		adopted.Data["value"] = own.kubeconfig
		Expect(here.Update(ctx, adopted)).To(Succeed())
		s.apply(ctx, "adopted", 2)
		before := s.nodes(ctx, Default, here)
		Expect(before).To(HaveLen(2))

		Expect(there.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.namespace.Name}})).To(Succeed())
		s.move(ctx, s.proxy, own.proxy)
		back := true
		DeferCleanup(func(ctx context.Context) {
			if back { // for the cleanup
				s.move(ctx, own.proxy, s.proxy)
			}
		})
		Eventually(func(g Gomega) { s.available(ctx, g, there) }, s.intervals("wait-cluster")...).Should(Succeed())
		after := s.staysAndGrows(ctx, there, before)

		s.move(ctx, own.proxy, s.proxy)
		back = false
		Eventually(func(g Gomega) { s.available(ctx, g, here) }, s.intervals("wait-cluster")...).Should(Succeed())
		Expect(s.nodes(ctx, Default, here)).To(Equal(after))
	})
})

func (s *spec) move(ctx context.Context, from, to framework.ClusterProxy) {
	clusterctl.Move(ctx, clusterctl.MoveInput{
		LogFolder: filepath.Join(s.artifacts, "clusters", s.namespace.Name), ClusterctlConfigPath: s.config,
		FromKubeconfigPath: from.GetKubeconfigPath(), ToKubeconfigPath: to.GetKubeconfigPath(), Namespace: s.namespace.Name,
	})
}
