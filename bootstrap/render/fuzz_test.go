// SPDX-License-Identifier: Apache-2.0

package render

import (
	"encoding/json"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kubeletv1 "k8s.io/kubelet/config/v1beta1"
	kubeadmv1beta4 "sigs.k8s.io/cluster-api/bootstrap/kubeadm/pkg/types/upstreamv1beta4"
	"sigs.k8s.io/yaml"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
)

// place is a field for a user's text, and the part of the output where the text must appear.
type place struct {
	name string
	// harmless is a valid text.
	harmless string
	set      func(in *Input, s string)
	// at names the parts of a listing that may differ from the listing of the harmless text.
	at []string
	// read returns the text from the output.
	read func(g Gomega, m machine) string
	// in is the variant that has the field. The zero variant means any system, prebuilt, in both
	// formats.
	in variant
}

// Readers of places.

func fileAt(path string) func(Gomega, machine) string {
	return func(_ Gomega, m machine) string { return m.files[path].content }
}

// between returns the text between two fixed texts of a file.
func between(path, before, after string) func(Gomega, machine) string {
	return func(g Gomega, m machine) string {
		_, rest, found := strings.Cut(m.files[path].content, before)
		g.Expect(found).To(BeTrue(), "%s has no %q", path, before)
		end := strings.LastIndex(rest, after)
		g.Expect(end).To(BeNumerically(">=", 0), "%s has no %q", path, after)
		return rest[:end]
	}
}

func kubeletField(read func(kubeletv1.KubeletConfiguration) string) func(Gomega, machine) string {
	return kubeletFieldOf(KubeletConfigPath, read)
}

func kubeletFieldOf(path string, read func(kubeletv1.KubeletConfiguration) string) func(Gomega, machine) string {
	return func(g Gomega, m machine) string {
		config := kubeletv1.KubeletConfiguration{}
		g.Expect(yaml.UnmarshalStrict([]byte(m.files[path].content), &config)).To(Succeed())
		return read(config)
	}
}

func joinField(read func(kubeadmv1beta4.JoinConfiguration) string) func(Gomega, machine) string {
	return func(g Gomega, m machine) string {
		config := kubeadmv1beta4.JoinConfiguration{}
		g.Expect(yaml.UnmarshalStrict([]byte(m.files[JoinConfigPath].content), &config)).To(Succeed())
		return read(config)
	}
}

// command returns the user's only command in a step of the script, parsed as a shell parses it.
func command(step string) func(Gomega, machine) string {
	return func(g Gomega, m machine) string {
		_, script, found := strings.Cut(m.files[ScriptPath].content, "\nsay '"+step+"'\n/bin/sh -ec ")
		g.Expect(found).To(BeTrue())
		word, rest, err := unquote(script)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(rest).To(HavePrefix("\n\nsay '"))
		return word
	}
}

// unquote reverses quote, independently of its code. It parses one word of a POSIX shell, made of
// single-quoted parts and escaped single quotes, and returns the rest of the input.
func unquote(s string) (word, rest string, err error) {
	var b strings.Builder
	for {
		switch {
		case strings.HasPrefix(s, "'"):
			end := strings.IndexByte(s[1:], '\'')
			if end < 0 {
				return "", "", fmt.Errorf("unclosed quote")
			}
			b.WriteString(s[1 : 1+end])
			s = s[end+2:]
		case strings.HasPrefix(s, `\'`):
			b.WriteByte('\'')
			s = s[2:]
		default:
			return b.String(), s, nil
		}
	}
}

func onlyKey[V any](m map[string]V) string { return strings.Join(slices.Sorted(maps.Keys(m)), " AND ") }

