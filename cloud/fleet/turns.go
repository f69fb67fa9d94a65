// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/drover-io/drover/cloud"
)

// turn is the permission for one step. It ends with the step. The lock of its admission guards it.
type turn struct {
	from           *admission
	lane           *lane
	token          string
	began          time.Time
	waited         time.Duration
	fresh          bool // it took a token of the bucket, and the slots of a create
	unused         bool // no call has used that token yet
	sent           bool // a create
	wroteSomething bool // a create was accepted, or had no answer
}

// pay reports whether the turn's token pays for a call, which it does for one create.
func (t *turn) pay(class cloud.Class) bool {
	if t == nil || class != cloud.ClassCreate {
		return false
	}
	t.from.mu.Lock()
	defer t.from.mu.Unlock()
	paid := t.unused
	t.unused = false
	return paid
}

// recordCreate records the answer to a create.
func (t *turn) recordCreate(accepted bool) {
	if t == nil {
		return
	}
	t.from.mu.Lock()
	defer t.from.mu.Unlock()
	t.sent, t.wroteSomething = true, t.wroteSomething || accepted
}

// mayHaveMade reports whether a create of the turn may have made something.
func (t *turn) mayHaveMade() bool {
	t.from.mu.Lock()
	defer t.from.mu.Unlock()
	return t.wroteSomething
}

// result is what became of a turn.
type result struct {
	asked    time.Time // when the driver was called; zero: it was not
	answered bool      // the cloud was not silent
	err      error     // of the driver
	running  bool      // the machine is made, and the cloud still works on it
}

// end ends the turn.
func (t *turn) end(r result) {
	a, l := t.from, t.lane
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	a.advance(l, now)
	l.steps.end(t.began)
	a.workers.giveBack()
	if !t.fresh {
		l.looking--
	} else if t.unused {
		a.bucket.giveBack()
		l.own.giveBack()
	}
	queued, sentBack := errors.AsType[*cloud.Queued](r.err)
	switch sentBack = sentBack && t.unused; {
	case sentBack:
		l.sentBack, l.hold = true, max(min(queued.After, maxRetryAfter), minWait)
		l.heldUntil = now.Add(l.hold)
		t.keepPlace(l.heldUntil)
	case r.asked.IsZero() && t.fresh:
		t.keepPlace(now.Add(-turnGrace)) // it holds up nobody
	case t.fresh && l.sentBack:
		l.sentBack, l.heldUntil = false, now
	}
	if !r.asked.IsZero() && !sentBack {
		l.steps.record(r.asked, now, r.answered)
	}
	t.recordProgress(r, sentBack)
	a.wakeAll()
}

// recordProgress records how far the machine has come. It needs the lock.
func (t *turn) recordProgress(r result, sentBack bool) {
	a, l := t.from, t.lane
	since, begun := l.made[t.token]
	if !begun {
		since = t.began
	}
	if t.fresh && (l.left || begun || r.asked.IsZero() || sentBack) { // begun: by another turn, which keeps its slots
		a.giveBackSlots(l, t.began)
	}
	switch {
	case l.left || r.asked.IsZero() || sentBack || t.fresh && begun && r.err != nil:
	case r.err == nil && r.running:
		delete(l.made, t.token)
		a.giveBackSlots(l, l.running[t.token])
		l.running[t.token] = since
	case r.err != nil && t.wroteSomething:
		l.made[t.token] = since
	case r.err == nil || t.fresh || isRefusal(r.err) || t.sent && cloud.CodeOf(r.err) != cloud.Throttled: // what is refused goes before nobody
		delete(l.made, t.token)
		a.giveBackSlots(l, since)
	}
}

// isRefusal reports whether the cloud, or Drover itself, refuses the machine, so that no create of
// it runs on.
func isRefusal(err error) bool {
	switch cloud.CodeOf(err) {
	case cloud.InvalidSpec, cloud.NotFound, cloud.NoCapacity, cloud.QuotaExceeded:
		return true
	}
	return false
}

// keepPlace puts the machine back to its place in the lane. It needs the lock.
func (t *turn) keepPlace(due time.Time) {
	back := &waiter{token: t.token, arrived: t.began.Add(-t.waited), due: due}
	queue := without(t.lane.fresh, t.token)
	i := slices.IndexFunc(queue, func(p *waiter) bool { return p.arrived.After(back.arrived) })
	if i < 0 {
		i = len(queue)
	}
	t.lane.fresh = slices.Insert(queue, i, back)
}

