// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
)

// FaultKind says what goes wrong.
type FaultKind string

// The faults.
const (
	// ErrorBefore answers Code, and nothing is done. CutBefore cuts the connection, and nothing is
	// done.
	ErrorBefore FaultKind = "ErrorBefore"
	CutBefore   FaultKind = "CutBefore"
	// ErrorAfter and CutAfter do it first.
	ErrorAfter FaultKind = "ErrorAfter"
	CutAfter   FaultKind = "CutAfter"
	// Slow waits Delay before it is done.
	Slow FaultKind = "Slow"
	// SlowAfter does it, then waits Delay with the answer.
	SlowAfter FaultKind = "SlowAfter"
	// Late cuts the connection at once, and does it after Delay.
	Late FaultKind = "Late"
	// PartialPage answers a part of the page, maybe nothing, with a NextToken: legal, and easy to
	// get wrong.
	PartialPage FaultKind = "PartialPage"
	// TruncatedJSON, HTML and Redirect do it, and answer something else.
	TruncatedJSON FaultKind = "TruncatedJSON"
	HTML          FaultKind = "HTML"
	Redirect      FaultKind = "Redirect"
	// FailBoot makes an instance that ends Terminated instead of Running. Only with RunInstances.
	FailBoot FaultKind = "FailBoot"
	// DeadBody makes an instance that runs and on which nothing ever starts. Only with
	// RunInstances.
	DeadBody FaultKind = "DeadBody"
	// StuckPending makes an instance that stays pending. Only with RunInstances.
	StuckPending FaultKind = "StuckPending"
)

func knownFault(k FaultKind) bool {
	return slices.Contains([]FaultKind{ErrorBefore, CutBefore, ErrorAfter, CutAfter, Slow, SlowAfter, Late, PartialPage,
		TruncatedJSON, HTML, Redirect, FailBoot, DeadBody, StuckPending}, k)
}

// Fault happens to calls that it matches. Of several, the one added first happens.
type Fault struct {
	// ID is given by the server.
	ID   string    `json:"id,omitempty"`
	Kind FaultKind `json:"kind"`

	// Operation and Account it concerns; empty: all.
	Operation string `json:"operation,omitempty"`
	Account   string `json:"account,omitempty"`
	// Skip lets the first calls that match pass.
	Skip int `json:"skip,omitempty"`
	// Count is how often it happens; 0: until removed.
	Count int `json:"count,omitempty"`
	// Probability of each call that matches; 0 means 1.
	Probability float64 `json:"probability,omitempty"`

	// Code and Status of ErrorBefore and ErrorAfter. Default: InternalError, and the status that
	// belongs to the code.
	Code   string `json:"code,omitempty"`
	Status int    `json:"status,omitempty"`
	// RetryAfter, with the errors, in seconds.
	RetryAfter float64 `json:"retryAfter,omitempty"`
	// Delay of Slow, SlowAfter and Late.
	Delay Duration `json:"delay,omitempty"`
	// Location of Redirect. Default: an address that nobody has.
	Location string `json:"location,omitempty"`

	// Happened counts how often it did.
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

// faults is the list of those that are set. The random source is its own, so that the draw depends
// on the seed and on the order of the calls alone.
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

// remove drops one, or all for "".
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

// match returns the fault that happens to this call, or nil.
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
