// SPDX-License-Identifier: Apache-2.0

package ec2stub

import (
	"net/http"
	"time"

	"github.com/drover-io/drover/cloud/conformance/faults"
)

// Fault makes calls fail. If several match a call, the first injected one applies.
type Fault struct {
	// Operation to fail; "" for all.
	Operation string
	// Skip is how many calls pass first, and Count how many fail after that. Count 0: all, until
	// undo.
	Skip, Count int

	// Code and Status of the answer. An empty Code keeps the call's own answer. Example:
	// "RequestLimitExceeded", 503.
	Code   string
	Status int
	// Instead replaces the answer.
	Instead faults.Instead
	// After executes the call although its answer is replaced.
	After bool
	// Delay comes before the effect, or with After before the answer.
	Delay time.Duration
	// Late drops the connection at once, and executes the call after Delay.
	Late bool

	// Short makes a listing return part of its page, possibly nothing, with a NextToken. This is
	// legal and easy to get wrong.
	Short bool
	// Birth is what happens to a created instance.
	Birth Birth
}

// Birth is a failure of a new instance.
type Birth string

// The failures of a new instance.
const (
	Stillborn Birth = "Stillborn" // it ends instead of running
	Roomless  Birth = "Roomless"  // it ends for lack of capacity
	Lifeless  Birth = "Lifeless"  // it runs, but its guest never starts
)

// instead reports whether the answer is replaced.
func (f Fault) instead() bool { return f.Code != "" || f.Instead != "" }

// answer writes the response to the client.
func (f Fault) answer(w http.ResponseWriter, in call, out any, fail *failure) {
	if f.Instead.Answer(w) {
		return
	}
	if f.Code != "" {
		out, fail = nil, &failure{f.Status, f.Code, "as the test wants it"}
	}
	write(w, in, out, fail, f.Instead == faults.Half)
}

// Inject makes calls fail until undo is called.
func (c *Cloud) Inject(f Fault) (undo func()) {
	return c.faults.Inject(faults.Aim{Operation: f.Operation, Skip: f.Skip, Count: f.Count}, f)
}
