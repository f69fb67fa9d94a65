// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drover-io/drover/cloud"
)

func balancerRequest(token string, recorded bool, targets ...string) cloud.BalancerRequest {
	return cloud.BalancerRequest{Token: token, OwnershipID: "own", Recorded: recorded, Namespace: "team", Name: "c", Port: 6443,
		Targets: targets}
}

// TestBalancer tests the calls in the life of a load balancer: one to create it, one for each
// change of its targets, and none of its own while nothing changes.
func TestBalancer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		s := c.begin(t)
		a := s.account(t)
		expect := func(calls int, req cloud.BalancerRequest) {
			t.Helper()
			if _, err := a.EnsureBalancer(t.Context(), req); err != nil || c.count("balance") != calls {
				t.Fatalf("%d calls, want %d; %v", c.count("balance"), calls, err)
			}
		}
		expect(1, balancerRequest("b", false, "10.0.0.1"))
		expect(1, balancerRequest("b", true, "10.0.0.1"))
		steps := func(do func(*slots)) {
			create := a.limiter.Load().create
			create.mu.Lock()
			defer create.mu.Unlock()
			do(&create.lane(testKey).steps)
		}
		steps(func(s *slots) {
			for range maxConcurrentCreates {
				s.begin(time.Now())
			}
		})
		expect(2, balancerRequest("b", true, "10.0.0.1", "10.0.0.2"))
		var queued *cloud.Queued
		if _, err := a.EnsureBalancer(t.Context(), balancerRequest("other", false)); !errors.As(err, &queued) {
			t.Errorf("got %v, want Queued: creates hold all workers that they may", err)
		}
		steps(func(s *slots) { s.starts = nil })
		time.Sleep(10 * time.Minute)
		expect(2, balancerRequest("b", true, "10.0.0.1", "10.0.0.2"))
		if n := c.count("list"); n < 9 || n > 12 || c.count("describe") > 0 {
			t.Errorf("%d listings in ten idle minutes, want one a minute", n)
		}

		told := s.count("b")
		c.with(func() { delete(c.resources, "lb-b") }) // somebody deletes it
		until(t, 2*time.Minute, "the controller is told", func() bool { return s.count("b") > told })
		if _, err := a.EnsureBalancer(t.Context(), balancerRequest("b", true)); cloud.CodeOf(err) != cloud.NotFound || len(c.alive("b")) > 0 {
			t.Errorf("got %v, want NotFound, and no second balancer: %v", err, c.alive("b"))
		}
	})
}

// TestBalancerThatFails: the driver is asked about a load balancer that the cloud failed to create
// until somebody has its address.
func TestBalancerThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		a := c.begin(t).account(t)
		ensure := func(recorded bool) cloud.Resource {
			t.Helper()
			r, err := a.EnsureBalancer(t.Context(), balancerRequest("b", recorded))
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		ensure(false)
		c.with(func() { c.resources["lb-b"].State = cloud.StateFailed })
		time.Sleep(2 * time.Minute)
		if r := ensure(false); r.State != cloud.StateFailed || c.count("balance") != 2 {
			t.Errorf("%s after %d calls, want Failed after 2", r.State, c.count("balance"))
		}
		if ensure(true); c.count("balance") != 2 {
			t.Errorf("%d calls, want none for one that is in use", c.count("balance")-2)
		}
	})
}

// TestBalancerAfterLostAnswer tests that a create without an answer makes no second balancer, and
// that a deletion waits until such a create can't take effect any more.
func TestBalancerAfterLostAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		a := c.begin(t).account(t)
		c.setFault(func(op string) fault { return fault{cut: op == "balance"} })
		if _, err := a.EnsureBalancer(t.Context(), balancerRequest("b", false)); cloud.CodeOf(err) != cloud.Unavailable {
			t.Fatalf("got %v, want Unavailable", err)
		}
		c.setFault(nil)
		if b, err := a.EnsureBalancer(t.Context(), balancerRequest("b", false)); err != nil || b.ID != "lb-b" {
			t.Fatalf("got %+v, %v", b, err)
		}

		c.setFault(func(op string) fault { return fault{cut: op == "balance", late: 40 * time.Second} })
		_, _ = a.EnsureBalancer(t.Context(), balancerRequest("late", false))
		c.setFault(nil)
		ref := cloud.Reference{Token: "late", OwnershipID: "own"}
		until(t, 5*time.Minute, "the late balancer is deleted", func() bool { return a.DeleteBalancer(ref, time.Now()).Gone })
		if c.made["late"] == nil || len(c.alive("late")) > 0 {
			t.Errorf("made: %v, left: %v", c.made["late"] != nil, c.alive("late"))
		}
	})
}

// TestBalancerDeletion tests that the deletion of a recorded balancer takes no longer than its two
// reads, and that the balancer is not made again meanwhile.
func TestBalancerDeletion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		a := c.begin(t).account(t)
		if _, err := a.EnsureBalancer(t.Context(), balancerRequest("b", false)); err != nil {
			t.Fatal(err)
		}
		ref := cloud.Reference{Token: "b", OwnershipID: "own", Balancer: true}
		a.DeleteBalancer(ref, time.Now())
		if _, err := a.EnsureBalancer(t.Context(), balancerRequest("b", true)); cloud.CodeOf(err) != cloud.Conflict {
			t.Errorf("got %v, want Conflict", err)
		}
		took := until(t, time.Minute, "the balancer is gone", func() bool { return a.DeleteBalancer(ref, time.Now()).Gone })
		if took > 15*time.Second || c.count("terminate") != 1 || len(c.alive("b")) > 0 {
			t.Errorf("took %s and %d calls, %v is left", took, c.count("terminate"), c.alive("b"))
		}
		for _, call := range c.calls {
			if call.op == "describe" && !call.recorded {
				t.Error("the driver was not told that the balancer was made")
			}
		}
	})
}
