// SPDX-License-Identifier: Apache-2.0

package packaging

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var goBuild = regexp.MustCompile(`go build (.*)-ldflags "(.*)" -o `)

// TestOneBuild tests that the Dockerfile and hack/binary build the manager with the same flags, so
// that both produce the same program.
func TestOneBuild(t *testing.T) {
	var found []string
	for _, file := range []string{"Dockerfile", "hack/binary"} {
		m := goBuild.FindStringSubmatch(string(read(t, filepath.Join(root(t), file))))
		if m == nil {
			t.Fatalf("%s builds nothing", file)
		}
		found = append(found, m[1]+regexp.MustCompile(`\$\{VERSION[^}]*\}`).ReplaceAllString(m[2], "VERSION"))
	}
	if found[0] != found[1] {
		t.Errorf("the Dockerfile builds with %q, hack/binary with %q", found[0], found[1])
	}
	if !strings.Contains(found[1], "-trimpath -buildvcs=false") {
		t.Errorf("paths or the state of git get into the program: %q", found[1])
	}
}

var (
	makeCommand = regexp.MustCompile(`(?m)run: make (.+)$`)
	matrix      = regexp.MustCompile(`(?m)target: \[(.+)\]$`)
	makeTarget  = regexp.MustCompile(`(?m)^([a-z0-9-]+):.*## `)
)

// TestVersion: the release that the tests speak of is the Makefile's.
func TestVersion(t *testing.T) {
	if !strings.Contains(string(read(t, root(t)+"/Makefile")), "\nVERSION ?= "+version+"\n") {
		t.Errorf("the Makefile's version is not %s", version)
	}
}

// TestWorkflowsCallMake tests that the workflows run only targets that the Makefile has.
func TestWorkflowsCallMake(t *testing.T) {
	var targets []string
	for _, m := range makeTarget.FindAllStringSubmatch(string(read(t, root(t)+"/Makefile")), -1) {
		targets = append(targets, m[1])
	}
	files, err := filepath.Glob(root(t) + "/.github/workflows/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("there are no workflows: %v", err)
	}
	called := 0
	for _, file := range files {
		text := string(read(t, file))
		for _, m := range slices.Concat(makeCommand.FindAllStringSubmatch(text, -1), matrix.FindAllStringSubmatch(text, -1)) {
			for _, target := range strings.Fields(strings.ReplaceAll(m[1], ",", " ")) {
				if strings.ContainsAny(target, "${}.") {
					continue // targets from the matrix are checked separately
				}
				called++
				if !slices.Contains(targets, target) {
					t.Errorf("%s runs 'make %s', which is no target", filepath.Base(file), target)
				}
			}
		}
	}
	if called < 8 {
		t.Errorf("the workflows run %d targets only: is this how they do?", called)
	}
}
