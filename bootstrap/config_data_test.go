// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

func TestKubeconfigCA(t *testing.T) {
	ca, err := os.ReadFile(filepath.Join("render", "testdata", "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*clientcmdapi.Config)
		ok     bool
	}{
		"good": {func(*clientcmdapi.Config) {}, true},
		"exec": {func(k *clientcmdapi.Config) {
			k.AuthInfos["u"].Exec = &clientcmdapi.ExecConfig{Command: "marked-secret"}
		}, false},
		"exec elsewhere": {func(k *clientcmdapi.Config) {
			k.AuthInfos["v"] = &clientcmdapi.AuthInfo{Exec: &clientcmdapi.ExecConfig{}}
		}, false},
		"auth provider": {func(k *clientcmdapi.Config) { k.AuthInfos["u"].AuthProvider = &clientcmdapi.AuthProviderConfig{} }, false},
		"token file":    {func(k *clientcmdapi.Config) { k.AuthInfos["u"].TokenFile = "/marked-secret" }, false},
		"key file":      {func(k *clientcmdapi.Config) { k.AuthInfos["u"].ClientKey = "/marked-secret" }, false},
		"CA file":       {func(k *clientcmdapi.Config) { k.Clusters["c"].CertificateAuthority = "/marked-secret" }, false},
		"insecure":      {func(k *clientcmdapi.Config) { k.Clusters["c"].InsecureSkipTLSVerify = true }, false},
		"no CA":         {func(k *clientcmdapi.Config) { k.Clusters["c"].CertificateAuthorityData = nil }, false},
		"CA is garbage": {func(k *clientcmdapi.Config) { k.Clusters["c"].CertificateAuthorityData = []byte("marked-secret") }, false},
		"no context":    {func(k *clientcmdapi.Config) { k.CurrentContext = "other" }, false},
		"no cluster":    {func(k *clientcmdapi.Config) { k.Contexts["x"].Cluster = "other" }, false},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			k := clientcmdapi.NewConfig()
			k.Clusters["c"] = &clientcmdapi.Cluster{Server: "https://a", CertificateAuthorityData: ca}
			k.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: "marked-secret"}
			k.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
			k.CurrentContext = "x"
			c.change(k)
			raw, err := clientcmd.Write(*k)
			g.Expect(err).NotTo(HaveOccurred())
			got, err := kubeconfigCA(raw)
			g.Expect(err == nil).To(Equal(c.ok), "%v", err)
			if err != nil {
				g.Expect(err.Error()).NotTo(ContainSubstring("marked-secret"))
				return
			}
			g.Expect(got).To(Equal(ca))
		})
	}
	for _, raw := range []string{"", "marked-secret", "<html>marked-secret</html>", "a: [", "\xff", strings.Repeat("{", 10000)} {
		_, err := kubeconfigCA([]byte(raw))
		NewWithT(t).Expect(err).To(HaveOccurred())
		NewWithT(t).Expect(err.Error()).NotTo(ContainSubstring("marked-secret"))
	}
}

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
