// SPDX-License-Identifier: Apache-2.0

package gcp

import (
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
)

// Google's own words that the driver handles itself.
const (
	notFound       = "notFound"
	alreadyExists  = "alreadyExists"
	resourceExists = "RESOURCE_ALREADY_EXISTS"
	rateLimit      = "rateLimitExceeded"
)

// codes maps the reasons of answers, and the codes of operations that failed.
var codes = map[string]cloud.Code{
	rateLimit:                          cloud.Throttled,
	"userRateLimitExceeded":            cloud.Throttled,
	"concurrentLimitExceeded":          cloud.Throttled,
	"RATE_LIMIT_EXCEEDED":              cloud.Throttled,
	"RESOURCE_OPERATION_RATE_EXCEEDED": cloud.Throttled,

	"quotaExceeded":  cloud.QuotaExceeded,
	"limitExceeded":  cloud.QuotaExceeded,
	"QUOTA_EXCEEDED": cloud.QuotaExceeded,
	"LIMIT_EXCEEDED": cloud.QuotaExceeded,

	"ZONE_RESOURCE_POOL_EXHAUSTED":              cloud.NoCapacity,
	"ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS": cloud.NoCapacity,
	"RESOURCE_POOL_EXHAUSTED":                   cloud.NoCapacity,
	"RESOURCE_POOL_EXHAUSTED_WITH_DETAILS":      cloud.NoCapacity,
	"REGION_RESOURCE_POOL_EXHAUSTED":            cloud.NoCapacity,
	"IP_SPACE_EXHAUSTED":                        cloud.NoCapacity,
	"IP_SPACE_EXHAUSTED_WITH_DETAILS":           cloud.NoCapacity,

	"authError":                     cloud.Unauthorized,
	"forbidden":                     cloud.Unauthorized,
	"insufficientPermissions":       cloud.Unauthorized,
	"accessNotConfigured":           cloud.Unauthorized,
	"billingNotEnabled":             cloud.Unauthorized,
	"conditionNotMet":               cloud.Unauthorized,
	"PERMISSIONS_ERROR":             cloud.Unauthorized,
	"SERVICE_ACCOUNT_ACCESS_DENIED": cloud.Unauthorized,
	"CONDITION_NOT_MET":             cloud.Unauthorized,

	notFound:             cloud.NotFound,
	"RESOURCE_NOT_FOUND": cloud.NotFound,

	"invalid":               cloud.InvalidSpec,
	"badRequest":            cloud.InvalidSpec,
	"invalidUsage":          cloud.InvalidSpec,
	"invalidParameter":      cloud.InvalidSpec,
	"INVALID_FIELD_VALUE":   cloud.InvalidSpec,
	"INVALID_USAGE":         cloud.InvalidSpec,
	"UNSUPPORTED_OPERATION": cloud.InvalidSpec,

	alreadyExists:                         cloud.Conflict,
	resourceExists:                        cloud.Conflict,
	"resourceInUseByAnotherResource":      cloud.Conflict,
	"RESOURCE_IN_USE_BY_ANOTHER_RESOURCE": cloud.Conflict,

	"backendError":       cloud.Unavailable,
	"internalError":      cloud.Unavailable,
	"resourceNotReady":   cloud.Unavailable,
	"INTERNAL_ERROR":     cloud.Unavailable,
	"RESOURCE_NOT_READY": cloud.Unavailable,
}

// remedies say what to do about words of Google whose message does not.
var remedies = map[string]string{
	"insufficientPermissions":       "give the service account the role that docs/clouds/gcp.md shows",
	"forbidden":                     "give the service account the role that docs/clouds/gcp.md shows",
	"SERVICE_ACCOUNT_ACCESS_DENIED": "let the account's identity act as the machine's service account: role iam.serviceAccountUser",
	"conditionNotMet":               "an organization policy forbids it",
	"CONDITION_NOT_MET":             "an organization policy forbids it",
}

// word returns Google's own word for a failure.
func (f failure) word() string {
	if f.Code != "" {
		return f.Code
	}
	return f.Reason
}

// codeOf maps a failure with the HTTP status of its answer, or of its operation.
func codeOf(f failure, status int) cloud.Code {
	switch {
	case status == http.StatusTooManyRequests:
		return cloud.Throttled
	case status == http.StatusUnauthorized:
		return cloud.Unauthorized
	case f.Reason == "required" && status == http.StatusForbidden:
		return cloud.Unauthorized
	}
	if code, known := codes[f.word()]; known {
		return code
	}
	switch {
	case status == http.StatusForbidden:
		return cloud.Unauthorized
	case status == http.StatusPreconditionFailed:
		return cloud.Unauthorized
	case status == http.StatusConflict:
		return cloud.Conflict
	case status >= http.StatusInternalServerError:
		return cloud.Unavailable
	}
	return cloud.Unknown
}

