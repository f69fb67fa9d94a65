// SPDX-License-Identifier: Apache-2.0

package vsphere

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
)

// trust returns how vCenter's certificate is verified: by the account's thumbprint, otherwise by
// its authorities. nil means the system's authorities.
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

// pinned trusts only the certificate with this thumbprint. crypto/tls needs both fields: the first
// skips the verification of the chain. The second is called in every handshake, including resumed
// ones, and its error ends the handshake. The handshake itself proves that the server has the
// certificate's key.
func pinned(wanted [sha256.Size]byte) *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		InsecureSkipVerify: true, //nolint:gosec // VerifyConnection compares the certificate itself
		VerifyConnection: func(state tls.ConnectionState) error {
			if len(state.PeerCertificates) == 0 {
				return errors.New("the server presents no certificate")
			}
			if found := sha256.Sum256(state.PeerCertificates[0].Raw); found != wanted {
				return fmt.Errorf("the server's certificate has the thumbprint %s, which differs from spec.cloud.vsphere.thumbprint",
					strings.ToUpper(hex.EncodeToString(found[:])))
			}
			return nil
		},
	}
}

// thumbprintOf parses a SHA-256 thumbprint, with or without colons. It returns nil for none. Errors
// are InvalidSpec.
func thumbprintOf(text string) (*[sha256.Size]byte, error) {
	if text == "" {
		return nil, nil
	}
	digits, err := hex.DecodeString(strings.ReplaceAll(text, ":", ""))
	if err != nil || len(digits) != sha256.Size {
		return nil, cloud.Invalid("thumbprint is not SHA-256 (64 hexadecimal digits)")
	}
	return (*[sha256.Size]byte)(digits), nil
}
