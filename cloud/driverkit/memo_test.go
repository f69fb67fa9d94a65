// SPDX-License-Identifier: Apache-2.0

package driverkit

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/drover-io/drover/cloud"
)

// TestMemo: an answer expires, an error is not cached, and a caller that waits for another's answer
// stops when its context ends.
func TestMemo(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	m := Memo[int]{TTL: time.Hour}
	asked := 0
	ask := func(context.Context) (int, error) { asked++; return asked, nil }
	_, err := m.Get(ctx, "k", func(context.Context) (int, error) { return 0, cloud.Errorf(cloud.Unknown, "no") })
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unknown))
	for range 2 {
		g.Expect(m.Get(ctx, "k", ask)).To(Equal(1))
	}
	m.Forget("k")
	g.Expect(m.Get(ctx, "k", ask)).To(Equal(2))
	m.TTL = 0
	m.Reset()
	g.Expect(m.Get(ctx, "k", ask)).To(Equal(3))
	g.Expect(m.Get(ctx, "k", ask)).To(Equal(4))

	ended, cancel := context.WithCancel(ctx)
	_, err = m.Get(ctx, "k", func(context.Context) (int, error) {
		cancel()
		_, err := m.Get(ended, "k", ask)
		return 0, err
	})
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unavailable))
}
