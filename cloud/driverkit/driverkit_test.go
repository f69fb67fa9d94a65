// SPDX-License-Identifier: Apache-2.0

package driverkit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/internal/test/authority"
)

func TestRedactor(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	r := NewRedactor("", "pa$$word", "key")
	g.Expect(r.Clean("the key is pa$$word", 100)).To(Equal("the [credential] is [credential]"))
	g.Expect(r.Clean("a pa$$word at the end", 8)).NotTo(ContainSubstring("pa$"), "it is looked for before the text is cut")
	g.Expect(r.Clean("\xff\xfea", 10)).To(Equal("a"))
	g.Expect(NewRedactor("").Clean("abc", 10)).To(Equal("abc"), "an empty secret is between all letters")
}

// TestRedactorOverlaps: a secret that is a part of another one, or begins inside it, leaves nothing
// of it.
func TestRedactorOverlaps(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	r := NewRedactor("a", "word", "password", "sword-fish", "half\xff")
	g.Expect(r.Clean("the password ends", 100)).To(Equal("the [credential] ends"))
	g.Expect(r.Clean("p\xffassw\xff\xfeord-fish", 100)).To(Equal("[credential]"))
	g.Expect(r.Clean("half of it", 100)).To(Equal("[credential] of it"))
}

// TestShortSecretsDoNotGrow: however many secrets of one letter there are, a text of them takes
// little more memory than it has bytes.
func TestShortSecretsDoNotGrow(t *testing.T) {
	text := strings.Repeat("aedc", 16<<10)
	for many := 1; many <= 4; many++ {
		r := NewRedactor(strings.Split("aedc", "")[:many]...)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		got := r.Clean(text, 512)
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; took > uint64(2*len(text)) || len(got) > 512 {
			t.Errorf("%d secrets: %d bytes for a text of %d, %q", many, took, len(text), got)
		}
	}
}

func TestNoAnswer(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	r := NewRedactor("secret")
	own, queued := cloud.Errorf(cloud.Conflict, "own"), &cloud.Queued{After: time.Second}
	g.Expect(r.NoResponse("Op", nil)).To(Succeed())
	g.Expect(r.NoResponse("Op", fmt.Errorf("wrapped: %w", own))).To(BeIdenticalTo(own))
	g.Expect(r.NoResponse("Op", fmt.Errorf("wrapped: %w", queued))).To(BeIdenticalTo(queued))
	for _, err := range []error{context.Canceled, context.DeadlineExceeded, io.ErrUnexpectedEOF, errors.New("dial secret: refused")} {
		typed := r.NoResponse("Op", err)
		g.Expect(cloud.CodeOf(typed)).To(Equal(cloud.Unavailable))
		g.Expect(typed.Error()).To(ContainSubstring("Op: "))
		g.Expect(typed.Error()).NotTo(ContainSubstring("secret"))
	}
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"": 0, "0": 0, "-1": 0, "NaN": 0, "x": 0, "1.5": 1500 * time.Millisecond, "30": 30 * time.Second,
		"0.001": time.Second, "1e-300": time.Second, "-0.001": 0,
		"9999999999999": 24 * time.Hour, "+Inf": 24 * time.Hour, "Mon, 02 Jan 2006 15:04:05 GMT": 0,
	} {
		if got := RetryAfter(cloud.Throttled, http.Header{"Retry-After": {text}}); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
	synctest.Test(t, func(t *testing.T) { // at half a second past a full one
		time.Sleep(500 * time.Millisecond)
		soon := http.Header{"Retry-After": {time.Now().Add(time.Second).UTC().Format(http.TimeFormat)}}
		if got := RetryAfter(cloud.Unavailable, soon); got != time.Second {
			t.Errorf("a date in half a second: %s", got)
		}
	})
	if got := RetryAfter(cloud.InvalidSpec, http.Header{"Retry-After": {"30"}}); got != 0 {
		t.Errorf("a refusal for good is not retried: %s", got)
	}
}

func TestCodeOfStatus(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]cloud.Code{200: cloud.Unknown, 302: cloud.Unknown, 401: cloud.Unauthorized, 403: cloud.Unauthorized,
		404: cloud.Unknown, 429: cloud.Throttled, 500: cloud.Unavailable, 503: cloud.Unavailable} {
		if got := CodeOfStatus(status); got != want {
			t.Errorf("%d: %s, want %s", status, got, want)
		}
	}
}

// TestClient: no redirect is followed, and a body is bounded.
func TestClient(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "/elsewhere", http.StatusFound)
	}))
	t.Cleanup(server.Close)
	resp, err := Client(http.DefaultTransport).Get(server.URL)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(resp.StatusCode).To(Equal(http.StatusFound))
	_, err = NewRedactor().ReadBody("Op", resp.Body, 3)
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unknown), "%v", err)
	g.Expect(err).To(MatchError(ContainSubstring("larger than 3 bytes")))
	_, err = NewRedactor().ReadBody("Op", io.NopCloser(strings.NewReader(strings.Repeat("a", 2<<20+1))), 2<<20)
	g.Expect(err).To(MatchError(ContainSubstring("larger than 2 MiB")))
	text, err := NewRedactor().ReadBody("Op", io.NopCloser(strings.NewReader("abc")), 3)
	g.Expect(string(text), err).To(Equal("abc"))
}

