// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"errors"
	"time"

	"github.com/drover-io/drover/cloud"
)

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
			t.end(result{unused: true})
		}
	}, nil
}

// takeTurn takes the turn of a machine's next step if it has come. The step ends with endTurn.
func (a *Account) takeTurn(token string) (*turn, error) {
	if err := a.place.check(); err != nil {
		return nil, err
	}
	if t := a.limiter.Load().create.claim(a.key, token); t != nil {
		return t, nil
	}
	t, err := a.limiter.Load().create.admit(a.key, token, false)
	if err != nil {
		return nil, err
	}
	a.meter.waited(cloud.ClassCreate, t.waited)
	return t, nil
}

// dropTurn gives up the machine's place.
func (a *Account) dropTurn(token string) { a.limiter.Load().create.drop(a.key, token) }

// stepFirst takes a step that goes before those of new machines.
func (a *Account) stepFirst(token string, step func() error) error {
	if err := a.place.check(); err != nil {
		return err
	}
	t, err := a.limiter.Load().create.admit(a.key, token, true)
	if err != nil {
		return err
	}
	asked := time.Now()
	err = step()
	a.endTurn(t, a.resultOf(&driverCall{}, asked, err))
	return err
}

// resultOf returns what became of a turn with this call of the driver.
func (a *Account) resultOf(s *driverCall, asked time.Time, err error) result {
	r := result{asked: asked, done: err == nil, answered: a.answered(asked, err), throttled: cloud.CodeOf(err) == cloud.Throttled}
	r.unused, r.sent, r.made = s.created()
	if queued, ok := errors.AsType[*cloud.Queued](err); ok {
		r.sentBack = min(queued.After, maxRetryAfter)
	}
	return r
}

// answered reports whether a call that has just ended was not given up for want of an answer.
func (a *Account) answered(asked time.Time, err error) bool {
	return err == nil || time.Since(asked) < a.times.Call
}

// endTurn ends a turn. Then the next machine has its turn.
func (a *Account) endTurn(t *turn, r result) {
	t.end(r)
	select {
	case a.turnEnded <- struct{}{}:
	default:
	}
}

// runTurns tells the machines whose turn comes earlier than they were told, until ctx ends.
func (s *accountState) runTurns(ctx context.Context) {
	for ctx.Err() == nil {
		a := s.current.Load()
		token, after := a.limiter.Load().create.next(a.key)
		if token != "" {
			s.inventory.onMachinesChange([]string{token})
			continue
		}
		var at time.Time
		if after > 0 {
			at = time.Now().Add(after)
		}
		sleepUntil(ctx, at, s.turnEnded)
	}
}

// lookup makes a call that holds a worker, and that no machine's token identifies.
func (a *Account) lookup(call func() error) error {
	if err := a.place.check(); err != nil {
		return err
	}
	end, err := a.limiter.Load().create.lookup(a.key)
	if err != nil {
		return err
	}
	asked := time.Now()
	err = call()
	end(a.answered(asked, err))
	return err
}

// Unfinished wraps the error of a create that ended after the cloud had accepted a part of it, so
// that something of the machine may exist, whatever the error's code says.
type Unfinished struct{ Err error }

func (u *Unfinished) Error() string { return u.Err.Error() }

// Unwrap returns the error of the create.
func (u *Unfinished) Unwrap() error { return u.Err }
