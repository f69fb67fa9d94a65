// SPDX-License-Identifier: Apache-2.0

package render

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/version"
	logsv1 "k8s.io/component-base/logs/api/v1"
	kubeletv1 "k8s.io/kubelet/config/v1beta1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
)

const (
	plainResolvConf   = "/etc/resolv.conf"
	systemdResolvConf = "/run/systemd/resolve/resolv.conf"
	// kubeadmFlagsPath is read by kubeadm's unit and Drover's. Only the script writes it.
	kubeadmFlagsPath = "/var/lib/kubelet/kubeadm-flags.env"
	runtimeEndpoint  = "unix:///run/containerd/containerd.sock"
	cgroupDriver     = "systemd"
)

// kubeletConfig returns the KubeletConfiguration of a node that joins without kubeadm: Drover's
// settings, the fields of the spec, and the fields passed through. Validate keeps them disjoint.
func kubeletConfig(in Input) ([]byte, error) {
	yes, no, resolvConf := true, false, plainResolvConf
	config := asked(in)
	config.TypeMeta = metav1.TypeMeta{APIVersion: kubeletv1.SchemeGroupVersion.String(), Kind: "KubeletConfiguration"}
	config.Authentication = kubeletv1.KubeletAuthentication{
		X509:      kubeletv1.KubeletX509Authentication{ClientCAFile: in.clientCAPath()},
		Webhook:   kubeletv1.KubeletWebhookAuthentication{Enabled: &yes},
		Anonymous: kubeletv1.KubeletAnonymousAuthentication{Enabled: &no},
	}
	config.Authorization = kubeletv1.KubeletAuthorization{Mode: kubeletv1.KubeletAuthorizationModeWebhook}
	config.CgroupDriver = cgroupDriver
	config.ClusterDomain = cmp.Or(in.Spec.ClusterDomain, in.ClusterDomain, "cluster.local")
	config.ClusterDNS = []string{cmp.Or(in.Spec.ClusterDNS, in.ClusterDNS, "10.96.0.10")}
	config.ContainerRuntimeEndpoint = runtimeEndpoint
	config.ResolverConfig = &resolvConf
	config.RotateCertificates, config.ServerTLSBootstrap = true, true
	config.RegisterWithTaints = taints(in.Spec)
	return writeKubeletConfig(config, in.Spec.Kubelet.Configuration)
}

// clientCAPath returns the file with the authority of the kubelet's clients.
func (in Input) clientCAPath() string {
	if len(in.ClientCA) == 0 || bytes.Equal(in.ClientCA, in.CA) {
		return CAPath
	}
	return ClientCAPath
}

// asked returns the kubelet settings in the spec's fields.
func asked(in Input) kubeletv1.KubeletConfiguration {
	k, no := in.Spec.Kubelet, false
	config := kubeletv1.KubeletConfiguration{
		FeatureGates:            featureGates(k.FeatureGates),
		MaxPods:                 k.MaxPods,
		SystemReserved:          k.SystemReserved,
		KubeReserved:            k.KubeReserved,
		EvictionHard:            k.EvictionHard,
		EvictionSoft:            k.EvictionSoft,
		EvictionSoftGracePeriod: k.EvictionSoftGracePeriod,
		ContainerLogMaxSize:     k.ContainerLogMaxSize,
	}
	if k.ContainerLogMaxFiles != 0 {
		config.ContainerLogMaxFiles = &k.ContainerLogMaxFiles
	}
	// The field exists since 1.31. Older kubelets do not check the cgroup version.
	if v, err := in.version(); err == nil && v != nil && systemOf(in.Spec).cgroupV1 && v.AtLeast(version.MustParseGeneric("1.31.0")) {
		config.FailCgroupV1 = &no
	}
	return config
}

func featureGates(gates []bootstrapv1.FeatureGate) map[string]bool {
	out := make(map[string]bool, len(gates))
	for _, gate := range gates {
		out[gate.Name] = gate.State == bootstrapv1.FeatureEnabled
	}
	return out
}

