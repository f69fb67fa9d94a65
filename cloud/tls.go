// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
)

// CertPool reads an account's CA bundle, for Cloud.Roots; nil for an empty one. Errors are InvalidSpec.
func CertPool(bundle string) (*x509.CertPool, error) {
	if bundle == "" {
		return nil, nil
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM([]byte(bundle)) {
		return nil, Errorf(InvalidSpec, "caBundle holds no certificate in PEM")
	}
	return pool, nil
}

// Trusting returns what carries an account's calls: base, or where the account brings its own authorities or certificate,
// connections of its own, which trust no others. Errors are InvalidSpec or Unauthorized.
func (c *Cloud) Trusting(base http.RoundTripper, account *infrav1.CloudAccountSpec, credentials map[string][]byte) (http.RoundTripper, error) {
	config, err := c.connection(account, credentials)
	if config == nil || err != nil {
		return base, err
	}
	shared, ok := base.(*http.Transport)
	if !ok {
		return nil, Errorf(InvalidSpec, "the account brings its own authorities, and a %T can't be told of them", base)
	}
	own := shared.Clone()
	own.TLSClientConfig = config
	return own, nil
}

// connection is what the account says of its TLS, or nil.
func (c *Cloud) connection(account *infrav1.CloudAccountSpec, credentials map[string][]byte) (*tls.Config, error) {
	if c.TLS != nil {
		return c.TLS(account, credentials)
	}
	if c.Roots == nil {
		return nil, nil
	}
	roots, err := c.Roots(account)
	if roots == nil || err != nil {
		return nil, err
	}
	return &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, nil
}
