// SPDX-License-Identifier: Apache-2.0

package driverkit

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/drover-io/drover/cloud"
)

// roundTrip is a transport that is a function.
type roundTrip func(*http.Request) (*http.Response, error)

func (t roundTrip) RoundTrip(req *http.Request) (*http.Response, error) { return t(req) }

// apiOf returns an API of a cloud that answers everything the same way.
func apiOf(status int, header http.Header, body string) *JSON {
	return &JSON{Cloud: "Cumulus", Settings: "spec.cumulus", Secrets: NewRedactor("hush"),
		Client: Client(roundTrip(func(req *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: status, Header: header, Body: io.NopCloser(strings.NewReader(body)), ContentLength: -1,
				Request: req}, nil
		}))}
}

// ask makes a call, as a driver does whose cloud says in "code" and "message" why it refuses one.
func ask(t *testing.T, j *JSON, out any) error {
	t.Helper()
	req, err := j.NewRequest(t.Context(), "ListThings", cloud.ClassRead, http.MethodGet, "https://cloud.test/things", nil)
	if err != nil {
		t.Fatal(err)
	}
	return j.Do(req, func(a *Answer) error {
		if a.Status == http.StatusOK {
			return a.Decode(out)
		}
		var refused struct{ Code, Message string }
		if a.Holds(&refused) && refused.Code != "" {
			return j.Secrets.Refused(a.Operation, cloud.Throttled, refused.Code, refused.Message, a.Header)
		}
		return a.Foreign()
	})
}

// TestJSONAnswers: an answer is the cloud's own or not, and an error shows only what the cloud says
// itself, without secrets.
func TestJSONAnswers(t *testing.T) {
	t.Parallel()
	ours := func(more ...string) http.Header {
		h := http.Header{"Content-Type": {"application/json; charset=utf-8"}}
		for i := 0; i < len(more); i += 2 {
			h.Set(more[i], more[i+1])
		}
		return h
	}
	html := http.Header{"Content-Type": {"text/html"}, "Retry-After": {"7"}}
	for name, tt := range map[string]struct {
		status  int
		header  http.Header
		body    string
		code    cloud.Code
		message string
		after   float64
	}{
		"success": {status: 200, header: ours(), body: `{"name":"x"}`},
		"no type": {status: 200, header: http.Header{}, body: `{"name":"x"}`, code: cloud.Unknown,
			message: "ListThings: unexpected response of type an unknown type (not Cumulus): check spec.cumulus"},
		"a page of a proxy": {status: 200, header: html, body: "<p>hush", code: cloud.Unknown,
			message: "ListThings: unexpected response of type text/html (not Cumulus): check spec.cumulus"},
		"broken off": {status: 200, header: ours(), body: `{"name":"hu`, code: cloud.Unavailable,
			message: "ListThings: the response is not complete JSON (11 bytes)"},
		"a redirect": {status: 302, header: ours("Location", "https://hush.test"), code: cloud.Unknown,
			message: "ListThings: the endpoint redirected (302); Drover does not follow redirects"},
		"an outage": {status: 503, header: html, body: "<p>hush", code: cloud.Unavailable,
			message: "ListThings: unexpected response with status 503 and type text/html (not Cumulus): check spec.cumulus", after: 7},
		"JSON of others": {status: 403, header: ours(), body: `{"reason":"hush"}`, code: cloud.Unauthorized,
			message: "ListThings: unexpected response with status 403 and type application/json (not Cumulus): check spec.cumulus"},
		"refused": {status: 400, header: ours("Retry-After", "9"), body: `{"code":"Hushed","message":"not hush"}`,
			code: cloud.Throttled, message: "ListThings: Hushed: not [credential]", after: 9},
		"refused, no reason": {status: 400, header: ours(), body: `{"code":"Slow"}`, code: cloud.Throttled, message: "ListThings: Slow"},
		"refused as HTML": {status: 400, header: html, body: `{"code":"Slow"}`, code: cloud.Unknown,
			message: "ListThings: unexpected response with status 400 and type text/html (not Cumulus): check spec.cumulus"},
		"too many elements": {status: 200, header: ours(), body: `{"all":[` + strings.Repeat("0,", 5<<10) + `0]}`, code: cloud.Unknown,
			message: "ListThings: the response has more than"},
		"too large": {status: 200, header: ours(), body: strings.Repeat(" ", MaxAnswer+1), code: cloud.Unknown,
			message: "ListThings: the response is larger than 8 MiB"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			var out struct{ Name string }
			err := ask(t, apiOf(tt.status, tt.header, tt.body), &out)
			g.Expect(cloud.CodeOf(err)).To(Equal(tt.code), "%v", err)
			if tt.code == "" {
				g.Expect(out.Name).To(Equal("x"))
				return
			}
			var e *cloud.Error
			g.Expect(errors.As(err, &e)).To(BeTrue())
			g.Expect(e.Message).To(HavePrefix(tt.message))
			g.Expect(e.Message).NotTo(ContainSubstring("hush"))
			g.Expect(e.RetryAfter.Seconds()).To(Equal(tt.after))
		})
	}
}

