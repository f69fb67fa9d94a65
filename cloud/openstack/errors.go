// SPDX-License-Identifier: Apache-2.0

package openstack

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"

	"github.com/gophercloud/gophercloud/v2"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
)

// refusal is a service's answer that it did not do what was asked. kind is Nova's name of the fault
// ("forbidden") or Neutron's type ("OverQuota"), or "" if the answer has none. The words are
// redacted, see typed.
type refusal struct {
	status        int
	kind, message string
}

func (r refusal) Error() string { return strconv.Itoa(r.status) + " " + r.kind }

// refusalOf parses an answer. ok is false if it is not from an OpenStack service, but a proxy's
// page. The services answer in JSON with one member that holds a message, and mark every answer
// with a request ID. Octavia has a member "faultstring" among others. Glance has another format,
// and is recognized by the request ID.
func refusalOf(status int, header http.Header, body []byte) (r refusal, ok bool) {
	r.status = status
	type fault struct {
		Type    string `json:"type"`
		Message string `json:"message"`
	}
	var octavia struct {
		Kind    string `json:"faultcode"`
		Message string `json:"faultstring"`
	}
	if json.Unmarshal(body, &octavia) == nil {
		r.kind, r.message = octavia.Kind, octavia.Message
	}
	var members map[string]fault
	if json.Unmarshal(body, &members) == nil && len(members) == 1 {
		for name, said := range members {
			r.kind, r.message = cmp.Or(said.Type, name), said.Message
		}
	}
	return r, r.message != "" || hasMarker(header)
}

// hasMarker reports whether an answer has the request ID that all services set, or the header of
// Keystone's middleware in a 401: in front of Glance it answers in HTML without a request ID.
func hasMarker(header http.Header) bool {
	return header.Get("X-Openstack-Request-Id") != "" || strings.HasPrefix(header.Get("Www-Authenticate"), "Keystone ")
}

// code returns the code of a refusal. The statuses are those of the API references: "Faults" in
// Nova's API guide, "General API information" of Neutron's.
func (r refusal) code(class cloud.Class) cloud.Code {
	switch r.status {
	case http.StatusBadRequest:
		if r.kind == "ExternalIpAddressExhausted" {
			return cloud.NoCapacity
		}
		switch class {
		case cloud.ClassCreate:
			return r.creationCode()
		case cloud.ClassDelete: // Cinder's, for a volume that is still in use
			return cloud.Conflict
		}
	case http.StatusUnauthorized:
		return cloud.Unauthorized
	case http.StatusForbidden:
		// Nova uses 403 for quotas and for forbidden actions. Only the message differs.
		if strings.HasPrefix(r.message, "Quota exceeded") || strings.HasPrefix(r.message, "Maximum number of ") ||
			strings.HasPrefix(r.message, "Quota has been met") {
			return cloud.QuotaExceeded
		}
		return cloud.Unauthorized
	case http.StatusNotFound:
		return cloud.NotFound
	case http.StatusNotAcceptable:
		return cloud.InvalidSpec // Nova does not support the microversion
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
		case r.kind == "overLimit" && strings.Contains(r.message, "quota"): // Cinder's; only the message differs from a rate limit
			return cloud.QuotaExceeded
		case r.kind == "overLimit":
			return cloud.Throttled
		}
	case http.StatusTooManyRequests:
		return cloud.Throttled
	case http.StatusNotImplemented: // by the provider of a load balancer
		return cloud.InvalidSpec
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return cloud.Unavailable
	}
	return cloud.Unknown
}

// creationCode returns the code of a 400 to a create. Only the message says whether the zone is the
// reason, or something that somebody may yet create.
func (r refusal) creationCode() cloud.Code {
	words := strings.ToLower(r.message)
	switch {
	// Nova's, for a zone whose computes are down or disabled
	// (https://github.com/rcbops/chef-cookbooks/issues/809), and Cinder's "Availability zone 'z' is
	// invalid" (https://github.com/Ubuntu-Solutions-Engineering/openstack-installer/issues/829).
	case strings.Contains(words, "availability zone"):
		return cloud.NoCapacity
	case strings.Contains(words, "invalid key_name"), strings.Contains(words, "could not be found"),
		strings.Contains(words, " not found for project"),
		strings.HasPrefix(words, "unable to find security_group"), // what Nova 26 says of a group that Neutron does not have
		strings.Contains(words, "can not find requested image"), strings.HasPrefix(words, "image ") && strings.Contains(words, "is not active"):
		return cloud.NotFound
	}
	return cloud.InvalidSpec
}

// maxWords is how many bytes of a service's message are shown.
const maxWords = 512

// maxFault is how many bytes of the fault of a server are remembered.
const maxFault = 4 << 10

// typed converts every gophercloud error to an error of package cloud. It repeats only a service's
// own message, because other answers may contain anything.
func typed(secrets driverkit.Redactor, op string, class cloud.Class, err error) error {
	var answer gophercloud.ErrUnexpectedResponseCode
	var broken *json.SyntaxError
	switch {
	case errors.As(err, &answer):
		return classify(secrets, op, class, answer)
	case errors.As(err, &broken):
		return cloud.Errorf(cloud.Unknown, "%s: unexpected response, not JSON (not OpenStack): check spec.cloud.openstack.authURL", op)
	case err != nil && !ofConnection(err):
		return cloud.Errorf(cloud.Unavailable, "%s: the response can't be decoded", op)
	}
	return secrets.NoResponse(op, err)
}

// ofConnection reports whether an error is the transport's, or says what happened to a connection.
// The text of any other error quotes the response and names types of this program.
func ofConnection(err error) bool {
	var own *cloud.Error
	var queued *cloud.Queued
	var connection net.Error // such as *url.Error, and that of an ended context
	var large *http.MaxBytesError
	return errors.As(err, &own) || errors.As(err, &queued) || errors.As(err, &connection) || errors.As(err, &large) ||
		errors.Is(err, context.Canceled) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// classify classifies an answer by the original message, and redacts only what is shown.
func classify(secrets driverkit.Redactor, op string, class cloud.Class, answer gophercloud.ErrUnexpectedResponseCode) error {
	said, ok := refusalOf(answer.Actual, answer.ResponseHeader, answer.Body)
	if !ok {
		code := driverkit.CodeOfStatus(answer.Actual)
		return &cloud.Error{
			Code: code, Message: op + ": status " + strconv.Itoa(answer.Actual) + ", unexpected response (not OpenStack)",
			RetryAfter: driverkit.RetryAfter(code, answer.ResponseHeader),
		}
	}
	code := said.code(class)
	said.kind, said.message = cloud.Clip(said.kind, 64), secrets.Clean(said.message, maxWords) // an error may be remembered
	message := op + ": " + strconv.Itoa(said.status)
	if said.message != "" {
		message += ": " + said.message
	}
	return &cloud.Error{Code: code, Message: message, RetryAfter: driverkit.RetryAfter(code, answer.ResponseHeader), Err: said}
}
