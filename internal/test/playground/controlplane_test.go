// SPDX-License-Identifier: Apache-2.0

package playground

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"net"
	"os"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const patience = 30 * time.Second

func TestControlPlane(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	began := time.Now()
	c, err := StartControlPlane(t.Context(), ControlPlaneOptions{
		Progress:              os.Stderr,
		ControllerManagerArgs: []string{"--node-startup-grace-period=6s", "--node-monitor-period=1s"},
	})
	g.Expect(err).NotTo(HaveOccurred())
	t.Logf("started in %s", time.Since(began).Round(time.Millisecond))
	defer func() { g.Expect(c.Stop()).To(Succeed()) }()
	admin := kubernetes.NewForConfigOrDie(c.AdminConfig())

	t.Run("a token joins a node, by a request that somebody must approve", func(t *testing.T) {
		join(t, c, admin)
	})
	t.Run("a node that falls silent is told so", func(t *testing.T) {
		g := NewWithT(t)
		node, err := admin.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "silent"}},
			metav1.CreateOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Eventually(func(g Gomega) {
			node, err = admin.CoreV1().Nodes().Get(t.Context(), "silent", metav1.GetOptions{})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(node.Status.Conditions).To(ContainElement(And(
				HaveField("Type", corev1.NodeReady), HaveField("Status", corev1.ConditionUnknown))))
		}, patience).Should(Succeed())
	})
	t.Run("a service account may do what its roles say", func(t *testing.T) {
		g := NewWithT(t)
		raw, err := c.ServiceAccountKubeconfig(t.Context(), "default", "default")
		g.Expect(err).NotTo(HaveOccurred())
		_, err = clientFor(t, raw).CoreV1().Secrets("default").List(t.Context(), metav1.ListOptions{})
		g.Expect(apierrors.IsForbidden(err)).To(BeTrue(), "%v", err)
	})
	t.Run("a restarted API server has the same address and data", func(t *testing.T) {
		g := NewWithT(t)
		_, err := admin.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kept"}},
			metav1.CreateOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		c.StopAPIServer()
		_, err = admin.CoreV1().ConfigMaps("default").Get(t.Context(), "kept", metav1.GetOptions{})
		g.Expect(err).To(HaveOccurred())
		g.Expect(c.StartAPIServer(t.Context())).To(Succeed())
		_, err = admin.CoreV1().ConfigMaps("default").Get(t.Context(), "kept", metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred())
	})
	t.Run("usage", func(t *testing.T) {
		g := NewWithT(t)
		u, err := c.APIServer().Usage()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(u.CPU).To(BeNumerically(">", 100*time.Millisecond))
		g.Expect(u.PeakMemory).To(BeNumerically(">", 50<<20))
	})
}

// join does what a kubelet does with a bootstrap token: it requests a certificate and uses it.
func join(t *testing.T, c *ControlPlane, admin kubernetes.Interface) {
	g := NewWithT(t)
	ctx := t.Context()
	_, err := admin.CoreV1().Secrets("kube-system").Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-abcdef"},
		Type:       corev1.SecretTypeBootstrapToken,
		StringData: map[string]string{"token-id": "abcdef", "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true"},
	}, metav1.CreateOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	_, err = admin.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "join"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:node-bootstrapper"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "Group", Name: "system:bootstrappers"}},
	}, metav1.CreateOptions{})
	g.Expect(err).NotTo(HaveOccurred())

	kubelet := kubernetes.NewForConfigOrDie(&rest.Config{
		Host: c.URL, BearerToken: "abcdef.0123456789abcdef", TLSClientConfig: rest.TLSClientConfig{CAData: c.CA()},
	})
	key, request := certificateRequest(t, "system:node:n1", "system:nodes")
	csr := &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: "n1"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: request, SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
			Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
		},
	}
	g.Eventually(func() error { // the token authenticator sees the Secret through a watch
		_, err := kubelet.CertificatesV1().CertificateSigningRequests().Create(ctx, csr, metav1.CreateOptions{})
		return err
	}, patience).Should(Succeed())
	g.Consistently(func() []certificatesv1.CertificateSigningRequestCondition {
		csr, err = admin.CertificatesV1().CertificateSigningRequests().Get(ctx, "n1", metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		return csr.Status.Conditions
	}, "1s").Should(BeEmpty(), "approving is Drover's work")
	csr.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved,
		Status: corev1.ConditionTrue, Reason: "Test"}}
	_, err = admin.CertificatesV1().CertificateSigningRequests().UpdateApproval(ctx, "n1", csr, metav1.UpdateOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(func() []byte {
		csr, err = admin.CertificatesV1().CertificateSigningRequests().Get(ctx, "n1", metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		return csr.Status.Certificate
	}, patience).ShouldNot(BeEmpty())

	node := kubernetes.NewForConfigOrDie(&rest.Config{
		Host: c.URL, TLSClientConfig: rest.TLSClientConfig{CAData: c.CA(), CertData: csr.Status.Certificate, KeyData: key},
	})
	_, err = node.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, metav1.CreateOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	_, err = node.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}}, metav1.CreateOptions{})
	g.Expect(apierrors.IsForbidden(err)).To(BeTrue(), "NodeRestriction: %v", err)
}

