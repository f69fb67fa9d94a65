// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drover-io/drover/cloud"
)

// running makes a machine and waits until the engine sees it running.
func running(t *testing.T, a *Account, token string) cloud.Reference {
	t.Helper()
	ref := ensure(t, a, token)
	until(t, time.Minute, token+" runs", func() bool {
		o := a.Observe(ref, true)
		return o.Instance != nil && o.Instance.State == cloud.StateRunning
	})
	return ref
}

// TestListingsAreShared: one listing serves all machines. Listings are frequent while machines
// start and rare afterwards. Only changed machines are reported.
func TestListingsAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		s := c.begin(t)
		a := s.account(t)
		time.Sleep(time.Hour)
		if n := len(c.log()); n != 0 || !a.Inventory().Fresh {
			t.Fatalf("%d calls while no one is interested; %+v", n, a.Inventory())
		}
		var refs []cloud.Reference
		for i := range 40 {
			refs = append(refs, ensure(t, a, fmt.Sprint(i)))
		}
		for _, ref := range refs {
			a.Observe(ref, true)
		}
		time.Sleep(15 * time.Second)
		for _, ref := range refs {
			if o := a.Observe(ref, true); o.Instance == nil || o.Instance.State != cloud.StateRunning || s.count(ref.Token) != 1 {
				t.Errorf("%+v, told %d times", o, s.count(ref.Token))
			}
		}
		busy := c.count("list")
		if busy > 8 {
			t.Errorf("%d listings while 40 machines started", busy)
		}
		time.Sleep(10 * time.Minute)
		if n := c.count("list") - busy; n < 9 || n > 11 {
			t.Errorf("%d listings in 10 idle minutes", n)
		}
		if n := c.count("describe"); n != 0 {
			t.Errorf("%d live reads", n)
		}
		for _, ref := range refs {
			if s.count(ref.Token) != 1 {
				t.Errorf("%s was told of %d times", ref.Token, s.count(ref.Token))
			}
		}
		state := a.Inventory()
		if !state.Fresh || state.Err != nil || state.Instances != 40 {
			t.Errorf("%+v", state)
		}
		for _, ref := range refs {
			a.Forget(ref.Token)
		}
		n := len(c.log())
		time.Sleep(time.Hour)
		if len(c.log()) != n {
			t.Error("it is listed for no one")
		}
	})
}

// TestListingAfterNodesJoined: when all starting machines have become Nodes, the account is listed
// at once instead of at the next frequent listing. If the listing does not show a machine running
// yet, the next one is not made early.
func TestListingAfterNodesJoined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		c.start = 7 * time.Second // listings every 5 s see it after 10 s
		a := c.begin(t).account(t)
		refs := []cloud.Reference{ensure(t, a, "one"), ensure(t, a, "two")}
		for _, ref := range refs {
			a.Observe(ref, true)
		}
		listings := func(within time.Duration) int {
			before := c.count("list")
			time.Sleep(within)
			return c.count("list") - before
		}
		time.Sleep(6500 * time.Millisecond)
		a.NodeJoined("one")
		a.NodeJoined("nobody's")
		if n := listings(time.Second); n != 0 {
			t.Errorf("%d listings although one machine is still to join", n)
		}
		a.NodeJoined("two")
		if n := listings(500 * time.Millisecond); n != 1 {
			t.Errorf("%d listings when all have joined", n)
		}
		for _, ref := range refs {
			if o := a.Observe(ref, true); o.Instance == nil || o.Instance.State != cloud.StateRunning {
				t.Errorf("%+v", o)
			}
		}

		c.with(func() { c.start = time.Hour })
		a.Observe(ensure(t, a, "three"), true)
		listings(5500 * time.Millisecond)
		a.NodeJoined("three")
		if n := listings(3 * time.Second); n != 1 {
			t.Errorf("%d listings for a machine that the cloud does not show running yet", n)
		}
	})
}

// TestMaxStartTime: a machine that never runs keeps listings frequent for only 15 minutes.
func TestMaxStartTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		c.start = 24 * time.Hour
		a := c.begin(t).account(t)
		a.Observe(ensure(t, a, "m"), true)
		time.Sleep(maxStartTime)
		before := c.count("list")
		if before < 150 {
			t.Errorf("%d listings while it starts", before)
		}
		time.Sleep(time.Hour)
		if n := c.count("list") - before; n > 70 {
			t.Errorf("%d listings in the hour after", n)
		}
	})
}

