// SPDX-License-Identifier: Apache-2.0

package render

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
)

func TestValidate(t *testing.T) {
	type spec = bootstrapv1.DroverConfigSpec
	file := func(f bootstrapv1.File) spec { return spec{Files: []bootstrapv1.File{f}} }
	labels := func(k, v string) spec { return spec{NodeLabels: map[string]string{k: v}} }
	host := func(h bootstrapv1.Host) spec { return spec{Host: h} }
	through := func(raw string) spec {
		return spec{Kubelet: bootstrapv1.Kubelet{Configuration: &apiextensionsv1.JSON{Raw: []byte(raw)}}}
	}
	binaries := func(change func(*bootstrapv1.BinariesInstall)) bootstrapv1.Install {
		b := binariesOf("")
		change(&b)
		return bootstrapv1.Install{Mode: bootstrapv1.InstallBinaries, Binaries: b}
	}
	ignoring := func(method bootstrapv1.JoinMethod, checks ...string) spec {
		return spec{Join: bootstrapv1.Join{Method: method, IgnorePreflightErrors: checks}}
	}
	packages := bootstrapv1.Install{Mode: bootstrapv1.InstallPackages}
	from := bootstrapv1.FileSource{Secret: bootstrapv1.SecretKey{Name: "a", Key: "b"}}
	for name, c := range map[string]struct {
		spec spec
		at   string // "" means valid
	}{
		"empty":                    {spec{}, ""},
		"own label":                {labels("pool", "blue"), ""},
		"zone label":               {labels("topology.kubernetes.io/zone", "a"), ""},
		"kubelet's namespace":      {labels("kubelet.kubernetes.io/x", "a"), ""},
		"node namespace":           {labels("node.kubernetes.io/x", "a"), ""},
		"role label":               {labels("node-role.kubernetes.io/worker", ""), "spec.nodeLabels[node-role.kubernetes.io/worker]"},
		"restriction label":        {labels("node-restriction.kubernetes.io/x", ""), "spec.nodeLabels[node-restriction.kubernetes.io/x]"},
		"restriction label below":  {labels("a.node-restriction.kubernetes.io/x", ""), "spec.nodeLabels[a.node-restriction.kubernetes.io/x]"},
		"k8s.io label":             {labels("foo.k8s.io/x", ""), "spec.nodeLabels[foo.k8s.io/x]"},
		"cluster.x-k8s.io label":   {labels("node.cluster.x-k8s.io/x", ""), ""},
		"label value with a brace": {labels("a", "{{x}}"), "spec.nodeLabels[a]"},
		"label value with a comma": {labels("a", "b,c"), "spec.nodeLabels[a]"},
		"taint effect":             {spec{NodeTaints: []corev1.Taint{{Key: "a", Effect: "Sometimes"}}}, "spec.nodeTaints[0].effect"},
		"taint twice": {spec{NodeTaints: []corev1.Taint{{Key: "a", Effect: "NoSchedule"},
			{Key: "a", Value: "b", Effect: "NoSchedule"}}}, "spec.nodeTaints[1]"},
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
		"file below a user's file":    {spec{Files: []bootstrapv1.File{{Path: "/a/b/c"}, {Path: "/a"}}}, "spec.files[0].path"},
		"file in a file's place":      {file(bootstrapv1.File{Path: KubeletConfigPath + "/x"}), "spec.files[0].path"},
		"file in a folder's place":    {file(bootstrapv1.File{Path: "/etc/kubernetes"}), "spec.files[0].path"},
		"file of the installation": {spec{OperatingSystem: "rhel-9", Install: packages,
			Files: []bootstrapv1.File{{Path: "/etc/containerd/config.toml"}}}, "spec.files[0].path"},
		"file of the image":    {file(bootstrapv1.File{Path: "/etc/containerd/config.toml"}), ""},
		"file from two places": {file(bootstrapv1.File{Path: "/a", Content: "a", ContentFrom: from}), "spec.files[0].contentFrom"},
		"file from a Secret":   {file(bootstrapv1.File{Path: "/a", ContentFrom: from}), ""},
		"unknown system":       {spec{OperatingSystem: "beos"}, "spec.operatingSystem"},
		"unknown release": {spec{OperatingSystem: "ubuntu-26.04", Format: bootstrapv1.FormatIgnition, Install: packages},
			"spec.operatingSystem"},
		"unknown, with a file": {spec{OperatingSystem: "beos", Install: packages, Files: []bootstrapv1.File{{Path: "a"}}},
			"spec.files[0].path spec.operatingSystem"},
		"unknown mode":        {spec{OperatingSystem: "rhel-9", Install: bootstrapv1.Install{Mode: "Magic"}}, "spec.install.mode"},
		"packages, no system": {spec{Install: packages}, "spec.operatingSystem"},
		"packages on Flatcar": {spec{OperatingSystem: "flatcar", Install: packages}, "spec.install.mode"},
		"packages, prebuilt": {spec{Install: bootstrapv1.Install{Packages: bootstrapv1.PackagesInstall{ContainerdVersion: "2.2"}}},
			"spec.install.packages"},
		"binaries without": {spec{OperatingSystem: "flatcar", Install: bootstrapv1.Install{Mode: bootstrapv1.InstallBinaries}},
			"spec.install.binaries"},
		"binaries": {spec{OperatingSystem: "flatcar", Install: binaries(func(*bootstrapv1.BinariesInstall) {})}, ""},
		"binaries, short sum": {spec{OperatingSystem: "flatcar",
			Install: binaries(func(b *bootstrapv1.BinariesInstall) { b.Runc.SHA256 = "12" })}, "spec.install.binaries.runc.sha256"},
		"binaries, odd version": {spec{OperatingSystem: "flatcar",
			Install: binaries(func(b *bootstrapv1.BinariesInstall) { b.Runc.Version = "1.0.0/.." })}, "spec.install.binaries.runc.version"},
		"binaries, odd mirror": {spec{OperatingSystem: "flatcar",
			Install: binaries(func(b *bootstrapv1.BinariesInstall) { b.Mirror = "https://a/'" })}, "spec.install.binaries.mirror"},
		"binaries, odd machine": {spec{OperatingSystem: "flatcar",
			Install: binaries(func(b *bootstrapv1.BinariesInstall) { b.Architecture = "vax" })}, "spec.install.binaries.architecture"},
		"repository without TLS": {spec{OperatingSystem: "rhel-9",
			Install: bootstrapv1.Install{Mode: bootstrapv1.InstallPackages,
				Packages: bootstrapv1.PackagesInstall{KubernetesRepository: "http://a"}}}, "spec.install.packages.kubernetesRepository"},
		"Flatcar in cloud-config":   {spec{OperatingSystem: "flatcar", Format: bootstrapv1.FormatCloudConfig}, "spec.format"},
		"Ubuntu in Ignition":        {spec{OperatingSystem: "ubuntu-24.04", Format: bootstrapv1.FormatIgnition}, "spec.format"},
		"any system in Ignition":    {spec{Format: bootstrapv1.FormatIgnition}, ""},
		"CA without a system":       {host(bootstrapv1.Host{CABundle: "x"}), "spec.host.caBundle spec.operatingSystem"},
		"upgrades without a system": {host(bootstrapv1.Host{UnattendedUpgrades: "On"}), "spec.operatingSystem"},
		"subscription elsewhere":    {host(bootstrapv1.Host{Subscription: bootstrapv1.SecretName{Name: "a"}}), "spec.host.subscription"},
		"proxy with a blank":        {host(bootstrapv1.Host{Proxy: bootstrapv1.Proxy{HTTPProxy: "http://a b"}}), "spec.host.proxy.httpProxy"},
		"noProxy without":           {host(bootstrapv1.Host{Proxy: bootstrapv1.Proxy{NoProxy: []string{"a"}}}), "spec.host.proxy.noProxy"},
		"time server with a break":  {host(bootstrapv1.Host{NTPServers: []string{"a\nb"}}), "spec.host.ntpServers[0]"},
		"root as a user":            {host(bootstrapv1.Host{Users: []bootstrapv1.User{{Name: "root"}}}), "spec.host.users[0].name"},
		"user with a blank":         {host(bootstrapv1.Host{Users: []bootstrapv1.User{{Name: "a b"}}}), "spec.host.users[0].name"},
		"sysctl with a break":       {host(bootstrapv1.Host{Sysctls: map[string]string{"a": "1\n2"}}), "spec.host.sysctls[a]"},
		"module with a path":        {host(bootstrapv1.Host{KernelModules: []string{"../a"}}), "spec.host.kernelModules[0]"},
		"pause image, prebuilt":     {spec{Containerd: bootstrapv1.Containerd{PauseImage: "a"}}, "spec.containerd.pauseImage"},
		"registry with a path": {spec{Containerd: bootstrapv1.Containerd{Registries: []bootstrapv1.Registry{{Host: "../a",
			Mirrors: []bootstrapv1.Mirror{{URL: "https://a"}}}}}}, "spec.containerd.registries[0].host"},
		"mirror with a quote": {spec{Containerd: bootstrapv1.Containerd{Registries: []bootstrapv1.Registry{{Host: "a",
			Mirrors: []bootstrapv1.Mirror{{URL: "https://a\""}}}}}}, "spec.containerd.registries[0].mirrors[0].url"},
		"feature gate": {spec{Kubelet: bootstrapv1.Kubelet{FeatureGates: []bootstrapv1.FeatureGate{{Name: "NodeSwap",
			State: bootstrapv1.FeatureEnabled}}}}, ""},
		"feature gate's odd name": {spec{Kubelet: bootstrapv1.Kubelet{FeatureGates: []bootstrapv1.FeatureGate{{Name: "a b",
			State: bootstrapv1.FeatureEnabled}}}}, "spec.kubelet.featureGates[0].name"},
		"feature gate, no state": {spec{Kubelet: bootstrapv1.Kubelet{FeatureGates: []bootstrapv1.FeatureGate{{Name: "A"}}}},
			"spec.kubelet.featureGates[0].state"},
		"feature gate's odd state": {spec{Kubelet: bootstrapv1.Kubelet{FeatureGates: []bootstrapv1.FeatureGate{{Name: "A", State: "true"}}}},
			"spec.kubelet.featureGates[0].state"},
		"feature gate twice": {spec{Kubelet: bootstrapv1.Kubelet{FeatureGates: []bootstrapv1.FeatureGate{{Name: "A", State: "Enabled"},
			{Name: "A", State: "Disabled"}}}}, "spec.kubelet.featureGates[1].name"},
		"amount": {spec{Kubelet: bootstrapv1.Kubelet{KubeReserved: map[string]string{"cpu": "much"}}},
			"spec.kubelet.kubeReserved[cpu]"},
		"resource": {spec{Kubelet: bootstrapv1.Kubelet{KubeReserved: map[string]string{"gpu": "1"}}},
			"spec.kubelet.kubeReserved"},
		"soft eviction, no grace": {spec{Kubelet: bootstrapv1.Kubelet{EvictionSoft: map[string]string{"memory.available": "1Gi"}}},
			"spec.kubelet.evictionSoftGracePeriod[memory.available]"},
		"passed through":             {through(`{"serializeImagePulls":false}`), ""},
		"passed through, Drover's":   {through(`{"authentication":{}}`), "spec.kubelet.configuration.authentication"},
		"passed through, a field's":  {through(`{"maxPods":1}`), "spec.kubelet.configuration.maxPods"},
		"passed through, other case": {through(`{"Authentication":{"anonymous":{"enabled":true}}}`), "spec.kubelet.configuration"},
		"passed through, unknown":    {through(`{"nothing":1}`), "spec.kubelet.configuration"},
		"passed through, wrong type": {through(`{"podPidsLimit":"x"}`), "spec.kubelet.configuration"},
		"passed through, twice":      {through(`{"podPidsLimit":1,"podPidsLimit":2}`), "spec.kubelet.configuration"},
		"passed through, a list":     {through(`[]`), "spec.kubelet.configuration"},
		"unknown method":             {ignoring("Magic"), "spec.join.method"},
		"kubeadm": {ignoring(bootstrapv1.JoinKubeadm, "SystemVerification",
			"FileAvailable--etc-kubernetes-kubelet.conf"), ""},
		"kubeadm's check, alone":   {ignoring(bootstrapv1.JoinKubelet, "NumCPU"), "spec.join.ignorePreflightErrors"},
		"kubeadm's check, odd":     {ignoring(bootstrapv1.JoinKubeadm, "a{{ x }}"), "spec.join.ignorePreflightErrors[0]"},
		"kubeadm's check, twice":   {ignoring(bootstrapv1.JoinKubeadm, "Swap", "swap"), "spec.join.ignorePreflightErrors[1]"},
		"kubeadm's check, all and": {ignoring(bootstrapv1.JoinKubeadm, "All", "Swap"), "spec.join.ignorePreflightErrors[0]"},
		"kubeadm's file, alone": {spec{OperatingSystem: "flatcar",
			Install: binaries(func(b *bootstrapv1.BinariesInstall) { b.Kubeadm = b.Kubelet })}, "spec.install.binaries.kubeadm"},
		"kubeadm without its file": {spec{OperatingSystem: "flatcar", Join: bootstrapv1.Join{Method: bootstrapv1.JoinKubeadm},
			Install: binaries(func(*bootstrapv1.BinariesInstall) {})}, "spec.install.binaries.kubeadm.sha256"},
		"file of kubeadm's": {spec{Join: bootstrapv1.Join{Method: bootstrapv1.JoinKubeadm}, Files: []bootstrapv1.File{{Path: CAPath}}},
			"spec.files[0].path"},
		"too much": {file(bootstrapv1.File{Path: "/a", Content: strings.Repeat("a", MaxBytes)}), "spec"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			errs := Validate(&c.spec, field.NewPath("spec"))
			if c.at == "" {
				g.Expect(errs).To(BeEmpty())
				return
			}
			var fields []string
			for _, e := range errs {
				fields = append(fields, e.Field)
			}
			g.Expect(strings.Join(fields, " ")).To(Equal(c.at), "%v", errs)
		})
	}
}

