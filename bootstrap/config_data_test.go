// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
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

func TestTTL(t *testing.T) {
	for seconds, want := range map[int32]time.Duration{0: 30 * time.Minute, 600: 10 * time.Minute, 86400: 24 * time.Hour} {
		config := &bootstrapv1.DroverConfig{Spec: bootstrapv1.DroverConfigSpec{TokenTTLSeconds: seconds}}
		NewWithT(t).Expect(ttl(config)).To(Equal(want))
	}
}

// TestFormatWord: other programs read Cluster API's words in the data Secret.
func TestFormatWord(t *testing.T) {
	for spec, want := range map[*bootstrapv1.DroverConfigSpec]string{
		{}:                                   "cloud-config",
		{OperatingSystem: "rhel-9"}:          "cloud-config",
		{OperatingSystem: "flatcar"}:         "ignition",
		{Format: bootstrapv1.FormatIgnition}: "ignition",
	} {
		NewWithT(t).Expect(string(formatWord(spec))).To(Equal(want))
	}
}
