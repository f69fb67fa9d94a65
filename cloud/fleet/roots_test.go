// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"testing"

	. "github.com/onsi/gomega"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
	"github.com/drover-io/drover/cloud"
)

// TestRoots: an account's own authorities are trusted by that account alone, and no others by it.
func TestRoots(t *testing.T) {
	g := NewWithT(t)
	server := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	known, strange := x509.NewCertPool(), x509.NewCertPool()
	known.AddCert(server.Certificate())
	base := &http.Transport{}
	ask := func(roots *x509.CertPool) error {
		row := cloud.Cloud{Roots: func(*infrav1.CloudAccountSpec) (*x509.CertPool, error) { return roots, nil }}
		carrier, err := row.Trusting(base, nil, nil)
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

	row := cloud.Cloud{Roots: func(*infrav1.CloudAccountSpec) (*x509.CertPool, error) { return known, nil }}
	_, err := row.Trusting(http.NewFileTransport(http.Dir(".")), nil, nil)
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.InvalidSpec), "what can't be told whom to trust is not used")
}
