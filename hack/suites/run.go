// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// logs is the folder of the suites' logs.
	logs = "out/suites"
	// overtime is how long suites may run beyond the budget before they are ended. A suite takes
	// longer than its minutes where its tools are not built yet.
	overtime = 10 * time.Minute
	// ending is how long a suite has to end its processes.
	ending = 20 * time.Second
)

// result matches Go's own result lines.
var result = regexp.MustCompile(`^(ok  \t|FAIL|PASS$|panic: |\?   \t| *--- (PASS|FAIL|SKIP): )`)

// testFailed matches the line of a test that failed by itself. When go test is ended, it prints
// FAIL.
var testFailed = regexp.MustCompile(`(?m)^(panic: | *--- FAIL: )`)

// reason matches a line that begins to say why a test failed: Gomega's, Go's, and the tests' own.
var reason = regexp.MustCompile(`Timed out after|Expected$|Unexpected error|is broken|INVARIANT|\[FAIL\]|DATA RACE|^panic: |^fatal error: |--- FAIL: `)

const (
	// reasonLines is how many lines are printed from each line that says why a test failed.
	reasonLines = 4
	// maxReasons is how many such lines are printed for a suite, and maxWidth how long each may be.
	maxReasons, maxWidth = 24, 300
)

// runner runs suites and prints what became of them, one at a time.
type runner struct {
	mu     sync.Mutex
	out    io.Writer
	failed []string
	// why says again, at the end of the output, why the suites failed.
	why strings.Builder
}

// runAll runs the suites in order. A suite begins when a lane is free, or all lanes if it runs
// alone, unless its minutes do not fit into what is left of the budget then.
func runAll(ctx context.Context, out io.Writer, chosen []choice, budget time.Duration) error {
	if err := os.MkdirAll(logs, 0o755); err != nil {
		return err
	}
	deadline := time.Now().Add(budget)
	ctx, cancel := context.WithDeadline(ctx, deadline.Add(overtime))
	defer cancel()
	r := &runner{out: out}
	var running sync.WaitGroup
	free := make(chan struct{}, lanes)
	for range lanes {
		free <- struct{}{}
	}
	for _, c := range chosen {
		needs := 1
		if c.alone {
			needs = lanes
		}
		for range needs {
			<-free
		}
		release := func() {
			for range needs {
				free <- struct{}{}
			}
		}
		if why := hindrance(ctx, c.suite, time.Until(deadline)); why != "" {
			r.say("%-15s left out  %s", c.name, why)
			release()
			continue
		}
		r.say("%-15s begins    %s", c.name, c.why)
		running.Go(func() {
			defer release()
			r.run(ctx, c.suite)
		})
	}
	running.Wait()
	fmt.Fprint(out, r.why.String())
	if len(r.failed) > 0 {
		return fmt.Errorf("failed: %s; their logs are in %s", strings.Join(r.failed, ", "), logs)
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return nil // as with a suite that was left out
	}
	return ctx.Err()
}

// hindrance returns why a suite can't begin now, or "".
func hindrance(ctx context.Context, s suite, remaining time.Duration) string {
	if ctx.Err() != nil {
		return "the run was ended"
	}
	if minutes := int(remaining.Minutes()); s.minutes > minutes {
		return tooLong(s, minutes)
	}
	return ""
}

func (r *runner) say(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintf(r.out, "suites: "+format+"\n", args...)
}

// run runs a suite, and prints its result lines, or its whole log if it failed.
func (r *runner) run(ctx context.Context, s suite) {
	began := time.Now()
	path := filepath.Join(logs, s.name+".log")
	err := makeTarget(ctx, s.make, path)
	took := time.Since(began).Round(time.Second)
	log, readErr := os.ReadFile(path)
	err = errors.Join(err, readErr)

	r.mu.Lock()
	defer r.mu.Unlock()
	for line := range strings.Lines(string(log)) {
		if err != nil || result.MatchString(line) {
			fmt.Fprint(r.out, line)
		}
	}
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) && !testFailed.Match(log) {
		fmt.Fprintf(r.out, "suites: %-15s ENDED     after %s, because no time was left; no test had failed\n", s.name, took)
		return
	}
	if err != nil {
		r.failed = append(r.failed, s.name)
		fmt.Fprintf(&r.why, "suites: %s failed:\n%s", s.name, reasons(string(log)))
		fmt.Fprintf(r.out, "suites: %-15s FAILED    after %s: make %s: %v\n", s.name, took, s.make, err)
		return
	}
	fmt.Fprintf(r.out, "suites: %-15s passed    in %s; the table says %s\n", s.name, took, s.duration())
}

// reasons returns the lines of a log that say why tests failed.
func reasons(log string) string {
	var found []string
	left := 0
	for line := range strings.Lines(log) {
		if reason.MatchString(line) {
			left = reasonLines
		}
		if left == 0 {
			continue
		}
		left--
		if line = strings.TrimRight(line, "\n"); len(line) > maxWidth {
			line = line[:maxWidth] + "…"
		}
		found = append(found, "  "+line+"\n")
		if len(found) == maxReasons {
			break
		}
	}
	return strings.Join(found, "")
}

// makeTarget runs make with all output in a file. The processes form a group, so that all end with
// the context.
func makeTarget(ctx context.Context, target, path string) error {
	log, err := os.Create(path)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.CommandContext(ctx, "make", append([]string{"--no-print-directory"}, strings.Fields(target)...)...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = ending
	if err := cmd.Run(); err != nil {
		return errors.Join(err, context.Cause(ctx))
	}
	return nil
}
