// SPDX-License-Identifier: Apache-2.0

package csr

import (
	"crypto/x509"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	certificatesv1 "k8s.io/api/certificates/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

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
			r := CheckServing(csr, Machine{Node: "blue-1", Addresses: addresses}, Cluster{})
			g.Expect(r.Why == "").To(Equal(c.ok), r.Why)
		})
	}
}

// TestCheckServingByCluster checks addresses that the machine's cloud or guest reports against the
// facts of the cluster.
func TestCheckServingByCluster(t *testing.T) {
	const foreign, guests, agreed = "10.0.0.9", "10.0.0.10", "10.0.0.11"
	cluster := Cluster{
		APIServers: []string{"192.0.2.100", "API.example.org.", "2001:db8:0::1", "blue-2"},
		Services:   []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("fd00:10::/108")},
		Others:     map[string]string{foreign: `Node "blue-2"`, "blue-2.internal": `DroverMachine "blue-2"`, "blue-1": `Node "blue-3"`},
	}
	for address, passing := range map[string]*bool{
		"10.0.0.7": nil, "2001:db8::7": nil, "blue-1.internal": nil, "blue-1": nil, agreed: nil, "guest.agreed": nil,
		// of review A3
		"192.0.2.100": new(false), "10.96.0.1": new(false),
		"10.111.255.1": new(false), "fd00:10::1": new(false), "2001:db8::1": new(false), "api.example.org": new(false),
		"API.EXAMPLE.ORG": new(false),
		"127.0.0.1":       new(false), "::1": new(false), "169.254.169.254": new(false), "fe80::1": new(false), "0.0.0.0": new(false),
		"::":        new(false),
		"224.0.0.1": new(false), "ff02::1": new(false), "255.255.255.255": new(false), "::ffff:10.96.0.1": new(false),
		foreign: new(true), "blue-2.internal": new(true), guests: new(true), "guest.name": new(true),
	} {
		t.Run(address, func(t *testing.T) {
			g := NewWithT(t)
			m := Machine{Node: "blue-1", GuestReported: []string{guests, agreed, "guest.name", "Guest.Agreed"},
				NodeAddresses: []string{agreed, "guest.agreed"}}
			m.Addresses = []clusterv1.MachineAddress{{Type: clusterv1.MachineInternalIP, Address: address},
				{Type: clusterv1.MachineInternalDNS, Address: address}}
			r := x509.CertificateRequest{Subject: subject("system:node:blue-1", "system:nodes")}
			if ip := net.ParseIP(address); ip != nil {
				r.IPAddresses = []net.IP{ip}
			} else {
				r.DNSNames = []string{address}
			}
			csr := &certificatesv1.CertificateSigningRequest{Spec: certificatesv1.CertificateSigningRequestSpec{
				Request: request(t, r), Username: "system:node:blue-1", Usages: []certificatesv1.KeyUsage{digital, server}}}
			refusal := CheckServing(csr, m, cluster)
			g.Expect(refusal.Why == "").To(Equal(passing == nil), refusal.Why)
			g.Expect(refusal.Temporary).To(Equal(passing != nil && *passing), refusal.Why)

			// An approvable address is refused if it is the API server's.
			refusal = CheckServing(csr, m, Cluster{APIServers: []string{address}})
			g.Expect(refusal.Why).NotTo(BeEmpty())
		})
	}
}

func TestAsked(t *testing.T) {
	csr := &certificatesv1.CertificateSigningRequest{Spec: certificatesv1.CertificateSigningRequestSpec{Request: request(t,
		x509.CertificateRequest{
			DNSNames: []string{"Blue-1", "a.b."}, IPAddresses: []net.IP{net.ParseIP("::ffff:10.0.0.7"), net.ParseIP("2001:db8:0::7")},
		})}}
	if got := Asked(csr); !slices.Equal(got, []string{"blue-1", "a.b", "10.0.0.7", "2001:db8::7"}) {
		t.Error(got)
	}
	for _, raw := range []string{"", "garbage", "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n"} {
		csr.Spec.Request = []byte(raw)
		if got := Asked(csr); got != nil || NodeIn(csr) != "" {
			t.Error(got)
		}
	}
}

func TestHostNames(t *testing.T) {
	m := Machine{GuestReported: []string{"api.internal"}, Addresses: []clusterv1.MachineAddress{
		{Type: clusterv1.MachineInternalDNS, Address: "IP-10-0-0-7.internal"}, {Type: clusterv1.MachineHostName, Address: "i-7.internal"},
		{Type: clusterv1.MachineExternalDNS, Address: "public.example"}, {Type: clusterv1.MachineInternalIP, Address: "10.0.0.7"},
		{Type: clusterv1.MachineInternalDNS, Address: ""}, {Type: clusterv1.MachineHostName, Address: "I-7.internal"},
		{Type: clusterv1.MachineHostName, Address: "API.internal"},
	}}
	if got := m.HostNames(); !slices.Equal(got, []string{"ip-10-0-0-7.internal", "i-7.internal"}) {
		t.Error(got)
	}
}
