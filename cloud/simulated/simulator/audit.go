// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"cmp"
	"slices"
	"sync"
)

// The outcomes of a call in the audit log, besides the error codes of package wire.
const (
	OutcomeOK = "OK"
	// OutcomeLate: the call took effect after the client's connection was cut.
	OutcomeLate = "Late"
)

// AuditRow counts calls of one kind. A fault that hides the outcome from the client appears as
// "OK/CutAfter" and so on.
type AuditRow struct {
	Operation string `json:"operation"`
	Account   string `json:"account"`
	Outcome   string `json:"outcome"`
	Calls     int    `json:"calls"`
}

// MachineRow counts the calls that named one machine. A batch counts once for each of its machines,
// a listing for none.
type MachineRow struct {
	// Token is the machine's token, from its tag.
	Token     string `json:"token"`
	Operation string `json:"operation"`
	Outcome   string `json:"outcome"`
	Calls     int    `json:"calls"`
}

// Audit holds the counts since the last reset.
type Audit struct {
	Rows     []AuditRow   `json:"rows"`
	Machines []MachineRow `json:"machines"`
}

// Calls returns the number of calls of an operation ("": all) with one of the outcomes (none: all).
func (a Audit) Calls(operation string, outcomes ...string) int {
	n := 0
	for _, r := range a.Rows {
		if (operation == "" || r.Operation == operation) && (len(outcomes) == 0 || slices.Contains(outcomes, r.Outcome)) {
			n += r.Calls
		}
	}
	return n
}

// Machine returns the number of calls of an operation ("": all) that named one machine.
func (a Audit) Machine(token, operation string) int {
	n := 0
	for _, r := range a.Machines {
		if r.Token == token && (operation == "" || r.Operation == operation) {
			n += r.Calls
		}
	}
	return n
}

type auditLog struct {
	mu       sync.Mutex
	rows     map[AuditRow]int
	machines map[MachineRow]int
}

func newAuditLog() *auditLog {
	l := &auditLog{}
	l.reset()
	return l
}

func (l *auditLog) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rows, l.machines = map[AuditRow]int{}, map[MachineRow]int{}
}

func (l *auditLog) count(op, account, outcome string, tokens []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rows[AuditRow{Operation: op, Account: account, Outcome: outcome}]++
	for _, t := range tokens {
		l.machines[MachineRow{Token: t, Operation: op, Outcome: outcome}]++
	}
}

func (l *auditLog) dump() Audit {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := Audit{Rows: []AuditRow{}, Machines: []MachineRow{}}
	for r, n := range l.rows {
		r.Calls = n
		a.Rows = append(a.Rows, r)
	}
	for r, n := range l.machines {
		r.Calls = n
		a.Machines = append(a.Machines, r)
	}
	slices.SortFunc(a.Rows, func(x, y AuditRow) int {
		return cmp.Or(cmp.Compare(x.Operation, y.Operation), cmp.Compare(x.Account, y.Account), cmp.Compare(x.Outcome, y.Outcome))
	})
	slices.SortFunc(a.Machines, func(x, y MachineRow) int {
		return cmp.Or(cmp.Compare(x.Token, y.Token), cmp.Compare(x.Operation, y.Operation), cmp.Compare(x.Outcome, y.Outcome))
	})
	return a
}
