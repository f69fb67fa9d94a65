// SPDX-License-Identifier: Apache-2.0

package cloudinit

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"flag"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/tools/clientcmd"
	kubeletv1 "k8s.io/kubelet/config/v1beta1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/yaml"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1alpha1"
)

var update = flag.Bool("update", false, "write the golden files anew")

func input(t testing.TB) Input {
	t.Helper()
	ca, err := os.ReadFile(filepath.Join("testdata", "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	return Input{
		Spec: &bootstrapv1.CloudInitConfigSpec{}, NodeName: "blue-1", Server: "https://10.0.0.1:6443", CA: ca,
		Token: "abcdef.0123456789abcdef", ClusterDNS: "10.96.0.10", ClusterDomain: "cluster.local",
	}
}

func full(t testing.TB) Input {
	in := input(t)
	in.ProviderID = "aws:///{{ v1.availability_zone }}/{{ v1.instance_id }}"
	in.Spec = &bootstrapv1.CloudInitConfigSpec{
		NodeLabels:    map[string]string{"pool": "blue", "example.com/tier": "", "node.kubernetes.io/instance-type": "large"},
		NodeTaints:    []corev1.Taint{{Key: "gpu", Value: "yes", Effect: corev1.TaintEffectNoExecute}},
		ClusterDNS:    "fd00::a",
		ClusterDomain: "example.org",
		Files: []bootstrapv1.File{
			{Path: "/etc/motd", Content: "{{ ds.meta_data }} {% raw %} {# stays #}\n", Permissions: "0600", Owner: "root:root"},
			{Path: "/home/app/with space", Content: "x", Owner: "app:app"},
			{Path: "/etc/empty"},
		},
		PreKubeletCommands:  []string{"echo 'it''s'", "cat <<EOF\nunclosed", "modprobe br_netfilter\nsysctl -w net.ipv4.ip_forward=1"},
		PostKubeletCommands: []string{`printf '%s\n' "$HOME"`},
		SSHAuthorizedKeys:   []string{"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ operator@example"},
	}
	return in
}

func TestGolden(t *testing.T) {
	for name, in := range map[string]Input{"minimal": input(t), "full": full(t)} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			out, err := Render(in)
			g.Expect(err).NotTo(HaveOccurred())
			file := filepath.Join("testdata", name+".golden")
			if *update {
				g.Expect(os.WriteFile(file, out, 0o644)).To(Succeed())
			}
			want, err := os.ReadFile(file)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(string(out)).To(Equal(string(want)))
			for range 20 { // maps have no order
				again, err := Render(in)
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(bytes.Equal(out, again)).To(BeTrue())
			}
		})
	}
}

// document is user data read back by a parser of its own.
type document struct {
	Hostname string      `json:"hostname"`
	Keys     []string    `json:"ssh_authorized_keys"`
	Files    []writeFile `json:"write_files"`
	RunCmd   [][]string  `json:"runcmd"`
}

func parse(g Gomega, out []byte) (document, map[string]string) {
	g.Expect(strings.HasPrefix(string(out), "## template: jinja\n#cloud-config\n")).To(BeTrue())
	doc := document{}
	g.Expect(yaml.UnmarshalStrict(out, &doc)).To(Succeed())
	contents := map[string]string{}
	for _, f := range doc.Files {
		g.Expect(contents).NotTo(HaveKey(f.Path))
		contents[f.Path] = f.Content
		if f.Path == KubeletDefaultsPath {
			g.Expect(f.Encoding).To(BeEmpty())
			continue
		}
		g.Expect(f.Encoding).To(Equal("b64"), f.Path)
		raw, err := base64.StdEncoding.DecodeString(f.Content)
		g.Expect(err).NotTo(HaveOccurred())
		contents[f.Path] = string(raw)
	}
	return doc, contents
}

