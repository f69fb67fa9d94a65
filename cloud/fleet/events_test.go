// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drover-io/drover/cloud"
)

// testQueue is a cloud's queue of events. It returns an event again after half a minute if it was
// not acknowledged.
type testQueue struct {
	mu       sync.Mutex
	messages map[string]*testMessage // by receipt
	calls    int
	err      error
	spot     bool // every instance may be taken back
	acked    []string
}

type testMessage struct {
	cloud.Event
	hidden time.Time
}

func (p *testQueue) send(n cloud.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n.At.IsZero() {
		n.At = time.Now()
	}
	p.messages[n.Receipt] = &testMessage{Event: n}
}

func (p *testQueue) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err = err
}

func (p *testQueue) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.calls
}

func (p *testQueue) remaining() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.messages)
}

// queueDriver is a testDriver whose cloud has a queue.
type queueDriver struct {
	*testDriver
	*testQueue
}

func (l queueDriver) List(ctx context.Context) ([]cloud.Resource, error) {
	all, err := l.testDriver.List(ctx)
	for i := range all {
		all[i].Interruptible = l.spot
	}
	return all, err
}

func (l queueDriver) Receive(ctx context.Context) (events []cloud.Event, err error) {
	for range 20 { // seconds
		l.mu.Lock()
		l.calls++
		for _, m := range l.messages {
			if time.Now().After(m.hidden) {
				m.hidden = time.Now().Add(30 * time.Second)
				events = append(events, m.Event)
			}
		}
		err = l.err
		l.mu.Unlock()
		if len(events) > 0 || err != nil {
			return events, err
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return nil, nil
}

func (l queueDriver) Ack(_ context.Context, events []cloud.Event) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, n := range events {
		delete(l.messages, n.Receipt)
		l.acked = append(l.acked, n.Receipt)
	}
	return nil
}

// withQueue starts Accounts whose cloud has a queue.
func (c *testCloud) withQueue(t *testing.T) (*session, *testQueue) {
	p := &testQueue{messages: map[string]*testMessage{}, spot: true}
	return c.withThisQueue(t, p), p
}

func (c *testCloud) withThisQueue(t *testing.T, p *testQueue) *session {
	return c.begin(t, func(o *Options) {
		connect := o.Clouds[0].New
		o.Clouds[0].New = func(cfg cloud.Config) (cloud.Driver, error) {
			d, err := connect(cfg)
			if err != nil {
				return nil, err
			}
			return queueDriver{d.(*testDriver), p}, nil
		}
	})
}

// TestEventsAreReceivedForMachines: Receive is called only while a machine is observed.
func TestEventsAreReceivedForMachines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		s, p := c.withQueue(t)
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
		s, p := c.withQueue(t)
		a := s.account(t)
		ref := running(t, a, "m")
		time.Sleep(time.Minute)
		before := s.count("m")
		p.send(cloud.Event{InstanceID: "i-0001", Notice: "taken back", Reclaim: cloud.ReclaimAdvised, Receipt: "1"})
		time.Sleep(2 * time.Second)
		if s.count("m") != before+1 {
			t.Errorf("notified %d times", s.count("m")-before)
		}
		if o := a.Observe(ref, true); o.Instance.Reclaim != cloud.ReclaimAdvised || o.Instance.Notice != "taken back" {
			t.Errorf("%+v", o.Instance)
		}
		time.Sleep(100 * time.Second)
		if n := s.count("m") - before; n < 3 || p.remaining() != 1 {
			t.Errorf("notified %d times, %d in the queue", n, p.remaining())
		}

		s.end() // simulates a crash
		s = c.withThisQueue(t, p)
		a = s.account(t)
		a.Observe(ref, true)
		until(t, time.Minute, "the next process knows", func() bool {
			o := a.Observe(ref, true)
			return o.Instance != nil && o.Instance.Reclaim == cloud.ReclaimAdvised
		})

		a.AckEvent(ref.Token, &cloud.Resource{Notice: "something else"})
		time.Sleep(time.Minute)
		if p.remaining() != 1 {
			t.Error("acknowledged although the recorded event is older")
		}
		a.AckEvent(ref.Token, a.Observe(ref, true).Instance)
		until(t, time.Minute, "the event is acknowledged", func() bool { return p.remaining() == 0 })
		if a.Observe(ref, true).Instance.Reclaim != cloud.ReclaimAdvised {
			t.Error("and forgotten")
		}
	})
}

