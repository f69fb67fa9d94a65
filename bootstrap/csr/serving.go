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

// Machine contains the known facts about the machine that requests a serving certificate.
type Machine struct {
	// Node is the only Node that the requester may be.
	Node string
	// Addresses are the machine's names and IP addresses according to its cloud.
	Addresses []clusterv1.MachineAddress
	// GuestReported are the Addresses that only the guest itself reports. Such an address counts
	// only if NodeAddresses contains it too.
	GuestReported []string
	// NodeAddresses are the addresses in the Node's status.
	NodeAddresses []string
}

// Cluster contains the names and addresses that no kubelet of a cluster may serve.
type Cluster struct {
	// APIServers are the hosts of the API server: IP addresses or names.
	APIServers []string
	// Domain is the cluster's DNS domain according to the Cluster; "" if it does not say.
	Domain string
	// Services are the Service address ranges.
	Services []netip.Prefix
	// Others maps the requested addresses that another machine or Node has to their owner, such as
	// `Node "blue-2"`. Keys are as Asked returns them.
	Others map[string]string
}

// Refusal is why a request must not be approved. The zero Refusal approves.
type Refusal struct {
	Why string
	// Temporary: the reason may disappear within seconds, for example when an address moves from
	// one machine to another.
	Temporary bool
}

// CheckServing returns why the request is not that of the machine's kubelet for a serving
// certificate.
func CheckServing(csr *certificatesv1.CertificateSigningRequest, m Machine, c Cluster) Refusal {
	request, why := parse(csr, m.Node)
	switch {
	case why != "":
		return Refusal{Why: why}
	case csr.Spec.Username != nodeUserPrefix+m.Node:
		return Refusal{Why: "the request was not sent by the Node that it names"}
	case len(request.EmailAddresses)+len(request.URIs) > 0:
		return Refusal{Why: "a serving certificate must contain no email address and no URI"}
	case len(request.DNSNames)+len(request.IPAddresses) == 0:
		return Refusal{Why: "a serving certificate must contain an address"}
	case !usagesAre(csr, certificatesv1.UsageServerAuth):
		return Refusal{Why: "the usages are not those of a kubelet's serving certificate"}
	}
	return checkNames(request, m, c)
}

// checkNames checks each name and IP address in the certificate request.
func checkNames(request *x509.CertificateRequest, m Machine, c Cluster) Refusal {
	names, ips := m.known()
	for _, name := range request.DNSNames {
		r := c.checkName(name)
		name = Canonical(name)
		if r == (Refusal{}) && name != Canonical(m.Node) { // the API server has authenticated it by the Node's name
			r = check(name, names[name], m, c)
		}
		if r != (Refusal{}) {
			return r
		}
	}
	for _, raw := range request.IPAddresses {
		ip, ok := netip.AddrFromSlice(raw)
		if !ok {
			return Refusal{Why: "the request contains an IP address that can't be parsed"}
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

// check checks whether the machine has the address, whether more than the guest reports it, and
// whether no other machine has it.
func check(address string, has bool, m Machine, c Cluster) Refusal {
	is := func(a string) bool { return Canonical(a) == address }
	switch owner := c.Others[address]; {
	case !has:
		return Refusal{Why: fmt.Sprintf("the request contains %s, an address that the machine does not have", address)}
	case slices.ContainsFunc(m.GuestReported, is) && !slices.ContainsFunc(m.NodeAddresses, is):
		return Refusal{Why: fmt.Sprintf("the request contains %s, an address that only the guest reports, and not the Node", address),
			Temporary: true}
	case owner != "":
		return Refusal{Why: fmt.Sprintf("the request contains %s, an address that %s also has", address, owner), Temporary: true}
	}
	return Refusal{}
}

// Asked returns the requested names and IP addresses in the form of Canonical.
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

// checkIP refuses IP addresses that no machine's kubelet may serve.
func (c Cluster) checkIP(ip netip.Addr) Refusal {
	switch {
	case !ip.IsGlobalUnicast(): // loopback, link-local, multicast, unspecified, broadcast
		return Refusal{Why: fmt.Sprintf("the request contains %s, which is not the address of a single host", ip)}
	case slices.ContainsFunc(c.Services, func(p netip.Prefix) bool { return p.Contains(ip) }):
		return Refusal{Why: fmt.Sprintf("the request contains %s, which is the address of a Service", ip)}
	}
	return c.checkAPIServers(ip.String())
}

func (c Cluster) checkAPIServers(address string) Refusal {
	if slices.ContainsFunc(c.APIServers, func(host string) bool { return Canonical(host) == address }) {
		return Refusal{Why: fmt.Sprintf("the request contains %s, which is the address of the API server", address)}
	}
	return Refusal{}
}

// known sorts the machine's addresses by their content, not by their declared type.
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

// Canonical returns an address in a form in which equal addresses have equal text: an IP address in
// its shortest form, a name in lower case without a trailing dot.
func Canonical(address string) string {
	if ip, err := netip.ParseAddr(strings.Trim(address, "[]")); err == nil {
		return ip.WithZone("").Unmap().String()
	}
	return strings.TrimSuffix(strings.ToLower(address), ".")
}

// HostNames returns the host names that the cloud gives the machine, in lower case. It leaves out
// names that only the guest reports, because a machine may not join by them.
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
