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
	s := start(t, "seeds", pool{name: "a", replicas: 2, labels: map[string]any{"pool": "a"}})
	s.AWS.SetKeep(false)
	g := NewWithT(t)
	s.old.lease(time.Now().Add(-time.Hour))
	before, began := s.picture(), s.AWS.Calls()
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
		out, errs, code := s.run("rollback")
		g.Expect(code).To(Equal(0), "seed %d: %s%s", n, out, errs)
		g.Expect(s.picture()).To(Equal(before), "seed %d", n)
	}
	s.done("stage")
	s.done("switch")
	s.still(before, 2)
	s.done("commit")
	made := s.AWS.Calls()
	for _, op := range []string{"RunInstances", "TerminateInstances"} {
		g.Expect(made[op]).To(Equal(began[op]), op)
	}
	s.committed(before)
}
