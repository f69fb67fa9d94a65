// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drover-io/drover/cloud"
)

// isGone deletes as a controller does, which records the provider ID that it learns, and reports
// whether the machine is gone.
func isGone(a *Account, ref *cloud.Reference) bool {
	d := a.Delete(*ref, time.Now())
	if ref.ProviderID == "" && d.Instance != nil {
		ref.ProviderID = d.Instance.ProviderID
		d = a.Delete(*ref, time.Now())
	}
	return d.Gone
}

// seen returns the provider ID of the instance.
func seen(d Deletion) string {
	if d.Instance == nil {
		return ""
	}
	return d.Instance.ProviderID
}

// remove deletes a machine as a controller does, and returns how long it took until it was gone.
func remove(t *testing.T, a *Account, ref cloud.Reference, limit time.Duration) time.Duration {
	t.Helper()
	return until(t, limit, ref.Token+" is gone", func() bool { return isGone(a, &ref) })
}

// TestDeleteOne: one deletion takes about a second longer than the cloud needs, and leaves nothing
// behind, not even dependants.
func TestDeleteOne(t *testing.T) {
	for dependants, limit := range []time.Duration{5 * time.Second, 7 * time.Second, 7 * time.Second} {
		t.Run(fmt.Sprint(dependants, " dependants"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newTestCloud(t)
				c.dependants = dependants
				s := c.begin(t)
				a := s.account(t)
				ref := running(t, a, "m")
				told := s.count("m")
				if took := remove(t, a, ref, time.Minute); took > limit {
					t.Errorf("took %s", took)
				}
				if ids := c.alive("m"); len(ids) != 0 {
					t.Errorf("alive: %v", ids)
				}
				if s.count("m") != told+1 {
					t.Errorf("notified %d times", s.count("m")-told)
				}
				if d := a.Delete(ref, time.Now()); !d.Gone || d.Remaining != nil || d.Err != nil {
					t.Errorf("asked again: %+v", d)
				}
				if n := c.count("terminate", "describe"); n > 6+dependants {
					t.Errorf("%d calls", n)
				}
				a.Forget("m")
				if n := a.Inventory().Instances; n != 0 {
					t.Errorf("%d instances in the inventory", n)
				}
			})
		})
	}
}

// observed makes n instances and observes them.
func (c *testCloud) observed(a *Account, n int) (refs []cloud.Reference) {
	c.with(func() {
		for i := range n {
			r := c.make(fmt.Sprint(i), "own", "a")
			refs = append(refs, cloud.Reference{Token: r.Token, OwnershipID: "own", ProviderID: "test:///" + r.ID})
		}
	})
	for _, ref := range refs {
		a.Observe(ref, true)
	}
	return refs
}

// TestDeleteMany: 300 deletions requested over 35 s cost at most 15 calls.
func TestDeleteMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		a := c.begin(t).account(t)
		refs := c.observed(a, 300)
		time.Sleep(time.Minute)
		listed := c.count("list")
		start := time.Now()
		for _, ref := range refs {
			a.Delete(ref, time.Now())
			time.Sleep(35 * time.Second / 300)
		}
		for _, ref := range refs {
			remove(t, a, ref, time.Minute)
		}
		calls, lists := c.count("terminate", "describe"), c.count("list")-listed
		t.Logf("300 deletions over 35 s: %d deletes, %d live reads, %d pages listed, all gone after %s", c.count("terminate"),
			c.count("describe"), lists, time.Since(start))
		if calls > 15 {
			t.Errorf("%d calls", calls)
		}
		if took := time.Since(start); took > 43*time.Second {
			t.Errorf("all gone after %s", took)
		}
		for _, ref := range refs {
			a.Forget(ref.Token)
		}
		if n := a.Inventory().Instances; n != 0 {
			t.Errorf("%d instances in the inventory", n)
		}
	})
}

