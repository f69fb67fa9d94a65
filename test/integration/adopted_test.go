// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"crypto/tls"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	controlplanev1 "github.com/drover-io/drover/api/controlplane/v1beta1"
	"github.com/drover-io/drover/internal/test/authority"
)

func pemOf(server *httptest.Server) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
}

// adopt creates a cluster on an existing API server, and waits until it is available.
func adopt(s *tenant) (*controlplanev1.AdoptedControlPlane, *corev1.Secret) {
	s.t.Helper()
	infra := s.DroverCluster()
	infra.Spec.AccountRefs = nil
	adopted := s.ControlPlane()
	s.create(s.kubeconfigSecret(s.Kubeconfig), infra, adopted, s.Cluster())
	s.says(adopted, clusterv1.AvailableCondition, controlplanev1.AvailableReason, "")
	return adopted, read(s, &corev1.Secret{ObjectMeta: s.meta("prod-kubeconfig")})
}

func TestAdopt(t *testing.T) {
	s := newTenant(t)
	adopted, kubeconfig := adopt(s)
	s.Expect(adopted.Status.Version).To(HavePrefix("v1."))
	s.Expect(adopted.Status.ExternalManagedControlPlane).To(Equal(ptr.To(true)))
	s.Expect(adopted.Status.Initialization.ControlPlaneInitialized).To(Equal(ptr.To(true)))
	s.Expect(adopted.Status.ObservedGeneration).To(Equal(adopted.Generation))
	s.Expect(adopted.Finalizers).To(BeEmpty())
	s.Expect(adopted.Spec.ControlPlaneEndpoint.Host).To(Equal("127.0.0.1"))

	s.Expect(kubeconfig.Type).To(Equal(clusterv1.ClusterSecretType))
	s.Expect(kubeconfig.Labels).To(HaveKeyWithValue(clusterv1.ClusterNameLabel, "prod"))
	s.Expect(metav1.IsControlledBy(kubeconfig, adopted)).To(BeTrue())
	s.Expect(kubeconfig.Data).To(HaveLen(1))
	config, err := clientcmd.Load(kubeconfig.Data["value"])
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(config.CurrentContext).To(Equal("prod-admin@prod"))
	s.Expect(read(s, s.kubeconfigSecret(nil)).Labels).To(HaveKey("clusterctl.cluster.x-k8s.io/move"))

	cluster := s.Cluster()
	s.Eventually(func(g Gomega) {
		g.Expect(env.client.Get(s.ctx, client.ObjectKeyFromObject(cluster), cluster)).To(Succeed())
		for _, condition := range []string{clusterv1.AvailableCondition, clusterv1.ClusterControlPlaneAvailableCondition,
			clusterv1.ClusterControlPlaneInitializedCondition, clusterv1.ClusterRemoteConnectionProbeCondition} {
			g.Expect(conditions.IsTrue(cluster, condition)).To(BeTrue(), "%s: %s", condition, conditions.GetMessage(cluster, condition))
		}
		g.Expect(cluster.Spec.ControlPlaneEndpoint).To(Equal(adopted.Spec.ControlPlaneEndpoint))
	}).Should(Succeed())

	// Probes continue, and nothing writes the objects.
	s.atRest(adopted, 5*probeInterval)
	s.atRest(kubeconfig, 2*probeInterval)

	// When the user's kubeconfig changes, Drover updates Cluster API's copy immediately.
	other, err := env.management.Kubeconfig("someone-new", "system:masters")
	s.Expect(err).NotTo(HaveOccurred())
	before := kubeconfig.Data["value"]
	update(s, s.kubeconfigSecret(nil), func(secret *corev1.Secret) { secret.Data["value"] = other })
	s.Eventually(func() []byte { return read(s, kubeconfig).Data["value"] }).ShouldNot(Equal(before))

	// Drover restores its Secret after a change by somebody else.
	update(s, kubeconfig, func(secret *corev1.Secret) { secret.Data["value"], secret.Labels = []byte("spoilt"), nil })
	s.Eventually(func(g Gomega) {
		got := read(s, kubeconfig)
		g.Expect(got.Labels).To(HaveKeyWithValue(clusterv1.ClusterNameLabel, "prod"))
		_, err := clientcmd.RESTConfigFromKubeConfig(got.Data["value"])
		g.Expect(err).NotTo(HaveOccurred())
	}).Should(Succeed())
	s.Expect(env.client.Delete(s.ctx, kubeconfig)).To(Succeed())
	s.Eventually(func() error { return env.client.Get(s.ctx, client.ObjectKeyFromObject(kubeconfig), kubeconfig) }).Should(Succeed())

	// After deletion, Drover's objects are gone. The API server and the user's Secret stay.
	s.Expect(env.client.Delete(s.ctx, cluster)).To(Succeed())
	s.Eventually(func() bool {
		return apierrors.IsNotFound(env.client.Get(s.ctx, client.ObjectKeyFromObject(kubeconfig), kubeconfig))
	}).Should(BeTrue())
	s.Expect(apierrors.IsNotFound(env.client.Get(s.ctx, client.ObjectKeyFromObject(adopted), adopted))).To(BeTrue())
	read(s, s.kubeconfigSecret(nil))
}

