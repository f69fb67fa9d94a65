// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/drover-io/drover/cloud"
)

const (
	// maxEventAge is how long an event that no controller has recorded is kept. Older events are
	// acknowledged. It is far longer than any cloud's notice period, and keeps the queue short.
	maxEventAge = 10 * time.Minute
	// streamTimeout is how long a Watcher may report nothing before the account is listed again: a
	// bit more than twice the minute between two bookmarks of a Kubernetes watch.
	streamTimeout = 150 * time.Second
	// streamLag is how far a Watcher may be behind its cloud. Sightings that are no older than
	// this are kept although the Watcher did not report them.
	streamLag = 10 * time.Second
	// streamFailureThreshold is how many failures in a row are reported: a restart of an API server
	// causes one or two.
	streamFailureThreshold = 3
)

// source is a loop that receives what a cloud reports by itself, while anyone needs it.
type source struct {
	inventory *inventory
	wakeup    // the driver, or the need for the source, has changed
	// receive runs until it fails, or until nothing needs it any more, which is no error. It is
	// called only if isSupported and isNeeded return true.
	receive          func(context.Context, *Account) error
	isSupported      func(cloud.Driver) bool
	isNeeded         func() bool
	failureThreshold int // how many failures in a row are reported

	mu         sync.Mutex
	receivedBy *Account // the account that received last; nil after a failure
	err        error    // why nothing is received
}

// run receives until ctx ends.
func (s *source) run(ctx context.Context) {
	failures := 0
	for ctx.Err() == nil {
		a, began := s.inventory.account(), time.Now()
		if !s.isSupported(a.driver) || !s.isNeeded() || !a.Probed() {
			failures = 0
			s.setState(s.receivedBy, nil)
			sleepUntil(ctx, time.Time{}, s.wakeup)
			continue
		}
		err := s.receive(ctx, a)
		if ctx.Err() != nil {
			return
		}
		if err == nil || time.Since(began) > streamTimeout {
			failures = 0
		}
		if err == nil {
			continue
		}
		failures++
		if failures >= s.failureThreshold || cloud.CodeOf(err) == cloud.Unauthorized {
			s.setState(nil, err)
		}
		sleepUntil(ctx, time.Now().Add(max(retryAfter(err), backoff(failures, s.inventory.random()))), nil)
	}
}

// setState records which account has received, or why none can, and reports a change.
func (s *source) setState(by *Account, err error) {
	s.mu.Lock()
	changed := cloud.CodeOf(err) != cloud.CodeOf(s.err) || by != nil && by != s.receivedBy
	s.receivedBy, s.err = by, err
	s.mu.Unlock()
	if changed {
		s.inventory.onHealthChange()
	}
}

// state reports whether an account has received, or why it cannot.
func (s *source) state(a *Account) (received bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.receivedBy == a, s.err
}

// newEventLoop makes the source for an EventSource.
func newEventLoop(v *inventory) *source {
	s := &source{inventory: v, wakeup: newWakeup(), failureThreshold: 1}
	s.isSupported = func(d cloud.Driver) bool { _, able := d.(cloud.EventSource); return able }
	s.isNeeded = v.isObserved
	s.receive = func(ctx context.Context, a *Account) error {
		err := v.receiveEvents(ctx, a, a.driver.(cloud.EventSource))
		if err == nil {
			s.setState(a, nil)
		}
		return err
	}
	return s
}

// receiveEvents makes one call of Receive, and acknowledges the events that are done.
func (v *inventory) receiveEvents(ctx context.Context, a *Account, driver cloud.EventSource) error {
	began := time.Now()
	var events []cloud.Event
	err := a.call(ctx, "Receive", a.times.Call, &driverCall{}, func(ctx context.Context) (err error) {
		events, err = driver.Receive(ctx)
		return err
	})
	if err != nil {
		return err
	}
	if len(events) == 0 {
		sleepUntil(ctx, began.Add(minRepeat), nil)
		return nil
	}
	var done []cloud.Event
	v.learn(func(now time.Time) { done = v.records.applyEvents(events, now) })
	if len(done) == 0 {
		return nil
	}
	return a.call(ctx, "Ack", a.times.Call, &driverCall{}, func(ctx context.Context) error { return driver.Ack(ctx, done) })
}

