// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drover-io/drover/cloud"
)

// testQueue is a cloud's queue of events. It returns an event again after half a minute if it was
// not acknowledged.
type post struct {
	mu        sync.Mutex
	letters   map[string]*letter // by receipt
	asked     int
	err       error
	spot      bool // every instance may be taken back
	dismissed []string
}

type letter struct {
	cloud.Event
	hidden time.Time
}

func (p *post) send(n cloud.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n.At.IsZero() {
		n.At = time.Now()
	}
	p.letters[n.Receipt] = &letter{Event: n}
}

func (p *post) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err = err
}

func (p *post) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.asked
}

func (p *post) left() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.letters)
}

// queueDriver is a testDriver whose cloud has a queue.
type listening struct {
	*testDriver
	*post
}

func (l listening) List(ctx context.Context) ([]cloud.Resource, error) {
	all, err := l.testDriver.List(ctx)
	for i := range all {
		all[i].Interruptible = l.spot
	}
	return all, err
}

func (l listening) Receive(ctx context.Context) (news []cloud.Event, err error) {
	for range 20 { // seconds
		l.mu.Lock()
		l.asked++
		for _, m := range l.letters {
			if time.Now().After(m.hidden) {
				m.hidden = time.Now().Add(30 * time.Second)
				news = append(news, m.Event)
			}
		}
		err = l.err
		l.mu.Unlock()
		if len(news) > 0 || err != nil {
			return news, err
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return nil, nil
}

func (l listening) Ack(_ context.Context, news []cloud.Event) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, n := range news {
		delete(l.letters, n.Receipt)
		l.dismissed = append(l.dismissed, n.Receipt)
	}
	return nil
}

// withQueue starts Accounts whose cloud has a queue.
func (c *testCloud) listen(t *testing.T) (*session, *post) {
	p := &post{letters: map[string]*letter{}, spot: true}
	return c.listenAt(t, p), p
}

func (c *testCloud) listenAt(t *testing.T, p *post) *session {
	return c.begin(t, func(o *Options) {
		connect := o.Clouds[0].New
		o.Clouds[0].New = func(cfg cloud.Config) (cloud.Driver, error) {
			d, err := connect(cfg)
			if err != nil {
				return nil, err
			}
			return listening{d.(*testDriver), p}, nil
		}
	})
}

// TestEventsAreReceivedForMachines: Receive is called only while a machine is observed.
func TestEventsAreReceivedForMachines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		s, p := c.listen(t)
		a := s.account(t)
		time.Sleep(time.Hour)
		if n := p.count(); n != 0 {
			t.Errorf("%d calls without a machine", n)
		}
		ref := running(t, a, "m")
		time.Sleep(time.Minute)
		if n := p.count(); n < 50 {
			t.Errorf("%d calls in a minute", n)
		}
		a.Forget(ref.Token)
		time.Sleep(time.Minute)
		before := p.count()
		time.Sleep(time.Hour)
		if n := p.count() - before; n != 0 {
			t.Errorf("%d calls after the last machine", n)
		}
	})
}

// TestEventsUntilRecorded: the machine's controller is notified repeatedly until the event is
// recorded. Then the event is acknowledged. A new process is notified again.
func TestEventsUntilRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		s, p := c.listen(t)
		a := s.account(t)
		ref := running(t, a, "m")
		time.Sleep(time.Minute)
		before := s.count("m")
		p.send(cloud.Event{InstanceID: "i-0001", Notice: "taken back", Ending: true, Receipt: "1"})
		time.Sleep(2 * time.Second)
		if s.count("m") != before+1 {
			t.Errorf("notified %d times", s.count("m")-before)
		}
		if o := a.Observe(ref, true); !o.Instance.Ending || o.Instance.Notice != "taken back" {
			t.Errorf("%+v", o.Instance)
		}
		time.Sleep(100 * time.Second)
		if n := s.count("m") - before; n < 3 || p.left() != 1 {
			t.Errorf("notified %d times, %d in the queue", n, p.left())
		}

		s.end() // simulates a crash
		s = c.listenAt(t, p)
		a = s.account(t)
		a.Observe(ref, true)
		until(t, time.Minute, "the next process knows", func() bool { o := a.Observe(ref, true); return o.Instance != nil && o.Instance.Ending })

		a.AckEvent(ref.Token, &cloud.Resource{Notice: "something else"})
		time.Sleep(time.Minute)
		if p.left() != 1 {
			t.Error("acknowledged although the recorded event is older")
		}
		a.AckEvent(ref.Token, a.Observe(ref, true).Instance)
		until(t, time.Minute, "the event is acknowledged", func() bool { return p.left() == 0 })
		if !a.Observe(ref, true).Instance.Ending {
			t.Error("and forgotten")
		}
	})
}

