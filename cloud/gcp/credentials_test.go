// SPDX-License-Identifier: Apache-2.0

package gcp

import (
	"context"
	"encoding/pem"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/conformance"
	"github.com/drover-io/drover/cloud/gcp/gcpstub"
	"github.com/drover-io/drover/internal/test/authority"
)

// roundTrip is a transport.
type roundTrip func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f roundTrip) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// response returns an answer of a type.
func response(req *http.Request, status int, kind, body string) *http.Response {
	return &http.Response{StatusCode: status, Header: http.Header{"Content-Type": {kind}}, Request: req,
		Body: io.NopCloser(strings.NewReader(body))}
}

// federation returns a Secret with a workload identity federation, with changes.
func federation(changes map[string]any) map[string][]byte {
	file := map[string]any{
		"type": "external_account", "audience": gcpstub.Audience, "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
		"token_url": "https://sts.googleapis.com/v1/token", "private_key": nil, "client_email": nil, "token_uri": nil,
	}
	for name, value := range changes {
		file[name] = value
	}
	return map[string][]byte{keyCredentials: keyJSON(testKeys()[0], file), keySubjectToken: []byte("marked-subject\n")}
}

// TestCredentials: each kind of Secret obtains a token by what it holds. No Secret makes the
// manager read a file, fetch a URL, run a program, or send anything to anyone but Google: such a
// Secret is refused before any call.
func TestCredentials(t *testing.T) {
	t.Parallel()
	impersonate := "https://iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/" + gcpstub.Impersonated + ":generateAccessToken"
	source := func(value map[string]any) map[string][]byte {
		return federation(map[string]any{"credential_source": value})
	}
	key := func(changes map[string]any) map[string][]byte {
		return map[string][]byte{keyCredentials: keyJSON(testKeys()[0], changes)}
	}
	const accepted, asked, refused = "", "refused by Google", "refused without a call"
	for name, test := range map[string]struct {
		secret map[string][]byte
		want   string
	}{
		"a key":                        {key(nil), accepted},
		"a key of another service":     {key(map[string]any{"token_uri": "https://elsewhere.test/token"}), accepted},
		"a Secret of another provider": {map[string][]byte{keyOfMCM: keyJSON(testKeys()[0], nil), "userData": []byte("#cloud-config")}, accepted},
		"a federated identity":         {federation(nil), accepted},
		"impersonation": {federation(map[string]any{"subject_token_type": "urn:x",
			"service_account_impersonation_url": impersonate}), accepted},
		"an empty source":  {federation(map[string]any{"credential_source": nil}), accepted},
		"another key":      {map[string][]byte{keyCredentials: keyJSON(testKeys()[1], nil)}, asked},
		"another identity": {key(map[string]any{"client_email": "other@x"}), asked},
		"another audience": {federation(map[string]any{"audience": "//other"}), asked},
		"a foreign service account": {federation(map[string]any{"subject_token_type": "urn:x",
			"service_account_impersonation_url": strings.Replace(impersonate, "drover@", "other@", 1)}), asked},
		"no impersonation":            {federation(map[string]any{"subject_token_type": "urn:x"}), asked},
		"nothing":                     {map[string][]byte{}, refused},
		"no private key":              {key(map[string]any{"private_key": "marked-nothing"}), refused},
		"no email":                    {key(map[string]any{"client_email": ""}), refused},
		"a key of another universe":   {key(map[string]any{"universe_domain": "elsewhere.test"}), refused},
		"a user":                      {key(map[string]any{"type": "authorized_user"}), refused},
		"an impersonated account":     {key(map[string]any{"type": "impersonated_service_account"}), refused},
		"no subject token":            {map[string][]byte{keyCredentials: federation(nil)[keyCredentials]}, refused},
		"no audience":                 {federation(map[string]any{"audience": ""}), refused},
		"a file":                      {source(map[string]any{"file": "/etc/passwd"}), refused},
		"a URL":                       {source(map[string]any{"url": "http://169.254.169.254/"}), refused},
		"a program":                   {source(map[string]any{"executable": map[string]any{"command": "/bin/sh"}}), refused},
		"AWS' metadata":               {source(map[string]any{"environment_id": "aws1"}), refused},
		"a certificate":               {source(map[string]any{"certificate": map[string]any{"use_default_certificate_config": true}}), refused},
		"a token service elsewhere":   {federation(map[string]any{"token_url": "https://sts.elsewhere.test/v1/token"}), refused},
		"a token service's lookalike": {federation(map[string]any{"token_url": "https://sts.googleapis.com.elsewhere.test/v1/token"}), refused},
		"impersonation elsewhere": {federation(map[string]any{
			"service_account_impersonation_url": "https://elsewhere.test/v1/projects/-/serviceAccounts/a:generateAccessToken"}), refused},
		"impersonation's lookalike": {federation(map[string]any{"service_account_impersonation_url": strings.Replace(impersonate,
			"googleapis.com", "googleapis.com.elsewhere.test", 1)}), refused},
		"impersonation with a user": {federation(map[string]any{"service_account_impersonation_url": strings.Replace(impersonate,
			"googleapis.com", "googleapis.com@elsewhere.test", 1)}), refused},
		"impersonation of another API": {federation(map[string]any{
			"service_account_impersonation_url": "https://iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/a:signBlob"}), refused},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			stub := start(t, gcpstub.Options{Subjects: func(s string) bool { return s == "marked-subject" }})
			wire, calls := stub.Transport(), 0
			d, err := newDriver(cloud.Config{Account: testAccount(), Credentials: test.secret,
				Connect: conformance.Through(roundTrip(func(req *http.Request) (*http.Response, error) {
					calls++
					if !strings.HasSuffix(req.URL.Host, ".googleapis.com") || req.URL.Scheme != "https" {
						t.Errorf("a call of %s", req.URL)
					}
					return wire.RoundTrip(req)
				}))})
			if err == nil {
				_, err = d.Probe(t.Context())
			}
			got := accepted
			switch {
			case err != nil && calls == 0:
				got = refused
			case err != nil:
				got = asked
			}
			g.Expect(got).To(Equal(test.want), "%v", err)
			if err != nil {
				g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unauthorized), "%v", err)
				g.Expect(err.Error()).NotTo(ContainSubstring("marked"))
			}
		})
	}
}

