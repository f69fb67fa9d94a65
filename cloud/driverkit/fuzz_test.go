// SPDX-License-Identifier: Apache-2.0

package driverkit

import (
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/drover-io/drover/cloud"
)

// FuzzRetryAfter: a wait is never negative, and seconds are at most a day.
func FuzzRetryAfter(f *testing.F) {
	for _, s := range []string{"3", "-1", "99999999999999999999", "Mon, 02 Jan 2006 15:04:05 GMT", "1e9", "", "0x10", "9223372036854775807",
		"NaN", "Inf"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, value string) {
		for _, code := range []cloud.Code{cloud.Throttled, cloud.Unavailable, cloud.Unknown} {
			got := RetryAfter(code, http.Header{"Retry-After": {value}})
			_, notDate := http.ParseTime(value)
			if got < 0 || notDate != nil && got > 24*time.Hour || code == cloud.Unknown && got != 0 {
				t.Errorf("%q with %s is %s", value, code, got)
			}
		}
	})
}

// FuzzClean: a shown text is valid, short, and holds no secret.
func FuzzClean(f *testing.F) {
	f.Add("a marked-secret in a text", 10)
	f.Add("marked-\x00secret\nmarked-secret\u202e", 100)
	f.Add("marked-sec\xffret", 100)
	f.Add("marked-smarked-secretecret", 100)
	f.Fuzz(func(t *testing.T, text string, n int) {
		n &= 1023
		out := NewRedactor("marked-secret").Clean(text, n)
		if !utf8.ValidString(out) || len(out) > n || strings.Contains(out, "marked-secret") {
			t.Errorf("%q in %d bytes is %q", text, n, out)
		}
		if out := NewRedactor("x", "ax", "m", "marked-secret").Clean(text, n); !utf8.ValidString(out) || len(out) > n ||
			strings.ContainsAny(out, "mx") {
			t.Errorf("with short secrets, %q in %d bytes is %q", text, n, out)
		}
	})
}

// FuzzHostName: a name becomes a label, and one that is a label stays as it is.
func FuzzHostName(f *testing.F) {
	label := regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`)
	f.Add("a.b_c-", 10)
	f.Add("", 0)
	f.Add("-", 3)
	f.Add(strings.Repeat("é", 100), 40)
	f.Fuzz(func(t *testing.T, name string, n int) {
		n = 16 + n&47
		out := HostName(name, n)
		if len(out) > n || !label.MatchString(out) {
			t.Errorf("%q in %d bytes is %q", name, n, out)
		}
		if label.MatchString(name) && len(name) <= n && out != name {
			t.Errorf("%q became %q", name, out)
		}
	})
}
