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

// maxWords is how many bytes are shown of what the API server says.
const maxWords = 1024

// refused reads an answer other than success: the API server's own, which is a Status, or that of
// something before it, of which no word is repeated.
func refused(op operation, resp *http.Response, text []byte, redactor driverkit.Redactor) error {
	var said metav1.Status
	if json.Unmarshal(text, &said) != nil || said.Kind != "Status" {
		code := driverkit.ForeignStatus(resp.StatusCode)
		return &cloud.Error{
			Code:       code,
			Message:    op.name + ": status " + strconv.Itoa(resp.StatusCode) + ", and not in Kubernetes' words",
			RetryAfter: driverkit.RetryAfter(code, resp.Header),
			Err:        statusError{http: resp.StatusCode},
		}
	}
	return refusedBy(op, resp.StatusCode, &said, resp.Header, redactor)
}

// refusedBy is what the API server says in its own words.
func refusedBy(op operation, status int, said *metav1.Status, header http.Header, redactor driverkit.Redactor) *cloud.Error {
	code := codeOf(op.class, status, said)
	return &cloud.Error{
		Code:       code,
		Message:    op.name + ": " + redactor.Clean(words(said), maxWords),
		RetryAfter: driverkit.RetryAfter(code, header),
		Err:        statusError{http: status, reason: said.Reason},
	}
}

// statusError is what a refusal is told by. Its text is no more than that.
type statusError struct {
	http   int
	reason metav1.StatusReason
}

func (e statusError) Error() string { return strconv.Itoa(e.http) + " " + string(e.reason) }

// words are the API server's, with the fields that a webhook names but does not mention.
func words(said *metav1.Status) string {
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

// codeOf is what a refusal means: "HTTP Status codes" in Kubernetes' API conventions.
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
		return cloud.Unavailable // a listing's pages are too old: it begins anew
	case http.StatusTooManyRequests:
		return cloud.Throttled
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		if class == cloud.ClassCreate {
			return cloud.InvalidSpec
		}
	}
	if status >= 500 { // a webhook that does not answer is a 500
		return cloud.Unavailable
	}
	return cloud.Unknown
}

// forbidden tells apart what Kubernetes refuses alike: who has no right, what a quota leaves no
// room for, what a webhook of somebody's does not like now, and what comes into a namespace that is
// being deleted.
func forbidden(said *metav1.Status) cloud.Code {
	switch {
	case strings.Contains(said.Message, "exceeded quota:"), strings.Contains(said.Message, "status unknown for quota:"):
		return cloud.QuotaExceeded
	case strings.Contains(said.Message, "failed quota:"): // the quota wants limits that the machine does not give
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
