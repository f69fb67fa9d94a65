// SPDX-License-Identifier: Apache-2.0

package render

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	kubeletv1 "k8s.io/kubelet/config/v1beta1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/yaml"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
)

func TestUserDataJoins(t *testing.T) {
	for _, format := range []bootstrapv1.Format{bootstrapv1.FormatCloudConfig, bootstrapv1.FormatIgnition} {
		t.Run(string(format), func(t *testing.T) {
			g := NewWithT(t)
			in := full(t, "", bootstrapv1.InstallPrebuilt)
			in.Spec.Format = format
			out, err := UserData(in)
			g.Expect(err).NotTo(HaveOccurred())
			m := readBack(g, format, out)

			kubeconfig, err := clientcmd.RESTConfigFromKubeConfig([]byte(m.files[BootstrapKubeconfigPath].content))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(kubeconfig.Host).To(Equal(in.Server))
			g.Expect(kubeconfig.BearerToken).To(Equal(in.Token))
			g.Expect(kubeconfig.CAData).To(Equal(in.CA))
			g.Expect(m.files[CAPath].content).To(Equal(string(in.CA)))
			for path, f := range m.files { // only root may read a token, a password or a key
				if strings.Contains(f.content, in.Token) || strings.Contains(f.content, "pa%20ss") || strings.Contains(f.content, `"auths"`) {
					g.Expect(f.mode).To(Equal(0o600), path)
				}
			}

			provider := " --provider-id=aws:///{{ v1.availability_zone }}/{{ v1.instance_id }}"
			if format == bootstrapv1.FormatIgnition {
				provider = "" // Ignition has no instance data
			}
			g.Expect(m.files[KubeletDefaultsPath].content).To(Equal(`KUBELET_EXTRA_ARGS="--hostname-override=blue-1 ` +
				`--node-labels=example.com/tier=,node.kubernetes.io/instance-type=large,pool=blue` + provider + "\"\n"))
			g.Expect(m.hostname).To(Equal("blue-1"))
			g.Expect(m.keys).To(Equal(in.Spec.SSHAuthorizedKeys))
			g.Expect(m.run[len(m.run)-1]).To(Equal([]string{"systemctl", "enable", "--now", "drover-bootstrap.service"}))
			g.Expect(m.files[unitFolder+bootstrapUnit].content).To(ContainSubstring("ExecStart=/bin/sh " + ScriptPath + "\n"))
			g.Expect(strings.HasSuffix(m.files[ScriptPath].content, "echo success >"+SentinelPath+"\n")).To(BeTrue())
			g.Expect(m.files["/etc/motd"]).To(Equal(machineFile{in.Spec.Files[0].Content, "", 0o600}))
			g.Expect(m.files["/home/app/with space"]).To(Equal(machineFile{"x", "app:app", 0o644}))
			g.Expect(m.files["/etc/motd.d/secret"].content).To(Equal("from a Secret\n"))
			g.Expect(string(out)).NotTo(ContainSubstring("of-nobody"))
		})
	}
}

// TestHostname: the Node has the host's name, which is the name that the cloud gave it.
func TestHostname(t *testing.T) {
	g := NewWithT(t)
	in := input(t)
	in.Spec.NodeNameSource = bootstrapv1.NodeNameHostname
	out, err := UserData(in)
	g.Expect(err).NotTo(HaveOccurred())
	m := readBack(g, bootstrapv1.FormatCloudConfig, out)
	g.Expect(m.hostname).To(BeEmpty())
	g.Expect(m.files[KubeletDefaultsPath].content).To(HavePrefix(`KUBELET_EXTRA_ARGS="--hostname-override={{ ds.meta_data.local_hostname }}"`))
	g.Expect(m.files[ScriptPath].content).To(ContainSubstring("CI_MISSING_JINJA_VAR"))

	in.Spec.Format = bootstrapv1.FormatIgnition
	_, err = UserData(in)
	g.Expect(err).To(MatchError(ContainSubstring("spec.nodeName")))
}