// TestEventsOfUnknownInstances: an event of no known machine is acknowledged when it is old, and
// one without an instance or too old at once. None of them is reported.
func TestEventsOfUnknownInstances(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		s, p := c.listen(t)
		a := s.account(t)
		ref := running(t, a, "m")
		time.Sleep(time.Minute)
		before := s.count("m")
		p.send(cloud.Event{Receipt: "nothing", Notice: "nonsense", Ending: true})
		p.send(cloud.Event{Receipt: "foreign", InstanceID: "i-9999", Ending: true})
		p.send(cloud.Event{Receipt: "old", InstanceID: "i-0001", Ending: true, At: time.Now().Add(-maxEventAge)})
		time.Sleep(2 * time.Second)
		if p.left() != 1 {
			t.Errorf("%d are left, want the foreign one", p.left())
		}
		time.Sleep(maxEventAge - 10*time.Second)
		if p.left() != 1 {
			t.Error("the foreign one went early")
		}
		until(t, time.Minute, "the foreign one goes", func() bool { return p.left() == 0 })
		if o := a.Observe(ref, true); o.Instance.Ending || s.count("m") != before {
			t.Errorf("%+v, told %d times", o.Instance, s.count("m")-before)
		}
	})
}

// TestEndingIsBelievedOfSpotAlone: Ending is ignored for an instance that is not Interruptible, so
// a forged event can't end it.
func TestEndingIsBelievedOfSpotAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		s, p := c.listen(t)
		p.spot = false
		a := s.account(t)
		ref := running(t, a, "m")
		p.send(cloud.Event{InstanceID: "i-0001", Notice: "taken back", Ending: true, Receipt: "1"})
		time.Sleep(2 * time.Second)
		if o := a.Observe(ref, true); o.Instance.Ending || o.Instance.Notice != "taken back" {
			t.Errorf("%+v", o.Instance)
		}
	})
}

// TestChangeIsReadAtOnce: a VM whose change is reported is read long before the next listing. If
// its machine is being deleted, it is not.
func TestChangeIsReadAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		s, p := c.listen(t)
		a := s.account(t, func(cfg *AccountConfig) { cfg.Spec.Inventory.IdleSeconds = 3600 })
		ref := running(t, a, "m")
		other := running(t, a, "other")
		time.Sleep(time.Minute)
		p.send(cloud.Event{InstanceID: "i-0001", Changed: true, Receipt: "for nothing"})
		time.Sleep(2 * time.Second)
		if o := a.Observe(ref, true); o.Gone || o.Instance.State != cloud.StateRunning || c.count("describe") != 1 {
			t.Errorf("%+v after %d reads", o, c.count("describe"))
		}
		c.vanish("m", false)
		p.send(cloud.Event{InstanceID: "i-0001", Changed: true, Receipt: "1"})
		a.Delete(other, time.Now())
		p.send(cloud.Event{InstanceID: "i-0002", Changed: true, Receipt: "2"})
		time.Sleep(2 * time.Second)
		if !a.Observe(ref, true).Gone {
			t.Error("it is not known to be gone")
		}
		if p.left() != 0 {
			t.Errorf("%d are left", p.left())
		}
		if c.count("list") > 10 {
			t.Errorf("%d listings", c.count("list"))
		}
	})
}

// TestReceiveFails: a failure to receive events is reported once, and breaks nothing else. The
// calls become less frequent, and recover.
func TestReceiveFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		s, p := c.listen(t)
		a := s.account(t)
		ref := running(t, a, "m")
		time.Sleep(time.Minute)
		flips, asked := s.flips(), p.count()
		p.fail(cloud.Errorf(cloud.NotFound, "no such place"))
		time.Sleep(10 * time.Minute)
		if err := a.Inventory().ReceiveErr; cloud.CodeOf(err) != cloud.NotFound || s.flips() != flips+1 {
			t.Errorf("%v, told %d times", err, s.flips()-flips)
		}
		if n := p.count() - asked; n > 25 {
			t.Errorf("%d calls", n)
		}
		if o := a.Observe(ref, true); o.Gone || !a.Inventory().Fresh {
			t.Errorf("%+v", o)
		}
		p.fail(nil)
		until(t, 2*time.Minute, "it receives events again", func() bool { return a.Inventory().ReceiveErr == nil })
		if s.flips() != flips+2 || !slices.Equal(p.dismissed, nil) {
			t.Errorf("notified %d times", s.flips()-flips)
		}
	})
}
