// SPDX-License-Identifier: Apache-2.0

package bootstrap

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
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

const (
	digital = certificatesv1.UsageDigitalSignature
	key     = certificatesv1.UsageKeyEncipherment
	client_ = certificatesv1.UsageClientAuth
	server  = certificatesv1.UsageServerAuth
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

// forged flips a bit of the signature, at the very end.
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
		"nodes and masters":  {with(func(r *x509.CertificateRequest) { r.Subject.Organization = []string{"system:nodes", "system:masters"} }), usages, false},
		"nodes twice":        {with(func(r *x509.CertificateRequest) { r.Subject.Organization = []string{"system:nodes", "system:nodes"} }), usages, false},
		"no organization":    {with(func(r *x509.CertificateRequest) { r.Subject.Organization = nil }), usages, false},
		"a DNS name":         {with(func(r *x509.CertificateRequest) { r.DNSNames = []string{"blue-1"} }), usages, false},
		"an IP address":      {with(func(r *x509.CertificateRequest) { r.IPAddresses = []net.IP{{10, 0, 0, 1}} }), usages, false},
		"a mail address":     {with(func(r *x509.CertificateRequest) { r.EmailAddresses = []string{"a@b"} }), usages, false},
		"a URI":              {with(func(r *x509.CertificateRequest) { r.URIs = []*url.URL{{Scheme: "spiffe", Host: "a"}} }), usages, false},
		"server's usage":     {request(t, good), []certificatesv1.KeyUsage{digital, key, server}, false},
		"more usages":        {request(t, good), []certificatesv1.KeyUsage{digital, key, client_, server}, false},
		"usage twice":        {request(t, good), []certificatesv1.KeyUsage{digital, digital, client_}, false},
		"certificate sign":   {request(t, good), []certificatesv1.KeyUsage{digital, client_, certificatesv1.UsageCertSign}, false},
		"no usage":           {request(t, good), nil, false},
		"not PEM":            {[]byte("hello"), usages, false},
		"empty":              {nil, usages, false},
		"PEM of another":     {pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")}), usages, false},
		"garbage in PEM":     {pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: []byte("x")}), usages, false},
		"two requests":       {append(request(t, good), request(t, good)...), usages, false},
		"forged":             {forged(request(t, good)), usages, false},
		"huge":               {append(request(t, good), bytes.Repeat([]byte("\n"), 1<<20)...), usages, false},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			csr := &certificatesv1.CertificateSigningRequest{Spec: certificatesv1.CertificateSigningRequestSpec{Request: c.raw, Usages: c.usages}}
			why := checkClient(csr, facts{node: "blue-1"})
			g.Expect(why == "").To(Equal(c.ok), why)
		})
	}
}

func TestHostNameIn(t *testing.T) {
	addresses := []clusterv1.MachineAddress{
		{Type: clusterv1.MachineInternalDNS, Address: "IP-10-0-0-7.internal"}, {Type: clusterv1.MachineHostName, Address: "i-7.internal"},
		{Type: clusterv1.MachineExternalDNS, Address: "public.example"}, {Type: clusterv1.MachineInternalIP, Address: "10.0.0.7"},
		{Type: clusterv1.MachineInternalDNS, Address: ""},
	}
	for name, want := range map[string]string{
		"system:node:ip-10-0-0-7.internal": "ip-10-0-0-7.internal",
		"system:node:i-7.internal":         "i-7.internal",
		"system:node:public.example":       "", "system:node:10.0.0.7": "", "system:node:": "", "i-7.internal": "", "system:node:IP-10-0-0-7.internal": "",
	} {
		csr := &certificatesv1.CertificateSigningRequest{Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: request(t, x509.CertificateRequest{Subject: subject(name, "system:nodes")}),
		}}
		if got := hostNameIn(csr, addresses); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}