func kubeletConfiguration(t *testing.T, in Input) kubeletv1.KubeletConfiguration {
	t.Helper()
	g := NewWithT(t)
	out, err := UserData(in)
	g.Expect(err).NotTo(HaveOccurred())
	kubelet := kubeletv1.KubeletConfiguration{}
	g.Expect(yaml.UnmarshalStrict([]byte(readBack(g, FormatOf(in.Spec), out).files[KubeletConfigPath].content), &kubelet)).To(Succeed())
	return kubelet
}

func TestKubeletConfiguration(t *testing.T) {
	g := NewWithT(t)
	kubelet := kubeletConfiguration(t, full(t, "", bootstrapv1.InstallPrebuilt))
	g.Expect(kubelet.ClusterDNS).To(Equal([]string{"fd00::a"}))
	g.Expect(kubelet.ClusterDomain).To(Equal("example.org"))
	g.Expect(*kubelet.Authentication.Anonymous.Enabled).To(BeFalse())
	g.Expect(*kubelet.Authentication.Webhook.Enabled).To(BeTrue())
	g.Expect(kubelet.Authentication.X509.ClientCAFile).To(Equal(CAPath))
	g.Expect(kubelet.Authorization.Mode).To(Equal(kubeletv1.KubeletAuthorizationModeWebhook))
	g.Expect(kubelet.RotateCertificates && kubelet.ServerTLSBootstrap).To(BeTrue())
	g.Expect(kubelet.RegisterWithTaints).To(Equal([]corev1.Taint{
		{Key: "gpu", Value: "yes", Effect: corev1.TaintEffectNoExecute}, clusterv1.NodeUninitializedTaint}))
	g.Expect(kubelet.MaxPods).To(Equal(int32(50)))
	g.Expect(kubelet.FeatureGates).To(Equal(map[string]bool{"NodeSwap": false}))
	g.Expect(kubelet.EvictionSoftGracePeriod).To(Equal(map[string]string{"nodefs.available": "1m30s"}))
	g.Expect(*kubelet.ContainerLogMaxFiles).To(Equal(int32(3)))
	// Passed through.
	g.Expect(*kubelet.SerializeImagePulls).To(BeFalse())
	g.Expect(*kubelet.MaxParallelImagePulls).To(Equal(int32(5)))
}

// TestCgroupV1 checks the one kubelet setting that depends on the operating system and the version.
func TestCgroupV1(t *testing.T) {
	for _, c := range []struct {
		system  bootstrapv1.OperatingSystem
		version string
		told    bool
	}{
		{"rhel-8", "v1.35.0", true}, {"rhel-8", "v1.31.0", true}, {"rhel-8", "v1.30.9", false}, {"rhel-8", "", false},
		{"rocky-8", "v1.35.0", true}, {"ubuntu-24.04", "v1.35.0", false}, {"", "v1.35.0", false},
	} {
		in := input(t)
		in.Spec.OperatingSystem, in.Version = c.system, c.version
		kubelet := kubeletConfiguration(t, in)
		NewWithT(t).Expect(kubelet.FailCgroupV1 != nil && !*kubelet.FailCgroupV1).To(Equal(c.told), "%+v", c)
	}
}

