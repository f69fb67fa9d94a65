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
	// newsKept is how long news may come again before they are dismissed although nobody has acted on them: far longer than clouds give
	// notice of an instance's end, and short enough that what concerns nobody does not pile up.
	newsKept = 10 * time.Minute
	// newsRest is the least time from one question that brought nothing to the next: a place that answers at once costs a call a second.
	newsRest = time.Second
)

// herald hears an account's news, one question after the other, for as long as someone is interested in its machines.
type herald struct {
	account   func() *Account
	inventory *inventory
	random    func() float64
	wakeup    chan struct{}
	hearing
}

// hearing is whether what a cloud tells by itself can be had.
type hearing struct {
	flipped func() // called without the lock, must not block
	mu      sync.Mutex
	err     error // why not
}

func newHerald(account func() *Account, inventory *inventory, flipped func(), random func() float64) *herald {
	return &herald{account: account, inventory: inventory, random: random, hearing: hearing{flipped: flipped}, wakeup: make(chan struct{}, 1)}
}

// wake says that there may be someone to hear for, or another place to hear from.
func (h *herald) wake() {
	select {
	case h.wakeup <- struct{}{}:
	default:
	}
}

// run hears until ctx ends.
func (h *herald) run(ctx context.Context) {
	failures := 0
	for ctx.Err() == nil {
		a := h.account()
		driver, able := a.driver.(cloud.Herald)
		if !able || !h.inventory.observed() || a.place.admits() != nil {
			failures = 0
			h.tell(nil)
			sleepUntil(ctx, time.Time{}, h.wakeup)
			continue
		}
		err := h.hear(ctx, driver)
		if ctx.Err() != nil {
			return
		}
		h.tell(err)
		if err == nil {
			failures = 0
			continue
		}
		failures++
		sleepUntil(ctx, time.Now().Add(max(retryAfter(err), backoff(failures, h.random()))), nil)
	}
}

// hear asks once, and dismisses what is settled.
func (h *herald) hear(ctx context.Context, driver cloud.Herald) error {
	a, began := h.account(), time.Now()
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
	settled := h.inventory.heed(news)
	if len(settled) == 0 {
		return nil
	}
	return a.step(ctx, "Dismiss", a.times.Call, &step{}, func(ctx context.Context) error { return driver.Dismiss(ctx, settled) })
}

// tell notes whether it can be had, and says so when that changes.
func (h *hearing) tell(err error) {
	h.mu.Lock()
	flip := cloud.CodeOf(err) != cloud.CodeOf(h.err)
	h.err = err
	h.mu.Unlock()
	if flip {
		h.flipped()
	}
}

// deaf is why it can't be had; nil when it can.
func (h *hearing) deaf() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.err
}

// observed tells whether someone is interested in a machine that is not left to the deleter, which looks for itself.
func (v *inventory) observed() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return !v.unobserved()
}

// unobserved tells the contrary to who holds the lock.
func (v *inventory) unobserved() bool {
	for _, w := range v.watches {
		if !w.deleting {
			return false
		}
	}
	return true
}

// heed puts news to the machines that they are about, and returns those that need not come again. What a machine's controller has yet to put
// on record does come again, and brings the machine back each time: so it outlives this process.
func (v *inventory) heed(news []cloud.News) (settled []cloud.News) {
	v.mu.Lock()
	watches := map[string]*watch{}
	for _, w := range v.watches {
		if w.last != nil {
			watches[w.last.ID] = w
		}
	}
	var changed []string
	for _, n := range news {
		w := watches[n.InstanceID]
		told, done := false, true
		if n.InstanceID != "" && time.Since(n.At) < newsKept {
			told, done = v.put(w, n)
		}
		if told {
			changed = append(changed, w.ref.Token)
		}
		if done {
			settled = append(settled, n)
		}
	}
	v.mu.Unlock()
	v.changed(changed)
	return settled
}

// put notes what is told of a machine. told: its controller is to look at it. done: the news need not come again.
func (v *inventory) put(w *watch, n cloud.News) (told, done bool) {
	switch {
	case w == nil:
		return false, !n.Ending // it may be a machine that is not known yet, and what concerns nobody is not kept
	case w.deleting || w.gone:
		return false, true
	case n.Changed:
		if w.ref.ProviderID != "" && !w.absent {
			w.absent, w.readAt = true, time.Now() // as if a listing had missed it: a live read decides
			v.wake()
		}
		return false, true
	}
	n.Notice = cloud.Clip(strings.ToValidUTF8(n.Notice, ""), maxNotice)
	same := w.news != nil && w.news.Notice == n.Notice && w.news.Ending == n.Ending && w.news.Imminent == n.Imminent
	if w.news != nil && (w.news.Ending && !n.Ending || w.news.Imminent && !n.Imminent) {
		return false, true // worse is known
	}
	if same && w.recorded {
		return false, true
	}
	if !same {
		w.news, w.recorded = &n, false
	}
	w.reported = v.look(w)
	return true, false
}

// record notes that what seen says of the machine is on record, unless something else has been told since.
func (v *inventory) record(token string, seen *cloud.Resource) {
	v.mu.Lock()
	defer v.mu.Unlock()
	w := v.watches[token]
	if w == nil {
		return
	}
	if now := v.look(w).Instance; now != nil && now.Notice == seen.Notice && now.Ending == seen.Ending && now.Imminent == seen.Imminent {
		w.recorded = true
	}
}

// announce puts what was told of an instance to what a listing says of it.
func (w *watch) announce(r *cloud.Resource) {
	if w.news == nil || w.news.InstanceID != r.ID || (r.State != cloud.StateRunning && r.State != cloud.StatePending) {
		return
	}
	r.Ending = w.news.Ending && r.Interruptible
	r.Imminent = w.news.Imminent && r.Ending
	if r.Notice == "" {
		r.Notice = w.news.Notice
	} else if w.news.Notice != "" {
		r.Notice = cloud.Clip(w.news.Notice+"; "+r.Notice, maxNotice)
	}
}
