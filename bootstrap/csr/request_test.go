// SPDX-License-Identifier: Apache-2.0

package csr

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"net"
	"net/url"
	"testing"

	. "github.com/onsi/gomega"
	certificatesv1 "k8s.io/api/certificates/v1"
)

const (
	digital = certificatesv1.UsageDigitalSignature
	key     = certificatesv1.UsageKeyEncipherment
	client_ = certificatesv1.UsageClientAuth
	server  = certificatesv1.UsageServerAuth

	tokenGroup = "system:bootstrappers:example"
)

func request(t testing.TB, r x509.CertificateRequest) []byte {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &r, k)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

func subject(name string, organizations ...string) pkix.Name {
	return pkix.Name{CommonName: name, Organization: organizations}
}

// forged flips a bit at the end of the signature.
func forged(raw []byte) []byte {
	block, _ := pem.Decode(raw)
	block.Bytes[len(block.Bytes)-1] ^= 1
	return pem.EncodeToMemory(block)
}

func TestCheckClient(t *testing.T) {
	good := x509.CertificateRequest{Subject: subject("system:node:blue-1", "system:nodes")}
	with := func(change func(*x509.CertificateRequest)) []byte {
		r := good
		change(&r)
		return request(t, r)
	}
	usages := []certificatesv1.KeyUsage{client_, digital}
	for name, c := range map[string]struct {
		raw    []byte
		usages []certificatesv1.KeyUsage
		ok     bool
	}{
		"ECDSA":              {request(t, good), usages, true},
		"RSA":                {request(t, good), []certificatesv1.KeyUsage{key, digital, client_}, true},
		"blank lines after":  {append(request(t, good), "\n\n"...), usages, true},
		"another node":       {with(func(r *x509.CertificateRequest) { r.Subject.CommonName = "system:node:blue-2" }), usages, false},
		"prefix of the node": {with(func(r *x509.CertificateRequest) { r.Subject.CommonName = "system:node:blue-" }), usages, false},
		"no node":            {with(func(r *x509.CertificateRequest) { r.Subject.CommonName = "system:node:" }), usages, false},
		"administrator":      {with(func(r *x509.CertificateRequest) { r.Subject.CommonName = "admin" }), usages, false},
		"masters":            {with(func(r *x509.CertificateRequest) { r.Subject.Organization = []string{"system:masters"} }), usages, false},
		"nodes and masters": {with(func(r *x509.CertificateRequest) { r.Subject.Organization = []string{"system:nodes", "system:masters"} }),
			usages, false},
		"nodes twice": {with(func(r *x509.CertificateRequest) { r.Subject.Organization = []string{"system:nodes", "system:nodes"} }),
			usages, false},
		"no organization":  {with(func(r *x509.CertificateRequest) { r.Subject.Organization = nil }), usages, false},
		"a DNS name":       {with(func(r *x509.CertificateRequest) { r.DNSNames = []string{"blue-1"} }), usages, false},
		"an IP address":    {with(func(r *x509.CertificateRequest) { r.IPAddresses = []net.IP{{10, 0, 0, 1}} }), usages, false},
		"a mail address":   {with(func(r *x509.CertificateRequest) { r.EmailAddresses = []string{"a@b"} }), usages, false},
		"a URI":            {with(func(r *x509.CertificateRequest) { r.URIs = []*url.URL{{Scheme: "spiffe", Host: "a"}} }), usages, false},
		"server's usage":   {request(t, good), []certificatesv1.KeyUsage{digital, key, server}, false},
		"more usages":      {request(t, good), []certificatesv1.KeyUsage{digital, key, client_, server}, false},
		"usage twice":      {request(t, good), []certificatesv1.KeyUsage{digital, digital, client_}, false},
		"certificate sign": {request(t, good), []certificatesv1.KeyUsage{digital, client_, certificatesv1.UsageCertSign}, false},
		"no usage":         {request(t, good), nil, false},
		"not PEM":          {[]byte("hello"), usages, false},
		"empty":            {nil, usages, false},
		"PEM of another":   {pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")}), usages, false},
		"garbage in PEM":   {pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: []byte("x")}), usages, false},
		"two requests":     {append(request(t, good), request(t, good)...), usages, false},
		"forged":           {forged(request(t, good)), usages, false},
		"huge":             {append(request(t, good), bytes.Repeat([]byte("\n"), 1<<20)...), usages, false},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			csr := &certificatesv1.CertificateSigningRequest{Spec: certificatesv1.CertificateSigningRequestSpec{Request: c.raw, Usages: c.usages}}
			why := CheckClient(csr, "blue-1")
			g.Expect(why == "").To(Equal(c.ok), why)
		})
	}
}

func TestRequesterOf(t *testing.T) {
	for name, c := range map[string]struct {
		user   string
		groups []string
		want   Requester
	}{
		"token of ours": {"system:bootstrap:abcdef", []string{"system:bootstrappers", tokenGroup, "system:authenticated"},
			Requester{TokenID: "abcdef"}},
		"token of kubeadm's": {"system:bootstrap:abcdef", []string{"system:bootstrappers", "system:bootstrappers:kubeadm:default-node-token"},
			Requester{}},
		"node":                   {"system:node:blue-1", []string{"system:nodes"}, Requester{Node: "blue-1"}},
		"node by name only":      {"system:node:blue-1", []string{"system:authenticated"}, Requester{}},
		"administrator":          {"admin", []string{"system:masters"}, Requester{}},
		"group without the name": {"me", []string{tokenGroup, "system:nodes"}, Requester{}},
	} {
		t.Run(name, func(t *testing.T) {
			csr := &certificatesv1.CertificateSigningRequest{Spec: certificatesv1.CertificateSigningRequestSpec{Username: c.user, Groups: c.groups}}
			NewWithT(t).Expect(RequesterOf(csr, tokenGroup)).To(Equal(c.want))
		})
	}
}

// FuzzRequest: no input causes a panic, and only the machine's own name passes.
func FuzzRequest(f *testing.F) {
	f.Add(request(f, x509.CertificateRequest{Subject: subject("system:node:blue-1", "system:nodes")}), "blue-1")
	f.Add([]byte("-----BEGIN CERTIFICATE REQUEST-----\n"), "")
	f.Fuzz(func(t *testing.T, raw []byte, node string) {
		csr := &certificatesv1.CertificateSigningRequest{Spec: certificatesv1.CertificateSigningRequestSpec{Request: raw}}
		parsed, why := parse(csr, node)
		if why == "" && (node == "" || parsed.Subject.CommonName != "system:node:"+node) {
			t.Fatalf("%q passed for node %q", parsed.Subject, node)
		}
	})
}
