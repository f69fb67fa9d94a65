// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"crypto/tls"
	"net/http"
)

// Connect returns base, or with a TLS configuration a copy of it that trusts as that says and
// shares no connection with it. Errors are InvalidSpec.
func Connect(base http.RoundTripper, config *tls.Config) (http.RoundTripper, error) {
	if config == nil {
		return base, nil
	}
	shared, ok := base.(*http.Transport)
	if !ok {
		return nil, Errorf(InvalidSpec, "the account needs a TLS configuration of its own, which a %T can't take", base)
	}
	own := shared.Clone()
	own.TLSClientConfig = config
	return own, nil
}
