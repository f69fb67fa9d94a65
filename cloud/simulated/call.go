// SPDX-License-Identifier: Apache-2.0

package simulated

import (
	"context"
	"net/http"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
	"github.com/drover-io/drover/cloud/simulated/wire"
)

// call makes one attempt of one operation. (Go's transport repeats a POST only if nothing of it was
// sent.)
func (d *driver) call(ctx context.Context, op string, class cloud.Class, in, out any) error {
	req, err := d.api.NewRequest(ctx, op, class, http.MethodPost, d.endpoint+wire.Prefix+op, in)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+d.token)
	return d.api.Do(req, func(a *driverkit.Answer) error {
		if a.Status == http.StatusOK {
			return a.Decode(out)
		}
		var e wire.ErrorResponse
		if a.Holds(&e) && e.Code != "" {
			return d.toError(op, &e, a.Header)
		}
		return a.Foreign()
	})
}

// toError returns the error for a refusal. attempted is the operation, with the resource if there
// is one.
func (d *driver) toError(attempted string, e *wire.ErrorResponse, header http.Header) *cloud.Error {
	return d.api.Secrets.Refused(attempted, toCode(e.Code), e.Code, e.Message, header)
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
