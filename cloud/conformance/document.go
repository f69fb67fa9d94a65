// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"testing"
)

// Document compares a permission document, made from the calls that the driver was seen to make,
// with the one in a page of the book: the JSON below the comment that begins with "mark: ". With
// update, it writes the document into the page.
func Document(t testing.TB, page, mark string, document any, update bool) {
	t.Helper()
	want, err := json.MarshalIndent(document, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?s)(<!-- " + regexp.QuoteMeta(mark) + ": [^\n]*\n```json\n)(.*?)(\n```)")
	found := block.FindSubmatchIndex(text)
	switch {
	case found == nil:
		t.Fatalf("%s has no place for the %s", page, mark)
	case string(text[found[4]:found[5]]) == string(want):
	case update:
		if err := os.WriteFile(page, slices.Concat(text[:found[4]], want, text[found[5]:]), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("the %s in %s is not that of the calls; run %s with -update, or write:\n%s", mark, page, t.Name(), want)
	}
}
