// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"fmt"
	"testing"
	"time"

	"github.com/drover-io/drover/cloud"
)

// TestPlan: plan returns the tasks that are due for the known machines, and when the next one is.
func TestPlan(t *testing.T) {
	const none = time.Duration(-1) // nothing until the loop is woken
	now := time.Now()
	at := now.Add
	deletes := func(begun bool, change func(*machine)) *machine {
		m := &machine{phase: deleting, requested: now, due: now, deletion: deletion{started: begun}}
		change(m)
		return m
	}
	many := func(n int, each func() *machine) (all []*machine) {
		for range n {
			all = append(all, each())
		}
		return all
	}
	nothing := func(*machine) {}
	instance := []cloud.Resource{{Kind: cloud.KindInstance, ID: "i"}}
	for name, c := range map[string]struct {
		machines  []*machine
		elsewhere bool // the credentials lead to another place
		rested    time.Duration
		tasks     int
		reads     int
		sent      int // deletions
		next      time.Duration
	}{
		"nobody": {next: none},
		"listed, watched, confirmed, and gone": {machines: []*machine{{}, {phase: tracked}, {phase: nothingCreated}, {phase: gone},
			{phase: deleted}}, next: none},
		"missing, and due":     {machines: []*machine{{phase: missing, due: now}}, tasks: 1, reads: 1, next: none},
		"missing, and not due": {machines: []*machine{{phase: missing, due: at(time.Second)}}, next: time.Second},
		"never seen, and an open create": {machines: []*machine{{phase: neverSeen, due: at(time.Minute)},
			{phase: confirming, due: at(2 * time.Second)}},
			next: 2 * time.Second},
		"one is due, and another later": {machines: []*machine{{phase: missing, due: now}, {phase: confirming, due: at(time.Minute)}}, tasks: 1,
			reads: 1, next: time.Minute},
		"elsewhere": {machines: []*machine{{phase: missing, due: now}, deletes(true, nothing)}, elsewhere: true, next: none},

		"a deletion is collected": {machines: []*machine{deletes(false, nothing)}, next: time.Second},
		"its window is over": {machines: []*machine{deletes(false, func(m *machine) { m.requested = at(-time.Second) })}, tasks: 1,
			reads: 1, next: none},
		"what is known is not read": {machines: []*machine{deletes(false,
			func(m *machine) { m.requested, m.listed = at(-time.Second), instance })}, tasks: 1, next: none},
		"asked for before a restart": {machines: []*machine{deletes(false, func(m *machine) { m.resumed = true })}, tasks: 1, reads: 1,
			next: none},
		"many are collected longer": {machines: many(manyDeletions, func() *machine { return deletes(false, nothing) }),
			next: 3500 * time.Millisecond},
		"the next read": {machines: []*machine{deletes(true, func(m *machine) { m.due = at(3 * time.Second) })},
			next: 3 * time.Second},
		"the cloud is left alone": {machines: []*machine{deletes(true, nothing)}, rested: 5 * time.Second, next: 5 * time.Second},
		"one that is nearly due goes along": {machines: []*machine{deletes(true, nothing),
			deletes(true, func(m *machine) { m.due = at(400 * time.Millisecond) })},
			tasks: 2, reads: 2, next: none},
		"one that has failed does not": {machines: []*machine{deletes(true, nothing),
			deletes(true, func(m *machine) { m.due, m.failures = at(400*time.Millisecond), 1 })},
			tasks: 1, reads: 1, next: none},
		"a new one waits for no read that is far": {machines: []*machine{deletes(false, nothing),
			deletes(true, func(m *machine) { m.due = at(time.Minute) })},
			next: time.Second},
		"a suspect and a deletion are read by a loop each": {machines: []*machine{{phase: missing, due: now}, deletes(true, nothing)}, tasks: 2,
			reads: 2, next: none},
		"a deletion that waits to be sent": {machines: []*machine{deletes(true, func(m *machine) { m.targets = instance })},
			sent: 1, next: none},
		"a read goes before it": {machines: []*machine{deletes(true, func(m *machine) { m.targets = instance }),
			deletes(true, nothing)}, tasks: 1, reads: 1, next: none},
		"many that wait to be sent": {machines: many(3,
			func() *machine { return deletes(true, func(m *machine) { m.targets = instance }) }), sent: 2, next: none},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newTestRecords(now)
			r.batch.Delete, r.probed = 2, !c.elsewhere
			p, d := presence{records: r}, deletions{records: r, noReadBefore: at(c.rested)}
			for i, m := range c.machines {
				m.ref.Token = fmt.Sprint("m", i)
				r.machines[m.ref.Token] = m
			}
			tasks, next := p.nextReads(now)
			more, batch, at := d.next(now)
			if tasks = append(tasks, more...); len(more) == 0 {
				next = earlier(next, at)
			}
			reads := 0
			for _, task := range tasks {
				if task.read {
					reads++
				}
			}
			wait := none
			if !next.IsZero() {
				wait = next.Sub(now)
			}
			if len(tasks) != c.tasks || reads != c.reads || len(batch) != c.sent || wait != c.next {
				t.Errorf("%d tasks, %d reads, %d deletions, the next in %s; want %d, %d, %d, %s", len(tasks), reads, len(batch), wait, c.tasks, c.reads,
					c.sent, c.next)
			}
		})
	}
}

// newTestRecords returns the empty records of an account whose place is proved.
func newTestRecords(now time.Time) *records {
	r := newRecords(func() float64 { return 0 }, now)
	r.facts = facts{times: TimesFor(DefaultCall), createHorizon: 2 * DefaultCall, idle: time.Minute, active: 5 * time.Second, probed: true}
	return r
}

// TestMissingBeginsAnew tests that live reads from before a machine went missing, such as those
// that confirmed that its create made nothing, do not count as proof of its absence.
func TestMissingBeginsAnew(t *testing.T) {
	now := time.Now()
	r := newTestRecords(now)
	m := r.machine("m")
	m.phase, m.ref.ProviderID, m.emptySince = tracked, "p://m", now.Add(-time.Hour)
	(&presence{r, newSchedule(r)}).reassess(m, now, now)
	if m.phase != missing || !m.emptySince.IsZero() {
		t.Errorf("phase %d, nothing found since %s", m.phase, m.emptySince)
	}
}
