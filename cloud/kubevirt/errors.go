// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
)

// maxWords is how much of the API server's message is shown, in bytes.
const maxWords = 1024

// refused turns a Status into an error. For an answer without a Status, client-go makes one.
// Such an answer comes from something in between, and its text is not repeated. The cause has the
// code, the reason and the name of what it is about, and no text.
func refused(op operation, said *metav1.Status, redactor driverkit.Redactor) *cloud.Error {
	code, message := codeOf(op.class, int(said.Code), said), redactor.Clean(messageOf(said), maxWords)
	cause := &apierrors.StatusError{ErrStatus: metav1.Status{Code: said.Code, Reason: said.Reason}}
	if said.Details != nil {
		cause.ErrStatus.Details = &metav1.StatusDetails{Name: said.Details.Name}
	}
	if hasCause(said, metav1.CauseTypeUnexpectedServerResponse) {
		code, message = driverkit.CodeOfStatus(int(said.Code)), "status "+strconv.Itoa(int(said.Code))+", unexpected response (not Kubernetes)"
		cause.ErrStatus.Reason = metav1.StatusReasonUnknown
	}
	e := &cloud.Error{Code: code, Message: op.name + ": " + message, Err: cause}
	if seconds, wait := apierrors.SuggestsClientDelay(&apierrors.StatusError{ErrStatus: *said}); wait && (code == cloud.Throttled || code == cloud.Unavailable) {
		e.RetryAfter = time.Duration(seconds) * time.Second
	}
	return e
}

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
		if class == cloud.ClassCreate && ofQuota(said) {
			return cloud.Unavailable
		}
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

// ofQuota reports whether a create has lost a race for a ResourceQuota's status with other creates
// (https://github.com/kubernetes/kubernetes/issues/67761). Nothing was made, and the next attempt
// may succeed.
func ofQuota(said *metav1.Status) bool {
	return said.Details != nil && said.Details.Kind == "resourcequotas" || strings.Contains(said.Message, "Operation cannot be fulfilled on resourcequotas")
}

// isForbidden reports whether a permission to read is missing.
func isForbidden(err error) bool {
	return apierrors.ReasonForError(err) == metav1.StatusReasonForbidden
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
