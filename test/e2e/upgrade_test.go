// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"path/filepath"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	clusterctlv1 "sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3"
	"sigs.k8s.io/cluster-api/test/framework/clusterctl"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// This covers ClusterctlUpgradeSpec, with an adopted cluster. Both releases have the same program.
var _ = Describe("Drover is upgraded", func() {
	var s *spec
	BeforeEach(func(ctx SpecContext) { // a management cluster that no other spec needs afterwards
		own := *shared
		own.management = shared.start(ctx, "upgrade")
		s.stage = &own
	})
	s = newSpec("clusterctl-upgrade")

	It("and its machines stay", func(ctx SpecContext) {
		s.apply(ctx, "adopted", 2)
		c := s.proxy.GetClient()
		before := s.nodes(ctx, Default, c)
		Expect(before).To(HaveLen(2))

		s.upgrade(ctx)
		installed := &clusterctlv1.Provider{}
		Expect(c.Get(ctx, client.ObjectKey{Namespace: "drover-system", Name: "infrastructure-drover"}, installed)).To(Succeed())
		Expect(installed.Version).To(Equal(nextVersion))
		Eventually(func(g Gomega) { s.available(ctx, g, c) }, s.intervals("wait-cluster")...).Should(Succeed())
		s.staysAndGrows(ctx, c, before)
	})
})

// upgrade makes clusterctl install the next release. If nothing runs Pods, it restarts the process
// instead.
func (s *stage) upgrade(ctx context.Context) {
	folder, drover := filepath.Join(s.artifacts, "clusters", s.proxy.GetName()), []string{"drover-system/drover:" + nextVersion}
	if s.processes == nil {
		clusterctl.UpgradeManagementClusterAndWait(ctx, clusterctl.UpgradeManagementClusterAndWaitInput{
			ClusterProxy: s.proxy, ClusterctlConfigPath: s.config, LogFolder: folder, InfrastructureProviders: drover,
		}, s.settings.GetIntervals("default", "wait-controllers")...)
		return
	}
	Expect(s.processes.InstallCertManagerKinds(ctx)).To(Succeed())
	s.drover.Kill()
	clusterctl.Upgrade(ctx, clusterctl.UpgradeInput{
		ClusterName: s.proxy.GetName(), KubeconfigPath: s.proxy.GetKubeconfigPath(), ClusterctlConfigPath: s.config, LogFolder: folder,
		InfrastructureProviders: drover,
	})
	Expect(s.processes.ServeDrover(ctx)).To(Succeed())
	_, err := s.processes.StartDrover(ctx, s.options())
	Expect(err).NotTo(HaveOccurred())
}