// TestAdoptRefuses tests that each unusable kubeconfig leads to a stable condition with the reason,
// and is not copied for Cluster API.
func TestAdoptRefuses(t *testing.T) {
	tests := map[string]struct {
		kubeconfig func(*tenant) []byte
		reason     string
		words      string
	}{
		"no-secret": {func(*tenant) []byte { return nil }, controlplanev1.KubeconfigMissingReason, `Waiting for Secret "prod-adopted"`},
		"empty":     {func(*tenant) []byte { return []byte{} }, controlplanev1.KubeconfigRefusedReason, "the kubeconfig is empty"},
		"malformed": {func(*tenant) []byte { return []byte(marked + ": [") }, controlplanev1.KubeconfigRefusedReason, "can't be parsed"},
		"exec": {func(s *tenant) []byte {
			return s.edited(func(_ *clientcmdapi.Cluster, u *clientcmdapi.AuthInfo) {
				u.Exec = &clientcmdapi.ExecConfig{Command: "/bin/sh", Args: []string{"-c", marked}, APIVersion: "client.authentication.k8s.io/v1"}
			})
		}, controlplanev1.KubeconfigRefusedReason, "exec is not permitted"},
		"file": {func(s *tenant) []byte {
			return s.edited(func(_ *clientcmdapi.Cluster, u *clientcmdapi.AuthInfo) {
				u.TokenFile = "/var/run/secrets/kubernetes.io/serviceaccount/token"
			})
		}, controlplanev1.KubeconfigRefusedReason, "tokenFile refers to a file"},
		"insecure": {func(s *tenant) []byte {
			return s.edited(func(c *clientcmdapi.Cluster, _ *clientcmdapi.AuthInfo) {
				c.InsecureSkipTLSVerify, c.CertificateAuthorityData = true, nil
			})
		}, controlplanev1.KubeconfigRefusedReason, "insecure-skip-tls-verify"},
		"path": {func(s *tenant) []byte {
			return s.edited(func(c *clientcmdapi.Cluster, _ *clientcmdapi.AuthInfo) { c.Server += "/k8s/clusters/c-m-abcde" })
		}, controlplanev1.KubeconfigRefusedReason, "has a path, which machines do not know"},
		"server-name": {func(s *tenant) []byte {
			ca := authority.New(s.t)
			certificate, key := ca.Issue(s.t, time.Now().Add(time.Hour), "kubernetes")
			pair, err := tls.X509KeyPair(certificate, key)
			s.Expect(err).NotTo(HaveOccurred())
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				_, _ = io.WriteString(w, `{"gitVersion": "v1.36.3"}`)
			}))
			server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
			server.StartTLS()
			s.t.Cleanup(server.Close)
			return s.edited(func(c *clientcmdapi.Cluster, u *clientcmdapi.AuthInfo) {
				c.Server, c.TLSServerName, c.CertificateAuthorityData = server.URL, "kubernetes", ca.PEM
				*u = clientcmdapi.AuthInfo{Token: marked}
			})
		}, controlplanev1.KubeconfigRefusedReason, "not for the server's host"},
		"wrong-token": {func(s *tenant) []byte {
			return s.edited(func(_ *clientcmdapi.Cluster, u *clientcmdapi.AuthInfo) { *u = clientcmdapi.AuthInfo{Token: marked} })
		}, controlplanev1.UnauthorizedReason, "HTTP 401"},
		"wrong-ca": {func(s *tenant) []byte {
			other := httptest.NewTLSServer(http.NotFoundHandler())
			s.t.Cleanup(other.Close)
			return s.edited(func(c *clientcmdapi.Cluster, _ *clientcmdapi.AuthInfo) { c.CertificateAuthorityData = pemOf(other) })
		}, controlplanev1.CertificateRefusedReason, "not signed by the kubeconfig's certificate authority"},
		"refused": {func(s *tenant) []byte {
			return s.edited(func(c *clientcmdapi.Cluster, _ *clientcmdapi.AuthInfo) { c.Server = "https://127.0.0.1:1" })
		}, controlplanev1.UnreachableReason, "connection refused"},
		"html": {func(s *tenant) []byte {
			return s.impostor(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>"+marked) })
		}, controlplanev1.UnreachableReason, "a web page"},
		"redirect": {func(s *tenant) []byte {
			return s.impostor(func(w http.ResponseWriter, r *http.Request) {
				http.Redirect(w, r, env.management.AdminConfig().Host+"/version", http.StatusFound)
			})
		}, controlplanev1.UnreachableReason, "redirect"},
		"hangs": {func(s *tenant) []byte {
			return s.impostor(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
		}, controlplanev1.UnreachableReason, "does not answer within 10s"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newTenant(t)
			if data := test.kubeconfig(s); data != nil {
				s.create(s.kubeconfigSecret(data))
			}
			adopted, infra := s.ControlPlane(), s.DroverCluster()
			infra.Spec.AccountRefs = nil
			s.create(infra, adopted, s.Cluster())
			s.says(adopted, clusterv1.AvailableCondition, test.reason, test.words)
			s.Expect(adopted.Status.Initialization.ControlPlaneInitialized).To(BeNil())
			s.Expect(apierrors.IsNotFound(env.client.Get(s.ctx, client.ObjectKey{Namespace: s.Namespace, Name: "prod-kubeconfig"},
				&corev1.Secret{}))).To(BeTrue())
			s.atRest(adopted, 2*time.Second)

			// Drover notices the corrected kubeconfig immediately.
			good := s.kubeconfigSecret(s.Kubeconfig)
			if test.kubeconfig(s) == nil {
				s.create(good)
			} else {
				update(s, good, func(secret *corev1.Secret) { secret.Data = map[string][]byte{"value": s.Kubeconfig} })
			}
			s.says(adopted, clusterv1.AvailableCondition, controlplanev1.AvailableReason, "")
			config, err := clientcmd.RESTConfigFromKubeConfig(s.Kubeconfig)
			s.Expect(err).NotTo(HaveOccurred())
			s.Expect("https://"+adopted.Spec.ControlPlaneEndpoint.String()).To(Equal(config.Host), "the endpoint of the wrong one is not kept")
		})
	}
}

