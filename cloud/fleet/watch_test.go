// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drover-io/drover/cloud"
)

// stream is what a cloud reports by itself, with the stream's faults.
type stream struct {
	mu     sync.Mutex
	delay  time.Duration // before each report
	err    error         // the stream fails with this error
	refuse error         // the stream fails so after its first report
	silent bool          // the stream stays open and reports nothing
	begun  int
	open   int
}

func (s *stream) set(do func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do()
}

func (s *stream) count() (begun, open int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.begun, s.open
}

// watcher is a testDriver whose cloud has a stream.
type watchDriver struct {
	*testDriver
	*stream
	cloud *testCloud
}

// resourcesByToken returns the cloud's resources by token.
func (d watchDriver) resourcesByToken() map[string][]cloud.Resource {
	all := map[string][]cloud.Resource{}
	d.cloud.with(func() {
		for _, id := range slices.Sorted(maps.Keys(d.cloud.resources)) {
			if r := d.cloud.resources[id]; r.OwnershipID != "" {
				told := toResource(*r)
				told.CreatedAt = r.Created.Round(0).UTC() // as in an answer
				all[r.Token] = append(all[r.Token], told)
			}
		}
	})
	return all
}

func (d watchDriver) Watch(ctx context.Context, report func(cloud.Update)) error {
	d.set(func() { d.begun, d.open = d.begun+1, d.open+1 })
	defer d.set(func() { d.open-- })
	began := time.Now()
	all, err := d.List(ctx)
	if err != nil {
		return err
	}
	report(cloud.Update{At: began, All: true, Resources: all})
	known := byToken(all)
	heartbeat := time.Now()
	for {
		var silent bool
		var delay time.Duration
		d.set(func() {
			silent, delay = d.silent, d.delay
			if err = d.err; d.refuse != nil {
				err = d.refuse
			}
		})
		if err != nil {
			return err
		}
		now := d.resourcesByToken()
		select {
		case <-time.After(100*time.Millisecond + delay):
		case <-ctx.Done():
			return ctx.Err()
		}
		if silent {
			continue
		}
		tokens := maps.Clone(known)
		maps.Copy(tokens, now)
		for token := range tokens {
			if !reflect.DeepEqual(known[token], now[token]) {
				report(cloud.Update{At: time.Now(), Token: token, Resources: now[token]})
			}
		}
		known = now
		if time.Since(heartbeat) > time.Minute {
			heartbeat = time.Now()
			report(cloud.Update{At: heartbeat})
		}
	}
}

// withStreamOption returns a change of Options that gives the cloud this stream.
func (c *testCloud) withStreamOption(p *stream) func(*Options) {
	return func(o *Options) {
		connect := o.Clouds[0].New
		o.Clouds[0].New = func(cfg cloud.Config) (cloud.Driver, error) {
			d, err := connect(cfg)
			if err != nil {
				return nil, err
			}
			return watchDriver{d.(*testDriver), p, c}, nil
		}
	}
}

func (c *testCloud) withStream(t *testing.T) (*session, *stream) {
	p := &stream{}
	return c.begin(t, c.withStreamOption(p)), p
}

// TestWatchedIsNotListed: the account is listed once, and then costs no call while changes are
// reported, whatever happens. Without observed machines there is no stream.
func TestWatchedIsNotListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		s, p := c.withStream(t)
		a := s.account(t)
		time.Sleep(time.Hour)
		if begun, _ := p.count(); begun != 0 || !a.Inventory().Fresh || a.Inventory().Received {
			t.Fatalf("followed %d times for no one; %+v", begun, a.Inventory())
		}
		refs := c.observed(a, 40)
		time.Sleep(15 * time.Second)
		for _, ref := range refs {
			if o := a.Observe(ref, true); o.Instance == nil || o.Instance.State != cloud.StateRunning ||
				s.count(ref.Token) != 2 { // once for its existence, once for running
				t.Errorf("%+v, told %d times", o, s.count(ref.Token))
			}
		}
		time.Sleep(time.Hour)
		begun, open := p.count()
		if n := c.count("list"); n != 1 || begun != 1 || open != 1 {
			t.Errorf("%d listings, %d streams, %d open", n, begun, open)
		}
		if state := a.Inventory(); !state.Fresh || state.Err != nil || state.ReceiveErr != nil || !state.Received || state.Instances != 40 ||
			time.Since(state.LastComplete) > 2*time.Minute || s.accountChanges() != 1 {
			t.Errorf("%+v, told %d times", state, s.accountChanges())
		}
		if n := c.count("describe"); n != 0 {
			t.Errorf("%d live reads", n)
		}
		for _, ref := range refs { // deletions do their own live reads
			a.Delete(ref, time.Now())
		}
		time.Sleep(time.Second)
		if _, open := p.count(); open != 0 {
			t.Error("it is followed for no one")
		}
		running(t, a, "m")
		a.Forget("m")
		time.Sleep(time.Second)
		if begun, open := p.count(); begun != 2 || open != 0 {
			t.Errorf("%d streams, %d open", begun, open)
		}
	})
}

