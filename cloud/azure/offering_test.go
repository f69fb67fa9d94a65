// SPDX-License-Identifier: Apache-2.0

package azure

import (
	"encoding/json"
	"testing"

	. "github.com/onsi/gomega"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/azure/armstub"
)

// TestAccelerators: Azure's catalog says "GPUs" of every accelerator, and device plugins advertise
// each maker's by another name.
func TestAccelerators(t *testing.T) {
	for name, test := range map[string]struct {
		count       string
		nvidia, amd int64
	}{
		"Standard_NC4as_T4_v3":       {"1", 1, 0},
		"Standard_ND96amsr_A100_v4":  {"8", 8, 0},
		"Standard_NV36ads_A10_v5":    {"1", 1, 0},
		"Standard_NV6ads_A10_v5":     {"0.167", 1, 0}, // a sixth of one
		"Standard_NV48s_v3":          {"4", 4, 0},
		"Standard_NC40ads_H100_v5":   {"1", 1, 0},
		"Standard_NV8as_v4":          {"1", 0, 1}, // a quarter of an MI25
		"Standard_NV4ads_V710_v5":    {"1", 0, 1},
		"Standard_ND96isr_MI300X_v5": {"8", 0, 8},
		"Standard_NP10s":             {"1", 0, 0}, // FPGAs
		"Standard_NM16ads_MA35D":     {"1", 0, 0}, // transcoders
	} {
		g := NewWithT(t)
		var s sku
		g.Expect(json.Unmarshal([]byte(`{"name": "`+name+`", "capabilities": [{"name": "GPUs", "value": "`+test.count+`"}]}`), &s)).To(Succeed())
		got := sizeOf(&s, "westeurope")
		g.Expect([]int64{got.gpus, got.amdGPUs}).To(Equal([]int64{test.nvidia, test.amd}), name)
	}
}

// TestNewSize: a size that the catalog lacks is looked for again, at most every ten minutes for all
// machines together, because the catalog is large.
func TestNewSize(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	stub := start(t, armstub.Options{})
	d := connect(t, stub)
	for range 5 {
		_, err := d.FailureDomains(t.Context(), testMachine(func(m *infrav1.AzureMachine) { m.VMSize = "Standard_New" }))
		g.Expect(cloud.CodeOf(err)).To(Equal(cloud.InvalidSpec))
	}
	g.Expect(stub.Calls()["GET skus"]).To(Equal(2), "once, and once more because something is missing")
	d.rereads.Reset() // ten minutes later
	for range 5 {
		_, err := d.FailureDomains(t.Context(), testMachine(func(m *infrav1.AzureMachine) { m.VMSize = "Standard_New" }))
		g.Expect(cloud.CodeOf(err)).To(Equal(cloud.InvalidSpec))
	}
	g.Expect(stub.Calls()["GET skus"]).To(Equal(3))
}
