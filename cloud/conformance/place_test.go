// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

// TestLines: a dead connection swallows what is sent. Over HTTP/2, it continues to do so unless
// there are pings. So deadConnection simulates the real fault.
func TestLines(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		http2, pings, recovers bool
	}{
		"HTTP/1.1":           {recovers: true},
		"HTTP/2, no pings":   {http2: true},
		"HTTP/2, with pings": {http2: true, pings: true, recovers: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
			server.EnableHTTP2 = test.http2
			server.StartTLS()
			t.Cleanup(server.Close)
			lines := &lines{dial: new(net.Dialer).DialContext}
			transport := server.Client().Transport.(*http.Transport).Clone()
			transport.DialContext, transport.ForceAttemptHTTP2 = lines.connect, test.http2
			if test.pings {
				transport.HTTP2 = &http.HTTP2Config{SendPingTimeout: 200 * time.Millisecond, PingTimeout: 200 * time.Millisecond}
			}
			t.Cleanup(transport.CloseIdleConnections)
			call := func(patience time.Duration) error {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				req, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL, nil)
				if err != nil {
					return err
				}
				resp, err := transport.RoundTrip(req)
				if err != nil {
					return err
				}
				_, err = io.Copy(io.Discard, resp.Body)
				return err
			}
			g.Expect(call(time.Minute)).To(Succeed())
			lines.cut()
			g.Expect(call(time.Second)).NotTo(Succeed())
			if test.recovers {
				g.Eventually(call).WithArguments(time.Second).Should(Succeed())
			} else {
				g.Expect(call(time.Second)).NotTo(Succeed())
			}
		})
	}
}
