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
// code, the reason and the name of what it is about, and no text. An error may be remembered, so
// both are cut: names of objects have at most 253 bytes.
func refused(op operation, status *metav1.Status, redactor driverkit.Redactor) *cloud.Error {
	code, message := codeOf(op.class, int(status.Code), status), redactor.Clean(messageOf(status), maxWords)
	reason := metav1.StatusReason(cloud.Clip(string(status.Reason), 256))
	cause := &apierrors.StatusError{ErrStatus: metav1.Status{Code: status.Code, Reason: reason}}
	if status.Details != nil {
		cause.ErrStatus.Details = &metav1.StatusDetails{Name: cloud.Clip(status.Details.Name, 256)}
	}
	if hasCause(status, metav1.CauseTypeUnexpectedServerResponse) {
		code, message = driverkit.CodeOfStatus(int(status.Code)),
			"status "+strconv.Itoa(int(status.Code))+", unexpected response (not Kubernetes)"
		cause.ErrStatus.Reason = metav1.StatusReasonUnknown
	}
	e := &cloud.Error{Code: code, Message: op.name + ": " + message, Err: cause}
	if seconds, wait := apierrors.SuggestsClientDelay(&apierrors.StatusError{ErrStatus: *status}); wait &&
		(code == cloud.Throttled || code == cloud.Unavailable) {
		e.RetryAfter = driverkit.Wait(time.Duration(seconds) * time.Second)
	}
	return e
}

// messageOf returns the message, with the fields that a webhook names in the causes alone.
func messageOf(status *metav1.Status) string {
	text := status.Message
	if text == "" {
		text = strconv.Itoa(int(status.Code)) + " " + string(status.Reason)
	}
	if status.Details == nil {
		return text
	}
	for _, cause := range status.Details.Causes {
		if cause.Field != "" && !strings.Contains(text, cause.Field) {
			text += " (" + cause.Field + ")"
		}
	}
	return text
}

// codeOf returns the code of a refusal ("HTTP Status codes" in the Kubernetes API conventions).
func codeOf(class cloud.Class, httpCode int, status *metav1.Status) cloud.Code {
	switch httpCode {
	case http.StatusUnauthorized:
		return cloud.Unauthorized
	case http.StatusForbidden:
		return forbidden(status)
	case http.StatusNotFound:
		return cloud.NotFound
	case http.StatusConflict:
		if class == cloud.ClassCreate && ofQuota(status) {
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
	if httpCode >= 500 { // a webhook that does not answer gives a 500
		return cloud.Unavailable
	}
	return cloud.Unknown
}

// forbidden tells apart what Kubernetes reports with the same status: missing rights, an exceeded
// quota, a webhook that refuses the request for now, and a namespace that is being deleted.
func forbidden(status *metav1.Status) cloud.Code {
	switch {
	case strings.Contains(status.Message, "exceeded quota:"), strings.Contains(status.Message, "status unknown for quota:"):
		return cloud.QuotaExceeded
	case strings.Contains(status.Message, "failed quota:"): // the quota requires limits that the machine does not set
		return cloud.InvalidSpec
	case strings.HasPrefix(status.Message, "admission webhook "), hasCause(status, corev1.NamespaceTerminatingCause):
		return cloud.Conflict
	}
	return cloud.Unauthorized
}

// ofQuota reports whether a create has lost a race for a ResourceQuota's status with other creates
// (https://github.com/kubernetes/kubernetes/issues/67761). Nothing was made, and the next attempt
// may succeed.
func ofQuota(status *metav1.Status) bool {
	return status.Details != nil && status.Details.Kind == "resourcequotas" ||
		strings.Contains(status.Message, "Operation cannot be fulfilled on resourcequotas")
}

// isForbidden reports whether a permission to read is missing.
func isForbidden(err error) bool {
	return apierrors.ReasonForError(err) == metav1.StatusReasonForbidden
}

func hasCause(status *metav1.Status, kind metav1.CauseType) bool {
	if status.Details == nil {
		return false
	}
	for _, cause := range status.Details.Causes {
		if cause.Type == kind {
			return true
		}
	}
	return false
}
