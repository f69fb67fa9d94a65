// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/drover-io/drover/cloud"
)

// What has an ownership ID and no token belongs to no machine, so no call without a token selects
// it.
func TestWithoutTokenNothingIsSelected(t *testing.T) {
	for _, ref := range []cloud.Reference{{}, {ProviderID: "test:///a/i-other"},
		{OwnershipID: "another-cluster", ProviderID: "test:///a/i-other"}} {
		synctest.Test(t, func(t *testing.T) {
			c := newTestCloud(t)
			a := c.begin(t).account(t)
			foreign := &testResource{Kind: cloud.KindInstance, ID: "i-foreign", OwnershipID: "another-cluster", Zone: "a", State: cloud.StateRunning,
				Created: time.Now()}
			c.with(func() { c.resources[foreign.ID] = foreign })
			until(t, 5*time.Minute, "listed", func() bool { began, all := a.Listing(time.Minute); return !began.IsZero() && len(all) == 1 })
			if d := a.Delete(ref, time.Now()); d.Gone || cloud.CodeOf(d.Err) != cloud.InvalidSpec {
				t.Errorf("Delete: %+v", d)
			}
			if d := a.DeleteBalancer(cloud.Reference{OwnershipID: ref.OwnershipID, Balancer: true}, time.Now()); d.Gone || cloud.CodeOf(d.Err) != cloud.InvalidSpec {
				t.Errorf("DeleteBalancer: %+v", d)
			}
			if o := a.Observe(ref, true); o.Instance != nil || o.Gone {
				t.Errorf("Observe: %+v", o)
			}
			if found, failed := a.Read(t.Context(), []cloud.Reference{ref}); len(found) > 0 || cloud.CodeOf(failed[""]) != cloud.InvalidSpec {
				t.Errorf("Read: %v, %v", found, failed)
			}
			resources := []cloud.Resource{{Kind: cloud.KindInstance, ID: "i-foreign"}, {Kind: cloud.KindInstance, ID: "i-gone", Token: "m"},
				{Kind: cloud.KindInstance, ID: "i-foreign"}}
			if errs := a.Remove(t.Context(), resources); len(errs) != 3 || errs[0] == nil || errs[1] != nil || errs[2] == nil {
				t.Errorf("Remove: %v", errs)
			}
			time.Sleep(5 * time.Minute)
			c.with(func() {
				if r := c.resources["i-foreign"]; r == nil || r.State != cloud.StateRunning {
					t.Errorf("an instance of another cluster was deleted: %+v", r)
				}
			})
		})
	}
}
