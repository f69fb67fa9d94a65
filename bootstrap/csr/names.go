// SPDX-License-Identifier: Apache-2.0

package csr

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// defaultDomain is the DNS domain of a cluster that does not set another one.
const defaultDomain = "cluster.local"

// CheckNode returns why no kubelet of a cluster may have the Node's name, or "". The domain is the
// cluster's own DNS domain; "" means that it is not known.
func CheckNode(node, domain string) string {
	if isReserved(node, domain) {
		return fmt.Sprintf("%s is a name of the API server or of the cluster's own DNS", node)
	}
	return ""
}

// isReserved reports whether a name is that of the API server, of a Service, or of every host. One
// CA may sign the certificates of kubelets and of such servers. The default domain is reserved in
// every cluster, because kubelets and the cluster's DNS may not know what the Cluster says.
func isReserved(name, domain string) bool {
	name = strings.TrimRight(strings.ToLower(name), ".")
	labels := strings.Split(name, ".")
	return strings.Contains(name, "*") ||
		labels[0] == "localhost" || labels[len(labels)-1] == "localhost" ||
		labels[0] == "kubernetes" && (len(labels) == 1 || labels[1] == "default") ||
		slices.Contains(labels[1:], "svc") ||
		isWithin(name, defaultDomain) || isWithin(name, domain)
}

func isWithin(name, domain string) bool {
	domain = strings.Trim(strings.ToLower(domain), ".")
	return domain != "" && (name == domain || strings.HasSuffix(name, "."+domain))
}

// checkName refuses names that no machine's kubelet may serve. The form with a trailing dot is no
// valid name in a certificate.
func (c Cluster) checkName(name string) Refusal {
	if ip, err := netip.ParseAddr(strings.Trim(name, "[].")); err == nil {
		return c.checkIP(ip.WithZone("").Unmap())
	}
	if strings.HasSuffix(name, ".") {
		return Refusal{Why: fmt.Sprintf("the request contains %s, which is not a valid name in a certificate", name)}
	}
	if isReserved(name, c.Domain) {
		return Refusal{Why: fmt.Sprintf("the request contains %s, which is a name of the API server or of the cluster's own DNS", name)}
	}
	return c.checkAPIServers(Canonical(name))
}
