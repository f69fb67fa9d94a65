// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/drover-io/drover/cloud"
)

const (
	// newsKept is how long news that no controller has recorded is kept. Older news is dismissed.
	// It is far longer than any cloud's notice of an instance's end, and keeps the queue short.
	newsKept = 10 * time.Minute
	// newsRest is the shortest time between two calls of Hear if the first brought nothing.
	newsRest = time.Second
	// streamSilence is how long a Follower may be silent before the account is listed again: a bit
	// more than twice the minute between two bookmarks of a Kubernetes watch.
	streamSilence = 150 * time.Second
	// streamLag is how far a Follower may be behind its cloud. Sightings that are no older than
	// this are kept although the Follower did not report them.
	streamLag = 10 * time.Second
	// streamTrials failures in a row are reported: a restart of an API server causes one or two.
	streamTrials = 3
)

// source is a loop that receives what a cloud reports by itself, while anyone needs it.
type source struct {
	inventory *inventory
	wakeup    // the driver, or the need for the source, has changed
	// ask receives until it fails, or until nothing needs it any more, which is no error. It is
	// called only where able and wanted return true.
	ask    func(context.Context, *Account) error
	able   func(cloud.Driver) bool
	wanted func() bool
	trials int // how many failures in a row are reported

	mu    sync.Mutex
	heard *Account // that received last; nil after a failure
	err   error    // why nothing is received
}

// run receives until ctx ends.
func (s *source) run(ctx context.Context) {
	failures := 0
	for ctx.Err() == nil {
		a, began := s.inventory.account(), time.Now()
		if !s.able(a.driver) || !s.wanted() || a.place.admits() != nil {
			failures = 0
			s.tell(s.heard, nil)
			sleepUntil(ctx, time.Time{}, s.wakeup)
			continue
		}
		err := s.ask(ctx, a)
		if ctx.Err() != nil {
			return
		}
		if err == nil || time.Since(began) > streamSilence {
			failures = 0
		}
		if err == nil {
			continue
		}
		failures++
		if failures >= s.trials || cloud.CodeOf(err) == cloud.Unauthorized {
			s.tell(nil, err)
		}
		sleepUntil(ctx, time.Now().Add(max(retryAfter(err), backoff(failures, s.inventory.random()))), nil)
	}
}

// tell records which account has received, or why none can, and reports a change.
func (s *source) tell(heard *Account, err error) {
	s.mu.Lock()
	flip := cloud.CodeOf(err) != cloud.CodeOf(s.err) || heard != nil && heard != s.heard
	s.heard, s.err = heard, err
	s.mu.Unlock()
	if flip {
		s.inventory.flipped()
	}
}

// state reports whether an account has received, or why it can't.
func (s *source) state(a *Account) (heard bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.heard == a, s.err
}

// newNews makes the source for a Herald.
func newNews(v *inventory) *source {
	s := &source{inventory: v, wakeup: newWakeup(), trials: 1}
	s.able = func(d cloud.Driver) bool { _, able := d.(cloud.Herald); return able }
	s.wanted = func() bool {
		v.mu.Lock()
		defer v.mu.Unlock()
		return v.isObserved()
	}
	s.ask = func(ctx context.Context, a *Account) error {
		err := v.hear(ctx, a, a.driver.(cloud.Herald))
		if err == nil {
			s.tell(a, nil)
		}
		return err
	}
	return s
}

// hear receives news once, and dismisses what is done.
func (v *inventory) hear(ctx context.Context, a *Account, driver cloud.Herald) error {
	began := time.Now()
	var news []cloud.News
	err := a.step(ctx, "Hear", a.times.Call, &step{}, func(ctx context.Context) (err error) {
		news, err = driver.Hear(ctx)
		return err
	})
	if err != nil {
		return err
	}
	if len(news) == 0 {
		sleepUntil(ctx, began.Add(newsRest), nil)
		return nil
	}
	settled := v.notify(news)
	if len(settled) == 0 {
		return nil
	}
	return a.step(ctx, "Dismiss", a.times.Call, &step{}, func(ctx context.Context) error { return driver.Dismiss(ctx, settled) })
}

// notify passes news to their machines, and returns those that can be dismissed. News that a
// controller has not recorded yet is not dismissed, so it survives a restart. It takes the lock.
func (v *inventory) notify(news []cloud.News) (settled []cloud.News) {
	v.mu.Lock()
	of := map[string]*machine{}
	for _, m := range v.machines {
		if m.phase != unwatched && m.last != nil {
			of[m.last.ID] = m
		}
	}
	var changed []string
	for _, n := range news {
		m := of[n.InstanceID]
		told, done := false, true
		if n.InstanceID != "" && time.Since(n.At) < newsKept {
			told, done = v.put(m, n)
		}
		if told {
			changed = append(changed, m.ref.Token)
		}
		if done {
			settled = append(settled, n)
		}
	}
	v.mu.Unlock()
	v.changed(changed)
	return settled
}

// put records news of a machine. told means that its controller must reconcile it; done means that
// the news can be dismissed.
func (v *inventory) put(m *machine, n cloud.News) (told, done bool) {
	switch {
	case m == nil:
		return false, !n.Ending // an Ending may concern a machine that is not known yet
	case !m.isObserved() || m.isGone():
		return false, true
	case n.Changed:
		if m.ref.ProviderID != "" && !m.isMissing() {
			v.miss(m) // as after a listing without it
		}
		return false, true
	}
	n.Notice = cloud.Clip(strings.ToValidUTF8(n.Notice, ""), maxNotice)
	same := m.news != nil && m.news.Notice == n.Notice && m.news.Ending == n.Ending && m.news.Imminent == n.Imminent
	if m.news != nil && (m.news.Ending && !n.Ending || m.news.Imminent && !n.Imminent) {
		return false, true // something worse is known
	}
	if same && m.recorded {
		return false, true
	}
	if !same {
		m.news, m.recorded = &n, false
	}
	m.reported = m.look()
	return true, false
}