// TestDeleteManySlowly: if instances take long to end, live reads for 300 deletions are as
// infrequent. A single deletion is still read soon.
func TestDeleteManySlowly(t *testing.T) {
	for name, stop := range map[string]time.Duration{"as a rule": 30 * time.Second, "at once": 0, "late": time.Minute} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newTestCloud(t)
				c.cascades, c.ending, c.stop = true, 30*time.Second, stop
				a := c.begin(t).account(t)
				refs := c.observed(a, 301)
				time.Sleep(time.Minute)
				const span = 35 * time.Second
				start := time.Now()
				for _, ref := range refs[:300] {
					a.Delete(ref, time.Now())
					time.Sleep(span / 300)
				}
				for _, ref := range refs[:300] {
					remove(t, a, ref, 2*time.Minute)
				}
				took := time.Since(start)
				t.Logf("%d deletes, %d live reads, all gone after %s", c.count("terminate"), c.count("describe"), took)
				if n := c.count("describe"); n > 6+int(stop/c.ending)*3 {
					t.Errorf("%d live reads", n)
				}
				if n := c.count("terminate"); n > 6 {
					t.Errorf("%d deletes", n)
				}
				if late := took - span - stop; late > 2*c.ending {
					t.Errorf("gone %s after the last ended", late)
				}
				if alone := remove(t, a, refs[300], 2*time.Minute); alone > stop*4/3+5*time.Second {
					t.Errorf("one alone took %s", alone)
				}
			})
		})
	}
}

// TestDeleteInSteps: if one call stops a machine and the next one removes it, the second call
// follows as soon as the machine is seen stopped, and neither is repeated. Seen to fail when the
// deletion of a stopped machine was repeated after the cloud's ReadLag only, and when it was
// repeated at every read.
func TestDeleteInSteps(t *testing.T) {
	for name, test := range map[string]struct {
		stop, atMost time.Duration
		off          bool // it is already stopped
		steps        int
	}{
		"off at once": {atMost: 4 * time.Second, steps: 2},
		"off late":    {stop: 8 * time.Second, atMost: 22 * time.Second, steps: 2},
		"off before":  {off: true, atMost: 2 * time.Second, steps: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newTestCloud(t)
				c.readLag, c.inSteps, c.stop = 10*time.Second, true, test.stop
				a := c.begin(t).account(t)
				ref := running(t, a, "m")
				if test.off {
					c.with(func() { c.change(c.made["m"], cloud.StateStopped) })
				}
				time.Sleep(time.Minute)
				a.Delete(ref, time.Now())
				until(t, test.atMost, "removed", func() bool { return len(c.alive("m")) == 0 })
				remove(t, a, ref, 10*time.Second)
				if n := c.count("terminate"); n != test.steps {
					t.Errorf("%d calls to delete it, want %d", n, test.steps)
				}
			})
		})
	}
}

// TestDeleteYoung: if the cloud shows a machine as terminated, it is believed at once, even soon
// after the create, if the cloud deletes its dependants with it.
func TestDeleteYoung(t *testing.T) {
	for _, whole := range []bool{true, false} {
		t.Run(fmt.Sprint("whole ", whole), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newTestCloud(t)
				c.readLag, c.cascades = 2*time.Minute, whole
				a := c.begin(t).account(t)
				begin := time.Now()
				ref := running(t, a, "m")
				took := remove(t, a, ref, 5*time.Minute)
				if hidden := time.Since(begin) < c.readLag; hidden != whole {
					t.Errorf("gone after %s", took)
				}
				if n := c.count("terminate", "describe"); n > 5 {
					t.Errorf("%d calls", n)
				}
			})
		})
	}
}

// TestDeleteHesitantly: 300 deletions requested over a minute and a half, with pauses longer than
// the window of a single deletion, cost few calls. A single deletion still waits for no longer than
// a second.
func TestDeleteHesitantly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		c.readLag, c.cascades = 2*time.Minute, true
		a := c.begin(t).account(t)
		refs := c.observed(a, 301)
		time.Sleep(30 * time.Second)
		for i, ref := range refs[:300] {
			a.Delete(ref, time.Now())
			if i%6 == 5 {
				time.Sleep(1800 * time.Millisecond)
			}
		}
		for _, ref := range refs[:300] {
			remove(t, a, ref, time.Minute)
		}
		t.Logf("300 deletions over 90 s: %d deletes, %d live reads", c.count("terminate"), c.count("describe"))
		if n := c.count("terminate"); n > 16 {
			t.Errorf("%d deletes", n)
		}
		if n := c.count("describe"); n > 17 {
			t.Errorf("%d live reads", n)
		}
		before := c.count("terminate")
		a.Delete(refs[300], time.Now())
		until(t, 1500*time.Millisecond, "it is asked to go", func() bool { return c.count("terminate") > before })
	})
}

