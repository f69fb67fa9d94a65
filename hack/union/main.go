// SPDX-License-Identifier: Apache-2.0

// Command union writes the rules that say that exactly one cloud must be set, and that a machine's
// cloud can't be changed. It reads the clouds from the fields of DroverMachineFields, so a new cloud
// needs no rule of its own.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

const (
	marker = "// +kubebuilder:validation:XValidation:"
	one    = `message="exactly one cloud must be set: `
	fixed  = `message="the machine's cloud fields can't be changed: make a new machine"`
)

var cloud = regexp.MustCompile("(?m)^\t\\w+ +\\*\\w+Machine +`json:\"(\\w+),omitempty\"`$")

func main() {
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "hack/union:", err)
		os.Exit(1)
	}
}

// run rewrites the rules in the Go files of a folder.
func run(folder string) error {
	machine, err := os.ReadFile(filepath.Join(folder, "drovermachine_types.go"))
	if err != nil {
		return err
	}
	var clouds []string
	for _, match := range cloud.FindAllSubmatch(machine, -1) {
		clouds = append(clouds, string(match[1]))
	}
	slices.Sort(clouds)
	for _, name := range []string{"drovermachine_types.go", "droveraccount_types.go"} {
		path := filepath.Join(folder, name)
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(rewrite(string(source), clouds)), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func rewrite(source string, clouds []string) string {
	var lines []string
	wrote := false
	for line := range strings.SplitAfterSeq(source, "\n") {
		switch {
		case strings.Contains(line, one):
			line = exactlyOne(clouds)
		case strings.Contains(line, fixed) && wrote:
			continue
		case strings.Contains(line, fixed):
			line, wrote = unchanged(clouds), true
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "")
}

func exactlyOne(clouds []string) string {
	last := len(clouds) - 1
	return fmt.Sprintf("%srule=\"[has(self.%s)].filter(x, x).size() == 1\",%s%s or %s\"\n", marker,
		strings.Join(clouds, "), has(self."), one, strings.Join(clouds[:last], ", "), clouds[last])
}

func unchanged(clouds []string) string {
	var rules strings.Builder
	for _, c := range clouds {
		fmt.Fprintf(&rules, "%srule=\"has(self.%[2]s) == has(oldSelf.%[2]s) && (!has(self.%[2]s) || self.%[2]s == oldSelf.%[2]s)\",%s\n", marker, c, fixed)
	}
	return rules.String()
}
