// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"testing"
	"time"

	"github.com/drover-io/drover/cloud"
)

// story is what happens to the records of one machine.
type story struct {
	*presence
	now      time.Time
	notified int
}

// counts records the notifications that a step causes.
func (s *story) counts(step func()) {
	s.changes.notify = nil
	step()
	s.notified += len(s.changes.notify)
}

var storyRef = cloud.Reference{Token: "m", OwnershipID: "own", ProviderID: "p://i"}

// storyInstance returns the recorded instance in a state.
func storyInstance(state cloud.State) []cloud.Resource {
	return []cloud.Resource{{Kind: cloud.KindInstance, ID: "i", Token: "m", OwnershipID: "own", ProviderID: "p://i", State: state}}
}

// lists applies a complete listing.
func lists(resources ...cloud.Resource) func(*story) {
	return func(s *story) {
		s.counts(func() { s.compare(s.now, s.replaceListing(s.now, byToken(resources)), s.now) })
	}
}

// looks does a live read, which must be due for the machine or for nothing.
func looks(due bool, found []cloud.Resource, err error) func(*story) {
	return func(s *story) {
		tasks, _ := s.nextReads(s.now)
		if (len(tasks) > 0) != due {
			panic("a read is due, or is not")
		}
		failed := map[string]error{}
		if err != nil {
			failed["m"] = err
		}
		s.counts(func() { s.applyReads(tasks, answer{s.now, byToken(found), failed}, s.now) })
	}
}

func waits(d time.Duration) func(*story) { return func(s *story) { s.now = s.now.Add(d) } }

func observes(s *story) { s.observe(storyRef, true, s.now) }

