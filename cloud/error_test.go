// SPDX-License-Identifier: Apache-2.0

package cloud_test

import (
	"strings"
	"testing"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/internal/test/heap"
)

func TestClip(t *testing.T) {
	for _, c := range []struct {
		text string
		n    int
		want string
	}{{"", 3, ""}, {"abc", 3, "abc"}, {"abcd", 3, "abc"}, {"aä", 2, "a"}, {"\xffa", 2, "a"}} {
		if got := cloud.Clip(c.text, c.n); got != c.want {
			t.Errorf("%q in %d bytes: %q, want %q", c.text, c.n, got, c.want)
		}
	}
}

// TestClipKeepsOnlyWhatItReturns: the rest of the text does not stay in memory with it, nor does a
// text of which the argument is a part.
func TestClipKeepsOnlyWhatItReturns(t *testing.T) {
	const size = 7 << 20
	kept := heap.KeptBy(func() (all []string) {
		for range 4 {
			text := strings.Repeat("x", size)
			all = append(all, cloud.Clip(text, 512), cloud.Clip(text[:100], 512))
		}
		return all
	})
	if kept > size/2 {
		t.Errorf("8 texts of at most 512 bytes take %d bytes", kept)
	}
}
