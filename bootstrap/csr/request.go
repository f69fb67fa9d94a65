// SPDX-License-Identifier: Apache-2.0

package csr

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
)

const (
	nodeUserPrefix = "system:node:" // prefix of a kubelet's user name; k8s.io/component-helpers has no constant for it
	nodesGroup     = "system:nodes"
	// maxRequest limits the PEM that is parsed, in bytes. A kubelet's request is under 1 KiB.
	maxRequest = 16 << 10
)

// Requester is the sender of a certificate request, according to the user name.
type Requester struct {
	TokenID string // of the bootstrap token
	Node    string // the Node that the sender already is
}

// RequesterOf returns the requester. tokenGroup is the group that Drover's bootstrap tokens
// authenticate as. Other tokens are ignored.
func RequesterOf(csr *certificatesv1.CertificateSigningRequest, tokenGroup string) Requester {
	if id, ok := strings.CutPrefix(csr.Spec.Username, bootstrapapi.BootstrapUserPrefix); ok && slices.Contains(csr.Spec.Groups, tokenGroup) {
		return Requester{TokenID: id}
	}
	if node, ok := strings.CutPrefix(csr.Spec.Username, nodeUserPrefix); ok && slices.Contains(csr.Spec.Groups, nodesGroup) {
		return Requester{Node: node}
	}
	return Requester{}
}

// NodeIn returns the Node that a request is for, or "". It proves nothing alone: see CheckClient.
func NodeIn(csr *certificatesv1.CertificateSigningRequest) string {
	block, _ := pem.Decode(csr.Spec.Request)
	if block == nil {
		return ""
	}
	request, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return ""
	}
	node, ok := strings.CutPrefix(request.Subject.CommonName, nodeUserPrefix)
	if !ok {
		return ""
	}
	return node
}

// CheckClient returns why the request is not exactly the Node's kubelet's request for a client
// certificate, or "" if it is.
func CheckClient(csr *certificatesv1.CertificateSigningRequest, node string) string {
	request, why := parse(csr, node)
	switch {
	case why != "":
		return why
	case len(request.DNSNames)+len(request.IPAddresses)+len(request.EmailAddresses)+len(request.URIs) > 0:
		return "a client certificate must contain no address"
	case !usagesAre(csr, certificatesv1.UsageClientAuth):
		return "the usages are not those of a kubelet's client certificate"
	}
	return ""
}

// CheckLifetime returns why the requested lifetime is longer than a limit in seconds, or "". A
// limit of 0 permits all. A request for no lifetime passes: its signer decides, and kubelets can't
// request any.
func CheckLifetime(csr *certificatesv1.CertificateSigningRequest, limit int32) string {
	if limit > 0 && csr.Spec.ExpirationSeconds != nil && *csr.Spec.ExpirationSeconds > limit {
		return fmt.Sprintf("the request is for %d seconds, and maxCertificateSeconds permits %d", *csr.Spec.ExpirationSeconds, limit)
	}
	return ""
}

// parse parses the request, and checks what every kubelet certificate requires: one PEM block,
// signed by its own key, for exactly that Node and group.
func parse(csr *certificatesv1.CertificateSigningRequest, node string) (*x509.CertificateRequest, string) {
	if len(csr.Spec.Request) > maxRequest {
		return nil, "the request is too large for a kubelet's"
	}
	block, rest := pem.Decode(csr.Spec.Request)
	if block == nil || block.Type != "CERTIFICATE REQUEST" || len(strings.TrimSpace(string(rest))) > 0 {
		return nil, "the request is not exactly one PEM block"
	}
	request, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, "it can't be parsed"
	}
	if err := request.CheckSignature(); err != nil {
		return nil, "the request is not signed by its own key"
	}
	if node == "" || request.Subject.CommonName != nodeUserPrefix+node {
		return nil, "the requested name is not that of the machine's Node"
	}
	if why := CheckNode(node, ""); why != "" {
		return nil, why
	}
	if !slices.Equal(request.Subject.Organization, []string{nodesGroup}) {
		return nil, "the requested organization is not exactly " + nodesGroup
	}
	return request, ""
}

// usagesAre reports whether the usages are a kubelet's. Key encipherment is used only with RSA
// keys.
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
