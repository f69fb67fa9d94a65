// SPDX-License-Identifier: Apache-2.0

package azure

import (
	"strings"
	"testing"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
	"github.com/drover-io/drover/internal/test/heap"
)

// TestNamesInIDs: a name is remembered, and does not keep the ID in memory that it is a part of.
func TestNamesInIDs(t *testing.T) {
	const size = 4 << 20
	if kept := heap.KeptBy(func() string { return lastPart(strings.Repeat("x", size) + "/name") }); kept > size/2 {
		t.Errorf("a name takes %d bytes", kept)
	}
}

// TestViewsKeepLittle: of a machine's view, no more is remembered than says what became of it.
func TestViewsKeepLittle(t *testing.T) {
	d := &driver{account: testAccount().Cloud.Azure, api: driverkit.JSON{Secrets: driverkit.NewRedactor("hush")}}
	large := strings.Repeat("x", 1<<20)
	v := &instanceView{Statuses: []status{{Code: "ProvisioningState/failed/ZonalAllocationFailed", Message: "hush " + large},
		{Code: "PowerState/deallocated", Message: large}, {Code: "OSState/" + large}, {Code: large}}}
	v = d.essence(v)
	if size := driverkit.SizeOf(v); size > 2<<10 {
		t.Errorf("it takes %d bytes", size)
	}
	if !v.isStopped() {
		t.Error("the machine does not run")
	}
	r := d.instance(&virtualMachine{Name: "m-1", Properties: machineProperties{ProvisioningState: stateFailed}}, v)
	if r.Code != cloud.NoCapacity || !strings.HasPrefix(r.Reason, "ZonalAllocationFailed: [credential] xxx") {
		t.Errorf("it ended as %s because %s", r.Code, r.Reason)
	}
}
