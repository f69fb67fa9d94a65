// SPDX-License-Identifier: Apache-2.0

package body

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	certutil "k8s.io/client-go/util/cert"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	kubeadmapi "sigs.k8s.io/cluster-api/bootstrap/kubeadm/pkg/types/upstreamv1beta4"
	"sigs.k8s.io/yaml"

	"github.com/drover-io/drover/cloud/simulated/simulator/userdata"
)

// kubeadm's retry intervals and timeouts (cmd/kubeadm/app/constants in Kubernetes).
const (
	discoveryInterval, discoveryTimeout = 5 * time.Second, 5 * time.Minute
	readInterval, readTimeout           = 500 * time.Millisecond, time.Minute
)

// kubeadm's ConfigMaps in kube-system for the cluster and its kubelets, its file for the CA, and
// the kubelet's kubeconfig.
const (
	clusterConfigMap = "kubeadm-config"
	kubeletConfigMap = "kubelet-config"
	authorityFile    = "/etc/kubernetes/pki/ca.crt"

	kubeletKubeconfig = "/etc/kubernetes/kubelet.conf"
)

// kubeadm does the relevant part of "kubeadm join" for a worker: it refuses to run if files of
// another join exist, finds the cluster with the token or a file, and writes the files that the
// kubelet starts from, with patches. After an error kubeadm ends, and nothing starts it again.
func (b *Body) kubeadm(ctx context.Context, disk userdata.Machine, file string) error {
	config, err := joinConfiguration(disk, file)
	if err != nil {
		return err
	}
	if config.ControlPlane != nil {
		return errors.New("the join of a control plane node needs bodies.controlPlanePath in the simulated cloud's configuration")
	}
	if err := preflight(disk, config); err != nil {
		return err
	}
	cluster, token, err := b.discover(ctx, disk, config)
	if err != nil {
		return err
	}
	client, err := b.client(rest.Config{Host: cluster.Server, BearerToken: token,
		TLSClientConfig: rest.TLSClientConfig{CAData: cluster.CertificateAuthorityData}})
	if err != nil {
		return err
	}
	if _, err := b.configMap(ctx, client, clusterConfigMap); err != nil {
		return err
	}
	name := cmp.Or(strings.ToLower(strings.TrimSpace(config.NodeRegistration.Name)), hostname(disk, b.machine))
	if err := b.refuseNode(ctx, client, name); err != nil {
		return err
	}
	settings, err := b.configMap(ctx, client, kubeletConfigMap)
	if err != nil {
		return err
	}
	kubelet, err := patched([]byte(settings.Data["kubelet"]), disk, config.Patches)
	if err != nil {
		return err
	}
	bootstrap, err := clientcmd.Write(bootstrapConfig(cluster, token))
	if err != nil {
		return fmt.Errorf("couldn't save bootstrap-kubelet.conf: %w", err)
	}
	for name, content := range map[string][]byte{
		bootstrapKubeconfig: bootstrap,
		kubeletConfigFile:   kubelet,
		environmentFiles[0]: []byte(fmt.Sprintf("KUBELET_KUBEADM_ARGS=%q\n",
			strings.Join(kubeletArgs(config.NodeRegistration, name, hostname(disk, b.machine)), " "))),
		authorityPath(config): cluster.CertificateAuthorityData,
	} {
		disk.Files[name] = userdata.File{Content: content, Permissions: "0600"}
	}
	b.say("kubeadm join: starts the kubelet of node %s", name)
	return nil
}

// joinConfiguration reads kubeadm's configuration file.
func joinConfiguration(disk userdata.Machine, name string) (*kubeadmapi.JoinConfiguration, error) {
	file, ok := disk.Files[path.Clean(name)]
	if !ok {
		return nil, fmt.Errorf("unable to read config from %q: there is no such file", name)
	}
	config := &kubeadmapi.JoinConfiguration{}
	if err := yaml.UnmarshalStrict(file.Content, config); err != nil {
		return nil, fmt.Errorf("the file %q is not the YAML of a JoinConfiguration, or of another version than v1beta4, the only one that is simulated", name)
	}
	switch {
	case config.APIVersion != "kubeadm.k8s.io/v1beta4" || config.Kind != "JoinConfiguration":
		return nil, fmt.Errorf("the file %q holds %s %s; v1beta4 of JoinConfiguration alone is simulated", name, config.APIVersion, config.Kind)
	case config.Discovery.File == nil && (config.Discovery.BootstrapToken == nil || len(config.Discovery.BootstrapToken.CACertHashes) == 0):
		return nil, errors.New("discovery by neither a file nor a token with a pinned authority is not simulated")
	}
	return config, nil
}