func TestRenderJoins(t *testing.T) {
	g := NewWithT(t)
	in := full(t)
	out, err := Render(in)
	g.Expect(err).NotTo(HaveOccurred())
	doc, files := parse(g, out)

	kubeconfig, err := clientcmd.RESTConfigFromKubeConfig([]byte(files[BootstrapKubeconfigPath]))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(kubeconfig.Host).To(Equal(in.Server))
	g.Expect(kubeconfig.BearerToken).To(Equal(in.Token))
	g.Expect(kubeconfig.CAData).To(Equal(in.CA))
	g.Expect(files[CAPath]).To(Equal(string(in.CA)))

	kubelet := kubeletv1.KubeletConfiguration{}
	g.Expect(yaml.UnmarshalStrict([]byte(files[KubeletConfigPath]), &kubelet)).To(Succeed())
	g.Expect(kubelet.ClusterDNS).To(Equal([]string{"fd00::a"}))
	g.Expect(kubelet.ClusterDomain).To(Equal("example.org"))
	g.Expect(*kubelet.Authentication.Anonymous.Enabled).To(BeFalse())
	g.Expect(*kubelet.Authentication.Webhook.Enabled).To(BeTrue())
	g.Expect(kubelet.Authentication.X509.ClientCAFile).To(Equal(CAPath))
	g.Expect(kubelet.Authorization.Mode).To(Equal(kubeletv1.KubeletAuthorizationModeWebhook))
	g.Expect(kubelet.RotateCertificates && kubelet.ServerTLSBootstrap).To(BeTrue())
	g.Expect(kubelet.RegisterWithTaints).To(Equal([]corev1.Taint{
		{Key: "gpu", Value: "yes", Effect: corev1.TaintEffectNoExecute}, clusterv1.NodeUninitializedTaint}))

	g.Expect(files[KubeletDefaultsPath]).To(Equal(`KUBELET_EXTRA_ARGS="--hostname-override=blue-1 ` +
		`--node-labels=example.com/tier=,node.kubernetes.io/instance-type=large,pool=blue ` +
		`--provider-id=aws:///{{ v1.availability_zone }}/{{ v1.instance_id }}"` + "\n"))
	g.Expect(doc.Hostname).To(Equal("blue-1"))
	g.Expect(doc.RunCmd).To(Equal([][]string{{"/bin/sh", ScriptPath}}))
	g.Expect(strings.HasSuffix(files[ScriptPath], "echo success >"+SentinelPath+"\n")).To(BeTrue())
	g.Expect(files["/etc/motd"]).To(Equal(in.Spec.Files[0].Content))
	i := slices.IndexFunc(doc.Files, func(f writeFile) bool { return f.Path == "/home/app/with space" })
	g.Expect(doc.Files[i]).To(Equal(writeFile{Path: "/home/app/with space", Content: "eA==", Encoding: "b64", Owner: "app:app", Permissions: "0644", Defer: true}))
}

func TestRenderRefuses(t *testing.T) {
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
			_, err := Render(in)
			g.Expect(err).To(HaveOccurred())
			g.Expect(err.Error()).NotTo(ContainSubstring("secret@"))
		})
	}
}

