// SPDX-License-Identifier: Apache-2.0

package authority

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"math/big"
	"testing"
	"time"
)

// hugePrime is the size of a number that Go needs hours to compute with.
const hugePrime = 128 << 10

// HugeKeys returns private RSA keys in PEM, by their format, that Go's parser would compute with for
// hours. They lack the values for the Chinese remainder theorem, so the parser computes them before
// it finds that the key is wrong.
func HugeKeys(t testing.TB) map[string][]byte {
	t.Helper()
	huge := new(big.Int).Lsh(big.NewInt(1), hugePrime)
	huge.Add(huge, big.NewInt(1))
	pkcs1 := marshal(t, struct {
		Version int
		N       *big.Int
		E       int
		D, P, Q *big.Int
	}{0, huge, 65537, big.NewInt(3), huge, big.NewInt(5)})
	pkcs8 := marshal(t, struct {
		Version    int
		Algorithm  pkix.AlgorithmIdentifier
		PrivateKey []byte
	}{0, pkix.AlgorithmIdentifier{Algorithm: asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, 1}, Parameters: asn1.NullRawValue}, pkcs1})
	return map[string][]byte{
		"PKCS#1": encode("RSA PRIVATE KEY", pkcs1), "PKCS#8": encode("PRIVATE KEY", pkcs8),
		"PKCS#1 of the wrong type": encode("PRIVATE KEY", pkcs1),
	}
}

// Huge returns a certificate in PEM, with a public RSA key of this many bits.
func (a *Authority) Huge(t testing.TB, bits uint) []byte {
	t.Helper()
	n := new(big.Int).Lsh(big.NewInt(1), bits-1)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(3), Subject: pkix.Name{CommonName: "huge"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.Certificate, &rsa.PublicKey{N: n.Add(n, big.NewInt(1)), E: 65537}, a.key)
	if err != nil {
		t.Fatal(err)
	}
	return encode("CERTIFICATE", der)
}

func marshal(t testing.TB, value any) []byte {
	t.Helper()
	der, err := asn1.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return der
}
