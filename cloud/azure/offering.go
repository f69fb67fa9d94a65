// SPDX-License-Identifier: Apache-2.0

package azure

import (
	"context"
	"math"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
)

// size is what the catalog says of one size.
type size struct {
	cpus         int64
	gpus         int64 // NVIDIA's
	amdGPUs      int64
	memory       int64 // bytes
	architecture string
	family       string   // of its quota
	generations  []string // of virtual machines, such as "V2"
	zones        []string
	unavailable  bool
}

// Offering implements cloud.Driver. The size of a disk without sizeGiB is the image's, which is not
// looked up.
func (d *driver) Offering(ctx context.Context, fields *infrav1.DroverMachineFields) (cloud.Offering, error) {
	spec, err := union.MachineOf(fields)
	if err != nil {
		return cloud.Offering{}, err
	}
	s, err := d.size(ctx, spec.VMSize)
	if err != nil {
		return cloud.Offering{}, err
	}
	disk := int64(0)
	if spec.OSDisk != nil {
		disk = int64(spec.OSDisk.SizeGiB) << 30
	}
	gpus := map[corev1.ResourceName]int64{driverkit.NvidiaGPU: s.gpus, driverkit.AMDGPU: s.amdGPUs}
	return driverkit.Offering(s.architecture, s.cpus, s.memory, disk, gpus), nil
}

// FailureDomains implements cloud.Placer: the zones that have the size, and in which the
// subscription may use it.
func (d *driver) FailureDomains(ctx context.Context, fields *infrav1.DroverMachineFields) ([]string, error) {
	spec, err := union.MachineOf(fields)
	if err != nil {
		return nil, err
	}
	s, err := d.size(ctx, spec.VMSize)
	return s.zones, err
}

func (d *driver) size(ctx context.Context, name string) (size, error) {
	all, err := d.sizes.Get(ctx, "", d.readSizes)
	if err != nil {
		return size{}, err
	}
	s, ok := all[strings.ToLower(name)]
	if !ok || s.unavailable { // it may come, or may be permitted meanwhile
		_, _ = d.rereads.Get(ctx, "", func(context.Context) (struct{}, error) {
			d.sizes.Forget("")
			return struct{}{}, nil
		})
	}
	switch {
	case !ok:
		return size{}, cloud.Errorf(cloud.InvalidSpec, "size %q does not exist in location %s", name, d.account.Location)
	case s.unavailable:
		return size{}, cloud.Errorf(cloud.InvalidSpec, "size %q is not available to the subscription in location %s: ask Azure for it", name,
			d.account.Location)
	}
	return s, nil
}

func (d *driver) readSizes(ctx context.Context) (map[string]size, error) {
	path := "/subscriptions/" + d.account.SubscriptionID + "/providers/Microsoft.Compute/skus"
	// A thousand sizes have up to fifty capabilities each, in one page. A capability takes little.
	ctx = driverkit.WithBounds(ctx, driverkit.Bounds{Elements: 96 << 10, Members: 512 << 10})
	all, err := pages[sku](ctx, d, "ListSizes", path, sizesVersion, url.Values{"$filter": {"location eq '" + d.account.Location + "'"}})
	if err != nil {
		return nil, err
	}
	sizes := map[string]size{}
	for i := range all {
		if all[i].ResourceType == "virtualMachines" {
			sizes[strings.ToLower(all[i].Name)] = sizeOf(&all[i], d.account.Location)
		}
	}
	return sizes, nil
}

var (
	// amdSize is the form of the names of sizes with AMD's GPUs: Instinct ("ND96isr_MI300X_v5"),
	// Radeon PRO ("NV4ads_V710_v5"), and a part of a Radeon Instinct ("NV8as_v4").
	amdSize = regexp.MustCompile(`(?i)_MI[0-9]|_V710|^Standard_NV[0-9]+as_v4$`)
	// noGPUSize is the form of the names of sizes whose accelerators are no GPUs: FPGAs ("NP10s")
	// and video transcoders ("NM16ads_MA35D").
	noGPUSize = regexp.MustCompile(`(?i)^Standard_N[PM][0-9]`)
)

// countGPUs counts a size's accelerators. The catalog calls all of them GPUs, and does not say
// whose they are: "Sizes for virtual machines in Azure" does, by the name.
func (s *size) countGPUs(name string, n int64) {
	switch {
	case noGPUSize.MatchString(name):
	case amdSize.MatchString(name):
		s.amdGPUs = n
	default:
		s.gpus = n
	}
}

func sizeOf(s *sku, location string) size {
	out := size{architecture: "amd64", family: s.Family}
	for _, c := range s.Capabilities {
		number, _ := strconv.ParseFloat(c.Value, 64)
		switch c.Name {
		case "vCPUsAvailable": // after "vCPUs", where a size uses only some of them
			out.cpus = int64(number)
		case "vCPUs":
			if out.cpus == 0 {
				out.cpus = int64(number)
			}
		case "MemoryGB":
			out.memory = int64(number * (1 << 30))
		case "GPUs":
			out.countGPUs(s.Name, int64(math.Ceil(number))) // a part of a GPU is one, too
		case "CpuArchitectureType":
			if strings.EqualFold(c.Value, "Arm64") {
				out.architecture = "arm64"
			}
		case "HyperVGenerations":
			out.generations = strings.Split(c.Value, ",")
		}
	}
	for _, at := range s.LocationInfo {
		if strings.EqualFold(at.Location, location) {
			out.zones = slices.Clone(at.Zones)
		}
	}
	for _, r := range s.Restrictions {
		out.unavailable = out.unavailable || r.Type == "Location"
		if r.Type == "Zone" {
			out.zones = slices.DeleteFunc(out.zones, func(z string) bool { return slices.Contains(r.RestrictionInfo.Zones, z) })
		}
	}
	slices.Sort(out.zones)
	return out
}
