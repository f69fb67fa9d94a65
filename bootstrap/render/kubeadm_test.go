// SPDX-License-Identifier: Apache-2.0

package render

import (
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	kubeletv1 "k8s.io/kubelet/config/v1beta1"
	"sigs.k8s.io/yaml"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
)

// adopted serves what kubeadm requests from an API server. Its cluster has kubelet settings that
// the spec overrides, and others that it does not. It answers only the token's bearer, and never
// serves cluster-info.
type adopted struct{ token string }

const (
	clusterConfiguration = "apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nclusterName: blue\nkubernetesVersion: v1.36.3\n" +
		"networking: {serviceSubnet: 10.96.0.0/12}\n"
	kubeletOfCluster = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ncgroupDriver: cgroupfs\nmaxPods: 7\nserverTLSBootstrap: true\n" +
		"featureGates: {NodeSwap: true, ContextualLogging: true}\nclusterDomain: cluster.local\nclusterDNS: [10.96.0.10]\n" +
		"evictionHard: {memory.available: 1Mi, nodefs.available: 5%}\nserializeImagePulls: true\nimageGCHighThresholdPercent: 70\n"
)

func (a adopted) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var answer any
	switch {
	case r.Header.Get("Authorization") != "Bearer "+a.token:
		answer = refusal(http.StatusUnauthorized, metav1.StatusReasonUnauthorized)
	case r.URL.Path == "/api/v1/namespaces/kube-system/configmaps/kubeadm-config":
		answer = configMap("ClusterConfiguration", clusterConfiguration)
	case r.URL.Path == "/api/v1/namespaces/kube-system/configmaps/kubelet-config":
		answer = configMap("kubelet", kubeletOfCluster)
	case strings.HasPrefix(r.URL.Path, "/api/v1/nodes/"):
		answer = refusal(http.StatusNotFound, metav1.StatusReasonNotFound)
	default:
		answer = refusal(http.StatusForbidden, metav1.StatusReasonForbidden)
	}
	w.Header().Set("Content-Type", "application/json")
	if s, ok := answer.(metav1.Status); ok {
		w.WriteHeader(int(s.Code))
	}
	_ = json.NewEncoder(w).Encode(answer)
}

func configMap(key, text string) corev1.ConfigMap {
	return corev1.ConfigMap{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, Data: map[string]string{key: text}}
}

func refusal(code int32, reason metav1.StatusReason) metav1.Status {
	return metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Reason: reason, Code: code}
}

// kubeadm runs the real kubeadm on the files of the user data, in its own folder.
func kubeadm(t *testing.T, in Input, args ...string) (folder, said string, err error) {
	t.Helper()
	g := NewWithT(t)
	out, err := UserData(in)
	g.Expect(err).NotTo(HaveOccurred())
	folder = t.TempDir()
	for path, f := range readBack(g, FormatOf(in.Spec), out).files {
		if strings.HasPrefix(path, "/etc/kubernetes/drover-") {
			g.Expect(os.MkdirAll(filepath.Join(folder, filepath.Dir(path)), 0o755)).To(Succeed())
			content := strings.ReplaceAll(f.content, ": /etc/kubernetes/drover-", ": "+folder+"/etc/kubernetes/drover-")
			content = instanceData.ReplaceAllString(content, "x") // as cloud-init would
			g.Expect(os.WriteFile(filepath.Join(folder, path), []byte(content), 0o600)).To(Succeed())
		}
	}
	program, err := exec.CommandContext(t.Context(), "../../hack/tool", "kubeadm").Output()
	g.Expect(err).NotTo(HaveOccurred())
	cmd := exec.CommandContext(t.Context(), strings.TrimSpace(string(program)),
		append(args, "--config="+filepath.Join(folder, JoinConfigPath))...)
	cmd.Env = append(os.Environ(), "KUBEADM_JOIN_DRYRUN_DIR="+folder)
	raw, err := cmd.CombinedOutput()
	return folder, string(raw), err
}