// createInstance is the call that creates a machine.
const createInstance = "CreateInstance"

// creationCode returns the code of a refusal to create a machine. Google has few codes, so its
// words say whether the zone is the reason: it lacks a type of machine, disk or accelerator, a
// reservation, a storage pool or nodes. Another zone may have it.
func creationCode(f failure, status int) cloud.Code {
	words, known := strings.ToLower(f.Message), codeOf(f, status)
	has := func(all ...string) bool {
		return slices.ContainsFunc(all, func(part string) bool { return strings.Contains(words, part) })
	}
	missing := has("was not found", "cannot be found", "could not be found", "could not find", "does not exist", "do not exist")
	// What a reservation lacks is an unmet condition or a wrong value, and not always named:
	// https://github.com/skypilot-org/skypilot/pull/2352 and TestErrors of
	// https://github.com/kubernetes/autoscaler/tree/master/cluster-autoscaler/cloudprovider/gce
	full := has("does not have available resources", "have sufficient capacity") ||
		has("reservation") && (missing || has("available resources", "in ready state"))
	switch known {
	case cloud.Unauthorized: // an unmet condition, among others
		if full || has("location zone:") { // or an organization's policy on locations
			return cloud.NoCapacity
		}
	case cloud.NotFound, cloud.InvalidSpec, cloud.Unknown:
		switch {
		case full, missing && has("/zones/", "'zones/"), has(" in zone", " in the zone", "in the same zone"),
			has("does not have enough resources", "no feasible nodes"):
			return cloud.NoCapacity
		case missing && known == cloud.InvalidSpec: // somebody may create it
			return cloud.NotFound
		}
	}
	return known
}

// refusal returns the error for an answer with a status that is not a success.
func (d *driver) refusal(a *driverkit.Answer) error {
	var answer struct {
		Error struct {
			Message string    `json:"message"`
			Status  string    `json:"status"`
			Errors  []failure `json:"errors"`
		} `json:"error"`
	}
	if a.Holds(&answer) && (len(answer.Error.Errors) > 0 || answer.Error.Status != "") {
		f := failure{Code: answer.Error.Status, Message: answer.Error.Message}
		if len(answer.Error.Errors) > 0 {
			f = mostSpecific(answer.Error.Errors)
			f.Code = "" // the HTTP status, in some answers
		}
		return d.failed(a.Operation, f, a.Status, a.Header)
	}
	return a.Foreign()
}

// mostSpecific returns the first failure that the driver knows, or the first one.
func mostSpecific(all []failure) failure {
	if i := slices.IndexFunc(all, func(f failure) bool { return codes[f.word()] != "" }); i >= 0 {
		return all[i]
	}
	return all[0]
}

// failed returns the error for a failure.
func (d *driver) failed(op string, f failure, status int, header http.Header) error {
	code := codeOf(f, status)
	if op == createInstance {
		code = creationCode(f, status)
	}
	e := d.api.Secrets.Refused(op, code, f.word(), f.Message, header)
	if remedy := remedies[f.word()]; remedy != "" && code != cloud.NoCapacity {
		e.Message += " (" + remedy + ")"
	}
	if code == cloud.Throttled && e.RetryAfter == 0 {
		e.RetryAfter = untilNextMinute(header)
	}
	return e
}

// untilNextMinute returns how long it is until Google's quotas are full again: they are counted by
// the minute. The answer's own time is Google's.
func untilNextMinute(header http.Header) time.Duration {
	now, err := http.ParseTime(header.Get("Date"))
	if err != nil {
		now = time.Now()
	}
	return now.Truncate(time.Minute).Add(time.Minute).Sub(now)
}

// outcome returns the error of an operation that failed; nil: it has not.
func (d *driver) outcome(op string, o *operation) error {
	failed := o.Error != nil && len(o.Error.Errors) > 0
	switch {
	case failed:
		return d.failed(op, mostSpecific(o.Error.Errors), o.HTTPStatus, nil)
	case o.HTTPStatus >= http.StatusBadRequest:
		return cloud.Errorf(driverkit.CodeOfStatus(o.HTTPStatus), "%s: the operation failed with status %d", op, o.HTTPStatus)
	}
	return nil
}