// TestDeleteAtOnce: 300 deletions at once are sent in batches of the cloud's size.
func TestDeleteAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		c.dependants = 1
		a := c.begin(t).account(t)
		var refs []cloud.Reference
		c.with(func() {
			for i := range 300 {
				r := c.make(fmt.Sprint(i), "own", "a")
				refs = append(refs, cloud.Reference{Token: r.Token, OwnershipID: "own", ProviderID: "test:///" + r.ID})
			}
		})
		for _, ref := range refs {
			a.Delete(ref, time.Now()) // the process has listed nothing yet
		}
		for _, ref := range refs {
			remove(t, a, ref, time.Minute)
		}
		if n := c.count("terminate", "describe"); n > 18 {
			t.Errorf("%d calls", n)
		}
		for _, call := range c.log() {
			if call.size > 100 {
				t.Errorf("%s of %d", call.op, call.size)
			}
		}
		if n := len(c.resources); n != 300 {
			t.Errorf("%d resources are left, want the 300 terminated instances", n)
		}
	})
}

// TestCreateHorizon: a machine whose creation was not recorded is taken to be absent only when no
// create can still take effect. A machine whose create takes effect late is found and deleted.
func TestCreateHorizon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		c.lag = 5 * time.Second
		s := c.begin(t)
		a := s.account(t)
		never, late := cloud.Reference{Token: "never", OwnershipID: "own"}, cloud.Reference{Token: "late", OwnershipID: "own"}
		c.setFault(func(op string) fault {
			if op == "run" {
				return fault{cut: true, late: 55 * time.Second}
			}
			return fault{}
		})
		if _, err := a.Ensure(t.Context(), request("late"), nil); cloud.CodeOf(err) != cloud.Unavailable {
			t.Fatal(err)
		}
		a.Delete(late, time.Now())
		if took := remove(t, a, never, 2*time.Minute); took < a.times.CreateHorizon || took > a.times.CreateHorizon+10*time.Second {
			t.Errorf("never made: gone after %s", took)
		}
		remove(t, a, late, 2*time.Minute)
		if ids := c.alive("late"); len(ids) != 0 || c.count("terminate") == 0 {
			t.Errorf("made late: alive %v", ids)
		}
		time.Sleep(time.Hour)
		if ids := c.alive("late"); len(ids) != 0 {
			t.Errorf("alive: %v", ids)
		}
	})
}

// TestRetryAfterOfADeletionIsCapped: one refusal with a RetryAfter of a day, as from a maintenance
// page, does not keep a VM for a day.
func TestRetryAfterOfADeletionIsCapped(t *testing.T) {
	for _, code := range []cloud.Code{cloud.Unavailable, cloud.Throttled} {
		synctest.Test(t, func(t *testing.T) {
			c := newTestCloud(t)
			a := c.begin(t).account(t)
			ref := ensure(t, a, "one")
			a.Observe(ref, true)
			time.Sleep(10 * time.Second)
			once := true
			c.setFault(func(op string) fault {
				if op == "terminate" && once {
					once = false
					return fault{code: string(code), retry: 24 * time.Hour}
				}
				return fault{}
			})
			remove(t, a, ref, maxRetryAfter+2*time.Minute)
		})
	}
}

