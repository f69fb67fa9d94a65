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
	// newsKept is how long news may come again before they are dismissed although nobody has acted
	// on them: far longer than clouds give notice of an instance's end, and short enough that what
	// concerns nobody does not pile up.
	newsKept = 10 * time.Minute
	// newsRest is the least time from one question that brought nothing to the next: a place that
	// answers at once costs a call a second.
	newsRest = time.Second
	// streamSilence is how long a Follower may tell nothing until the account is listed again:
	// twice the minute in which Kubernetes gives a sign of life on a watch, and a little.
	streamSilence = 150 * time.Second
	// streamLag is how far what a Follower tells may be behind its cloud. What was seen otherwise
	// holds so long against its silence.
	streamLag = 10 * time.Second
	// streamTrials is how many failures in a row are worth a word: an API server's restart costs
	// one or two.
	streamTrials = 3
)

// source is a loop that takes what an account's cloud tells by itself, for as long as that is
// wanted.
type source struct {
	inventory *inventory
	wakeup    // there may be someone to ask for, or no one any more, or another driver
	// ask has the cloud tell until it fails, or is wanted no more, which is no error; not called
	// where the driver can't.
	ask func(context.Context, *Account) error
	// able and wanted tell whether there is something to ask.
	able   func(cloud.Driver) bool
	wanted func() bool
	trials int // how many failures in a row are worth a word

	mu  sync.Mutex
	err error // why nothing can be had
}

// run asks until ctx ends.
func (s *source) run(ctx context.Context) {
	failures := 0
	for ctx.Err() == nil {
		a, began := s.inventory.account(), time.Now()
		if !s.able(a.driver) || !s.wanted() || a.place.admits() != nil {
			failures = 0
			s.tell(nil)
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
			s.tell(err)
		}
		sleepUntil(ctx, time.Now().Add(max(retryAfter(err), backoff(failures, s.inventory.random()))), nil)
	}
}

// tell notes whether something can be had, and says so when that changes.
func (s *source) tell(err error) {
	s.mu.Lock()
	flip := cloud.CodeOf(err) != cloud.CodeOf(s.err)
	s.err = err
	s.mu.Unlock()
	if flip {
		s.inventory.flipped()
	}
}

// failure is why nothing can be had; nil when it can.
func (s *source) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// newNews makes the source of a Herald's news.
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
			s.tell(nil)
		}
		return err
	}
	return s
}

// hear asks for news once, and dismisses what is settled.
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

// notify puts news to the machines that they are about, and returns those that need not come again.
// What a machine's controller has yet to put on record does come again, and brings the machine back
// each time: so it outlives this process. It takes the lock.
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

// put notes what is told of a machine. told: its controller is to look at it. done: the news need
// not come again.
func (v *inventory) put(m *machine, n cloud.News) (told, done bool) {
	switch {
	case m == nil:
		return false, !n.Ending // it may be a machine that is not known yet, and what concerns nobody is not kept
	case !m.isObserved() || m.isGone():
		return false, true
	case n.Changed:
		if m.ref.ProviderID != "" && !m.isMissing() {
			m.phase, m.due = missing, time.Now() // as if a listing had missed it: a live read decides
			v.works.wake()
		}
		return false, true
	}
	n.Notice = cloud.Clip(strings.ToValidUTF8(n.Notice, ""), maxNotice)
	same := m.news != nil && m.news.Notice == n.Notice && m.news.Ending == n.Ending && m.news.Imminent == n.Imminent
	if m.news != nil && (m.news.Ending && !n.Ending || m.news.Imminent && !n.Imminent) {
		return false, true // worse is known
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

// record notes that what seen says of the machine is on record, unless something else has been told
// since. It takes the lock.
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

// announce puts what was told of an instance to what a listing says of it.
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

// newChanges makes the source of a Follower's changes.
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

// follow follows until nothing more can be told, or no one asks for it any more, which is no error.
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
			s.tell(nil)
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

// isFollowed tells whether the listings may wait for what a Follower tells.
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

// isAwaited tells whether a Follower is about to tell everything.
func (v *inventory) isAwaited(now time.Time) bool {
	return v.isFollowed(now) && v.pace.complete.Before(v.pace.asked)
}

// unfollowed notes that nothing is told any more, because it failed or because no one asked for it.
// It takes the lock.
func (v *inventory) unfollowed(failed bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.pace.asked, v.pace.unheard = time.Time{}, failed
	v.lists.wake()
}

// follow takes what a Follower tells. It takes the lock.
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
	case !p.complete.IsZero(): // otherwise nothing is known that could still hold
		at := c.At.Add(-streamLag)
		p.complete = later(p.complete, at)
		for token, m := range v.recent { // a sign of life is no reason to look at all machines
			if v.settleDown(m, at) {
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

// replace takes what a machine has now. It is newer than what was seen before of the same
// resources: where it is not, what is will follow.
func (v *inventory) replace(c cloud.Change) (changed []string) {
	m := v.machine(c.Token)
	m.listed = c.Resources
	m.sighted = slices.DeleteFunc(m.sighted, func(s sighting) bool { return find(c.Resources, s.Resource) >= 0 })
	if v.settleDown(m, time.Time{}) {
		changed = []string{c.Token}
	}
	return changed
}
