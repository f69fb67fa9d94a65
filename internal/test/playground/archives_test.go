// SPDX-License-Identifier: Apache-2.0

package playground

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	. "github.com/onsi/gomega"
)

// archived are the programs that the archives have.
const archived = "etcd kube-apiserver kubectl"

// TestArchives tests when hack/tool takes programs out of the archive that setup-envtest uses, and
// that it says why it builds them where it cannot.
func TestArchives(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	root, err := Root(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	_, kubernetes, err := FindModule(t.Context(), "hack/tools", "k8s.io/kubernetes")
	g.Expect(err).NotTo(HaveOccurred())
	_, etcd, err := FindModule(t.Context(), "hack/tools", "go.etcd.io/etcd/server/v3")
	g.Expect(err).NotTo(HaveOccurred())
	minor := kubernetes[:strings.LastIndex(kubernetes, ".")]
	good := archive(t, minor+".10", etcd)

	for _, tc := range []struct {
		name  string
		index []byte // what the index has the hash of; default: what is served
		serve []byte // default: nothing is found
		env   []string
		asks  bool   // for the archive
		says  string // and builds; default: it uses the archive
	}{
		{name: "what the index describes", serve: good, asks: true},
		{name: "other content", serve: archive(t, minor+".11", etcd), index: good, asks: true, says: "has another SHA-512"},
		{name: "the beginning of it", serve: good[:len(good)/2], index: good, asks: true, says: "has another SHA-512"},
		{name: "nothing", index: good, asks: true, says: "could not fetch"},
		{name: "no archive", serve: []byte("<html>"), asks: true, says: "could not unpack"},
		{name: "programs of another minor release", serve: archive(t, "v1.1.0", "v2.0.0"), asks: true, says: "building " + archived},
		{name: "a platform without archive", serve: good, env: []string{"GOARCH=riscv64"}, says: "no archive of this release for this platform"},
		{name: "it is not asked for", serve: good, env: []string{"DROVER_ARCHIVES="}, says: "building " + archived},
		{name: "a certain release is asked for", serve: good, env: []string{"DROVER_KUBERNETES=" + minor + ".10"}, says: "building "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			if tc.index == nil {
				tc.index = tc.serve
			}
			var asked atomic.Int32
			server := serveArchive(t, minor+".10", tc.serve, &asked)
			bin, cache := t.TempDir(), t.TempDir()
			goWithIndex(t, bin, index(server.URL, minor, tc.index))
			env := append([]string{"DROVER_ARCHIVES=1", "XDG_CACHE_HOME=" + cache, "no_proxy=127.0.0.1"}, tc.env...)

			out, said, err := runTool(t, root, bin, archived, env...)
			g.Expect(asked.Load()).To(Equal(map[bool]int32{true: 1}[tc.asks]), said)
			if tc.says != "" {
				g.Expect(err).To(HaveOccurred())
				g.Expect(said).To(And(ContainSubstring(tc.says), ContainSubstring("building ")))
				g.Expect(files(t, cache)).NotTo(ContainElement("archive"))
				return
			}
			g.Expect(err).NotTo(HaveOccurred(), said)
			folder := filepath.Join(cache, "drover", "tools", strings.TrimSuffix(archiveName(minor+".10"), ".tar.gz"))
			g.Expect(strings.Fields(out)).To(Equal([]string{
				filepath.Join(folder, "etcd"), filepath.Join(folder, "kube-apiserver"), filepath.Join(folder, "kubectl"),
			}))

			server.Close() // they are fetched once
			again, said, err := runTool(t, root, bin, archived, env...)
			g.Expect(err).NotTo(HaveOccurred(), said)
			g.Expect(again).To(Equal(out))
			g.Expect(said).To(BeEmpty())

			// Nobody gets them who does not ask for them, a test for example.
			_, said, err = runTool(t, root, bin, archived, append(env, "DROVER_ARCHIVES=")...)
			g.Expect(err).To(HaveOccurred())
			g.Expect(said).To(ContainSubstring("building " + archived))
		})
	}

	t.Run("what is installed is not fetched", func(t *testing.T) {
		t.Parallel()
		g := NewWithT(t)
		var asked atomic.Int32
		server := serveArchive(t, minor+".10", good, &asked)
		bin := t.TempDir()
		goWithIndex(t, bin, index(server.URL, minor, good))
		program(t, bin, "kube-apiserver", "echo Kubernetes "+kubernetes)
		out, said, err := runTool(t, root, bin, "kube-apiserver", "DROVER_ARCHIVES=1", "DROVER_INSTALLED=1", "KUBEBUILDER_ASSETS=",
			"no_proxy=127.0.0.1")
		g.Expect(err).NotTo(HaveOccurred(), said)
		g.Expect(out).To(Equal(filepath.Join(bin, "kube-apiserver")))
		g.Expect(asked.Load()).To(BeZero())
	})
	t.Run("through a proxy", func(t *testing.T) {
		t.Parallel()
		g := NewWithT(t)
		var asked atomic.Int32
		proxy := serveArchive(t, minor+".10", good, &asked)
		bin := t.TempDir()
		goWithIndex(t, bin, index("http://archives.invalid", minor, good))
		_, said, err := runTool(t, root, bin, archived, "DROVER_ARCHIVES=1", "http_proxy="+proxy.URL, "no_proxy=")
		g.Expect(err).NotTo(HaveOccurred(), said)
		g.Expect(asked.Load()).To(BeEquivalentTo(1))
	})
}

