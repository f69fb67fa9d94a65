// SPDX-License-Identifier: Apache-2.0

package vsphere

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
)

// trust says how vCenter proves who it is: by the account's thumbprint, else by its authorities;
// nil: by the system's.
func trust(account *infrav1.VSphereAccount) (*tls.Config, error) {
	wanted, err := thumbprintOf(account.Thumbprint)
	if err != nil {
		return nil, err
	}
	if wanted != nil {
		return pinned(*wanted), nil
	}
	roots, err := driverkit.CertPool(account.CABundle)
	if roots == nil || err != nil {
		return nil, err
	}
	return &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, nil
}

// pinned trusts the one certificate with this thumbprint. crypto/tls asks for both fields together:
// the first leaves the chain of authorities out, the second is called in every handshake, resumed
// ones included, and its error ends it. That the server has the certificate's key is proven by the
// handshake itself.
func pinned(wanted [sha256.Size]byte) *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		InsecureSkipVerify: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			if len(state.PeerCertificates) == 0 {
				return errors.New("the server shows no certificate")
			}
			if found := sha256.Sum256(state.PeerCertificates[0].Raw); found != wanted {
				return fmt.Errorf("the server's certificate has the thumbprint %s, which is not the account's", strings.ToUpper(hex.EncodeToString(found[:])))
			}
			return nil
		},
	}
}

// thumbprintOf reads a SHA-256 thumbprint, with colons or without; nil for none. Errors are
// InvalidSpec.
func thumbprintOf(text string) (*[sha256.Size]byte, error) {
	if text == "" {
		return nil, nil
	}
	digits, err := hex.DecodeString(strings.ReplaceAll(text, ":", ""))
	if err != nil || len(digits) != sha256.Size {
		return nil, cloud.Errorf(cloud.InvalidSpec, "thumbprint is not SHA-256: 64 hexadecimal digits")
	}
	return (*[sha256.Size]byte)(digits), nil
}
