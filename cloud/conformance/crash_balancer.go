// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/drover-io/drover/cloud"
)

// CrashingBalancer is a load balancer in a stand-in for a cloud, whose driver's process dies.
type CrashingBalancer struct {
	// Stub stands in for the cloud, and Wire leads to it.
	Stub interface {
		// BalancersMade returns how many load balancers were ever made, and Left what still has
		// the tag.
		BalancersMade() int
		Left(key, value string) []string
	}
	Wire http.RoundTripper
	// Connect returns a process's driver. It does not wait between its calls.
	Connect func(http.RoundTripper) (cloud.Driver, error)
	// Request makes the load balancer, and Next are its targets after that.
	Request cloud.BalancerRequest
	Next    []string

	deleting bool
}

// CrashBalancer makes the process die at each of the calls while it makes, changes and deletes a
// load balancer, before and after the call's effect. There are at least so many calls. The next
// process goes on with it, makes no second one, and leaves nothing behind. start begins each life
// with another stand-in.
func CrashBalancer(t *testing.T, calls int, start func(*testing.T) *CrashingBalancer) {
	died := 0
	for at, survived := 1, false; !survived; at++ {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("call %d, after its effect: %t", at, after), func(t *testing.T) {
				c := start(t)
				if survived = c.live(t, &dying{wire: c.Wire, at: at, after: after}); !survived {
					died++
					c.live(t, &dying{wire: c.Wire})
				}
				if n := c.Stub.BalancersMade(); n != 1 {
					t.Errorf("%d load balancers were made", n)
				}
				if left := c.Stub.Left(cloud.TagToken, c.Request.Token); len(left) > 0 {
					t.Errorf("%v are left", left)
				}
			})
		}
	}
	if died < 2*calls {
		t.Errorf("the process died at %d points, want %d", died, 2*calls)
	}
}

// live goes on with the load balancer until a live read shows nothing of it. It returns false where
// the process died.
func (c *CrashingBalancer) live(t *testing.T, transport *dying) (done bool) {
	t.Helper()
	d, err := c.Connect(transport)
	if err != nil {
		t.Fatal(err)
	}
	ref := []cloud.Reference{{Token: c.Request.Token, OwnershipID: c.Request.OwnershipID}}
	for began := time.Now(); time.Since(began) < time.Minute; {
		if transport.isDead() {
			return false
		}
		found, err := d.Describe(t.Context(), ref)
		switch {
		case err == nil && c.deleting && len(found) == 0:
			return true
		case c.deleting:
			d.Delete(t.Context(), found)
			continue
		}
		if _, err := d.List(t.Context()); err != nil {
			continue
		}
		is, err := d.(cloud.Balancer).EnsureBalancer(t.Context(), c.Request)
		if err != nil {
			continue
		}
		c.deleting = c.Request.Recorded && is.State == cloud.StateRunning
		c.Request.Recorded, c.Request.Targets = true, c.Next
	}
	t.Error("it does not end")
	return true
}