func TestVersions(t *testing.T) {
	for _, c := range []struct {
		machine, server, containerd string
		mode                        bootstrapv1.InstallMode
		says                        string // "" means accepted
	}{
		{"v1.36.3", "v1.36.0", "2.2.1", bootstrapv1.InstallBinaries, ""},
		{"v1.33.0", "v1.36.3", "1.7.1", bootstrapv1.InstallBinaries, ""},
		{"v1.36.0-rc.1", "v1.36.0", "2.2.1", bootstrapv1.InstallBinaries, ""},
		{"v1.36.0+k3s1", "v1.36.3+k3s1", "2.2.1", bootstrapv1.InstallPackages, ""},
		{"v1.37.0", "v1.36.3", "2.2.1", bootstrapv1.InstallBinaries, "newer than the API server"},
		{"v2.1.0", "v1.36.3", "2.2.1", bootstrapv1.InstallBinaries, "newer than the API server"},
		{"v1.32.9", "v1.36.3", "2.2.1", bootstrapv1.InstallPackages, "more than 3 minor releases behind"},
		{"v1.36.0", "v1.36.3", "1.7.1", bootstrapv1.InstallBinaries, "needs containerd 2.0"},
		{"v1.36.0-rc.1", "v1.36.0", "2.2.1", bootstrapv1.InstallPackages, "pre-release"},
		{"", "v1.36.3", "2.2.1", bootstrapv1.InstallPackages, "must have a version"},
		{"v1.36.3", "", "2.2.1", bootstrapv1.InstallPackages, "is not known"},
		{"anything", "", "", bootstrapv1.InstallPrebuilt, ""},
	} {
		g := NewWithT(t)
		in := least(t, variant{"ubuntu-24.04", c.mode})
		in.Version, in.ControlPlaneVersion = c.machine, c.server
		if b := &in.Spec.Install.Binaries; c.mode == bootstrapv1.InstallBinaries {
			b.Containerd.Version = c.containerd
		}
		out, err := UserData(in)
		if c.says == "" {
			g.Expect(err).NotTo(HaveOccurred(), "%+v", c)
			g.Expect(readBack(g, FormatOf(in.Spec), out).files[ScriptPath].content).NotTo(ContainSubstring("k3s"),
				"what is fetched is Kubernetes' own")
		} else {
			g.Expect(err).To(MatchError(ContainSubstring(c.says)), "%+v", c)
		}
	}
	for version, says := range map[string]string{"": "must have a version", "anything": "must have a version", "v1.24.9": "is the oldest"} {
		in := byKubeadm(input(t))
		in.Version = version
		_, err := UserData(in)
		NewWithT(t).Expect(err).To(MatchError(ContainSubstring(says)))
	}
	in := least(t, variant{"ubuntu-22.04", bootstrapv1.InstallPackages})
	in.Version, in.Spec.Install.Packages.ContainerdVersion = "v1.36.0", "1.7"
	_, err := UserData(in)
	NewWithT(t).Expect(err).To(MatchError(ContainSubstring("needs containerd 2.0")))
}

// TestSecrets: SecretKeys returns all values from Secrets, errors name a missing one, and no error
// contains a value.
func TestSecrets(t *testing.T) {
	g := NewWithT(t)
	in := full(t, "rhel-9", bootstrapv1.InstallPackages)
	keys := SecretKeys(in.Spec)
	g.Expect(keys).To(Equal([]bootstrapv1.SecretKey{
		{Name: "motd", Key: "text"}, {Name: "redhat", Key: "activationKey"}, {Name: "redhat", Key: "organization"},
		{Name: "registry", Key: ".dockerconfigjson"}}))
	for _, key := range keys {
		in := full(t, "rhel-9", bootstrapv1.InstallPackages)
		delete(in.Secrets, key)
		_, err := UserData(in)
		g.Expect(err).To(MatchError(ContainSubstring(key.Name)))
	}
	for name, value := range map[string]string{"registry": `{"auths":"marked-secret"}`, "redhat": "marked-secret\nrm"} {
		in := full(t, "rhel-9", bootstrapv1.InstallPackages)
		for key := range in.Secrets {
			if key.Name == name {
				in.Secrets[key] = []byte(value)
			}
		}
		_, err := UserData(in)
		g.Expect(err).To(MatchError(And(ContainSubstring(name), Not(ContainSubstring("marked-secret")))))
	}
	in.Secrets[keys[0]] = []byte(strings.Repeat("x", MaxBytes))
	_, err := UserData(in)
	g.Expect(err).To(MatchError(ContainSubstring("exceed")))
}

