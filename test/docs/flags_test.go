// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/yaml"

	"github.com/drover-io/drover/internal/test/playground"
)

var update = flag.Bool("update", false, "write the generated pages instead of comparing them")

// page compares a generated page of the book with the expected text, or writes it.
func page(t *testing.T, name, want string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(filepath.Join(root, name), []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if data, err := os.ReadFile(filepath.Join(root, name)); err != nil || string(data) != want {
		t.Errorf("%s is not what the code says (%v): run 'go test -C test ./docs -update'", name, err)
	}
}

// help returns the program's help for a command.
func help(t *testing.T, program string, command ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), program, append(command, "--help")...).CombinedOutput()
	if err != nil {
		t.Fatalf("drover %v --help: %v\n%s", command, err, out)
	}
	return string(out)
}

type commandFlag struct{ name, usage string }

var flagLine = regexp.MustCompile(`^ {2,6}(?:-\w, )?--([a-z0-9-]+)(?: (\S+))?(?: {3,}(.*))?$`)

// flagsOf parses the flags from a command's help.
func flagsOf(t *testing.T, text string) []commandFlag {
	t.Helper()
	_, text, ok := strings.Cut(text, "\nFlags:\n")
	if !ok {
		t.Fatalf("no flags in:\n%s", text)
	}
	var flags []commandFlag
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if m := flagLine.FindStringSubmatch(line); m != nil {
			name := "--" + m[1]
			if m[2] != "" {
				name += " " + m[2]
			}
			flags = append(flags, commandFlag{name, m[3]})
		} else if len(flags) > 0 && strings.HasPrefix(line, "        ") {
			last := &flags[len(flags)-1]
			last.usage = strings.TrimSpace(last.usage + " " + strings.TrimSpace(line))
		} else if strings.TrimSpace(line) == "" || !strings.HasPrefix(line, " ") {
			break
		}
	}
	return flags
}

// TestFlags tests that docs/flags.md matches the program's help, and that the Deployment uses only
// flags that exist.
func TestFlags(t *testing.T) {
	managers, err := playground.Build(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	program, err := playground.BuildCommand(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	manager := flagsOf(t, help(t, managers))

	var b strings.Builder
	b.WriteString("# Flags\n\n<!-- Written by 'go test -C test ./docs -update' from the programs' --help. Do not edit. -->\n\n" +
		"`manager` is the program in the image. `drover simulate` runs the simulated cloud. `drover orphans` says\n" +
		"what the [orphan collector](safety.md) would do. `drover check` says whether [machines of a\n" +
		"template can be made](check.md). `drover import` [takes machines over](migrate/machine-controller-manager.md#take-over-the-machines).\n" +
		"`drover support` [collects what an issue needs](troubleshooting.md#what-to-put-into-an-issue).\n")
	writeFlags(t, &b, "manager", manager)
	for _, command := range []string{"simulate", "simulate kill", "simulate quota", "simulate capacity", "simulate down", "orphans", "check",
		"support", "version"} {
		writeFlags(t, &b, "drover "+command, flagsOf(t, help(t, program, strings.Fields(command)...)))
	}
	for _, system := range []string{"cluster-api", "machine-controller", "machine-controller-manager"} {
		writeFlags(t, &b, "drover import "+system, flagsOf(t, help(t, program, "import", system)))
	}
	page(t, "docs/flags.md", b.String())

	for _, arg := range deploymentArgs(t) {
		name, _, _ := strings.Cut(arg, "=")
		if !slices.ContainsFunc(manager, func(f commandFlag) bool { return f.name == name || strings.HasPrefix(f.name, name+" ") }) {
			t.Errorf("config/manager/manager.yaml gives %s, which the manager does not know", name)
		}
	}
}

func writeFlags(t *testing.T, b *strings.Builder, command string, flags []commandFlag) {
	t.Helper()
	fmt.Fprintf(b, "\n## %s\n\n| flag | what it does |\n| --- | --- |\n", command)
	for _, f := range flags {
		if f.usage == "" {
			t.Errorf("%s %s has no description", command, f.name)
		}
		if f.name == "--help" || f.name == "--version" {
			continue
		}
		f.usage, _, _ = strings.Cut(f.usage, "Preferred values:") // a list that changes with Go's version
		fmt.Fprintf(b, "| `%s` | %s |\n", f.name, strings.NewReplacer("|", `\|`, "<", `\<`, "*", `\*`).Replace(strings.TrimSpace(f.usage)))
	}
}

func deploymentArgs(t *testing.T) []string {
	t.Helper()
	var d appsv1.Deployment
	if err := yaml.UnmarshalStrict([]byte(read(t, "config/manager/manager.yaml")), &d); err != nil {
		t.Fatal(err)
	}
	return d.Spec.Template.Spec.Containers[0].Args
}
