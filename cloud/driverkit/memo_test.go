// SPDX-License-Identifier: Apache-2.0

package driverkit

import (
	"context"
	"strconv"
	"strings"
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

// TestMemoIsBounded: large answers do not add up, and the newest is cached whatever its size.
func TestMemoIsBounded(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	m := Memo[string]{TTL: time.Hour}
	asked := 0
	get := func(key string, size int) {
		_, err := m.Get(ctx, key, func(context.Context) (string, error) { asked++; return strings.Repeat("x", size), nil })
		g.Expect(err).NotTo(HaveOccurred())
	}
	for i := range 100 {
		get(strconv.Itoa(i), maxMemoBytes/3)
		g.Expect(SizeOf(m.answers)).To(BeNumerically("<", maxMemoBytes+maxMemoBytes/3+1000))
	}
	get("99", 0)
	g.Expect(asked).To(Equal(100), "the newest is cached")
	get("huge", 2*maxMemoBytes)
	get("huge", 0)
	g.Expect(asked).To(Equal(101), "so is one that fills it")
	m.TTL = 0
	for range 100 { // the answers to one question replace each other
		m.Forget("huge")
		get("huge", 1000)
		get("small", 1000)
		get("small", 1000)
	}
	g.Expect(m.bytes).To(BeNumerically("<", 3000))
	g.Expect(m.answers).To(HaveLen(2))
	m.Reset()
	g.Expect(m.bytes).To(BeZero())
}