func authorityPath(config *kubeadmapi.JoinConfiguration) string {
	return path.Clean(cmp.Or(config.CACertPath, authorityFile))
}

// preflight refuses files of another join (JoinNodeChecks of cmd/kubeadm/app/preflight), unless the
// configuration ignores the check.
func preflight(disk userdata.Machine, config *kubeadmapi.JoinConfiguration) error {
	ignores := func(check string) bool {
		return slices.ContainsFunc(config.NodeRegistration.IgnorePreflightErrors, func(s string) bool {
			return strings.EqualFold(s, check) || strings.EqualFold(s, "all")
		})
	}
	for _, name := range []string{kubeletKubeconfig, bootstrapKubeconfig, authorityPath(config)} {
		check := "FileAvailable-" + strings.ReplaceAll(name, "/", "-")
		if _, there := disk.Files[name]; there && !ignores(check) {
			return fmt.Errorf("[ERROR %s]: %s already exists", check, name)
		}
	}
	return nil
}

// discover returns the cluster and the token for its API server.
func (b *Body) discover(ctx context.Context, disk userdata.Machine,
	config *kubeadmapi.JoinConfiguration) (*clientcmdapi.Cluster, string, error) {
	timeout := discoveryTimeout
	if t := config.Timeouts; t != nil && t.Discovery != nil {
		timeout = t.Discovery.Duration
	}
	if file := config.Discovery.File; file != nil {
		return b.discoverByFile(ctx, disk, file.KubeConfigPath, config.Discovery.TLSBootstrapToken, timeout)
	}
	cluster, err := b.discoverByToken(ctx, config.Discovery.BootstrapToken, timeout)
	return cluster, cmp.Or(config.Discovery.TLSBootstrapToken, config.Discovery.BootstrapToken.Token), err
}

// discoverByFile reads the cluster from a kubeconfig (cmd/kubeadm/app/discovery/file). It reads
// cluster-info to verify that the API server has a certificate of the file's authority. "Forbidden"
// proves that, too.
func (b *Body) discoverByFile(ctx context.Context, disk userdata.Machine, name, token string,
	timeout time.Duration) (*clientcmdapi.Cluster, string, error) {
	found := kubelet{}
	if err := found.readBootstrap(disk, name); err != nil {
		return nil, "", fmt.Errorf("discovery by file: %w", err)
	}
	cluster := &clientcmdapi.Cluster{Server: found.server, TLSServerName: found.serverName, CertificateAuthorityData: found.ca}
	client, err := b.client(rest.Config{
		Host: found.server, BearerToken: found.token, TLSClientConfig: rest.TLSClientConfig{CAData: found.ca, ServerName: found.serverName},
	})
	if err != nil {
		return nil, "", err
	}
	err = b.persist(ctx, discoveryInterval, timeout, func(ctx context.Context) error {
		_, err := client.ConfigMaps(metav1.NamespacePublic).Get(ctx, bootstrapapi.ConfigMapClusterInfo, metav1.GetOptions{})
		if apierrors.IsForbidden(err) {
			return nil
		}
		return err
	})
	if err != nil {
		return nil, "", fmt.Errorf("couldn't validate the identity of the API Server: %w", err)
	}
	return cluster, cmp.Or(token, found.token), nil
}

