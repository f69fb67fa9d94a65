// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Code is the kind of failure of an Error. Each code has one consequence, the same for every cloud.
type Code string

// The codes. "Retried" says when the machine controller retries. Delays are jittered and grow to
// the given cap.
const (
	// Throttled: the cloud asked for fewer calls. Retried after RetryAfter, or 1 s to 1 min. The
	// bucket is emptied.
	Throttled Code = "Throttled"
	// QuotaExceeded: the account's quota leaves no room. Retried 30 s to 10 min.
	QuotaExceeded Code = "QuotaExceeded"
	// NoCapacity: this failure domain refuses the machine for a reason that another one may not
	// have: no capacity, no such type of machine, disk or accelerator, or the wrong place for what
	// the machine names, such as a reservation. It is remembered for NoCapacityMemory. Another
	// allowed failure domain is tried at once, otherwise retried when the memory ends.
	NoCapacity Code = "NoCapacity"
	// Unauthorized: the credentials are refused. Retried 30 s to 10 min, and at once when they
	// change.
	Unauthorized Code = "Unauthorized"
	// InvalidSpec: the cloud does not accept this request. Retried every 10 min, because a
	// catalog, a permission or what the request names may change, unless the Error is Final.
	InvalidSpec Code = "InvalidSpec"
	// NotFound: something that the request names does not exist. Retried 30 s to 10 min.
	NotFound Code = "NotFound"
	// Conflict: the cloud's state contradicts the request, such as two instances with one token.
	// Retried 30 s to 10 min.
	Conflict Code = "Conflict"
	// Unavailable: no answer, or the cloud can't work now. The call may have had an effect. Retried
	// 1 s to 1 min.
	Unavailable Code = "Unavailable"
	// Unknown: an answer that is not known. It may have had an effect. Retried 1 s to 1 min.
	Unknown Code = "Unknown"
)

// Error is every error that leaves this package or a driver.
type Error struct {
	Code Code
	// Message says what was attempted, on what, and what the cloud answered. It holds no secret.
	Message string
	// RetryAfter is how long the cloud asked to wait; 0 if it did not say. Only Throttled and
	// Unavailable have it, and NoCapacity if a driver has something else to try in the same failure
	// domain, such as another subnet. With NoCapacity from an Account, it is when to retry.
	RetryAfter time.Duration
	// Final is true if Drover itself has found that the request can't be right, whatever the cloud
	// says. It is then retried only when spec, account or credentials change. See Invalid.
	Final bool
	// Err is the cause, for errors.Is and errors.As. Its text is not shown.
	Err error
}

func (e *Error) Error() string { return string(e.Code) + ": " + e.Message }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// MaxMessage is how many bytes the message of an Error may have. A condition shows no more.
const MaxMessage = 1024

// Errorf returns an Error. It cuts a message that is too long, because an argument may be what the
// cloud has answered.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: Clip(fmt.Sprintf(format, args...), MaxMessage)}
}

// Invalid returns a Final InvalidSpec, for what Drover itself validates without the cloud.
func Invalid(format string, args ...any) *Error {
	e := Errorf(InvalidSpec, format, args...)
	e.Final = true
	return e
}

// CodeOf returns the code of err: "" for nil, Unavailable for an ended context, Unknown for a
// foreign error.
func CodeOf(err error) Code {
	var e *Error
	switch {
	case err == nil:
		return ""
	case errors.As(err, &e):
		return e.Code
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return Unavailable
	default:
		return Unknown
	}
}

// Queued reports that a call was not made because its turn in the account's rate limit has not
// come. The turn is kept: a caller that retries with the same token after After is served before
// all later callers.
type Queued struct {
	After time.Duration
}

func (q *Queued) Error() string {
	return fmt.Sprintf("waiting %s for its turn in the account's rate limit", q.After.Round(100*time.Millisecond))
}

// Clip returns at most n bytes of a text, which are valid UTF-8. It never cuts inside a character.
// It returns a copy: a part of a text keeps all of the text in memory.
func Clip(s string, n int) string {
	return strings.ToValidUTF8(strings.Clone(s[:min(len(s), n)]), "")
}