func TestCheckServing(t *testing.T) {
	good := x509.CertificateRequest{
		Subject: subject("system:node:blue-1", "system:nodes"), DNSNames: []string{"blue-1"}, IPAddresses: []net.IP{net.ParseIP("10.0.0.7")},
	}
	with := func(change func(*x509.CertificateRequest)) x509.CertificateRequest {
		r := good
		change(&r)
		return r
	}
	addresses := []clusterv1.MachineAddress{
		{Type: clusterv1.MachineInternalIP, Address: "10.0.0.7"}, {Type: clusterv1.MachineExternalIP, Address: "2001:db8::7"},
		{Type: clusterv1.MachineInternalDNS, Address: "Blue-1.internal"}, {Type: "Other", Address: "not-a-name"},
		{Type: clusterv1.MachineInternalIP, Address: "no-address"},
	}
	type dns = []string
	for name, c := range map[string]struct {
		request  x509.CertificateRequest
		username string
		usages   []certificatesv1.KeyUsage
		ok       bool
	}{
		"as a kubelet asks": {request: good, ok: true},
		"only the IP":       {request: with(func(r *x509.CertificateRequest) { r.DNSNames = nil }), ok: true},
		"all it has": {request: with(func(r *x509.CertificateRequest) {
			r.IPAddresses = append(r.IPAddresses, net.ParseIP("2001:db8::7"))
			r.DNSNames = dns{"blue-1.internal", "blue-1"}
		}), ok: true},
		"RSA":                 {request: good, usages: []certificatesv1.KeyUsage{digital, key, server}, ok: true},
		"another sender":      {request: good, username: "system:node:blue-2"},
		"another node":        {request: with(func(r *x509.CertificateRequest) { r.Subject.CommonName = "system:node:blue-2" })},
		"another DNS name":    {request: with(func(r *x509.CertificateRequest) { r.DNSNames = dns{"blue-1", "kubernetes.default.svc"} })},
		"wildcard":            {request: with(func(r *x509.CertificateRequest) { r.DNSNames = dns{"*"} })},
		"name of an odd type": {request: with(func(r *x509.CertificateRequest) { r.DNSNames = dns{"not-a-name"} })},
		"IP that is no IP":    {request: with(func(r *x509.CertificateRequest) { r.DNSNames = dns{"no-address"} })},
		"another IP":          {request: with(func(r *x509.CertificateRequest) { r.IPAddresses = []net.IP{net.ParseIP("10.0.0.8")} })},
		"loopback": {request: with(func(r *x509.CertificateRequest) {
			r.IPAddresses = append(r.IPAddresses[:1:1], net.ParseIP("127.0.0.1"))
		})},
		"nothing":                {request: with(func(r *x509.CertificateRequest) { r.DNSNames, r.IPAddresses = nil, nil })},
		"a mail address":         {request: with(func(r *x509.CertificateRequest) { r.EmailAddresses = dns{"a@b"} })},
		"a URI":                  {request: with(func(r *x509.CertificateRequest) { r.URIs = []*url.URL{{Scheme: "spiffe", Host: "a"}} })},
		"client's usage":         {request: good, usages: []certificatesv1.KeyUsage{digital, client_}},
		"client's usage as well": {request: good, usages: []certificatesv1.KeyUsage{digital, key, server, client_}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			if c.username == "" {
				c.username = "system:node:blue-1"
			}
			if c.usages == nil {
				c.usages = []certificatesv1.KeyUsage{digital, server}
			}
			csr := &certificatesv1.CertificateSigningRequest{Spec: certificatesv1.CertificateSigningRequestSpec{
				Request: request(t, c.request), Username: c.username, Usages: c.usages}}
			why := checkServing(csr, facts{node: "blue-1", addresses: addresses})
			g.Expect(why == "").To(Equal(c.ok), why)
		})
	}
}

func TestRequesterOf(t *testing.T) {
	for name, c := range map[string]struct {
		user   string
		groups []string
		want   requester
	}{
		"token of ours":          {"system:bootstrap:abcdef", []string{"system:bootstrappers", TokenGroup, "system:authenticated"}, requester{tokenID: "abcdef"}},
		"token of kubeadm's":     {"system:bootstrap:abcdef", []string{"system:bootstrappers", "system:bootstrappers:kubeadm:default-node-token"}, requester{}},
		"node":                   {"system:node:blue-1", []string{"system:nodes"}, requester{node: "blue-1"}},
		"node by name only":      {"system:node:blue-1", []string{"system:authenticated"}, requester{}},
		"administrator":          {"admin", []string{"system:masters"}, requester{}},
		"group without the name": {"me", []string{TokenGroup, "system:nodes"}, requester{}},
	} {
		t.Run(name, func(t *testing.T) {
			csr := &certificatesv1.CertificateSigningRequest{Spec: certificatesv1.CertificateSigningRequestSpec{Username: c.user, Groups: c.groups}}
			NewWithT(t).Expect(requesterOf(csr)).To(Equal(c.want))
		})
	}
}

// FuzzRequest: whatever is sent, nothing panics, and only the machine's own name passes.
func FuzzRequest(f *testing.F) {
	f.Add(request(f, x509.CertificateRequest{Subject: subject("system:node:blue-1", "system:nodes")}), "blue-1")
	f.Add([]byte("-----BEGIN CERTIFICATE REQUEST-----\n"), "")
	f.Fuzz(func(t *testing.T, raw []byte, node string) {
		csr := &certificatesv1.CertificateSigningRequest{Spec: certificatesv1.CertificateSigningRequestSpec{Request: raw}}
		parsed, why := parseRequest(csr, node)
		if why == "" && (node == "" || parsed.Subject.CommonName != "system:node:"+node) {
			t.Fatalf("%q passed for node %q", parsed.Subject, node)
		}
	})
}
