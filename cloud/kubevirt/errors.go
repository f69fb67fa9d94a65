// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
)

// maxWords is how much of the API server's message is shown, in bytes.
const maxWords = 1024

// refused turns an answer other than success into an error. The API server answers with a Status.
// Any other answer comes from something in between, and its text is not repeated.
func refused(op operation, resp *http.Response, text []byte, redactor driverkit.Redactor) error {
	var said metav1.Status
	if json.Unmarshal(text, &said) != nil || said.Kind != "Status" {
		code := driverkit.CodeOfStatus(resp.StatusCode)
		return &cloud.Error{
			Code:       code,
			Message:    op.name + ": status " + strconv.Itoa(resp.StatusCode) + ", unexpected response (not Kubernetes)",
			RetryAfter: driverkit.RetryAfter(code, resp.Header),
			Err:        statusError{http: resp.StatusCode},
		}
	}
	return refusedBy(op, resp.StatusCode, &said, resp.Header, redactor)
}

// refusedBy turns the API server's Status into an error.
func refusedBy(op operation, status int, said *metav1.Status, header http.Header, redactor driverkit.Redactor) *cloud.Error {
	code := codeOf(op.class, status, said)
	return &cloud.Error{
		Code:       code,
		Message:    op.name + ": " + redactor.Clean(messageOf(said), maxWords),
		RetryAfter: driverkit.RetryAfter(code, header),
		Err:        statusError{http: status, reason: said.Reason},
	}
}

// statusError identifies a refusal by its HTTP status and reason. Its text holds nothing else.
type statusError struct {
	http   int
	reason metav1.StatusReason
}

func (e statusError) Error() string { return strconv.Itoa(e.http) + " " + string(e.reason) }

// messageOf returns the message, with the fields that a webhook names in the causes alone.
func messageOf(said *metav1.Status) string {
	text := said.Message
	if text == "" {
		text = strconv.Itoa(int(said.Code)) + " " + string(said.Reason)
	}
	if said.Details == nil {
		return text
	}
	for _, cause := range said.Details.Causes {
		if cause.Field != "" && !strings.Contains(text, cause.Field) {
			text += " (" + cause.Field + ")"
		}
	}
	return text
}

// codeOf returns the code of a refusal ("HTTP Status codes" in the Kubernetes API conventions).
func codeOf(class cloud.Class, status int, said *metav1.Status) cloud.Code {
	switch status {
	case http.StatusUnauthorized:
		return cloud.Unauthorized
	case http.StatusForbidden:
		return forbidden(said)
	case http.StatusNotFound:
		return cloud.NotFound
	case http.StatusConflict:
		return cloud.Conflict
	case http.StatusGone:
		return cloud.Unavailable // the pages of a listing have expired: it starts over
	case http.StatusTooManyRequests:
		return cloud.Throttled
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		if class == cloud.ClassCreate {
			return cloud.InvalidSpec
		}
	}
	if status >= 500 { // a webhook that does not answer gives a 500
		return cloud.Unavailable
	}
	return cloud.Unknown
}

// forbidden tells apart what Kubernetes reports with the same status: missing rights, an exceeded
// quota, a webhook that refuses the request for now, and a namespace that is being deleted.
func forbidden(said *metav1.Status) cloud.Code {
	switch {
	case strings.Contains(said.Message, "exceeded quota:"), strings.Contains(said.Message, "status unknown for quota:"):
		return cloud.QuotaExceeded
	case strings.Contains(said.Message, "failed quota:"): // the quota requires limits that the machine does not set
		return cloud.InvalidSpec
	case strings.HasPrefix(said.Message, "admission webhook "), hasCause(said, corev1.NamespaceTerminatingCause):
		return cloud.Conflict
	}
	return cloud.Unauthorized
}

func hasCause(said *metav1.Status, kind metav1.CauseType) bool {
	if said.Details == nil {
		return false
	}
	for _, cause := range said.Details.Causes {
		if cause.Type == kind {
			return true
		}
	}
	return false
}
