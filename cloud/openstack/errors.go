// SPDX-License-Identifier: Apache-2.0

package openstack

import (
	"cmp"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"

	"github.com/gophercloud/gophercloud/v2"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
)

// refusal is a service's own answer that it did not do what was asked. kind is Nova's name of the
// fault ("forbidden") or Neutron's type ("OverQuota"), "" where the answer has none. The words are
// clean, see typed.
type refusal struct {
	status      int
	kind, words string
}

func (r refusal) Error() string { return strconv.Itoa(r.status) + " " + r.kind }

// refusalOf reads an answer. ok is false for one that no service of OpenStack's has written: a
// proxy's page. They answer in JSON with one member, which holds a message, and mark every answer
// with a request ID: Glance's form, which is another, is known by that.
func refusalOf(status int, header http.Header, body []byte) (r refusal, ok bool) {
	r.status = status
	type fault struct {
		Type    string `json:"type"`
		Message string `json:"message"`
	}
	var members map[string]fault
	if json.Unmarshal(body, &members) == nil && len(members) == 1 {
		for name, said := range members {
			r.kind, r.words = cmp.Or(said.Type, name), said.Message
		}
	}
	return r, r.words != "" || marked(header)
}

// marked tells whether an answer has the request ID that all services give it, or what Keystone's
// middleware writes into a 401: before Glance it answers in HTML, and without a request ID.
func marked(header http.Header) bool {
	return header.Get("X-Openstack-Request-Id") != "" || strings.HasPrefix(header.Get("Www-Authenticate"), "Keystone ")
}

// code is what a refusal means. The statuses are those of the API references: "Faults" in Nova's
// API guide, "General API information" of Neutron's.
func (r refusal) code(class cloud.Class) cloud.Code {
	switch r.status {
	case http.StatusBadRequest:
		if r.kind == "ExternalIpAddressExhausted" {
			return cloud.NoCapacity
		}
		switch class {
		case cloud.ClassCreate:
			return cloud.InvalidSpec
		case cloud.ClassDelete: // Cinder's, of a volume that is in use yet
			return cloud.Conflict
		}
	case http.StatusUnauthorized:
		return cloud.Unauthorized
	case http.StatusForbidden:
		// Nova refuses what exceeds a quota as it refuses what is forbidden; only its words differ.
		if strings.HasPrefix(r.words, "Quota exceeded") || strings.HasPrefix(r.words, "Maximum number of ") {
			return cloud.QuotaExceeded
		}
		return cloud.Unauthorized
	case http.StatusNotFound:
		return cloud.NotFound
	case http.StatusNotAcceptable:
		return cloud.InvalidSpec // Nova does not know the microversion
	case http.StatusConflict:
		switch r.kind {
		case "OverQuota":
			return cloud.QuotaExceeded
		case "IpAddressGenerationFailure":
			return cloud.NoCapacity
		}
		return cloud.Conflict
	case http.StatusRequestEntityTooLarge:
		switch {
		case r.kind == "overLimit" && strings.Contains(r.words, "quota"): // Cinder's; only its words differ from a limit of rate
			return cloud.QuotaExceeded
		case r.kind == "overLimit":
			return cloud.Throttled
		}
	case http.StatusTooManyRequests:
		return cloud.Throttled
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return cloud.Unavailable
	}
	return cloud.Unknown
}

// maxWords is how many bytes of a service's own words are shown.
const maxWords = 512

// typed makes every error of gophercloud's one of package cloud. Only a service's own words are
// repeated: an answer of anybody else may hold anything.
func typed(secrets driverkit.Redactor, op string, class cloud.Class, err error) error {
	var answer gophercloud.ErrUnexpectedResponseCode
	var broken *json.SyntaxError
	switch {
	case errors.As(err, &answer):
		return answered(secrets, op, class, answer)
	case errors.As(err, &broken):
		return cloud.Errorf(cloud.Unknown, "%s: the answer is not JSON: does the endpoint belong to OpenStack?", op)
	}
	return secrets.NoAnswer(op, err)
}

// answered classifies an answer by its own words, and redacts only what is shown.
func answered(secrets driverkit.Redactor, op string, class cloud.Class, answer gophercloud.ErrUnexpectedResponseCode) error {
	said, ok := refusalOf(answer.Actual, answer.ResponseHeader, answer.Body)
	if !ok {
		code := driverkit.ForeignStatus(answer.Actual)
		return &cloud.Error{
			Code: code, Message: op + ": status " + strconv.Itoa(answer.Actual) + ", and not in OpenStack's words",
			RetryAfter: driverkit.RetryAfter(code, answer.ResponseHeader),
		}
	}
	code := said.code(class)
	said.words = secrets.Clean(said.words, maxWords)
	message := op + ": " + strconv.Itoa(said.status)
	if said.words != "" {
		message += ": " + said.words
	}
	return &cloud.Error{Code: code, Message: message, RetryAfter: driverkit.RetryAfter(code, answer.ResponseHeader), Err: said}
}