// TestRefusedAs: the driver sees the cloud's word as it was sent, and people see it redacted.
func TestRefusedAs(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	err := NewRedactor("Full").Refused("Op", cloud.NoCapacity, "SubnetFull", "Full", nil)
	g.Expect(RefusedAs(err, "SubnetMissing", "subnetfull")).To(BeTrue())
	g.Expect(RefusedAs(err, "Subnet[credential]", "")).To(BeFalse())
	g.Expect(err.Error()).NotTo(ContainSubstring("Full"))
	g.Expect(errors.Unwrap(err).Error()).To(Equal("Subnet[credential]"))
	g.Expect(RefusedAs(cloud.Errorf(cloud.NoCapacity, "SubnetFull"), "SubnetFull")).To(BeFalse(), "not the cloud's word")
	g.Expect(RefusedAs(nil, "SubnetFull")).To(BeFalse())
}

// TestJSONRequests: a request has its operation and its body. One whose context has ended is not
// sent.
func TestJSONRequests(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	j := apiOf(http.StatusOK, nil, "")
	req, err := j.NewRequest(t.Context(), "MakeThing", cloud.ClassCreate, http.MethodPost, "https://cloud.test/things", map[string]int{"n": 1})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(cloud.OperationOf(req.Context())).To(Equal(cloud.Operation{Name: "MakeThing", Class: cloud.ClassCreate}))
	g.Expect(io.ReadAll(req.Body)).To(MatchJSON(`{"n":1}`))
	g.Expect(req.Header.Get("Content-Type")).To(Equal("application/json"))
	req, err = j.NewRequest(t.Context(), "GetThing", cloud.ClassRead, http.MethodGet, "https://cloud.test/things/1", nil)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(req.Header.Get("Content-Type")).To(BeEmpty())
	g.Expect(req.ContentLength).To(BeZero())

	_, err = j.NewRequest(t.Context(), "GetThing", cloud.ClassRead, http.MethodGet, "https://hush.test:port", nil)
	g.Expect(err).To(MatchError(HaveSuffix("GetThing: the address is not a URL: check spec.cumulus")))
	_, err = j.NewRequest(t.Context(), "MakeThing", cloud.ClassCreate, http.MethodPost, "https://cloud.test", func() {})
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.InvalidSpec))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = j.NewRequest(ended, "MakeThing", cloud.ClassCreate, http.MethodPost, "https://cloud.test", nil)
	g.Expect(err).To(MatchError(HaveSuffix("MakeThing: not sent: context canceled")))
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unavailable))
}

// tracked is a body that knows whether it was closed.
type tracked struct {
	io.Reader
	closed bool
}

func (b *tracked) Close() error { b.closed = true; return nil }

// TestJSONBodiesStayOpen: an answer is closed after it was decoded, not before, because until then
// its memory is in use. It is closed also if the decoder panics.
func TestJSONBodiesStayOpen(t *testing.T) {
	t.Parallel()
	for name, read := range map[string]func() error{
		"decoded": func() error { return nil },
		"refused": func() error { return errors.New("no") },
		"panics":  func() error { panic("no") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			body := &tracked{Reader: strings.NewReader("{}")}
			j := &JSON{Client: &http.Client{Transport: roundTrip(func(req *http.Request) (*http.Response, error) {
				return &http.Response{StatusCode: http.StatusOK, Body: body, Request: req}, nil
			})}}
			req, err := j.NewRequest(t.Context(), "Op", cloud.ClassRead, http.MethodGet, "https://cloud.test", nil)
			if err != nil {
				t.Fatal(err)
			}
			early := false
			_ = cloud.Recover(func() error {
				return j.Do(req, func(*Answer) error { early = body.closed; return read() })
			})
			if early || !body.closed {
				t.Errorf("closed while it is decoded: %t, afterwards: %t", early, body.closed)
			}
		})
	}
}

// TestRefusedKeepsLittle: an error may be remembered, so it keeps no more of an answer than it
// shows or acts on.
func TestRefusedKeepsLittle(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("x", 1<<20)
	err := NewRedactor().Refused("Op", cloud.Unknown, large, large, nil)
	NewWithT(t).Expect(SizeOf(err)).To(BeNumerically("<", 4<<10))
}
