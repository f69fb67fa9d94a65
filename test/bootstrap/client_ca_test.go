// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	kubeletv1 "k8s.io/kubelet/config/v1beta1"
	"sigs.k8s.io/yaml"

	"github.com/drover-io/drover/bootstrap/render"
)

// TestSeparateAuthorities: an API server has one certificate authority for itself, which is the
// kubeconfig's, and one for clients, as k3s' and RKE2's have. The kubelet of a new machine lets in
// who has a certificate of the latter, as the API server has, and nobody with one of the former. A
// kubeconfig that does not permit to read the authority keeps nobody from joining.
func TestSeparateAuthorities(t *testing.T) {
	g, dir := NewWithT(t), t.TempDir()
	servers := newServingAuthority(t)
	cert, key := filepath.Join(dir, "server.crt"), filepath.Join(dir, "server.key")
	servers.issue(t, cert, key)
	e := newEnvironment(t, "--tls-sni-cert-key="+cert+","+key+":localhost")
	e.manager(t)
	clients := e.AdminConfig().CAData

	admin := e.behind(t, servers.pem, "adopter", "system:masters")
	_, config := e.machine(t, e.cluster(t, "separate", admin), "separate-1")
	files := filesIn(g, e.data(t, config))
	g.Expect(string(files[render.CAPath])).To(Equal(string(servers.pem)), "the machine's connections to the API server")
	published := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem,
		Name: "extension-apiserver-authentication"}}
	g.Expect(e.Get(t.Context(), clientKey(published), published)).To(Succeed())
	g.Expect(published.Data["client-ca-file"]).To(Equal(string(clients)))
	g.Expect(letsIn(t, files, e.AdminConfig().TLSClientConfig)).To(BeTrue())
	g.Expect(letsIn(t, files, rest.TLSClientConfig{CertFile: cert, KeyFile: key})).To(BeFalse())

	// A cluster with one authority has one file, and so has one whose kubeconfig may not read it.
	_, config = e.machine(t, e.cluster(t, "one", nil), "one-1")
	g.Expect(filesIn(g, e.data(t, config))).NotTo(HaveKey(render.ClientCAPath))
	e.mayNotReadConfigMaps(t, "blind")
	_, config = e.machine(t, e.cluster(t, "blind", e.behind(t, servers.pem, "blind")), "blind-1")
	g.Expect(filesIn(g, e.data(t, config))).NotTo(HaveKey(render.ClientCAPath))
}

// letsIn reports whether a kubelet with these files accepts a client certificate.
func letsIn(t *testing.T, files map[string][]byte, client rest.TLSClientConfig) bool {
	t.Helper()
	g := NewWithT(t)
	kubelet := kubeletv1.KubeletConfiguration{}
	g.Expect(yaml.Unmarshal(files[render.KubeletConfigPath], &kubelet)).To(Succeed())
	pool := x509.NewCertPool()
	g.Expect(pool.AppendCertsFromPEM(files[kubelet.Authentication.X509.ClientCAFile])).To(BeTrue())
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.TLS = &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool}
	server.StartTLS()
	defer server.Close()
	c, err := rest.HTTPClientFor(&rest.Config{TLSClientConfig: rest.TLSClientConfig{
		Insecure: true, CertFile: client.CertFile, KeyFile: client.KeyFile, CertData: client.CertData, KeyData: client.KeyData,
	}})
	g.Expect(err).NotTo(HaveOccurred())
	response, err := c.Get(server.URL)
	if err != nil {
		return false
	}
	return response.Body.Close() == nil
}

// behind returns a kubeconfig for the address at which the API server has a certificate of another
// authority.
func (e *environment) behind(t *testing.T, ca []byte, user string, groups ...string) []byte {
	t.Helper()
	g := NewWithT(t)
	config := must(clientcmd.Load(must(e.Kubeconfig(user, groups...))(g)))(g)
	for _, c := range config.Clusters {
		c.Server, c.CertificateAuthorityData = "https://localhost"+e.URL[len("https://127.0.0.1"):], ca
	}
	return must(clientcmd.Write(*config))(g)
}

// mayNotReadConfigMaps gives a user all rights that a join needs, but none on ConfigMaps.
func (e *environment) mayNotReadConfigMaps(t *testing.T, name string) {
	t.Helper()
	g := NewWithT(t)
	g.Expect(e.Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"secrets", "nodes"}, Verbs: []string{"*"}},
		{APIGroups: []string{rbacv1.GroupName, "certificates.k8s.io"}, Resources: []string{"*"}, Verbs: []string{"*"}},
		{NonResourceURLs: []string{"/", "/version"}, Verbs: []string{"get"}},
	}})).To(Succeed())
	g.Expect(e.Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}},
	})).To(Succeed())
}

// servingAuthority signs certificates of servers.
type servingAuthority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newServingAuthority(t *testing.T) *servingAuthority {
	t.Helper()
	g := NewWithT(t)
	a := &servingAuthority{key: must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(g)}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "servers"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(24 * time.Hour),
		IsCA:     true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der := must(x509.CreateCertificate(rand.Reader, template, template, a.key.Public(), a.key))(g)
	a.cert = must(x509.ParseCertificate(der))(g)
	a.pem = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return a
}

// issue writes a certificate for localhost, and its key.
func (a *servingAuthority) issue(t *testing.T, certFile, keyFile string) {
	t.Helper()
	g := NewWithT(t)
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(g)
	der := must(x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "kube-apiserver"}, DNSNames: []string{"localhost"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, a.cert, key.Public(), a.key))(g)
	for file, block := range map[string]*pem.Block{
		certFile: {Type: "CERTIFICATE", Bytes: der}, keyFile: {Type: "EC PRIVATE KEY", Bytes: must(x509.MarshalECPrivateKey(key))(g)},
	} {
		g.Expect(os.WriteFile(file, pem.EncodeToMemory(block), 0o600)).To(Succeed())
	}
}
