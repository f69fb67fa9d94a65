// SPDX-License-Identifier: Apache-2.0

package openstack

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/fleet"
)

// TestEndpointThrottlesItsTenantOnly: an endpoint that a tenant chose says that it is the project
// of another tenant, and refuses calls for five minutes. The other tenant's calls go on.
func TestEndpointThrottlesItsTenantOnly(t *testing.T) {
	serve := func(other func(w http.ResponseWriter, r *http.Request)) string {
		var host string
		play := func(w http.ResponseWriter, name string) {
			resp, err := recorded(t, name)()
			if err != nil {
				t.Error(err)
				return
			}
			body, _ := io.ReadAll(resp.Body)
			for key := range resp.Header {
				w.Header().Set(key, resp.Header.Get(key))
			}
			w.Header().Del("Content-Length")
			w.WriteHeader(resp.StatusCode)
			_, _ = w.Write(regexp.MustCompile(`127\.0\.0\.1:\d+`).ReplaceAll(body, []byte(host)))
		}
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case strings.HasSuffix(r.URL.Path, "/auth/tokens"):
				play(w, "token")
			case strings.HasSuffix(r.URL.Path, "/os-availability-zone"):
				play(w, "zones")
			case other != nil:
				other(w, r)
			case strings.HasSuffix(r.URL.Path, "/ports"):
				play(w, "ports-none")
			default:
				play(w, "servers-none")
			}
		}))
		t.Cleanup(server.Close)
		host = strings.TrimPrefix(server.URL, "http://")
		return server.URL
	}
	accounts := fleet.NewAccounts(fleet.Options{Clouds: []cloud.Cloud{Cloud()}, Times: fleet.TimesFor(fleet.DefaultCall)})
	connect := func(namespace, url string) *fleet.Account {
		t.Helper()
		key := types.NamespacedName{Namespace: namespace, Name: "openstack"}
		config := fleet.AccountConfig{
			Spec: infrav1.DroverAccountSpec{Cloud: infrav1.AccountCloud{OpenStack: &infrav1.OpenStackAccount{AuthURL: url + "/v3",
				ProjectID: projectOf(t)}}},
			Credentials: map[string][]byte{cloudsKey: []byte(strings.ReplaceAll(clouds, "http://127.0.0.1:25001", url+"/v3"))},
		}
		a, err := accounts.Set(key, config)
		if err != nil {
			t.Fatal(err)
		}
		info, err := a.Probe(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		config.Place = info.Place // the controller records it
		if a, err = accounts.Set(key, config); err != nil {
			t.Fatal(err)
		}
		return a
	}
	victim := connect("victim", serve(nil))
	attacker := connect("attacker", serve(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "300")
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusTooManyRequests)
		_, _ = io.WriteString(w, `{"overLimit":{"code":429,"message":"no","retryAfter":"300"}}`)
	}))
	read := func(a *fleet.Account) error {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		_, failed := a.Read(ctx, []cloud.Reference{{Token: "recorded-token-0001", OwnershipID: "owner-1"}})
		return failed["recorded-token-0001"]
	}
	var queued *cloud.Queued
	if err := read(victim); errors.As(err, &queued) {
		t.Fatalf("before: %v", err)
	}
	if err := read(attacker); cloud.CodeOf(err) != cloud.Throttled {
		t.Fatalf("the attacker's own call: %v, want Throttled", err)
	}
	if err := read(victim); errors.As(err, &queued) {
		t.Errorf("a call of another tenant waits %s for its turn", queued.After.Round(time.Second))
	}
	if err := read(attacker); !errors.As(err, &queued) {
		t.Errorf("the attacker's own next call: %v, want that it waits for its turn", err)
	}
}
