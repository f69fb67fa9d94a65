// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	question = regexp.MustCompile(`(?m)^\| ([^|]+\?) \| ([^|]+) \| ([^|]+) \|$`)
	function = regexp.MustCompile("`([\\w.]+)(…?)`")
	goFile   = regexp.MustCompile("`([\\w/]+\\.go)`")
)

// TestQuestions checks that each of CONTRIBUTING's ten questions leads to two functions that exist.
func TestQuestions(t *testing.T) {
	rows := question.FindAllStringSubmatch(read(t, "CONTRIBUTING.md"), -1)
	if len(rows) != 10 {
		t.Fatalf("CONTRIBUTING.md has %d questions instead of ten", len(rows))
	}
	for _, row := range rows {
		file := ""
		for _, hop := range row[2:] {
			if f := goFile.FindStringSubmatch(hop); f != nil {
				file = f[1]
			} else if !strings.Contains(hop, "in the same file") {
				t.Errorf("%s: %q names no file", row[1], hop)
			}
			f := function.FindStringSubmatch(hop)
			if f == nil || !declares(t, file, f[1], f[2] != "") {
				t.Errorf("%s: %s has no function for %q", row[1], file, hop)
			}
		}
	}
}

// declares reports whether a Go file declares a function or method. The last part of the name
// counts. A prefix stands for several.
func declares(t *testing.T, file, name string, prefix bool) bool {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, file), nil, parser.SkipObjectResolution)
	if err != nil {
		t.Error(err)
		return false
	}
	name = name[strings.LastIndex(name, ".")+1:]
	for _, d := range parsed.Decls {
		f, ok := d.(*ast.FuncDecl)
		if ok && (f.Name.Name == name || prefix && strings.HasPrefix(f.Name.Name, name)) {
			return true
		}
	}
	return false
}
