// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

func TestRecover(t *testing.T) {
	own := errors.New("own")
	if err := Recover(func() error { return own }); err != own {
		t.Errorf("an error became %v", err)
	}
	var none map[string]int
	for name, c := range map[string]struct {
		do   func() error
		want string
	}{
		"of the runtime": {func() error { none["x"] = 1; return nil }, "nil map"},
		"with a text":    {func() error { panic("secret") }, "type string"},
		"with an error":  {func() error { panic(errors.New("secret")) }, "type *errors"},
		"with nil":       {func() error { panic(nil) }, "nil"},
	} {
		err := Recover(c.do)
		p, panicked := errors.AsType[*PanicError](err)
		if CodeOf(err) != Unknown || !panicked {
			t.Errorf("a panic %s became %v", name, err)
			continue
		}
		if text := err.Error() + p.Error(); strings.Contains(text, "secret") || !strings.Contains(p.Error(), c.want) {
			t.Errorf("a panic %s says %q", name, text)
		}
		if !bytes.Contains(p.Stack, []byte("recover_test.go")) {
			t.Errorf("a panic %s does not say where: %s", name, p.Stack)
		}
	}
}

// TestGroup: a panic in a goroutine reaches the one who waits, and the others end.
func TestGroup(t *testing.T) {
	var g Group
	g.SetLimit(2)
	done := make(chan int, 10)
	for i := range 10 {
		g.Go(func() error {
			if i == 3 {
				panic(i)
			}
			done <- i
			return nil
		})
	}
	err := g.Wait()
	if _, panicked := errors.AsType[*PanicError](err); !panicked || len(done) != 9 {
		t.Errorf("got %v, and %d of 9 others have ended", err, len(done))
	}
	var none Group
	none.Go(func() error { return nil })
	if err := none.Wait(); err != nil {
		t.Error(err)
	}
}
