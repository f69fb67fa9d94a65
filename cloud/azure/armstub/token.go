// SPDX-License-Identifier: Apache-2.0

package armstub

import (
	"crypto/rand"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
)

// serveToken is the token service: OpenID Connect discovery, and the client credentials grant (RFC
// 6749, 4.4) with a secret or an assertion (RFC 7523).
func (c *Cloud) serveToken(w http.ResponseWriter, r *http.Request, body []byte) {
	c.mu.Lock()
	c.calls[r.Method+" token"]++
	c.mu.Unlock()
	write := func(status int, answer map[string]any) {
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(answer)
	}
	tenant := strings.Split(strings.Trim(r.URL.Path, "/"), "/")[0]
	base := "https://" + r.Host + "/" + tenant
	if tenant != c.options.Tenant {
		write(http.StatusBadRequest, map[string]any{"error": "invalid_tenant", "error_description": "AADSTS90002: Tenant '" + tenant +
			"' not found."})
		return
	}
	if strings.Contains(r.URL.Path, "/.well-known/") {
		write(http.StatusOK, map[string]any{
			"token_endpoint": base + "/oauth2/v2.0/token", "authorization_endpoint": base + "/oauth2/v2.0/authorize", "issuer": base + "/v2.0",
		})
		return
	}
	form, err := url.ParseQuery(string(body))
	if err != nil || form.Get("grant_type") != "client_credentials" || form.Get("scope") == "" {
		write(http.StatusBadRequest, map[string]any{"error": "invalid_request",
			"error_description": "AADSTS900144: The request body is invalid."})
		return
	}
	c.mu.Lock()
	secret := c.options.Secret
	c.mu.Unlock()
	known := form.Get("client_id") == c.options.Client
	switch assertion := form.Get("client_assertion"); {
	case assertion != "":
		known = known && c.options.Assertions != nil && c.options.Assertions(assertion)
	default:
		known = known && form.Get("client_secret") == secret
	}
	if !known {
		write(http.StatusUnauthorized, map[string]any{"error": "invalid_client",
			"error_description": "AADSTS7000215: Invalid client secret provided: " + form.Get("client_secret") + ". Trace ID: 1 Correlation ID: 2"})
		return
	}
	token := rand.Text()
	c.mu.Lock()
	c.tokens[token] = true
	c.mu.Unlock()
	write(http.StatusOK, map[string]any{"token_type": "Bearer", "expires_in": 3599, "ext_expires_in": 3599, "access_token": token})
}

// Revoke makes all tokens invalid.
func (c *Cloud) Revoke() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.tokens)
}

// SetSecret changes Options.Secret, and makes all tokens invalid.
func (c *Cloud) SetSecret(secret string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.options.Secret = secret
	clear(c.tokens)
}
