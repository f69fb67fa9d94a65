// SPDX-License-Identifier: Apache-2.0

package render

import (
	"cmp"
	"encoding/json"
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/version"
	logsv1 "k8s.io/component-base/logs/api/v1"
	kubeletv1 "k8s.io/kubelet/config/v1beta1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1alpha1"
)

const (
	plainResolvConf   = "/etc/resolv.conf"
	systemdResolvConf = "/run/systemd/resolve/resolv.conf"
	// kubeadmFlagsPath is read by kubeadm's unit and ours. Only the script writes it.
	kubeadmFlagsPath = "/var/lib/kubelet/kubeadm-flags.env"
)

// kubeletConfig writes the KubeletConfiguration: what Drover sets, what has a field in the spec, and what is passed
// through, which Validate keeps apart.
func kubeletConfig(in Input) ([]byte, error) {
	yes, no, resolvConf := true, false, plainResolvConf
	k := in.Spec.Kubelet
	config := kubeletv1.KubeletConfiguration{
		TypeMeta: metav1.TypeMeta{APIVersion: kubeletv1.SchemeGroupVersion.String(), Kind: "KubeletConfiguration"},
		Authentication: kubeletv1.KubeletAuthentication{
			X509:      kubeletv1.KubeletX509Authentication{ClientCAFile: CAPath},
			Webhook:   kubeletv1.KubeletWebhookAuthentication{Enabled: &yes},
			Anonymous: kubeletv1.KubeletAnonymousAuthentication{Enabled: &no},
		},
		Authorization:            kubeletv1.KubeletAuthorization{Mode: kubeletv1.KubeletAuthorizationModeWebhook},
		CgroupDriver:             "systemd",
		ClusterDomain:            cmp.Or(in.Spec.ClusterDomain, in.ClusterDomain, "cluster.local"),
		ClusterDNS:               []string{cmp.Or(in.Spec.ClusterDNS, in.ClusterDNS, "10.96.0.10")},
		ContainerRuntimeEndpoint: "unix:///run/containerd/containerd.sock",
		ResolverConfig:           &resolvConf,
		RotateCertificates:       true,
		ServerTLSBootstrap:       true,
		RegisterWithTaints:       taints(in.Spec),
		FeatureGates:             k.FeatureGates,
		SystemReserved:           k.SystemReserved,
		KubeReserved:             k.KubeReserved,
		EvictionHard:             k.EvictionHard,
		EvictionSoft:             k.EvictionSoft,
		EvictionSoftGracePeriod:  k.EvictionSoftGracePeriod,
		ContainerLogMaxSize:      k.ContainerLogMaxSize,
		ContainerLogMaxFiles:     k.ContainerLogMaxFiles,
	}
	if k.MaxPods != nil {
		config.MaxPods = *k.MaxPods
	}
	// The field is known since 1.31; before that, no kubelet minds.
	if v, err := in.version(); err == nil && v != nil && systemOf(in.Spec).cgroupV1 && v.AtLeast(version.MustParseGeneric("1.31.0")) {
		config.FailCgroupV1 = &no
	}
	if k.Configuration != nil {
		if err := kjson.UnmarshalCaseSensitivePreserveInts(k.Configuration.Raw, &config); err != nil {
			return nil, errors.New("the kubelet's configuration can't be read") // Validate has read it
		}
	}
	return writeKubeletConfig(config)
}

// writeKubeletConfig leaves out what the Go types would write of fields that no one set: user data are short of room.
func writeKubeletConfig(config kubeletv1.KubeletConfiguration) ([]byte, error) {
	raw, err := json.Marshal(config)
	fields := map[string]any{}
	if err == nil {
		err = kjson.UnmarshalCaseSensitivePreserveInts(raw, &fields)
	}
	if reflect.DeepEqual(config.Logging, logsv1.LoggingConfiguration{}) {
		delete(fields, "logging")
	}
	dropUnset(fields)
	var out []byte
	if err == nil {
		out, err = yaml.Marshal(fields)
	}
	if err != nil {
		return nil, errors.New("writing the KubeletConfiguration failed")
	}
	return out, nil
}

// dropUnset removes durations of nothing, which a kubelet takes for its defaults, and what is empty.
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

