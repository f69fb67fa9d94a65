// SPDX-License-Identifier: Apache-2.0

package openstack

import (
	"crypto/tls"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
)

// The credentials Secret's keys of a client certificate, as a Secret of the type kubernetes.io/tls
// has them.
const (
	certificateKey = "tls.crt"
	privateKey     = "tls.key"
)

// connection is how the account's endpoints prove themselves, and how it proves itself to them; nil
// where that is as usual. Errors are InvalidSpec or Unauthorized. The parser's words are not
// repeated: they are about a secret.
func connection(account *infrav1.OpenStackAccount, credentials map[string][]byte) (*tls.Config, error) {
	roots, err := driverkit.CertPool(account.CABundle)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	certificate, key := credentials[certificateKey], credentials[privateKey]
	switch {
	case len(certificate) == 0 && len(key) == 0:
		if roots == nil {
			return nil, nil
		}
		return config, nil
	case len(certificate) == 0 || len(key) == 0:
		return nil, cloud.Errorf(cloud.Unauthorized, "the credentials Secret has one of the keys %q and %q: a client certificate needs both", certificateKey, privateKey)
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return nil, cloud.Errorf(cloud.Unauthorized, "the credentials Secret's %s and %s are no pair of a certificate and its key in PEM", certificateKey, privateKey)
	}
	config.Certificates = []tls.Certificate{pair}
	return config, nil
}
