// SPDX-License-Identifier: Apache-2.0

package gcpstub

import (
	"io"
	"net/http"
	"time"

	"github.com/drover-io/drover/cloud/conformance/faults"
)

// Fault makes calls of Compute Engine fail. If several match a call, the first injected one
// applies.
type Fault struct {
	// Operation to fail, as "METHOD collection", such as "POST instances" or "GET
	// aggregated/instances"; "" for all.
	Operation string
	// Skip is how many calls pass first, and Count how many fail after that. Count 0: all, until
	// undo.
	Skip, Count int

	// Status, Reason, Message and Header of the answer. Status 0 keeps the call's own answer.
	Status          int
	Reason, Message string
	Header          map[string]string
	// Body replaces the answer's body.
	Body string
	// Instead replaces the answer, too.
	Instead faults.Instead
	// After carries out the call although its answer is replaced.
	After bool
	// Delay comes before the effect, or with After before the answer.
	Delay time.Duration
	// Late drops the connection at once, and carries out the call after Delay.
	Late bool

	// Short makes a listing return half of its page, possibly nothing, with a nextPageToken.
	Short bool
	// Birth is what happens to an accepted instance or part of a load balancer: Lifeless, or the
	// code with which its operation fails later.
	Birth string
}

// Lifeless is the Birth of an instance that runs without its guest.
const Lifeless = "Lifeless"

// replaces reports whether the call's own answer is not sent.
func (f Fault) replaces() bool { return f.Status != 0 || f.Instead != "" }

// answer writes what replaces a call's own answer, which is out and fail.
func (f Fault) answer(c *Cloud, w http.ResponseWriter, r *http.Request, out any, fail *failure) {
	switch {
	case f.Instead.Answer(w):
		return
	case f.Instead == faults.Half:
		c.write(w, r, out, fail, true)
		return
	case f.Body == "":
		writeFailure(w, &failure{f.Status, f.Reason, f.Message, f.Header})
		return
	}
	w.Header().Set("Content-Type", "application/json; charset=UTF-8")
	w.WriteHeader(f.Status)
	_, _ = io.WriteString(w, f.Body)
}

// Inject makes calls fail until undo is called.
func (c *Cloud) Inject(f Fault) (undo func()) {
	return c.faults.Inject(faults.Aim{Operation: f.Operation, Skip: f.Skip, Count: f.Count}, f)
}
