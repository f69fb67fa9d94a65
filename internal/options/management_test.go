// SPDX-License-Identifier: Apache-2.0

package options

import (
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// TestKubeconfigFlag: --kubeconfig takes precedence over the environment, and does not change it
// for the programs that the process starts.
func TestKubeconfigFlag(t *testing.T) {
	g, dir := NewWithT(t), t.TempDir()
	write := func(name string) string {
		config := clientcmdapi.NewConfig()
		config.Clusters["c"] = &clientcmdapi.Cluster{Server: "https://" + name}
		config.Contexts["c"] = &clientcmdapi.Context{Cluster: "c"}
		config.CurrentContext = "c"
		path := filepath.Join(dir, name)
		g.Expect(clientcmd.WriteToFile(*config, path)).To(Succeed())
		return path
	}
	fromFlag, fromEnvironment := write("flag"), write("environment")
	t.Setenv("KUBECONFIG", fromEnvironment)
	for path, host := range map[string]string{fromFlag: "https://flag", "": "https://environment"} {
		config, err := Management{Kubeconfig: path}.Config("v1")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(config.Host).To(Equal(host))
		g.Expect(config.UserAgent).To(Equal("drover/v1"))
		g.Expect(config.QPS).To(BeEquivalentTo(-1))
		g.Expect(os.Getenv("KUBECONFIG")).To(Equal(fromEnvironment))
	}
	_, err := Management{Kubeconfig: filepath.Join(dir, "missing")}.Config("v1")
	g.Expect(err).To(MatchError(ContainSubstring("finding the management cluster")))
}
