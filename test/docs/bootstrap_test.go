// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"fmt"
	"strings"
	"testing"

	"github.com/drover-io/drover/bootstrap/render"
)

// TestMatrix compares the table of operating systems in docs/bootstrap.md with the code.
func TestMatrix(t *testing.T) {
	const name, begin, end = "docs/bootstrap.md", "-update\" -->\n", "<!-- end -->"
	text := read(t, name)
	before, rest, ok := strings.Cut(text, begin)
	_, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s has no place for the table", name)
	}
	var table strings.Builder
	table.WriteString("| `operatingSystem` | format | modes | containerd | cgroup v1 |\n| --- | --- | --- | --- | --- |\n")
	for _, row := range render.Matrix() {
		modes := make([]string, len(row.Modes))
		packages := false
		for i, mode := range row.Modes {
			modes[i] = string(mode)
			packages = packages || mode == "Packages"
		}
		containerd, cgroup := row.Containerd, ""
		if containerd == "" && packages {
			containerd = "the release's"
		}
		if row.CgroupV1 {
			cgroup = "yes"
		}
		fmt.Fprintf(&table, "| `%s` | %s | %s | %s | %s |\n", row.System, row.Format, strings.Join(modes, ", "), containerd, cgroup)
	}
	page(t, name, before+begin+table.String()+end+after)
}