// TestSlowListings: after a slow listing, the next one waits for nine times as long, but never
// longer than an idle account does.
func TestSlowListings(t *testing.T) {
	for took, most := range map[time.Duration]int{100 * time.Millisecond: 125, 2 * time.Second: 33, time.Minute: 9} {
		synctest.Test(t, func(t *testing.T) {
			c := newTestCloud(t)
			c.start = time.Hour
			a := c.begin(t).account(t)
			a.Observe(ensure(t, a, "m"), true)
			c.with(func() { c.latency = took })
			time.Sleep(2 * time.Minute) // until the latency is known
			before := c.count("list")
			time.Sleep(10 * time.Minute)
			if n := c.count("list") - before; n > most+1 || n < most-most/8-2 {
				t.Errorf("%d listings in 10 minutes, each of which takes %s: want about %d", n, took, most)
			}
		})
	}
}

// TestFailedListingIsNotAbsence: however a listing fails, no machine is gone. The inventory becomes
// stale, says why, and recovers. Seen to fail when a failed listing was taken for a complete one.
func TestFailedListingIsNotAbsence(t *testing.T) {
	for name, f := range map[string]fault{
		"error":        {code: string(cloud.Unavailable)},
		"unauthorized": {code: string(cloud.Unauthorized)},
		"throttled":    {code: string(cloud.Throttled), retry: 20 * time.Second},
		"cut":          {cut: true},
		"half":         {broken: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newTestCloud(t)
				s := c.begin(t)
				a := s.account(t)
				refs := c.observed(a, 150) // two pages
				time.Sleep(time.Minute)
				pages := 0
				c.setFault(func(op string) fault {
					if pages++; op == "list" && pages%2 == 0 {
						return f // the second page
					}
					return fault{}
				})
				time.Sleep(10 * time.Minute)
				for _, ref := range refs {
					if o := a.Observe(ref, true); o.Gone || o.Instance == nil || o.Instance.State != cloud.StateRunning {
						t.Fatalf("%s: %+v", ref.Token, o)
					}
				}
				state := a.Inventory()
				told := 1 // for the stale inventory
				if f.code == string(cloud.Unauthorized) {
					told = 2 // and one before for the refused credentials
				}
				if state.Fresh || cloud.CodeOf(state.Err) == "" || state.Instances != 150 || s.accountChanges() != told {
					t.Errorf("%+v, told %d times", state, s.accountChanges())
				}
				if n := c.count("list"); n > 60 {
					t.Errorf("%d listings while they fail", n)
				}
				c.setFault(nil)
				time.Sleep(70 * time.Second)
				if state := a.Inventory(); !state.Fresh || state.Err != nil || s.accountChanges() != told+1 {
					t.Errorf("%+v, told %d times", state, s.accountChanges())
				}
			})
		})
	}
}

// TestVanished: a VM that was deleted outside Drover is Gone within one interval, after one live
// read for all such VMs, and stays Gone. The others are not affected.
func TestVanished(t *testing.T) {
	for name, forgotten := range map[string]bool{"terminated": false, "forgotten": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newTestCloud(t)
				s := c.begin(t)
				a := s.account(t)
				var refs []cloud.Reference
				for i := range 10 {
					refs = append(refs, running(t, a, fmt.Sprint(i)))
				}
				time.Sleep(time.Minute)
				told := s.count("0")
				for i := range 3 {
					c.vanish(fmt.Sprint(i), forgotten)
				}
				until(t, 67*time.Second, "gone", func() bool { return a.Observe(refs[0], true).Gone })
				for i, ref := range refs {
					if o := a.Observe(ref, true); o.Gone != (i < 3) || (o.Instance != nil) != (i >= 3 || !forgotten) {
						t.Errorf("%d: %+v", i, o)
					}
				}
				if n := c.count("describe"); n != 1 {
					t.Errorf("%d live reads", n)
				}
				if n := s.count("0") - told; n < 1 || n > 2 {
					t.Errorf("notified %d times", n)
				}
				n := s.count("0")
				time.Sleep(10 * time.Minute)
				if !a.Observe(refs[0], true).Gone || s.count("0") != n || c.count("describe") != 1 {
					t.Errorf("later: %+v, told %d more times, %d live reads", a.Observe(refs[0], true), s.count("0")-n, c.count("describe"))
				}
				if _, err := a.Ensure(t.Context(), request("0"), nil); cloud.CodeOf(err) != cloud.Conflict {
					t.Errorf("made again: %v", err)
				}
			})
		})
	}
}

