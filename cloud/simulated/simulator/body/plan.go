// SPDX-License-Identifier: Apache-2.0

package body

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"path"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	kubeletapis "k8s.io/kubelet/pkg/apis"
	"sigs.k8s.io/yaml"

	"github.com/drover-io/drover/cloud/simulated/simulator/userdata"
)

// kubelet is the kubelet's configuration from the machine's files, as kubeadm's unit starts it.
type kubelet struct {
	node, server, serverName, token string
	ca                              []byte
	labels                          map[string]string
	taints                          []corev1.Taint
	providerID, nodeIP              string
	registers, servingCSR           bool
}

// The files that kubeadm's unit reads.
const (
	bootstrapKubeconfig = "/etc/kubernetes/bootstrap-kubelet.conf"
	kubeletConfigFile   = "/var/lib/kubelet/config.yaml"
)

// environmentFiles are the unit's environment files, in order: a later one wins.
var environmentFiles = []string{"/var/lib/kubelet/kubeadm-flags.env", "/etc/default/kubelet", "/etc/sysconfig/kubelet"}

// errNotStarted means that nothing on the machine starts a kubelet.
var errNotStarted = errors.New("nothing in the user data starts the kubelet")

// commanded returns the outcome of the user data's commands.
func commanded(disk userdata.Machine) (out outcome) {
	for _, c := range disk.Commands {
		out = out.with(follow(c, fileReader(disk)))
	}
	return out
}

// plan returns the kubelet that the machine would run. Errors are those that the kubelet would
// print before it exits.
func plan(disk userdata.Machine, m Machine) (*kubelet, error) {
	if does := commanded(disk); !does.started && does.join == "" {
		return nil, errNotStarted
	}
	k, err := configured(disk, m)
	if err != nil {
		return nil, err
	}
	return k, k.readBootstrap(disk, orDefault(arguments(disk)["bootstrap-kubeconfig"], bootstrapKubeconfig))
}

// configured returns the kubelet of the machine's files, without its cluster.
func configured(disk userdata.Machine, m Machine) (*kubelet, error) {
	args := arguments(disk)
	k := &kubelet{node: hostname(disk, m), providerID: args["provider-id"], nodeIP: m.IP, registers: true, labels: map[string]string{}}
	if name := args["hostname-override"]; name != "" {
		k.node = strings.ToLower(name)
	}
	if ip := net.ParseIP(args["node-ip"]); ip != nil && !ip.IsUnspecified() {
		k.nodeIP = ip.String()
	}
	if err := k.readLabels(args["node-labels"], m); err != nil {
		return nil, err
	}
	if err := k.readConfig(disk, orDefault(args["config"], kubeletConfigFile)); err != nil {
		return nil, err
	}
	if flag := args["register-with-taints"]; flag != "" {
		taints, err := parseTaints(flag)
		if err != nil {
			return nil, err
		}
		k.taints = taints
	}
	if args["cloud-provider"] == "external" {
		k.taints = append(k.taints, corev1.Taint{Key: "node.cloudprovider.kubernetes.io/uninitialized", Value: "true",
			Effect: corev1.TaintEffectNoSchedule})
	}
	return k, nil
}

