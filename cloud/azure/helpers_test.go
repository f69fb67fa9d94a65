// SPDX-License-Identifier: Apache-2.0

package azure

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"io"
	"math/big"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
)

// roundTrip is a transport.
type roundTrip func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f roundTrip) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// foreignResponse returns an answer that the cloud did not write.
func foreignResponse(req *http.Request, status int, body string) *http.Response {
	return &http.Response{StatusCode: status, Header: http.Header{"Content-Type": {"text/html"}}, Request: req,
		Body: io.NopCloser(strings.NewReader(body))}
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// testCertificate returns a certificate with its key as PEM, and a judge of the assertions that are
// signed with it (RFC 7523, with PS256 as Microsoft's identity platform requires).
func testCertificate(t *testing.T) (bundle []byte, judge func(string) bool) {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "drover"}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	bundle = append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})...)
	return bundle, func(assertion string) bool {
		at := strings.LastIndexByte(assertion, '.')
		if at < 0 {
			return false
		}
		signature, err := base64.RawURLEncoding.DecodeString(assertion[at+1:])
		digest := sha256.Sum256([]byte(assertion[:at]))
		return err == nil && rsa.VerifyPSS(&key.PublicKey, crypto.SHA256, digest[:], signature, nil) == nil
	}
}
