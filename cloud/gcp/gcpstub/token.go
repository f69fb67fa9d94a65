// SPDX-License-Identifier: Apache-2.0

package gcpstub

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// Audience is the workload identity provider that the stub knows, and Impersonated the service
// account that its identities may use.
const (
	Audience     = "//iam.googleapis.com/projects/4711/locations/global/workloadIdentityPools/pool/providers/provider"
	Impersonated = "drover@" + Project + ".iam.gserviceaccount.com"
)

// serveToken is Google's token services: for assertions that a service account's key signs (RFC
// 7523), for tokens of other identity providers (RFC 8693), and for impersonation.
func (c *Cloud) serveToken(w http.ResponseWriter, r *http.Request, service string, body []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls[r.Method+" token"]++
	form, _ := url.ParseQuery(string(body))
	switch {
	case service == "oauth2" && r.URL.Path == "/token" && form.Get("grant_type") == "urn:ietf:params:oauth:grant-type:jwt-bearer":
		if c.claims(form.Get("assertion"))["aud"] != "https://oauth2.googleapis.com/token" {
			writeToken(w, http.StatusBadRequest, map[string]any{"error": "invalid_grant", "error_description": "Invalid JWT Signature."})
			return
		}
		writeToken(w, http.StatusOK, map[string]any{"access_token": c.issue("compute"), "expires_in": 3599, "token_type": "Bearer"})
	case service == "sts" && r.URL.Path == "/v1/token" && form.Get("grant_type") == "urn:ietf:params:oauth:grant-type:token-exchange":
		subject := form.Get("subject_token")
		if c.options.Subjects == nil || !c.options.Subjects(subject) || form.Get("audience") != Audience {
			writeToken(w, http.StatusBadRequest, map[string]any{"error": "invalid_grant", "error_description": "The subject token is invalid: " +
				subject})
			return
		}
		use := "impersonation"
		if form.Get("subject_token_type") == "urn:ietf:params:oauth:token-type:jwt" {
			use = "compute" // these identities have roles of their own
		}
		writeToken(w, http.StatusOK, map[string]any{"access_token": c.issue(use), "expires_in": 3599, "token_type": "Bearer",
			"issued_token_type": "urn:ietf:params:oauth:token-type:access_token"})
	case service == "iamcredentials" && r.URL.Path == "/v1/projects/-/serviceAccounts/"+Impersonated+":generateAccessToken":
		if c.tokens[strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")] != "impersonation" {
			writeToken(w, http.StatusForbidden, map[string]any{"error": map[string]any{"code": 403, "status": "PERMISSION_DENIED",
				"message": "Permission denied."}})
			return
		}
		writeToken(w, http.StatusOK, map[string]any{"accessToken": c.issue("compute"),
			"expireTime": time.Now().Add(time.Hour).UTC().Format(time.RFC3339)})
	default:
		writeToken(w, http.StatusNotFound, map[string]any{"error": "invalid_request", "error_description": "Not found."})
	}
}

func writeToken(w http.ResponseWriter, status int, answer map[string]any) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(answer)
}

func (c *Cloud) issue(use string) string {
	token := rand.Text()
	c.tokens[token] = use
	return token
}

// claims returns the claims of a token that the service account's key signed, or none.
func (c *Cloud) claims(text string) jwt.MapClaims {
	claims := jwt.MapClaims{}
	_, err := jwt.ParseWithClaims(text, claims, func(t *jwt.Token) (any, error) {
		if c.options.Key == nil || c.options.KeyID != "" && t.Header["kid"] != c.options.KeyID {
			return nil, fmt.Errorf("no key")
		}
		return c.options.Key, nil
	}, jwt.WithValidMethods([]string{"RS256"}), jwt.WithExpirationRequired(), jwt.WithIssuedAt(), jwt.WithIssuer(c.options.Email))
	if err != nil || claims["scope"] != "https://www.googleapis.com/auth/cloud-platform" {
		return jwt.MapClaims{}
	}
	return claims
}

// isSelfSigned reports whether a request has a token that the service account signed itself, as
// universes other than Google's own take.
func (c *Cloud) isSelfSigned(r *http.Request) bool {
	return !strings.HasSuffix(r.Host, ".googleapis.com") &&
		c.claims(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))["sub"] == c.options.Email
}

// Revoke makes all tokens invalid.
func (c *Cloud) Revoke() { c.set(func() { clear(c.tokens) }, nil) }