// TestAdoptBelowPath tests that an API server that the kubeconfig reaches below a path, as
// Rancher's do, is adopted with an endpoint of its own, and without one is not. The endpoint of
// the path's host gets to no Cluster.
func TestAdoptBelowPath(t *testing.T) {
	t.Parallel()
	s := newTenant(t)
	config, err := clientcmd.RESTConfigFromKubeConfig(s.Kubeconfig)
	s.Expect(err).NotTo(HaveOccurred())
	admin, err := rest.TransportFor(config)
	s.Expect(err).NotTo(HaveOccurred())
	to, err := url.Parse(config.Host)
	s.Expect(err).NotTo(HaveOccurred())
	const below = "/k8s/clusters/c-m-abcde"
	proxy := &httputil.ReverseProxy{Transport: admin, Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(to)
		r.Out.Header.Del("Authorization")
	}}
	front := httptest.NewTLSServer(http.StripPrefix(below, proxy))
	t.Cleanup(front.Close)
	kubeconfig := s.edited(func(c *clientcmdapi.Cluster, u *clientcmdapi.AuthInfo) {
		c.Server, c.CertificateAuthorityData = front.URL+below, pemOf(front)
		*u = clientcmdapi.AuthInfo{Token: marked}
	})
	infra, adopted, cluster := s.DroverCluster(), s.ControlPlane(), s.Cluster()
	infra.Spec.AccountRefs = nil
	s.create(s.kubeconfigSecret(kubeconfig), infra, adopted, cluster)
	s.says(adopted, clusterv1.AvailableCondition, controlplanev1.KubeconfigRefusedReason, "has a path")
	s.Expect(adopted.Spec.ControlPlaneEndpoint.IsValid()).To(BeFalse())
	s.Expect(read(s, cluster).Spec.ControlPlaneEndpoint.IsValid()).To(BeFalse())

	own := clusterv1.APIEndpoint{Host: "api.example.org", Port: 6443}
	update(s, adopted, func(a *controlplanev1.AdoptedControlPlane) { a.Spec.ControlPlaneEndpoint = own })
	s.says(adopted, clusterv1.AvailableCondition, controlplanev1.AvailableReason, "")
	s.Eventually(func() clusterv1.APIEndpoint { return read(s, cluster).Spec.ControlPlaneEndpoint }).Should(Equal(own))
}

