// SPDX-License-Identifier: Apache-2.0

package render

import (
	"encoding/base64"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coreos/ignition/v2/config/v3_3"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
)

var update = flag.Bool("update", false, "write the golden files again")

func input(t testing.TB) Input {
	t.Helper()
	ca, err := os.ReadFile(filepath.Join("testdata", "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	return Input{
		Spec: &bootstrapv1.DroverConfigSpec{}, NodeName: "blue-1", Server: "https://10.0.0.1:6443", CA: ca,
		Token: "abcdef.0123456789abcdef", ClusterDNS: "10.96.0.10", ClusterDomain: "cluster.local",
		Version: "v1.35.2", ControlPlaneVersion: "v1.36.3",
	}
}

// full returns an input that uses every feature of an operating system and a mode.
func full(t testing.TB, name bootstrapv1.OperatingSystem, mode bootstrapv1.InstallMode) Input {
	in := input(t)
	in.ProviderID = "aws:///{{ v1.availability_zone }}/{{ v1.instance_id }}"
	in.Secrets = map[bootstrapv1.SecretKey][]byte{
		{Name: "motd", Key: "text"}:                             []byte("from a Secret\n"),
		{Name: "registry", Key: corev1.DockerConfigJsonKey}:     []byte(`{"auths":{"registry.example.org":{"auth":"bWFya2VkLXNlY3JldA=="}}}`),
		{Name: "redhat", Key: organizationKey}:                  []byte("1234"),
		{Name: "redhat", Key: activationKeyKey}:                 []byte("it's marked-secret"),
		{Name: "of-nobody", Key: "that the spec does not name"}: []byte("marked-secret"),
	}
	in.Spec = &bootstrapv1.DroverConfigSpec{
		OperatingSystem: name,
		Install:         bootstrapv1.Install{Mode: mode},
		NodeLabels:      map[string]string{"pool": "blue", "example.com/tier": "", "node.kubernetes.io/instance-type": "large"},
		NodeTaints:      []corev1.Taint{{Key: "gpu", Value: "yes", Effect: corev1.TaintEffectNoExecute}},
		ClusterDNS:      "fd00::a",
		ClusterDomain:   "example.org",
		Kubelet: bootstrapv1.Kubelet{
			NodeIPFamily: "DualStack", MaxPods: 50, FeatureGates: []bootstrapv1.FeatureGate{{Name: "NodeSwap", State: bootstrapv1.FeatureDisabled}},
			SystemReserved: map[string]string{"cpu": "100m"}, KubeReserved: map[string]string{"memory": "300Mi"},
			EvictionHard: map[string]string{"memory.available": "200Mi"}, EvictionSoft: map[string]string{"nodefs.available": "15%"},
			EvictionSoftGracePeriod: map[string]string{"nodefs.available": "1m30s"},
			ContainerLogMaxSize:     "20Mi", ContainerLogMaxFiles: 3,
			Configuration: &apiextensionsv1.JSON{Raw: []byte(`{"serializeImagePulls":false,"maxParallelImagePulls":5}`)},
		},
		Containerd: bootstrapv1.Containerd{
			Registries: []bootstrapv1.Registry{
				{Host: "docker.io", Mirrors: []bootstrapv1.Mirror{{URL: "https://mirror.example.org"}, {URL: "http://10.0.0.2:5000/v2/hub"}}},
				{Host: "_default", Mirrors: []bootstrapv1.Mirror{{URL: "https://mirror.example.org"}}},
			},
			Credentials: bootstrapv1.SecretName{Name: "registry"},
		},
		Host: bootstrapv1.Host{
			Proxy: bootstrapv1.Proxy{
				HTTPProxy: "http://user:pa%20ss@proxy.example.org:3128", HTTPSProxy: "http://proxy.example.org:3128",
				NoProxy: []string{"10.0.0.0/8", ".example.org"},
			},
			NTPServers: []string{"ntp1.example.org", "fd00::123"},
			Users: []bootstrapv1.User{
				{Name: "alice", SSHAuthorizedKeys: []string{"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIA alice@example"}, Sudo: "Allowed"}, {Name: "bob"},
			},
			Swap: "Off", Sysctls: map[string]string{"vm.overcommit_memory": "1", "net.ipv4.ip_local_port_range": "1024 65000"},
			KernelModules: []string{"ip_vs"},
		},
		Files: []bootstrapv1.File{
			{Path: "/etc/motd", Content: "{{ ds.meta_data }} {% raw %} {# stays #}\n", Permissions: "0600", Owner: "root:root"},
			{Path: "/home/app/with space", Content: "x", Owner: "app:app"},
			{Path: "/etc/motd.d/secret", ContentFrom: bootstrapv1.FileSource{Secret: bootstrapv1.SecretKey{Name: "motd", Key: "text"}}},
		},
		PreKubeletCommands:  []string{"echo 'it''s'", "cat <<EOF\nunclosed"},
		PostKubeletCommands: []string{`printf '%s\n' "$HOME"`},
		SSHAuthorizedKeys:   []string{"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ operator@example"},
	}
	if name != "" {
		in.Spec.Host.CABundle = string(in.CA)
		in.Spec.Host.UnattendedUpgrades = "On"
	}
	if systemOf(in.Spec).subscribes {
		in.Spec.Host.Subscription.Name = "redhat"
	}
	if mode != bootstrapv1.InstallPrebuilt {
		in.Spec.Containerd.PauseImage = "registry.example.org/pause:3.10"
	}
	if mode == bootstrapv1.InstallBinaries {
		in.Spec.Install.Binaries = binariesOf("https://mirror.example.org")
	}
	return in
}

func binariesOf(mirror string) bootstrapv1.BinariesInstall {
	sum := func(digit string) string { return strings.Repeat(digit, 64) }
	return bootstrapv1.BinariesInstall{
		Mirror: mirror, Kubelet: bootstrapv1.Checksum{SHA256: sum("1")},
		Containerd: bootstrapv1.Release{Version: "2.2.1", SHA256: sum("2")}, Runc: bootstrapv1.Release{Version: "1.4.0", SHA256: sum("3")},
		CNIPlugins: bootstrapv1.Release{Version: "1.9.1", SHA256: sum("4")}, Crictl: bootstrapv1.Release{Version: "1.36.0", SHA256: sum("5")},
	}
}

// byKubeadm returns the input for a machine that joins by kubeadm.
func byKubeadm(in Input) Input {
	in.Spec.Join = bootstrapv1.Join{Method: bootstrapv1.JoinKubeadm,
		IgnorePreflightErrors: []string{"SystemVerification", "FileExisting-crictl"}}
	if b := &in.Spec.Install.Binaries; in.Spec.Install.Mode == bootstrapv1.InstallBinaries {
		b.Kubeadm.SHA256 = strings.Repeat("6", 64)
	}
	return in
}

// kubeadmVariants returns one variant of each family and mode.
func kubeadmVariants() []variant {
	return []variant{
		{"", bootstrapv1.InstallPrebuilt}, {"ubuntu-24.04", bootstrapv1.InstallPackages}, {"rhel-9", bootstrapv1.InstallPackages},
		{"amazon-linux-2023", bootstrapv1.InstallBinaries}, {"flatcar", bootstrapv1.InstallBinaries},
	}
}

// variant is an operating system in a mode.
type variant struct {
	name bootstrapv1.OperatingSystem
	mode bootstrapv1.InstallMode
}

func (v variant) String() string {
	name := v.name
	if name == "" {
		name = "any"
	}
	return string(name) + "-" + strings.ToLower(string(v.mode))
}

// variants returns all variants.
func variants() []variant {
	out := []variant{{"", bootstrapv1.InstallPrebuilt}}
	for _, s := range systems() {
		for _, mode := range s.modes() {
			out = append(out, variant{s.name, mode})
		}
	}
	return out
}

// machine is the parsed user data. The parsers are not the code that wrote it.
type machine struct {
	hostname string
	keys     []string
	users    map[string][]string
	files    map[string]machineFile
	// order is the order of the files.
	order []string
	run   [][]string
}

type machineFile struct {
	content, owner string
	mode           int
}

func readBack(g Gomega, format bootstrapv1.Format, out []byte) machine {
	if format == bootstrapv1.FormatIgnition {
		return readIgnition(g, out)
	}
	return readCloudConfig(g, out)
}

func readCloudConfig(g Gomega, out []byte) machine {
	g.Expect(strings.HasPrefix(string(out), "## template: jinja\n#cloud-config\n")).To(BeTrue())
	doc := struct {
		Hostname string      `json:"hostname"`
		Keys     []string    `json:"ssh_authorized_keys"`
		Users    []any       `json:"users"`
		Files    []writeFile `json:"write_files"`
		RunCmd   [][]string  `json:"runcmd"`
	}{}
	g.Expect(yaml.UnmarshalStrict(out, &doc)).To(Succeed())
	m := machine{hostname: doc.Hostname, keys: doc.Keys, users: map[string][]string{}, files: map[string]machineFile{}, run: doc.RunCmd}
	for i, u := range doc.Users {
		if i == 0 {
			g.Expect(u).To(Equal("default"))
			continue
		}
		user := cloudInitUser{}
		raw, err := yaml.Marshal(u)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(yaml.UnmarshalStrict(raw, &user)).To(Succeed())
		g.Expect(user.LockPasswd).To(BeTrue())
		m.users[user.Name] = user.SSHAuthorizedKeys
	}
	for _, f := range doc.Files {
		g.Expect(m.files).NotTo(HaveKey(f.Path))
		content := f.Content
		if f.Path != KubeletDefaultsPath && f.Path != JoinConfigPath {
			g.Expect(f.Encoding).To(Equal("b64"), f.Path)
			raw, err := base64.StdEncoding.DecodeString(f.Content)
			g.Expect(err).NotTo(HaveOccurred())
			content = string(raw)
		}
		mode := 0
		_, err := fmt.Sscanf(f.Permissions, "%o", &mode)
		g.Expect(err).NotTo(HaveOccurred())
		m.files[f.Path] = machineFile{content, "", mode}
		m.order = append(m.order, f.Path)
	}
	for _, line := range strings.Split(m.files[ScriptPath].content, "\n") {
		words := strings.SplitN(line, "' '", 2)
		if owner, ok := strings.CutPrefix(words[0], "chown '"); ok && len(words) == 2 {
			path := strings.ReplaceAll(strings.TrimSuffix(words[1], "'"), `'\''`, "'")
			f, ok := m.files[path]
			if !ok {
				continue // it is fetched
			}
			f.owner = owner
			m.files[path] = f
		}
	}
	return m
}

func readIgnition(g Gomega, out []byte) machine {
	config, report, err := v3_3.Parse(out)
	g.Expect(err).NotTo(HaveOccurred(), report.String())
	g.Expect(report.Entries).To(BeEmpty())
	m := machine{users: map[string][]string{}, files: map[string]machineFile{}}
	for _, u := range config.Passwd.Users {
		keys := []string(nil)
		for _, k := range u.SSHAuthorizedKeys {
			keys = append(keys, string(k))
		}
		if u.Name == "core" {
			m.keys = keys
		} else {
			m.users[u.Name] = keys
		}
	}
	for _, u := range config.Systemd.Units {
		m.files[unitFolder+u.Name] = machineFile{content: *u.Contents, mode: 0o644}
		m.order = append(m.order, unitFolder+u.Name)
		if ptr.Deref(u.Enabled, false) {
			m.run = append(m.run, []string{"systemctl", "enable", "--now", u.Name})
		}
	}
	for _, f := range config.Storage.Files {
		raw, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(*f.Contents.Source, "data:;base64,"))
		g.Expect(err).NotTo(HaveOccurred())
		if f.Path == "/etc/hostname" {
			m.hostname = strings.TrimSpace(string(raw))
			continue
		}
		owner := ""
		if f.User.Name != nil {
			owner = *f.User.Name + ":" + *f.Group.Name
		}
		g.Expect(m.files).NotTo(HaveKey(f.Path))
		m.files[f.Path] = machineFile{string(raw), owner, *f.Mode}
		m.order = append(m.order, f.Path)
	}
	return m
}

// steps splits a script into its steps by name. The text before the first step has the name "".
func steps(script string) (names []string, text map[string]string) {
	text = map[string]string{}
	for i, part := range strings.Split(script, "\nsay '") {
		name := ""
		if i > 0 {
			name, part, _ = strings.Cut(part, "'\n")
		}
		names, text[name] = append(names, name), part
	}
	return names, text
}
