// SPDX-License-Identifier: Apache-2.0

package openstack

import (
	"net/http"
	"strings"
	"testing"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
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

// TestFaultsKeepLittle: of a server's fault, no more is remembered than is looked at.
func TestFaultsKeepLittle(t *testing.T) {
	p := ordinary(t)
	p.play("GetServer", madeUp(http.StatusOK, http.Header{"Content-Type": {"application/json"}, "X-Openstack-Request-Id": {"req-1"}},
		`{"server": {"id": "one", "status": "ERROR", "fault": {"message": "No valid host was found. `+strings.Repeat("x", 1<<20)+`"}}}`))
	d := connected(t, p)
	if words := d.fault(t.Context(), "one"); faultCode(words) != cloud.NoCapacity {
		t.Errorf("the fault is %.100q", words)
	}
	if size := driverkit.SizeOf(&d.faults); size > 16<<10 {
		t.Errorf("a fault takes %d bytes", size)
	}
}
