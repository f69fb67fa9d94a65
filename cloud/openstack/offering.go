// SPDX-License-Identifier: Apache-2.0

package openstack

import (
	"cmp"
	"context"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
)

// Offering reads the flavor. The architecture comes from the image, or else from the flavor's extra
// specs.
func (d *driver) Offering(ctx context.Context, spec *infrav1.DroverMachineFields) (cloud.Offering, error) {
	machine, err := union.MachineOf(spec)
	if err != nil {
		return cloud.Offering{}, err
	}
	size, err := d.flavor(ctx, machine.Flavor)
	if err != nil {
		return cloud.Offering{}, err
	}
	from, err := d.image(ctx, machine.Image)
	if err != nil {
		return cloud.Offering{}, err
	}
	if machine.RootVolume.SizeGiB > 0 {
		size.Disk = int64(machine.RootVolume.SizeGiB)
	}
	arch := architecture(cmp.Or(from.Architecture, flavorArchitecture(size.Extra)))
	o := driverkit.Offering(arch, size.VCPUs, size.RAM<<20, size.Disk<<30, gpus(size.Extra))
	o.OperatingSystem = cmp.Or(strings.ToLower(from.OSType), o.OperatingSystem)
	return o, nil
}

// architecture converts Glance's architecture names to Go's. An image without one counts as amd64,
// the most common.
func architecture(glance string) string {
	switch glance {
	case "", "x86_64":
		return "amd64"
	case "aarch64":
		return "arm64"
	}
	return glance
}

// flavorArchitecture returns the architecture that the extra specs require of a host, or "". They
// use a Placement trait ("HW_ARCH" in os-traits) or a capability, as for Ironic.
func flavorArchitecture(extra map[string]string) string {
	for key, value := range extra {
		if arch, ok := strings.CutPrefix(key, "trait:HW_ARCH_"); ok && value == "required" {
			return strings.ToLower(arch)
		}
	}
	return strings.TrimPrefix(cmp.Or(extra["capabilities:cpu_arch"], extra["cpu_arch"]), "s== ")
}

// gpus counts the flavor's GPUs by its extra specs: virtual GPUs, in Nova only NVIDIA's, and whole
// devices. Only the name given by the cloud's operator says what a device is.
func gpus(extra map[string]string) map[corev1.ResourceName]int64 {
	found := map[corev1.ResourceName]int64{}
	add := func(name corev1.ResourceName, count string) {
		if n, err := strconv.ParseInt(count, 10, 32); err == nil && n > 0 {
			found[name] += n
		}
	}
	add(driverkit.NvidiaGPU, extra["resources:VGPU"])
	for device := range strings.SplitSeq(extra["pci_passthrough:alias"], ",") {
		alias, count, _ := strings.Cut(strings.ToLower(strings.TrimSpace(device)), ":")
		switch {
		case strings.Contains(alias, "intel"), strings.Contains(alias, "fpga"): // advertised under names of their own
		case strings.Contains(alias, "amd"), strings.Contains(alias, "radeon"), strings.Contains(alias, "instinct"):
			add(driverkit.AMDGPU, count)
		case strings.Contains(alias, "gpu"), strings.Contains(alias, "nvidia"):
			add(driverkit.NvidiaGPU, count)
		}
	}
	return found
}

// FailureDomains implements cloud.Placer.
func (d *driver) FailureDomains(_ context.Context, fields *infrav1.DroverMachineFields) ([]string, error) {
	machine, err := union.MachineOf(fields)
	if err != nil || machine.AvailabilityZone == "" {
		return nil, err
	}
	return []string{machine.AvailabilityZone}, nil
}
