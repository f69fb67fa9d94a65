// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// small is a table whose index is the day of the turn.
var small = []suite{
	{name: "a", minutes: 20},
	{name: "b", minutes: 10},
	{name: "c", minutes: 5},
	{name: "rooted", minutes: 20, root: true, alone: true},
	{name: "new", minutes: 1, unproven: true},
}

func TestPlan(t *testing.T) {
	for _, c := range []struct {
		name string
		facts
		runs []string
		left map[string]string // part of the reason, by suite
	}{
		{"only the suite whose turn it is", facts{day: 0, minutes: 60}, []string{"a"},
			map[string]string{"b": "until its turn: 1", "c": "until its turn: 2", "rooted": "needs root"}},
		{"the same after all turns", facts{day: turns, minutes: 60}, []string{"a"},
			map[string]string{"b": "until its turn: 1", "c": "until its turn: 2", "rooted": "needs root"}},
		{"an affected suite comes after the one whose turn it is", facts{day: 1, minutes: 60, affected: map[string]string{"a": "x.go"}}, []string{"b", "a"},
			map[string]string{"c": "until its turn: 1", "rooted": "needs root"}},
		{"those that ran longest ago come first", facts{day: turns - 1, minutes: 60, affected: map[string]string{"c": "x.go", "a": "x.go", "b": "x.go"}}, []string{"a", "b", "c"},
			map[string]string{"rooted": "needs root"}},
		{"two lanes hold twice the budget", facts{day: 0, minutes: 20, affected: map[string]string{"b": "x.go", "c": "x.go"}}, []string{"a", "b", "c"},
			map[string]string{"rooted": "needs root"}},
		{"a suite that does not fit is left out, and a shorter one runs", facts{day: 0, minutes: 12, affected: map[string]string{"b": "x.go"}}, []string{"b"},
			map[string]string{"a": "20 minutes, and 12 minutes are left", "c": "until its turn: 2", "rooted": "needs root"}},
		{"nothing fits", facts{day: 0, minutes: -3, affected: map[string]string{"c": "x.go"}}, nil,
			map[string]string{"a": "0 minutes are left", "b": "until its turn: 1", "c": "0 minutes are left", "rooted": "needs root"}},
		{"a suite that runs alone comes last", facts{day: 0, minutes: 40, root: true, affected: map[string]string{"b": "x.go", "rooted": "x.go"}}, []string{"a", "b", "rooted"},
			map[string]string{"c": "until its turn: 2"}},
		{"it waits for both lanes", facts{day: 0, minutes: 39, root: true, affected: map[string]string{"rooted": "x.go"}}, []string{"a"},
			map[string]string{"b": "until its turn: 1", "c": "until its turn: 2", "rooted": "20 minutes, and 19 minutes are left"}},
		{"it comes first when it is its turn, and takes both lanes", facts{day: 3, minutes: 39, root: true, affected: map[string]string{"a": "x.go", "b": "x.go"}}, []string{"rooted", "b"},
			map[string]string{"a": "20 minutes, and 19 minutes are left", "c": "until its turn: 9"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			chosen, left := choose(small, c.facts)
			var runs []string
			reasons := map[string]string{}
			c.left["new"] = "seen it pass"
			for _, choice := range slices.Concat(fit(chosen, c.minutes), left) {
				if choice.runs {
					runs = append(runs, choice.name)
				} else {
					reasons[choice.name] = choice.why
				}
			}
			if !slices.Equal(runs, c.runs) {
				t.Errorf("%q run, want %q", runs, c.runs)
			}
			if len(reasons) != len(c.left) {
				t.Errorf("left out are %q, want %q", reasons, c.left)
			}
			for name, part := range c.left {
				if !strings.Contains(reasons[name], part) {
					t.Errorf("%s is left out because %q, want %q", name, reasons[name], part)
				}
			}
		})
	}
}

func TestAffects(t *testing.T) {
	folders := map[string]bool{".": true, "cmd": true, "cloud/fleet": true, "cloud/aws": true, "cloud/vsphere": true, "test/rig": true, "test/vcenter": true, "test/crash": true}
	s := suite{packages: []string{"test/crash"}, clouds: []string{"aws"}, files: []string{"templates", "metadata.yaml"}}
	for _, c := range []struct {
		file string
		want bool
	}{
		{"main.go", true},
		{"cmd/manager.go", true},
		{"cloud/fleet/work.go", true},
		{"cloud/fleet/work_test.go", false}, // "make test" runs it
		{"test/crash/crash_test.go", true},
		{"cloud/aws/create.go", true},
		{"cloud/aws/prices/list.json", true}, // embedded
		{"cloud/vsphere/create.go", false},
		{"test/vcenter/faults.go", false},
		{"cloud/openstack/create.go", false},
		{"templates/cluster-template.yaml", true},
		{"templates-old/x.yaml", false},
		{"metadata.yaml", true},
		{"go.sum", true},
		{"hack/tools/kubeadm/go.mod", true},
		{"hack/words.txt", false},
		{"README.md", false},
		{"docs/faq.md", false},
	} {
		if got := affects(s, folders, []string{"LICENSE", c.file}) != ""; got != c.want {
			t.Errorf("%s affects the suite: %v, want %v", c.file, got, c.want)
		}
	}
}

// TestTurnsFit tests that on each day, all suites whose turn it is fit into one run, and that each
// suite has a turn.
func TestTurnsFit(t *testing.T) {
	seen, measured := map[string]bool{}, slices.Clone(suites)
	for i := range measured {
		measured[i].unproven = false
	}
	for day := range turns {
		chosen, _ := choose(measured, facts{day: day, root: true})
		for _, c := range fit(chosen, 50) {
			if !c.runs {
				t.Errorf("day %d: %s does not fit: %s", day, c.name, c.why)
			}
			seen[c.name] = true
		}
	}
	if len(seen) != len(suites) {
		t.Errorf("%d of %d suites have a turn", len(seen), len(suites))
	}
}

// TestTable tests that the table agrees with the Makefile and the folders: each suite has a name, a
// target and packages that exist, and each package that "make test" leaves out has a suite.
func TestTable(t *testing.T) {
	t.Chdir("../..")
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	var names, covered []string
	for _, s := range suites {
		if slices.Contains(names, s.name) {
			t.Errorf("two suites have the name %s", s.name)
		}
		names, covered = append(names, s.name), append(covered, s.packages...)
		target := strings.Fields(s.make)[0]
		if !regexp.MustCompile(`(?m)^` + target + `:.*## `).Match(makefile) {
			t.Errorf("%s: the Makefile has no target %s", s.name, target)
		}
		for _, cloud := range s.clouds {
			if onlyFor[cloud] == nil {
				t.Errorf("%s: onlyFor has no cloud %s", s.name, cloud)
			}
		}
		for _, path := range slices.Concat(s.packages, s.files, everySuite) {
			if _, err := os.Stat(path); err != nil {
				t.Errorf("%s: %v", s.name, err)
			}
		}
	}
	for _, folders := range onlyFor {
		for _, folder := range folders {
			if _, err := os.Stat(folder); err != nil {
				t.Error(err)
			}
		}
	}
	long := regexp.MustCompile(`(?m)^LONG := (.+)$`).FindSubmatch(makefile)
	if long == nil {
		t.Fatal("the Makefile has no LONG")
	}
	for _, folder := range strings.Fields(string(long[1])) {
		if !slices.Contains(covered, folder) {
			t.Errorf("no suite runs %s, which make test leaves out", folder)
		}
	}
}
