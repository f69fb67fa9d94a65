// SPDX-License-Identifier: Apache-2.0

package keybound

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"math/big"
	"testing"
	"time"

	"github.com/drover-io/drover/internal/test/authority"
)

// TestKeysOfUsersPass: keys as tools make them are accepted, in each format.
func TestKeysOfUsersPass(t *testing.T) {
	t.Parallel()
	for _, bits := range []int{2048, 4096} {
		key, err := rsa.GenerateKey(rand.Reader, bits)
		if err != nil {
			t.Fatal(err)
		}
		accept(t, key, "RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(key))
	}
	curve, err := ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(curve)
	if err != nil {
		t.Fatal(err)
	}
	accept(t, curve, "EC PRIVATE KEY", der)
	_, edwards, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	accept(t, edwards, "X", []byte("no key"))
}

func accept(t *testing.T, key any, kind string, der []byte) {
	t.Helper()
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	text := append(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})...)
	if err := PEM(text); err != nil {
		t.Errorf("%s: %v", kind, err)
	}
}

// TestHugeKeysAreRefused: each number of a key is bounded, wherever the key is.
func TestHugeKeysAreRefused(t *testing.T) {
	t.Parallel()
	for name, text := range authority.HugeKeys(t) {
		for where, text := range map[string][]byte{
			"alone": text, "after another block": append(pem.EncodeToMemory(&pem.Block{Type: "X", Bytes: []byte("x")}), text...),
		} {
			if err := PEM(text); !errors.Is(err, ErrTooLarge) {
				t.Errorf("%s %s: %v", name, where, err)
			}
		}
	}
	type prime struct{ Prime, Exp, Coeff *big.Int }
	type key struct {
		Version             int
		N                   *big.Int
		E                   int
		D, P, Q, Dp, Dq, Qi *big.Int
		More                []prime `asn1:"optional,omitempty"`
	}
	small, largest := func() *big.Int { return big.NewInt(7) }, func(bits uint) *big.Int { return new(big.Int).Lsh(big.NewInt(1), bits-1) }
	whole := func() key {
		return key{N: largest(8192), E: 65537, D: largest(8192), P: largest(4096), Q: largest(4096), Dp: small(), Dq: small(), Qi: small()}
	}
	for name, tt := range map[string]struct {
		edit func(*key)
		want error
	}{
		"the largest": {func(*key) {}, nil},
		"N":           {func(k *key) { k.N = largest(8193) }, ErrTooLarge},
		"D":           {func(k *key) { k.D = largest(8193) }, ErrTooLarge},
		"P":           {func(k *key) { k.P = largest(4097) }, ErrTooLarge},
		"Q":           {func(k *key) { k.Q = largest(4097) }, ErrTooLarge},
		"Qi":          {func(k *key) { k.Qi = largest(4097) }, ErrTooLarge},
		"negative P":  {func(k *key) { k.P = new(big.Int).Neg(largest(4097)) }, ErrTooLarge},
		"more primes": {func(k *key) { k.Version, k.More = 1, []prime{{small(), small(), small()}} }, ErrTooLarge},
	} {
		k := whole()
		tt.edit(&k)
		der, err := asn1.Marshal(k)
		if err != nil {
			t.Fatal(err)
		}
		if err := DER(append(der, "trailing"...)); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", name, err, tt.want)
		}
	}
}

func TestCertificate(t *testing.T) {
	t.Parallel()
	ca := authority.New(t)
	issued, _ := ca.Issue(t, time.Now().Add(time.Hour))
	for name, tt := range map[string]struct {
		text []byte
		want error
	}{
		"of a curve": {issued, nil}, "the largest": {ca.Huge(t, 8192), nil}, "too large": {ca.Huge(t, 8193), ErrTooLarge},
	} {
		block, _ := pem.Decode(tt.text)
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		if err := Certificate(certificate); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", name, err, tt.want)
		}
	}
}
