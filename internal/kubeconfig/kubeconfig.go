// SPDX-License-Identifier: Apache-2.0

// Package kubeconfig accepts the data in a user's kubeconfig, and refuses everything else. Nothing
// outside it may read a kubeconfig that a tenant wrote. It opens no connection, writes no object,
// and imports no package of Drover but keybound.
package kubeconfig

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/drover-io/drover/internal/keybound"
)

// maxKubeconfig limits a kubeconfig, in bytes. Those of real clusters have 5 to 20 KiB.
const maxKubeconfig = 256 << 10

// Config is the part of a user's kubeconfig that Drover accepts: one API server, one CA, one set of
// credentials, all of it data. It can't run a program, read a file of the manager or weaken TLS.
type Config struct {
	// Server is the API server's URL: https, a host, perhaps a port and a path.
	Server *url.URL
	// Token is the bearer token, or "".
	Token string

	tlsServerName      string
	ca                 []byte
	roots              *x509.CertPool
	certificate, key   []byte
	pair               *tls.Certificate // nil without a client certificate
	disableCompression bool
}

// Parse parses the current context of a kubeconfig, and refuses what Drover never does for a
// tenant. Errors say what to change. Of the kubeconfig's content they contain only the names of
// fields and contexts.
func Parse(data []byte) (*Config, error) {
	if len(data) == 0 {
		return nil, errors.New("the kubeconfig is empty")
	}
	if len(data) > maxKubeconfig {
		return nil, fmt.Errorf("the kubeconfig has %d bytes; at most %d are accepted", len(data), maxKubeconfig)
	}
	config, err := clientcmd.Load(data)
	if err != nil {
		return nil, errors.New("the data can't be parsed as a kubeconfig") // the parser's error may quote a secret
	}
	cluster, user, err := currentContext(config)
	if err != nil {
		return nil, err
	}
	k := &Config{disableCompression: cluster.DisableCompression}
	if err := k.setCluster(cluster); err != nil {
		return nil, err
	}
	if err := k.setUser(user); err != nil {
		return nil, err
	}
	return k, nil
}

// currentContext returns the cluster and user of the current context.
func currentContext(config *clientcmdapi.Config) (*clientcmdapi.Cluster, *clientcmdapi.AuthInfo, error) {
	name := config.CurrentContext
	if name == "" && len(config.Contexts) == 1 {
		for only := range config.Contexts {
			name = only
		}
	}
	if name == "" {
		return nil, nil, errors.New("current-context is not set")
	}
	context := config.Contexts[name]
	if context == nil {
		return nil, nil, errors.New("current-context refers to a context that does not exist")
	}
	cluster := config.Clusters[context.Cluster]
	if cluster == nil {
		return nil, nil, errors.New("the current context refers to a cluster that does not exist")
	}
	user := config.AuthInfos[context.AuthInfo]
	if user == nil {
		return nil, nil, errors.New("the current context refers to a user that does not exist")
	}
	return cluster, user, nil
}

// setCluster validates and stores the API server's address and CA.
func (k *Config) setCluster(cluster *clientcmdapi.Cluster) error {
	switch {
	case cluster.InsecureSkipTLSVerify:
		return errors.New("insecure-skip-tls-verify is not permitted: set certificate-authority-data")
	case cluster.CertificateAuthority != "":
		return errors.New("certificate-authority refers to a file: set certificate-authority-data")
	case cluster.ProxyURL != "":
		return errors.New("proxy-url is not permitted")
	case len(cluster.CertificateAuthorityData) == 0:
		return errors.New("certificate-authority-data is missing: without it, the API server can't be verified")
	}
	server, err := parseServer(cluster.Server)
	if err != nil {
		return err
	}
	roots, err := parseCA(cluster.CertificateAuthorityData)
	if err != nil {
		return err
	}
	if name := cluster.TLSServerName; name != "" && !IsHost(name) {
		return errors.New("tls-server-name is not a host name")
	}
	k.Server, k.roots, k.ca, k.tlsServerName = server, roots, cluster.CertificateAuthorityData, cluster.TLSServerName
	return nil
}

func parseServer(text string) (*url.URL, error) {
	if text == "" {
		return nil, errors.New("server is missing")
	}
	server, err := url.Parse(text)
	if err != nil {
		return nil, errors.New("server is not a URL")
	}
	switch {
	case server.Scheme == "http":
		return nil, errors.New("server must begin with https://: without TLS, anyone on the network could read the credentials")
	case server.Scheme != "https":
		return nil, errors.New("server must begin with https://")
	case server.User != nil:
		return nil, errors.New("server must not contain a user or password")
	case server.RawQuery != "" || server.ForceQuery || server.Fragment != "":
		return nil, errors.New("server must not have a query or fragment")
	case !IsHost(server.Hostname()):
		return nil, errors.New("server has no valid host")
	}
	if port := server.Port(); port != "" {
		if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
			return nil, errors.New("server has no valid port")
		}
	}
	return server, nil
}

