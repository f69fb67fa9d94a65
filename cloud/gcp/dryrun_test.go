// SPDX-License-Identifier: Apache-2.0

package gcp

import (
	"net/http"
	"testing"

	. "github.com/onsi/gomega"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/gcp/gcpstub"
)

// TestDryRun: what a machine lacks is found before it is made, and nothing is made.
func TestDryRun(t *testing.T) {
	t.Parallel()
	manager := func(status int, reason string) func(*gcpstub.Cloud) {
		return func(c *gcpstub.Cloud) {
			c.Inject(gcpstub.Fault{Operation: "POST projects/testIamPermissions", Status: status, Reason: reason})
		}
	}
	deny := func(permission string) func(*gcpstub.Cloud) {
		return func(c *gcpstub.Cloud) { c.Deny(permission) }
	}
	limit := func(metric string, limit, usage float64) func(*gcpstub.Cloud) {
		return func(c *gcpstub.Cloud) { c.SetLimit(metric, limit, usage) }
	}
	public := func(m *infrav1.GCPMachine) { m.NetworkInterfaces[0].PublicIP = &infrav1.GCPPublicIP{} }
	spot := func(m *infrav1.GCPMachine) { m.ProvisioningModel = "SPOT" }
	disks := func(m *infrav1.GCPMachine) {
		m.BootDisk = infrav1.GCPDisk{SizeGiB: 60, Type: "pd-ssd"}
		m.Disks = []infrav1.GCPDataDisk{{GCPDisk: infrav1.GCPDisk{SizeGiB: 40, Type: "pd-balanced"}}, {GCPDisk: infrav1.GCPDisk{SizeGiB: 500}}}
	}
	for name, test := range map[string]struct {
		zone, machineType string
		edit              func(*infrav1.GCPMachine)
		cloud             func(*gcpstub.Cloud)
		code              cloud.Code
		says              string
	}{
		"in order":   {},
		"everything": {edit: everything},
		"no zone":    {zone: gcpstub.Region + "-z", code: cloud.InvalidSpec, says: "is not a zone of region"},
		"no right": {cloud: deny("compute.disks.create"), code: cloud.Unauthorized,
			says: "lacks compute.disks.create in project nodes-4711: give it the role"},
		"no right for tags": {edit: everything, cloud: deny("compute.instances.setTags"), code: cloud.Unauthorized, says: "setTags"},
		"no tags":           {cloud: deny("compute.instances.setTags")},
		"rights unknown":    {cloud: manager(http.StatusForbidden, "accessNotConfigured")},
		"no manager": {cloud: manager(http.StatusServiceUnavailable, "backendError"), code: cloud.Unavailable,
			says: "TestProjectPermissions"},
		"type elsewhere": {machineType: "n2-rare-4", code: cloud.NoCapacity, says: `"n2-rare-4" does not exist in zone europe-west4-a`},
		"type here":      {machineType: "n2-rare-4", zone: gcpstub.Region + "-b"},
		"no image": {edit: func(m *infrav1.GCPMachine) { m.Image.Name = "x" }, code: cloud.NotFound,
			says: "global/images/x of project nodes-4711"},
		"no family": {edit: func(m *infrav1.GCPMachine) { m.Image = infrav1.GCPImage{Family: "x", Project: gcpstub.ImageProject} },
			code: cloud.NotFound, says: "global/images/family/x of project ubuntu-os-cloud"},
		"no snapshot": {edit: func(m *infrav1.GCPMachine) {
			m.Disks = []infrav1.GCPDataDisk{{Source: infrav1.GCPImage{Snapshot: "x"}}}
		},
			code: cloud.NotFound, says: "global/snapshots/x"},
		"image for another processor": {machineType: "t2a-standard-1", code: cloud.InvalidSpec,
			says: "is for amd64, and machine type t2a-standard-1 for arm64"},
		"image for Arm": {machineType: "t2a-standard-1", cloud: func(c *gcpstub.Cloud) { c.SetArchitecture("ARM64") }},
		"no subnetwork": {edit: func(m *infrav1.GCPMachine) { m.NetworkInterfaces[0].Subnetwork = "x" },
			code: cloud.NotFound, says: "subnetwork x does not exist in region europe-west4"},
		"subnetwork without right": {cloud: deny("compute.subnetworks.use"), code: cloud.Unauthorized,
			says: "compute.subnetworks.use for subnetwork nodes"},
		"no public address": {edit: public, cloud: deny("compute.subnetworks.useExternalIp"), code: cloud.Unauthorized,
			says: "useExternalIp"},
		"no address needed": {cloud: deny("compute.subnetworks.useExternalIp")},
		"processors": {cloud: limit("CPUS", 10, 9), code: cloud.QuotaExceeded,
			says: "quota CPUS of region europe-west4: the machine needs 2, and 9 of 10 are used"},
		"processors of a family": {machineType: "n2-rare-4", zone: gcpstub.Region + "-b", cloud: limit("N2_CPUS", 3, 0),
			code: cloud.QuotaExceeded, says: "N2_CPUS"},
		"processors of another family": {machineType: "n2-rare-4", zone: gcpstub.Region + "-b", cloud: limit("CPUS", 0, 0)},
		"last processors":              {cloud: limit("CPUS", 10, 8)},
		"instances":                    {cloud: limit("INSTANCES", 5, 5), code: cloud.QuotaExceeded, says: "INSTANCES"},
		"addresses": {edit: public, cloud: limit("IN_USE_ADDRESSES", 0, 0), code: cloud.QuotaExceeded,
			says: "IN_USE_ADDRESSES"},
		"no addresses":     {cloud: limit("IN_USE_ADDRESSES", 0, 1)},
		"spot":             {edit: spot, cloud: limit("PREEMPTIBLE_CPUS", 1, 0), code: cloud.QuotaExceeded, says: "PREEMPTIBLE_CPUS"},
		"spot, of its own": {edit: spot, cloud: limit("CPUS", 0, 0)},
		"spot, of all": {edit: spot, cloud: func(c *gcpstub.Cloud) { c.SetLimit("PREEMPTIBLE_CPUS", 0, 0); c.SetLimit("CPUS", 0, 0) },
			code: cloud.QuotaExceeded, says: "quota CPUS"},
		"disks": {edit: disks, cloud: limit("SSD_TOTAL_GB", 99, 0), code: cloud.QuotaExceeded, says: "needs 100"},
		"GPUs": {edit: func(m *infrav1.GCPMachine) {
			m.Accelerators = []infrav1.GCPAccelerator{{Type: "nvidia-tesla-t4", Count: 2}}
		},
			cloud: limit("NVIDIA_T4_GPUS", 1, 0), code: cloud.QuotaExceeded, says: "NVIDIA_T4_GPUS"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			stub := start(t, gcpstub.Options{})
			if test.cloud != nil {
				test.cloud(stub)
			}
			req := testRequest("m-1", test.edit)
			if test.zone != "" {
				req.FailureDomain = test.zone
			}
			if test.machineType != "" {
				req.Spec.Cloud.GCP.MachineType = test.machineType
			}
			err := connect(t, stub).DryRun(t.Context(), req)
			g.Expect(cloud.CodeOf(err)).To(Equal(test.code), "%v", err)
			if err != nil {
				g.Expect(err.Error()).To(ContainSubstring(test.says))
			}
			g.Expect(stub.Calls()["POST instances"]).To(BeZero())
		})
	}
}

// TestDryRunOfEndpoint: an account with an endpoint of its own for Compute Engine asks no other
// service.
func TestDryRunOfEndpoint(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	stub := start(t, gcpstub.Options{})
	stub.Deny("compute.disks.create")
	d := connect(t, stub)
	d.account.Endpoint = "https://compute.googleapis.com"
	g.Expect(d.DryRun(t.Context(), testRequest("m-1", nil))).To(Succeed())
	g.Expect(stub.Calls()).NotTo(HaveKey("POST projects/testIamPermissions"))
}
