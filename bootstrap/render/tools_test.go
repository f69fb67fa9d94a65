// SPDX-License-Identifier: Apache-2.0

package render

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
)

// TestRealTools checks every output with the programs that read it, or with strict checkers:
// cloud-init's template engine and schema, shellcheck and two shells, systemd, containerd, and
// Ignition's parser.
func TestRealTools(t *testing.T) {
	dir := t.TempDir()
	out := collect(t, dir)
	run := debs(t, "cloud-init", "ignition", "shellcheck", "systemd", "dash", "bash", "containerd")

	t.Run("cloud-init schema", func(t *testing.T) {
		checked(t, run, append([]string{"python3", filepath.Join("testdata", "schema.py")}, out.cloudConfigs...)...)
	})
	t.Run("ignition-validate", func(t *testing.T) {
		for _, config := range out.ignitions {
			checked(t, run, "ignition-validate", config)
		}
	})
	t.Run("shellcheck", func(t *testing.T) {
		checked(t, run, append([]string{"shellcheck", "--norc", "--shell=sh"}, out.scripts...)...)
	})
	for _, shell := range []string{"bash", "dash"} {
		t.Run(shell, func(t *testing.T) {
			for _, script := range out.scripts {
				checked(t, run, shell, "-n", script)
			}
		})
	}
	t.Run("containerd", func(t *testing.T) {
		g := NewWithT(t)
		file := filepath.Join(dir, "config.toml")
		g.Expect(os.WriteFile(file, []byte(containerdConfig("registry.example.org/pause:3.10")), 0o644)).To(Succeed())
		dump := checked(t, run, "containerd", "--config", file, "config", "dump")
		for _, line := range []string{`sandbox_image = "registry.example.org/pause:3.10"`, `SystemdCgroup = true`,
			`config_path = "/etc/containerd/certs.d"`} {
			g.Expect(dump).To(ContainSubstring(line + "\n"))
		}
	})
	t.Run("systemd-analyze", func(t *testing.T) {
		for _, folder := range out.units {
			verifyUnits(t, run, folder)
		}
	})
}

// outputs are files with rendered output, and folders with units.
type outputs struct{ cloudConfigs, ignitions, scripts, units []string }

// collect writes the output of all variants to files, without duplicates.
func collect(t *testing.T, dir string) (all outputs) {
	t.Helper()
	g := NewWithT(t)
	seen := map[string]bool{}
	put := func(name, content string) (string, bool) {
		file := filepath.Join(dir, name)
		g.Expect(os.MkdirAll(filepath.Dir(file), 0o755)).To(Succeed())
		g.Expect(os.WriteFile(file, []byte(content), 0o644)).To(Succeed())
		first := !seen[content]
		seen[content] = true
		return file, first
	}
	for _, v := range variants() {
		inputs := []Input{full(t, v.name, v.mode)}
		if slices.Contains([]bootstrapv1.OperatingSystem{"", "ubuntu-24.04", "flatcar"}, v.name) { // one of each kind
			inputs = append(inputs, least(t, v))
		}
		if v.name == "" {
			in := least(t, v)
			in.Spec.NodeNameSource = bootstrapv1.NodeNameHostname
			other := byKubeadm(least(t, v))
			other.Spec.NodeNameSource = bootstrapv1.NodeNameHostname
			inputs = append(inputs, in, other)
		}
		if slices.Contains(kubeadmVariants(), v) {
			inputs = append(inputs, byKubeadm(full(t, v.name, v.mode)), byKubeadm(least(t, v)))
		}
		outs := make([][]byte, len(inputs))
		for i, in := range inputs {
			var err error
			outs[i], err = UserData(in)
			g.Expect(err).NotTo(HaveOccurred(), v.String())
		}
		if inputs[0].Spec.OperatingSystem != "flatcar" {
			out, _, err := Split(inputs[0])
			g.Expect(err).NotTo(HaveOccurred(), v.String())
			inputs, outs = append(inputs, inputs[0]), append(outs, out)
		}
		for i, in := range inputs {
			out := outs[i]
			name := fmt.Sprintf("%s-%d", v, len(out))
			if FormatOf(in.Spec) == bootstrapv1.FormatCloudConfig {
				file, _ := put(name+".yaml", string(out))
				all.cloudConfigs = append(all.cloudConfigs, file)
			} else {
				file, _ := put(name+".ign", string(out))
				all.ignitions = append(all.ignitions, file)
			}
			m := readBack(g, FormatOf(in.Spec), out) // Ignition's own parser, which validates
			for _, path := range m.order {
				if text := m.files[path].content; strings.HasPrefix(text, "#!") {
					if file, first := put(name+"-"+filepath.Base(path), text); first {
						all.scripts = append(all.scripts, file)
					}
				}
			}
			if folder, first := putUnits(m, put, name); first {
				all.units = append(all.units, folder)
			}
		}
	}
	return all
}

