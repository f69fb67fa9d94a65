// SPDX-License-Identifier: Apache-2.0

package render

import (
	"cmp"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	bootstraputil "k8s.io/cluster-bootstrap/token/util"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	"github.com/drover-io/drover/internal/naming"
)

// Input contains everything that the user data depend on.
type Input struct {
	// Spec is the user's part.
	Spec *bootstrapv1.DroverConfigSpec
	// Secrets contains the values for SecretKeys.
	Secrets map[bootstrapv1.SecretKey][]byte
	// NodeName is the Node's name and the machine's host name; see naming.NodeName. It is ignored
	// if Spec names the Node after the cloud's host name.
	NodeName string
	// ProviderID is the Node's spec.providerID, literal or with cloud-init's instance-data
	// variables. It is empty if it can't be known before boot. Example: "aws:///{{
	// v1.availability_zone }}/{{ v1.instance_id }}".
	ProviderID string
	// Server is the API server's address. Example: "https://10.0.0.1:6443".
	Server string
	// CA is the cluster's certificate authority, in PEM. The machine trusts nothing else.
	CA []byte
	// ClientCA is the authority that has signed the API server's client certificate, in PEM. The
	// kubelet lets nobody else in. It is empty if that is CA.
	ClientCA []byte
	// Token is the machine's bootstrap token, "<id>.<secret>".
	Token string
	// ClusterDNS and ClusterDomain apply if Spec sets none.
	ClusterDNS, ClusterDomain string
	// Version is the Machine's Kubernetes version. ControlPlaneVersion is that of its cluster's API
	// server. Both are required if Drover installs the kubelet. Example: "v1.36.3".
	Version, ControlPlaneVersion string
}

// hostVariable is cloud-init's variable for the cloud's host name with its domain.
// "v1.local_hostname" has no domain
// (https://docs.cloud-init.io/en/latest/explanation/instancedata.html).
const hostVariable = "{{ ds.meta_data.local_hostname }}"

// UserData returns the user data, in the format of FormatOf. Errors name the invalid input, but
// never contain a secret.
func UserData(in Input) ([]byte, error) {
	if err := in.check(); err != nil {
		return nil, err
	}
	return userDataOf(in, nil)
}

// userDataOf renders input that was already checked. If later is not nil, it contains the files
// that the machine fetches.
func userDataOf(in Input, later []byte) ([]byte, error) {
	ca, err := ParseCA(in.CA)
	if err != nil {
		return nil, err
	}
	in.CA = ca
	if len(in.ClientCA) > 0 {
		if in.ClientCA, err = ParseCA(in.ClientCA); err != nil {
			return nil, fmt.Errorf("for clients of the kubelet: %w", err)
		}
	}
	if in.Spec.NodeNameSource == bootstrapv1.NodeNameHostname {
		in.NodeName = hostVariable
	}
	n, err := describe(in, later)
	if err != nil {
		return nil, err
	}
	if FormatOf(in.Spec) == bootstrapv1.FormatIgnition {
		return ignition(n)
	}
	return cloudConfig(n, strings.Count(in.ProviderID+in.NodeName, "{{"))
}

// FormatOf returns the format of a spec's user data.
func FormatOf(spec *bootstrapv1.DroverConfigSpec) bootstrapv1.Format {
	return cmp.Or(spec.Format, systemOf(spec).format)
}

// modeOf returns the mode of installation.
func modeOf(spec *bootstrapv1.DroverConfigSpec) bootstrapv1.InstallMode {
	return cmp.Or(spec.Install.Mode, bootstrapv1.InstallPrebuilt)
}

// Installs reports whether Drover installs the kubelet, and so needs the versions in Input.
func Installs(spec *bootstrapv1.DroverConfigSpec) bool {
	return modeOf(spec) != bootstrapv1.InstallPrebuilt
}

func (in Input) check() error {
	if errs := Validate(in.Spec, field.NewPath("spec")); len(errs) > 0 {
		return errs.ToAggregate()
	}
	if err := in.checkSecrets(); err != nil {
		return err
	}
	machine, err := in.version()
	if err != nil {
		return err
	}
	if err := in.checkKubeadm(machine); err != nil {
		return err
	}
	if in.NodeName != naming.NodeName(in.NodeName) {
		return fmt.Errorf("the node name %q can't be a host name", shorten(in.NodeName))
	}
	if err := checkProviderID(in.ProviderID); err != nil {
		return err
	}
	u, err := url.Parse(in.Server)
	if err != nil || u.Scheme != "https" || u.Hostname() == "" || u.User != nil || u.Path != "" || u.RawQuery != "" || u.Fragment != "" {
		return errors.New("the API server's address must be https://host:port")
	}
	if in.Spec.Host.Proxy.HTTPProxy+in.Spec.Host.Proxy.HTTPSProxy != "" && !noProxyPattern.MatchString(u.Hostname()) {
		return errors.New("the API server's host can't be put into NO_PROXY")
	}
	if !bootstraputil.IsValidBootstrapToken(in.Token) {
		return errors.New("the bootstrap token is not of the form <6 characters>.<16 characters>")
	}
	if dns := cmp.Or(in.Spec.ClusterDNS, in.ClusterDNS); dns != "" {
		if _, err := netip.ParseAddr(dns); err != nil {
			return fmt.Errorf("the cluster DNS address %q is not an IP address", shorten(dns))
		}
	}
	if domain := cmp.Or(in.Spec.ClusterDomain, in.ClusterDomain); domain != "" && len(validation.IsDNS1123Subdomain(domain)) > 0 {
		return fmt.Errorf("the cluster domain %q is not a DNS name", shorten(domain))
	}
	return nil
}

var (
	instanceData    = regexp.MustCompile(`\{\{ ?[A-Za-z_][A-Za-z0-9_.]* ?\}\}`)
	providerLiteral = regexp.MustCompile(`^[A-Za-z0-9:/._~+@=-]*$`)
)

// checkProviderID refuses an ID that jinja, or the kubelet's unit, which splits at blanks, could
// misread.
func checkProviderID(id string) error {
	if id == "" {
		return nil
	}
	if rest := instanceData.ReplaceAllString(id, ""); len(id) > 512 || !providerLiteral.MatchString(rest) {
		return fmt.Errorf("the provider ID %q can't be put into the user data", shorten(id))
	}
	return nil
}

// ParseCA returns the certificates in ca. ca must be PEM and contain only certificates, because a
// private key in it would end up on every machine.
func ParseCA(ca []byte) ([]byte, error) {
	var out []byte
	for rest := ca; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			if out == nil || strings.Contains(string(rest), "-----BEGIN") {
				return nil, errors.New("the certificate authority is not one or more certificates in PEM")
			}
			return out, nil
		}
		if block.Type != "CERTIFICATE" {
			return nil, errors.New("the certificate authority holds something that is not a certificate")
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return nil, errors.New("the certificate authority holds a certificate that can't be read")
		}
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: block.Bytes})...)
	}
}
