// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/drover-io/drover/cloud"
)

const (
	// streamSilence is how long a Follower may tell nothing until the account is listed again: twice the minute in which Kubernetes
	// gives a sign of life on a watch, and a little.
	streamSilence = 150 * time.Second
	// streamLag is how far what a Follower tells may be behind its cloud. What was seen otherwise holds so long against its silence.
	streamLag = 10 * time.Second
	// streamTrials is how many failures in a row are worth a word: an API server's restart costs one or two.
	streamTrials = 3
)

// follower has an account followed, for as long as someone is interested in its machines.
type follower struct {
	account   func() *Account
	inventory *inventory
	random    func() float64
	wakeup    chan struct{}
	hearing
}

func newFollower(account func() *Account, inventory *inventory, flipped func(), random func() float64) *follower {
	return &follower{account: account, inventory: inventory, random: random, hearing: hearing{flipped: flipped}, wakeup: make(chan struct{}, 1)}
}

// wake says that there may be someone to follow for, or no one any more, or another driver.
func (f *follower) wake() {
	select {
	case f.wakeup <- struct{}{}:
	default:
	}
}

// run follows until ctx ends.
func (f *follower) run(ctx context.Context) {
	failures := 0
	for ctx.Err() == nil {
		a := f.account()
		driver, able := a.driver.(cloud.Follower)
		if !able || !f.inventory.wanted() || a.place.admits() != nil {
			failures = 0
			f.hearing.tell(nil)
			sleepUntil(ctx, time.Time{}, f.wakeup)
			continue
		}
		began := time.Now()
		err := f.follow(ctx, a, driver)
		if ctx.Err() != nil {
			return
		}
		f.inventory.unfollowed(err != nil)
		if err == nil { // no one asks for it any more, or another driver is asked
			continue
		}
		if time.Since(began) > streamSilence {
			failures = 0
		}
		failures++
		if failures >= streamTrials || cloud.CodeOf(err) == cloud.Unauthorized {
			f.hearing.tell(err)
		}
		sleepUntil(ctx, time.Now().Add(max(retryAfter(err), backoff(failures, f.random()))), nil)
	}
}

// follow follows until nothing more can be told, or no one asks for it any more, which is no error.
func (f *follower) follow(ctx context.Context, a *Account, driver cloud.Follower) error {
	ctx, cut := context.WithCancel(ctx)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cut()
	watching.Go(func() {
		for ctx.Err() == nil {
			if f.account() != a || !f.inventory.wanted() {
				cut()
			}
			sleepUntil(ctx, time.Time{}, f.wakeup)
		}
	})
	err := typed("Follow", driver.Follow(withStep(ctx, &step{}), func(c cloud.Change) {
		if ctx.Err() != nil {
			return
		}
		c.Resources = tameAll(c.Resources)
		if f.inventory.follow(c); !c.All {
			f.hearing.tell(nil)
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

// wanted tells whether someone is interested in a machine, or in all.
func (v *inventory) wanted() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return !v.unwanted()
}

// unwanted tells the contrary to who holds the lock.
func (v *inventory) unwanted() bool { return v.unobserved() && v.atLeast == 0 }

// followable tells whether the listings may wait for what a Follower tells.
func (v *inventory) followable(now time.Time) bool {
	if _, able := v.account().driver.(cloud.Follower); !able || v.unheard || v.unwanted() {
		return false
	}
	if v.asked.IsZero() {
		v.asked = now
	}
	return now.Before(later(v.asked, v.heard).Add(streamSilence))
}

// awaiting tells whether a Follower is about to tell everything.
func (v *inventory) awaiting(now time.Time) bool {
	return v.followable(now) && v.complete.Before(v.asked)
}

// unfollowed notes that nothing is told any more, because it failed or because no one asked for it.
func (v *inventory) unfollowed(failed bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.asked, v.unheard = time.Time{}, failed
	v.wake()
}

// follow takes what a Follower tells.
func (v *inventory) follow(c cloud.Change) {
	v.mu.Lock()
	v.heard, v.unheard = time.Now(), false
	var changed []string
	switch {
	case c.All:
		if v.asked.IsZero() || c.At.Before(v.asked) {
			v.asked = c.At
		}
		v.began, v.complete, v.err, v.retryAt, v.failures = c.At, c.At, nil, time.Time{}, 0
		changed = v.take(c.At, byToken(c.Resources))
	case c.Token == "":
		if v.complete.IsZero() {
			break // nothing is known that could still hold
		}
		at := c.At.Add(-streamLag)
		v.complete = later(v.complete, at)
		changed = v.age(at)
	default:
		changed = v.hear(c)
	}
	v.wake()
	v.mu.Unlock()
	v.changed(changed)
}

// age drops what was seen before a time as of which everything has been told. Only machines of which something was seen
// otherwise, or that are new, are looked at: a sign of life is no reason to look at all of them.
func (v *inventory) age(at time.Time) (changed []string) {
	lag := v.account().cloud.Traits.ReadLag
	for token, sightings := range v.seen {
		kept := slices.DeleteFunc(sightings, func(s sighting) bool { return !s.at.Add(lag).After(at) })
		if v.seen[token] = kept; len(kept) == 0 {
			delete(v.seen, token)
		}
		v.unjudged[token] = struct{}{}
	}
	for token := range v.unjudged {
		w := v.watches[token]
		if w == nil {
			continue
		}
		if v.judge(w, time.Now()); v.update(w) {
			changed = append(changed, token)
		}
	}
	clear(v.unjudged)
	return changed
}

// hear takes what a machine has now. It is newer than what was seen before of the same resources: where it is not, what is will follow.
func (v *inventory) hear(c cloud.Change) (changed []string) {
	if v.listed[c.Token] = c.Resources; len(c.Resources) == 0 {
		delete(v.listed, c.Token)
	}
	v.seen[c.Token] = slices.DeleteFunc(v.seen[c.Token], func(s sighting) bool { return find(c.Resources, s.Resource) >= 0 })
	if len(v.seen[c.Token]) == 0 {
		delete(v.seen, c.Token)
	}
	w := v.watches[c.Token]
	if w == nil {
		return nil
	}
	v.judge(w, time.Now())
	if !v.update(w) {
		return nil
	}
	return []string{c.Token}
}
