// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var entry = regexp.MustCompile(`(?m)^- \[([^\]]+)\]\(([^)#]+)\)`)

// TestContents tests that docs/README.md lists each page once, with its title.
func TestContents(t *testing.T) {
	entries := map[string]string{}
	for _, m := range entry.FindAllStringSubmatch(read(t, "docs/README.md"), -1) {
		page := filepath.Join("docs", m[2])
		if entries[page] != "" {
			t.Errorf("docs/README.md has %s twice", page)
		}
		entries[page] = m[1]
	}
	for page, text := range book(t) {
		title := ""
		if m := heading.FindStringSubmatch(text); m != nil {
			title = m[1]
		}
		if strings.HasPrefix(page, "docs/") && page != "docs/README.md" && entries[page] != title {
			t.Errorf("docs/README.md calls %s %q, its title is %q", page, entries[page], title)
		}
	}
}
