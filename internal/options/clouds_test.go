// SPDX-License-Identifier: Apache-2.0

package options

import (
	"errors"
	"io/fs"
	"net/http"
	"testing"
)

// TestAccountsDoNotReachTheProxy tests that the operator's proxy is no endpoint of an account.
func TestAccountsDoNotReachTheProxy(t *testing.T) {
	t.Setenv("HTTPS_PROXY", "http://proxy.example:3128")
	dialer, err := Clouds{}.Dialer()
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://proxy.example:3128/v3", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := Clouds{}.Accounts(dialer).Transport.RoundTrip(request)
	if err == nil {
		response.Body.Close()
	}
	if !errors.Is(err, fs.ErrPermission) {
		t.Errorf("the proxy was asked: %v", err)
	}
}