// TestRecordedBeforeGone: an instance whose creation was not recorded is not deleted until its
// provider ID is recorded, whether or not the inventory knows it.
func TestRecordedBeforeGone(t *testing.T) {
	for _, listed := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			c := newTestCloud(t)
			c.dependants = 1
			s := c.begin(t)
			a := s.account(t)
			var id string
			c.with(func() { id = "test:///" + c.make("m", "own", "a").ID })
			ref := cloud.Reference{Token: "m", OwnershipID: "own"}
			if listed {
				a.Observe(ref, true)
				time.Sleep(time.Minute)
			}
			want := s.count("m")
			if !listed {
				want++ // otherwise the first Delete returns it
			}
			until(t, 10*time.Second, "seen", func() bool { return seen(a.Delete(ref, time.Now())) == id })
			reads := c.count("describe")
			time.Sleep(time.Minute)
			if n := c.count("describe") - reads; n > 3 {
				t.Errorf("%d live reads while it waited", n)
			}
			if d := a.Delete(ref, time.Now()); d.Gone || seen(d) != id || len(c.alive("m")) != 2 || s.count("m") != want {
				t.Errorf("%+v, alive: %v, told %d times, want %d", d, c.alive("m"), s.count("m"), want)
			}
			if took := remove(t, a, ref, time.Minute); took > 10*time.Second {
				t.Errorf("took %s once it was recorded", took)
			}
			if ids := c.alive("m"); len(ids) != 0 {
				t.Errorf("alive: %v", ids)
			}
		})
	}
}

// TestHiddenDependants: machines that end before the cloud shows their dependants leave none
// behind.
func TestHiddenDependants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		c.lag, c.stop, c.dependants = 20*time.Second, 0, 1
		a := c.begin(t).account(t)
		for i := range 80 {
			c.with(func() { c.make(fmt.Sprint(i), "own", "a") }) // its process died
			ref := cloud.Reference{Token: fmt.Sprint(i), OwnershipID: "own"}
			remove(t, a, ref, 5*time.Minute)
			if ids := c.alive(ref.Token); len(ids) != 0 {
				t.Errorf("alive: %v", ids)
			}
		}
	})
}

// TestForgottenRecorded: a recorded machine that the cloud no longer knows is gone as soon as the
// read lag has passed.
func TestForgottenRecorded(t *testing.T) {
	for _, lag := range []time.Duration{0, 10 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			c := newTestCloud(t)
			c.lag = lag
			a := c.begin(t).account(t)
			took := remove(t, a, cloud.Reference{Token: "m", OwnershipID: "own", ProviderID: "test:///i-9"}, time.Minute)
			if took < lag || took > lag+3*time.Second {
				t.Errorf("with a lag of %s: %s", lag, took)
			}
		})
	}
}

// TestOtherClustersResourcesAreNotDeleted: a resource with the token and another cluster's
// ownership is not deleted, and is an error. This cluster's resource is deleted.
func TestOtherClustersResourcesAreNotDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		c.dependants = 1
		s := c.begin(t)
		a := s.account(t)
		c.with(func() {
			c.make("m", "foreign", "a")
			c.make("m", "own", "a")
		})
		ref := cloud.Reference{Token: "m", OwnershipID: "own", ProviderID: "test:///i-0002"}
		a.Delete(ref, time.Now())
		time.Sleep(10 * time.Minute)
		d := a.Delete(ref, time.Now())
		if d.Gone || cloud.CodeOf(d.Err) != cloud.Conflict || len(d.Remaining) != 2 || s.count("m") != 1 {
			t.Errorf("%+v, told %d times", d, s.count("m"))
		}
		if ids := c.alive("m"); !slices.Equal(ids, []string{"i-0001", "nic-i-0001-0"}) {
			t.Errorf("alive: %v", ids)
		}
		if n := c.count("describe"); n > 40 {
			t.Errorf("%d live reads in 10 minutes", n)
		}
	})
}

// TestUnknownOwner: if the machine's ownership ID is not known any more, its token decides alone.
func TestUnknownOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		a := c.begin(t).account(t)
		c.with(func() {
			c.make("m", "own", "a")
			c.make("other", "own", "a")
		})
		remove(t, a, cloud.Reference{Token: "m"}, time.Minute)
		if ids := append(c.alive("m"), c.alive("other")...); !slices.Equal(ids, []string{"i-0002"}) {
			t.Errorf("alive: %v", ids)
		}
	})
}