func TestAdoptMissingKey(t *testing.T) {
	s := newTenant(t)
	secret := s.kubeconfigSecret(nil)
	secret.Data = map[string][]byte{"admin.conf": s.Kubeconfig}
	adopted, infra := s.ControlPlane(), s.DroverCluster()
	infra.Spec.AccountRefs = nil
	s.create(secret, infra, adopted, s.Cluster())
	s.says(adopted, clusterv1.AvailableCondition, controlplanev1.KubeconfigMissingReason, `has no key "value"`)
	update(s, adopted, func(a *controlplanev1.AdoptedControlPlane) { a.Spec.KubeconfigRef.Key = "admin.conf" })
	s.says(adopted, clusterv1.AvailableCondition, controlplanev1.AvailableReason, "")
}

// TestAdoptConflict tests that Drover does not change a foreign Secret that has the name of the
// Cluster's kubeconfig.
func TestAdoptConflict(t *testing.T) {
	s := newTenant(t)
	foreign := &corev1.Secret{ObjectMeta: s.meta("prod-kubeconfig"), Data: map[string][]byte{"value": []byte("mine")}}
	adopted, infra := s.ControlPlane(), s.DroverCluster()
	infra.Spec.AccountRefs = nil
	s.create(foreign, s.kubeconfigSecret(s.Kubeconfig), infra, adopted, s.Cluster())
	version := foreign.ResourceVersion
	s.says(adopted, clusterv1.AvailableCondition, controlplanev1.KubeconfigConflictReason, `"prod-kubeconfig"`)
	s.Expect(adopted.Status.Initialization.ControlPlaneInitialized).To(BeNil())
	s.Expect(read(s, foreign).ResourceVersion).To(Equal(version))
	s.Expect(env.client.Delete(s.ctx, foreign)).To(Succeed())
	s.says(adopted, clusterv1.AvailableCondition, controlplanev1.AvailableReason, "")
}