// TestWatchedVanishes: a machine that the stream reports as gone is gone once a live read confirms
// it, within a second or two and without a listing.
func TestWatchedVanishes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		s, _ := c.withStream(t)
		a := s.account(t)
		refs := c.observed(a, 10)
		time.Sleep(80 * time.Second) // 20 after a heartbeat
		c.vanish(refs[0].Token, true)
		until(t, 2*time.Second, "gone", func() bool { return a.Observe(refs[0], true).Gone })
		if l, d := c.count("list"), c.count("describe"); l != 1 || d != 1 {
			t.Errorf("%d listings, %d live reads", l, d)
		}
		// Nothing is reported of what never existed: the next heartbeat covers it.
		lost := cloud.Reference{Token: "lost", OwnershipID: "own", ProviderID: "test:///i-9999"}
		a.Observe(lost, true)
		until(t, 2*time.Minute, "gone", func() bool { return a.Observe(lost, true).Gone })
		if l := c.count("list"); l != 1 {
			t.Errorf("%d listings", l)
		}
	})
}

// TestSilentStreamIsListed: if a stream is silent, the account is listed again, and never becomes
// stale. When the stream reports again, the listings end.
func TestSilentStreamIsListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		s, p := c.withStream(t)
		a := s.account(t)
		refs := c.observed(a, 5)
		time.Sleep(5 * time.Minute)
		p.set(func() { p.silent = true })
		c.vanish(refs[0].Token, false)
		until(t, streamTimeout+time.Minute, "gone", func() bool { return a.Observe(refs[0], true).Gone })
		time.Sleep(10 * time.Minute)
		n := c.count("list")
		if n < 9 || n > 12 || !a.Inventory().Fresh || s.accountChanges() != 1 {
			t.Errorf("%d listings; %+v, told %d times", n, a.Inventory(), s.accountChanges())
		}
		p.set(func() { p.silent = false })
		time.Sleep(2 * time.Minute)
		n = c.count("list")
		time.Sleep(time.Hour)
		if more := c.count("list") - n; more != 0 {
			t.Errorf("%d listings after it spoke again", more)
		}
	})
}

// TestFailedStream: while the stream fails, the account is listed at its normal intervals. The
// failure is reported after a while, and so is its end.
func TestFailedStream(t *testing.T) {
	for name, breaks := range map[string]func(p *stream){
		"cut":     func(p *stream) { p.err = cloud.Errorf(cloud.Unavailable, "cut") },
		"refused": func(p *stream) { p.refuse = cloud.Errorf(cloud.Unauthorized, "you may not watch") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newTestCloud(t)
				s, p := c.withStream(t)
				a := s.account(t)
				refs := c.observed(a, 5)
				time.Sleep(time.Minute)
				p.set(func() { breaks(p) })
				c.vanish(refs[0].Token, false)
				until(t, time.Minute, "gone", func() bool { return a.Observe(refs[0], true).Gone })
				time.Sleep(time.Hour)
				if n := c.count("list"); n < 55 || n > 80 {
					t.Errorf("%d listings in an hour", n)
				}
				if state := a.Inventory(); !state.Fresh || state.ReceiveErr == nil || state.Received || s.accountChanges() != 2 {
					t.Errorf("%+v, told %d times", state, s.accountChanges())
				}
				p.set(func() { p.err, p.refuse = nil, nil })
				time.Sleep(5 * time.Minute)
				n := c.count("list")
				time.Sleep(time.Hour)
				if more := c.count("list") - n; more != 0 || a.Inventory().ReceiveErr != nil || s.accountChanges() != 3 {
					t.Errorf("%d listings after it was back; %+v, told %d times", more, a.Inventory(), s.accountChanges())
				}
			})
		})
	}
}

// TestWatchAfterNewCredentials: when the credentials change, the new driver is watched at once, and
// the old one is not followed any more.
func TestWatchAfterNewCredentials(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		s, p := c.withStream(t)
		a := s.account(t)
		c.observed(a, 5)
		for i := range 5 {
			time.Sleep(10 * time.Second)
			c.with(func() { c.credential = fmt.Sprint(i) })
			s.account(t, func(cfg *AccountConfig) { cfg.Credentials = map[string][]byte{"token": []byte(fmt.Sprint(i))} })
		}
		time.Sleep(time.Minute)
		if begun, open := p.count(); begun != 6 || open != 1 || c.count("list") != 6 {
			t.Errorf("%d streams, %d open, %d listings", begun, open, c.count("list"))
		}
	})
}

// TestStreamBehindACreate: a new machine is known although the stream has not reported it yet.
func TestStreamBehindACreate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		c.start = time.Hour
		s, p := c.withStream(t)
		a := s.account(t)
		c.observed(a, 1)
		p.set(func() { p.delay = 3 * time.Second })
		for i := range 100 {
			ref := ensure(t, a, fmt.Sprint("m-", i))
			for range 10 {
				if o := a.Observe(ref, true); o.Instance == nil || o.Gone {
					t.Fatalf("%+v", o)
				}
				time.Sleep(300 * time.Millisecond)
			}
		}
		if n := c.count("describe"); n != 0 {
			t.Errorf("%d live reads", n)
		}
	})
}
