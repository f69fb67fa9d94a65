// SPDX-License-Identifier: Apache-2.0

package playground

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	. "github.com/onsi/gomega"
)

// TestToolsTwiceAtOnce requests the same program from hack/tool twice at the same time with an
// empty cache: one call builds, the other waits, and both get the program.
func TestToolsTwiceAtOnce(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	root, err := Root(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	gocache, err := goCommand(t.Context(), root, "env", "GOCACHE")
	g.Expect(err).NotTo(HaveOccurred())
	cache := t.TempDir()

	var both sync.WaitGroup
	outputs, said, errs := make([]string, 2), make([]strings.Builder, 2), make([]error, 2)
	for i := range outputs {
		both.Go(func() {
			cmd := exec.Command(filepath.Join(root, "hack", "tool"), "controller-gen")
			cmd.Env = append(os.Environ(), "XDG_CACHE_HOME="+cache, "GOCACHE="+gocache)
			cmd.Stderr = &said[i]
			out, err := cmd.Output()
			outputs[i], errs[i] = strings.TrimSpace(string(out)), err
		})
	}
	both.Wait()
	for i := range outputs {
		g.Expect(errs[i]).NotTo(HaveOccurred(), said[i].String())
		g.Expect(outputs[i]).To(And(HavePrefix(cache), BeAnExistingFile()))
	}
	g.Expect(outputs[0]).To(Equal(outputs[1]))
	g.Expect(said[0].String() + said[1].String()).To(ContainSubstring("controller-gen"))
}
