// SPDX-License-Identifier: Apache-2.0

// Package faults is what the stand-ins for clouds share: which of their calls a fault hits, and
// what replaces an answer. Only tests import it.
package faults

import (
	"context"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"
)

// Aim says which calls a fault hits.
type Aim struct {
	// Operation to hit; "" for all.
	Operation string
	// Skip is how many calls pass first, and Count how many are hit after that. Count 0: all, until
	// undo.
	Skip, Count int
}

// List holds the faults of a stand-in. If several match a call, the first injected one applies. The
// zero value is empty.
type List[F any] struct {
	mu  sync.Mutex
	all []*injected[F]
}

// injected is a fault with its count.
type injected[F any] struct {
	Aim
	fault F
	hits  int
}

// Inject adds a fault until undo is called.
func (l *List[F]) Inject(aim Aim, fault F) (undo func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	one := &injected[F]{Aim: aim, fault: fault}
	l.all = append(l.all, one)
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.all = slices.DeleteFunc(l.all, func(x *injected[F]) bool { return x == one })
	}
}

// Draw counts a call, and returns its fault; the zero value if there is none.
func (l *List[F]) Draw(operation string) (none F) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range l.all {
		switch {
		case f.Operation != "" && f.Operation != operation, f.Count > 0 && f.hits >= f.Count:
			continue
		case f.Skip > 0:
			f.Skip--
			continue
		}
		f.hits++
		return f.fault
	}
	return none
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

// Answer writes the replacement, and reports whether it did: only the stand-in can write half of
// its own answer.
func (i Instead) Answer(w http.ResponseWriter) bool {
	switch i {
	case Cut:
		panic(http.ErrAbortHandler)
	case Page:
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = io.WriteString(w, "<!DOCTYPE html><html><body><h1>Welcome to the hotel's network</h1></body></html>")
		return true
	case Elsewhere:
		w.Header().Set("Location", "https://elsewhere.invalid/")
		w.WriteHeader(http.StatusTemporaryRedirect)
		return true
	}
	return false
}

// Pause waits for d or until ctx ends.
func Pause(ctx context.Context, d time.Duration) {
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