// TestAdoptAuthority tests that Cluster API's kubeadm bootstrap provider finds the kubeconfig's CA,
// without a key, while the cluster is adopted.
func TestAdoptAuthority(t *testing.T) {
	s := newTenant(t)
	adopted, kubeconfig := adopt(s)
	authority := read(s, &corev1.Secret{ObjectMeta: s.meta("prod-ca")})
	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig.Data["value"])
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(authority.Type).To(Equal(clusterv1.ClusterSecretType))
	s.Expect(authority.Labels).To(HaveKeyWithValue(clusterv1.ClusterNameLabel, "prod"))
	s.Expect(metav1.IsControlledBy(authority, adopted)).To(BeTrue())
	s.Expect(authority.Data).To(HaveLen(2))
	s.Expect(authority.Data["tls.crt"]).To(Equal(config.CAData))
	s.Expect(authority.Data["tls.key"]).NotTo(BeEmpty(), "the provider refuses that")
	block, _ := pem.Decode(authority.Data["tls.key"])
	s.Expect(block).To(BeNil())
	s.atRest(authority, 2*probeInterval)

	// Drover adds a new CA from the user's kubeconfig next to the old one, and restores the Secret
	// after a change by somebody else.
	other := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(other.Close)
	both := append(slices.Clone(config.CAData), pemOf(other)...)
	rotated := s.edited(func(c *clientcmdapi.Cluster, _ *clientcmdapi.AuthInfo) { c.CertificateAuthorityData = both })
	update(s, s.kubeconfigSecret(nil), func(secret *corev1.Secret) { secret.Data["value"] = rotated })
	s.Eventually(func() []byte { return read(s, authority).Data["tls.crt"] }).Should(Equal(both))
	update(s, authority, func(secret *corev1.Secret) { secret.Data["tls.crt"] = []byte("spoilt") })
	s.Eventually(func() []byte { return read(s, authority).Data["tls.crt"] }).Should(Equal(both))

	s.Expect(env.client.Delete(s.ctx, s.Cluster())).To(Succeed())
	s.Eventually(func() bool {
		return apierrors.IsNotFound(env.client.Get(s.ctx, client.ObjectKeyFromObject(authority), authority))
	}).Should(BeTrue())
}

// TestAdoptForeignAuthority tests that Drover leaves a foreign Secret with the CA's name unchanged,
// and that the Secret blocks nothing.
func TestAdoptForeignAuthority(t *testing.T) {
	s := newTenant(t)
	foreign := &corev1.Secret{ObjectMeta: s.meta("prod-ca"), Data: map[string][]byte{"tls.crt": []byte("mine"), "tls.key": []byte("mine")}}
	s.create(foreign)
	version := foreign.ResourceVersion
	adopted, _ := adopt(s)
	s.Expect(adopted.Status.Initialization.ControlPlaneInitialized).To(Equal(ptr.To(true)))
	s.Expect(read(s, foreign).ResourceVersion).To(Equal(version))
	s.Expect(env.client.Delete(s.ctx, s.Cluster())).To(Succeed())
	s.Eventually(func() bool {
		return apierrors.IsNotFound(env.client.Get(s.ctx, client.ObjectKeyFromObject(adopted), adopted))
	}).Should(BeTrue())
	s.Expect(read(s, foreign).ResourceVersion).To(Equal(version))
}

