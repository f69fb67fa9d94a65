// SPDX-License-Identifier: Apache-2.0

package driverkit

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
)

// TestRecent: a value is remembered for its time since it was last put.
func TestRecent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		var r Recent[int]
		g.Expect(r.Has("a")).To(BeFalse())
		r.Put("a", 1, time.Minute)
		r.Put("b", 2, time.Minute)
		time.Sleep(time.Minute - 1)
		g.Expect(r.All()).To(Equal(map[string]int{"a": 1, "b": 2}))
		r.Put("a", 3, time.Minute)
		time.Sleep(time.Nanosecond)
		g.Expect(r.Has("b")).To(BeFalse(), "its time has ended")
		value, known := r.Get("a")
		g.Expect(known).To(BeTrue())
		g.Expect(value).To(Equal(3))
		g.Expect(r.All()).To(Equal(map[string]int{"a": 3}))
		r.Forget("a")
		g.Expect(r.All()).To(BeEmpty())
	})
}

// TestRecentIsBounded: a memory does not grow with what has ended, nor without bound. What is new
// always has room.
func TestRecentIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		var r Recent[struct{}]
		for i := range 20_000 {
			r.Put(strconv.Itoa(i), struct{}{}, time.Minute)
			time.Sleep(time.Second)
		}
		g.Expect(len(r.all)).To(BeNumerically("<=", 4*minSweep), "60 are remembered")
		g.Expect(r.All()).To(HaveLen(60 - 1))

		for i := range 3 * maxRecent {
			key := "x" + strconv.Itoa(i)
			r.Put(key, struct{}{}, time.Hour)
			if !r.Has(key) || len(r.all) > maxRecent {
				t.Fatalf("the %dth value is remembered: %t, with %d in all", i, r.Has(key), len(r.all))
			}
		}
		g.Expect(len(r.all)).To(BeNumerically(">=", maxRecent-maxRecent/10))
		before := len(r.all)
		for key := range r.All() { // again, which needs no room
			r.Put(key, struct{}{}, time.Hour)
		}
		g.Expect(r.All()).To(HaveLen(before))
	})
}
