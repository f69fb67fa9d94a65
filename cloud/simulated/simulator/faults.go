// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
)

// FaultKind is a kind of fault.
type FaultKind string

// The faults.
const (
	// ErrorBefore answers Code and CutBefore cuts the connection, both without executing the call.
	ErrorBefore FaultKind = "ErrorBefore"
	CutBefore   FaultKind = "CutBefore"
	// ErrorAfter and CutAfter execute the call first.
	ErrorAfter FaultKind = "ErrorAfter"
	CutAfter   FaultKind = "CutAfter"
	// Slow waits Delay before it executes the call.
	Slow FaultKind = "Slow"
	// SlowAfter executes the call, then waits Delay before it answers.
	SlowAfter FaultKind = "SlowAfter"
	// Late cuts the connection at once, and executes the call after Delay.
	Late FaultKind = "Late"
	// PartialPage answers part of the page, possibly nothing, with a NextToken. This is legal and
	// easy to get wrong.
	PartialPage FaultKind = "PartialPage"
	// TruncatedJSON, HTML and Redirect execute the call, and answer something else.
	TruncatedJSON FaultKind = "TruncatedJSON"
	HTML          FaultKind = "HTML"
	Redirect      FaultKind = "Redirect"
	// FailBoot creates an instance that ends Terminated instead of Running. For RunInstances only.
	FailBoot FaultKind = "FailBoot"
	// DeadBody creates an instance that runs, but whose body never starts. For RunInstances only.
	DeadBody FaultKind = "DeadBody"
	// StuckPending creates an instance that stays pending. For RunInstances only.
	StuckPending FaultKind = "StuckPending"
)

func knownFault(k FaultKind) bool {
	return slices.Contains([]FaultKind{ErrorBefore, CutBefore, ErrorAfter, CutAfter, Slow, SlowAfter, Late, PartialPage,
		TruncatedJSON, HTML, Redirect, FailBoot, DeadBody, StuckPending}, k)
}

// Fault applies to calls that it matches. If several match, the first one added applies.
type Fault struct {
	// ID is set by the server.
	ID   string    `json:"id,omitempty"`
	Kind FaultKind `json:"kind"`

	// Operation and Account that it matches; empty means all.
	Operation string `json:"operation,omitempty"`
	Account   string `json:"account,omitempty"`
	// Skip is the number of matching calls that pass first.
	Skip int `json:"skip,omitempty"`
	// Count is how often the fault applies. 0 means until it is removed.
	Count int `json:"count,omitempty"`
	// Probability for each matching call. 0 means 1.
	Probability float64 `json:"probability,omitempty"`

	// Code and Status of ErrorBefore and ErrorAfter. Default: InternalError, and the status of the
	// code.
	Code   string `json:"code,omitempty"`
	Status int    `json:"status,omitempty"`
	// RetryAfter of the errors, in seconds.
	RetryAfter float64 `json:"retryAfter,omitempty"`
	// Delay of Slow, SlowAfter and Late.
	Delay Duration `json:"delay,omitempty"`
	// Location of Redirect. Default: an address that does not exist.
	Location string `json:"location,omitempty"`

	// Happened counts how often the fault applied.
	Happened int `json:"happened"`
}

func (f Fault) validate() error {
	switch {
	case !knownFault(f.Kind):
		return fmt.Errorf("unknown fault %q", f.Kind)
	case f.Probability < 0 || f.Probability > 1:
		return fmt.Errorf("probability %g is not between 0 and 1", f.Probability)
	case f.Skip < 0 || f.Count < 0 || f.Delay.Duration < 0:
		return fmt.Errorf("skip, count and delay must not be negative")
	}
	return nil
}

// faults is the list of active faults. It has its own random source, so that draws depend only on
// the seed and the order of calls.
type faults struct {
	mu   sync.Mutex
	rand *rand.Rand
	next int
	list []*Fault
}

func newFaults(seed uint64) *faults {
	return &faults{rand: rand.New(rand.NewPCG(seed, 2))}
}

func (f *faults) add(fault Fault) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.next++
	fault.ID, fault.Happened = "fault-"+strconv.Itoa(f.next), 0
	f.list = append(f.list, &fault)
	return fault.ID
}

// remove removes one fault, or all if id is "".
func (f *faults) remove(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.list = slices.DeleteFunc(f.list, func(x *Fault) bool { return id == "" || x.ID == id })
}

func (f *faults) all() []Fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := []Fault{}
	for _, x := range f.list {
		out = append(out, *x)
	}
	return out
}

// match returns the fault that applies to this call, or nil.
func (f *faults) match(op, account string) *Fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, x := range f.list {
		if (x.Operation != "" && x.Operation != op) || (x.Account != "" && x.Account != account) || (x.Count > 0 && x.Happened >= x.Count) {
			continue
		}
		if x.Skip > 0 {
			x.Skip--
			continue
		}
		if x.Probability > 0 && f.rand.Float64() >= x.Probability {
			continue
		}
		x.Happened++
		hit := *x
		return &hit
	}
	return nil
}