// TestEventsOfUnknownInstances: an event of no known machine is acknowledged when it is old, and
// one without an instance or too old at once. None of them is reported.
func TestEventsOfUnknownInstances(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		s, p := c.withQueue(t)
		a := s.account(t)
		ref := running(t, a, "m")
		time.Sleep(time.Minute)
		before := s.count("m")
		p.send(cloud.Event{Receipt: "nothing", Notice: "nonsense", Reclaim: cloud.ReclaimAdvised})
		p.send(cloud.Event{Receipt: "foreign", InstanceID: "i-9999", Reclaim: cloud.ReclaimAdvised})
		p.send(cloud.Event{Receipt: "old", InstanceID: "i-0001", Reclaim: cloud.ReclaimAdvised, At: time.Now().Add(-maxEventAge)})
		time.Sleep(2 * time.Second)
		if p.remaining() != 1 {
			t.Errorf("%d are left, want the foreign one", p.remaining())
		}
		time.Sleep(maxEventAge - 10*time.Second)
		if p.remaining() != 1 {
			t.Error("the foreign one went early")
		}
		until(t, time.Minute, "the foreign one goes", func() bool { return p.remaining() == 0 })
		if o := a.Observe(ref, true); o.Instance.Reclaim != "" || s.count("m") != before {
			t.Errorf("%+v, told %d times", o.Instance, s.count("m")-before)
		}
	})
}

// TestReclaimNeverWeakens: of several events, the one that is closest to the instance's end counts,
// in whatever order they come.
func TestReclaimNeverWeakens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		s, p := c.withQueue(t)
		a := s.account(t)
		ref := running(t, a, "m")
		for i, step := range []struct{ sent, want cloud.Reclaim }{
			{"", ""},
			{cloud.ReclaimAdvised, cloud.ReclaimAdvised},
			{"", cloud.ReclaimAdvised},
			{cloud.ReclaimCertain, cloud.ReclaimCertain},
			{cloud.ReclaimAdvised, cloud.ReclaimCertain},
			{"", cloud.ReclaimCertain},
		} {
			p.send(cloud.Event{InstanceID: "i-0001", Notice: "announced", Reclaim: step.sent, Receipt: fmt.Sprint(i)})
			time.Sleep(time.Minute)
			o := a.Observe(ref, true)
			if o.Instance.Reclaim != step.want {
				t.Errorf("after event %d: %q, want %q", i, o.Instance.Reclaim, step.want)
			}
			a.AckEvent(ref.Token, o.Instance)
		}
		until(t, time.Minute, "all are acknowledged", func() bool { return p.remaining() == 0 })
	})
}

// TestReclaimOfSpotInstancesOnly: Reclaim is ignored for an instance that is not Interruptible, so
// a forged event can't end it.
func TestReclaimOfSpotInstancesOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		s, p := c.withQueue(t)
		p.spot = false
		a := s.account(t)
		ref := running(t, a, "m")
		p.send(cloud.Event{InstanceID: "i-0001", Notice: "taken back", Reclaim: cloud.ReclaimAdvised, Receipt: "1"})
		time.Sleep(2 * time.Second)
		if o := a.Observe(ref, true); o.Instance.Reclaim != "" || o.Instance.Notice != "taken back" {
			t.Errorf("%+v", o.Instance)
		}
	})
}

// TestChangeIsReadAtOnce: a VM whose change is reported is read long before the next listing. If
// its machine is being deleted, it is not.
func TestChangeIsReadAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		s, p := c.withQueue(t)
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
		if p.remaining() != 0 {
			t.Errorf("%d are left", p.remaining())
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
		s, p := c.withQueue(t)
		a := s.account(t)
		ref := running(t, a, "m")
		time.Sleep(time.Minute)
		changes, calls := s.accountChanges(), p.count()
		if !a.Inventory().Received {
			t.Error("it has received nothing")
		}
		p.fail(cloud.Errorf(cloud.NotFound, "no such place"))
		time.Sleep(10 * time.Minute)
		if err := a.Inventory().ReceiveErr; cloud.CodeOf(err) != cloud.NotFound || a.Inventory().Received || s.accountChanges() != changes+1 {
			t.Errorf("%v, told %d times", err, s.accountChanges()-changes)
		}
		if n := p.count() - calls; n > 25 {
			t.Errorf("%d calls", n)
		}
		if o := a.Observe(ref, true); o.Gone || !a.Inventory().Fresh {
			t.Errorf("%+v", o)
		}
		p.fail(nil)
		until(t, 2*time.Minute, "it receives events again", func() bool { return a.Inventory().ReceiveErr == nil && a.Inventory().Received })
		if s.accountChanges() != changes+2 || !slices.Equal(p.acked, nil) {
			t.Errorf("notified %d times", s.accountChanges()-changes)
		}
	})
}
