// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/internal/kubeconfig"
)

const (
	// kubeconfigKey is the key in the credentials Secret.
	kubeconfigKey = "kubeconfig"
	// podFolder is the mount path of a pod's service account ("Accessing the API from within a Pod"
	// in the Kubernetes documentation).
	podFolder = "/var/run/secrets/kubernetes.io/serviceaccount"
)

// endpoint is an API server and the account's credentials for it.
type endpoint struct {
	server *url.URL
	tls    *tls.Config
	// ca holds the authorities that verify the server's certificate, as PEM.
	ca []byte
	// bearer returns the token to send, "" for none. A pod's token is renewed in its file.
	bearer func() (string, error)
}

// endpointOf reads the account's kubeconfig. Without a Secret, it returns the API server of the
// cluster that the manager runs in.
func endpointOf(credentials map[string][]byte) (endpoint, error) {
	if credentials == nil {
		return podEndpoint(podFolder, os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT"))
	}
	data := credentials[kubeconfigKey]
	if len(data) == 0 {
		return endpoint{}, cloud.Errorf(cloud.Unauthorized, "the credentials Secret's key %q is missing or empty", kubeconfigKey)
	}
	config, err := kubeconfig.Parse(data)
	if err != nil {
		return endpoint{}, cloud.Invalid("the kubeconfig in the credentials Secret is not allowed: %v", err)
	}
	return endpoint{
		server: config.Server, tls: config.TLS(), ca: config.CA(),
		bearer: func() (string, error) { return config.Token, nil },
	}, nil
}

// podEndpoint returns the API server of the pod's cluster, with the pod's service account.
func podEndpoint(folder, host, port string) (endpoint, error) {
	if host == "" || port == "" {
		return endpoint{}, cloud.Errorf(cloud.Unauthorized, "the manager does not run in a cluster: set credentialsRef")
	}
	ca, err := os.ReadFile(filepath.Join(folder, "ca.crt"))
	if err != nil {
		return endpoint{}, cloud.Errorf(cloud.Unauthorized, "the manager's service account can't be read: set credentialsRef")
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return endpoint{}, cloud.Errorf(cloud.Unauthorized, "the manager's service account has no CA certificate of the API server")
	}
	return endpoint{
		server: &url.URL{Scheme: "https", Host: net.JoinHostPort(host, port)},
		tls:    &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		ca:     ca,
		bearer: func() (string, error) {
			token, err := os.ReadFile(filepath.Join(folder, "token"))
			if err != nil {
				return "", cloud.Errorf(cloud.Unauthorized, "the manager's service account has no token")
			}
			return strings.TrimSpace(string(token)), nil
		},
	}, nil
}