// TestPagesAreBounded: a cloud can't keep a listing going. A mark that came before ends it, however
// many others came in between, and so does a total that no account has.
func TestPagesAreBounded(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		marks, items, pages int
		message             string
	}{
		"two marks that alternate":    {marks: 2, items: 1000, pages: 3, message: "does not end"},
		"seven marks in a circle":     {marks: 7, pages: 8, message: "does not end"},
		"marks that are always new":   {marks: maxPages, items: 1000, pages: 101, message: "more than 100000"},
		"one page with too many":      {marks: 1, items: maxItems + 1, pages: 1, message: "more than 100000"},
		"empty pages, without an end": {marks: 2 * maxPages, pages: maxPages, message: "does not end"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			pages := 0
			all, err := Pages(t.Context(), "List", func(context.Context, string) ([]struct{}, string, error) {
				pages++
				return make([]struct{}, tt.items), fmt.Sprint("mark-", pages%tt.marks), nil
			})
			g.Expect(all).To(BeEmpty(), "a part of a listing looks like machines that are gone")
			g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unknown))
			g.Expect(err).To(MatchError(ContainSubstring(tt.message)))
			g.Expect(pages).To(Equal(tt.pages))
		})
	}
	g := NewWithT(t)
	all, err := Pages(t.Context(), "List", func(context.Context, string) ([]struct{}, string, error) {
		return make([]struct{}, maxItems), "", nil
	})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(all).To(HaveLen(maxItems))
}

func TestPages(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	following := map[string]string{"": "a", "a": "b", "b": ""}
	all, err := Pages(t.Context(), "List", func(_ context.Context, mark string) ([]string, string, error) {
		return []string{mark}, following[mark], nil
	})
	g.Expect(all, err).To(Equal([]string{"", "a", "b"}))
	_, err = Pages(t.Context(), "List", func(context.Context, string) ([]int, string, error) { return nil, "again", nil })
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unknown), "%v", err)
	_, err = Pages(t.Context(), "List", func(context.Context, string) ([]int, string, error) { return nil, "", io.EOF })
	g.Expect(err).To(MatchError(io.EOF))
}

// TestLoginGuard: refused credentials are not tried for a minute. Other errors cause no pause.
func TestLoginGuard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		var guard LoginGuard
		guard.Done(cloud.Errorf(cloud.Unavailable, "no answer"))
		g.Expect(guard.Allow()).To(Succeed())
		guard.Done(cloud.Errorf(cloud.Unauthorized, "no"))
		g.Expect(guard.Allow()).To(MatchError(ContainSubstring("no")))
		time.Sleep(loginCooldown)
		g.Expect(guard.Allow()).To(Succeed())
		guard.Done(nil)
		g.Expect(guard.Allow()).To(Succeed())
	})
}

// TestInParallel: each item has its own error, and a panic is one.
func TestInParallel(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	own := errors.New("own")
	errs := InParallel(2, []int{0, 1, 2, 3}, func(i int) error {
		switch i {
		case 1:
			return own
		case 2:
			panic("bad")
		}
		return nil
	})
	g.Expect(errs).To(HaveLen(4))
	g.Expect(errs[0]).To(Succeed())
	g.Expect(errs[1]).To(BeIdenticalTo(own))
	g.Expect(cloud.CodeOf(errs[2])).To(Equal(cloud.Unknown))
	g.Expect(errs[3]).To(Succeed())
	g.Expect(InParallel(2, nil, func(int) error { return own })).To(BeEmpty())
}

// TestCertPool: a bundle holds certificates whose signatures can be verified at little cost.
func TestCertPool(t *testing.T) {
	t.Parallel()
	ca := authority.New(t)
	for name, tt := range map[string]struct {
		bundle string
		code   cloud.Code
	}{
		"a certificate":           {string(ca.PEM), ""},
		"a comment and two":       {"the first\n" + string(ca.PEM) + "the second\n" + string(ca.Huge(t, 8192)), ""},
		"one that has a huge key": {string(ca.PEM) + string(ca.Huge(t, 16<<10)), cloud.InvalidSpec},
		"no certificate":          {"x", cloud.InvalidSpec},
	} {
		pool, err := CertPool(tt.bundle)
		NewWithT(t).Expect(cloud.CodeOf(err)).To(Equal(tt.code), "%s: %v", name, err)
		NewWithT(t).Expect(pool == nil).To(Equal(tt.code != ""), name)
	}
}