// kubeletFields are those of KubeletConfiguration that no one may pass through, by the field to use instead, or "" for
// those that Drover sets: how the kubelet joins, whom it trusts, and which runtime it uses.
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

// passedThrough reads the user's further fields strictly, and returns their names.
func passedThrough(raw []byte) ([]string, error) {
	fields := map[string]json.RawMessage{}
	if err := json.Unmarshal(raw, &fields); err != nil || !utf8.Valid(raw) {
		return nil, errors.New("must be an object, in UTF-8")
	}
	strict, err := kjson.UnmarshalStrict(raw, &kubeletv1.KubeletConfiguration{}) // minds the case of names
	if err != nil || len(strict) > 0 {
		return nil, errors.New("must hold fields of KubeletConfiguration (kubelet.config.k8s.io/v1beta1) only, each once and of its type")
	}
	return slices.Sorted(maps.Keys(fields)), nil
}

// taints adds Cluster API's own, which keeps Pods off until Cluster API has put its labels on the Node.
func taints(spec *bootstrapv1.CloudInitConfigSpec) []corev1.Taint {
	out := slices.Clone(spec.NodeTaints)
	if !slices.ContainsFunc(out, func(t corev1.Taint) bool { return t.MatchTaint(&clusterv1.NodeUninitializedTaint) }) {
		out = append(out, clusterv1.NodeUninitializedTaint)
	}
	return out
}

// kubeletDefaults is read by systemd as an environment file. Nothing in it needs quoting within double quotes: labels,
// node names and provider IDs are checked.
func kubeletDefaults(in Input) string {
	args := []string{"--hostname-override=" + in.NodeName}
	if len(in.Spec.NodeLabels) > 0 {
		var labels []string
		for k, v := range in.Spec.NodeLabels {
			labels = append(labels, k+"="+v)
		}
		slices.Sort(labels)
		args = append(args, "--node-labels="+strings.Join(labels, ","))
	}
	// Ignition has no instance data. Its platforms name them differently, where they have an agent at all; the Node gets its
	// provider ID from Drover's controller then, as on every machine whose kubelet does not know it.
	if id := in.ProviderID; id != "" && (FormatOf(in.Spec) == bootstrapv1.FormatCloudConfig || !strings.Contains(id, "{{")) {
		args = append(args, "--provider-id="+id)
	}
	switch in.Spec.Kubelet.NodeIPFamily { // an unspecified address means the default route's of its family
	case "IPv4":
		args = append(args, "--node-ip=0.0.0.0")
	case "IPv6":
		args = append(args, "--node-ip=::")
	}
	return `KUBELET_EXTRA_ARGS="` + strings.Join(args, " ") + "\"\n"
}

// kubelet finds out what the kubelet must be told and only the machine knows.
func (n *node) kubelet(in Input) {
	n.do("Configuring the kubelet",
		"# Prebuilt images with RPM have a unit that reads its flags here.",
		"if [ -d /etc/sysconfig ]; then cp "+KubeletDefaultsPath+" "+kubeletSysconfigPath+"; fi",
		"# systemd-resolved's stub address would make the cluster's DNS forward to itself.",
		"if systemctl is-active --quiet systemd-resolved; then",
		"  sed -i 's#^resolvConf: .*#resolvConf: "+systemdResolvConf+"#' "+KubeletConfigPath,
		"fi")
	if in.Spec.Kubelet.NodeIPFamily == "DualStack" {
		// The addresses asked for are of the documentation's networks: nothing is sent.
		n.extend(
			"ipv4=$(ip -4 route get 192.0.2.1 | sed -n 's/.* src \\([0-9.]*\\).*/\\1/p')",
			"ipv6=$(ip -6 route get 2001:db8::1 | sed -n 's/.* src \\([0-9a-f:]*\\).*/\\1/p')",
			"if [ -z \"$ipv4\" ] || [ -z \"$ipv6\" ]; then",
			"  say 'The default route lacks an address of one family'",
			"  exit 1",
			"fi",
			"echo \"KUBELET_KUBEADM_ARGS=--node-ip=$ipv4,$ipv6\" >"+kubeadmFlagsPath)
	}
}
