// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"net"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/drover-io/drover/bootstrap/render"
)

// kubelet requests certificates as a kubelet does, with the content of a machine's user data.
type kubelet struct {
	node   string
	config *rest.Config
	client kubernetes.Interface
}

func kubeletFrom(t *testing.T, data *corev1.Secret, node string) *kubelet {
	t.Helper()
	g := NewWithT(t)
	raw := filesIn(g, data)[render.BootstrapKubeconfigPath]
	g.Expect(raw).NotTo(BeEmpty(), "there is no bootstrap kubeconfig in the user data")
	config, err := clientcmd.RESTConfigFromKubeConfig(raw)
	g.Expect(err).NotTo(HaveOccurred())
	return newKubelet(g, config, node)
}

// filesIn returns the files that user data writes, by path.
func filesIn(g *WithT, data *corev1.Secret) map[string][]byte {
	doc := struct {
		WriteFiles []struct{ Path, Content, Encoding string } `json:"write_files"`
	}{}
	g.Expect(yaml.Unmarshal(data.Data["value"], &doc)).To(Succeed())
	out := map[string][]byte{}
	for _, f := range doc.WriteFiles {
		out[f.Path] = []byte(f.Content)
		if f.Encoding != "" {
			out[f.Path] = must(base64.StdEncoding.DecodeString(f.Content))(g)
		}
	}
	return out
}

func newKubelet(g *WithT, config *rest.Config, node string) *kubelet {
	config.UserAgent = "kubelet"
	c, err := kubernetes.NewForConfig(config)
	g.Expect(err).NotTo(HaveOccurred())
	return &kubelet{node: node, config: config, client: c}
}

// ask sends a request and returns its name and the key.
func (k *kubelet) ask(t *testing.T, signer, node string, dns []string, ips ...net.IP) (string, *ecdsa.PrivateKey) {
	t.Helper()
	name, key, err := k.send(t, signer, node, dns, ips...)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return name, key
}

func (k *kubelet) send(t *testing.T, signer, node string, dns []string, ips ...net.IP) (string, *ecdsa.PrivateKey, error) {
	t.Helper()
	g := NewWithT(t)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	g.Expect(err).NotTo(HaveOccurred())
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}}, DNSNames: dns, IPAddresses: ips,
	}, key)
	g.Expect(err).NotTo(HaveOccurred())
	usage := certificatesv1.UsageClientAuth
	if signer == certificatesv1.KubeletServingSignerName {
		usage = certificatesv1.UsageServerAuth
	}
	csr, err := k.client.CertificatesV1().CertificateSigningRequests().Create(t.Context(), &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "csr-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
			SignerName: signer, Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, usage},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return "", nil, err
	}
	return csr.Name, key, nil
}

// certificate waits for the requested certificate.
func (e *environment) certificate(t *testing.T, name string) []byte {
	t.Helper()
	g := NewWithT(t)
	csr := &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: name}}
	e.eventually(g, csr, func(g Gomega) {
		g.Expect(csr.Status.Certificate).NotTo(BeEmpty(), "%+v", csr.Status.Conditions)
	})
	return csr.Status.Certificate
}

// leftAlone checks that a request has been neither approved nor denied.
func (e *environment) leftAlone(g Gomega, name string) {
	csr := &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: name}}
	g.Expect(e.Get(context.Background(), clientKey(csr), csr)).To(Succeed())
	g.Expect(csr.Status.Conditions).To(BeEmpty())
	g.Expect(csr.Status.Certificate).To(BeEmpty())
}

// become returns the kubelet with the identity of its client certificate.
func (k *kubelet) become(t *testing.T, certificate []byte, key *ecdsa.PrivateKey) *kubelet {
	t.Helper()
	g := NewWithT(t)
	der, err := x509.MarshalECPrivateKey(key)
	g.Expect(err).NotTo(HaveOccurred())
	config := rest.AnonymousClientConfig(k.config)
	config.CertData = certificate
	config.KeyData = pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
	return newKubelet(g, config, k.node)
}

// register creates the kubelet's Node.
func (k *kubelet) register(t *testing.T, providerID string) {
	t.Helper()
	_, err := k.client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: k.node}, Spec: corev1.NodeSpec{ProviderID: providerID},
	}, metav1.CreateOptions{})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
}

// quiet is how long tests check that nothing happens: several times the duration of an approval.
const quiet = 3 * time.Second
