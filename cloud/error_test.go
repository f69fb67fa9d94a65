// SPDX-License-Identifier: Apache-2.0

package cloud_test

import (
	"runtime"
	"strings"
	"testing"

	"github.com/drover-io/drover/cloud"
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
	var kept []string
	before := heap()
	for range 4 {
		text := strings.Repeat("x", size)
		kept = append(kept, cloud.Clip(text, 512), cloud.Clip(text[:100], 512))
	}
	if grown := heap() - before; grown > size/2 {
		t.Errorf("%d texts of at most 512 bytes take %d bytes", len(kept), grown)
	}
	runtime.KeepAlive(kept)
}

// heap returns how many bytes are in use.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