func TestValidate(t *testing.T) {
	type spec = bootstrapv1.CloudInitConfigSpec
	file := func(f bootstrapv1.File) spec { return spec{Files: []bootstrapv1.File{f}} }
	labels := func(k, v string) spec { return spec{NodeLabels: map[string]string{k: v}} }
	for name, c := range map[string]struct {
		spec spec
		at   string // "" means valid
	}{
		"empty":                       {spec{}, ""},
		"own label":                   {labels("pool", "blue"), ""},
		"zone label":                  {labels("topology.kubernetes.io/zone", "a"), ""},
		"kubelet's namespace":         {labels("kubelet.kubernetes.io/x", "a"), ""},
		"node namespace":              {labels("node.kubernetes.io/x", "a"), ""},
		"role label":                  {labels("node-role.kubernetes.io/worker", ""), "spec.nodeLabels[node-role.kubernetes.io/worker]"},
		"restriction label":           {labels("node-restriction.kubernetes.io/x", ""), "spec.nodeLabels[node-restriction.kubernetes.io/x]"},
		"restriction label below":     {labels("a.node-restriction.kubernetes.io/x", ""), "spec.nodeLabels[a.node-restriction.kubernetes.io/x]"},
		"k8s.io label":                {labels("foo.k8s.io/x", ""), "spec.nodeLabels[foo.k8s.io/x]"},
		"cluster.x-k8s.io label":      {labels("node.cluster.x-k8s.io/x", ""), ""},
		"label value with a brace":    {labels("a", "{{x}}"), "spec.nodeLabels[a]"},
		"label value with a comma":    {labels("a", "b,c"), "spec.nodeLabels[a]"},
		"taint effect":                {spec{NodeTaints: []corev1.Taint{{Key: "a", Effect: "Sometimes"}}}, "spec.nodeTaints[0].effect"},
		"taint twice":                 {spec{NodeTaints: []corev1.Taint{{Key: "a", Effect: "NoSchedule"}, {Key: "a", Value: "b", Effect: "NoSchedule"}}}, "spec.nodeTaints[1]"},
		"CAPI's taint by the user":    {spec{NodeTaints: []corev1.Taint{clusterv1.NodeUninitializedTaint}}, ""},
		"DNS name":                    {spec{ClusterDNS: "dns"}, "spec.clusterDNS"},
		"DNS address with a zone":     {spec{ClusterDNS: "fe80::1%eth0"}, "spec.clusterDNS"},
		"domain":                      {spec{ClusterDomain: "a..b"}, "spec.clusterDomain"},
		"file":                        {file(bootstrapv1.File{Path: "/a", Content: "{{ x }}"}), ""},
		"file with relative path":     {file(bootstrapv1.File{Path: "a"}), "spec.files[0].path"},
		"file with ..":                {file(bootstrapv1.File{Path: "/a/../etc/kubernetes/bootstrap-kubelet.conf"}), "spec.files[0].path"},
		"file with jinja in its path": {file(bootstrapv1.File{Path: "/{{ x }}"}), "spec.files[0].path"},
		"file with a line break":      {file(bootstrapv1.File{Path: "/a\nb"}), "spec.files[0].path"},
		"file of Drover's":            {file(bootstrapv1.File{Path: KubeletConfigPath}), "spec.files[0].path"},
		"sentinel":                    {file(bootstrapv1.File{Path: SentinelPath}), "spec.files[0].path"},
		"file with zero byte":         {file(bootstrapv1.File{Path: "/a", Content: "a\x00b"}), "spec.files[0].content"},
		"file with invalid UTF-8":     {file(bootstrapv1.File{Path: "/a", Content: "\xff"}), "spec.files[0].content"},
		"file with odd owner":         {file(bootstrapv1.File{Path: "/a", Owner: "{{x}}"}), "spec.files[0].owner"},
		"file with odd permissions":   {file(bootstrapv1.File{Path: "/a", Permissions: "rwx"}), "spec.files[0].permissions"},
		"file twice":                  {spec{Files: []bootstrapv1.File{{Path: "/a"}, {Path: "/a"}}}, "spec.files[1].path"},
		"command":                     {spec{PreKubeletCommands: []string{"echo '{{ x }}'"}}, ""},
		"empty command":               {spec{PreKubeletCommands: []string{" \n"}}, "spec.preKubeletCommands[0]"},
		"command with a zero byte":    {spec{PostKubeletCommands: []string{"a\x00"}}, "spec.postKubeletCommands[0]"},
		"two keys in one":             {spec{SSHAuthorizedKeys: []string{"ssh-rsa a\nssh-rsa b"}}, "spec.sshAuthorizedKeys[0]"},
		"key with jinja":              {spec{SSHAuthorizedKeys: []string{"ssh-rsa {{ x }}"}}, "spec.sshAuthorizedKeys[0]"},
		"too much":                    {file(bootstrapv1.File{Path: "/a", Content: strings.Repeat("a", MaxBytes)}), "spec"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			errs := Validate(&c.spec, field.NewPath("spec"))
			if c.at == "" {
				g.Expect(errs).To(BeEmpty())
				return
			}
			g.Expect(errs).To(HaveLen(1), "%v", errs)
			g.Expect(errs[0].Field).To(Equal(c.at))
		})
	}
}

func TestValidateHidesContents(t *testing.T) {
	g := NewWithT(t)
	spec := &bootstrapv1.CloudInitConfigSpec{
		Files:               []bootstrapv1.File{{Path: "/a", Content: "marked-secret\x00"}},
		PreKubeletCommands:  []string{"marked-secret\xff"},
		PostKubeletCommands: []string{"marked-secret\x00"},
		SSHAuthorizedKeys:   []string{"marked-secret\n"},
	}
	errs := Validate(spec, field.NewPath("spec"))
	g.Expect(errs).To(HaveLen(4))
	g.Expect(errs.ToAggregate().Error()).NotTo(ContainSubstring("marked-secret"))
}

func TestNodeName(t *testing.T) {
	g := NewWithT(t)
	long := strings.Repeat("a", 60)
	for name, want := range map[string]string{"blue-1": "blue-1", "a.b": "a.b", strings.Repeat("a", 63): strings.Repeat("a", 63)} {
		g.Expect(NodeName(name)).To(Equal(want))
	}
	seen := map[string]string{}
	for _, name := range []string{long + "-bcde-1", long + "-bcde-2", "UPPER", "upper_", "ünïcödé", "", "---", "a/b", strings.Repeat("x.", 4000)} {
		got := NodeName(name)
		g.Expect(validation.IsDNS1123Subdomain(got)).To(BeEmpty(), "%q", got)
		g.Expect(len(got)).To(BeNumerically("<=", 63))
		g.Expect(NodeName(got)).To(Equal(got))
		g.Expect(seen).NotTo(HaveKey(got))
		seen[got] = name
	}
}

