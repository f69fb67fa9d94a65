// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"archive/tar"
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	"github.com/drover-io/drover/internal/test/playground"
)

// mirror is the web server of a site without internet access. It serves the files that
// DroverConfigs name, and is a registry. It speaks HTTP, and HTTPS with a certificate that only
// the site trusts.
type mirror struct {
	plain, secure *httptest.Server
	// ca is the CA of its certificate, in PEM.
	ca  []byte
	dir string
	// kubeadm is the path of a program that is not among the mirror's files.
	kubeadm string

	mu     sync.Mutex
	broken map[string]func(w http.ResponseWriter, r *http.Request, files http.Handler) bool // by requested host name
}

// pauseImage is the image of hack/vm's pause. The registry serves it under any host name.
const pauseImage = "registry.k8s.io/pause:3.10.1"

// newMirror starts a mirror until the test ends. Its registry also has an image of each component
// of a control plane that is named.
func newMirror(t *testing.T, images string, components ...string) *mirror {
	t.Helper()
	g := NewWithT(t)
	tools, err := playground.FindTools(t.Context(), os.Stderr, append([]string{"kubeadm"}, components...)...)
	g.Expect(err).NotTo(HaveOccurred())
	programs := map[string]string{"pause": filepath.Join(images, "pause")}
	for _, component := range components {
		programs[component] = tools[component]
	}
	registry, err := registryWith(programs)
	g.Expect(err).NotTo(HaveOccurred())
	certificate, ca, err := selfSigned(gateway)
	g.Expect(err).NotTo(HaveOccurred())
	m := &mirror{ca: ca, dir: filepath.Join(images, "mirror"), kubeadm: tools["kubeadm"]}
	files := http.FileServer(http.Dir(m.dir))
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, _ := net.SplitHostPort(r.Host)
		m.mu.Lock()
		broken := m.broken[host]
		m.mu.Unlock()
		if broken != nil && broken(w, r, files) {
			return
		}
		if strings.HasPrefix(r.URL.Path, "/v2/") {
			registry.ServeHTTP(w, r)
			return
		}
		if strings.HasPrefix(r.URL.Path, "/dl.k8s.io/") && path.Base(r.URL.Path) == "kubeadm" {
			http.ServeFile(w, r, m.kubeadm)
			return
		}
		files.ServeHTTP(w, r)
	})
	m.plain, m.secure = httptest.NewServer(handler), httptest.NewUnstartedServer(handler)
	m.secure.TLS = certificate
	m.secure.StartTLS()
	t.Cleanup(m.close)
	return m
}

func (m *mirror) close() {
	m.plain.Close()
	m.secure.Close()
}

// port returns the port of the mirror's HTTP address.
func (m *mirror) port() string { return portOf(m.plain.Listener.Addr()) }

func portOf(a net.Addr) string {
	_, port, _ := net.SplitHostPort(a.String())
	return port
}

// forGuests returns the mirror's HTTP address as seen by guests.
func (m *mirror) forGuests() string { return "http://" + net.JoinHostPort(gateway, m.port()) }

// packages returns the installation from the mirror's copies of the repositories.
func (m *mirror) packages() (bootstrapv1.PackagesInstall, error) {
	containerd, err := released(m.dir, "github.com/containerd/containerd/releases/download/v*/containerd-*-linux-amd64.tar.gz")
	base := "https://" + net.JoinHostPort(gateway, portOf(m.secure.Listener.Addr()))
	return bootstrapv1.PackagesInstall{
		ContainerdVersion:    containerd.Version,
		KubernetesRepository: base + "/pkgs.k8s.io", ContainerdRepository: base + "/download.docker.com",
	}, err
}

// breaks sets a function that handles requests for this host name. It returns whether it has
// answered.
func (m *mirror) breaks(host string, how func(w http.ResponseWriter, r *http.Request, files http.Handler) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.broken == nil {
		m.broken = map[string]func(http.ResponseWriter, *http.Request, http.Handler) bool{}
	}
	m.broken[host] = how
}