// writeKubeletConfig omits fields that nobody set, but that the Go types would write. User data
// have little room, and a patch must not unset other fields. Fields passed through stay as the user
// wrote them.
func writeKubeletConfig(config kubeletv1.KubeletConfiguration, passed *apiextensionsv1.JSON) ([]byte, error) {
	raw, err := json.Marshal(config)
	fields := map[string]any{}
	if err == nil {
		err = kjson.UnmarshalCaseSensitivePreserveInts(raw, &fields)
	}
	if reflect.DeepEqual(config.Logging, logsv1.LoggingConfiguration{}) {
		delete(fields, "logging")
	}
	if config.ContainerRuntimeEndpoint == "" {
		delete(fields, "containerRuntimeEndpoint")
	}
	dropUnset(fields)
	if err == nil && passed != nil {
		err = kjson.UnmarshalCaseSensitivePreserveInts(passed.Raw, &fields) // Validate has parsed it
	}
	if err != nil {
		return nil, errors.New("writing the KubeletConfiguration failed")
	}
	if len(fields) == 0 {
		return nil, nil
	}
	out, err := yaml.Marshal(fields)
	if err != nil {
		return nil, errors.New("writing the KubeletConfiguration failed")
	}
	return out, nil
}

// dropUnset removes zero durations, which a kubelet replaces by its defaults, and empty objects.
func dropUnset(fields map[string]any) {
	for name, value := range fields {
		inner, ok := value.(map[string]any)
		if ok {
			dropUnset(inner)
		}
		if value == "0s" || ok && len(inner) == 0 {
			delete(fields, name)
		}
	}
}

// kubeletFields returns the fields of KubeletConfiguration that a user may not pass through, mapped
// to the field to use instead, or to "" if Drover sets the field: how the kubelet joins, whom it
// trusts, and which runtime it uses.
func kubeletFields() map[string]string {
	return map[string]string{
		"apiVersion": "", "kind": "", "authentication": "", "authorization": "", "cgroupDriver": "",
		"containerRuntimeEndpoint": "", "imageServiceEndpoint": "", "resolvConf": "", "rotateCertificates": "", "serverTLSBootstrap": "",
		"providerID": "", "registerNode": "", "tlsCertFile": "", "tlsPrivateKeyFile": "", "readOnlyPort": "", "staticPodURL": "",
		"clusterDNS": "clusterDNS", "clusterDomain": "clusterDomain", "registerWithTaints": "nodeTaints",
		"maxPods": "kubelet.maxPods", "featureGates": "kubelet.featureGates",
		"systemReserved": "kubelet.systemReserved", "kubeReserved": "kubelet.kubeReserved",
		"evictionHard": "kubelet.evictionHard", "evictionSoft": "kubelet.evictionSoft",
		"evictionSoftGracePeriod": "kubelet.evictionSoftGracePeriod",
		"containerLogMaxSize":     "kubelet.containerLogMaxSize", "containerLogMaxFiles": "kubelet.containerLogMaxFiles",
	}
}

// passedThrough parses the user's additional fields strictly, and returns their names. Errors name
// fields, and show no values.
func passedThrough(raw []byte) ([]string, error) {
	fields := map[string]json.RawMessage{}
	if err := json.Unmarshal(raw, &fields); err != nil || !utf8.Valid(raw) {
		return nil, errors.New("must be an object, in UTF-8")
	}
	names := slices.Sorted(maps.Keys(fields))
	const only = "must hold fields of KubeletConfiguration (kubelet.config.k8s.io/v1beta1) only, each once and of its type"
	strict, err := kjson.UnmarshalStrict(raw, &kubeletv1.KubeletConfiguration{}) // is case-sensitive
	if len(strict) > 0 {
		return nil, fmt.Errorf("%s: %s", only, shorten(strict[0].Error()))
	}
	if err != nil { // its text may have the value
		wrong := slices.IndexFunc(names, func(name string) bool {
			one, err := json.Marshal(map[string]json.RawMessage{name: fields[name]})
			return err != nil || json.Unmarshal(one, &kubeletv1.KubeletConfiguration{}) != nil
		})
		if wrong < 0 {
			return nil, errors.New(only)
		}
		return nil, fmt.Errorf("%s: %q has another type", only, shorten(names[wrong]))
	}
	return names, nil
}

// taints returns the spec's taints and Cluster API's own, which keeps Pods off until Cluster API
// has set its labels on the Node.
func taints(spec *bootstrapv1.DroverConfigSpec) []corev1.Taint {
	out := slices.Clone(spec.NodeTaints)
	if !slices.ContainsFunc(out, func(t corev1.Taint) bool { return t.MatchTaint(&clusterv1.NodeUninitializedTaint) }) {
		out = append(out, clusterv1.NodeUninitializedTaint)
	}
	return out
}