// hold keeps the turn until claim or release.
func (t *turn) hold() {
	t.from.mu.Lock()
	defer t.from.mu.Unlock()
	t.lane.held[t.token] = t
}

// release reports whether the turn was still held. The caller ends it then.
func (t *turn) release() bool {
	t.from.mu.Lock()
	defer t.from.mu.Unlock()
	held := t.lane.held[t.token] == t
	if held {
		delete(t.lane.held, t.token)
	}
	return held
}

// Admit asks for the turn of a machine's next step, before anything is read for it. If it returns
// no error, Ensure may be called now, and the caller calls release at the end. It returns *Queued
// if the turn has not come: its place is kept for the token, and OnMachines reports if it comes
// earlier than that. It returns Unavailable as Ensure does. It never calls the cloud.
func (a *Account) Admit(ref cloud.Reference) (release func(), err error) {
	nothing := func() {}
	if err := checkToken(ref.Token); err != nil {
		return nothing, nil // Ensure refuses it
	}
	req := cloud.Request{Token: ref.Token, OwnershipID: ref.OwnershipID}
	if found, err := a.inventory.findExisting(req); found != nil || err != nil {
		return nothing, nil // Ensure calls nothing
	}
	t, err := a.takeTurn(ref.Token)
	if err != nil {
		return nothing, err
	}
	t.hold()
	return func() {
		if t.release() { // Ensure did not take it; others come when they were told
			t.end(result{})
		}
	}, nil
}

// takeTurn takes the turn of a machine's next step if it has come.
func (a *Account) takeTurn(token string) (*turn, error) {
	if err := a.place.check(); err != nil {
		return nil, err
	}
	create := a.limiter.Load().create
	if t := create.claim(a.key, token); t != nil {
		return t, nil
	}
	t, err := create.admit(a.key, token, false)
	if err != nil {
		return nil, err
	}
	a.meter.waited(cloud.ClassCreate, t.waited)
	return t, nil
}

// dropTurn gives up the machine's place.
func (s *accountState) dropTurn(token string) {
	a := s.current.Load()
	a.limiter.Load().create.drop(a.key, token)
}

// admitted makes a call that holds a worker: a step that goes before those of new machines, or, if
// no token identifies what it is for, a lookup.
func (a *Account) admitted(token string, call func() error) error {
	if err := a.place.check(); err != nil {
		return err
	}
	var end func(result)
	var err error
	if create := a.limiter.Load().create; token == "" {
		end, err = create.lookup(a.key)
	} else if t, refused := create.admit(a.key, token, true); refused != nil {
		err = refused
	} else {
		end = t.end
	}
	if err != nil {
		return err
	}
	asked := time.Now()
	err = call()
	end(result{asked: asked, answered: a.times.answered(asked, err), err: err})
	return err
}

// answered reports whether a call that has just ended was not given up for want of an answer.
func (t Times) answered(asked time.Time, err error) bool {
	return err == nil || time.Since(asked) < t.Call
}

// wakeTurns makes runTurns look again. An account that is still being made has none.
func (s *accountState) wakeTurns() {
	if s != nil {
		s.turns.wake()
	}
}

// runTurns tells the machines whose turn comes earlier than they were told, until ctx ends.
func (s *accountState) runTurns(ctx context.Context) {
	for ctx.Err() == nil {
		s.endCreates()
		a := s.current.Load()
		create := a.limiter.Load().create
		token, after := create.next(a.key)
		for ; token != ""; token, after = create.next(a.key) {
			s.inventory.onMachinesChange([]string{token})
		}
		var at time.Time
		if after > 0 {
			at = time.Now().Add(after)
		}
		sleepUntil(ctx, at, s.turns)
	}
}

// Unfinished wraps the error of a create that ended after the cloud had accepted a part of it, so
// that something of the machine may exist, whatever the error's code says.
type Unfinished struct{ Err error }

func (u *Unfinished) Error() string { return u.Err.Error() }

// Unwrap returns the error of the create.
func (u *Unfinished) Unwrap() error { return u.Err }