// TestArchivesOffline tests that hack/tool finds an archive of the pinned release in the index of
// the pinned controller-tools, and says what it does where GitHub cannot be reached.
func TestArchivesOffline(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	root, err := Root(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	var host atomic.Value
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host.Store(r.Method + " " + r.Host)
		http.Error(w, "not from here", http.StatusForbidden)
	}))
	t.Cleanup(proxy.Close)
	bin := t.TempDir()
	goWithoutBuild(t, bin, "")

	_, said, err := runTool(t, root, bin, "kubectl kube-apiserver", "DROVER_ARCHIVES=1", "https_proxy="+proxy.URL, "no_proxy=")
	g.Expect(err).To(HaveOccurred())
	g.Expect(host.Load()).To(Equal("CONNECT github.com:443"))
	g.Expect(said).To(MatchRegexp(
		`could not fetch https://github\.com/\S+/envtest-v[0-9.]+-\S+\.tar\.gz: building kube-apiserver kubectl from source instead`))
}

// archive returns a tar.gz as setup-envtest uses it, with scripts in place of programs.
func archive(t *testing.T, kubernetes, etcd string) []byte {
	t.Helper()
	g := NewWithT(t)
	var packed bytes.Buffer
	zip := gzip.NewWriter(&packed)
	w := tar.NewWriter(zip)
	for name, says := range map[string]string{
		"etcd":           "etcd Version: " + strings.TrimPrefix(etcd, "v"),
		"kube-apiserver": "Kubernetes " + kubernetes,
		"kubectl":        "Client Version: " + kubernetes,
	} {
		script := "#!/bin/sh\necho " + says + "\n"
		g.Expect(w.WriteHeader(&tar.Header{Name: "controller-tools/envtest/" + name, Mode: 0o755, Size: int64(len(script))})).To(Succeed())
		_, err := w.Write([]byte(script))
		g.Expect(err).NotTo(HaveOccurred())
	}
	g.Expect(w.Close()).To(Succeed())
	g.Expect(zip.Close()).To(Succeed())
	return packed.Bytes()
}

func archiveName(kubernetes string) string {
	return "envtest-" + kubernetes + "-" + runtime.GOOS + "-" + runtime.GOARCH + ".tar.gz"
}

func archivePath(kubernetes string) string {
	return "/kubernetes-sigs/controller-tools/releases/download/envtest-" + kubernetes + "/" + archiveName(kubernetes)
}

// index returns an envtest-releases.yaml of which hack/tool should choose the patch release 10: the
// newest that is no pre-release.
func index(url, minor string, content []byte) string {
	var text strings.Builder
	text.WriteString("releases:\n")
	for _, release := range []string{"v1.1.10", minor + ".9", minor + ".10", minor + ".11-rc.0", minor + "0.12"} {
		hash := sha512.Sum512([]byte(release))
		if release == minor+".10" {
			hash = sha512.Sum512(content)
		}
		fmt.Fprintf(&text, "  %s:\n    %s:\n      hash: %x\n      selfLink: %s%s\n", release, archiveName(release), hash, url,
			archivePath(release))
	}
	return text.String()
}

// goWithIndex writes a go command that does not build, and has controller-tools with this index.
func goWithIndex(t *testing.T, bin, text string) {
	t.Helper()
	module := t.TempDir()
	NewWithT(t).Expect(os.WriteFile(filepath.Join(module, "envtest-releases.yaml"), []byte(text), 0o600)).To(Succeed())
	goWithoutBuild(t, bin, `"list -m") echo `+module+`; exit ;;`)
}

// serveArchive serves the archive of a release at its path, if there is one, and counts requests.
func serveArchive(t *testing.T, kubernetes string, content []byte, asked *atomic.Int32) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		if r.URL.Path != archivePath(kubernetes) || content == nil {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(content)
	}))
	t.Cleanup(server.Close)
	return server
}

// files returns the names of all files in a folder.
func files(t *testing.T, dir string) (names []string) {
	t.Helper()
	NewWithT(t).Expect(filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		names = append(names, filepath.Base(path))
		return err
	})).To(Succeed())
	return names
}
