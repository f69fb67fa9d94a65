// SPDX-License-Identifier: Apache-2.0

package csr

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"net"
	"net/netip"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	certificatesv1 "k8s.io/api/certificates/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// servingFor returns the serving request of a Node for DNS names.
func servingFor(t *testing.T, node string, names ...string) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	return &certificatesv1.CertificateSigningRequest{Spec: certificatesv1.CertificateSigningRequestSpec{
		Username: "system:node:" + node, Groups: []string{"system:nodes"}, Usages: []certificatesv1.KeyUsage{digital, server},
		Request: request(t, x509.CertificateRequest{Subject: subject("system:node:"+node, "system:nodes"), DNSNames: names}),
	}}
}

// TestReservedNames: names of the API server, of Services, and of every host are refused, whether
// they are the Node's or the cloud reports them.
func TestReservedNames(t *testing.T) {
	cluster := Cluster{
		APIServers: []string{"api.example.test", "203.0.113.1"}, Services: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")},
		Domain: "Prod.Internal.",
	}
	ip := clusterv1.MachineAddress{Type: clusterv1.MachineInternalIP, Address: "10.0.0.5"}
	for name, c := range map[string]struct{ node, serving bool }{
		"blue-1": {true, true}, "blue-1.example.org": {true, true}, "svc-1": {true, true}, "svc.example.org": {true, true},
		"kubernetes-1": {true, true}, "kubernetes.example.org": {true, true}, "localhost-1": {true, true},
		"cluster.local.example.org": {true, true},
		"prod.internal.example.org": {true, true}, "notprod.internal": {true, true},
		"kubernetes": {}, "kubernetes.": {}, "KUBERNETES": {}, "kubernetes.default": {}, "Kubernetes.Default.": {}, "kubernetes.default.svc": {},
		"kubernetes.default.svc.": {}, "kubernetes.default.svc..": {}, "kubernetes.default.svc.cluster.local": {},
		"kubernetes.default.svc.other.domain": {},
		"localhost":                           {}, "LocalHost.": {}, "localhost.localdomain": {}, "blue-1.localhost": {},
		"webhook.team-b.svc": {}, "webhook.team-b.SVC.": {}, "a.webhook.team-b.svc.cluster.local": {}, "10-0-0-5.team-b.pod.cluster.local": {},
		"cluster.local": {}, "blue-1.cluster.local": {}, "prod.internal": {}, "web.prod.internal": {}, "web.PROD.internal.": {},
		"*": {}, "*.example.org": {}, "*.svc": {}, "blue-*.example.org": {},
		"api.example.test": {true, false}, "blue-1.": {true, false}, "203.0.113.1": {true, false}, "10.96.0.1": {true, false},
		"127.0.0.1": {true, false},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			own := CheckServing(servingFor(t, name, name), Machine{Node: name, Addresses: []clusterv1.MachineAddress{ip}}, cluster)
			g.Expect(own == Refusal{}).To(Equal(c.serving), "the Node's name: %s", own.Why)
			g.Expect(own.Temporary).To(BeFalse())

			reported := Machine{Node: "blue-1", Addresses: []clusterv1.MachineAddress{ip, {Type: clusterv1.MachineInternalDNS, Address: name}}}
			r := CheckServing(servingFor(t, "blue-1", "blue-1", name), reported, cluster)
			g.Expect(r == Refusal{}).To(Equal(c.serving), "the cloud reports it: %s", r.Why)

			g.Expect(CheckNode(name, cluster.Domain) == "").To(Equal(c.node))
			client := servingFor(t, name)
			client.Spec.Usages = []certificatesv1.KeyUsage{digital, client_}
			if isReserved(name, "") {
				g.Expect(CheckClient(client, name)).NotTo(BeEmpty())
			} else {
				g.Expect(CheckClient(client, name)).To(BeEmpty())
			}
		})
	}
}

// FuzzServing: a certificate that passes has only names and addresses that the cloud reports for
// the machine, and none of the API server or of a Service.
func FuzzServing(f *testing.F) {
	f.Add("blue-1", "10.0.0.1", "blue-1", "10.0.0.1", "other")
	f.Add("BLUE-1", "::ffff:10.0.0.1", "blue-1.", "10.96.0.1", "*.blue-1")
	f.Add("blue-1", "::1", "kubernetes", "127.0.0.1", "localhost")
	f.Add("Webhook.team-b.svc.", "10.0.0.1", "webhook.team-b.svc", "10.0.0.1", "blue-1")
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	cluster := Cluster{
		APIServers: []string{"api.example.com", "10.0.0.9"}, Services: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")},
		Others: map[string]string{"10.0.0.7": `Node "x"`},
	}
	f.Fuzz(func(t *testing.T, dns, ip, known, knownIP, second string) {
		r := x509.CertificateRequest{Subject: subject("system:node:blue-1", "system:nodes"), DNSNames: []string{dns, second}}
		if a := net.ParseIP(ip); a != nil {
			r.IPAddresses = []net.IP{a}
		}
		der, err := x509.CreateCertificateRequest(rand.Reader, &r, k)
		if err != nil {
			return
		}
		csr := &certificatesv1.CertificateSigningRequest{Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:  pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
			Username: "system:node:blue-1", Groups: []string{"system:nodes"}, Usages: []certificatesv1.KeyUsage{digital, server},
		}}
		m := Machine{Node: "blue-1", Addresses: []clusterv1.MachineAddress{
			{Type: clusterv1.MachineInternalDNS, Address: known}, {Type: clusterv1.MachineInternalIP, Address: knownIP},
		}}
		_ = Asked(csr)
		if CheckServing(csr, m, cluster).Why != "" {
			return
		}
		plain := func(name string) string { return strings.ToLower(strings.TrimSuffix(name, ".")) }
		for _, name := range []string{dns, second} {
			n := plain(name)
			if n != "blue-1" && n != plain(known) && n != plain(knownIP) {
				t.Fatalf("%q passed; the machine is blue-1, %q, %q", name, known, knownIP)
			}
			if n == "kubernetes" || n == "localhost" || strings.HasSuffix(n, ".svc") || strings.Contains(n, ".svc.") ||
				strings.HasSuffix(n, ".cluster.local") {
				t.Fatalf("%q passed", name)
			}
		}
		for _, a := range r.IPAddresses {
			addr, _ := netip.AddrFromSlice(a)
			addr = addr.Unmap()
			if cluster.Services[0].Contains(addr) || addr.IsLoopback() || addr.String() == "10.0.0.9" {
				t.Fatalf("%s passed", addr)
			}
		}
	})
}
