// SPDX-License-Identifier: Apache-2.0

package ec2stub

import (
	"context"
	"io"
	"net/http"
	"slices"
	"time"
)

// Fault makes calls go wrong. Of several that fit a call, the one injected first befalls it.
type Fault struct {
	// Operation that it befalls; "": each one.
	Operation string
	// Skip lets the first calls pass, and Count is how many it befalls then. Count 0: all, until it
	// is undone.
	Skip, Count int

	// Code and Status of the answer; an empty Code leaves the call's own. Example:
	// "RequestLimitExceeded", 503.
	Code   string
	Status int
	// Instead is what is answered instead of that.
	Instead Instead
	// After lets the call take its effect although its answer is another.
	After bool
	// Delay comes before the effect, or with After before the answer.
	Delay time.Duration
	// Late leaves the client without an answer at once, and lets the call take its effect after
	// Delay.
	Late bool

	// Short has a listing answer a part of its page, maybe nothing, with a NextToken: legal, and
	// easy to get wrong.
	Short bool
	// Birth is what becomes of an instance that is made.
	Birth Birth
}

// Instead is what comes in the place of an answer.
type Instead string

// The answers that are none.
const (
	Cut       Instead = "Cut"       // the connection ends
	Half      Instead = "Half"      // half of the answer
	Page      Instead = "Page"      // a page of HTML, as a hotel's network has it
	Elsewhere Instead = "Elsewhere" // a redirection to nowhere
)

// Birth is what goes wrong with a new instance.
type Birth string

// What may go wrong.
const (
	Stillborn Birth = "Stillborn" // it ends instead of running
	Roomless  Birth = "Roomless"  // it ends for want of capacity
	Lifeless  Birth = "Lifeless"  // it runs, and nothing ever starts in it
)

// instead tells whether the answer is not the call's own.
func (f Fault) instead() bool { return f.Code != "" || f.Instead != "" }

// answer writes what the client gets.
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

// draw returns what befalls a call; the zero Fault where nothing does. The lock is held.
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

// injected is a fault with what became of it.
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

// pause lets time pass, or the client go.
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