// applyEvents passes events to their machines, and returns those to acknowledge. An event that a
// controller has not recorded yet is not acknowledged, so it survives a restart.
func (r *records) applyEvents(events []cloud.Event, now time.Time) (done []cloud.Event) {
	of := map[string]*machine{}
	for _, m := range r.machines {
		if m.phase != untracked && m.last != nil {
			of[m.last.ID] = m
		}
	}
	for _, e := range events {
		if e.InstanceID == "" || now.Sub(e.At) >= maxEventAge || r.applyEvent(of[e.InstanceID], e, now) {
			done = append(done, e)
		}
	}
	return done
}

// applyEvent records an event of a machine, and reports whether it can be acknowledged.
func (r *records) applyEvent(m *machine, e cloud.Event, now time.Time) (done bool) {
	switch {
	case m == nil:
		return e.Reclaim == "" // a Reclaim may concern a machine that is not known yet
	case !m.isObserved() || m.phase == gone:
		return true
	case e.Changed:
		if m.ref.ProviderID != "" && !m.isMissing() {
			r.markMissing(m, now) // as after a listing without it
		}
		return true
	}
	e.Notice = cloud.Clip(strings.ToValidUTF8(e.Notice, ""), maxNotice)
	same := m.event != nil && m.event.Notice == e.Notice && m.event.Reclaim == e.Reclaim
	if m.event != nil && isWorse(m.event.Reclaim, e.Reclaim) || same && m.eventRecorded {
		return true
	}
	if !same {
		m.event, m.eventRecorded = &e, false
	}
	m.reported = r.refresh(m, now)
	r.changes.notify = append(r.changes.notify, m.ref.Token)
	return false
}

// isWorse reports whether a machine with a is closer to its end than one with b.
func isWorse(a, b cloud.Reclaim) bool {
	return a != b && (a == cloud.ReclaimCertain || b == "")
}

// ackEvent notes that the controller has recorded the event that seen shows, unless a newer
// one has come.
func (r *records) ackEvent(token string, seen *cloud.Resource) {
	m := r.machines[token]
	if m == nil {
		return
	}
	if i := m.state().Instance; i != nil && i.Notice == seen.Notice && i.Reclaim == seen.Reclaim {
		m.eventRecorded = true
	}
}

// newWatchLoop makes the source for a Watcher.
func newWatchLoop(v *inventory) *source {
	s := &source{inventory: v, wakeup: newWakeup(), failureThreshold: streamFailureThreshold}
	s.isSupported = func(d cloud.Driver) bool { _, able := d.(cloud.Watcher); return able }
	s.isNeeded = v.isWanted
	s.receive = func(ctx context.Context, a *Account) error {
		err := s.watch(ctx, a, a.driver.(cloud.Watcher))
		if ctx.Err() == nil {
			v.locked(func(time.Time) { v.schedule.endWatch(err != nil) })
		}
		return err
	}
	return s
}

// watch receives changes until the driver fails, or until nothing needs them any more, which is no
// error.
func (s *source) watch(ctx context.Context, a *Account, driver cloud.Watcher) error {
	ctx, cut := context.WithCancel(ctx)
	defer cut()
	var need cloud.Group
	need.Go(func() error {
		defer cut()
		for ctx.Err() == nil {
			if s.inventory.account() != a || !s.isNeeded() {
				cut()
			}
			sleepUntil(ctx, time.Time{}, s.wakeup)
		}
		return nil
	})
	call := &driverCall{}
	defer call.release() // the turn of its last answer
	var full error       // no memory is left for what the Watcher reports
	err := typed("Watch", a.meter.recovered("Watch", func() error {
		return driver.Watch(withDriverCall(ctx, call), func(u cloud.Update) {
			if ctx.Err() != nil {
				return
			}
			u.Resources = sanitizeAll(u.Resources)
			if full = s.inventory.hasRoom(u); full != nil {
				cut()
				return
			}
			if s.inventory.applyUpdate(u); !u.All {
				s.setState(a, nil)
			}
		})
	}))
	ended := ctx.Err() != nil && full == nil
	if full != nil {
		err = full
	}
	cut()
	if lost := a.meter.recovered("watch", need.Wait); lost != nil {
		return lost
	}
	if ended {
		return nil
	}
	if err == nil {
		err = cloud.Errorf(cloud.Unknown, "Watch: the driver returned without an error before its context ended")
	}
	a.meter.failed("Watch", cloud.CodeOf(err))
	return err
}
