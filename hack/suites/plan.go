// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"
)

const (
	// lanes is the number of suites that run at the same time, except those that run alone: much of
	// what the others do is waiting.
	lanes = 2
	// turns is the number of days after which it is a suite's turn again.
	turns = 10
)

// facts are what the plan depends on.
type facts struct {
	// day counts the days since 1970.
	day int
	// minutes is the budget.
	minutes int
	// root is set if this process is root and can make namespaces.
	root bool
	// affected has, for each suite that the change can affect, the file that can.
	affected map[string]string
}

// choice is a suite that runs or is left out, and why.
type choice struct {
	suite
	runs bool
	why  string
}

// choose decides which suites should run, in the order in which they should begin, and which are
// left out. It does not know how much fits into the budget.
func choose(all []suite, f facts) (chosen, left []choice) {
	for i, s := range all {
		file, affected := f.affected[s.name]
		switch days := wait(i, f.day); {
		case s.unproven:
			left = append(left, choice{s, false, "not verified since the last relevant change, so only the nightly workflow runs it"})
		case s.root && !f.root:
			left = append(left, choice{s, false, "it needs root and namespaces"})
		case days == 0:
			chosen = append(chosen, choice{s, true, "it is its turn"})
		case affected:
			chosen = append(chosen, choice{s, true, "the change can affect it: " + file})
		default:
			left = append(left, choice{s, false, fmt.Sprintf("the change cannot affect it; days until its turn: %d", days)})
		}
	}
	order := make(map[string]int, len(all))
	for i, s := range all {
		order[s.name] = rank(s, wait(i, f.day))
	}
	slices.SortStableFunc(chosen, func(a, b choice) int { return cmp.Compare(order[a.name], order[b.name]) })
	return chosen, left
}

// wait returns the number of days until it is the turn of the suite with the given index.
func wait(index, day int) int { return ((index-day)%turns + turns) % turns }

// rank orders the suites. Those whose turn it is come first: if the affected ones came first, and
// each change affected most suites, some would never run. The next ones are those that ran longest
// ago. A suite that runs alone comes first or last, so that no lane is empty while it waits.
func rank(s suite, wait int) int {
	switch {
	case s.alone && wait == 0:
		return 0
	case s.alone:
		return 1 + turns + wait
	default:
		return 1 + wait
	}
}

// fit simulates a run in which each suite takes the minutes of the table.
func fit(chosen []choice, budget int) []choice {
	var free [lanes]int // when each lane is free again
	fitted := slices.Clone(chosen)
	for i, c := range fitted {
		slices.Sort(free[:])
		start := free[0]
		if c.alone {
			start = free[lanes-1]
		}
		if remaining := budget - start; c.minutes > remaining {
			fitted[i].runs, fitted[i].why = false, tooLong(c.suite, remaining)
			continue
		}
		free[0] = start + c.minutes
		if c.alone {
			free = [lanes]int{start + c.minutes, start + c.minutes}
		}
	}
	return fitted
}

func tooLong(s suite, remaining int) string {
	return fmt.Sprintf("it takes %s, and %d minutes are left", s.duration(), max(remaining, 0))
}

// duration returns the suite's minutes for people.
func (s suite) duration() string {
	if s.unproven {
		return fmt.Sprintf("about %d minutes", s.minutes)
	}
	return fmt.Sprintf("%d minutes", s.minutes)
}

// affects returns the first of the changed files that can affect the suite, or "". The folders are
// those of the packages that the suite's tests and programs import.
func affects(s suite, folders map[string]bool, changed []string) string {
	for _, file := range changed {
		if reads(s, file) || imports(s, folders, file) {
			return file
		}
	}
	return ""
}

// reads reports whether the suite reads the file at run time.
func reads(s suite, file string) bool {
	return slices.ContainsFunc(slices.Concat(everySuite, s.files), func(f string) bool { return under(file, f) })
}

// imports reports whether the file belongs to one of the packages that the suite imports. Tests of
// a package count only for the suite that runs them.
func imports(s suite, folders map[string]bool, file string) bool {
	folder := path.Dir(file)
	switch {
	case strings.HasSuffix(file, "_test.go"):
		return slices.Contains(s.packages, folder)
	case !strings.HasSuffix(file, ".go"):
		folder = embedder(folders, folder)
	}
	return folders[folder] && !belongsToOther(s, folder)
}

// embedder returns the package that can embed a file of the folder: it lies in the folder or above
// it. The top folder embeds nothing.
func embedder(folders map[string]bool, folder string) string {
	for folder != "." && !folders[folder] {
		folder = path.Dir(folder)
	}
	if folder == "." {
		return ""
	}
	return folder
}

// belongsToOther reports whether only suites with other clouds need the folder.
func belongsToOther(s suite, folder string) bool {
	for cloud, only := range onlyFor {
		if slices.Contains(s.clouds, cloud) {
			continue
		}
		if slices.ContainsFunc(only, func(f string) bool { return under(folder, f) }) {
			return true
		}
	}
	return false
}

// under reports whether the file is the given one, or lies in the given folder.
func under(file, folder string) bool { return file == folder || strings.HasPrefix(file, folder+"/") }
