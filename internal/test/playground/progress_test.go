// SPDX-License-Identifier: Apache-2.0

package playground

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// TestBuildProgress tests what a build shows after some time: the packages that are done and left,
// and an estimate that those done correct.
func TestBuildProgress(t *testing.T) {
	t.Parallel()
	root, err := Root(t.Context())
	NewWithT(t).Expect(err).NotTo(HaveOccurred())

	for _, tc := range []struct {
		name                                   string
		processors, planned, seconds, compiled int
		want                                   string
	}{
		{"no plan yet", 2, -1, 20, 7, "  20 s: 7 packages compiled; more\n"},
		{"nothing compiled", 2, 2926, 0, 0, "  packages to compile: 2926, about 12 minutes with 2 processors\n"},
		{"many processors", 8, 2926, 0, 0, "  packages to compile: 2926, about 3 minutes with 8 processors\n"},
		{"few packages", 2, 30, 0, 0, "  packages to compile: 30, about 10 seconds with 2 processors\n"},
		{"as fast as assumed", 2, 2000, 250, 1000, "  250 s: 1000 of 2000 packages compiled, about 4 minutes left; more\n"},
		{"a third as fast", 2, 2000, 750, 1000, "  750 s: 1000 of 2000 packages compiled, about 12 minutes left; more\n"},
		{"three times as fast", 2, 2000, 83, 1000, "  83 s: 1000 of 2000 packages compiled, about 2 minutes left; more\n"},
		{"the last ones", 2, 2000, 500, 1990, "  500 s: 1990 of 2000 packages compiled, about 10 seconds left; more\n"},
		{"nothing to compile", 2, 0, 15, 0, "  15 s: all packages compiled, linking; more\n"},
		{"all compiled", 2, 2000, 510, 2000, "  510 s: all packages compiled, linking; more\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			dir := t.TempDir()
			log := filepath.Join(dir, "log")
			lines := "go: downloading example.com/module v1.0.0\n" + strings.Repeat("example.com/package\n", tc.compiled)
			g.Expect(os.WriteFile(log, []byte(lines), 0o600)).To(Succeed())
			program(t, dir, "getconf", fmt.Sprint("echo ", tc.processors))
			// Time stands still. At second 0, the plan has just been made.
			script := fmt.Sprintf(`. hack/progress.sh; unset SECONDS; SECONDS=%d planned=%s; progress 0 "$1" "; more"`, tc.seconds,
				map[bool]string{true: "0"}[tc.seconds > 0])
			if tc.planned >= 0 {
				g.Expect(os.WriteFile(log+".plan", []byte(strings.Repeat("example.com/package\n", tc.planned)), 0o600)).To(Succeed())
			}
			cmd := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", script, "bash", log)
			cmd.Dir, cmd.Env = root, append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
			said, err := cmd.CombinedOutput()
			g.Expect(err).NotTo(HaveOccurred(), string(said))
			g.Expect(string(said)).To(Equal(tc.want))
		})
	}
}
