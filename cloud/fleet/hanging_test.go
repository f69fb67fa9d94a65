// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"errors"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drover-io/drover/cloud"
)

// TestHangs: an account hangs from a call that is not answered in time until one that is answered,
// also by a refusal. A call that waits for its turn in the rate limit says nothing.
func TestHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		s := c.begin(t)
		defer s.end()
		a := s.account(t)
		latency := func(d time.Duration) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.latency = d
		}
		want := func(hangs bool, when string) {
			t.Helper()
			if s.Hangs(testKey) != hangs {
				t.Errorf("%s: hangs is %v", when, !hangs)
			}
		}
		ensure(t, a, "m")
		want(false, "after an answer")
		for range 2 {
			latency(time.Hour)
			if _, err := a.Ensure(t.Context(), request("n"), nil); cloud.CodeOf(err) != cloud.Unavailable {
				t.Errorf("without an answer: %v", err)
			}
			want(true, "without an answer")
			_ = a.callAnywhere(t.Context(), "Probe", time.Second, &driverCall{},
				func(context.Context) error { return &cloud.Queued{After: time.Second} })
			want(true, "without a call")
			latency(0)
			if _, err := a.Probe(t.Context()); err != nil {
				t.Error(err)
			}
			want(false, "after another call was answered")
			latency(time.Hour)
			if _, err := a.Probe(t.Context()); err == nil {
				t.Error("a probe without an answer")
			}
			want(true, "without an answer to a probe")
			latency(0)
			c.setFault(func(string) fault { return fault{code: string(cloud.Unauthorized)} })
			if _, err := a.Probe(t.Context()); cloud.CodeOf(err) != cloud.Unauthorized {
				t.Error(err)
			}
			want(false, "after a refusal")
			c.setFault(nil)
		}
		latency(time.Hour)
		_, _ = a.Probe(t.Context())
		s.Remove(testKey)
		want(false, "without the account")
		latency(0)
	})
}

func TestIsTimeout(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{errors.New("refused"), false},
		{context.Canceled, false},
		{context.DeadlineExceeded, true},
		{&net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}, true},
		{&net.OpError{Op: "dial", Err: errors.New("refused")}, false},
		{&cloud.Error{Code: cloud.Unavailable, Err: context.DeadlineExceeded}, true},
	} {
		if got := isTimeout(test.err); got != test.want {
			t.Errorf("%v: %v", test.err, got)
		}
	}
}
