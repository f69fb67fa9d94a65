// SPDX-License-Identifier: Apache-2.0

package driverkit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"slices"
	"strings"

	"github.com/drover-io/drover/cloud"
)

// JSON makes the calls of an HTTP API whose requests and answers are JSON. Its errors repeat no
// answer that is not the cloud's own, because such an answer may contain anything.
type JSON struct {
	// Client is the result of the function Client.
	Client  *http.Client
	Secrets Redactor
	// Cloud names the cloud, and Settings what to check, in errors for answers that are not its
	// own.
	Cloud, Settings string
}

// NewRequest returns the request of one call, with a body unless in is nil. operation and class are
// those of cloud.WithOperation.
func (j *JSON) NewRequest(ctx context.Context, operation string, class cloud.Class, method, address string, in any) (*http.Request, error) {
	if err := ctx.Err(); err != nil {
		return nil, &cloud.Error{Code: cloud.Unavailable, Message: operation + ": not sent: " + err.Error(), Err: err}
	}
	var body []byte
	if in != nil {
		var err error
		if body, err = json.Marshal(in); err != nil {
			return nil, &cloud.Error{Code: cloud.InvalidSpec, Message: operation + ": the request can't be encoded", Err: err}
		}
	}
	req, err := http.NewRequestWithContext(cloud.WithOperation(ctx, operation, class), method, address, bytes.NewReader(body))
	if err != nil {
		return nil, cloud.Errorf(cloud.InvalidSpec, "%s: the address is not a URL: check %s", operation, j.Settings)
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "drover")
	return req, nil
}

// Do sends a request of NewRequest once, and lets read have the answer. Until read has returned,
// the engine counts the answer's memory.
func (j *JSON) Do(req *http.Request, read func(*Answer) error) error {
	operation := cloud.OperationOf(req.Context()).Name
	resp, err := j.Client.Do(req)
	if err != nil {
		return j.Secrets.NoResponse(operation, err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := j.Secrets.ReadBody(operation, resp.Body, MaxAnswer)
	if err != nil {
		return err
	}
	return read(&Answer{Operation: operation, Status: resp.StatusCode, Header: resp.Header, Body: body, api: j})
}

// Unexpected returns the error for a success that is not the cloud's, or not to this call. what
// says how it differs, such as "without a list".
func (j *JSON) Unexpected(operation, what string) error {
	return cloud.Errorf(cloud.Unknown, "%s: unexpected response %s (not %s): check %s", operation, what, j.Cloud, j.Settings)
}

// Answer is an answer with any status.
type Answer struct {
	Operation string
	Status    int
	Header    http.Header
	Body      []byte

	api *JSON
}

// Decode decodes the answer to a call that has succeeded; nil: into nothing.
func (a *Answer) Decode(out any) error {
	if !a.isJSON() {
		return a.api.Unexpected(a.Operation, "of type "+a.contentType())
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(a.Body, out); err != nil {
		return cloud.Errorf(cloud.Unavailable, "%s: the response is not complete JSON (%d bytes)", a.Operation, len(a.Body))
	}
	return nil
}

// Holds decodes an answer that may be anything, and reports whether that succeeded.
func (a *Answer) Holds(out any) bool {
	return a.isJSON() && json.Unmarshal(a.Body, out) == nil
}

// Foreign returns the error for an answer without success that is not the cloud's own, such as a
// proxy's page.
func (a *Answer) Foreign() error {
	code := CodeOfStatus(a.Status)
	if a.Status >= 300 && a.Status < 400 {
		return cloud.Errorf(code, "%s: the endpoint redirected (%d); Drover does not follow redirects", a.Operation, a.Status)
	}
	return &cloud.Error{
		Code: code, RetryAfter: RetryAfter(code, a.Header),
		Message: fmt.Sprintf("%s: unexpected response with status %d and type %s (not %s): check %s", a.Operation, a.Status, a.contentType(),
			a.api.Cloud, a.api.Settings),
	}
}

func (a *Answer) isJSON() bool { return a.contentType() == "application/json" }

func (a *Answer) contentType() string {
	t, _, err := mime.ParseMediaType(a.Header.Get("Content-Type"))
	if err != nil || t == "" {
		return "an unknown type"
	}
	return cloud.Clip(t, 64)
}

// maxWord is how many bytes of the cloud's own word an error keeps. No real one has as many.
const maxWord = 256

// Refusal is the cause of an error with the cloud's own word, such as an error code. A driver acts
// on the word as the cloud sent it. Only the redacted text is shown.
type Refusal struct{ Word, Shown string }

// Error implements error.
func (r Refusal) Error() string { return r.Shown }

// Refused returns the error for a refusal with the cloud's own word and message, which it redacts.
// code is what the caller makes of them, as the cloud sent them.
func (r Redactor) Refused(operation string, code cloud.Code, word, message string, header http.Header) *cloud.Error {
	shown := r.Clean(word, 64)
	text := operation + ": " + shown
	if message != "" {
		text += ": " + r.Clean(message, 512)
	}
	return &cloud.Error{Code: code, Message: text, RetryAfter: RetryAfter(code, header), Err: Refusal{cloud.Clip(word, maxWord), shown}}
}

// RefusedAs reports whether the cloud has refused a call with one of these words, in any case.
func RefusedAs(err error, words ...string) bool {
	var r Refusal
	return errors.As(err, &r) && slices.ContainsFunc(words, func(word string) bool { return strings.EqualFold(word, r.Word) })
}
