// SPDX-License-Identifier: Apache-2.0

package driverkit

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/drover-io/drover/cloud"
)

// TestKnown: what is known changes by one caller at a time, and a search ends what it does not
// show.
func TestKnown(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	var k Known[int]
	k.Forget("a")
	g.Expect(k.IsEmpty()).To(BeTrue())
	g.Expect(k.IsSearched()).To(BeFalse())
	add := func(is int, known bool) (int, bool) { return is + 1, true }
	g.Expect(k.Change("a", add)).To(Equal(1))
	g.Expect(k.Change("a", add)).To(Equal(2))
	k.Put("b", 7)
	all := k.All()
	g.Expect(all).To(Equal(map[string]int{"a": 2, "b": 7}))
	delete(all, "a")
	is, known := k.Get("a")
	g.Expect([]any{is, known}).To(Equal([]any{2, true}))

	k.Listed(nil)
	g.Expect(k.IsSearched()).To(BeTrue())
	g.Expect(k.All()).To(HaveLen(2))
	k.Listed(func(_ string, is int) bool { return is == 7 })
	g.Expect(k.All()).To(Equal(map[string]int{"a": 2}))
	g.Expect(k.Change("a", func(int, bool) (int, bool) { return 0, false })).To(BeZero())
	_, known = k.Get("a")
	g.Expect(known).To(BeFalse())
}

// TestKnownWithoutPermission: an account that may not read load balancers has none, unless the
// driver knows one.
func TestKnownWithoutPermission(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	var k Known[struct{}]
	forbidden, outage := cloud.Errorf(cloud.Unauthorized, "no"), cloud.Errorf(cloud.Unavailable, "no")
	g.Expect(k.MayRead(forbidden, false)).To(Succeed())
	g.Expect(k.MayRead(forbidden, true)).To(MatchError(forbidden), "what was made may be there")
	g.Expect(k.MayRead(outage, false)).To(MatchError(outage))
	g.Expect(k.MayRead(nil, false)).To(Succeed())
	k.Put("a", struct{}{})
	g.Expect(k.MayRead(forbidden, false)).To(MatchError(forbidden))
	k.Forget("a")
	g.Expect(k.MayRead(forbidden, false)).To(Succeed())
}