func places() []place {
	const (
		defaults = "file " + KubeletDefaultsPath + " 0644"
		config   = "file " + KubeletConfigPath + " 0644"
		pre      = "Running the commands before the kubelet"
		post     = "Running the commands after the kubelet"
	)
	packages, binaries := variant{"ubuntu-24.04", bootstrapv1.InstallPackages}, variant{"flatcar", bootstrapv1.InstallBinaries}
	subscribed := variant{"rhel-9", bootstrapv1.InstallPrebuilt}
	const join, patch = "file " + JoinConfigPath + " 0644", "file " + kubeletPatchPath + " 0644"
	kubeadm := func(set func(in *Input, s string)) func(*Input, string) {
		return func(in *Input, s string) {
			in.Spec.Join.Method = bootstrapv1.JoinKubeadm
			if b := &in.Spec.Install.Binaries; in.Spec.Install.Mode == bootstrapv1.InstallBinaries {
				b.Kubeadm = b.Kubelet
			}
			set(in, s)
		}
	}
	file := func(in *Input) *bootstrapv1.File {
		in.Spec.Files = []bootstrapv1.File{{Path: "/a", Content: "b"}}
		return &in.Spec.Files[0]
	}
	secret := func(in *Input, name, key, value string) {
		in.Secrets = map[bootstrapv1.SecretKey][]byte{{Name: name, Key: key}: []byte(value)}
	}
	return []place{
		{name: "machine's name", harmless: "m", at: []string{"hostname", defaults}, set: func(in *Input, s string) { in.NodeName = s },
			read: func(_ Gomega, m machine) string { return m.hostname }},
		{name: "server", harmless: "https://a", at: []string{"file " + BootstrapKubeconfigPath + " 0600"},
			set:  func(in *Input, s string) { in.Server = s },
			read: between(BootstrapKubeconfigPath, "    server: ", "\n  name: bootstrap\ncontexts:")},
		{name: "machine's version", harmless: "v1.35.0", in: binaries, at: []string{"step Fetching containerd and the kubelet"},
			set: func(in *Input, s string) { in.Version = s }},
		{name: "provider ID", harmless: "a", in: variant{"ubuntu-24.04", bootstrapv1.InstallPrebuilt},
			at:  []string{defaults, "step Checking the instance data"},
			set: func(in *Input, s string) { in.ProviderID = s }, read: between(KubeletDefaultsPath, "--provider-id=", "\"\n")},
		{name: "label's name", harmless: "a", at: []string{defaults},
			set:  func(in *Input, s string) { in.Spec.NodeLabels = map[string]string{s: "v"} },
			read: between(KubeletDefaultsPath, "--node-labels=", "=v\"\n")},
		{name: "label's value", harmless: "a", at: []string{defaults},
			set:  func(in *Input, s string) { in.Spec.NodeLabels = map[string]string{"k": s} },
			read: between(KubeletDefaultsPath, "--node-labels=k=", "\"\n")},
		{name: "taint's key", harmless: "a", at: []string{config}, set: func(in *Input, s string) {
			in.Spec.NodeTaints = []corev1.Taint{{Key: s, Effect: corev1.TaintEffectNoSchedule}}
		}, read: kubeletField(func(c kubeletv1.KubeletConfiguration) string { return c.RegisterWithTaints[0].Key })},
		{name: "domain", harmless: "a", at: []string{config}, set: func(in *Input, s string) { in.Spec.ClusterDomain = s },
			read: kubeletField(func(c kubeletv1.KubeletConfiguration) string { return c.ClusterDomain })},
		{name: "DNS", harmless: "1.1.1.1", at: []string{config}, set: func(in *Input, s string) { in.Spec.ClusterDNS = s },
			read: kubeletField(func(c kubeletv1.KubeletConfiguration) string { return c.ClusterDNS[0] })},
		{name: "feature gate", harmless: "A", at: []string{config}, set: func(in *Input, s string) {
			in.Spec.Kubelet.FeatureGates = []bootstrapv1.FeatureGate{{Name: s, State: bootstrapv1.FeatureEnabled}}
		},
			read: kubeletField(func(c kubeletv1.KubeletConfiguration) string { return onlyKey(c.FeatureGates) })},
		{name: "reserved amount", harmless: "1", at: []string{config},
			set:  func(in *Input, s string) { in.Spec.Kubelet.KubeReserved = map[string]string{"cpu": s} },
			read: kubeletField(func(c kubeletv1.KubeletConfiguration) string { return c.KubeReserved["cpu"] })},
		{name: "eviction signal", harmless: "a.b", at: []string{config},
			set:  func(in *Input, s string) { in.Spec.Kubelet.EvictionHard = map[string]string{s: "1"} },
			read: kubeletField(func(c kubeletv1.KubeletConfiguration) string { return onlyKey(c.EvictionHard) })},
		{name: "eviction threshold", harmless: "1%", at: []string{config},
			set:  func(in *Input, s string) { in.Spec.Kubelet.EvictionHard = map[string]string{"a.b": s} },
			read: kubeletField(func(c kubeletv1.KubeletConfiguration) string { return c.EvictionHard["a.b"] })},
		{name: "log size", harmless: "1Mi", at: []string{config}, set: func(in *Input, s string) { in.Spec.Kubelet.ContainerLogMaxSize = s },
			read: kubeletField(func(c kubeletv1.KubeletConfiguration) string { return c.ContainerLogMaxSize })},
		{name: "passed through", harmless: "a", at: []string{config}, set: func(in *Input, s string) {
			raw, _ := json.Marshal(s)
			if !utf8.ValidString(s) {
				raw = []byte(`"` + s + `"`) // Marshal would repair it
			}
			in.Spec.Kubelet.Configuration = &apiextensionsv1.JSON{Raw: slices.Concat([]byte(`{"volumePluginDir":`), raw, []byte("}"))}
		}, read: kubeletField(func(c kubeletv1.KubeletConfiguration) string { return c.VolumePluginDir })},
		{name: "passed through, whole", harmless: "{}", at: []string{config}, set: func(in *Input, s string) {
			in.Spec.Kubelet.Configuration = &apiextensionsv1.JSON{Raw: []byte(s)}
		}},
		{name: "file's content", harmless: "x", at: []string{"file /a 0644"}, set: func(in *Input, s string) { file(in).Content = s },
			read: fileAt("/a")},
		{name: "file's path", harmless: "/x", at: []string{"file PATH 0644", "file /x 0644"},
			set: func(in *Input, s string) { file(in).Path = s },
			read: func(_ Gomega, m machine) string { // the last file, or the last but the one that says that all are written
				return m.order[slices.IndexFunc(append(m.order, filesWrittenPath), func(p string) bool { return p == filesWrittenPath })-1]
			}},
		{name: "file's owner", harmless: "x:x", at: []string{"step Setting the owners of files", "file /a 0644 OWNER", "file /a 0644",
			"file /a 0644 x:x"}, set: func(in *Input, s string) { file(in).Owner = s },
			read: func(_ Gomega, m machine) string { return m.files["/a"].owner }},
		{name: "file from a Secret", harmless: "x", at: []string{"file /a 0644"}, set: func(in *Input, s string) {
			*file(in) = bootstrapv1.File{Path: "/a", ContentFrom: bootstrapv1.FileSource{Secret: bootstrapv1.SecretKey{Name: "a", Key: "b"}}}
			secret(in, "a", "b", s)
		}, read: fileAt("/a")},
		{name: "command before", harmless: "x", at: []string{"step " + pre},
			set: func(in *Input, s string) { in.Spec.PreKubeletCommands = []string{s} }, read: command(pre)},
		{name: "command after", harmless: "x", at: []string{"step " + post},
			set: func(in *Input, s string) { in.Spec.PostKubeletCommands = []string{s} }, read: command(post)},
		{name: "key", harmless: "x", at: []string{"keys of the default user"},
			set:  func(in *Input, s string) { in.Spec.SSHAuthorizedKeys = []string{s} },
			read: func(_ Gomega, m machine) string { return strings.Join(m.keys, " AND ") }},
		{name: "user's key", harmless: "x", at: []string{"user u"}, set: func(in *Input, s string) {
			in.Spec.Host.Users = []bootstrapv1.User{{Name: "u", SSHAuthorizedKeys: []string{s}}}
		}, read: func(_ Gomega, m machine) string { return strings.Join(m.users["u"], " AND ") }},
		{name: "user's name", harmless: "x", at: []string{"user PATH", "user x", "file " + sudoersPath + " 0440"},
			set: func(in *Input, s string) {
				in.Spec.Host.Users = []bootstrapv1.User{{Name: s, Sudo: "Allowed"}}
			}, read: func(_ Gomega, m machine) string { return onlyKey(m.users) }},
		{name: "proxy", harmless: "http://a", at: []string{"file " + proxyPath + " 0600"},
			set:  func(in *Input, s string) { in.Spec.Host.Proxy.HTTPProxy = s },
			read: between(proxyPath, "http_proxy='", "'\nNO_PROXY")},
		{name: "no proxy", harmless: "a", at: []string{"file " + proxyPath + " 0600"}, set: func(in *Input, s string) {
			in.Spec.Host.Proxy = bootstrapv1.Proxy{HTTPProxy: "http://a", NoProxy: []string{s}}
		}, read: between(proxyPath, "no_proxy='localhost,127.0.0.1,::1,.svc,.cluster.local,"+strings.Join(metadataServices(), ",")+",10.0.0.1,",
			"'\n")},
		{name: "time server", harmless: "a", at: []string{"file " + timesyncdPath + " 0644", "file " + chronyPath + " 0644"},
			set: func(in *Input, s string) { in.Spec.Host.NTPServers = []string{s} }, read: between(timesyncdPath, "NTP=", "\n")},
		{name: "sysctl's name", harmless: "a", at: []string{"file " + sysctlsPath + " 0644"},
			set:  func(in *Input, s string) { in.Spec.Host.Sysctls = map[string]string{s: "1"} },
			read: between(sysctlsPath, "", " = 1\n")},
		{name: "sysctl's value", harmless: "1", at: []string{"file " + sysctlsPath + " 0644"},
			set:  func(in *Input, s string) { in.Spec.Host.Sysctls = map[string]string{"a": s} },
			read: between(sysctlsPath, "a = ", "\n")},
		{name: "module", harmless: "a", at: []string{"file " + modulesPath + " 0644"},
			set:  func(in *Input, s string) { in.Spec.Host.KernelModules = []string{s} },
			read: between(modulesPath, "", "\n")},
		{name: "organization", harmless: "1", in: subscribed, at: []string{"file " + subscriptionPath + " 0600"}, set: func(in *Input, s string) {
			in.Spec.Host.Subscription.Name = "r"
			secret(in, "r", organizationKey, s)
			in.Secrets[bootstrapv1.SecretKey{Name: "r", Key: activationKeyKey}] = []byte("k")
		}, read: func(g Gomega, m machine) string {
			word, rest, err := unquote(strings.TrimPrefix(m.files[subscriptionPath].content, "organization="))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(rest).To(Equal("\nactivation_key='k'\n"))
			return word
		}},
		{name: "registry", harmless: "a", at: []string{"file " + registriesPath + "/PATH/hosts.toml 0644", "file " + registriesPath +
			"/a/hosts.toml 0644"},
			set: func(in *Input, s string) {
				in.Spec.Containerd.Registries = []bootstrapv1.Registry{{Host: s, Mirrors: []bootstrapv1.Mirror{{URL: "https://m"}}}}
			}},
		{name: "registry's mirror", harmless: "https://a", at: []string{"file " + registriesPath + "/r/hosts.toml 0644"},
			set: func(in *Input, s string) {
				in.Spec.Containerd.Registries = []bootstrapv1.Registry{{Host: "r", Mirrors: []bootstrapv1.Mirror{{URL: s}}}}
			}, read: between(registriesPath+"/r/hosts.toml", "[host.\"", "\"]\n  capabilities = [\"pull\", \"resolve\"]\n")},
		{name: "pause image", harmless: "a", in: packages, at: []string{"file " + containerdConfigPath + " 0644"},
			set:  func(in *Input, s string) { in.Spec.Containerd.PauseImage = s },
			read: between(containerdConfigPath, "sandbox_image = \"", "\"\n\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]\n")},
		{name: "containerd's version", harmless: "2.1.0", in: packages, at: []string{"step Installing containerd and the kubelet"},
			set: func(in *Input, s string) { in.Spec.Install.Packages.ContainerdVersion = s },
			read: func(g Gomega, m machine) string {
				version := between(ScriptPath, "'containerd.io=", "*' 'kubelet=")(g, m)
				return version[:len(version)-1] // the point or the dash before the star
			}},
		{name: "repository", harmless: "https://a", in: packages, at: []string{"step Fetching the keys of the package repositories"},
			set:  func(in *Input, s string) { in.Spec.Install.Packages.KubernetesRepository = s },
			read: between(ScriptPath, "kubernetes.asc '", "/v1.35/deb/Release.key'\n")},
		{name: "mirror", harmless: "https://a", in: binaries, at: []string{"step Fetching containerd and the kubelet"},
			set:  func(in *Input, s string) { in.Spec.Install.Binaries.Mirror = s },
			read: between(ScriptPath, strings.Repeat("1", 64)+" '", "/dl.k8s.io/release/v1.35.2/bin/linux/amd64/kubelet' ")},
		{name: "release", harmless: "1.0.0", in: binaries, at: []string{"step Fetching containerd and the kubelet"},
			set:  func(in *Input, s string) { in.Spec.Install.Binaries.Runc.Version = s },
			read: between(ScriptPath, "/opencontainers/runc/releases/download/v", "/runc.amd64' ")},
		{name: "checksum", harmless: strings.Repeat("a", 64), in: binaries, at: []string{"step Fetching containerd and the kubelet"},
			set:  func(in *Input, s string) { in.Spec.Install.Binaries.Kubelet.SHA256 = s },
			read: between(ScriptPath, "-C /opt/bin --no-same-owner\nretry fetch ", " 'https://dl.k8s.io/")},
		{name: "kubeadm: checksum", harmless: strings.Repeat("a", 64), in: binaries, at: []string{"step Fetching containerd and the kubelet"},
			set:  kubeadm(func(in *Input, s string) { in.Spec.Install.Binaries.Kubeadm.SHA256 = s }),
			read: between(ScriptPath, "/kubelet /opt/bin/kubelet\nretry fetch ", " 'https://dl.k8s.io/")},
		{name: "kubeadm: machine's name", harmless: "m", at: []string{"hostname", join},
			set:  kubeadm(func(in *Input, s string) { in.NodeName = s }),
			read: joinField(func(c kubeadmv1beta4.JoinConfiguration) string { return c.NodeRegistration.Name })},
		{name: "kubeadm: ignored check", harmless: "a", at: []string{join},
			set:  kubeadm(func(in *Input, s string) { in.Spec.Join.IgnorePreflightErrors = []string{s} }),
			read: joinField(func(c kubeadmv1beta4.JoinConfiguration) string { return c.NodeRegistration.IgnorePreflightErrors[0] })},
		{name: "kubeadm: label's name", harmless: "a", at: []string{join},
			set: kubeadm(func(in *Input, s string) { in.Spec.NodeLabels = map[string]string{s: "v"} }),
			read: joinField(func(c kubeadmv1beta4.JoinConfiguration) string {
				return strings.TrimSuffix(c.NodeRegistration.KubeletExtraArgs[0].Value, "=v")
			})},
		{name: "kubeadm: provider ID", harmless: "a", in: variant{"ubuntu-24.04", bootstrapv1.InstallPrebuilt},
			at:   []string{join, "step Checking the instance data"},
			set:  kubeadm(func(in *Input, s string) { in.ProviderID = s }),
			read: joinField(func(c kubeadmv1beta4.JoinConfiguration) string { return c.NodeRegistration.KubeletExtraArgs[0].Value })},
		{name: "kubeadm: taint's value", harmless: "a", at: []string{join}, set: kubeadm(func(in *Input, s string) {
			in.Spec.NodeTaints = []corev1.Taint{{Key: "k", Value: s, Effect: corev1.TaintEffectNoSchedule}}
		}), read: joinField(func(c kubeadmv1beta4.JoinConfiguration) string { return c.NodeRegistration.Taints[0].Value })},
		{name: "kubeadm: domain", harmless: "a", at: []string{patch}, set: kubeadm(func(in *Input, s string) { in.Spec.ClusterDomain = s }),
			read: kubeletFieldOf(kubeletPatchPath, func(c kubeletv1.KubeletConfiguration) string { return c.ClusterDomain })},
		{name: "kubeadm: passed through, whole", harmless: `{"seccompDefault":true}`, at: []string{patch, join},
			set: kubeadm(func(in *Input, s string) {
				in.Spec.Kubelet.Configuration = &apiextensionsv1.JSON{Raw: []byte(s)}
			})},
	}
}