// TestUniverse: in a universe other than Google's own, no token service is asked: the key signs.
func TestUniverse(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	stub := start(t, gcpstub.Options{})
	account := testAccount()
	account.Cloud.GCP.UniverseDomain = gcpstub.Universe
	secret := map[string][]byte{keyCredentials: keyJSON(testKeys()[0], map[string]any{"universe_domain": gcpstub.Universe})}
	d, err := newDriver(cloud.Config{Account: account, Credentials: secret, Connect: conformance.Through(stub.Transport())})
	g.Expect(err).NotTo(HaveOccurred())
	_, err = d.Probe(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(stub.Calls()["POST token"]).To(BeZero())
	_, err = newDriver(cloud.Config{Account: account, Connect: conformance.Through(stub.Transport())})
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.InvalidSpec), "the manager's own identity stays with Google: %v", err)
}

// TestAmbient: without a Secret, the manager asks the metadata server, and nobody else.
func TestAmbient(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	var asked []string
	through := roundTrip(func(req *http.Request) (*http.Response, error) {
		asked = append(asked, req.URL.Scheme+"://"+req.URL.Host)
		if req.URL.Host == "metadata.google.internal" && req.Header.Get("Metadata-Flavor") == "Google" {
			return response(req, 200, "application/json", `{"access_token":"ambient","expires_in":300}`), nil
		}
		if req.Header.Get("Authorization") != "Bearer ambient" {
			t.Error("the token is not used")
		}
		return response(req, 403, "application/json", `{"error":{"errors":[{"reason":"forbidden"}]}}`), nil
	})
	d, err := newDriver(cloud.Config{Account: testAccount(), Connect: conformance.Through(through)})
	g.Expect(err).NotTo(HaveOccurred())
	for range 2 {
		_, err = d.Probe(context.Background())
		g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unauthorized), "%v", err)
	}
	g.Expect(asked).To(Equal([]string{"http://metadata.google.internal", "https://compute.googleapis.com", "https://compute.googleapis.com"}))
	custom := testAccount()
	custom.Cloud.GCP.Endpoint = "https://compute.elsewhere.test"
	_, err = newDriver(cloud.Config{Account: custom, Connect: conformance.Through(through)})
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.InvalidSpec), "%v", err)
}

