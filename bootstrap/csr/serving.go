// SPDX-License-Identifier: Apache-2.0

package csr

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// Machine is what is known of the machine that asks for a serving certificate.
type Machine struct {
	// Node is the only Node that the requester may be.
	Node string
	// Addresses are the machine's, names and IPs, as its cloud tells them.
	Addresses []clusterv1.MachineAddress
	// GuestReported are those of Addresses that only the guest itself vouches for. One counts only
	// if NodeAddresses has it too.
	GuestReported []string
	// NodeAddresses are what the Node's status has.
	NodeAddresses []string
}

// Cluster is what none of a cluster's kubelets may serve as.
type Cluster struct {
	// APIServers are the hosts by which the API server is reached: IP addresses or names.
	APIServers []string
	// Services are the ranges of Service addresses.
	Services []netip.Prefix
	// Others are those of the addresses in the request that another machine or Node has, each with
	// its owner, such as `Node "blue-2"`. Keys are as Asked returns them.
	Others map[string]string
}

// Refusal is why a request must not be approved. The zero Refusal approves.
type Refusal struct {
	Why string
	// Passing says that it may be over in seconds by itself, such as when an address passes from
	// one machine to another.
	Passing bool
}

// CheckServing returns why the request is not what the kubelet of that machine asks for to serve.
func CheckServing(csr *certificatesv1.CertificateSigningRequest, m Machine, c Cluster) Refusal {
	request, why := parse(csr, m.Node)
	switch {
	case why != "":
		return Refusal{Why: why}
	case csr.Spec.Username != nodeUserPrefix+m.Node:
		return Refusal{Why: "it was not sent by the Node that it is for"}
	case len(request.EmailAddresses)+len(request.URIs) > 0:
		return Refusal{Why: "a serving certificate must name neither mail addresses nor URIs"}
	case len(request.DNSNames)+len(request.IPAddresses) == 0:
		return Refusal{Why: "a serving certificate must name an address"}
	case !usagesAre(csr, certificatesv1.UsageServerAuth):
		return Refusal{Why: "the usages are not those of a kubelet's serving certificate"}
	}
	return checkNames(request, m, c)
}

// checkNames judges each name and IP address that the certificate would be for.
func checkNames(request *x509.CertificateRequest, m Machine, c Cluster) Refusal {
	names, ips := m.known()
	for _, name := range request.DNSNames {
		name = Canonical(name)
		r := c.checkAPIServers(name)
		if r == (Refusal{}) && name != Canonical(m.Node) { // the API server has authenticated it by its Node's name
			r = check(name, names[name], m, c)
		}
		if r != (Refusal{}) {
			return r
		}
	}
	for _, raw := range request.IPAddresses {
		ip, ok := netip.AddrFromSlice(raw)
		if !ok {
			return Refusal{Why: "it asks for an IP address that can't be parsed"}
		}
		ip = ip.Unmap()
		r := c.checkIP(ip)
		if r == (Refusal{}) {
			r = check(ip.String(), ips[ip], m, c)
		}
		if r != (Refusal{}) {
			return r
		}
	}
	return Refusal{}
}

// check asks whether the machine has the address, whether more than its guest says so, and whether
// it alone has it.
func check(address string, has bool, m Machine, c Cluster) Refusal {
	is := func(a string) bool { return Canonical(a) == address }
	switch owner := c.Others[address]; {
	case !has:
		return Refusal{Why: fmt.Sprintf("it asks for %s, an address that the machine does not have", address)}
	case slices.ContainsFunc(m.GuestReported, is) && !slices.ContainsFunc(m.NodeAddresses, is):
		return Refusal{Why: fmt.Sprintf("it asks for %s, an address that only the machine's guest reports, and not its Node", address), Passing: true}
	case owner != "":
		return Refusal{Why: fmt.Sprintf("it asks for %s, an address that %s has, too", address, owner), Passing: true}
	}
	return Refusal{}
}

// Asked returns the names and IP addresses that a request is for, as Canonical writes them.
func Asked(csr *certificatesv1.CertificateSigningRequest) []string {
	block, _ := pem.Decode(csr.Spec.Request)
	if block == nil {
		return nil
	}
	request, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil
	}
	var out []string
	for _, name := range request.DNSNames {
		out = append(out, Canonical(name))
	}
	for _, ip := range request.IPAddresses {
		out = append(out, Canonical(ip.String()))
	}
	return out
}

// checkIP refuses an IP address that no machine's kubelet may serve at.
func (c Cluster) checkIP(ip netip.Addr) Refusal {
	switch {
	case !ip.IsGlobalUnicast(): // loopback, link-local, multicast, unspecified, broadcast
		return Refusal{Why: fmt.Sprintf("it asks for %s, which is not the address of one host", ip)}
	case slices.ContainsFunc(c.Services, func(p netip.Prefix) bool { return p.Contains(ip) }):
		return Refusal{Why: fmt.Sprintf("it asks for %s, which is the address of a Service", ip)}
	}
	return c.checkAPIServers(ip.String())
}

func (c Cluster) checkAPIServers(address string) Refusal {
	if slices.ContainsFunc(c.APIServers, func(host string) bool { return Canonical(host) == address }) {
		return Refusal{Why: fmt.Sprintf("it asks for %s, which is the address of the API server", address)}
	}
	return Refusal{}
}

// known sorts the machine's addresses by what they are, and not by what they are called.
func (m Machine) known() (map[string]bool, map[netip.Addr]bool) {
	names, ips := map[string]bool{}, map[netip.Addr]bool{}
	for _, a := range m.Addresses {
		if ip, err := netip.ParseAddr(a.Address); err == nil {
			ips[ip.WithZone("").Unmap()] = true
			continue
		}
		switch a.Type {
		case clusterv1.MachineHostName, clusterv1.MachineInternalDNS, clusterv1.MachineExternalDNS:
			names[Canonical(a.Address)] = true
		}
	}
	return names, ips
}

// Canonical writes an address so that two texts of one address are equal: an IP address in its
// shortest form, a name in lower case without a dot at its end.
func Canonical(address string) string {
	if ip, err := netip.ParseAddr(strings.Trim(address, "[]")); err == nil {
		return ip.WithZone("").Unmap().String()
	}
	return strings.TrimSuffix(strings.ToLower(address), ".")
}

// HostNames returns what the cloud calls the machine's host, in lower case. What only the guest
// vouches for is no name that a machine may join by.
func (m Machine) HostNames() []string {
	var out []string
	for _, a := range m.Addresses {
		name := strings.ToLower(a.Address)
		is := func(other string) bool { return Canonical(other) == Canonical(name) }
		if (a.Type == clusterv1.MachineHostName || a.Type == clusterv1.MachineInternalDNS) && name != "" &&
			!slices.Contains(out, name) && !slices.ContainsFunc(m.GuestReported, is) {
			out = append(out, name)
		}
	}
	return out
}
