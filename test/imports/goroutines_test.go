// SPDX-License-Identifier: Apache-2.0

package imports

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// startsAlone returns what in a file starts a goroutine that does not recover: a panic of one ends
// the process that serves all accounts.
func startsAlone(files *token.FileSet, file *ast.File) (found []string) {
	note := func(n ast.Node, what string) {
		found = append(found, fmt.Sprintf("%s: %s", files.Position(n.Pos()), what))
	}
	names := map[string]string{} // import paths by their name in this file
	for _, i := range file.Imports {
		path := strings.Trim(i.Path.Value, `"`)
		name := path[strings.LastIndex(path, "/")+1:]
		if i.Name != nil {
			name = i.Name.Name
		}
		names[name] = path
		if path == "golang.org/x/sync/errgroup" || name == "." {
			note(i, "imports "+path)
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			note(n, "go")
		case *ast.SelectorExpr:
			of, plain := n.X.(*ast.Ident)
			if !plain {
				break
			}
			switch what := names[of.Name] + "." + n.Sel.Name; what {
			case "sync.WaitGroup", "time.AfterFunc", "context.AfterFunc":
				note(n, what)
			}
		}
		return true
	})
	return found
}

// mayStart returns whether a file below cloud may start goroutines in any way.
func mayStart(path string) bool {
	for _, dir := range []string{
		"cloud/simulated/simulator",                                                          // a process of its own, which serves nobody's accounts
		"cloud/conformance", "cloud/aws/ec2stub", "cloud/azure/armstub", "cloud/gcp/gcpstub", // run in tests only
	} {
		if under(filepath.ToSlash(filepath.Dir(path)), dir) {
			return true
		}
	}
	switch filepath.ToSlash(path) {
	case "cloud/recover.go", // the helper
		"cloud/openstack/shared.go": // its timer gives a lock back
		return true
	}
	return false
}

// TestGoroutinesRecover: the engine and the drivers start goroutines by cloud.Group only.
func TestGoroutinesRecover(t *testing.T) {
	const root = "../.."
	seen := 0
	err := filepath.WalkDir(filepath.Join(root, "cloud"), func(path string, e fs.DirEntry, err error) error {
		inside, relErr := filepath.Rel(root, path)
		if err != nil || relErr != nil || e.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") || mayStart(inside) {
			return err
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		seen++
		for _, what := range startsAlone(files, file) {
			t.Errorf("%s: a panic there would end the process: use cloud.Group", what)
		}
		return nil
	})
	if err != nil {
		t.Fatalf("walk the sources: %v", err)
	}
	if seen < 50 {
		t.Errorf("found %d files only", seen)
	}
}

func TestStartsAlone(t *testing.T) {
	for text, want := range map[string]int{
		`func f() { go g() }`:                                       1,
		`func f() { defer func() { go g() }() }`:                    1,
		`import "sync"; var g sync.WaitGroup`:                       1,
		`import s "sync"; type t struct { s.WaitGroup }`:            1,
		`import . "sync"; var g WaitGroup`:                          1,
		`import "golang.org/x/sync/errgroup"; var g errgroup.Group`: 1,
		`import "time"; var t = time.AfterFunc(0, nil)`:             1,
		`import "context"; var t = context.AfterFunc(nil, nil)`:     1,
		`import "x/cloud"; var g cloud.Group`:                       0,
		`import "sync"; var m sync.Mutex`:                           0,
	} {
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, "f.go", "package p; "+text, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		if got := startsAlone(files, file); len(got) != want {
			t.Errorf("%s: got %q, want %d", text, got, want)
		}
	}
}
