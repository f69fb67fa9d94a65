// SPDX-License-Identifier: Apache-2.0

package openstack

import (
	"crypto/tls"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
	"github.com/drover-io/drover/internal/keybound"
)

// Keys of a client certificate in the credentials Secret, as in a Secret of type kubernetes.io/tls.
const (
	certificateKey = "tls.crt"
	privateKey     = "tls.key"
)

// connection returns the account's TLS configuration for both sides, or nil for the defaults.
// Errors are InvalidSpec or Unauthorized. It hides the parser's error, which is about a secret.
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
		return nil, cloud.Errorf(cloud.Unauthorized, "the credentials Secret must have both or neither of the keys %q and %q", certificateKey,
			privateKey)
	}
	if err := keybound.PEM(key); err != nil {
		return nil, cloud.Errorf(cloud.Unauthorized, "the credentials Secret's key %q is refused: %v", privateKey, err)
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return nil, cloud.Errorf(cloud.Unauthorized, "the credentials Secret's %s and %s are not a PEM certificate and its key", certificateKey,
			privateKey)
	}
	config.Certificates = []tls.Certificate{pair}
	return config, nil
}