// TestKubeadmReads: kubeadm's strict decoder and validation accept each JoinConfiguration.
func TestKubeadmReads(t *testing.T) {
	for _, v := range kubeadmVariants() {
		for _, version := range []string{"v1.36.0", "v1.31.0", "v1.30.9"} {
			if version == "v1.30.9" && v.mode != bootstrapv1.InstallPrebuilt || version == "v1.31.0" && Installs(least(t, v).Spec) {
				continue // too old for the API server
			}
			g := NewWithT(t)
			in := byKubeadm(full(t, v.name, v.mode))
			in.Version = version
			_, said, err := kubeadm(t, in, "config", "validate")
			g.Expect(err).NotTo(HaveOccurred(), said)
			g.Expect(strings.Contains(said, "deprecated API")).To(Equal(version == "v1.30.9"), said)
		}
	}
}

// TestKubeadmJoins runs a whole join by kubeadm except starting the kubelet: kubeadm discovers the
// cluster by the file, without cluster-info, and writes the kubelet's files. The spec's settings
// override the cluster's, and all others are the cluster's.
func TestKubeadmJoins(t *testing.T) {
	g := NewWithT(t)
	in := byKubeadm(full(t, "ubuntu-24.04", bootstrapv1.InstallPackages))
	in.Spec.Host.Proxy, in.Spec.Kubelet.NodeIPFamily = bootstrapv1.Proxy{}, "IPv4"
	in.Spec.Join.IgnorePreflightErrors = []string{"all"} // the test host is no node
	server := httptest.NewTLSServer(adopted{in.Token})
	t.Cleanup(server.Close)
	in.Server, in.CA = server.URL, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})

	folder, said, err := kubeadm(t, in, "join", "--dry-run")
	g.Expect(err).NotTo(HaveOccurred(), said)
	read := func(name string) string {
		raw, err := os.ReadFile(filepath.Join(folder, name))
		g.Expect(err).NotTo(HaveOccurred(), said)
		return string(raw)
	}
	config := kubeletv1.KubeletConfiguration{}
	g.Expect(yaml.UnmarshalStrict([]byte(read("config.yaml")), &config)).To(Succeed())
	g.Expect(config.MaxPods).To(Equal(int32(50)))
	g.Expect(config.FeatureGates).To(Equal(map[string]bool{"NodeSwap": false, "ContextualLogging": true}))
	g.Expect(config.ClusterDomain).To(Equal("example.org"))
	g.Expect(config.ClusterDNS).To(Equal([]string{"fd00::a"}))
	g.Expect(config.EvictionHard).To(Equal(map[string]string{"memory.available": "200Mi", "nodefs.available": "5%"}))
	g.Expect(*config.SerializeImagePulls).To(BeFalse())
	g.Expect(config.CgroupDriver).To(Equal("systemd"))
	g.Expect(config.ContainerRuntimeEndpoint).To(Equal(runtimeEndpoint))
	g.Expect(*config.ImageGCHighThresholdPercent).To(Equal(int32(70)), "the cluster's, of which the spec says nothing")
	g.Expect(config.ServerTLSBootstrap).To(BeTrue(), "the cluster's")

	flags := read("kubeadm-flags.env")
	for _, flag := range []string{
		"--hostname-override=blue-1", "--node-ip=0.0.0.0", "--provider-id=aws:///x/x",
		"--node-labels=example.com/tier=,node.kubernetes.io/instance-type=large,pool=blue",
		"--register-with-taints=gpu=yes:NoExecute,node.cluster.x-k8s.io/uninitialized:NoSchedule",
	} {
		g.Expect(flags).To(MatchRegexp(`["\s]`+flag+`["\s]`), flags)
	}
	kubeconfig, err := clientcmd.RESTConfigFromKubeConfig([]byte(read("bootstrap-kubelet.conf")))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect([]any{kubeconfig.Host, kubeconfig.BearerToken, kubeconfig.CAData}).To(Equal([]any{in.Server, in.Token, in.CA}))
}
