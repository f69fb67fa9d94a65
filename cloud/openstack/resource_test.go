// SPDX-License-Identifier: Apache-2.0

package openstack

import (
	"strings"
	"testing"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/internal/test/heap"
)

// TestPartsOfDescriptions: an ownership ID is remembered, and does not keep the description in
// memory that it is a part of.
func TestPartsOfDescriptions(t *testing.T) {
	const size = 4 << 20
	kept := heap.KeptBy(func() cloud.Resource {
		p := port{Name: portName("token"), Description: strings.Repeat("x", size) + " " + cloud.TagOwnership + "=owner"}
		return p.resource()
	})
	if kept > size/2 {
		t.Errorf("a port's resource takes %d bytes", kept)
	}
}