// TestUnknownSystem: a webhook accepts a system that only another release knows, and the user data
// are refused with the names of all known systems.
func TestUnknownSystem(t *testing.T) {
	for _, spec := range []bootstrapv1.DroverConfigSpec{
		{OperatingSystem: "ubuntu-26.04", Files: []bootstrapv1.File{{Path: "/etc/motd"}}},
		{OperatingSystem: "beos", Install: bootstrapv1.Install{Mode: bootstrapv1.InstallPackages},
			Files: []bootstrapv1.File{{Path: "/etc/motd"}}},
		{OperatingSystem: "fedora-coreos", Format: bootstrapv1.FormatIgnition, Host: bootstrapv1.Host{UnattendedUpgrades: "Off"}},
	} {
		g := NewWithT(t)
		g.Expect(ValidateExceptSystem(&spec, field.NewPath("spec"))).To(BeEmpty())
		in := input(t)
		in.Spec = &spec
		_, err := UserData(in)
		g.Expect(err).To(MatchError(ContainSubstring("spec.operatingSystem")))
		for _, row := range Matrix() {
			g.Expect(err).To(MatchError(ContainSubstring(`"` + string(row.System) + `"`)))
		}
	}
}

// TestNamedInRefusal: a refusal names the wrong field or the system, and shows no value of
// KubeletConfiguration.
func TestNamedInRefusal(t *testing.T) {
	t.Parallel()
	kubelet := func(raw string) bootstrapv1.DroverConfigSpec {
		return bootstrapv1.DroverConfigSpec{Kubelet: bootstrapv1.Kubelet{Configuration: &apiextensionsv1.JSON{Raw: []byte(raw)}}}
	}
	for name, c := range map[string]struct {
		spec bootstrapv1.DroverConfigSpec
		want string
	}{
		"unknown field": {kubelet(`{"maxPodz":7777}`), `unknown field "maxPodz"`},
		"field twice":   {kubelet(`{"podPidsLimit":7777,"podPidsLimit":7777}`), `duplicate field "podPidsLimit"`},
		"wrong type":    {kubelet(`{"podPidsLimit":1,"syncFrequency":"7777"}`), `"syncFrequency" has another type`},
		"mode of another system": {bootstrapv1.DroverConfigSpec{
			OperatingSystem: "flatcar", Install: bootstrapv1.Install{Mode: bootstrapv1.InstallPackages},
		}, `supported values: "Prebuilt", "Binaries" for flatcar`},
	} {
		errs := Validate(&c.spec, field.NewPath("spec"))
		if len(errs) != 1 || !strings.Contains(errs[0].Error(), c.want) || strings.Contains(errs[0].Error(), "7777") {
			t.Errorf("%s: %v, want one error with %s", name, errs, c.want)
		}
	}
}

