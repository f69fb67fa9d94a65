// SPDX-License-Identifier: Apache-2.0

package render

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
)

// TestSplit: the fetched files are exactly the files of the spec, always in the same bytes, and the
// user data contain none of them. test/bootstrap tests the fetch with a real API server, and
// test/clouds/vm on a real machine.
func TestSplit(t *testing.T) {
	g := NewWithT(t)
	in := full(t, "ubuntu-24.04", bootstrapv1.InstallPackages)
	out, files, err := Split(in)
	g.Expect(err).NotTo(HaveOccurred())
	whole, err := UserData(in)
	g.Expect(err).NotTo(HaveOccurred())
	for range 20 {
		again, same, err := Split(in)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(bytes.Equal(out, again) && bytes.Equal(files, same)).To(BeTrue())
	}

	before, after := readBack(g, bootstrapv1.FormatCloudConfig, whole).files, readBack(g, bootstrapv1.FormatCloudConfig, out).files
	unpacked := unpack(g, files)
	g.Expect(unpacked).To(HaveLen(len(in.Spec.Files)))
	for _, f := range in.Spec.Files {
		g.Expect(after).NotTo(HaveKey(f.Path))
		want, got := before[f.Path], unpacked[strings.TrimPrefix(f.Path, "/")]
		g.Expect(got.content).To(Equal(want.content), f.Path)
		g.Expect(got.header.Mode).To(BeEquivalentTo(want.mode), f.Path)
		g.Expect(strings.Trim(got.header.Uname+":"+got.header.Gname, ":")).To(Equal(want.owner), f.Path)
	}
}

type unpackedFile struct {
	header  *tar.Header
	content string
}

func unpack(g Gomega, files []byte) map[string]unpackedFile {
	packed, err := gzip.NewReader(bytes.NewReader(files))
	g.Expect(err).NotTo(HaveOccurred())
	out := map[string]unpackedFile{}
	for r := tar.NewReader(packed); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		g.Expect(err).NotTo(HaveOccurred())
		content, err := io.ReadAll(r)
		g.Expect(err).NotTo(HaveOccurred())
		out[header.Name] = unpackedFile{header, string(content)}
	}
}

// TestSplitRefuses: input that can't be split is refused, with a hint what to do instead.
func TestSplitRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Input)
		want   string
	}{
		"by Ignition":        {func(in *Input) { in.Spec.Format = bootstrapv1.FormatIgnition }, "by Ignition can't fetch"},
		"without files":      {func(in *Input) { in.Spec.Files = nil }, "no files that could be fetched later"},
		"a relative path":    {func(in *Input) { in.Spec.Files[0].Path = "../etc/passwd" }, "spec.files[0].path"},
		"a path that climbs": {func(in *Input) { in.Spec.Files[0].Path = "/etc/../../passwd" }, "spec.files[0].path"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			in := input(t)
			in.Spec.Files = []bootstrapv1.File{{Path: "/etc/large", Content: "x"}}
			c.change(&in)
			_, _, err := Split(in)
			g.Expect(err).To(MatchError(ContainSubstring(c.want)))
		})
	}
}

// FuzzSplit: any file name, content or owner comes out of the archive unchanged, and nothing else
// does. The API server's address is one value in curl's configuration.
func FuzzSplit(f *testing.F) {
	for _, s := range hostile() {
		f.Add("/a/"+s, "x", "x:x", "https://10.0.0.1:6443")
		f.Add("/a", s, "x:x", "https://10.0.0.1:6443")
		f.Add("/a", "x", s, "https://10.0.0.1:6443")
		f.Add("/a", "x", "", "https://a"+s+":6443")
	}
	f.Fuzz(func(t *testing.T, path, content, owner, server string) {
		g := NewWithT(t)
		in := input(t)
		in.Server, in.Spec.Files = server, []bootstrapv1.File{{Path: path, Content: content, Owner: owner}}
		out, files, err := Split(in)
		_, whole := UserData(in)
		g.Expect(err == nil).To(Equal(whole == nil), "what may be in user data may be fetched: %v, %v", err, whole)
		if err != nil {
			return
		}
		unpacked := unpack(g, files)
		g.Expect(unpacked).To(HaveLen(1))
		got, ok := unpacked[strings.TrimPrefix(path, "/")]
		g.Expect(ok && got.content == content).To(BeTrue())
		g.Expect(strings.Trim(got.header.Uname+":"+got.header.Gname, ":")).To(Equal(strings.TrimPrefix(owner, "root:root")))

		m := readBack(g, bootstrapv1.FormatCloudConfig, out)
		lines := strings.Split(m.files[filesConfigPath].content, "\n")
		g.Expect(lines).To(HaveLen(11), "six switches, four values, and the end of the last line")
		value, quoted := strings.CutPrefix(lines[6], `url = "`)
		value, closed := strings.CutSuffix(value, `"`)
		g.Expect(quoted && closed).To(BeTrue())
		g.Expect(strings.NewReplacer(`\"`, `"`, `\\`, `\`).Replace(value)).To(Equal(server +
			"/api/v1/namespaces/kube-system/secrets/drover-files-abcdef"))
	})
}

// TestOwnersOfFiles: the script sets the owners, because cloud-init writes files before it makes
// users. An owner that does not exist ends it, whether the files are in the user data or fetched.
func TestOwnersOfFiles(t *testing.T) {
	in := input(t)
	in.Spec.Files = []bootstrapv1.File{
		{Path: "/etc/app's", Content: "a", Owner: "app:web"}, {Path: "/etc/roots", Content: "b"},
		{Path: "/etc/also-roots", Content: "c", Owner: "root:root"},
	}
	g := NewWithT(t)
	whole, err := UserData(in)
	g.Expect(err).NotTo(HaveOccurred())
	split, _, err := Split(in)
	g.Expect(err).NotTo(HaveOccurred())
	for _, data := range [][]byte{whole, split} {
		g.Expect(string(data)).NotTo(Or(ContainSubstring("defer"), ContainSubstring("owner")), "old versions of cloud-init do not know it")
		_, step := steps(readBack(g, FormatOf(in.Spec), data).files[ScriptPath].content)
		g.Expect(step["Setting the owners of files"]).To(Equal("chown 'app:web' '/etc/app'\\''s'\n"))
	}

	s := newSandbox(t, in)
	s.write("/stand-ins/chown", "#!/bin/sh\necho \"chown: invalid user: $1\" >&2\nexit 1\n", 0o755)
	said, ok := s.run()
	s.Expect(ok).To(BeFalse())
	s.Expect(said).To(ContainSubstring("Setting the owners of files"))
	s.Expect(s.read(LogPath)).To(ContainSubstring("chown: invalid user: app:web"))
}
