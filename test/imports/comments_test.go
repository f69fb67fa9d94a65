// SPDX-License-Identifier: Apache-2.0

package imports

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

// widest is the maximum width of a comment in columns, with a tab as four.
const widest = 100

// TestCommentWidth tests that a comment on its own lines is not too wide. It skips markers, single
// long words, which can't be broken, and generated code.
func TestCommentWidth(t *testing.T) {
	t.Parallel()
	err := filepath.WalkDir("../..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasPrefix(entry.Name(), "zz_generated") {
			return err
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		for _, group := range file.Comments {
			for _, comment := range group.List {
				if at := files.Position(comment.Pos()); tooWide(comment, at.Column) {
					t.Errorf("%s:%d: the comment is wider than %d columns", path, at.Line, widest)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// tooWide reports whether a comment is too wide. column is where it starts; each tab before it
// counts as one.
func tooWide(comment *ast.Comment, column int) bool {
	text, isLine := strings.CutPrefix(comment.Text, "// ")
	if !isLine || strings.HasPrefix(text, "+") || !strings.Contains(text, " ") || column > 8 {
		return false // a comment behind code is as wide as its code makes it
	}
	return utf8.RuneCountInString(comment.Text)+4*(column-1) > widest
}
