// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"testing"
)

// startsFreely are the files that may start goroutines in any way: tests and what only these use,
// and the simulated cloud, a process of its own, which serves nobody's accounts.
var startsFreely = regexp.MustCompile(`_test\.go$|^(conformance|simulated/simulator|\w+/\w+stub)/`)

// TestGoroutinesRecover: the engine and the drivers start goroutines by Group only, because a panic
// of another one ends the process that serves all accounts. golangci-lint forbids what else starts
// one, as sync.WaitGroup does.
func TestGoroutinesRecover(t *testing.T) {
	seen := 0
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".go" || startsFreely.MatchString(filepath.ToSlash(path)) {
			return err
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		seen++
		ast.Inspect(file, func(n ast.Node) bool {
			if start, ok := n.(*ast.GoStmt); ok {
				t.Errorf("%s: a panic there would end the process: use cloud.Group", files.Position(start.Pos()))
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatalf("walk the sources: %v", err)
	}
	if seen < 50 {
		t.Errorf("found %d files only", seen)
	}
}