// hostile returns texts that have broken software before.
func hostile() []string {
	return []string{
		"'", `"`, "$(reboot)", "`reboot`", "a\nb", "\n#cloud-config\nruncmd: [reboot]\n", "{{ v1.x }}", "{% raw %}", "{#", "{% endraw %}{{ ds }}",
		"a: b", "&x *x",
		"\x00", "\xff\xfe", "ünïcödé", "\u2028", "\\", "../../etc/passwd", "' ; exit 0 ; '", "https://a/'$(x)", "a b", "", "]\n[y]", "#",
		"null",
		"0x10",
		strings.Repeat("x", 64<<10),
	}
}

// FuzzUserData puts a text into each user field, one at a time. The output must contain it as data,
// in the right part and nowhere else.
func FuzzUserData(f *testing.F) {
	all, harmless := places(), map[string]machine{}
	for i, p := range all {
		f.Add(uint8(i), p.harmless, i%2 == 0)
		for j, s := range hostile() {
			f.Add(uint8(i), s, (i+j)%2 == 0)
		}
	}
	f.Fuzz(func(t *testing.T, which uint8, s string, ignition bool) {
		g := NewWithT(t)
		p := all[int(which)%len(all)]
		rendered := func(s string) (Input, []byte, error) {
			in := input(t)
			if p.in.name != "" {
				in = least(t, p.in)
			} else if ignition {
				in.Spec.Format = bootstrapv1.FormatIgnition
			}
			p.set(&in, s)
			out, err := UserData(in)
			return in, out, err
		}
		in, out, err := rendered(s)
		if err != nil {
			g.Expect(err.Error()).NotTo(ContainSubstring("jinja that was not meant"), p.name)
			g.Expect(len(err.Error())).To(BeNumerically("<", 2000), "an error repeats what was put in")
			return
		}
		g.Expect(Validate(in.Spec, field.NewPath("spec"))).To(BeEmpty())
		got, base := readBack(g, FormatOf(in.Spec), out), fmt.Sprint(p.name, ignition)
		want, ok := harmless[base]
		if !ok {
			in, plain, err := rendered(p.harmless)
			g.Expect(err).NotTo(HaveOccurred(), p.name)
			want = readBack(g, FormatOf(in.Spec), plain)
			harmless[base] = want
		}
		if p.read != nil && !(s == "" || s == "root:root") { // omitted text means the default
			g.Expect(p.read(g, got)).To(Equal(s), p.name)
		}
		expectDifferences(g, p, s, listing(got), listing(want))
		if script := got.files[ScriptPath].content; script != want.files[ScriptPath].content {
			sh := exec.Command("/bin/sh", "-n")
			sh.Stdin = strings.NewReader(script)
			said, err := sh.CombinedOutput()
			g.Expect(err).NotTo(HaveOccurred(), "%s", said)
		}
	})
}

// expectDifferences compares two listings except for the parts that may differ.
func expectDifferences(g Gomega, p place, s string, got, want map[string]string) {
	may := func(key string) bool {
		key = strings.TrimSpace(key)
		return slices.ContainsFunc(p.at, func(at string) bool {
			return key == strings.TrimSpace(strings.NewReplacer("PATH", s, "OWNER", s).Replace(at))
		})
	}
	if s == "" { // without the text, its parts are missing
		return
	}
	for key := range got {
		if !may(key) {
			g.Expect(got[key]).To(Equal(want[key]), "%s: %s", p.name, key)
			g.Expect(want).To(HaveKey(key), p.name)
		}
	}
	for key := range want {
		if !may(key) {
			g.Expect(got).To(HaveKey(key), p.name)
		}
	}
}