// least returns the smallest input of a variant.
func least(t *testing.T, v variant) Input {
	in := input(t)
	in.Spec.OperatingSystem, in.Spec.Install.Mode = v.name, v.mode
	if v.mode == bootstrapv1.InstallBinaries {
		in.Spec.Install.Binaries = binariesOf("")
	}
	return in
}

func putUnits(m machine, put func(name, content string) (string, bool), name string) (folder string, first bool) {
	var all strings.Builder
	for _, path := range m.order {
		if rest, ok := strings.CutPrefix(path, unitFolder); ok {
			file, _ := put(filepath.Join(name, path), m.files[path].content)
			folder = strings.TrimSuffix(file, filepath.Join(unitFolder, rest))
			all.WriteString(path + "\n" + m.files[path].content)
		}
	}
	_, first = put(name+".units", all.String())
	return folder, first
}

// verifyUnits runs "systemd-analyze verify" on the units of a folder that stands for a machine's
// root. It creates fake programs for the units, and the targets that a system provides.
func verifyUnits(t *testing.T, run, folder string) {
	t.Helper()
	g := NewWithT(t)
	names, err := filepath.Glob(filepath.Join(folder, unitFolder, "*.service"))
	g.Expect(err).NotTo(HaveOccurred())
	dropIns, err := filepath.Glob(filepath.Join(folder, unitFolder, "*.service.d"))
	g.Expect(err).NotTo(HaveOccurred())
	for _, d := range dropIns { // for units of a prebuilt image
		file := strings.TrimSuffix(d, ".d")
		if !slices.Contains(names, file) {
			g.Expect(os.WriteFile(file, []byte("[Service]\nExecStart=/bin/sh\n"), 0o644)).To(Succeed())
			names = append(names, file)
		}
	}
	programs := []string{"/bin/sh", "/usr/bin/kubelet", "/usr/local/bin/kubelet", "/opt/bin/kubelet", "/usr/local/bin/containerd",
		"/opt/bin/containerd"}
	for _, p := range programs {
		g.Expect(os.MkdirAll(filepath.Join(folder, filepath.Dir(p)), 0o755)).To(Succeed())
		g.Expect(os.WriteFile(filepath.Join(folder, p), []byte("#!\n"), 0o755)).To(Succeed())
	}
	for _, target := range []string{"sysinit", "basic", "shutdown", "network", "network-online", "local-fs", "multi-user"} {
		g.Expect(os.WriteFile(filepath.Join(folder, unitFolder, target+".target"), []byte("[Unit]\nDescription=made up\n"), 0o644)).To(Succeed())
	}
	g.Expect(os.WriteFile(filepath.Join(folder, unitFolder, "system.slice"), []byte("[Unit]\n"), 0o644)).To(Succeed())
	var units []string
	for _, n := range names {
		units = append(units, filepath.Base(n))
	}
	out := checked(t, run, append([]string{"systemd-analyze", "--root=" + folder, "--man=no", "--recursive-errors=no", "verify"}, units...)...)
	g.Expect(out).To(BeEmpty())
}

// debs returns a program that runs commands in packages of the host's archive.
func debs(t *testing.T, names ...string) string {
	t.Helper()
	var stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), "../../hack/debs", names...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("the programs to check with can't be had: %v\n%s", err, stderr.String())
	}
	return strings.TrimSpace(string(out))
}

func checked(t *testing.T, run string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), run, args...).CombinedOutput()
	if err != nil {
		t.Errorf("%s: %v\n%s", args[0], err, out)
	}
	return string(out)
}