// TestDuplicatesGo: all instances with the machine's token are deleted with it.
func TestDuplicatesGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		a := c.begin(t).account(t)
		c.with(func() {
			c.make("m", "own", "a")
			c.make("m", "own", "b")
		})
		remove(t, a, cloud.Reference{Token: "m", OwnershipID: "own", ProviderID: "test:///i-0001"}, time.Minute)
		if ids := c.alive("m"); len(ids) != 0 {
			t.Errorf("alive: %v", ids)
		}
	})
}

// TestNewCredentials: revoked credentials lose nothing and are reported; new ones are used at once.
func TestNewCredentials(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		s := c.begin(t)
		a := s.account(t)
		ref, kept := running(t, a, "m"), running(t, a, "kept")
		c.with(func() { c.credential = "new" })
		a.Delete(ref, time.Now())
		time.Sleep(20 * time.Minute)
		if d := a.Delete(ref, time.Now()); d.Gone || cloud.CodeOf(d.Err) != cloud.Unauthorized {
			t.Errorf("%+v", d)
		}
		if o := a.Observe(kept, true); o.Gone || o.Instance == nil || a.Inventory().Fresh {
			t.Errorf("%+v, fresh %t", o, a.Inventory().Fresh)
		}
		if n := len(c.log()); n > 100 {
			t.Errorf("%d calls in 20 minutes", n)
		}
		b := s.account(t, func(cfg *AccountConfig) { cfg.Credentials = map[string][]byte{"token": []byte("new")} })
		took := until(t, time.Minute, "gone", func() bool { return b.Delete(ref, time.Now()).Gone })
		if took > 6*time.Second {
			t.Errorf("gone %s after the new credentials came", took)
		}
		if !b.Inventory().Fresh || b.Observe(kept, true).Instance == nil {
			t.Errorf("%+v", b.Inventory())
		}
	})
}

// TestOneFailureAmongMany: an error of one resource does not delay the others.
func TestOneFailureAmongMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		s := c.begin(t)
		a := s.account(t)
		var refs []cloud.Reference
		for i := range 10 {
			refs = append(refs, running(t, a, fmt.Sprint(i)))
		}
		c.with(func() { c.protected = "i-0004" })
		for _, ref := range refs {
			a.Delete(ref, time.Now())
		}
		for i, ref := range refs {
			if i != 3 {
				remove(t, a, ref, 10*time.Second)
			}
		}
		time.Sleep(5 * time.Minute)
		if d := a.Delete(refs[3], time.Now()); d.Gone || cloud.CodeOf(d.Err) != cloud.InvalidSpec || len(d.Remaining) != 1 {
			t.Errorf("%+v", d)
		}
		if n := c.count("terminate"); n > 20 {
			t.Errorf("%d deletes in 5 minutes", n)
		}
		c.with(func() { c.protected = "" })
		remove(t, a, refs[3], 2*time.Minute)
	})
}

// TestSlowStop: a VM that takes minutes to stop is read less and less often.
func TestSlowStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		c.stop = 10 * time.Minute
		a := c.begin(t).account(t)
		ref := running(t, a, "m")
		took := remove(t, a, ref, time.Hour)
		if took > c.stop+maxReadInterval+2*time.Second || c.count("describe") > 40 || c.count("terminate") > 12 {
			t.Errorf("took %s, %d live reads, %d deletes", took, c.count("describe"), c.count("terminate"))
		}
	})
}

// TestBusyStop: while a busy cloud ends one instance after another, no deletion is repeated. The
// deletion of an instance that never ends is repeated eventually.
func TestBusyStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		c.stop = time.Hour
		a := c.begin(t).account(t)
		refs := c.observed(a, 100)
		time.Sleep(time.Minute)
		for _, ref := range refs {
			a.Delete(ref, time.Now())
		}
		time.Sleep(30 * time.Second)
		c.with(func() {
			n := 0
			for _, r := range c.resources {
				if n++; n < 100 {
					r.then = time.Now().Add(time.Duration(n) * 5 * time.Second)
				}
			}
		})
		asked := func() (n int) {
			for _, call := range c.log() {
				if call.op == "terminate" {
					n += call.size
				}
			}
			return n
		}
		time.Sleep(99 * 5 * time.Second)
		if n := asked(); n != 100 {
			t.Errorf("asked %d times for 100 instances", n)
		}
		time.Sleep(resendStoppingBusy)
		if n := asked(); n < 102 {
			t.Errorf("asked %d times for 100 instances, one of which stays", n)
		}
	})
}

