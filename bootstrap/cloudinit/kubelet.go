// SPDX-License-Identifier: Apache-2.0

package cloudinit

import (
	"cmp"
	"errors"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletv1 "k8s.io/kubelet/config/v1beta1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/yaml"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1alpha1"
)

const (
	plainResolvConf   = "/etc/resolv.conf"
	systemdResolvConf = "/run/systemd/resolve/resolv.conf"
)

func kubeletConfig(in Input) ([]byte, error) {
	yes, no, resolvConf := true, false, plainResolvConf
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
	}
	out, err := yaml.Marshal(config)
	if err != nil {
		return nil, errors.New("writing the KubeletConfiguration failed")
	}
	return out, nil
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
	if in.ProviderID != "" {
		args = append(args, "--provider-id="+in.ProviderID)
	}
	return `KUBELET_EXTRA_ARGS="` + strings.Join(args, " ") + "\"\n"
}

// script joins the machine. Each of the user's commands is a shell of its own, so that an unclosed quote, an exit or a
// changed option in one can't skip what follows.
func script(spec *bootstrapv1.CloudInitConfigSpec) string {
	lines := []string{
		"#!/bin/sh",
		"# Joins this machine to its cluster. The first command that fails ends it, and then the sentinel file is not written.",
		"set -eu",
		"if grep -q CI_MISSING_JINJA_VAR " + KubeletDefaultsPath + "; then",
		"  echo 'drover: cloud-init does not know the instance data that the provider ID is made of' >&2",
		"  exit 1",
		"fi",
		"# The kubelet's unit reads its flags here on systems with RPM.",
		"if [ -d /etc/sysconfig ]; then cp " + KubeletDefaultsPath + " " + kubeletSysconfigPath + "; fi",
		"# systemd-resolved's stub address would make the cluster's DNS forward to itself.",
		"if systemctl is-active --quiet systemd-resolved; then",
		"  sed -i 's#^resolvConf: .*#resolvConf: " + systemdResolvConf + "#' " + KubeletConfigPath,
		"fi",
	}
	for _, c := range spec.PreKubeletCommands {
		lines = append(lines, "/bin/sh -ec "+quote(c))
	}
	lines = append(lines, "systemctl enable --now kubelet")
	for _, c := range spec.PostKubeletCommands {
		lines = append(lines, "/bin/sh -ec "+quote(c))
	}
	lines = append(lines, "mkdir -p /run/cluster-api", "echo success >"+SentinelPath)
	return strings.Join(lines, "\n") + "\n"
}

// quote makes one word of s for a POSIX shell: within single quotes everything is literal but the single quote itself.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
