// SPDX-License-Identifier: Apache-2.0

package armstub

import (
	"context"
	"io"
	"net/http"
	"slices"
	"time"
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
	Instead Instead
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

// Instead is a replacement for an answer.
type Instead string

// The replacements.
const (
	Cut       Instead = "Cut"       // the connection ends
	Half      Instead = "Half"      // half of the answer
	Page      Instead = "Page"      // an HTML page, as from a hotel's network
	Elsewhere Instead = "Elsewhere" // a redirect to nowhere
)

// replaces reports whether the call's own answer is not sent.
func (f Fault) replaces() bool { return f.Status != 0 || f.Instead != "" }

// answer writes what replaces a call's own answer, which is out and fail.
func (f Fault) answer(c *Cloud, w http.ResponseWriter, out answer, fail *failure) {
	switch f.Instead {
	case Cut:
		panic(http.ErrAbortHandler)
	case Half:
		c.write(w, out, fail, true)
		return
	case Page:
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = io.WriteString(w, "<!DOCTYPE html><html><body><h1>Welcome to the hotel's network</h1></body></html>")
		return
	case Elsewhere:
		w.Header().Set("Location", "https://elsewhere.invalid/")
		w.WriteHeader(http.StatusTemporaryRedirect)
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

// injected is a fault with its count.
type injected struct {
	Fault
	befallen int
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
