// SPDX-License-Identifier: Apache-2.0

package packaging

import (
	"crypto/sha256"
	"debug/buildinfo"
	"debug/elf"
	"debug/macho"
	"debug/pe"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// released is the folder of a release that "make release" wrote.
var released = flag.String("release", "", "folder of the release whose programs TestPrograms inspects (default: none)")

// programs are the programs of a release, and what the header of each must say.
var programs = map[string]func(file string) error{
	"drover-linux-amd64":       isELF(elf.EM_X86_64),
	"drover-linux-arm64":       isELF(elf.EM_AARCH64),
	"drover-darwin-amd64":      isMachO(macho.CpuAmd64),
	"drover-darwin-arm64":      isMachO(macho.CpuArm64),
	"drover-windows-amd64.exe": isPE(pe.IMAGE_FILE_MACHINE_AMD64),
}

// TestPrograms tests the programs of a release: each is for the system in its name, was built
// without paths, and has its checksum and the list of its modules. The one for this computer runs.
func TestPrograms(t *testing.T) {
	if *released == "" {
		t.Skip("'make release' makes the programs and runs this test")
	}
	version := filepath.Base(*released)
	sums := string(read(t, filepath.Join(*released, "SHA256SUMS")))
	for _, name := range slices.Sorted(maps.Keys(programs)) {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(*released, name)
			if err := programs[name](file); err != nil {
				t.Error(err)
			}
			platform := strings.Split(strings.TrimSuffix(strings.TrimPrefix(name, "drover-"), ".exe"), "-")
			builtFor(t, file, platform[0], platform[1])
			if line := fmt.Sprintf("%x  %s\n", sha256.Sum256(read(t, file)), name); !strings.Contains(sums, line) {
				t.Errorf("SHA256SUMS has no %q", line)
			}
			listsModules(t, strings.TrimSuffix(file, ".exe")+".cdx.json", version)
			if platform[0] == runtime.GOOS && platform[1] == runtime.GOARCH {
				runs(t, file, version)
			}
		})
	}
	files, err := filepath.Glob(filepath.Join(*released, "drover-*"))
	if err != nil || len(files) != 2*len(programs) {
		t.Errorf("the release has %v (%v), want %d programs and their lists of modules alone", files, err, len(programs))
	}
}

// isELF returns a check for a Linux program that needs no library.
func isELF(machine elf.Machine) func(string) error {
	return func(file string) error {
		f, err := elf.Open(file)
		if err != nil {
			return err
		}
		defer f.Close()
		linked := func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC }
		if f.Machine != machine || f.Type != elf.ET_EXEC || slices.ContainsFunc(f.Progs, linked) {
			return fmt.Errorf("%s is %s for %s, want a program for %s that is linked statically", file, f.Type, f.Machine, machine)
		}
		return nil
	}
}

func isMachO(cpu macho.Cpu) func(string) error {
	return func(file string) error {
		f, err := macho.Open(file)
		if err != nil {
			return err
		}
		defer f.Close()
		if f.Cpu != cpu || f.Type != macho.TypeExec {
			return fmt.Errorf("%s is %s for %s, want a program for %s", file, f.Type, f.Cpu, cpu)
		}
		return nil
	}
}

func isPE(machine uint16) func(string) error {
	return func(file string) error {
		f, err := pe.Open(file)
		if err != nil {
			return err
		}
		defer f.Close()
		if f.Machine != machine || f.Characteristics&pe.IMAGE_FILE_EXECUTABLE_IMAGE == 0 {
			return fmt.Errorf("%s is for machine %#x with characteristics %#x, want a program for %#x", file, f.Machine, f.Characteristics, machine)
		}
		return nil
	}
}

// builtFor checks what Go wrote into a program about its build.
func builtFor(t *testing.T, file, system, architecture string) {
	t.Helper()
	info, err := buildinfo.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, s := range info.Settings {
		got[s.Key] = s.Value
	}
	for key, want := range map[string]string{"GOOS": system, "GOARCH": architecture, "CGO_ENABLED": "0", "-trimpath": "true",
		"vcs.revision": ""} {
		if got[key] != want {
			t.Errorf("%s was built with %s=%q, want %q", file, key, got[key], want)
		}
	}
}

// listsModules checks that a program's list of modules is about Drover at a version, and names
// modules whose licenses the release has.
func listsModules(t *testing.T, file, version string) {
	t.Helper()
	var list struct {
		Metadata struct {
			Component struct{ Name, Version string }
		}
		Components []struct{ Name, Version string }
	}
	if err := json.Unmarshal(read(t, file), &list); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	if c := list.Metadata.Component; c.Name != "github.com/drover-io/drover" || c.Version != version || len(list.Components) == 0 {
		t.Errorf("%s is about %s %s and lists %d modules", file, c.Name, c.Version, len(list.Components))
	}
	licenses := string(read(t, filepath.Join(filepath.Dir(file), "LICENSES.txt")))
	for _, c := range list.Components {
		if !strings.Contains(licenses, fmt.Sprintf("\n%s %s: ", c.Name, c.Version)) {
			t.Errorf("LICENSES.txt has no license of %s %s", c.Name, c.Version)
		}
	}
}

var commandLine = regexp.MustCompile(`(?m)^  ([a-z]+) {2,}\S`)

// runs checks that a program says its version, and that each of its commands prints its help.
func runs(t *testing.T, file, version string) {
	t.Helper()
	output := func(args ...string) string {
		cmd := exec.CommandContext(t.Context(), file, args...)
		cmd.Env = []string{"HOME=" + t.TempDir(), "PATH=" + os.Getenv("PATH")}
		out, err := cmd.Output()
		if err != nil {
			t.Errorf("%s %s: %v", filepath.Base(file), strings.Join(args, " "), err)
		}
		return string(out)
	}
	if got := output("--version"); !strings.HasSuffix(got, " "+version+"\n") {
		t.Errorf("--version prints %q, want %s", got, version)
	}
	_, commands, found := strings.Cut(output("--help"), "Available Commands:\n")
	commands, _, _ = strings.Cut(commands, "\n\n")
	all := commandLine.FindAllStringSubmatch(commands, -1)
	if !found || len(all) < 3 {
		t.Fatalf("--help lists the commands %v", all)
	}
	for _, command := range all {
		if help := output(command[1], "--help"); !strings.Contains(help, "drover "+command[1]) {
			t.Errorf("%s --help prints %q", command[1], help)
		}
	}
}
