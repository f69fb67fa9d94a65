// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
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

// TestNavigation tests that the site has the pages of docs/README.md, in the same order.
func TestNavigation(t *testing.T) {
	var site struct {
		Nav []map[string]any `json:"nav"`
	}
	if err := yaml.Unmarshal([]byte(read(t, "mkdocs.yml")), &site); err != nil {
		t.Fatal(err)
	}
	var got, want []string
	for _, section := range site.Nav {
		for _, pages := range section {
			list, _ := pages.([]any)
			for _, p := range list {
				for path := range maps.Values(p.(map[string]any)) {
					got = append(got, path.(string))
				}
			}
		}
	}
	got = slices.DeleteFunc(got, func(p string) bool { return p == "docs/README.md" || !strings.HasPrefix(p, "docs/") })
	for _, m := range entry.FindAllStringSubmatch(read(t, "docs/README.md"), -1) {
		want = append(want, filepath.Join("docs", m[2]))
	}
	if !slices.Equal(got, want) {
		t.Errorf("mkdocs.yml has the pages\n%s\ndocs/README.md has\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
