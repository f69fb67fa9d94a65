// SPDX-License-Identifier: Apache-2.0

package render

import (
	"net/url"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"golang.org/x/net/http/httpproxy"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
)

// TestMetadataWithoutProxy: no program on a machine asks the proxy for the cloud's metadata, which
// include credentials. The proxy would answer with those of its own machine.
func TestMetadataWithoutProxy(t *testing.T) {
	for name, proxy := range map[string]bootstrapv1.Proxy{
		"http":  {HTTPProxy: "http://proxy.example.org:3128"},
		"https": {HTTPSProxy: "http://proxy.example.org:3128"},
		"no proxy set": {HTTPProxy: "http://proxy.example.org:3128", HTTPSProxy: "http://proxy.example.org:3128",
			NoProxy: []string{"10.0.0.0/8"}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			in := input(t)
			in.Spec.Host.Proxy = proxy
			out, err := UserData(in)
			g.Expect(err).NotTo(HaveOccurred())
			settings := map[string]string{}
			for _, line := range strings.Split(readBack(g, FormatOf(in.Spec), out).files[proxyPath].content, "\n") {
				key, value, _ := strings.Cut(line, "=")
				settings[key] = strings.Trim(value, "'")
			}
			g.Expect(settings["no_proxy"]).To(Equal(settings["NO_PROXY"]))
			choose := (&httpproxy.Config{HTTPProxy: settings["HTTP_PROXY"], HTTPSProxy: settings["HTTPS_PROXY"],
				NoProxy: settings["NO_PROXY"]}).ProxyFunc()
			for _, asked := range []string{
				"http://169.254.169.254/latest/meta-data", "http://metadata.google.internal/computeMetadata/v1/",
				"http://[fd00:ec2::254]/latest/meta-data",
				"http://[fd20:ce::254]/computeMetadata/v1/", "http://168.63.129.16/machine", in.Server,
			} {
				got, err := choose(parsed(g, asked))
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(got).To(BeNil(), asked)
			}
			asked := "https://registry.k8s.io/"
			if settings["HTTPS_PROXY"] == "" {
				asked = "http://registry.k8s.io/"
			}
			got, err := choose(parsed(g, asked))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(got).NotTo(BeNil())
		})
	}
}

func parsed(g Gomega, address string) *url.URL {
	u, err := url.Parse(address)
	g.Expect(err).NotTo(HaveOccurred())
	return u
}
