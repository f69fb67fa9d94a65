// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
)

// TestHeadersAreBounded: no share of the memory is taken for headers, and Go keeps several times
// their size. An account's own copy of the transport has the same bound.
func TestHeadersAreBounded(t *testing.T) {
	t.Parallel()
	for _, http2 := range []bool{false, true} {
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			for i := range len(r.URL.Path) * 16 << 10 / 64 {
				w.Header().Set(fmt.Sprintf("X-%d", i), strings.Repeat("x", 64-10))
			}
		}))
		server.EnableHTTP2 = http2
		server.StartTLS()
		t.Cleanup(server.Close)
		trust := &tls.Config{RootCAs: server.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs, MinVersion: tls.VersionTLS12}
		shared := NewTransport(nil)
		shared.TLSClientConfig = trust.Clone()
		own, err := cloud.Connect(shared, trust)
		if err != nil {
			t.Fatal(err)
		}
		for name, transport := range map[string]http.RoundTripper{"shared": shared, "own": own} {
			for path, want := range map[string]cloud.Code{"/": "", "/" + strings.Repeat("x", 63): cloud.Unavailable} {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+path, nil)
				if err != nil {
					t.Fatal(err)
				}
				resp, err := transport.RoundTrip(req)
				if err == nil {
					_ = resp.Body.Close()
					if isHTTP2 := resp.ProtoMajor == 2; isHTTP2 != http2 {
						t.Errorf("the answer came by %s", resp.Proto)
					}
				}
				if got := cloud.CodeOf(driverkit.NewRedactor().NoResponse("Get", err)); got != want {
					t.Errorf("HTTP/2 %t, %s, %d KiB: %v", http2, name, 16*len(path), err)
				}
			}
		}
	}
}

// HTTP/2 carries any number as a status. Each label of a metric is a series, so there are few.
func TestOutcomeIsOneOfFew(t *testing.T) {
	for status, want := range map[int]string{
		-1: "invalid", 0: "invalid", 99: "invalid", 100: "1xx", 200: "2xx", 301: "3xx", 404: "4xx", 429: "429", 500: "5xx", 599: "5xx",
		600: "invalid", 100_000: "invalid",
	} {
		if got := outcome(&http.Response{StatusCode: status}, nil); got != want {
			t.Errorf("status %d: %s, want %s", status, got, want)
		}
	}
}