// record notes that the controller has recorded the news in seen, unless newer ones have come. It
// takes the lock.
func (v *inventory) record(token string, seen *cloud.Resource) {
	v.mu.Lock()
	defer v.mu.Unlock()
	m := v.machines[token]
	if m == nil {
		return
	}
	if now := m.look().Instance; now != nil && now.Notice == seen.Notice && now.Ending == seen.Ending && now.Imminent == seen.Imminent {
		m.recorded = true
	}
}

// announce adds the news of an instance to what a listing says.
func (m *machine) announce(r *cloud.Resource) {
	if m.news == nil || m.news.InstanceID != r.ID || (r.State != cloud.StateRunning && r.State != cloud.StatePending) {
		return
	}
	r.Ending = m.news.Ending && r.Interruptible
	r.Imminent = m.news.Imminent && r.Ending
	if r.Notice == "" {
		r.Notice = m.news.Notice
	} else if m.news.Notice != "" {
		r.Notice = cloud.Clip(m.news.Notice+"; "+r.Notice, maxNotice)
	}
}

// newChanges makes the source for a Follower.
func newChanges(v *inventory) *source {
	s := &source{inventory: v, wakeup: newWakeup(), trials: streamTrials}
	s.able = func(d cloud.Driver) bool { _, able := d.(cloud.Follower); return able }
	s.wanted = func() bool {
		v.mu.Lock()
		defer v.mu.Unlock()
		return v.isWanted()
	}
	s.ask = func(ctx context.Context, a *Account) error {
		err := s.follow(ctx, a, a.driver.(cloud.Follower))
		if ctx.Err() == nil {
			v.unfollowed(err != nil)
		}
		return err
	}
	return s
}

// follow receives changes until the driver fails, or until nothing needs them any more, which is no
// error.
func (s *source) follow(ctx context.Context, a *Account, driver cloud.Follower) error {
	ctx, cut := context.WithCancel(ctx)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cut()
	watching.Go(func() {
		for ctx.Err() == nil {
			if s.inventory.account() != a || !s.wanted() {
				cut()
			}
			sleepUntil(ctx, time.Time{}, s.wakeup)
		}
	})
	err := typed("Follow", driver.Follow(withStep(ctx, &step{}), func(c cloud.Change) {
		if ctx.Err() != nil {
			return
		}
		c.Resources = tameAll(c.Resources)
		if s.inventory.follow(c); !c.All {
			s.tell(a, nil)
		}
	}))
	if ctx.Err() != nil {
		return nil
	}
	if err == nil {
		err = cloud.Errorf(cloud.Unknown, "Follow: the driver has stopped without a reason")
	}
	a.meter.failed("Follow", cloud.CodeOf(err))
	return err
}

// isFollowed reports whether a Follower makes listings unnecessary.
func (v *inventory) isFollowed(now time.Time) bool {
	p := &v.pace
	if _, able := v.account().driver.(cloud.Follower); !able || p.unheard || !v.isWanted() {
		return false
	}
	if p.asked.IsZero() {
		p.asked = now
	}
	return now.Before(later(p.asked, p.heard).Add(streamSilence))
}

// isAwaited reports whether a Follower is about to report everything.
func (v *inventory) isAwaited(now time.Time) bool {
	return v.isFollowed(now) && v.pace.complete.Before(v.pace.asked)
}

// unfollowed records that the Follower has ended, because it failed or because nothing needs it. It
// takes the lock.
func (v *inventory) unfollowed(failed bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.pace.asked, v.pace.unheard = time.Time{}, failed
	v.lists.wake()
}

// follow applies a Change. It takes the lock.
func (v *inventory) follow(c cloud.Change) {
	v.mu.Lock()
	p := &v.pace
	p.heard, p.unheard = time.Now(), false
	var changed []string
	switch {
	case c.All:
		if p.asked.IsZero() || c.At.Before(p.asked) {
			p.asked = c.At
		}
		p.began, p.err, p.retryAt, p.failures = c.At, nil, time.Time{}, 0
	case c.Token != "":
		changed = v.replace(c)
	case !p.complete.IsZero(): // before the first complete one, there is nothing to confirm
		at := c.At.Add(-streamLag)
		p.complete = later(p.complete, at)
		for token, m := range v.recent { // other machines have nothing new
			if v.reconsider(m, at) {
				changed = append(changed, token)
			}
		}
	}
	v.mu.Unlock()
	if c.All {
		v.take(c.At, c.Resources)
	}
	v.lists.wake()
	v.changed(changed)
}

// replace sets all that a machine has now. It replaces sightings of the same resources: if those
// are newer, another Change follows.
func (v *inventory) replace(c cloud.Change) (changed []string) {
	m := v.machine(c.Token)
	m.listed = c.Resources
	m.sighted = slices.DeleteFunc(m.sighted, func(s sighting) bool { return find(c.Resources, s.Resource) >= 0 })
	if v.reconsider(m, time.Time{}) {
		changed = []string{c.Token}
	}
	return changed
}