func TestUserDataRefuses(t *testing.T) {
	key := func() []byte {
		k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		der, err := x509.MarshalECPrivateKey(k)
		if err != nil {
			t.Fatal(err)
		}
		return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
	}()
	for name, change := range map[string]func(*Input){
		"no node name":                 func(in *Input) { in.NodeName = "" },
		"node name with a slash":       func(in *Input) { in.NodeName = "a/b" },
		"node name too long":           func(in *Input) { in.NodeName = strings.Repeat("a", 64) },
		"server without TLS":           func(in *Input) { in.Server = "http://10.0.0.1" },
		"server with a user":           func(in *Input) { in.Server = "https://me:secret@10.0.0.1" },
		"server with a path":           func(in *Input) { in.Server = "https://10.0.0.1/x" },
		"no CA":                        func(in *Input) { in.CA = nil },
		"CA is not PEM":                func(in *Input) { in.CA = []byte("hello") },
		"CA with a private key":        func(in *Input) { in.CA = append(slices.Clone(in.CA), key...) },
		"CA cut off":                   func(in *Input) { in.CA = append(slices.Clone(in.CA), in.CA[:80]...) },
		"CA with garbage in it":        func(in *Input) { in.CA = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")}) },
		"token malformed":              func(in *Input) { in.Token = "secret" },
		"provider ID with a blank":     func(in *Input) { in.ProviderID = "a b" },
		"provider ID with a quote":     func(in *Input) { in.ProviderID = `a"` },
		"provider ID with a statement": func(in *Input) { in.ProviderID = "{% if x %}" },
		"provider ID with a filter":    func(in *Input) { in.ProviderID = "{{ v1.x|upper }}" },
		"provider ID unclosed":         func(in *Input) { in.ProviderID = "{{ v1.x" },
		"cluster DNS":                  func(in *Input) { in.ClusterDNS = "ten" },
		"cluster domain":               func(in *Input) { in.ClusterDomain = "a b" },
		"spec":                         func(in *Input) { in.Spec.NodeLabels = map[string]string{"a b": ""} },
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			in := input(t)
			change(&in)
			_, err := UserData(in)
			g.Expect(err).To(HaveOccurred())
			g.Expect(err.Error()).NotTo(ContainSubstring("secret@"))
		})
	}
}

// TestWriteCA creates testdata/ca.crt again with -update. The certificate never expires in a test's
// lifetime.
func TestWriteCA(t *testing.T) {
	file := filepath.Join("testdata", "ca.crt")
	if _, err := os.Stat(file); err == nil {
		return
	}
	g := NewWithT(t)
	g.Expect(*update).To(BeTrue(), "%s is missing: run with -update", file)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	g.Expect(err).NotTo(HaveOccurred())
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test-ca"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Unix(0, 0), NotAfter: time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644)).To(Succeed())
}

// TestClientCA: the kubelet lets in clients of the authority that the API server publishes, if that
// is another one than its own. The machine's own connections trust only the latter.
func TestClientCA(t *testing.T) {
	g := NewWithT(t)
	other := newCA(t)
	for name, c := range map[string]struct {
		ca   func(in Input) []byte
		path string
	}{
		"unknown":      {func(Input) []byte { return nil }, CAPath},
		"the same":     {func(in Input) []byte { return append([]byte("# ours\n"), in.CA...) }, CAPath},
		"another":      {func(Input) []byte { return other }, ClientCAPath},
		"both, in one": {func(in Input) []byte { return append(slices.Clone(in.CA), other...) }, ClientCAPath},
	} {
		for _, format := range []bootstrapv1.Format{bootstrapv1.FormatCloudConfig, bootstrapv1.FormatIgnition} {
			in := input(t)
			in.Spec.Format = format
			in.ClientCA = c.ca(in)
			g.Expect(kubeletConfiguration(t, in).Authentication.X509.ClientCAFile).To(Equal(c.path), name)
			out, err := UserData(in)
			g.Expect(err).NotTo(HaveOccurred())
			files := readBack(g, format, out).files
			g.Expect(files[CAPath].content).To(Equal(string(in.CA)), name)
			if c.path == CAPath {
				g.Expect(files).NotTo(HaveKey(ClientCAPath), name)
			} else {
				g.Expect(files[ClientCAPath].content).To(Equal(string(in.ClientCA)), name)
			}
		}
	}
	in := input(t)
	in.ClientCA = []byte("hello")
	_, err := UserData(in)
	g.Expect(err).To(MatchError(ContainSubstring("certificate")))
}

