// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"crypto/x509"
	"encoding/pem"
	"net/netip"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

const (
	nodeUserPrefix = "system:node:" // of a kubelet's user name; k8s.io/component-helpers has no constant for it
	nodesGroup     = "system:nodes"
	// maxRequest bounds the PEM that is looked at. A kubelet's is under 1 KiB.
	maxRequest = 16 << 10
)

// requester is who sent a request for a certificate, as far as the user name says so.
type requester struct {
	tokenID string // of the bootstrap token it came with
	node    string // the Node that it already is
}

func requesterOf(csr *certificatesv1.CertificateSigningRequest) requester {
	if id, ok := strings.CutPrefix(csr.Spec.Username, bootstrapapi.BootstrapUserPrefix); ok && slices.Contains(csr.Spec.Groups, TokenGroup) {
		return requester{tokenID: id}
	}
	if node, ok := strings.CutPrefix(csr.Spec.Username, nodeUserPrefix); ok && slices.Contains(csr.Spec.Groups, nodesGroup) {
		return requester{node: node}
	}
	return requester{}
}

// facts are what is known of the machine that a request is to be measured by.
type facts struct {
	node      string                     // the only Node that the requester may be
	addresses []clusterv1.MachineAddress // of the machine, as the cloud tells them; for serving certificates
}

// checkClient tells why the request is not exactly what the kubelet of that Node asks for to be a client; "" if it is.
func checkClient(csr *certificatesv1.CertificateSigningRequest, f facts) string {
	request, why := parseRequest(csr, f.node)
	switch {
	case why != "":
		return why
	case len(request.DNSNames)+len(request.IPAddresses)+len(request.EmailAddresses)+len(request.URIs) > 0:
		return "a client certificate must name no address"
	case !usagesAre(csr, certificatesv1.UsageClientAuth):
		return "the usages are not those of a kubelet's client certificate"
	}
	return ""
}

// checkServing tells why the request is not what the kubelet of that Node asks for to serve; "" if it is.
func checkServing(csr *certificatesv1.CertificateSigningRequest, f facts) string {
	request, why := parseRequest(csr, f.node)
	switch {
	case why != "":
		return why
	case csr.Spec.Username != nodeUserPrefix+f.node:
		return "it was not sent by the Node that it is for"
	case len(request.EmailAddresses)+len(request.URIs) > 0:
		return "a serving certificate must name neither mail addresses nor URIs"
	case len(request.DNSNames)+len(request.IPAddresses) == 0:
		return "a serving certificate must name an address"
	case !usagesAre(csr, certificatesv1.UsageServerAuth):
		return "the usages are not those of a kubelet's serving certificate"
	}
	names, ips := known(f)
	for _, n := range request.DNSNames {
		if !names[strings.ToLower(n)] {
			return "it asks for a DNS name that the machine does not have"
		}
	}
	for _, raw := range request.IPAddresses {
		ip, ok := netip.AddrFromSlice(raw)
		if !ok || !ips[ip.Unmap()] {
			return "it asks for an IP address that the machine does not have"
		}
	}
	return ""
}

// known sorts the machine's addresses by what they are, and not by what they are called.
func known(f facts) (map[string]bool, map[netip.Addr]bool) {
	names, ips := map[string]bool{strings.ToLower(f.node): true}, map[netip.Addr]bool{}
	for _, a := range f.addresses {
		if ip, err := netip.ParseAddr(a.Address); err == nil {
			ips[ip.Unmap()] = true
			continue
		}
		switch a.Type {
		case clusterv1.MachineHostName, clusterv1.MachineInternalDNS, clusterv1.MachineExternalDNS:
			names[strings.ToLower(a.Address)] = true
		}
	}
	return names, ips
}

// hostNames returns what the cloud calls the machine's host, in lower case.
func hostNames(addresses []clusterv1.MachineAddress) []string {
	var out []string
	for _, a := range addresses {
		name := strings.ToLower(a.Address)
		if (a.Type == clusterv1.MachineHostName || a.Type == clusterv1.MachineInternalDNS) && name != "" && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

// hostNameIn returns the one of the machine's host names that the request is for; "" where it is for another name.
func hostNameIn(csr *certificatesv1.CertificateSigningRequest, addresses []clusterv1.MachineAddress) string {
	name, ok := strings.CutPrefix(commonName(csr), nodeUserPrefix)
	if !ok || !slices.Contains(hostNames(addresses), name) {
		return ""
	}
	return name
}

// parseRequest reads the request, and checks what holds for every certificate of a kubelet: one PEM block, signed by
// its own key, for exactly that Node and group.
func parseRequest(csr *certificatesv1.CertificateSigningRequest, node string) (*x509.CertificateRequest, string) {
	if len(csr.Spec.Request) > maxRequest {
		return nil, "it is larger than any that a kubelet sends"
	}
	block, rest := pem.Decode(csr.Spec.Request)
	if block == nil || block.Type != "CERTIFICATE REQUEST" || len(strings.TrimSpace(string(rest))) > 0 {
		return nil, "it is not one request in PEM"
	}
	request, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, "it can't be read"
	}
	if err := request.CheckSignature(); err != nil {
		return nil, "it is not signed by its own key"
	}
	if node == "" || request.Subject.CommonName != nodeUserPrefix+node {
		return nil, "it is for another name than the machine's Node"
	}
	if !slices.Equal(request.Subject.Organization, []string{nodesGroup}) {
		return nil, "its organization is not exactly " + nodesGroup
	}
	return request, ""
}

// usagesAre tells whether the usages are a kubelet's: key encipherment goes with RSA keys only.
func usagesAre(csr *certificatesv1.CertificateSigningRequest, auth certificatesv1.KeyUsage) bool {
	got := slices.Clone(csr.Spec.Usages)
	slices.Sort(got)
	for _, want := range [][]certificatesv1.KeyUsage{
		{certificatesv1.UsageDigitalSignature, auth},
		{certificatesv1.UsageDigitalSignature, certificatesv1.UsageKeyEncipherment, auth},
	} {
		slices.Sort(want)
		if slices.Equal(got, want) {
			return true
		}
	}
	return false
}
