// SPDX-License-Identifier: Apache-2.0

package safety

import (
	"errors"
	"testing"
	"time"
)

// TestShared: a response serves passes that asked before its request was sent, and no pass that
// asked after.
func TestShared(t *testing.T) {
	t.Parallel()
	var s shared[int]
	questions, failed := 0, errors.New("no answer")
	get := func(asked time.Time, err error) (int, error) {
		return s.get(asked, func() (int, error) { questions++; return questions, err })
	}
	asked := time.Now()
	for range 2 {
		if n, err := get(asked, nil); n != 1 || err != nil {
			t.Errorf("who asked first got answer %d: %v", n, err)
		}
	}
	asked = time.Now()
	for range 2 {
		if n, err := get(asked, failed); n != 2 || !errors.Is(err, failed) {
			t.Errorf("who asked later got answer %d: %v", n, err)
		}
	}
	if n, err := get(time.Now(), nil); n != 3 || err != nil {
		t.Errorf("after a question that was not answered, answer %d came: %v", n, err)
	}
}

// TestTooMany: up to two machines with orphans, or up to the share of the fleet, are believed.
func TestTooMany(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		n, of int
		want  bool
	}{{0, 0, false}, {2, 2, false}, {3, 3, true}, {3, 15, false}, {3, 14, true}, {20, 100, false}, {21, 100, true}} {
		if got := tooMany(c.n, c.of, 3, 20); got != c.want {
			t.Errorf("%d of %d are too many: %v", c.n, c.of, got)
		}
	}
}
