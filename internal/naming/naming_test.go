// SPDX-License-Identifier: Apache-2.0

package naming

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/util/validation"
)

func TestNodeName(t *testing.T) {
	g := NewWithT(t)
	long := strings.Repeat("a", 60)
	for name, want := range map[string]string{"blue-1": "blue-1", "a.b": "a.b", strings.Repeat("a", 63): strings.Repeat("a", 63)} {
		g.Expect(NodeName(name)).To(Equal(want))
	}
	seen := map[string]string{}
	for _, name := range []string{long + "-bcde-1", long + "-bcde-2", "UPPER", "upper_", "ünïcödé", "", "---", "a/b",
		strings.Repeat("x.", 4000)} {
		got := NodeName(name)
		g.Expect(validation.IsDNS1123Subdomain(got)).To(BeEmpty(), "%q", got)
		g.Expect(len(got)).To(BeNumerically("<=", 63))
		g.Expect(NodeName(got)).To(Equal(got))
		g.Expect(seen).NotTo(HaveKey(got))
		seen[got] = name
	}
}
