// SPDX-License-Identifier: Apache-2.0

package gcp

import (
	"strings"
	"testing"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/internal/test/heap"
)

// TestPartsOfAnswers: a zone or a tag is remembered, and does not keep the URL or the description
// in memory that it is a part of.
func TestPartsOfAnswers(t *testing.T) {
	const size = 4 << 20
	kept := heap.KeptBy(func() []string {
		long := strings.Repeat("x", size)
		p := part{Description: long + " " + cloud.TagToken + "=token"}
		return []string{lastPart(long + "/europe-west4-a"), p.tag(cloud.TagToken)}
	})
	if kept > size/2 {
		t.Errorf("a zone and a token take %d bytes", kept)
	}
}
