// SPDX-License-Identifier: Apache-2.0

package gcp

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
	"github.com/drover-io/drover/cloud"
)

// Offering implements cloud.Driver. The size of a boot disk without sizeGiB is the image's, which
// is not looked up.
func (d *driver) Offering(ctx context.Context, fields *infrav1.CloudMachineFields) (cloud.Offering, error) {
	spec, err := union.MachineOf(fields)
	if err != nil {
		return cloud.Offering{}, err
	}
	kind, err := d.machineTypes.Get(ctx, spec.MachineType, func(ctx context.Context) (machineType, error) { return d.readMachineType(ctx, spec.MachineType) })
	if err != nil {
		return cloud.Offering{}, err
	}
	out := cloud.Offering{
		Capacity: corev1.ResourceList{
			corev1.ResourceCPU:    *resource.NewQuantity(kind.GuestCPUs, resource.DecimalSI),
			corev1.ResourceMemory: *resource.NewQuantity(kind.MemoryMB<<20, resource.BinarySI),
			corev1.ResourcePods:   *resource.NewQuantity(110, resource.DecimalSI),
		},
		Architecture:    architecture(&kind),
		OperatingSystem: "linux",
	}
	if spec.BootDisk != nil && spec.BootDisk.SizeGiB > 0 {
		out.Capacity[corev1.ResourceEphemeralStorage] = *resource.NewQuantity(spec.BootDisk.SizeGiB<<30, resource.BinarySI)
	}
	if gpus := gpus(&kind, spec); gpus > 0 {
		out.Capacity["nvidia.com/gpu"] = *resource.NewQuantity(gpus, resource.DecimalSI)
	}
	return out, nil
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
	err := d.call(ctx, request{op: op, class: cloud.ClassRead, method: http.MethodGet, path: "zones/" + zone + "/machineTypes/" + name, out: &kind})
	switch {
	case refusedAs(err, notFound, "invalid"):
		return nil, nil
	case err != nil:
		return nil, err
	case kind.Name != name || kind.GuestCPUs < 1 || kind.MemoryMB < 1:
		return nil, cloud.Errorf(cloud.Unknown, "%s: unexpected response without the machine type (not Compute Engine): check spec.gcp", op)
	}
	return &kind, nil
}
