// SPDX-License-Identifier: Apache-2.0

package cloudinit

import (
	"cmp"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	bootstraputil "k8s.io/cluster-bootstrap/token/util"
	"sigs.k8s.io/yaml"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1alpha1"
)

// Header begins the user data: cloud-init fills in instance data first, then reads the rest as its configuration.
const Header = "## template: jinja\n#cloud-config\n"

// The files that Render writes.
const (
	// BootstrapKubeconfigPath holds the kubeconfig with the bootstrap token. kubeadm's kubelet unit reads it.
	BootstrapKubeconfigPath = "/etc/kubernetes/bootstrap-kubelet.conf"
	// CAPath holds the cluster's CA.
	CAPath = "/etc/kubernetes/pki/ca.crt"
	// KubeletConfigPath holds the KubeletConfiguration.
	KubeletConfigPath = "/var/lib/kubelet/config.yaml"
	// KubeletDefaultsPath holds the kubelet's flags. It is the one file that is not base64-encoded, because it may
	// carry instance-data variables.
	KubeletDefaultsPath = "/etc/default/kubelet"
	// ScriptPath holds the script that runcmd runs.
	ScriptPath = "/etc/kubernetes/drover-bootstrap.sh"
	// SentinelPath appears when everything has succeeded. Cluster API's contract names it.
	SentinelPath = "/run/cluster-api/bootstrap-success.complete"

	kubeletSysconfigPath = "/etc/sysconfig/kubelet"
)

// Input is all that the user data depends on.
type Input struct {
	// Spec is the user's part.
	Spec *bootstrapv1.CloudInitConfigSpec
	// NodeName is the Node's name and the machine's host name; see NodeName.
	NodeName string
	// ProviderID is the Node's spec.providerID, literally or with cloud-init's instance-data variables. Empty where it
	// can't be known before boot. Example: "aws:///{{ v1.availability_zone }}/{{ v1.instance_id }}".
	ProviderID string
	// Server is the API server's address. Example: "https://10.0.0.1:6443".
	Server string
	// CA is the cluster's certificate authority, in PEM. Nothing else is trusted.
	CA []byte
	// Token is the machine's bootstrap token, "<id>.<secret>".
	Token string
	// ClusterDNS and ClusterDomain apply where Spec names none.
	ClusterDNS, ClusterDomain string
}

type cloudConfig struct {
	Hostname          string      `json:"hostname"`
	SSHAuthorizedKeys []string    `json:"ssh_authorized_keys,omitempty"`
	WriteFiles        []writeFile `json:"write_files"`
	RunCmd            [][]string  `json:"runcmd"`
}

type writeFile struct {
	Path        string `json:"path"`
	Content     string `json:"content"`
	Encoding    string `json:"encoding,omitempty"`
	Owner       string `json:"owner,omitempty"`
	Permissions string `json:"permissions"`
	// Defer writes the file after users and packages are there, which an owner other than root needs.
	Defer bool `json:"defer,omitempty"`
}

// Render returns the user data. An error says which input can't be used, never what is secret in it.
func Render(in Input) ([]byte, error) {
	if err := in.check(); err != nil {
		return nil, err
	}
	ca, err := ParseCA(in.CA)
	if err != nil {
		return nil, err
	}
	in.CA = ca
	kubeconfig, err := bootstrapKubeconfig(in)
	if err != nil {
		return nil, err
	}
	kubelet, err := kubeletConfig(in)
	if err != nil {
		return nil, err
	}
	config := cloudConfig{
		Hostname:          in.NodeName,
		SSHAuthorizedKeys: in.Spec.SSHAuthorizedKeys,
		WriteFiles: []writeFile{
			encoded(BootstrapKubeconfigPath, "0600", string(kubeconfig)),
			encoded(CAPath, "0644", string(in.CA)),
			encoded(KubeletConfigPath, "0644", string(kubelet)),
			{Path: KubeletDefaultsPath, Permissions: "0644", Content: kubeletDefaults(in)},
			encoded(ScriptPath, "0700", script(in.Spec)),
		},
		RunCmd: [][]string{{"/bin/sh", ScriptPath}},
	}
	for _, f := range in.Spec.Files {
		config.WriteFiles = append(config.WriteFiles, userFile(f))
	}
	body, err := yaml.Marshal(config)
	if err != nil {
		return nil, errors.New("writing the cloud-config as YAML failed")
	}
	out := Header + string(body)
	if strings.Count(out, "{{") != strings.Count(in.ProviderID, "{{") || strings.Contains(out, "{%") || strings.Contains(out, "{#") {
		return nil, errors.New("the cloud-config would hold jinja that was not meant") // by the checks above, it can't
	}
	return []byte(out), nil
}

func encoded(path, permissions, content string) writeFile {
	return writeFile{Path: path, Permissions: permissions, Encoding: "b64", Content: base64.StdEncoding.EncodeToString([]byte(content))}
}

func userFile(f bootstrapv1.File) writeFile {
	w := encoded(f.Path, f.Permissions, f.Content)
	if w.Permissions == "" {
		w.Permissions = "0644"
	}
	if f.Owner != "" && f.Owner != "root:root" {
		w.Owner, w.Defer = f.Owner, true
	}
	return w
}

func (in Input) check() error {
	if errs := Validate(in.Spec, field.NewPath("spec")); len(errs) > 0 {
		return errs.ToAggregate()
	}
	if len(in.NodeName) > maxNodeName || len(validation.IsDNS1123Subdomain(in.NodeName)) > 0 {
		return fmt.Errorf("the node name %q can't be a host name", shorten(in.NodeName))
	}
	if err := checkProviderID(in.ProviderID); err != nil {
		return err
	}
	u, err := url.Parse(in.Server)
	if err != nil || u.Scheme != "https" || u.Hostname() == "" || u.User != nil || u.Path != "" || u.RawQuery != "" || u.Fragment != "" {
		return errors.New("the API server's address must be https://host:port")
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

// checkProviderID lets nothing through that the kubelet's unit, which splits at blanks, or jinja could misread.
func checkProviderID(id string) error {
	if id == "" {
		return nil
	}
	if rest := instanceData.ReplaceAllString(id, ""); len(id) > 512 || !providerLiteral.MatchString(rest) {
		return fmt.Errorf("the provider ID %q can't be put into the user data", shorten(id))
	}
	return nil
}

// ParseCA returns the certificates in ca, which must be PEM and hold nothing but certificates: a private key by mistake
// would land on every machine.
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

func bootstrapKubeconfig(in Input) ([]byte, error) {
	const name = "bootstrap"
	config := clientcmdapi.NewConfig()
	config.Clusters[name] = &clientcmdapi.Cluster{Server: in.Server, CertificateAuthorityData: in.CA}
	config.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: in.Token}
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	config.CurrentContext = name
	out, err := clientcmd.Write(*config)
	if err != nil {
		return nil, errors.New("writing the bootstrap kubeconfig failed")
	}
	return out, nil
}
