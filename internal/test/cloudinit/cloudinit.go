// SPDX-License-Identifier: Apache-2.0

// Package cloudinit runs Debian's cloud-init, so that tests see what a guest makes of a machine's
// data. Only tests import it.
package cloudinit

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Run runs a Python program that may import cloud-init, with variables added to the environment. It
// decodes what the program prints, one JSON object, into out. cloud-init is downloaded on first
// use.
func Run(t testing.TB, program string, env []string, out any) {
	t.Helper()
	var stderr strings.Builder
	list := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/drover-io/drover")
	list.Stderr = &stderr
	root, err := list.Output()
	if err != nil {
		t.Fatalf("Drover's folder is not found: %v\n%s", err, stderr.String())
	}
	debs := exec.CommandContext(t.Context(), filepath.Join(strings.TrimSpace(string(root)), "hack", "debs"), "cloud-init")
	debs.Stderr = &stderr
	runner, err := debs.Output()
	if err != nil {
		t.Fatalf("cloud-init can't be had: %v\n%s", err, stderr.String())
	}
	run := exec.CommandContext(t.Context(), strings.TrimSpace(string(runner)), "python3", "-c", program)
	run.Env, run.Stderr = append(os.Environ(), env...), &stderr
	text, err := run.Output()
	if err == nil {
		err = json.Unmarshal(text, out)
	}
	if err != nil {
		t.Fatalf("cloud-init: %v\n%s", err, stderr.String())
	}
}
