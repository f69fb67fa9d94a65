// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestRulesNameTheirSubtests: each test that the contract names after a rule is in the suite, and
// each rule of Ensure but the last names one.
func TestRulesNameTheirSubtests(t *testing.T) {
	proofs, quoted := regexp.MustCompile(`\((?:"[^"()]+"(?:, )?)+\)`), regexp.MustCompile(`"([^"]+)"`)
	known := func(name string) bool {
		return slices.ContainsFunc(subtests(), func(s subtest) bool { return s.name == name })
	}
	named, rules := 0, 0
	for _, path := range []string{"../driver.go", "../sources.go", "../balancer.go"} {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			group, ok := n.(*ast.CommentGroup)
			if !ok {
				return true
			}
			text := strings.Join(strings.Fields(group.Text()), " ")
			for _, proof := range proofs.FindAllString(text, -1) {
				for _, name := range quoted.FindAllStringSubmatch(proof, -1) {
					if named++; !known(name[1]) {
						t.Errorf("%s: the suite has no subtest %q", path, name[1])
					}
				}
			}
			if !strings.HasPrefix(text, "Ensure ") {
				return true
			}
			all := regexp.MustCompile(` [1-9]\. `).Split(text, -1)[1:]
			rules = len(all)
			for _, rule := range all {
				if !proofs.MatchString(rule) {
					t.Errorf("no subtest proves %q", rule)
				}
			}
			return true
		})
	}
	if named < 20 || rules != 7 {
		t.Errorf("read %d names of subtests, and %d rules of Ensure", named, rules)
	}
}
