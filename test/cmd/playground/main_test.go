// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/drover-io/drover/internal/test/playground"
)

var block = regexp.MustCompile("(?ms)^```sh\n(.*?)^```")

// TestQuickStart runs every command of docs/quick-start.md in the playground. Before the last
// block, which deletes everything, Enter replaces the manager: the machines stay.
func TestQuickStart(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
	defer cancel()
	root, err := playground.Root(ctx)
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(root + "/docs/quick-start.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := block.FindAllStringSubmatch(string(page), -1)
	if len(blocks) < 5 || blocks[0][1] != "git clone https://github.com/drover-io/drover && cd drover\nmake playground\n" {
		t.Fatalf("the page has other commands than this test runs: %q", blocks)
	}

	in, enter := io.Pipe()
	said, out := io.Pipe()
	ended := make(chan error, 1)
	go func() { // what "make playground" starts
		err := run(ctx, in, out)
		out.Close()
		ended <- err
	}()
	lines := bufio.NewScanner(said)
	after := func(prefix string) string { // returns the rest of the next line that contains prefix
		for lines.Scan() {
			t.Log(lines.Text())
			if _, rest, ok := strings.Cut(lines.Text(), prefix); ok {
				return rest
			}
		}
		t.Fatalf("it never said %q: %v", prefix, <-ended)
		return ""
	}
	binary, err := playground.BuildCommand(ctx) // with the race detector, it has another name
	if err != nil {
		t.Fatal(err)
	}
	programs := t.TempDir()
	if err := os.Symlink(binary, programs+"/drover"); err != nil {
		t.Fatal(err)
	}
	shell := "export KUBECONFIG=" + after("export KUBECONFIG=") + "\nexport PATH=" + after("export PATH=") +
		"\nexport DROVER_SIMULATED_ENDPOINT=" + after("export DROVER_SIMULATED_ENDPOINT=") + "\nexport PATH=$PATH:" + programs + "\n"
	do := func(commands string) string {
		cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", shell+commands)
		cmd.Dir = root
		said, err := cmd.CombinedOutput()
		t.Logf("%s\n%s", commands, said)
		if err != nil {
			t.Fatalf("%v: %s", err, commands)
		}
		return string(said)
	}

	for _, b := range blocks[1 : len(blocks)-1] {
		do(b[1])
	}
	const machines = `kubectl get machines,drovermachines,nodes -o name | sort`
	before := do(machines)
	if _, err := io.WriteString(enter, "\n"); err != nil {
		t.Fatal(err)
	}
	if log := after("restarted; log: "); !strings.HasSuffix(log, "drover-2.log") {
		t.Errorf("the second manager's log is %s", log)
	}
	if now := do(machines); now != before || strings.Count(now, "\n") < 12 {
		t.Errorf("there are other machines after the restart:\n%snot\n%s", now, before)
	}
	do(blocks[len(blocks)-1][1])

	cancel()
	go func() { _, _ = io.Copy(io.Discard, said) }() // drain the remaining output
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
