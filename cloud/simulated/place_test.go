// SPDX-License-Identifier: Apache-2.0

package simulated_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/simulated/simulator"
)

// TestPlace: each customer of a simulated cloud has its own place, which never changes. Probe
// returns it with one call.
func TestPlace(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	accounts := []simulator.AccountOptions{{Name: "a", Tokens: []string{"token-a", "token-a2"}}, {Name: "b", Tokens: []string{"token-b"}}}
	admin, other := newCloud(t, simulator.Options{Accounts: accounts}), newCloud(t, simulator.Options{Accounts: accounts})
	place := func(admin simulator.Admin, token string) string {
		info, err := newDriver(t, admin.URL, token).Probe(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		return info.Place
	}
	here := place(admin, "token-a")
	g.Expect(here).To(MatchRegexp(`^simulated:[a-z0-9]+:sim-1$`))
	g.Expect(place(admin, "token-a")).To(Equal(here))
	g.Expect(place(admin, "token-a2")).To(Equal(here), "another token of the same customer")
	g.Expect(admin.SetAccount(t.Context(), accounts[0])).To(Succeed())
	g.Expect(place(admin, "token-a")).To(Equal(here), "the customer's settings were written again")
	g.Expect(place(admin, "token-b")).NotTo(Equal(here))
	g.Expect(place(other, "token-a")).NotTo(Equal(here), "another simulated cloud with the same seed")
}

// TestNoPlace: an endpoint that returns no valid account ID proves no place.
func TestNoPlace(t *testing.T) {
	t.Parallel()
	for _, id := range []string{"", secret, "a b", "<html>"} {
		g := NewWithT(t)
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = fmt.Fprintf(w, `{"zones":["z"],"account":%q}`, id)
		}))
		info, err := newDriver(t, server.URL, secret).Probe(t.Context())
		server.Close()
		g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unknown), "%q: %v", id, err)
		g.Expect(info.Place).To(BeEmpty())
		g.Expect(err.Error()).NotTo(ContainSubstring(secret))
	}
}

// TestShortToken: a token that is part of the cloud's own message does not change how the answer is
// classified, and is not shown, even in wrapped errors.
func TestShortToken(t *testing.T) {
	t.Parallel()
	const short = "Limit"
	for code, want := range map[string]cloud.Code{"RequestLimitExceeded": cloud.Throttled, short: cloud.Unknown} {
		g := NewWithT(t)
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = fmt.Fprintf(w, `{"code":%q,"message":"%s"}`, code, short)
		}))
		_, err := newDriver(t, server.URL, short).List(t.Context())
		server.Close()
		g.Expect(cloud.CodeOf(err)).To(Equal(want), "%v", err)
		for ; err != nil; err = errors.Unwrap(err) {
			g.Expect(err.Error()).NotTo(ContainSubstring(short))
		}
	}
}
