// SPDX-License-Identifier: Apache-2.0

package gcp

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
)

// Offering implements cloud.Driver. The size of a boot disk without sizeGiB is the image's, which
// is not looked up.
func (d *driver) Offering(ctx context.Context, fields *infrav1.DroverMachineFields) (cloud.Offering, error) {
	spec, err := union.MachineOf(fields)
	if err != nil {
		return cloud.Offering{}, err
	}
	kind, err := d.machineTypes.Get(ctx, spec.MachineType,
		func(ctx context.Context) (machineType, error) { return d.readMachineType(ctx, spec.MachineType) })
	if err != nil {
		return cloud.Offering{}, err
	}
	disk := int64(0)
	if spec.BootDisk.SizeGiB > 0 {
		disk = spec.BootDisk.SizeGiB << 30
	}
	devices := map[corev1.ResourceName]int64{driverkit.NvidiaGPU: gpus(&kind, spec)}
	return driverkit.Offering(architecture(&kind), kind.GuestCPUs, kind.MemoryMB<<20, disk, devices), nil
}

func gpus(kind *machineType, spec *infrav1.GCPMachine) (n int64) {
	for _, a := range kind.Accelerators {
		if strings.HasPrefix(a.Type, "nvidia-") {
			n += a.Count
		}
	}
	for _, a := range spec.Accelerators {
		if strings.HasPrefix(a.Type, "nvidia-") {
			n += int64(a.Count)
		}
	}
	return n
}

// architecture returns the architecture of a machine type. Google does not say it of all; those for
// Arm that it did not say it of are few.
func architecture(kind *machineType) string {
	family, _, _ := strings.Cut(kind.Name, "-")
	if kind.Architecture == "ARM64" || kind.Architecture == "" && slices.Contains([]string{"t2a", "c4a", "n4a", "a4x"}, family) {
		return "arm64"
	}
	return "amd64"
}

// readMachineType reads a machine type in the first zone that has it.
func (d *driver) readMachineType(ctx context.Context, name string) (machineType, error) {
	r, err := d.zones.Get(ctx, "", d.readRegion)
	if err != nil {
		return machineType{}, err
	}
	for _, zone := range r.Zones {
		if kind, err := d.machineTypeIn(ctx, zone, name); kind != nil || err != nil {
			return *cmp.Or(kind, &machineType{}), err
		}
	}
	return machineType{}, cloud.Errorf(cloud.InvalidSpec, "machine type %q does not exist in region %s", name, d.account.Region)
}

// machineTypeIn reads a machine type in a zone; nil: the zone does not have it.
func (d *driver) machineTypeIn(ctx context.Context, zone, name string) (*machineType, error) {
	const op = "GetMachineType"
	var kind machineType
	err := d.call(ctx, request{op: op, class: cloud.ClassRead, method: http.MethodGet, path: "zones/" + zone + "/machineTypes/" + name,
		out: &kind})
	switch {
	case driverkit.RefusedAs(err, notFound, "invalid"):
		return nil, nil
	case err != nil:
		return nil, err
	case kind.Name != name || kind.GuestCPUs < 1 || kind.MemoryMB < 1:
		return nil, d.api.Unexpected(op, "without the machine type")
	}
	return &kind, nil
}
