// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"testing"

	. "github.com/onsi/gomega"
)

// TestConnect: an account's own CAs are trusted by that account alone, and it trusts no others.
func TestConnect(t *testing.T) {
	g := NewWithT(t)
	server := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	known, strange := x509.NewCertPool(), x509.NewCertPool()
	known.AddCert(server.Certificate())
	base := &http.Transport{}
	ask := func(roots *x509.CertPool) error {
		var trust *tls.Config
		if roots != nil {
			trust = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
		}
		carrier, err := Connect(base, trust)
		g.Expect(err).NotTo(HaveOccurred())
		client := http.Client{Transport: carrier}
		t.Cleanup(client.CloseIdleConnections)
		resp, err := client.Get(server.URL)
		if err == nil {
			err = resp.Body.Close()
		}
		return err
	}
	g.Expect(ask(known)).To(Succeed())
	g.Expect(ask(strange)).To(MatchError(ContainSubstring("unknown authority")))
	g.Expect(ask(nil)).To(MatchError(ContainSubstring("certificate")), "the shared transport learned nothing")

	_, err := Connect(http.NewFileTransport(http.Dir(".")), &tls.Config{RootCAs: known, MinVersion: tls.VersionTLS12})
	g.Expect(CodeOf(err)).To(Equal(InvalidSpec), "what can't be told whom to trust is not used")
}
