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

// TestScenariosAreTested tests that each row of each table in docs/scenarios.md names an existing
// test.
func TestScenariosAreTested(t *testing.T) {
	text := read(t, "docs/scenarios.md")
	const head, line = "| scenario | result | test |", "| --- | --- | --- |"
	found := scenarioRow.FindAllStringSubmatch(text, -1)
	tables, rows := strings.Count(text, head+"\n"+line+"\n"), strings.Count("\n"+text, "\n|")
	if rows -= 2 * tables; tables < 3 || len(found) != rows {
		t.Errorf("%d of %d rows in %d tables name a test", len(found), rows, tables)
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
