// SPDX-License-Identifier: Apache-2.0

package armstub

import (
	"io"
	"net/http"
	"time"

	"github.com/drover-io/drover/cloud/conformance/faults"
)

// Fault makes calls of Resource Manager fail. If several match a call, the first injected one
// applies.
type Fault struct {
	// Operation to fail, as "METHOD kind", such as "PUT virtualMachines"; "" for all.
	Operation string
	// Skip is how many calls pass first, and Count how many fail after that. Count 0: all, until
	// undo.
	Skip, Count int

	// Code, Status, Message and Header of the answer. Status 0 keeps the call's own answer.
	Code, Message string
	Status        int
	Header        map[string]string
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

	// Short makes a listing return half of its page, possibly nothing, with a nextLink.
	Short bool
	// Birth is what happens to an accepted machine: Lifeless, or the code with which its creation
	// fails later.
	Birth string
}

// Lifeless is the Birth of a machine that runs without its guest.
const Lifeless = "Lifeless"

// replaces reports whether the call's own answer is not sent.
func (f Fault) replaces() bool { return f.Status != 0 || f.Instead != "" }

// answer writes what replaces a call's own answer, which is out and fail.
func (f Fault) answer(c *Cloud, w http.ResponseWriter, out answer, fail *failure) {
	switch {
	case f.Instead.Answer(w):
		return
	case f.Instead == faults.Half:
		c.write(w, out, fail, true)
		return
	}
	if f.Body == "" {
		writeFailure(w, &failure{status: f.Status, code: f.Code, message: f.Message, header: f.Header})
		return
	}
	for key, value := range f.Header {
		w.Header().Set(key, value)
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(f.Status)
	_, _ = io.WriteString(w, f.Body)
}

// Inject makes calls fail until undo is called.
func (c *Cloud) Inject(f Fault) (undo func()) {
	return c.faults.Inject(faults.Aim{Operation: f.Operation, Skip: f.Skip, Count: f.Count}, f)
}
