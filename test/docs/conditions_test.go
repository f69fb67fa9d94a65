// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestConditions compares docs/conditions.md with the constants of the API, group by group and in
// both directions.
func TestConditions(t *testing.T) {
	documented := conditionTables(read(t, "docs/conditions.md"))
	groups, err := filepath.Glob(filepath.Join(root, "api/*/v1beta1"))
	if err != nil || len(groups) == 0 {
		t.Fatalf("no api groups found: %v", err)
	}
	for _, dir := range groups {
		group := filepath.Base(filepath.Dir(dir)) + ".cluster.x-k8s.io"
		inCode, inDocs := conditionConstants(t, dir), documented[group]
		for value, name := range inCode {
			if row := inDocs[value]; row == nil {
				t.Errorf("docs/conditions.md, %s: no row for %q (%s)", group, value, name)
			} else if slices.Contains(row, "") {
				t.Errorf("docs/conditions.md, %s: the row of %q has an empty cell", group, value)
			}
		}
		for _, value := range slices.Sorted(maps.Keys(inDocs)) {
			if inCode[value] == "" {
				t.Errorf("docs/conditions.md, %s: %q is no constant in %s", group, value, dir)
			}
		}
	}
}

// TestCodesAreReasons tests that every error code of the cloud is also a reason: codes that name no
// cause by themselves have a reason of another name (controllers.cloudReason).
func TestCodesAreReasons(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, "cloud/error.go"), nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	reasons, codes := conditionConstants(t, filepath.Join(root, "api/infrastructure/v1beta1")), 0
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || len(spec.Values) != 1 {
			return true
		}
		if kind, ok := spec.Type.(*ast.Ident); !ok || kind.Name != "Code" {
			return true
		}
		codes++
		value, _ := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		if other := map[string]string{
			"Conflict": "CloudConflict", "NotFound": "CloudResourceNotFound", "Unavailable": "CloudUnavailable", "Unknown": "CloudErrorUnknown",
		}[value]; other != "" {
			value = other
		}
		if reasons[value] == "" {
			t.Errorf("cloud.%s has no reason in api/infrastructure/v1beta1", spec.Names[0].Name)
		}
		return true
	})
	if codes < 9 {
		t.Errorf("found %d codes only", codes)
	}
}

// conditionConstants returns the values of all constants whose names end in Reason or Condition,
// with their names.
func conditionConstants(t *testing.T, dir string) map[string]string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, path := range paths {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok {
				return true
			}
			for i, name := range spec.Names {
				if !strings.HasSuffix(name.Name, "Reason") && !strings.HasSuffix(name.Name, "Condition") {
					continue
				}
				if i >= len(spec.Values) {
					continue // a field or an uninitialized variable with such a name
				}
				literal, ok := spec.Values[i].(*ast.BasicLit)
				if !ok {
					t.Errorf("%s: %s is not a plain string", path, name.Name)
					continue
				}
				value, err := strconv.Unquote(literal.Value)
				if err != nil {
					t.Fatal(err)
				}
				found[value] = name.Name
			}
			return true
		})
	}
	return found
}

var (
	firstCell = regexp.MustCompile(`^<a id="[^"]+"></a>` + "`([A-Za-z]+)`$")
	rowOfTerm = regexp.MustCompile(`^\| (?:<a id="[^"]*"></a>)?` + "(`([A-Za-z]+)` \\|)")
)

// TestConditionAnchors tests that each row has an anchor, so that conditions.md#REASON leads to the
// remedy: the reason in lower case, and its group where an earlier group has the same one. -update
// writes them.
func TestConditionAnchors(t *testing.T) {
	var out strings.Builder
	group, prefix, taken := "", "", map[string]bool{}
	for line := range strings.Lines(read(t, "docs/conditions.md")) {
		if title, ok := strings.CutPrefix(line, "## "); ok {
			group, _, _ = strings.Cut(strings.TrimSpace(title), ".")
		}
		if strings.HasPrefix(line, "#") {
			prefix = ""
			if strings.TrimSpace(line) == "### Condition types" {
				prefix = "condition-"
			}
		}
		if m := rowOfTerm.FindStringSubmatch(line); m != nil {
			anchor := prefix + strings.ToLower(m[2])
			if taken[anchor] {
				anchor += "-" + group
			}
			if taken[anchor] {
				t.Errorf("docs/conditions.md has %s twice in %s", m[2], group)
			}
			taken[anchor] = true
			line = rowOfTerm.ReplaceAllString(line, `| <a id="`+anchor+`"></a>$1`)
		}
		out.WriteString(line)
	}
	page(t, "docs/conditions.md", out.String())
}

// conditionTables returns, for each section "## group", the table rows that begin with a word in
// back quotes.
func conditionTables(text string) map[string]map[string][]string {
	tables, group := map[string]map[string][]string{}, ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if title, ok := strings.CutPrefix(line, "## "); ok {
			group = title
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		m := firstCell.FindStringSubmatch(cells[0])
		if !strings.HasPrefix(line, "|") || m == nil {
			continue
		}
		if tables[group] == nil {
			tables[group] = map[string][]string{}
		}
		tables[group][m[1]] = cells
	}
	return tables
}
