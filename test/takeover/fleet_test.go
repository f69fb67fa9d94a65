// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

// TestFleet takes 300 machines over, and counts: each costs one call to the cloud, and no more than
// one in twenty is on top.
func TestFleet(t *testing.T) {
	const machines = 300
	s := start(t, "fleet", Pool{Name: "a", Replicas: machines})
	g := NewWithT(t)
	s.Old.Lease(time.Now().Add(-time.Hour))
	before, began := s.Picture(), s.AWS.Calls()
	step := func(step string, args ...string) {
		t.Helper()
		at := time.Now()
		out, errs, code := s.Run(step, args...)
		g.Expect(code).To(Equal(0), out+errs)
		t.Logf("%s took %s", step, time.Since(at).Round(time.Second/10))
	}
	step("stage")
	n := 0
	for op, count := range s.AWS.Calls() {
		n += count - began[op]
		if count > began[op] {
			t.Logf("%s: %d", op, count-began[op])
		}
	}
	t.Logf("stage: %d calls for %d machines", n, machines)
	g.Expect(n).To(BeNumerically("<=", machines*105/100), "with those of Drover's manager meanwhile")
	step("switch")
	s.Still(before, machines)
}
