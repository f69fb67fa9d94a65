// SPDX-License-Identifier: Apache-2.0

package openstack

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
	"testing"
	"time"

	. "github.com/onsi/gomega"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/internal/test/authority"
)

// clientCertificate returns a self-signed certificate and its key.
func clientCertificate(g Gomega) (certificate, key []byte) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	g.Expect(err).NotTo(HaveOccurred())
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "drover"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	g.Expect(err).NotTo(HaveOccurred())
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	g.Expect(err).NotTo(HaveOccurred())
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
}

// TestClientCertificate: the driver presents the Secret's client certificate to a service that
// requires one. A certificate without key, or a key alone, is refused.
func TestClientCertificate(t *testing.T) {
	g := NewWithT(t)
	certificate, key := clientCertificate(g)
	known := x509.NewCertPool()
	g.Expect(known.AppendCertsFromPEM(certificate)).To(BeTrue())
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	server.TLS = &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: known, MinVersion: tls.VersionTLS12}
	server.StartTLS()
	t.Cleanup(server.Close)
	account := &infrav1.DroverAccountSpec{Cloud: infrav1.AccountCloud{OpenStack: &infrav1.OpenStackAccount{
		CABundle: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})),
	}}}
	ask := func(credentials map[string][]byte) error {
		trust, err := connection(account.Cloud.OpenStack, credentials)
		if err != nil {
			return err
		}
		transport, err := cloud.Connect(&http.Transport{}, trust)
		g.Expect(err).NotTo(HaveOccurred())
		client := http.Client{Transport: transport}
		t.Cleanup(client.CloseIdleConnections)
		resp, err := client.Get(server.URL)
		if err == nil {
			err = resp.Body.Close()
		}
		return err
	}
	g.Expect(ask(map[string][]byte{"tls.crt": certificate, "tls.key": key})).To(Succeed())
	g.Expect(ask(nil)).To(MatchError(ContainSubstring("certificate required")))
	other, _ := clientCertificate(g)
	for _, bad := range []map[string][]byte{{"tls.crt": certificate}, {"tls.key": key}, {"tls.crt": other, "tls.key": key},
		{"tls.crt": key, "tls.key": certificate}} {
		err := ask(bad)
		g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unauthorized), "%v", err)
	}
	account.Cloud.OpenStack.CABundle = ""
	config, err := connection(account.Cloud.OpenStack, nil)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(config).To(BeNil(), "the shared connections do")
}

// TestHugeKeyIsRefused: no number in a Secret's key keeps the manager computing.
func TestHugeKeyIsRefused(t *testing.T) {
	t.Parallel()
	certificate, _ := clientCertificate(NewWithT(t))
	for name, key := range authority.HugeKeys(t) {
		_, err := connection(&infrav1.OpenStackAccount{}, map[string][]byte{certificateKey: certificate, privateKey: key})
		NewWithT(t).Expect(cloud.CodeOf(err)).To(Equal(cloud.Unauthorized), "%s: %v", name, err)
	}
}