// parseCA accepts only certificates, because every machine gets this data, and must not get a
// private key.
func parseCA(data []byte) (*x509.CertPool, error) {
	roots, found := x509.NewCertPool(), false
	for rest := data; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			if strings.Contains(string(rest), "-----BEGIN") {
				return nil, errors.New("certificate-authority-data contains PEM that can't be parsed")
			}
			break
		}
		if block.Type != "CERTIFICATE" {
			return nil, errors.New("certificate-authority-data contains something other than certificates")
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, errors.New("certificate-authority-data contains a certificate that can't be parsed")
		}
		if err := keybound.Certificate(certificate); err != nil {
			return nil, fmt.Errorf("certificate-authority-data: %w", err)
		}
		roots.AddCert(certificate)
		found = true
	}
	if !found {
		return nil, errors.New("certificate-authority-data contains no PEM certificate")
	}
	return roots, nil
}

// setUser validates and stores the credentials.
func (k *Config) setUser(user *clientcmdapi.AuthInfo) error {
	switch {
	case user.Exec != nil:
		return errors.New("exec is not permitted, because it would run a program in the manager: set a token or a client certificate")
	case user.AuthProvider != nil:
		return errors.New("auth-provider is not permitted: set a token or a client certificate")
	case user.ClientCertificate != "":
		return errors.New("client-certificate refers to a file: set client-certificate-data")
	case user.ClientKey != "":
		return errors.New("client-key refers to a file: set client-key-data")
	case user.TokenFile != "":
		return errors.New("tokenFile refers to a file: set token")
	case user.Impersonate != "" || user.ImpersonateUID != "" || len(user.ImpersonateGroups) > 0 || len(user.ImpersonateUserExtra) > 0:
		return errors.New("impersonation (as, as-uid, as-groups, as-user-extra) is not permitted")
	case user.Username != "" || user.Password != "":
		return errors.New("username and password are not permitted: Kubernetes no longer supports them")
	case len(user.ClientCertificateData) == 0 && len(user.ClientKeyData) == 0 && user.Token == "":
		return errors.New("the user has no credentials: set token, or client-certificate-data and client-key-data")
	}
	if strings.ContainsFunc(user.Token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return errors.New("token contains characters that can't be sent")
	}
	if len(user.ClientCertificateData) > 0 || len(user.ClientKeyData) > 0 {
		if err := keybound.PEM(user.ClientKeyData); err != nil {
			return fmt.Errorf("client-key-data: %w", err)
		}
		pair, err := tls.X509KeyPair(user.ClientCertificateData, user.ClientKeyData)
		if err != nil {
			return errors.New("client-certificate-data and client-key-data are not a certificate and its key")
		}
		k.pair = &pair
	}
	k.certificate, k.key, k.Token = user.ClientCertificateData, user.ClientKeyData, user.Token
	return nil
}

// TLS returns the TLS configuration for the API server: it trusts only the kubeconfig's CA, and
// presents its client certificate.
func (k *Config) TLS() *tls.Config {
	config := &tls.Config{RootCAs: k.roots, ServerName: k.tlsServerName, MinVersion: tls.VersionTLS12}
	if k.pair != nil {
		config.Certificates = []tls.Certificate{*k.pair}
	}
	return config
}

// HasOtherName reports whether the API server's certificate is verified for another name than the
// host of its address.
func (k *Config) HasOtherName() bool {
	return k.tlsServerName != "" && k.tlsServerName != k.Server.Hostname()
}

// Compresses reports whether the API server may compress its answers.
func (k *Config) Compresses() bool { return !k.disableCompression }

// Endpoint returns the host and port of the API server.
func (k *Config) Endpoint() clusterv1.APIEndpoint {
	port := int64(443)
	if p := k.Server.Port(); p != "" {
		port, _ = strconv.ParseInt(p, 10, 32) // parseServer has checked it
	}
	return clusterv1.APIEndpoint{Host: k.Server.Hostname(), Port: int32(port)}
}

// CA returns the CA certificates that the API server's certificate is verified against, as PEM
// without anything else.
func (k *Config) CA() []byte { return k.ca }

// Subject returns the raw subject of the client certificate, or nil without one.
func (k *Config) Subject() []byte {
	if k.pair == nil || k.pair.Leaf == nil {
		return nil
	}
	return k.pair.Leaf.RawSubject
}

// Expired returns when the client certificate expired, or the zero time if it has not.
func (k *Config) Expired(now time.Time) time.Time {
	if k.pair != nil && k.pair.Leaf != nil && now.After(k.pair.Leaf.NotAfter) {
		return k.pair.Leaf.NotAfter
	}
	return time.Time{}
}

// Serialize returns a new kubeconfig with the names that Cluster API uses and only validated
// content. The same input gives the same bytes.
func (k *Config) Serialize(clusterName string) ([]byte, error) {
	user := clusterName + "-admin"
	context := user + "@" + clusterName
	data, err := clientcmd.Write(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{clusterName: {
			Server:                   k.Server.String(),
			TLSServerName:            k.tlsServerName,
			CertificateAuthorityData: k.ca,
			DisableCompression:       k.disableCompression,
		}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{user: {
			ClientCertificateData: k.certificate,
			ClientKeyData:         k.key,
			Token:                 k.Token,
		}},
		Contexts:       map[string]*clientcmdapi.Context{context: {Cluster: clusterName, AuthInfo: user}},
		CurrentContext: context,
	})
	if err != nil {
		return nil, errors.New("writing the kubeconfig failed") // again, the serializer's error may quote a secret
	}
	return data, nil
}

// IsHost reports whether s is an IP address or a DNS name.
func IsHost(s string) bool {
	return net.ParseIP(s) != nil || len(validation.IsDNS1123Subdomain(strings.ToLower(strings.TrimSuffix(s, ".")))) == 0
}
