// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"fmt"
	"testing"
	"time"

	"github.com/drover-io/drover/cloud"
)

// waitingDeletions returns deletions of n machines that were read and wait to be sent, two a batch.
func waitingDeletions(n int, now time.Time) *deletions {
	r := newTestRecords(now)
	r.batch.Delete = 2
	d := &deletions{records: r}
	for i := range n {
		m := r.machine(fmt.Sprint("m", i))
		m.ref.OwnershipID, m.ref.ProviderID = "own", "p://"+m.ref.Token
		m.listed = []cloud.Resource{{Kind: cloud.KindInstance, ID: m.ref.Token, Token: m.ref.Token, OwnershipID: "own",
			ProviderID: m.ref.ProviderID, State: cloud.StateRunning}}
		d.delete(m.ref, now, now)
	}
	now = now.Add(time.Minute)
	tasks, _, _ := d.next(now)
	d.applyReads(tasks, answer{began: now}, now)
	return d
}

// TestSentBatch: what the cloud says of a batch of deletions concerns those that wait only if it
// says nothing of any in the batch.
func TestSentBatch(t *testing.T) {
	unavailable, conflict := cloud.Errorf(cloud.Unavailable, "no response"), cloud.Errorf(cloud.Conflict, "in use")
	for name, c := range map[string]struct {
		errs    []error
		forget  string
		changed int // controllers that are notified
		waiting int // for the next batch
	}{
		"accepted":             {errs: []error{nil, nil}, waiting: 1},
		"one is refused":       {errs: []error{nil, conflict}, changed: 1, waiting: 1},
		"one has no answer":    {errs: []error{unavailable, nil}, changed: 1, waiting: 1},
		"none has an answer":   {errs: []error{unavailable, unavailable}, changed: 3},
		"its turn comes later": {errs: []error{&cloud.Queued{After: time.Second}, &cloud.Queued{After: time.Second}}, waiting: 1},
		"one is forgotten":     {errs: []error{conflict, conflict}, forget: "m0", changed: 1, waiting: 1},
	} {
		t.Run(name, func(t *testing.T) {
			start := time.Now()
			d := waitingDeletions(3, start)
			now := start.Add(time.Minute)
			tasks, batch, _ := d.next(now)
			if len(tasks) != 0 || len(batch) != 2 {
				t.Fatalf("%d reads, a batch of %d", len(tasks), len(batch))
			}
			if c.forget != "" {
				d.forget(c.forget)
			}
			d.changes.notify = nil
			d.recordSent(batch, c.errs, now)
			if left := d.nextBatch(); len(d.changes.notify) != c.changed || len(left) != c.waiting {
				t.Errorf("%v are notified, %d wait", d.changes.notify, len(left))
			}
			for i, m := range batch {
				if accepted := len(m.accepted) > 0; accepted != (c.errs[i] == nil) {
					t.Errorf("%s is accepted: %t", m.ref.Token, accepted)
				}
			}
		})
	}
}

// TestAnswerOfFormerReference: a read that began before the provider ID was recorded did not look
// for the ID. It proves nothing, and is not continued.
func TestAnswerOfFormerReference(t *testing.T) {
	for name, end := range map[string]phase{"deleted": deleted, "in question": gone} {
		t.Run(name, func(t *testing.T) {
			start := time.Now()
			r := newTestRecords(start)
			r.findsByID = true
			s := &story{presence: &presence{r, newSchedule(r)}, now: start}
			d := &deletions{records: r}
			ref := cloud.Reference{Token: "m", OwnershipID: "own"}
			plan := func() (tasks []*task) {
				if end == deleted {
					tasks, _, _ = d.next(s.now)
				} else {
					tasks, _ = s.nextReads(s.now)
				}
				return tasks
			}
			apply := func(tasks []*task) {
				if end == deleted {
					d.applyReads(tasks, answer{began: s.now}, s.now)
				} else {
					s.applyReads(tasks, answer{began: s.now}, s.now)
				}
			}
			if end == deleted {
				d.delete(ref, s.now, s.now)
			} else {
				s.confirmNothingCreated(ref, s.now)
			}
			for range 3 {
				s.now = s.now.Add(time.Hour)
				tasks := plan()
				if len(tasks) != 1 {
					t.Fatalf("%d reads", len(tasks))
				}
				if m := r.machines["m"]; m.ref.ProviderID == "" {
					ref.ProviderID = "p://i"
					if end == deleted {
						d.delete(ref, s.now, s.now)
					} else {
						s.observe(ref, true, s.now)
						s.reassess(m, s.now, s.now)
					}
					if s.needsFind(tasks[0], nil) {
						t.Error("it is looked for by an ID that the read does not know")
					}
					if apply(tasks); m.phase == end {
						t.Fatal("the read of the former reference was believed")
					}
					continue
				}
				if !s.needsFind(tasks[0], nil) {
					t.Error("it is not looked for by its ID")
				}
				apply(tasks)
			}
			if m := r.machines["m"]; m.phase != end {
				t.Errorf("phase %d after two reads by ID", m.phase)
			}
		})
	}
}