// newCA returns the certificate of a new authority.
func newCA(t *testing.T) []byte {
	t.Helper()
	g := NewWithT(t)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	g.Expect(err).NotTo(HaveOccurred())
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	g.Expect(err).NotTo(HaveOccurred())
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// TestKeysTwice: what a spec names twice is once in the user data for Ignition, which refuses the
// rest. The default user may be in the list of users, too.
func TestKeysTwice(t *testing.T) {
	g := NewWithT(t)
	const one, two = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIA", "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIB"
	in := input(t)
	in.Spec.OperatingSystem = "flatcar"
	in.Spec.SSHAuthorizedKeys = []string{one, one}
	in.Spec.Host.Users = []bootstrapv1.User{{Name: "core", SSHAuthorizedKeys: []string{two, one}, Sudo: bootstrapv1.SudoAllowed}, {Name: "bob"}}
	out, err := UserData(in)
	g.Expect(err).NotTo(HaveOccurred())
	m := readBack(g, FormatOf(in.Spec), out)
	g.Expect(m.keys).To(Equal([]string{one, two}))
	g.Expect(m.users).To(Equal(map[string][]string{"bob": nil}))
}

// TestDefaults: a field that is not set means the same as its documented default.
func TestDefaults(t *testing.T) {
	type spec = bootstrapv1.DroverConfigSpec
	binaries := binariesOf("")
	named := binaries
	named.Architecture = bootstrapv1.ArchitectureAMD64
	files := []bootstrapv1.File{{Path: "/etc/motd"}}
	users := []bootstrapv1.User{{Name: "alice"}}
	for name, c := range map[string]struct{ unset, set spec }{
		"prebuilt": {spec{}, spec{
			Format: bootstrapv1.FormatCloudConfig, NodeNameSource: bootstrapv1.NodeNameMachine,
			Install: bootstrapv1.Install{Mode: bootstrapv1.InstallPrebuilt}, Join: bootstrapv1.Join{Method: bootstrapv1.JoinKubelet},
			Host: bootstrapv1.Host{Swap: bootstrapv1.SwapUnchanged}, ClusterDNS: "10.96.0.10", ClusterDomain: "cluster.local",
		}},
		"files and users": {spec{Files: files, Host: bootstrapv1.Host{Users: users}}, spec{
			Files: []bootstrapv1.File{{Path: "/etc/motd", Permissions: "0644", Owner: "root:root"}},
			Host:  bootstrapv1.Host{Users: []bootstrapv1.User{{Name: "alice", Sudo: bootstrapv1.SudoDenied}}},
		}},
		"packages": {spec{OperatingSystem: "rhel-9", Install: bootstrapv1.Install{Mode: bootstrapv1.InstallPackages}}, spec{
			OperatingSystem: "rhel-9", Host: bootstrapv1.Host{Swap: bootstrapv1.SwapOff},
			Install: bootstrapv1.Install{Mode: bootstrapv1.InstallPackages, Packages: bootstrapv1.PackagesInstall{
				ContainerdVersion: "2.2", KubernetesRepository: "https://pkgs.k8s.io/core:/stable:",
				ContainerdRepository: "https://download.docker.com/linux",
			}},
		}},
		"binaries": {spec{OperatingSystem: "flatcar", Install: bootstrapv1.Install{Mode: bootstrapv1.InstallBinaries, Binaries: binaries}}, spec{
			OperatingSystem: "flatcar", Format: bootstrapv1.FormatIgnition,
			Install: bootstrapv1.Install{Mode: bootstrapv1.InstallBinaries, Binaries: named},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			in := input(t)
			in.ClusterDNS, in.ClusterDomain, in.Version, in.ControlPlaneVersion = "", "", "v1.36.3", "v1.36.3"
			in.Spec = &c.unset
			unset, err := UserData(in)
			g.Expect(err).NotTo(HaveOccurred())
			in.Spec = &c.set
			set, err := UserData(in)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(string(unset)).To(Equal(string(set)))
		})
	}
}