// kubeletFlags returns the settings that need a flag, by flag name.
func kubeletFlags(in Input) map[string]string {
	flags := map[string]string{}
	if len(in.Spec.NodeLabels) > 0 {
		var labels []string
		for k, v := range in.Spec.NodeLabels {
			labels = append(labels, k+"="+v)
		}
		slices.Sort(labels)
		flags["node-labels"] = strings.Join(labels, ",")
	}
	// Ignition has no instance data. Its platforms name them differently, if they have an agent at
	// all. The Node then gets its provider ID from Drover's controller, as on every machine whose
	// kubelet does not know it.
	if id := in.ProviderID; id != "" && (FormatOf(in.Spec) == bootstrapv1.FormatCloudConfig || !strings.Contains(id, "{{")) {
		flags["provider-id"] = id
	}
	switch in.Spec.Kubelet.NodeIPFamily { // an unspecified address selects the default route's address of that family
	case bootstrapv1.NodeIPv4:
		flags["node-ip"] = "0.0.0.0"
	case bootstrapv1.NodeIPv6:
		flags["node-ip"] = "::"
	}
	return flags
}

// kubeletDefaults returns an environment file for systemd. Nothing in it needs escaping in double
// quotes, because labels, node names and provider IDs are validated.
func kubeletDefaults(in Input) string {
	args := []string{"--hostname-override=" + in.NodeName}
	flags := kubeletFlags(in)
	for _, name := range slices.Sorted(maps.Keys(flags)) {
		args = append(args, "--"+name+"="+flags[name])
	}
	return `KUBELET_EXTRA_ARGS="` + strings.Join(args, " ") + "\"\n"
}

// startKubelet makes the kubelet join without kubeadm.
func (n *node) startKubelet(in Input) {
	n.do("Configuring the kubelet",
		"# Prebuilt images with RPM have a unit that reads its flags here.",
		copyDefaults,
		"# systemd-resolved's stub address would make the cluster's DNS forward to itself.",
		"if systemctl is-active --quiet systemd-resolved; then",
		"  sed -i 's#^resolvConf: .*#resolvConf: "+systemdResolvConf+"#' "+KubeletConfigPath,
		"fi")
	if in.Spec.Kubelet.NodeIPFamily == bootstrapv1.NodeDualStack {
		n.extend(bothAddresses("KUBELET_KUBEADM_ARGS", kubeadmFlagsPath)...)
	}
	n.commands(beforeKubelet, in.Spec.PreKubeletCommands)
	n.do("Starting the kubelet")
	if Installs(in.Spec) {
		n.extend("touch " + configuredPath)
	}
	n.extend("systemctl enable --now kubelet",
		"# A kubelet that does not reach it, or does not trust it, tries for ever, and says so in its journal alone.",
		"if command -v curl >/dev/null; then",
		"  why=$(curl -sS -o /dev/null --connect-timeout 20 --max-time 60 --cacert "+CAPath+" "+quote(in.Server+"/livez")+" 2>&1) ||",
		"    say \"The API server can't be used: $(echo \"$why\" | head -n 1)\"",
		"fi")
}

// copyDefaults copies the kubelet's flags to the path that RPM units read.
const copyDefaults = "if [ -d /etc/sysconfig ]; then cp " + KubeletDefaultsPath + " " + kubeletSysconfigPath + "; fi"

// bothAddresses returns script lines that find the machine's addresses of both families, and write
// them as a kubelet flag into a variable of a file. The addresses that they look up are in
// documentation networks, and no packet is sent.
func bothAddresses(variable, path string) []string {
	return []string{
		"ipv4=$(ip -4 route get 192.0.2.1 | sed -n 's/.* src \\([0-9.]*\\).*/\\1/p')",
		"ipv6=$(ip -6 route get 2001:db8::1 | sed -n 's/.* src \\([0-9a-f:]*\\).*/\\1/p')",
		"if [ -z \"$ipv4\" ] || [ -z \"$ipv6\" ]; then",
		"  say 'The default route lacks an address of one family'",
		"  exit 1",
		"fi",
		"echo \"" + variable + "=--node-ip=$ipv4,$ipv6\" >" + path,
	}
}