// discoverByToken accepts an unverified answer only if the token signed it and it names a pinned
// authority. It must then read the same from a server with a certificate of that authority
// (cmd/kubeadm/app/discovery/token).
func (b *Body) discoverByToken(ctx context.Context, how *kubeadmapi.BootstrapTokenDiscovery,
	timeout time.Duration) (*clientcmdapi.Cluster, error) {
	// Any server may answer this. The answer is not trusted until signature and pins are verified.
	first, err := b.clusterInfo(ctx, how, rest.TLSClientConfig{Insecure: true}, timeout)
	if err != nil {
		return nil, err
	}
	id, secret, _ := strings.Cut(how.Token, ".")
	if !signed(first.Data[bootstrapapi.KubeConfigKey], first.Data[bootstrapapi.JWSSignatureKeyPrefix+id], secret) {
		return nil, errors.New("failed to verify JWS signature of received cluster info object, can't trust this API Server")
	}
	cluster, err := describedCluster(first)
	if err != nil {
		return nil, err
	}
	if err := pinned(cluster.CertificateAuthorityData, how.CACertHashes); err != nil {
		return nil, err
	}
	second, err := b.clusterInfo(ctx, how, rest.TLSClientConfig{CAData: cluster.CertificateAuthorityData}, timeout)
	if err != nil {
		return nil, err
	}
	if second.Data[bootstrapapi.KubeConfigKey] != first.Data[bootstrapapi.KubeConfigKey] {
		return nil, errors.New("the second kubeconfig from the cluster-info ConfigMap (using validated TLS) was different from the first")
	}
	return cluster, nil
}

// clusterInfo reads the ConfigMap cluster-info as an anonymous user, once it is signed with the
// token.
func (b *Body) clusterInfo(ctx context.Context, how *kubeadmapi.BootstrapTokenDiscovery, tls rest.TLSClientConfig,
	timeout time.Duration) (*corev1.ConfigMap, error) {
	client, err := b.client(rest.Config{Host: "https://" + how.APIServerEndpoint, TLSClientConfig: tls})
	if err != nil {
		return nil, err
	}
	id, _, _ := strings.Cut(how.Token, ".")
	var info *corev1.ConfigMap
	err = b.persist(ctx, discoveryInterval, timeout, func(ctx context.Context) (err error) {
		info, err = client.ConfigMaps(metav1.NamespacePublic).Get(ctx, bootstrapapi.ConfigMapClusterInfo, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("failed to request the cluster-info ConfigMap: %w", err)
		}
		if info.Data[bootstrapapi.JWSSignatureKeyPrefix+id] == "" {
			return fmt.Errorf("could not find a JWS signature in the cluster-info ConfigMap for token ID %q", id)
		}
		return nil
	})
	return info, err
}

// signed verifies a detached JWS (RFC 7515, appendix F) as the bootstrap signer makes it: HMAC with
// SHA-256 and the token's secret. The code is here because k8s.io/cluster-bootstrap/token/jws
// depends on an unmaintained library.
func signed(content, signature, secret string) bool {
	header, mac, ok := strings.Cut(signature, "..")
	if !ok {
		return false
	}
	got, err := base64.RawURLEncoding.DecodeString(mac)
	want := hmac.New(sha256.New, []byte(secret))
	want.Write([]byte(header + "." + base64.RawURLEncoding.EncodeToString([]byte(content))))
	return err == nil && hmac.Equal(got, want.Sum(nil))
}

// describedCluster returns the only cluster in cluster-info's kubeconfig.
func describedCluster(info *corev1.ConfigMap) (*clientcmdapi.Cluster, error) {
	config, err := clientcmd.Load([]byte(info.Data[bootstrapapi.KubeConfigKey]))
	if err != nil || len(config.Clusters) != 1 {
		return nil, errors.New("malformed kubeconfig in the cluster-info ConfigMap")
	}
	var only *clientcmdapi.Cluster
	for _, only = range config.Clusters {
	}
	return only, nil
}

// pinned returns an error unless one of the authorities' public keys is among the hashes.
func pinned(authorities []byte, hashes []string) error {
	certificates, err := certutil.ParseCertsPEM(authorities)
	if err != nil {
		return fmt.Errorf("failed to parse cluster CA from the cluster-info ConfigMap: %w", err)
	}
	for _, c := range certificates {
		if slices.ContainsFunc(hashes, func(h string) bool { return strings.EqualFold(h, keyHash(c)) }) {
			return nil
		}
	}
	return fmt.Errorf("cluster CA found in cluster-info ConfigMap is invalid: none of the public keys %q are pinned", keyHash(certificates[0]))
}

