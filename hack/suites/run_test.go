// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

// makefile has targets like the suites'. Each of them notes in a file when it begins and ends.
const makefile = `
passes-%:
	@echo +$* >>order; echo noise of $*; printf 'ok  \texample.com/$*\t0.1s\n'; sleep 0.3; echo -$* >>order
fails:
	@echo noise; echo '    x_test.go:1: Timed out after 360.000s.'; echo why it fails; printf -- '--- FAIL: TestX (0.00s)\nFAIL\texample.com/x\t0.1s\n'; exit 1
fails-and-hangs:
	@printf -- '--- FAIL: TestX (0.00s)\n'; sleep 600 & echo $$! >pid; wait
hangs:
	@sleep 600 & echo $$! >pid; wait
`

func inFolder(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.WriteFile("Makefile", []byte(makefile), 0o644); err != nil {
		t.Fatal(err)
	}
}

func chosen(targets ...string) (all []choice) {
	for _, target := range targets {
		all = append(all, choice{suite: suite{name: target, make: target}, runs: true})
	}
	return all
}

func TestRun(t *testing.T) {
	inFolder(t)
	all := chosen("passes-a", "fails", "passes-b", "passes-alone", "passes-c", "passes-long")
	all[3].alone = true
	all[5].minutes = 2
	var out strings.Builder
	err := runAll(t.Context(), &out, all, time.Minute)
	if err == nil || !strings.Contains(err.Error(), "failed: fails;") {
		t.Errorf("the error is %v, want one that names the suite that failed, and no other", err)
	}
	for text, want := range map[string]int{
		"ok  \texample.com/a\t0.1s\n":       1,
		"ok  \texample.com/c\t0.1s\n":       1,
		"noise of":                          0, // the logs have it
		"suites: fails failed:":             1,
		"why it fails\n":                    2, // when it fails, and at the end
		"--- FAIL: TestX":                   2,
		"2 minutes, and 0 minutes are left": 1,
	} {
		if got := strings.Count(out.String(), text); got != want {
			t.Errorf("the output has %q %d times, want %d:\n%s", text, got, want, out.String())
		}
	}
	if log, err := os.ReadFile(filepath.Join(logs, "passes-a.log")); err != nil || !strings.Contains(string(log), "noise of a") {
		t.Errorf("the log is %q: %v", log, err)
	}
	order, err := os.ReadFile("order")
	if err != nil {
		t.Fatal(err)
	}
	running := 0
	for _, event := range strings.Fields(string(order)) {
		if running++; strings.HasPrefix(event, "-") {
			running -= 2
		}
		if running > lanes || (event == "+alone" && running > 1) {
			t.Errorf("%d suites run at %s: %s", running, event, strings.Fields(string(order)))
		}
	}
	if events := strings.Fields(string(order)); slices.Index(events, "-alone") != slices.Index(events, "+alone")+1 {
		t.Errorf("another suite ran beside the one that runs alone: %s", events)
	}
}

// TestRunEnds tests that an end of the run ends the processes of a suite, and counts as a failure.
func TestRunEnds(t *testing.T) {
	inFolder(t)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer cancel()
		for range time.Tick(10 * time.Millisecond) {
			if child() != 0 {
				return
			}
		}
	}()
	all := chosen("hangs", "passes-a")
	all[0].alone = true
	var out strings.Builder
	err := runAll(ctx, &out, all, time.Minute)
	if err == nil || !strings.Contains(err.Error(), "failed: hangs;") {
		t.Errorf("the error is %v, want one that names the suite that was ended", err)
	}
	NewWithT(t).Eventually(func() string { return state(child()) }, time.Minute).Should(Or(BeEmpty(), HavePrefix("Z")),
		"a process of the suite still runs")
	if !strings.Contains(out.String(), "the run was ended") {
		t.Errorf("nothing is said of the suites that did not begin:\n%s", out.String())
	}
}

// TestOutOfTime tests that a suite for which no time is left is ended, and does not fail the run
// unless one of its tests has failed.
func TestOutOfTime(t *testing.T) {
	inFolder(t)
	for target, want := range map[string]string{"hangs": "ENDED", "fails-and-hangs": "FAILED"} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var out strings.Builder
		err := runAll(ctx, &out, chosen(target), time.Minute)
		if (err != nil) != (want == "FAILED") || !strings.Contains(out.String(), want) {
			t.Errorf("%s: the error is %v, want %s in\n%s", target, err, want, out.String())
		}
	}
}

// child returns the process ID of the child of "hangs", or 0 if it has not begun.
func child() int {
	text, err := os.ReadFile("pid")
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0
	}
	return pid
}

// state returns the state of a process as ps prints it: empty if there is none, Z if it has ended
// and its parent has not noticed.
func state(pid int) string {
	text, _ := exec.Command("ps", "-o", "stat=", "-p", strconv.Itoa(pid)).Output() // fails if there is none
	return strings.TrimSpace(string(text))
}
