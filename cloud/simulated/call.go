// SPDX-License-Identifier: Apache-2.0

package simulated

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/simulated/wire"
)

// maxAnswer bounds what is read of an answer, in bytes: a full page is below 2 MiB.
const maxAnswer = 16 << 20

// call makes one attempt of one operation. (Go's transport repeats a POST only where nothing of it was sent.) Its errors
// never repeat a body that is not the cloud's own words: it may be anybody's, and hold anything.
func (d *driver) call(ctx context.Context, op string, class cloud.Class, in, out any) error {
	ctx = cloud.WithOperation(ctx, op, class)
	if err := ctx.Err(); err != nil {
		return &cloud.Error{Code: cloud.Unavailable, Message: op + ": not sent: " + err.Error(), Err: err}
	}
	body, err := json.Marshal(in)
	if err != nil {
		return &cloud.Error{Code: cloud.InvalidSpec, Message: op + ": the request can't be written as JSON", Err: err}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, d.endpoint+wire.Prefix+op, bytes.NewReader(body))
	if err != nil {
		return &cloud.Error{Code: cloud.InvalidSpec, Message: op + ": the endpoint is no address", Err: err}
	}
	req.Header.Set("Authorization", "Bearer "+d.token)
	req.Header.Set("Content-Type", "application/json")
	resp, err := d.client.Do(req)
	if err != nil {
		return transportError(op, err)
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return &cloud.Error{Code: cloud.Unavailable, Message: op + ": the answer broke off: " + cloud.Plain(err), Err: err}
	case len(answer) > maxAnswer:
		return cloud.Errorf(cloud.Unknown, "%s: the answer is larger than %d MiB", op, maxAnswer>>20)
	case resp.StatusCode != http.StatusOK:
		return d.statusError(op, resp, answer)
	case !isJSON(resp):
		return cloud.Errorf(cloud.Unknown, "%s: the answer is %s, not JSON: does the endpoint belong to a simulated cloud?", op, contentType(resp))
	}
	if err := json.Unmarshal(answer, out); err != nil {
		return cloud.Errorf(cloud.Unavailable, "%s: the answer is not whole JSON (%d bytes)", op, len(answer))
	}
	return nil
}

// transportError is for a call without an answer. What the account's transport says itself passes unchanged.
func transportError(op string, err error) error {
	var own *cloud.Error
	var queued *cloud.Queued
	switch {
	case errors.As(err, &own):
		return own
	case errors.As(err, &queued):
		return queued
	}
	return &cloud.Error{Code: cloud.Unavailable, Message: op + ": no answer: " + cloud.Plain(err), Err: err}
}

// statusError is for an answer that is not 200.
func (d *driver) statusError(op string, resp *http.Response, answer []byte) error {
	wait := retryAfter(resp)
	var e wire.ErrorResponse
	if isJSON(resp) && json.Unmarshal(answer, &e) == nil && e.Code != "" {
		return d.toError(op, &e, wait)
	}
	code, status := cloud.Unknown, resp.StatusCode
	switch {
	case status >= 300 && status < 400:
		return cloud.Errorf(cloud.Unknown, "%s: the endpoint answers with a redirect (%d), which is not followed", op, status)
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		code = cloud.Unauthorized
	case status == http.StatusTooManyRequests:
		return &cloud.Error{Code: cloud.Throttled, Message: fmt.Sprintf("%s: status %d", op, status), RetryAfter: wait}
	case status >= 500:
		code = cloud.Unavailable
	}
	return cloud.Errorf(code, "%s: status %d with %s instead of the cloud's own words", op, status, contentType(resp))
}

// refusal carries the cloud's own code as an Error's cause.
type refusal struct{ code string }

func (r refusal) Error() string { return r.code }

// refused tells whether the cloud answered with this code of its own.
func refused(err error, code string) bool {
	var r refusal
	return errors.As(err, &r) && r.code == code
}

// toError maps the cloud's codes. attempted is the operation, and the resource where there is one.
//
// A cloud that repeats the token in its own words shall not put it into ours. The token is looked for before anything is
// cut off: half of it would not be found, and is half a secret.
func (d *driver) toError(attempted string, e *wire.ErrorResponse, wait time.Duration) *cloud.Error {
	words := func(s string, n int) string { return cloud.Clip(strings.ReplaceAll(s, d.token, "[token]"), n) }
	out := &cloud.Error{
		Code:    toCode(e.Code),
		Message: attempted + ": " + words(e.Code, 64),
		Err:     refusal{e.Code},
	}
	if e.Message != "" {
		out.Message += ": " + words(e.Message, 512)
	}
	if out.Code == cloud.Throttled || out.Code == cloud.Unavailable {
		out.RetryAfter = wait
	}
	return out
}

func toCode(code string) cloud.Code {
	switch code {
	case wire.RequestLimitExceeded:
		return cloud.Throttled
	case wire.InstanceLimitExceeded:
		return cloud.QuotaExceeded
	case wire.InsufficientInstanceCapacity:
		return cloud.NoCapacity
	case wire.AuthFailure:
		return cloud.Unauthorized
	case wire.InvalidParameterValue:
		return cloud.InvalidSpec
	case wire.InstanceNotFound, wire.ResourceNotFound:
		return cloud.NotFound
	case wire.ResourceInUse, wire.IdempotentParameterMismatch:
		return cloud.Conflict
	case wire.InternalError, wire.ServiceUnavailable:
		return cloud.Unavailable
	}
	return cloud.Unknown
}

func retryAfter(resp *http.Response) time.Duration {
	s, err := strconv.ParseFloat(resp.Header.Get("Retry-After"), 64)
	if err != nil || s <= 0 || s > 3600 {
		return 0
	}
	return time.Duration(s * float64(time.Second))
}

func isJSON(resp *http.Response) bool { return contentType(resp) == "application/json" }

func contentType(resp *http.Response) string {
	t, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err != nil || t == "" {
		return "something unnamed"
	}
	return cloud.Clip(t, 64)
}
