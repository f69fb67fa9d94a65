// SPDX-License-Identifier: Apache-2.0

package budget_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/drover-io/drover/internal/budget"
)

func TestANamespaceHasHalf(t *testing.T) {
	g := NewWithT(t)
	b := budget.New(100)
	g.Expect(b.Set("a", "1", 30)).To(BeTrue())
	g.Expect(b.Set("a", "2", 20)).To(BeTrue())
	g.Expect(b.Set("a", "3", 1)).To(BeFalse())
	g.Expect(b.Set("a", "1", 31)).To(BeFalse())
	g.Expect(b.Set("a", "1", 29)).To(BeTrue(), "less than before")
	g.Expect(b.Set("a", "3", 1)).To(BeTrue(), "what another holder gave back")
	g.Expect(b.Set("a", "1", 0)).To(BeTrue())
	g.Expect(b.Set("a", "2", 0)).To(BeTrue())
	g.Expect(b.Set("a", "4", 49)).To(BeTrue())
}

func TestLateNamespacesGetAShare(t *testing.T) {
	g := NewWithT(t)
	b := budget.New(100)
	g.Expect(b.Set("a", "1", 50)).To(BeTrue())
	g.Expect(b.Set("b", "1", 50)).To(BeTrue())
	g.Expect(b.Set("c", "1", 17)).To(BeFalse(), "half of a third is 16")
	g.Expect(b.Set("c", "1", 16)).To(BeTrue())
	g.Expect(b.Set("d", "1", 12)).To(BeTrue())
	g.Expect(b.Set("a", "1", 51)).To(BeFalse())
	g.Expect(b.Set("a", "1", 50)).To(BeTrue(), "as much as before")
}

func TestTheSumIsBounded(t *testing.T) {
	const total, namespaces = 100_000, 50
	random := rand.New(rand.NewPCG(1, 2))
	b := budget.New(total)
	kept := map[string]int64{}
	for range 100_000 {
		namespace, holder := fmt.Sprint(random.IntN(namespaces)), fmt.Sprint(random.IntN(5))
		amount := random.Int64N(total / 4)
		if random.IntN(4) == 0 {
			amount = 0
		}
		if b.Set(namespace, holder, amount) {
			kept[namespace+"/"+holder] = amount
		}
		var sum int64
		for _, n := range kept {
			sum += n
		}
		if sum > 3*total {
			t.Fatalf("all namespaces together have %d of %d", sum, total)
		}
	}
}
