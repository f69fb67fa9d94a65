// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"regexp"
	"strings"
	"testing"
)

var suiteName = regexp.MustCompile("make test-([a-z0-9-]+)")

// TestSuitesExist tests that hack/suite runs each suite that a document names.
func TestSuitesExist(t *testing.T) {
	suites, named := read(t, "hack/suite"), 0
	for name, text := range book(t) {
		for _, suite := range suiteName.FindAllStringSubmatch(text, -1) {
			named++
			if !regexp.MustCompile(`(?m)^  ([a-z0-9-]+ \| )*` + suite[1] + `( \| [a-z0-9-]+)*\)`).MatchString(suites) {
				t.Errorf("%s: there is no %s", name, strings.TrimSpace(suite[0]))
			}
		}
	}
	if named < 20 {
		t.Errorf("%d suites are named", named)
	}
}
