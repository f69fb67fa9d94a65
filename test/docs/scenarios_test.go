// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var scenarioRow = regexp.MustCompile("(?m)^\\| .* \\| .* \\| `([a-z/]+)` `(Test[A-Za-z]+)` \\|$")

// TestScenariosAreTested: each row of docs/scenarios.md names a test that there is.
func TestScenariosAreTested(t *testing.T) {
	text := read(t, "docs/scenarios.md")
	_, rows, _ := strings.Cut(text, "| --- | --- | --- |\n")
	found := scenarioRow.FindAllStringSubmatch(rows, -1)
	if n := strings.Count(strings.TrimSpace(rows), "\n") + 1; len(found) != n || n < 2 {
		t.Errorf("%d of %d rows name a test", len(found), n)
	}
	for _, row := range found {
		files, err := filepath.Glob(filepath.Join(root, row[1], "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		there := false
		for _, file := range files {
			source, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			there = there || strings.Contains(string(source), "\nfunc "+row[2]+"(t *testing.T)")
		}
		if !there {
			t.Errorf("there is no %s in %s", row[2], row[1])
		}
	}
}