// TestTokenErrors: what a token service answers is typed, and no secret of it is shown.
func TestTokenErrors(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	stub := start(t, gcpstub.Options{Subjects: func(string) bool { return false }})
	d, err := newDriver(cloud.Config{Account: testAccount(), Credentials: federation(nil), Connect: conformance.Through(stub.Transport())})
	g.Expect(err).NotTo(HaveOccurred())
	for range 3 {
		_, err = d.List(t.Context())
		g.Expect(err).To(MatchError("Unauthorized: GetToken: invalid_grant: The subject token is invalid: [credential]"))
	}
	g.Expect(stub.Calls()["POST token"]).To(Equal(1), "refused credentials are not tried again at once")
	for status, want := range map[int]cloud.Code{302: cloud.Unknown, 200: cloud.Unknown, 429: cloud.Throttled, 503: cloud.Unavailable,
		0: cloud.Unavailable} {
		through := roundTrip(func(req *http.Request) (*http.Response, error) {
			if status == 0 {
				return nil, errors.New("no route")
			}
			return response(req, status, "text/html", "<html>Welcome to the hotel</html>"), nil
		})
		d, err := newDriver(cloud.Config{Account: testAccount(), Credentials: testCredentials(), Connect: conformance.Through(through)})
		g.Expect(err).NotTo(HaveOccurred())
		_, err = d.List(t.Context())
		g.Expect(cloud.CodeOf(err)).To(Equal(want), "%d: %v", status, err)
		g.Expect(err.Error()).NotTo(ContainSubstring("hotel"))
	}
	queued := roundTrip(func(*http.Request) (*http.Response, error) { return nil, &cloud.Queued{After: time.Minute} })
	d, err = newDriver(cloud.Config{Account: testAccount(), Credentials: testCredentials(), Connect: conformance.Through(queued)})
	g.Expect(err).NotTo(HaveOccurred())
	_, err = d.List(t.Context())
	var late *cloud.Queued
	g.Expect(errors.As(err, &late)).To(BeTrue(), "%v", err)
}

// TestRevokedToken: a token that Google no longer takes is replaced by the next call, but not again
// and again.
func TestRevokedToken(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	stub := start(t, gcpstub.Options{})
	d := connect(t, stub)
	_, err := d.Probe(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	stub.Revoke()
	_, err = d.Probe(ctx)
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unauthorized), "%v", err)
	_, err = d.Probe(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	for range 3 {
		stub.Revoke()
		_, err = d.Probe(ctx)
		g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unauthorized), "%v", err)
	}
	g.Expect(stub.Calls()["POST token"]).To(Equal(2))
}

// TestJudge: the judge finds what Google's document does not have, wherever it is.
func TestJudge(t *testing.T) {
	t.Parallel()
	document, err := gcpstub.Load()
	if err != nil {
		t.Fatal(err)
	}
	const insert = "https://compute.googleapis.com/compute/v1/projects/p/zones/z/instances"
	for name, test := range map[string]struct{ address, body, want string }{
		"correct":           {insert + "?requestId=x", `{"name":"m","disks":[{"initializeParams":{"diskSizeGb":"10","labels":{"a":"b"}}}]}`, ""},
		"unknown member":    {insert, `{"disks":[{"autoDeletes":true}]}`, "disks[0].autoDeletes is unknown"},
		"number":            {insert, `{"disks":[{"initializeParams":{"diskSizeGb":10}}]}`, "diskSizeGb is float64"},
		"output":            {insert, `{"status":"RUNNING"}`, "status is Google's to set"},
		"enum":              {insert, `{"scheduling":{"provisioningModel":"CHEAP"}}`, "unknown value: CHEAP"},
		"pattern":           {insert, `{"name":"M"}`, "does not match"},
		"unknown parameter": {insert + "?returnPartialSuccess=true", `{}`, "parameter returnPartialSuccess is unknown"},
		"unknown path":      {insert + "/m/renew", `{}`, "is unknown"},
	} {
		req, err := http.NewRequest(http.MethodPost, test.address, nil)
		if err != nil {
			t.Fatal(err)
		}
		got := strings.Join(document.JudgeRequest(http.MethodPost, req.URL, []byte(test.body)), "; ")
		if (got == "") != (test.want == "") || !strings.Contains(got, test.want) {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
	if got := document.JudgeAnswer(http.MethodPost, "/compute/v1/projects/p/zones/z/instances",
		[]byte(`{"kind":"compute#operation","instance":{}}`)); len(got) != 1 {
		t.Errorf("an answer: %q", got)
	}
}

// TestHugeKeyIsRefused: no number in a Secret's key keeps the manager computing, whatever the type
// of its PEM block.
func TestHugeKeyIsRefused(t *testing.T) {
	t.Parallel()
	for name, key := range authority.HugeKeys(t) {
		for _, kind := range []string{"PRIVATE KEY", "CERTIFICATE"} {
			block, _ := pem.Decode(key)
			block.Type = kind
			secret := map[string][]byte{keyCredentials: keyJSON(testKeys()[0], map[string]any{"private_key": string(pem.EncodeToMemory(block))})}
			_, err := newCredential(testAccount().Cloud.GCP, secret, nil)
			NewWithT(t).Expect(cloud.CodeOf(err)).To(Equal(cloud.Unauthorized), "%s, %s: %v", name, kind, err)
		}
	}
}
