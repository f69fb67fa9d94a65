// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestSteps: whatever is known of a machine's start, its steps follow each other without a gap, and
// their sum is the whole.
func TestSteps(t *testing.T) {
	const no = -1 // it has not ended, or nobody knows
	at := func(seconds int) time.Time { return time.Unix(1_000_000+int64(seconds), 0) }
	ends := func(seconds ...int) (ended [stepCount]time.Time) {
		for i, s := range seconds {
			if s != no {
				ended[i] = at(s)
			}
		}
		return ended
	}
	for name, c := range map[string]struct {
		ended  [stepCount]time.Time
		until  int
		want   string
		guilty string
	}{
		"all is known":                 {ends(2, 10, 40, 41, 45, 60), 60, "queue 2 start 8 boot 30 certificate 1 register 4 ready 15", "boot"},
		"the cloud says no time":       {ends(no, 10, 40, 41, 45, 60), 60, "queue 10 boot 30 certificate 1 register 4 ready 15", "boot"},
		"no certificate is known":      {ends(2, 10, no, no, 45, 60), 60, "queue 2 start 8 boot 35 ready 15", "boot"},
		"it was seen running late":     {ends(2, 50, 40, 41, 45, 60), 60, "queue 2 start 38 boot 0 certificate 1 register 4 ready 15", "start"},
		"the cloud's clock is behind":  {ends(-30, 10, 40, 41, 45, 60), 60, "queue 0 start 10 boot 30 certificate 1 register 4 ready 15", "boot"},
		"the cloud's clock is ahead":   {ends(90, 10, 40, 41, 45, 60), 60, "queue 10 start 0 boot 30 certificate 1 register 4 ready 15", "boot"},
		"it waits for its certificate": {ends(2, 10, 40), 100, "queue 2 start 8 boot 30 certificate 60", "certificate"},
		"it waits for the cloud":       {ends(), 100, "queue 100", "queue"},
		"equal ones":                   {ends(10, 20), 20, "queue 10 start 10 boot 0", "queue"},
	} {
		t.Run(name, func(t *testing.T) {
			s := startup{at(0), c.ended}
			var got []string
			end, sum := s.began, time.Duration(0)
			for _, step := range s.steps(at(c.until)) {
				got = append(got, fmt.Sprintf("%s %.0f", step.name, step.took().Seconds()))
				if !step.began.Equal(end) || step.took() < 0 {
					t.Errorf("%s begins at %s, and the step before it ended at %s", step.name, step.began, end)
				}
				end, sum = step.ended, sum+step.took()
			}
			if strings.Join(got, " ") != c.want || sum != time.Duration(c.until)*time.Second {
				t.Errorf("got %s in %s, want %s", got, sum, c.want)
			}
			if guilty := longest(s.steps(at(c.until))); guilty != c.guilty {
				t.Errorf("the longest is %s, want %s", guilty, c.guilty)
			}
		})
	}
}