// TestRefusedKubeletFields: the API describes which fields of KubeletConfiguration can't be passed
// through, and these are refused.
func TestRefusedKubeletFields(t *testing.T) {
	g := NewWithT(t)
	source, err := os.ReadFile("../../api/bootstrap/v1beta1/node_types.go")
	g.Expect(err).NotTo(HaveOccurred())
	_, comment, ok := strings.Cut(string(source), "// configuration is an escape hatch")
	g.Expect(ok).To(BeTrue())
	comment, _, ok = strings.Cut(comment, "Default:")
	g.Expect(ok).To(BeTrue())
	for name := range kubeletFields() {
		g.Expect(comment).To(MatchRegexp(`\b` + name + `\b`))
	}
	list := regexp.MustCompile(`\b[a-z]+[A-Z]\w*|apiVersion|authentication|authorization|kind`).FindAllString(comment, -1)
	list = slices.DeleteFunc(list, func(name string) bool { return name == "nodeTaints" })
	g.Expect(list).To(ConsistOf(slices.Collect(maps.Keys(kubeletFields()))))
}

func TestValidateHidesContents(t *testing.T) {
	g := NewWithT(t)
	spec := &bootstrapv1.DroverConfigSpec{
		Files:               []bootstrapv1.File{{Path: "/a", Content: "marked-secret\x00"}},
		PreKubeletCommands:  []string{"marked-secret\xff"},
		PostKubeletCommands: []string{"marked-secret\x00"},
		SSHAuthorizedKeys:   []string{"marked-secret\n"},
		Host:                bootstrapv1.Host{Proxy: bootstrapv1.Proxy{HTTPProxy: "http://user:marked-secret@a b"}},
		Kubelet:             bootstrapv1.Kubelet{Configuration: &apiextensionsv1.JSON{Raw: []byte(`{"podPidsLimit":"marked-secret"}`)}},
	}
	errs := Validate(spec, field.NewPath("spec"))
	g.Expect(errs).To(HaveLen(6))
	g.Expect(errs.ToAggregate().Error()).NotTo(ContainSubstring("marked-secret"))
}
