// SPDX-License-Identifier: Apache-2.0

package body

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	certutil "k8s.io/client-go/util/cert"

	"github.com/drover-io/drover/cloud/simulated/simulator/userdata"
)

// TestSigned uses the example from the bootstrap signer's own tests
// (k8s.io/cluster-bootstrap/token/jws).
func TestSigned(t *testing.T) {
	const content, secret = "Hello from the other side. I must have called a thousand times.", "my voice is my passcode"
	const signature = "eyJhbGciOiJIUzI1NiIsImtpZCI6Impvc2h1YSJ9..VShe2taLd-YTrmWuRkcL_8QTNDHYxQIEBsAYYiIj1_8"
	if !signed(content, signature, secret) {
		t.Error("the right signature is refused")
	}
	for _, wrong := range []string{"", "..", "a..b", strings.Replace(signature, "..", ".", 1), signature[:len(signature)-2]} {
		if signed(content, wrong, secret) {
			t.Errorf("%q is believed", wrong)
		}
	}
	if signed(content+" ", signature, secret) || signed(content, signature, secret+"x") {
		t.Error("another content or secret is believed")
	}
}

const joinToken = "abcdef.0123456789abcdef"

// apiServer answers kubeadm's requests. It replaces a real API server, which can't have another
// server's certificate: TestMachineDeployment of test/bootstrap/kubeadm uses a real one. describes
// is the authority in its cluster-info, and signedBy the token that signs it. Only anonymous users
// may read cluster-info.
type apiServer struct {
	*httptest.Server
	describes []byte
	signedBy  string
}

func newAPIServer(t *testing.T) *apiServer {
	a := &apiServer{signedBy: joinToken}
	a.Server = httptest.NewTLSServer(a)
	t.Cleanup(a.Close)
	a.describes = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.Certificate().Raw})
	return a
}

func (a *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	data := map[string]string{}
	refuse := func(code int32, reason metav1.StatusReason) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(int(code))
		_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
			Reason: reason, Code: code})
	}
	switch r.URL.Path {
	case "/api/v1/namespaces/kube-public/configmaps/cluster-info":
		if r.Header.Get("Authorization") != "" {
			refuse(http.StatusForbidden, metav1.StatusReasonForbidden)
			return
		}
		config, _ := clientcmd.Write(clientcmdapi.Config{Clusters: map[string]*clientcmdapi.Cluster{"": {Server: a.URL,
			CertificateAuthorityData: a.describes}}})
		_, secret, _ := strings.Cut(a.signedBy, ".")
		mac := hmac.New(sha256.New, []byte(secret))
		fmt.Fprintf(mac, "e30.%s", base64.RawURLEncoding.EncodeToString(config))
		data = map[string]string{"kubeconfig": string(config), "jws-kubeconfig-abcdef": "e30.." +
			base64.RawURLEncoding.EncodeToString(mac.Sum(nil))}
	case "/api/v1/namespaces/kube-system/configmaps/kubelet-config":
		data["kubelet"] = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPods: 7\nserverTLSBootstrap: true\nauthentication: {x509: {clientCAFile: /etc/kubernetes/pki/ca.crt}}\n"
	case "/api/v1/namespaces/kube-system/configmaps/kubeadm-config":
	default:
		refuse(http.StatusNotFound, metav1.StatusReasonNotFound)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(corev1.ConfigMap{TypeMeta: metav1.TypeMeta{Kind: "ConfigMap", APIVersion: "v1"}, Data: data})
}

// join parses user data of Cluster API's kubeadm bootstrap provider, and returns the kubelet that
// the machine would start.
func join(t *testing.T, a *apiServer, hash string) (*kubelet, error) {
	t.Helper()
	disk, err := userdata.Parse(fmt.Appendf(nil, `## template: jinja
#cloud-config
write_files:
-   path: /run/kubeadm/kubeadm-join-config.yaml
    content: |
      ---
      apiVersion: kubeadm.k8s.io/v1beta4
      discovery:
        bootstrapToken:
          apiServerEndpoint: %s
          caCertHashes: [%s]
          token: %s
      kind: JoinConfiguration
      nodeRegistration:
        kubeletExtraArgs:
        - {name: node-labels, value: "pool=batch,disk=fast"}
        - {name: provider-id, value: "simulated:///{{ v1.availability_zone }}/{{ v1.instance_id }}"}
        name: '{{ v1.local_hostname }}'
        taints:
        - {effect: NoSchedule, key: dedicated, value: batch}
        - {effect: NoSchedule, key: node.cluster.x-k8s.io/uninitialized}
      timeouts: {discovery: 10s}
runcmd:
  - kubeadm join --config /run/kubeadm/kubeadm-join-config.yaml  && echo success > /run/cluster-api/bootstrap-success.complete
`, a.Listener.Addr(), hash, joinToken), userdata.InstanceData{InstanceID: "i-1", AvailabilityZone: "a", LocalHostname: "Worker-1"})
	if err != nil || len(disk.Warnings) > 0 {
		t.Fatal(err, disk.Warnings)
	}
	b := NewFleet(t.Context(), Options{}).New(testMachine)
	if err := b.kubeadm(t.Context(), disk, commanded(disk).join); err != nil {
		return nil, err
	}
	return plan(disk, testMachine)
}

func TestKubeadmJoin(t *testing.T) {
	t.Parallel()
	a := newAPIServer(t)
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	other, err := certutil.NewSelfSignedCACert(certutil.Config{CommonName: "other"}, key)
	if err != nil {
		t.Fatal(err)
	}
	right := keyHash(a.Certificate())
	k, err := join(t, a, right)
	if err != nil {
		t.Fatal(err)
	}
	if k.node != "worker-1" || k.server != a.URL || k.token != joinToken || string(k.ca) != string(a.describes) ||
		k.providerID != "simulated:///a/i-1" ||
		k.labels["pool"] != "batch" || k.labels["disk"] != "fast" || len(k.taints) != 2 ||
		k.taints[0].ToString() != "dedicated=batch:NoSchedule" {
		t.Errorf("%+v", k)
	}

	for name, c := range map[string]struct {
		change func(*apiServer)
		hash   string
		words  string
	}{
		"another authority is pinned": {func(*apiServer) {}, keyHash(other), "none of the public keys"},
		"another token has signed":    {func(a *apiServer) { a.signedBy = "abcdef.fedcba9876543210" }, right, "failed to verify JWS signature"},
		"nothing is pinned":           {func(*apiServer) {}, "", "a pinned authority is not simulated"},
		"somebody repeats what the API server said": {func(a *apiServer) {
			a.describes = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: other.Raw})
		}, keyHash(other), "unknown authority"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAPIServer(t)
			c.change(a)
			if _, err := join(t, a, c.hash); err == nil || !strings.Contains(err.Error(), c.words) {
				t.Errorf("%v", err)
			}
		})
	}
}
