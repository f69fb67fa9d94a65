// SPDX-License-Identifier: Apache-2.0

// Package keybound refuses RSA keys that are too large, before anything computes with them. Go's
// parser of private keys computes with numbers of any size before it checks them: one key in a
// Secret would take a processor for days. Whatever a tenant wrote passes here before it is parsed as
// a private key, or trusted as a certificate. The package imports nothing else of this module.
package keybound

import (
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"math/big"
)

const (
	// maxModulus is the size of the largest RSA key, in bits. It is crypto/tls's limit for the
	// certificates of the other side.
	maxModulus = 8192
	// maxPrime is the size of the primes of such a key. The parser's cost grows with the third power
	// of it: 4096 bits take up to 0.1 s.
	maxPrime = maxModulus / 2
)

// ErrTooLarge is the error for a key that is refused.
var ErrTooLarge = errors.New("an RSA key has more than 8192 bits, or is not made of two primes of half its size")

// PEM refuses a text with an RSA private key that is too large in any of its blocks. It looks into
// blocks of every type, because some parsers ignore the type. It accepts all other text: whether it
// holds a key at all is the parser's matter.
func PEM(text []byte) error {
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if err := DER(block.Bytes); err != nil {
			return err
		}
	}
	return nil
}

// DER refuses an RSA private key that is too large, in PKCS #1 or PKCS #8, and accepts everything
// else, as PEM does.
func DER(der []byte) error {
	var wrapped struct { // as in crypto/x509
		Version    int
		Algorithm  pkix.AlgorithmIdentifier
		PrivateKey []byte
	}
	if _, err := asn1.Unmarshal(der, &wrapped); err == nil {
		der = wrapped.PrivateKey
	}
	var key struct { // as in crypto/x509, which goes on only if its fields fit
		Version      int
		N            *big.Int
		E            int
		D, P, Q      *big.Int
		Dp, Dq, Qinv *big.Int `asn1:"optional"`
		More         []struct {
			Prime, Exp, Coeff *big.Int
		} `asn1:"optional,omitempty"`
	}
	if _, err := asn1.Unmarshal(der, &key); err != nil {
		return nil // no RSA key. The numbers of other keys are those of a known curve
	}
	if len(key.More) > 0 || key.N.BitLen() > maxModulus || key.D.BitLen() > maxModulus {
		return ErrTooLarge
	}
	for _, n := range []*big.Int{key.P, key.Q, key.Dp, key.Dq, key.Qinv} {
		if n != nil && n.BitLen() > maxPrime {
			return ErrTooLarge
		}
	}
	return nil
}

// Certificate refuses a certificate whose RSA key is too large. crypto/tls refuses such certificates
// of the other side, but not those that verify them.
func Certificate(certificate *x509.Certificate) error {
	if key, ok := certificate.PublicKey.(*rsa.PublicKey); ok && key.N.BitLen() > maxModulus {
		return ErrTooLarge
	}
	return nil
}
