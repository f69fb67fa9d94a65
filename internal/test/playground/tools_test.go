// SPDX-License-Identifier: Apache-2.0

package playground

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	. "github.com/onsi/gomega"
)

// TestToolsTwiceAtOnce requests the same program from hack/tool twice at the same time with an
// empty cache: one call builds, the other waits, and both get the program.
func TestToolsTwiceAtOnce(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	root, err := Root(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	gocache, err := goCommand(t.Context(), root, "env", "GOCACHE")
	g.Expect(err).NotTo(HaveOccurred())
	cache := t.TempDir()

	var both sync.WaitGroup
	outputs, said, errs := make([]string, 2), make([]strings.Builder, 2), make([]error, 2)
	for i := range outputs {
		both.Go(func() {
			cmd := exec.Command(filepath.Join(root, "hack", "tool"), "controller-gen")
			cmd.Env = append(os.Environ(), "XDG_CACHE_HOME="+cache, "GOCACHE="+gocache)
			cmd.Stderr = &said[i]
			out, err := cmd.Output()
			outputs[i], errs[i] = strings.TrimSpace(string(out)), err
		})
	}
	both.Wait()
	for i := range outputs {
		g.Expect(errs[i]).NotTo(HaveOccurred(), said[i].String())
		g.Expect(outputs[i]).To(And(HavePrefix(cache), BeAnExistingFile()))
	}
	g.Expect(outputs[0]).To(Equal(outputs[1]))
	g.Expect(said[0].String() + said[1].String()).To(ContainSubstring("controller-gen"))
}

// TestInstalledTools tests which installed programs hack/tool uses in place of building them: those
// of the pinned minor release, and only if that is asked for.
func TestInstalledTools(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	root, err := Root(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	_, kubernetes, err := FindModule(t.Context(), "hack/tools", "k8s.io/kubernetes")
	g.Expect(err).NotTo(HaveOccurred())
	_, etcd, err := FindModule(t.Context(), "hack/tools", "go.etcd.io/etcd/server/v3")
	g.Expect(err).NotTo(HaveOccurred())
	minor := kubernetes[:strings.LastIndex(kubernetes, ".")]
	major, _, _ := strings.Cut(kubernetes, ".")
	older := major + ".1.0"

	bin := t.TempDir()
	goWithoutBuild(t, bin, "")
	program(t, bin, "kube-scheduler", "echo Kubernetes "+kubernetes)

	for _, tc := range []struct {
		name, tool, script, env string
		used                    bool
	}{
		{"the pinned version", "kube-apiserver", "echo Kubernetes " + kubernetes, "DROVER_INSTALLED=1", true},
		{"another patch", "kube-apiserver", "echo Kubernetes " + minor + ".99", "DROVER_INSTALLED=1", true},
		{"another minor release", "kube-apiserver", "echo Kubernetes " + older, "DROVER_INSTALLED=1", false},
		{"it is not asked for", "kube-apiserver", "echo Kubernetes " + kubernetes, "DROVER_INSTALLED=", false},
		{"it fails", "kube-apiserver", "exit 1", "DROVER_INSTALLED=1", false},
		{"etcd", "etcd", "echo etcd Version: " + strings.TrimPrefix(etcd, "v") + "; echo Git SHA: GitNotFound", "DROVER_INSTALLED=1", true},
		{"kubectl", "kubectl", `[ "$1" = version ] && echo Client Version: ` + kubernetes, "DROVER_INSTALLED=1", true},
		{"a program that nobody installs", "controller-gen", "echo Version: v0.1.0", "DROVER_INSTALLED=1", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			assets := t.TempDir()
			program(t, assets, tc.tool, tc.script)
			out, said, err := runTool(t, root, bin, tc.tool, tc.env, "KUBEBUILDER_ASSETS="+assets)
			if !tc.used {
				g.Expect(err).To(HaveOccurred())
				g.Expect(said).To(ContainSubstring("building " + tc.tool))
				return
			}
			g.Expect(err).NotTo(HaveOccurred(), said)
			g.Expect(out).To(Equal(filepath.Join(assets, tc.tool)))
		})
	}
	t.Run("in PATH", func(t *testing.T) {
		t.Parallel()
		g := NewWithT(t)
		out, said, err := runTool(t, root, bin, "kube-scheduler", "DROVER_INSTALLED=1", "KUBEBUILDER_ASSETS=")
		g.Expect(err).NotTo(HaveOccurred(), said)
		g.Expect(out).To(Equal(filepath.Join(bin, "kube-scheduler")))
	})
}

// program writes a shell script.
func program(t *testing.T, dir, name, script string) {
	t.Helper()
	NewWithT(t).Expect(os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755)).To(Succeed())
}

// goWithoutBuild writes a go command that does everything but build. Cases of a shell script come
// first.
func goWithoutBuild(t *testing.T, bin, cases string) {
	t.Helper()
	installed, err := exec.LookPath("go")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	program(t, bin, "go", `case "$1 $2" in `+cases+`
"build -v" | "list -deps") echo "no building" >&2; exit 1 ;;
esac
exec `+installed+` "$@"`)
}

// runTool runs hack/tool for the named tools, with an empty cache, and with bin in front of PATH.
func runTool(t *testing.T, root, bin, tools string, env ...string) (out, said string, err error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(root, "hack", "tool"), strings.Fields(tools)...)
	cmd.Env = append(os.Environ(), "XDG_CACHE_HOME="+t.TempDir(), "PATH="+bin+":"+os.Getenv("PATH"))
	cmd.Env = append(cmd.Env, env...)
	var errs strings.Builder
	cmd.Stderr = &errs
	raw, err := cmd.Output()
	return strings.TrimSpace(string(raw)), errs.String(), err
}