func orDefault(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

func fileReader(disk userdata.Machine) func(string) (string, bool) {
	return func(name string) (string, bool) {
		f, ok := disk.Files[path.Clean(name)]
		return string(f.Content), ok
	}
}

func hostname(disk userdata.Machine, m Machine) string {
	return strings.ToLower(orDefault(disk.Hostname, m.Hostname))
}

// arguments returns the kubelet's flags from the unit's environment.
func arguments(disk userdata.Machine) map[string]string {
	environment := map[string]string{}
	for _, name := range environmentFiles {
		for line := range strings.Lines(string(disk.Files[name].Content)) {
			key, value, ok := strings.Cut(strings.TrimSpace(line), "=")
			if ok && !strings.HasPrefix(key, "#") {
				environment[strings.TrimSpace(key)] = unquote(strings.TrimSpace(value))
			}
		}
	}
	args := map[string]string{}
	// The unit's order: ExecStart=kubelet … $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS
	fields := append(strings.Fields(environment["KUBELET_KUBEADM_ARGS"]), strings.Fields(environment["KUBELET_EXTRA_ARGS"])...)
	for n := 0; n < len(fields); n++ {
		name, value, ok := strings.Cut(strings.TrimLeft(fields[n], "-"), "=")
		if !ok && n+1 < len(fields) && !strings.HasPrefix(fields[n+1], "-") {
			n++
			value = fields[n]
		}
		args[name] = unquote(value)
	}
	return args
}

func unquote(s string) string {
	if len(s) >= 2 && (s[0] == '"' || s[0] == '\'') && s[len(s)-1] == s[0] {
		return s[1 : len(s)-1]
	}
	return s
}

// readLabels reads --node-labels, and adds the labels that a kubelet sets itself.
func (k *kubelet) readLabels(flag string, m Machine) error {
	for _, pair := range strings.Split(flag, ",") {
		if pair == "" {
			continue
		}
		key, value, _ := strings.Cut(pair, "=")
		if ofKubernetes(key) && !kubeletapis.IsKubeletLabel(key) {
			return fmt.Errorf("unknown 'kubernetes.io' or 'k8s.io' label %q specified with --node-labels", key)
		}
		k.labels[key] = value
	}
	maps.Copy(k.labels, map[string]string{
		corev1.LabelHostname: k.node, corev1.LabelOSStable: m.OS, corev1.LabelArchStable: m.Arch,
		"beta.kubernetes.io/os": m.OS, "beta.kubernetes.io/arch": m.Arch,
	})
	return nil
}

func ofKubernetes(label string) bool {
	domain, _, ok := strings.Cut(label, "/")
	return ok && (domain == "kubernetes.io" || domain == "k8s.io" || strings.HasSuffix(domain, ".kubernetes.io") ||
		strings.HasSuffix(domain, ".k8s.io"))
}

func (k *kubelet) readConfig(disk userdata.Machine, name string) error {
	file, ok := disk.Files[path.Clean(name)]
	if !ok {
		return fmt.Errorf("failed to load the kubelet's configuration: there is no file %s", name)
	}
	var c kubeletconfig.KubeletConfiguration
	if err := yaml.UnmarshalStrict(file.Content, &c); err != nil {
		return fmt.Errorf("failed to load the kubelet's configuration %s: %w", name, err)
	}
	if c.Kind != "KubeletConfiguration" || c.APIVersion != "kubelet.config.k8s.io/v1beta1" {
		return fmt.Errorf("failed to load the kubelet's configuration %s: it is %s %s", name, c.APIVersion, c.Kind)
	}
	if ca := c.Authentication.X509.ClientCAFile; ca != "" {
		if _, ok := disk.Files[path.Clean(ca)]; !ok {
			return fmt.Errorf("unable to load the client CA file %s: there is no such file", ca)
		}
	}
	if k.providerID == "" {
		k.providerID = c.ProviderID
	}
	k.taints, k.servingCSR = c.RegisterWithTaints, c.ServerTLSBootstrap
	k.registers = c.RegisterNode == nil || *c.RegisterNode
	return nil
}

// parseTaints reads --register-with-taints: key=value:effect,key:effect.
func parseTaints(flag string) ([]corev1.Taint, error) {
	var out []corev1.Taint
	for _, text := range strings.Split(flag, ",") {
		if text == "" {
			continue
		}
		keyValue, effect, ok := strings.Cut(text, ":")
		key, value, _ := strings.Cut(keyValue, "=")
		if !ok || key == "" {
			return nil, fmt.Errorf("invalid taint %q specified with --register-with-taints", text)
		}
		out = append(out, corev1.Taint{Key: key, Value: value, Effect: corev1.TaintEffect(effect)})
	}
	return out, nil
}

func (k *kubelet) readBootstrap(disk userdata.Machine, name string) error {
	user, err := k.readCluster(disk, name)
	if err != nil {
		return err
	}
	k.token = user.Token
	if user.TokenFile != "" {
		k.token = strings.TrimSpace(string(disk.Files[path.Clean(user.TokenFile)].Content))
	}
	if k.token == "" {
		return fmt.Errorf("the kubeconfig %s holds no token", name)
	}
	return nil
}

// readCluster reads the cluster of a kubeconfig, and returns the user.
func (k *kubelet) readCluster(disk userdata.Machine, name string) (*clientcmdapi.AuthInfo, error) {
	file, ok := disk.Files[path.Clean(name)]
	if !ok {
		return nil, fmt.Errorf("unable to load the kubeconfig: there is no file %s", name)
	}
	config, err := clientcmd.Load(file.Content)
	if err != nil {
		return nil, fmt.Errorf("unable to load the kubeconfig %s: it is not a kubeconfig", name)
	}
	context := config.Contexts[config.CurrentContext]
	if context == nil || config.Clusters[context.Cluster] == nil || config.AuthInfos[context.AuthInfo] == nil {
		return nil, fmt.Errorf("the kubeconfig %s: its current context names no cluster or no user", name)
	}
	cluster := config.Clusters[context.Cluster]
	k.server, k.serverName = cluster.Server, cluster.TLSServerName
	if k.ca, err = authority(cluster, disk); err != nil {
		return nil, err
	}
	return config.AuthInfos[context.AuthInfo], nil
}

func authority(cluster *clientcmdapi.Cluster, disk userdata.Machine) ([]byte, error) {
	if cluster.InsecureSkipTLSVerify {
		return nil, errors.New("the kubeconfig skips the verification of the API server, which is not simulated")
	}
	if cluster.CertificateAuthority == "" {
		return cluster.CertificateAuthorityData, nil
	}
	file, ok := disk.Files[path.Clean(cluster.CertificateAuthority)]
	if !ok {
		return nil, fmt.Errorf("unable to read the certificate authority: there is no file %s", cluster.CertificateAuthority)
	}
	return file.Content, nil
}
