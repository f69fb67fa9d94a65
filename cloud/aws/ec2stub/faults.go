// SPDX-License-Identifier: Apache-2.0

package ec2stub

import (
	"context"
	"io"
	"net/http"
	"slices"
	"time"
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
	Instead Instead
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

// Instead is a replacement for an answer.
type Instead string

// The replacements.
const (
	Cut       Instead = "Cut"       // the connection ends
	Half      Instead = "Half"      // half of the answer
	Page      Instead = "Page"      // an HTML page, as from a hotel's network
	Elsewhere Instead = "Elsewhere" // a redirect to nowhere
)

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
	switch f.Instead {
	case Cut:
		panic(http.ErrAbortHandler)
	case Page:
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = io.WriteString(w, "<!DOCTYPE html><html><body><h1>Welcome to the hotel's network</h1></body></html>")
		return
	case Elsewhere:
		w.Header().Set("Location", "http://elsewhere.invalid/")
		w.WriteHeader(http.StatusTemporaryRedirect)
		return
	}
	if f.Code != "" {
		out, fail = nil, &failure{f.Status, f.Code, "as the test wants it"}
	}
	write(w, in, out, fail, f.Instead == Half)
}

// draw returns the fault for a call, or the zero Fault. The caller holds the lock.
func (c *Cloud) draw(op string) Fault {
	for _, f := range c.faults {
		switch {
		case f.Operation != "" && f.Operation != op, f.Count > 0 && f.befallen >= f.Count:
			continue
		case f.Skip > 0:
			f.Skip--
			continue
		}
		f.befallen++
		return f.Fault
	}
	return Fault{}
}

// injected is a fault with its count.
type injected struct {
	Fault
	befallen int
}

// Inject makes calls fail until undo is called.
func (c *Cloud) Inject(f Fault) (undo func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	one := &injected{Fault: f}
	c.faults = append(c.faults, one)
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.faults = slices.DeleteFunc(c.faults, func(x *injected) bool { return x == one })
	}
}

// pause waits for d or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
