// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"flag"
	"math/rand/v2"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

var (
	seed  = flag.Uint64("seed", 1000, "the first seed of TestSeeds")
	seeds = flag.Int("seeds", 3, "how many seeds TestSeeds runs")
)

// TestSeeds runs steps in any order, each killed after some of its writes or not at all. A rollback
// then leaves everything as it was, each time. In the end the takeover is completed.
func TestSeeds(t *testing.T) {
	s := start(t, "seeds", Pool{Name: "a", Replicas: 2, Labels: map[string]any{"pool": "a"}})
	s.AWS.SetKeep(false)
	g := NewWithT(t)
	s.Old.Lease(time.Now().Add(-time.Hour))
	before, began := s.Picture(), s.AWS.Calls()
	for n := *seed; n < *seed+uint64(*seeds); n++ {
		s.Logf("seed %d", n)
		r := rand.New(rand.NewPCG(n, 0))
		for range 3 + r.IntN(4) {
			step := []string{"stage", "stage", "switch", "rollback"}[r.IntN(4)]
			writes := map[string]int32{"stage": 11, "switch": 1, "rollback": 7}[step] // about as many as it makes
			if wrote, p := s.cut(step, 1+r.Int32N(writes+1)); wrote == "" {
				s.Logf("%s ended with code %d", step, p.cmd.ProcessState.ExitCode())
			}
		}
		out, errs, code := s.Run("rollback")
		g.Expect(code).To(Equal(0), "seed %d: %s%s", n, out, errs)
		g.Expect(s.Picture()).To(Equal(before), "seed %d", n)
	}
	s.Done("stage")
	s.Done("switch")
	s.Still(before, 2)
	s.Done("commit")
	made := s.AWS.Calls()
	for _, op := range []string{"RunInstances", "TerminateInstances"} {
		g.Expect(made[op]).To(Equal(began[op]), op)
	}
	s.Committed(before)
}
