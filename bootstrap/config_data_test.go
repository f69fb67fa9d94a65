// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"testing"

	. "github.com/onsi/gomega"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

func TestDNSAddress(t *testing.T) {
	for block, want := range map[string]string{
		"": "", "10.96.0.0/12": "10.96.0.10", "10.96.7.0/16": "10.96.0.10", "fd00:1::/112": "fd00:1::a", "10.0.0.0/29": "", "ten": "",
	} {
		cluster := &clusterv1.Cluster{}
		if block != "" {
			cluster.Spec.ClusterNetwork.Services.CIDRBlocks = []string{block, "fd00::/108"}
		}
		NewWithT(t).Expect(dnsAddress(cluster)).To(Equal(want), block)
	}
}