func keyHash(c *x509.Certificate) string {
	sum := sha256.Sum256(c.RawSubjectPublicKeyInfo)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// patched applies the kubelet's patches to the cluster's configuration, in the order of their names
// (cmd/kubeadm/app/util/patches). Only strategic merge patches are simulated.
func patched(config []byte, disk userdata.Machine, patches *kubeadmapi.Patches) ([]byte, error) {
	if patches == nil || patches.Directory == "" {
		return config, nil
	}
	out, err := yaml.YAMLToJSON(config)
	if err != nil {
		return nil, fmt.Errorf("the cluster's KubeletConfiguration: %w", err)
	}
	for _, name := range slices.Sorted(maps.Keys(disk.Files)) {
		base, isPatch := strings.CutPrefix(path.Base(name), "kubeletconfiguration")
		if path.Dir(name) != path.Clean(patches.Directory) || !isPatch {
			continue
		}
		if !strings.HasSuffix(base, "+strategic.yaml") {
			return nil, fmt.Errorf("%s: patches of this kind are not simulated", name)
		}
		patch, err := yaml.YAMLToJSON(disk.Files[name].Content)
		if err == nil {
			out, err = strategicpatch.StrategicMergePatch(out, patch, kubeletconfig.KubeletConfiguration{})
		}
		if err != nil {
			return nil, fmt.Errorf("could not apply patches to the KubeletConfiguration: %s: %w", name, err)
		}
	}
	return yaml.JSONToYAML(out)
}

// refuseNode returns an error if a ready Node with this name exists.
func (b *Body) refuseNode(ctx context.Context, client *coreclient.CoreV1Client, name string) error {
	var node *corev1.Node
	err := b.persist(ctx, readInterval, readTimeout, func(ctx context.Context) (err error) {
		node, err = client.Nodes().Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			node, err = &corev1.Node{}, nil
		}
		return err
	})
	switch {
	case err != nil:
		return fmt.Errorf("cannot get Node %q: %w", name, err)
	case isReady(node):
		return fmt.Errorf("a Node with name %q and status %q already exists in the cluster", name, corev1.NodeReady)
	}
	return nil
}

// configMap reads one of kubeadm's ConfigMaps.
func (b *Body) configMap(ctx context.Context, client *coreclient.CoreV1Client, name string) (found *corev1.ConfigMap, err error) {
	err = b.persist(ctx, readInterval, readTimeout, func(ctx context.Context) (err error) {
		found, err = client.ConfigMaps(metav1.NamespaceSystem).Get(ctx, name, metav1.GetOptions{})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("failed to get config map %q: %w", name, err)
	}
	return found, nil
}

func bootstrapConfig(cluster *clientcmdapi.Cluster, token string) clientcmdapi.Config {
	return clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"kubernetes": cluster},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"tls-bootstrap-token-user": {Token: token}},
		Contexts:       map[string]*clientcmdapi.Context{"join": {Cluster: "kubernetes", AuthInfo: "tls-bootstrap-token-user"}},
		CurrentContext: "join",
	}
}

// kubeletArgs returns the flags with which kubeadm starts the kubelet: the user's, and its own
// unless the user sets them.
func kubeletArgs(registration kubeadmapi.NodeRegistrationOptions, name, hostname string) []string {
	own := map[string]string{}
	if len(registration.Taints) > 0 {
		var taints []string
		for _, t := range registration.Taints {
			taints = append(taints, t.ToString())
		}
		own["register-with-taints"] = strings.Join(taints, ",")
	}
	if name != hostname {
		own["hostname-override"] = name
	}
	var args []string
	for _, a := range registration.KubeletExtraArgs {
		delete(own, a.Name)
		args = append(args, "--"+a.Name+"="+a.Value)
	}
	for name, value := range own {
		args = append(args, "--"+name+"="+value)
	}
	slices.Sort(args)
	return args
}

// client returns a client for kubeadm's requests before the kubelet starts.
func (b *Body) client(config rest.Config) (*coreclient.CoreV1Client, error) {
	config.QPS, config.UserAgent = -1, "kubeadm/"+b.machine.KubeletVersion+" (drover simulator)"
	return coreclient.NewForConfig(&config)
}

// persist retries until success or timeout, and then returns the last error.
func (b *Body) persist(ctx context.Context, every, timeout time.Duration, try func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var last error
	for {
		err := b.fleet.request(ctx, try)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil || last == nil {
			last = err
		}
		if pause(ctx, every); ctx.Err() != nil {
			return last
		}
		b.say("kubeadm join: retrying: %s", plain(err))
	}
}
