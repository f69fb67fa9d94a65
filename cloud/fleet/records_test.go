// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/internal/budget"
)

// TestRecordsAreShared: what a namespace's accounts list and watch is bounded for all of them
// together. An account that has no memory left keeps what it knew and says why it is stale; no
// machine of it is gone. Accounts of another namespace do not notice.
func TestRecordsAreShared(t *testing.T) {
	for name, change := range map[string]func(*testCloud) []func(*Options){
		"listed":  func(*testCloud) []func(*Options) { return nil },
		"watched": func(c *testCloud) []func(*Options) { return []func(*Options){c.withStreamOption(&stream{})} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newTestCloud(t)
				s := c.begin(t, change(c)...)
				s.records = budget.New(200 << 10)
				first := s.account(t)
				refs := c.observed(first, 20)
				second, err := s.Set(types.NamespacedName{Namespace: testKey.Namespace, Name: "second"}, first.config)
				other, otherErr := s.Set(types.NamespacedName{Namespace: "other", Name: "account"}, first.config)
				if err = errors.Join(err, otherErr); err != nil {
					t.Fatal(err)
				}
				_ = second.recordPlace(testPlace)
				_ = other.recordPlace(testPlace)
				for _, a := range []*Account{second, other} {
					for _, ref := range refs {
						a.Observe(ref, true)
					}
				}
				time.Sleep(5 * time.Minute)
				if state := first.Inventory(); !state.Fresh || state.Instances != 20 {
					t.Fatalf("an account with 20 machines: %+v", state)
				}
				c.with(func() {
					for _, r := range c.resources {
						r.Zone = strings.Repeat("z", 200)
					}
					for i := range 70 {
						id := "other-" + string(rune('a'+i%26)) + string(rune('a'+i/26))
						c.resources[id] = &testResource{Kind: cloud.KindNIC, ID: id, Token: id, OwnershipID: "own"}
					}
				})
				time.Sleep(5 * time.Minute)
				stale := 0
				for _, a := range []*Account{first, second} {
					if state := a.Inventory(); !state.Fresh {
						stale++
						if err := errors.Join(state.Err, state.ReceiveErr); err == nil || !strings.Contains(err.Error(), "no memory left") {
							t.Errorf("the account says %v", err)
						}
					}
					for _, ref := range refs {
						if o := a.Observe(ref, true); o.Gone {
							t.Fatal("a machine of an account without memory is gone")
						}
					}
				}
				if stale == 0 {
					t.Error("two accounts of a namespace keep twice 90 resources in 100 KiB")
				}
				if state := other.Inventory(); !state.Fresh || state.Err != nil {
					t.Errorf("the account of another namespace: %+v", state)
				}
				s.Remove(second.key)
				time.Sleep(5 * time.Minute)
				if state := first.Inventory(); !state.Fresh {
					t.Errorf("without the second account: %+v", state)
				}
			})
		})
	}
}
