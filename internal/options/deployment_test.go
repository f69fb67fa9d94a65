// SPDX-License-Identifier: Apache-2.0

package options

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
)

// TestTake: a command has the manager's values of the flags that both have, but for those that the
// user has set.
func TestTake(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	var clouds Clouds
	f := pflag.NewFlagSet("command", pflag.ContinueOnError)
	clouds.AddFlags(f)
	g.Expect(f.Parse([]string{"--cloud-call-timeout=5s"})).To(Succeed())
	args := Expand(&corev1.Container{
		Args: []string{"--leader-elect", "-v=4", "--diagnostics-address", ":8443", "--simulated-endpoint=$(ENDPOINT)",
			"--allow-endpoints=$(ALLOW)", "--deny-endpoints=$(DENY)", "--cloud-call-timeout=1m"},
		Env: []corev1.EnvVar{{Name: "ENDPOINT", Value: "http://127.0.0.1:8080"}, {Name: "ALLOW", Value: "127.0.0.0/8,10.0.0.0/8"},
			{Name: "DENY"}},
	})
	g.Expect(Take(f, args)).To(Succeed())
	g.Expect(clouds).To(Equal(Clouds{
		SimulatedEndpoint: "http://127.0.0.1:8080", Allow: []string{"127.0.0.0/8", "10.0.0.0/8"}, Deny: []string{}, CallTimeout: 5 * time.Second,
	}))
	g.Expect(Take(f, []string{"--cloud-call-timeout=soon"})).NotTo(Succeed())
}