func certificateRequest(t *testing.T, name, group string) (key, request []byte) {
	t.Helper()
	g := NewWithT(t)
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	g.Expect(err).NotTo(HaveOccurred())
	der, err := x509.CreateCertificateRequest(rand.Reader,
		&x509.CertificateRequest{Subject: pkix.Name{CommonName: name, Organization: []string{group}}}, private)
	g.Expect(err).NotTo(HaveOccurred())
	key, err = encodeKey(private)
	g.Expect(err).NotTo(HaveOccurred())
	return key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

func clientFor(t *testing.T, raw []byte) kubernetes.Interface {
	t.Helper()
	config, err := clientcmd.RESTConfigFromKubeConfig(raw)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return kubernetes.NewForConfigOrDie(config)
}

func TestStartFails(t *testing.T) {
	t.Parallel()
	t.Run("with the end of the log of what ended", func(t *testing.T) {
		g := NewWithT(t)
		_, err := StartControlPlane(t.Context(), ControlPlaneOptions{APIServerArgs: []string{"--no-such-flag"}})
		g.Expect(err).To(MatchError(ContainSubstring("unknown flag: --no-such-flag")))
	})
	t.Run("when it takes longer than the caller waits", func(t *testing.T) {
		g := NewWithT(t)
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		dir := t.TempDir()
		tools, err := FindTools(t.Context(), os.Stderr, "etcd", "kube-apiserver", "kube-controller-manager")
		g.Expect(err).NotTo(HaveOccurred())
		_, err = StartControlPlane(ctx, ControlPlaneOptions{Dir: dir, Tools: tools})
		g.Expect(err).To(MatchError(context.DeadlineExceeded))
	})
	t.Run("for a tool that there is not", func(t *testing.T) {
		_, err := FindTools(t.Context(), nil, "no-such-tool")
		NewWithT(t).Expect(err).To(MatchError(ContainSubstring("unknown tool 'no-such-tool'")))
	})
}

// TestListen checks that of six ports, four of them taken, the two free ones are found, and that a
// request for three fails.
func TestListen(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const all, free = 6, 2
	// Other tests take ports too, but rarely these.
	g.Eventually(func(g Gomega) {
		some, err := FreePorts(1)
		g.Expect(err).NotTo(HaveOccurred())
		first, want := some[0], map[string]bool{}
		for n := range all {
			l, err := net.Listen("tcp", local(first+n))
			g.Expect(err).NotTo(HaveOccurred())
			defer l.Close()
			if n%3 == 1 {
				g.Expect(l.Close()).To(Succeed())
				want[local(first+n)] = true
			}
		}
		_, err = listen(loopback, free+1, first, first+all)
		g.Expect(err).To(MatchError(ContainSubstring("no 3 free ports")))
		found, err := listen(loopback, free, first, first+all)
		g.Expect(err).NotTo(HaveOccurred())
		defer closeAll(found)
		for _, l := range found {
			g.Expect(want).To(HaveKey(l.Addr().String()))
		}
	}).Should(Succeed())
}