// TestSlowReads: after a slow live read, the next one waits for nine times as long, but never
// longer than half a minute.
func TestSlowReads(t *testing.T) {
	for took, most := range map[time.Duration]int{100 * time.Millisecond: 300, 2 * time.Second: 30, 10 * time.Second: 15} {
		synctest.Test(t, func(t *testing.T) {
			c := newTestCloud(t)
			c.stop = time.Minute
			a := c.begin(t).account(t)
			refs := c.observed(a, 100)
			time.Sleep(time.Minute)
			c.with(func() { c.latency = took })
			start := time.Now()
			for _, ref := range refs { // 1 every 6 s, so that some read is always due
				a.Delete(ref, time.Now())
				time.Sleep(10 * time.Minute / 100)
			}
			if n := c.count("describe"); n > most {
				t.Errorf("%d live reads in %s, each of which takes %s: want at most %d", n, time.Since(start), took, most)
			}
			for _, ref := range refs {
				remove(t, a, ref, 3*time.Minute)
			}
		})
	}
}

// TestDeletedAreNotListed: deletions do their own live reads. An account whose machines are all
// being deleted is neither listed nor asked for events. With another machine, it is at once.
func TestDeletedAreNotListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		c.stop = 20 * time.Minute
		s, p := c.withQueue(t)
		a := s.account(t)
		refs := c.observed(a, 10)
		time.Sleep(time.Minute)
		for _, ref := range refs {
			a.Delete(ref, time.Now())
		}
		time.Sleep(time.Minute)
		listed, heard := c.count("list"), p.count()
		time.Sleep(15 * time.Minute)
		if n := c.count("list") - listed; n != 0 {
			t.Errorf("%d listings", n)
		}
		if n := p.count() - heard; n != 0 {
			t.Errorf("%d questions for news", n)
		}
		if state := a.Inventory(); !state.Fresh || s.accountChanges() != 1 { // the first answer about news
			t.Errorf("%+v, told %d times", state, s.accountChanges())
		}
		a.Observe(ensure(t, a, "m"), true)
		time.Sleep(10 * time.Second)
		if c.count("list") == listed || p.count() == heard || s.accountChanges() != 1 {
			t.Errorf("another machine: %d listings, %d questions, told %d times", c.count("list")-listed, p.count()-heard, s.accountChanges())
		}
		for _, ref := range refs {
			remove(t, a, ref, 20*time.Minute)
		}
	})
}

// TestForgetWhileDeleting: a forgotten machine is not reported any more.
func TestForgetWhileDeleting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		s := c.begin(t)
		a := s.account(t)
		ref := running(t, a, "m")
		told := s.count("m")
		a.Delete(ref, time.Now())
		time.Sleep(2 * time.Second)
		a.Forget("m")
		n := len(c.log())
		time.Sleep(10 * time.Minute)
		if s.count("m") != told || len(c.log()) > n+1 || a.inventory.records.machines["m"].phase != untracked {
			t.Errorf("told %d times, %d calls", s.count("m")-told, len(c.log())-n)
		}
	})
}

// TestDeletionByName: where the name is the identity, a name that is known may be another machine's
// by now. A deletion reads first, where others delete what they know.
func TestDeletionByName(t *testing.T) {
	for named, first := range map[bool]string{true: "describe", false: "terminate"} {
		synctest.Test(t, func(t *testing.T) {
			c := newTestCloud(t)
			c.named = named
			a := c.begin(t).account(t)
			ref := ensure(t, a, "m")
			a.Observe(ref, true)
			until(t, time.Minute, "listed", func() bool { return !a.Inventory().LastComplete.IsZero() })
			until(t, time.Minute, "deleted", func() bool { return a.Delete(ref, time.Now()).Gone })
			for _, call := range c.log() {
				if call.op == "describe" || call.op == "terminate" {
					if call.op != first {
						t.Errorf("named %t: the first call is %q", named, call.op)
					}
					return
				}
			}
		})
	}
}
