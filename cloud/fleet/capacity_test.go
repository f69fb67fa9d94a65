// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drover-io/drover/cloud"
)

// TestRefusedDomains: each allowed domain is tried once before a machine waits, and what waits says
// what the cloud has answered. A domain in which the driver has something else to try is tried
// again at once.
func TestRefusedDomains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &capacity{ttl: 3 * time.Minute, noneUntil: map[shortage]lack{}}
		domains := []string{"a", "b", "c"}
		shape := [32]byte{1}
		refuse := func(domain string, e *cloud.Error) *cloud.Error {
			return c.refused(shortage{domain, shape}, domains, e).(*cloud.Error)
		}
		again := refuse("a", &cloud.Error{Code: cloud.NoCapacity, Message: "a subnet is full", RetryAfter: time.Second})
		if next, err := c.choose(shape, domains); next != "a" || err != nil || again.RetryAfter != time.Second {
			t.Errorf("after a part of the domain has refused, %q comes after %s: %v", next, again.RetryAfter, err)
		}
		for i, domain := range domains {
			if next, err := c.choose(shape, domains); next != domain || err != nil {
				t.Fatalf("%q comes next, want %q: %v", next, domain, err)
			}
			e := refuse(domain, cloud.Errorf(cloud.NoCapacity, "no such accelerator in %s", domain))
			if last := i == len(domains)-1; last != (e.RetryAfter > time.Minute) {
				t.Errorf("after %s, the machine waits for %s", domain, e.RetryAfter)
			}
			time.Sleep(time.Second)
		}
		_, err := c.choose(shape, domains)
		if e, ok := err.(*cloud.Error); !ok || e.RetryAfter != c.ttl-time.Second || !strings.Contains(e.Message, "no such accelerator in c") {
			t.Errorf("none is left: %v", err)
		}
		if next, err := c.choose([32]byte{2}, domains); next != "a" || err != nil {
			t.Errorf("another kind of machine goes to %q: %v", next, err)
		}
		time.Sleep(c.ttl - time.Second)
		if next, err := c.choose(shape, domains); next != "a" || err != nil {
			t.Errorf("%q is tried again first: %v", next, err)
		}
	})
}

// TestSlowRefusals: a cloud takes two minutes to refuse a machine, so the memory for the first
// domain would end before the last one is tried.
func TestSlowRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &capacity{ttl: 3 * time.Minute, noneUntil: map[shortage]lack{}}
		domains := []string{"a", "b", "c", "d", "e"}
		shape := [32]byte{1}
		for round := range 2 {
			for _, domain := range domains {
				if next, err := c.choose(shape, domains); next != domain || err != nil {
					t.Fatalf("round %d: %q comes next, want %q: %v", round, next, domain, err)
				}
				time.Sleep(2 * time.Minute)
				_ = c.refused(shortage{domain, shape}, domains, cloud.Errorf(cloud.NoCapacity, "x"))
			}
			if next, err := c.choose(shape, domains); err == nil {
				t.Fatalf("round %d: %q is tried again at once", round, next)
			}
			time.Sleep(c.ttl)
		}
	})
}