// TestAdoptInPlace tests that the user may write the kubeconfig directly into the Secret that
// Cluster API reads, if the Secret has the required label.
func TestAdoptInPlace(t *testing.T) {
	s := newTenant(t)
	secret := &corev1.Secret{ObjectMeta: s.meta("prod-kubeconfig"), Data: map[string][]byte{"value": s.Kubeconfig}}
	adopted, infra := s.ControlPlane(), s.DroverCluster()
	infra.Spec.AccountRefs = nil
	adopted.Spec.KubeconfigRef.Name = "prod-kubeconfig"
	s.create(secret, infra, adopted, s.Cluster())
	s.says(adopted, clusterv1.AvailableCondition, controlplanev1.KubeconfigConflictReason, "label it")
	update(s, secret, func(secret *corev1.Secret) { secret.Labels = map[string]string{clusterv1.ClusterNameLabel: "prod"} })
	s.says(adopted, clusterv1.AvailableCondition, controlplanev1.AvailableReason, "")
	s.Expect(read(s, secret).OwnerReferences).To(BeEmpty())
	s.Expect(secret.Data["value"]).To(Equal(s.Kubeconfig))
}

// TestAdoptedGoesAway tests that an unreachable API server is reported, and that the status reached
// before stays.
func TestAdoptedGoesAway(t *testing.T) {
	s := newTenant(t)
	adopted, kubeconfig := adopt(s)
	before := kubeconfig.Data["value"]
	dead := s.edited(func(c *clientcmdapi.Cluster, _ *clientcmdapi.AuthInfo) { c.Server = "https://127.0.0.1:1" })
	update(s, s.kubeconfigSecret(nil), func(secret *corev1.Secret) { secret.Data["value"] = dead })
	s.says(adopted, clusterv1.AvailableCondition, controlplanev1.UnreachableReason, "connection refused")
	s.Expect(adopted.Status.Initialization.ControlPlaneInitialized).To(Equal(ptr.To(true)))
	s.Expect(adopted.Status.Version).NotTo(BeEmpty())
	s.Expect(read(s, kubeconfig).Data["value"]).To(Equal(before), "a kubeconfig that does not work replaced one that may")
	s.atRest(adopted, 3*probeInterval)
}

func TestAdoptedEndpoint(t *testing.T) {
	s := newTenant(t)
	adopted, _ := adopt(s)
	cluster := s.Cluster()
	s.Eventually(func() bool { return read(s, cluster).Spec.ControlPlaneEndpoint.IsValid() }).Should(BeTrue())
	right := adopted.Spec.ControlPlaneEndpoint
	update(s, adopted, func(a *controlplanev1.AdoptedControlPlane) {
		a.Spec.ControlPlaneEndpoint.Host = "elsewhere.example.org"
	})
	s.says(adopted, clusterv1.AvailableCondition, controlplanev1.EndpointMismatchReason, "elsewhere.example.org")
	update(s, adopted, func(a *controlplanev1.AdoptedControlPlane) { a.Spec.ControlPlaneEndpoint = right })
	s.says(adopted, clusterv1.AvailableCondition, controlplanev1.AvailableReason, "")

	update(s, adopted, func(a *controlplanev1.AdoptedControlPlane) { a.Spec.Version = "v9.9.9" })
	s.says(adopted, clusterv1.AvailableCondition, controlplanev1.AvailableReason, "spec.version is v9.9.9")
}

// TestAdoptedTakesClusterEndpoint tests that an endpoint set on the Cluster takes precedence.
func TestAdoptedTakesClusterEndpoint(t *testing.T) {
	s := newTenant(t)
	infra, adopted, cluster := s.DroverCluster(), s.ControlPlane(), s.Cluster()
	infra.Spec.AccountRefs = nil
	cluster.Spec.ControlPlaneEndpoint = clusterv1.APIEndpoint{Host: "api.example.org", Port: 6443}
	s.create(s.kubeconfigSecret(s.Kubeconfig), infra, adopted, cluster)
	s.says(adopted, clusterv1.AvailableCondition, controlplanev1.AvailableReason, "")
	s.Expect(adopted.Spec.ControlPlaneEndpoint).To(Equal(cluster.Spec.ControlPlaneEndpoint))
	s.Eventually(func() clusterv1.APIEndpoint {
		return read(s,
			infra).Spec.ControlPlaneEndpoint
	}).Should(Equal(cluster.Spec.ControlPlaneEndpoint))
}
