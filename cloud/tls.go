// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"crypto/tls"
	"net/http"
)

// Connect returns base if config is nil, else a copy of base that uses config and shares no
// connection with base. Errors are InvalidSpec.
func Connect(base http.RoundTripper, config *tls.Config) (http.RoundTripper, error) {
	if config == nil {
		return base, nil
	}
	shared, ok := base.(*http.Transport)
	if !ok {
		return nil, Invalid("the account needs its own TLS configuration, and a %T can't use one", base)
	}
	own := shared.Clone()
	own.TLSClientConfig = config
	return own, nil
}
