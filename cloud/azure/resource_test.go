// SPDX-License-Identifier: Apache-2.0

package azure

import (
	"strings"
	"testing"

	"github.com/drover-io/drover/internal/test/heap"
)

// TestNamesInIDs: a name is remembered, and does not keep the ID in memory that it is a part of.
func TestNamesInIDs(t *testing.T) {
	const size = 4 << 20
	if kept := heap.KeptBy(func() string { return lastPart(strings.Repeat("x", size) + "/name") }); kept > size/2 {
		t.Errorf("a name takes %d bytes", kept)
	}
}