// unquote is the reverse of quote, written for itself: it reads one word of a POSIX shell made of single-quoted parts
// and escaped single quotes, and returns what follows it.
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

// commands reads the user's commands back from the script, as a shell would take it apart.
func commands(g Gomega, script string) (before, after []string) {
	const run, kubelet = "/bin/sh -ec ", "systemctl enable --now kubelet\n"
	_, s, found := strings.Cut(script, "\nfi\n") // the first of two blocks
	g.Expect(found).To(BeTrue())
	_, s, found = strings.Cut(s, "\nfi\n")
	g.Expect(found).To(BeTrue())
	list := &before
	for {
		if strings.HasPrefix(s, kubelet) {
			g.Expect(list).To(BeIdenticalTo(&before))
			list, s = &after, strings.TrimPrefix(s, kubelet)
			continue
		}
		if !strings.HasPrefix(s, run) {
			break
		}
		word, rest, err := unquote(strings.TrimPrefix(s, run))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(strings.HasPrefix(rest, "\n")).To(BeTrue(), "%q", rest)
		*list, s = append(*list, word), rest[1:]
	}
	g.Expect(s).To(Equal("mkdir -p /run/cluster-api\necho success >" + SentinelPath + "\n"))
	return before, after
}

// FuzzRender finds whatever was put in as data, in its place and nowhere else.
func FuzzRender(f *testing.F) {
	f.Add("/etc/motd", "hello", "root:root", "0644", "echo hi", "reboot", "ssh-rsa AAAA", "pool", "blue", "blue-1", "gpu")
	f.Add("/a: b", "{{ v1.x }}", "", "", "'; rm -rf /; '", "cat <<EOF", "ssh-rsa \"{# \"", "a.b/c", "", "Ünï", "x/y")
	f.Add("/{% x %}", "#cloud-config\nruncmd: [reboot]\n", "a:b", "0777", "echo \\'", "exit 0\n\nfi\n", "- a: &x *x", "node-role.kubernetes.io/a", "", "a.b", "")
	f.Fuzz(func(t *testing.T, path, content, owner, permissions, before, after, key, label, value, machine, taint string) {
		g := NewWithT(t)
		in := input(t)
		in.NodeName = NodeName(machine)
		in.ProviderID = "simulated:///{{ v1.availability_zone }}/{{v1.instance_id}}"
		in.Spec = &bootstrapv1.CloudInitConfigSpec{
			Files:              []bootstrapv1.File{{Path: path, Content: content, Owner: owner, Permissions: permissions}},
			PreKubeletCommands: []string{before, "true"}, PostKubeletCommands: []string{after},
			SSHAuthorizedKeys: []string{key}, NodeLabels: map[string]string{label: value},
			NodeTaints: []corev1.Taint{{Key: taint, Effect: corev1.TaintEffectNoSchedule}},
		}
		valid := len(Validate(in.Spec, field.NewPath("spec"))) == 0
		out, err := Render(in)
		g.Expect(err == nil).To(Equal(valid), "%v", err)
		if !valid {
			return
		}
		doc, files := parse(g, out)
		g.Expect(doc.Hostname).To(Equal(in.NodeName))
		g.Expect(doc.Keys).To(Equal([]string{key}))
		g.Expect(doc.RunCmd).To(Equal([][]string{{"/bin/sh", ScriptPath}}))
		g.Expect(doc.Files).To(HaveLen(6))
		g.Expect(doc.Files[5].Path).To(Equal(path))
		g.Expect(files[path]).To(Equal(content))

		pre, post := commands(g, files[ScriptPath])
		g.Expect(pre).To(Equal([]string{before, "true"}))
		g.Expect(post).To(Equal([]string{after}))

		g.Expect(files[KubeletDefaultsPath]).To(Equal(fmt.Sprintf("KUBELET_EXTRA_ARGS=\"--hostname-override=%s --node-labels=%s=%s --provider-id=%s\"\n",
			in.NodeName, label, value, in.ProviderID)))
		kubelet := kubeletv1.KubeletConfiguration{}
		g.Expect(yaml.UnmarshalStrict([]byte(files[KubeletConfigPath]), &kubelet)).To(Succeed())
		g.Expect(kubelet.RegisterWithTaints[0].Key).To(Equal(taint))

		// Jinja sees the two variables and nothing else: no statement, no comment, no other expression.
		rest := instanceData.ReplaceAllString(string(out), "")
		for _, delimiter := range []string{"{{", "{%", "{#"} {
			g.Expect(rest).NotTo(ContainSubstring(delimiter))
		}
	})
}

// TestWriteCA makes testdata/ca.crt anew with -update: a certificate that never expires in a test's life.
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