// TestGoneNeedsALiveRead: a machine that listings lack is not gone while live reads fail or still
// find it. A machine that was never recorded is never gone. So a listing that lacks a page does no
// harm. Seen to fail when a machine that a listing lacked was gone.
func TestGoneNeedsALiveRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		a := c.begin(t).account(t)
		ref := running(t, a, "m")
		unrecorded := cloud.Reference{Token: "n", OwnershipID: "own"}
		a.Observe(unrecorded, true)
		c.setFault(func(op string) fault {
			if op == "describe" {
				return fault{code: string(cloud.Unavailable)}
			}
			return fault{}
		})
		c.vanish("m", true)
		time.Sleep(time.Hour)
		if a.Observe(ref, true).Gone {
			t.Error("gone without a live read")
		}
		c.setFault(nil)
		until(t, time.Minute, "gone", func() bool { return a.Observe(ref, true).Gone })
		if a.Observe(unrecorded, true).Gone {
			t.Error("gone, and was never there")
		}
	})
}

// TestEventualConsistency: if reads lag, a new machine is never gone. A machine that vanished
// without a trace is gone, but not before two reads that are further apart than the lag.
func TestEventualConsistency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		c.lag = 20 * time.Second
		c.start = 30 * time.Second
		a := c.begin(t).account(t)
		var refs []cloud.Reference
		for i := range 20 {
			refs = append(refs, ensure(t, a, fmt.Sprint(i)))
			for _, ref := range refs {
				a.Observe(ref, true)
			}
		}
		for range 1200 {
			for _, ref := range refs {
				if o := a.Observe(ref, true); o.Gone || o.Instance == nil {
					t.Fatalf("%s: %+v", ref.Token, o)
				}
			}
			time.Sleep(100 * time.Millisecond)
		}
		c.vanish("0", true)
		took := until(t, 2*time.Minute, "gone", func() bool { return a.Observe(refs[0], true).Gone })
		if took < c.lag {
			t.Errorf("gone after %s", took)
		}
	})
}

// TestHiddenIsNotGone: a machine that one live read misses and the next one finds is not gone.
func TestHiddenIsNotGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		c.lag = 10 * time.Second
		a := c.begin(t).account(t)
		ref := running(t, a, "m")
		time.Sleep(time.Minute)
		var hidden testResource
		c.with(func() {
			for id, r := range c.resources {
				hidden = *r
				delete(c.resources, id)
			}
		})
		until(t, 2*time.Minute, "a live read missed it", func() bool { return c.count("describe") == 1 })
		c.with(func() { c.resources[hidden.ID] = &hidden })
		time.Sleep(10 * time.Minute)
		if o := a.Observe(ref, true); o.Gone || o.Instance == nil {
			t.Errorf("%+v", o)
		}
	})
}

// TestPoisonedBatch: one invalid reference, or one in conflict with what is there, does not keep the
// others from being read.
func TestPoisonedBatch(t *testing.T) {
	for _, code := range []cloud.Code{cloud.InvalidSpec, cloud.Conflict} {
		poisonedBatch(t, code)
	}
}

func poisonedBatch(t *testing.T, code cloud.Code) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		a := c.begin(t).account(t)
		var refs []cloud.Reference
		for i := range 30 {
			refs = append(refs, cloud.Reference{Token: fmt.Sprint(i), OwnershipID: "own", ProviderID: "test:///" + fmt.Sprint(i)})
		}
		refs[17].Token = "poison"
		c.with(func() { c.poison, c.poisonCode = "poison", code })
		found, failed := a.Read(t.Context(), refs)
		if len(found) != 0 || len(failed) != 1 || cloud.CodeOf(failed["poison"]) != code {
			t.Errorf("found %v, failed %v", found, failed)
		}
		if n := c.count("describe"); n > 12 {
			t.Errorf("%d live reads", n)
		}
	})
}