// binaries returns the installation from the mirror, with the checksums of its files.
func (m *mirror) binaries() (*bootstrapv1.BinariesInstall, error) {
	out := &bootstrapv1.BinariesInstall{Architecture: "amd64", Mirror: m.forGuests()}
	var kubelet bootstrapv1.Release
	for pattern, release := range map[string]*bootstrapv1.Release{
		"dl.k8s.io/release/v*/bin/linux/amd64/kubelet":                                              &kubelet,
		"github.com/containerd/containerd/releases/download/v*/containerd-*-linux-amd64.tar.gz":     &out.Containerd,
		"github.com/opencontainers/runc/releases/download/v*/runc.amd64":                            &out.Runc,
		"github.com/containernetworking/plugins/releases/download/v*/cni-plugins-linux-amd64-*.tgz": &out.CNIPlugins,
	} {
		var err error
		if *release, err = released(m.dir, pattern); err != nil {
			return nil, err
		}
	}
	out.Kubelet.SHA256 = kubelet.SHA256
	return out, nil
}

var versionFolder = regexp.MustCompile(`/v([0-9]+\.[0-9]+\.[0-9]+)/`)

// released returns the version in the path of the only file that matches the pattern, and the
// file's checksum.
func released(dir, pattern string) (bootstrapv1.Release, error) {
	found, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil {
		return bootstrapv1.Release{}, err
	}
	if len(found) != 1 {
		return bootstrapv1.Release{}, fmt.Errorf("the mirror has %d files of the pattern %s", len(found), pattern)
	}
	version := versionFolder.FindStringSubmatch(strings.TrimPrefix(found[0], dir))
	if version == nil {
		return bootstrapv1.Release{}, fmt.Errorf("there is no version in %s", found[0])
	}
	sum, err := sumOf(found[0])
	return bootstrapv1.Release{Version: version[1], SHA256: sum}, err
}

func sumOf(name string) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

const ociKind = "application/vnd.oci.image."

// registryWith returns a registry with an image of each program, by name. It serves an image for
// any tag.
func registryWith(programs map[string]string) (http.Handler, error) {
	blobs, tops := map[string][]byte{}, map[string]string{}
	for name, program := range programs {
		var err error
		if tops[name], err = addImage(blobs, name, program); err != nil {
			return nil, err
		}
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		folder, reference := path.Split(r.URL.Path)
		if image, ok := strings.CutSuffix(folder, "/manifests/"); ok {
			w.Header().Set("Content-Type", ociKind+"manifest.v1+json")
			if !strings.HasPrefix(reference, "sha256:") {
				reference = tops[path.Base(image)]
			}
		}
		blob, ok := blobs[reference]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		w.Header().Set("Docker-Content-Digest", reference)
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(blob))
	}), nil
}

// addImage adds the blobs of an image that runs the program, by digest, and returns its manifest's
// digest. The program is found by its name.
func addImage(blobs map[string][]byte, name, program string) (top string, err error) {
	binary, err := os.ReadFile(program)
	if err != nil {
		return "", err
	}
	var layer bytes.Buffer
	archive := tar.NewWriter(&layer)
	if err := archive.WriteHeader(&tar.Header{Name: "usr/bin/" + name, Mode: 0o755, Size: int64(len(binary))}); err != nil {
		return "", err
	}
	if _, err := archive.Write(binary); err != nil {
		return "", err
	}
	if err := archive.Close(); err != nil {
		return "", err
	}
	add := func(blob []byte) string {
		sum := sha256.Sum256(blob)
		digest := "sha256:" + hex.EncodeToString(sum[:])
		blobs[digest] = blob
		return digest
	}
	type object = map[string]any
	diff := add(layer.Bytes())
	config, err := json.Marshal(object{
		"architecture": "amd64", "os": "linux", "config": object{"Entrypoint": []string{"/usr/bin/" + name}, "Env": []string{"PATH=/usr/bin"}},
		"rootfs": object{"type": "layers", "diff_ids": []string{diff}},
	})
	if err != nil {
		return "", err
	}
	manifest, err := json.Marshal(object{
		"schemaVersion": 2, "mediaType": ociKind + "manifest.v1+json",
		"config": object{"mediaType": ociKind + "config.v1+json", "digest": add(config), "size": len(config)},
		"layers": []object{{"mediaType": ociKind + "layer.v1.tar", "digest": diff, "size": layer.Len()}},
	})
	return add(manifest), err
}

// selfSigned returns the configuration of a server at the address, and its self-signed certificate
// in PEM.
func selfSigned(address string) (*tls.Config, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "the site's own"}, IPAddresses: []net.IP{net.ParseIP(address)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, nil, err
	}
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}},
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}