// TestPresence: what becomes of a machine follows from what listings and live reads show, and from
// when.
func TestPresence(t *testing.T) {
	const lag = 10 * time.Second
	running, stopped := storyInstance(cloud.StateRunning), storyInstance(cloud.StateTerminated)
	missed := []func(*story){observes, lists(running...), waits(time.Minute), lists()}
	unavailable := cloud.Errorf(cloud.Unavailable, "no")
	for name, c := range map[string]struct {
		steps    []func(*story)
		finds    bool
		phase    phase
		state    cloud.State // "": no instance is shown
		gone     bool
		err      cloud.Code
		notified int
	}{
		"listed": {steps: []func(*story){observes, lists(running...)}, phase: tracked, state: cloud.StateRunning,
			notified: 1},
		"listed twice": {steps: []func(*story){observes, lists(running...), lists(running...)}, phase: tracked,
			state: cloud.StateRunning, notified: 1},
		"not listed once": {steps: missed, phase: missing, state: cloud.StateRunning, notified: 1},
		"listed again": {steps: append(missed, lists(running...), looks(false, nil, nil)), phase: tracked,
			state: cloud.StateRunning, notified: 1},
		"found by a read": {steps: append(missed, looks(true, running, nil)), phase: tracked, state: cloud.StateRunning,
			notified: 1},
		"its end is read": {steps: append(missed, looks(true, stopped, nil)), phase: gone, state: cloud.StateTerminated,
			gone: true, notified: 2},
		"its end is listed, and read": {steps: []func(*story){observes, lists(stopped...), looks(true, stopped, nil)}, phase: gone,
			state: cloud.StateTerminated, gone: true, notified: 2},
		"an old listing does not undo its end": {steps: append(missed, looks(true, stopped, nil), waits(time.Minute), lists(running...)),
			phase: gone, gone: true, notified: 2},
		"not found once": {steps: append(missed, looks(true, nil, nil)), phase: missing, state: cloud.StateRunning,
			notified: 1},
		"not found twice, too soon": {steps: append(missed, looks(true, nil, nil), waits(lag-1), looks(false, nil, nil)),
			phase: missing, state: cloud.StateRunning, notified: 1},
		"not found twice": {steps: append(missed, looks(true, nil, nil), waits(lag), looks(true, nil, nil)), phase: gone,
			gone: true, notified: 2},
		"a listing undoes that": {steps: append(missed, looks(true, nil, nil), waits(lag), looks(true, nil, nil),
			lists(running...)), phase: tracked, state: cloud.StateRunning, notified: 3},
		"a read that fails in between": {steps: append(missed, looks(true, nil, nil), waits(lag), looks(true, nil, unavailable)),
			phase: missing, state: cloud.StateRunning, notified: 1},
		"a Finder says once that there is none": {finds: true, steps: append(missed, looks(true, nil, nil)), phase: missing,
			state: cloud.StateRunning, notified: 1},
		"and twice": {finds: true, steps: append(missed, looks(true, nil, nil), waits(lag), looks(true, nil, nil)),
			phase: gone, gone: true, notified: 2},
		"it has lost its tags": {finds: true, steps: append(missed, looks(true, nil, cloud.Errorf(cloud.Conflict, "no tags"))),
			phase: missing, state: cloud.StateRunning, err: cloud.Conflict, notified: 2},
		"it has them again": {finds: true, steps: append(missed, looks(true, nil, cloud.Errorf(cloud.Conflict, "no tags")), lists(running...)),
			phase: tracked, state: cloud.StateRunning, notified: 3},
		"another cluster's has its token": {steps: []func(*story){observes,
			lists(cloud.Resource{Kind: cloud.KindInstance, ID: "i", Token: "m", OwnershipID: "other", ProviderID: "p://i",
				State: cloud.StateRunning})},
			phase: missing},
	} {
		t.Run(name, func(t *testing.T) {
			start := time.Now()
			r := newTestRecords(start)
			r.traits.ReadLag, r.findsByID = lag, c.finds
			s := &story{presence: &presence{r, newSchedule(r)}, now: start}
			for _, step := range c.steps {
				step(s)
			}
			o, shown := r.machines["m"].state(), cloud.State("")
			if o.Instance != nil {
				shown = o.Instance.State
			}
			if m := r.machines["m"]; m.phase != c.phase || shown != c.state || o.Gone != c.gone || cloud.CodeOf(o.Err) != c.err ||
				s.notified != c.notified {
				t.Errorf("phase %d, state %q, gone %t, error %v, notified %d times", m.phase, shown, o.Gone, o.Err, s.notified)
			}
		})
	}
}

// TestNothingCreated: a create without an answer is known to have made nothing only when it can't
// take effect any more.
func TestNothingCreated(t *testing.T) {
	start := time.Now()
	r := newTestRecords(start)
	r.traits.ReadLag = 10 * time.Second
	s := &story{presence: &presence{r, newSchedule(r)}, now: start}
	ref := cloud.Reference{Token: "m", OwnershipID: "own"}
	confirmed := func() bool { return s.confirmNothingCreated(ref, s.now) }
	if confirmed() {
		t.Fatal("confirmed without a read")
	}
	for _, step := range []func(*story){looks(false, nil, nil), waits(r.createHorizon), looks(true, nil, nil), looks(false, nil, nil)} {
		if step(s); confirmed() {
			t.Fatal("confirmed by a read that may miss what was made last")
		}
	}
	waits(10 * time.Second)(s)
	if looks(true, nil, nil)(s); !confirmed() || s.notified != 1 {
		t.Errorf("phase %d, notified %d times", r.machines["m"].phase, s.notified)
	}
	if _, err := r.findExisting(cloud.Request{Token: "m", OwnershipID: "own"}, s.now); err != nil || r.machines["m"].phase != tracked {
		t.Errorf("the create that follows: phase %d, %v", r.machines["m"].phase, err)
	}
	confirmed()
	waits(r.createHorizon)(s)
	looks(true, storyInstance(cloud.StatePending), nil)(s)
	if confirmed() || r.machines["m"].phase != tracked {
		t.Error("what was made is not seen")
	}
}
