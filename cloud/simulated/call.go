// SPDX-License-Identifier: Apache-2.0

package simulated

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
	"github.com/drover-io/drover/cloud/simulated/wire"
)

// call makes one attempt of one operation. (Go's transport repeats a POST only if nothing of it was
// sent.) Its errors never repeat a body that is not the cloud's own answer, because such a body may
// contain anything.
func (d *driver) call(ctx context.Context, op string, class cloud.Class, in, out any) error {
	ctx = cloud.WithOperation(ctx, op, class)
	if err := ctx.Err(); err != nil {
		return &cloud.Error{Code: cloud.Unavailable, Message: op + ": not sent: " + err.Error(), Err: err}
	}
	body, err := json.Marshal(in)
	if err != nil {
		return &cloud.Error{Code: cloud.InvalidSpec, Message: op + ": the request can't be encoded", Err: err}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, d.endpoint+wire.Prefix+op, bytes.NewReader(body))
	if err != nil {
		return &cloud.Error{Code: cloud.InvalidSpec, Message: op + ": the endpoint is not a URL", Err: err}
	}
	req.Header.Set("Authorization", "Bearer "+d.token)
	req.Header.Set("Content-Type", "application/json")
	resp, err := d.client.Do(req)
	if err != nil {
		return d.secrets.NoResponse(op, err)
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := d.secrets.ReadBody(op, resp.Body, driverkit.MaxAnswer)
	switch {
	case err != nil:
		return err
	case resp.StatusCode != http.StatusOK:
		return d.statusError(op, resp, answer)
	case !isJSON(resp):
		return cloud.Errorf(cloud.Unknown, "%s: unexpected response of type %s (not a simulated cloud): check spec.simulated.endpoint", op, contentType(resp))
	}
	if err := json.Unmarshal(answer, out); err != nil {
		return cloud.Errorf(cloud.Unavailable, "%s: the response is not complete JSON (%d bytes)", op, len(answer))
	}
	return nil
}

// statusError returns the error for an answer with a status other than 200.
func (d *driver) statusError(op string, resp *http.Response, answer []byte) error {
	var e wire.ErrorResponse
	if isJSON(resp) && json.Unmarshal(answer, &e) == nil && e.Code != "" {
		return d.toError(op, &e, resp.Header)
	}
	code, status := driverkit.CodeOfStatus(resp.StatusCode), resp.StatusCode
	if status >= 300 && status < 400 {
		return cloud.Errorf(code, "%s: the endpoint redirected (%d); Drover does not follow redirects", op, status)
	}
	message := fmt.Sprintf("%s: unexpected response with status %d and type %s (not a simulated cloud)", op, status, contentType(resp))
	return &cloud.Error{Code: code, Message: message, RetryAfter: driverkit.RetryAfter(code, resp.Header)}
}

// refusal is the cause of an Error with the cloud's own code. The driver acts on the code and shows
// only the redacted text.
type refusal struct{ code, shown string }

func (r refusal) Error() string { return r.shown }

// refused reports whether the cloud answered with this code of its own.
func refused(err error, code string) bool {
	var r refusal
	return errors.As(err, &r) && r.code == code
}

// toError maps the cloud's code before redaction, because a short token may be part of it.
// attempted is the operation, with the resource if there is one.
func (d *driver) toError(attempted string, e *wire.ErrorResponse, header http.Header) *cloud.Error {
	code, shown := toCode(e.Code), d.secrets.Clean(e.Code, 64)
	message := attempted + ": " + shown
	if e.Message != "" {
		message += ": " + d.secrets.Clean(e.Message, 512)
	}
	return &cloud.Error{Code: code, Message: message, RetryAfter: driverkit.RetryAfter(code, header), Err: refusal{e.Code, shown}}
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

func isJSON(resp *http.Response) bool { return contentType(resp) == "application/json" }

func contentType(resp *http.Response) string {
	t, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err != nil || t == "" {
		return "an unknown type"
	}
	return cloud.Clip(t, 64)
}
