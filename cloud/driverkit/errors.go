// SPDX-License-Identifier: Apache-2.0

package driverkit

import (
	"context"
	"errors"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/drover-io/drover/cloud"
)

// Redactor removes an account's secrets from texts, because an endpoint may repeat what it was
// sent. Classify an answer by its original text, and redact only what is shown: a short secret may
// be part of an error code.
type Redactor struct{ secrets []string }

// NewRedactor returns a Redactor for these secrets. It ignores empty ones, and invalid bytes in the
// others, which Clean removes from texts.
func NewRedactor(secrets ...string) Redactor {
	var r Redactor
	for _, secret := range secrets {
		if secret = strings.ToValidUTF8(secret, ""); secret != "" {
			r.secrets = append(r.secrets, secret)
		}
	}
	return r
}

// Clean returns at most n bytes of a text, without the secrets. It looks for them in the whole text
// without invalid bytes, which may stand inside a secret: in what is cut, it would not find half of
// one.
func (r Redactor) Clean(text string, n int) string {
	text = strings.ToValidUTF8(text, "")
	hidden := r.find(text)
	if hidden == nil {
		return cloud.Clip(text, n)
	}
	// A mark is longer than a short secret, so only what is shown is written.
	var out strings.Builder
	for begin := 0; begin < len(text) && out.Len() < n; {
		end := begin + 1
		for end < len(text) && hidden[end] == hidden[begin] {
			end++
		}
		if hidden[begin] {
			out.WriteString("[credential]")
		} else {
			out.WriteString(text[begin:min(end, begin+n)])
		}
		begin = end
	}
	return cloud.Clip(out.String(), n)
}

// find marks the bytes of a text that are part of a secret; nil if there are none. It finds each in
// the original text, because one may be a part of another, or begin inside it.
func (r Redactor) find(text string) (hidden []bool) {
	for _, secret := range r.secrets {
		for at := 0; ; at += len(secret) {
			next := strings.Index(text[at:], secret)
			if next < 0 {
				break
			}
			if hidden == nil {
				hidden = make([]bool, len(text))
			}
			at += next
			for i := range len(secret) {
				hidden[at+i] = true
			}
		}
	}
	return hidden
}

// CheckOwned refuses to delete a resource by its tags if one of them is empty: that would select
// what has no such tag, whosever it is.
func CheckOwned(r cloud.Resource) error {
	if r.Token == "" || r.OwnershipID == "" {
		return cloud.Invalid("delete %s %s: it has no creation token or no ownership ID, so nothing says whose it is", r.Kind,
			cloud.Clip(r.ID, 256))
	}
	return nil
}

// maxCause is how many bytes of a network error are shown.
const maxCause = 256

// NoResponse types the error of a call without an answer from the cloud. The transport's own errors
// (*cloud.Error, *cloud.Queued) pass unchanged. Everything else is Unavailable, because the call
// may have had an effect.
func (r Redactor) NoResponse(operation string, err error) error {
	var typed *cloud.Error
	var queued *cloud.Queued
	unavailable := func(what string, cause error) error {
		return &cloud.Error{Code: cloud.Unavailable, Message: operation + ": " + what, Err: cause}
	}
	switch {
	case err == nil:
		return nil
	case errors.As(err, &queued):
		return queued
	case errors.As(err, &typed):
		return typed
	case errors.Is(err, context.DeadlineExceeded):
		return unavailable("no response in time", context.DeadlineExceeded)
	case errors.Is(err, context.Canceled):
		return unavailable("canceled before a response", context.Canceled)
	}
	return unavailable("no response: "+r.Clean(plain(err), maxCause), nil)
}

// plain returns the text of a net/http error without the request's method and URL, which come
// before the cause.
func plain(err error) string {
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	return err.Error()
}

// CodeOfStatus returns the code of an answer that the cloud did not write, such as a proxy's page.
// The text of such an answer is never shown, because it may hold anything.
func CodeOfStatus(status int) cloud.Code {
	switch {
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return cloud.Unauthorized
	case status == http.StatusTooManyRequests:
		return cloud.Throttled
	case status >= http.StatusInternalServerError:
		return cloud.Unavailable
	}
	return cloud.Unknown
}

// RetryAfter returns the Retry-After header, in seconds or as a date, as a Wait; 0 if it can't be
// read, or if the code is neither Throttled nor Unavailable. The engine caps it.
func RetryAfter(code cloud.Code, header http.Header) time.Duration {
	text := header.Get("Retry-After")
	if text == "" || (code != cloud.Throttled && code != cloud.Unavailable) {
		return 0
	}
	if seconds, err := strconv.ParseFloat(text, 64); err == nil {
		if math.IsNaN(seconds) || seconds <= 0 {
			return 0
		}
		return Wait(time.Duration(math.Ceil(min(seconds, 24*time.Hour.Seconds()) * float64(time.Second))))
	}
	if at, err := http.ParseTime(text); err == nil {
		return Wait(time.Until(at))
	}
	return 0
}

// minWait is the shortest wait that a cloud may ask for: what it asks for replaces the delays that
// grow with each failure.
const minWait = time.Second

// Wait returns the RetryAfter of an Error for which the cloud asked; 0 if it asked for none.
func Wait(asked time.Duration) time.Duration {
	if asked <= 0 {
		return 0
	}
	return max(asked, minWait)
}
