// SPDX-License-Identifier: Apache-2.0

package render

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
)

func golden(t *testing.T, name, got string) {
	t.Helper()
	g := NewWithT(t)
	file := filepath.Join("testdata", name)
	if *update {
		g.Expect(os.MkdirAll(filepath.Dir(file), 0o755)).To(Succeed())
		g.Expect(os.WriteFile(file, []byte(got), 0o644)).To(Succeed())
	}
	want, err := os.ReadFile(file)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(got).To(Equal(string(want)), "%s: look at the difference, and run with -update", file)
}

// TestRaw compares the smallest user data of each format with golden files.
func TestRaw(t *testing.T) {
	for file, name := range map[string]bootstrapv1.OperatingSystem{"cloud-config.golden": "", "ignition.golden": "flatcar"} {
		t.Run(file, func(t *testing.T) {
			g := NewWithT(t)
			in := input(t)
			in.Spec.OperatingSystem = name
			out, err := UserData(in)
			g.Expect(err).NotTo(HaveOccurred())
			golden(t, file, string(out))
			for range 20 { // map order is random
				again, err := UserData(in)
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(bytes.Equal(out, again)).To(BeTrue())
			}
		})
	}
}

// listing returns the parsed user data in readable blocks.
func listing(m machine) map[string]string {
	out := map[string]string{"run": fmt.Sprintf("%q\n", m.run), "hostname": m.hostname + "\n",
		"keys of the default user": strings.Join(m.keys, "\n") + "\n"}
	for user, keys := range m.users {
		out["user "+user] = strings.Join(keys, "\n") + "\n"
	}
	for path, f := range m.files {
		if path == ScriptPath {
			_, text := steps(f.content)
			for name := range text {
				out["step "+name] = text[name]
			}
			f.content = "(step by step below)\n"
		}
		out[fmt.Sprintf("file %s %04o %s", path, f.mode, f.owner)] = f.content
	}
	return out
}

func write(blocks map[string]string) string {
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(blocks)) {
		fmt.Fprintf(&b, "=== %s\n%s", strings.TrimSpace(key), blocks[key])
		if !strings.HasSuffix(blocks[key], "\n") {
			b.WriteString("\n(no line break at the end)\n")
		}
	}
	return b.String()
}

// TestListings compares the listing of each operating system in each mode, with every feature, with
// golden files. One file per mode has the blocks that most systems share. The other files have the
// differences.
func TestListings(t *testing.T) {
	all := map[bootstrapv1.InstallMode]map[variant]map[string]string{}
	for _, v := range variants() {
		g := NewWithT(t)
		in := full(t, v.name, v.mode)
		out, err := UserData(in)
		g.Expect(err).NotTo(HaveOccurred(), v.String())
		if all[v.mode] == nil {
			all[v.mode] = map[variant]map[string]string{}
		}
		all[v.mode][v] = listing(readBack(g, FormatOf(in.Spec), out))
	}
	for mode, byVariant := range all {
		usual := usually(byVariant)
		golden(t, "listings/"+strings.ToLower(string(mode))+".txt", write(usual))
		for v, blocks := range byVariant {
			goldenDifference(t, "listings/"+v.String()+".txt", usual, blocks)
		}
	}
}

// TestKubeadmListings compares the differences of a join by kubeadm with golden files.
func TestKubeadmListings(t *testing.T) {
	for _, v := range kubeadmVariants() {
		for name, version := range map[string]string{"kubeadm": "v1.35.2", "kubeadm-1.30": "v1.30.9"} {
			if version == "v1.30.9" && v.mode != bootstrapv1.InstallPrebuilt { // too old for the others' API server
				continue
			}
			g := NewWithT(t)
			in := full(t, v.name, v.mode)
			in.Version = version
			goldenDifference(t, "listings/"+v.String()+"-"+name+".txt", rendered(g, in), rendered(g, byKubeadm(in)))
		}
	}
}

// TestSplitListings compares the differences of a machine that fetches its files with golden files.
func TestSplitListings(t *testing.T) {
	for _, v := range []variant{{"", bootstrapv1.InstallPrebuilt}, {"debian-12", bootstrapv1.InstallBinaries}} {
		g := NewWithT(t)
		in := full(t, v.name, v.mode)
		for name, in := range map[string]Input{"files": in, "kubeadm-files": byKubeadm(in)} {
			usual := rendered(g, in)
			out, _, err := Split(in)
			g.Expect(err).NotTo(HaveOccurred())
			goldenDifference(t, "listings/"+v.String()+"-"+name+".txt", usual, listing(readBack(g, FormatOf(in.Spec), out)))
		}
	}
}

// goldenDifference compares the blocks that differ from usual with a golden file.
func goldenDifference(t *testing.T, name string, usual, blocks map[string]string) {
	t.Helper()
	var without strings.Builder
	for _, key := range slices.Sorted(maps.Keys(usual)) {
		if _, ok := blocks[key]; !ok {
			without.WriteString("without " + strings.TrimSpace(key) + "\n")
		}
	}
	maps.DeleteFunc(blocks, func(key, text string) bool { return usual[key] == text })
	golden(t, name, without.String()+write(blocks))
}

func rendered(g Gomega, in Input) map[string]string {
	out, err := UserData(in)
	g.Expect(err).NotTo(HaveOccurred())
	return listing(readBack(g, FormatOf(in.Spec), out))
}

// usually returns the blocks that most variants share.
func usually(byVariant map[variant]map[string]string) map[string]string {
	count, usual := map[[2]string]int{}, map[string]string{}
	for _, blocks := range byVariant {
		for key, text := range blocks {
			count[[2]string{key, text}]++
		}
	}
	for block, n := range count {
		if 2*n > len(byVariant) {
			usual[block[0]] = block[1]
		}
	}
	return usual
}

// TestOrder compares the order of the script's steps, which the listings do not show, with a golden
// file.
func TestOrder(t *testing.T) {
	var b strings.Builder
	for _, v := range variants() {
		g := NewWithT(t)
		in := full(t, v.name, v.mode)
		out, err := UserData(in)
		g.Expect(err).NotTo(HaveOccurred())
		names, _ := steps(readBack(g, FormatOf(in.Spec), out).files[ScriptPath].content)
		fmt.Fprintf(&b, "=== %s\n%s\n", v, strings.TrimSpace(strings.Join(names, "\n")))
	}
	golden(t, "listings/order.txt", b.String())
}
