// SPDX-License-Identifier: Apache-2.0

package gcpstub

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"
)

func (c *Cloud) region(in call) (any, *failure) {
	if in.name != Region {
		return nil, refuse(http.StatusNotFound, "notFound", "The resource 'projects/%s/regions/%s' was not found", in.project, in.name)
	}
	root := "https://www.googleapis.com/compute/v1/projects/" + in.project
	zones := []any{}
	for _, zone := range Zones() {
		zones = append(zones, root+"/zones/"+zone)
	}
	slices.Reverse(zones)
	return map[string]any{"kind": "compute#region", "id": "1220", "name": Region, "status": "UP", "zones": zones, "quotas": c.quotas(),
		"selfLink": root + "/regions/" + Region}, nil
}

// catalog are the machine types. "only" is the zone that alone has it.
func catalog() map[string]map[string]any {
	return map[string]map[string]any{
		"e2-standard-2":  {"guestCpus": 2, "memoryMb": 8192, "architecture": "X86_64"},
		"e2-standard-32": {"guestCpus": 32, "memoryMb": 131072, "architecture": "X86_64"},
		"t2a-standard-1": {"guestCpus": 1, "memoryMb": 4096},
		"t2a-standard-2": {"guestCpus": 2, "memoryMb": 8192},
		"n2-rare-4":      {"guestCpus": 4, "memoryMb": 16384, "architecture": "X86_64", "only": Region + "-b"},
		"a2-highgpu-1g": {"guestCpus": 12, "memoryMb": 87040, "architecture": "X86_64",
			"accelerators": []any{map[string]any{"guestAcceleratorType": "nvidia-tesla-a100", "guestAcceleratorCount": 1}}},
	}
}

func machineType(in call) (any, *failure) {
	kind := catalog()[in.name]
	if kind == nil || kind["only"] != nil && kind["only"] != in.zone {
		return nil, refuse(http.StatusNotFound, "notFound", "The resource 'projects/%s/zones/%s/machineTypes/%s' was not found", in.project,
			in.zone, in.name)
	}
	delete(kind, "only")
	kind["kind"], kind["id"], kind["name"], kind["zone"] = "compute#machineType", "334004", in.name, in.zone
	return kind, nil
}

// quotas are the region's. Those that nobody set have room.
func (c *Cloud) quotas() (all []any) {
	for _, metric := range []string{"CPUS", "N2_CPUS", "PREEMPTIBLE_CPUS", "INSTANCES", "IN_USE_ADDRESSES", "SSD_TOTAL_GB", "DISKS_TOTAL_GB",
		"NVIDIA_T4_GPUS"} {
		q, set := c.limits[metric]
		if !set {
			q = [2]float64{1000, 0}
		}
		all = append(all, map[string]any{"metric": metric, "limit": q[0], "usage": q[1]})
	}
	return all
}

// getImage answers with the one image, also as the newest of its family.
func (c *Cloud) getImage(in call) (any, *failure) {
	kind, family := "images/", in.collection == "images/family"
	if family {
		kind = "images/family/"
	}
	if in.name != Image || family != (in.project == ImageProject) {
		return nil, refuse(http.StatusNotFound, "notFound", "The resource 'projects/%s/global/%s%s' was not found", in.project, kind, in.name)
	}
	return map[string]any{"kind": "compute#image", "id": "4712", "name": in.name, "architecture": cmp.Or(c.architecture, "X86_64"),
		"status": "READY"}, nil
}

func (c *Cloud) getSnapshot(in call) (any, *failure) {
	if in.name != Snapshot {
		return nil, refuse(http.StatusNotFound, "notFound", "The resource 'projects/%s/global/snapshots/%s' was not found", in.project, in.name)
	}
	return map[string]any{"kind": "compute#snapshot", "id": "4713", "name": in.name, "status": "READY"}, nil
}

func (c *Cloud) testSubnetwork(in call) (any, *failure) {
	if in.region != Region || in.name != Subnet {
		return nil, refuse(http.StatusNotFound, "notFound", "The resource 'projects/%s/regions/%s/subnetworks/%s' was not found", in.project,
			in.region, in.name)
	}
	return c.test(in)
}

// test returns those of the permissions that the caller has.
func (c *Cloud) test(in call) (any, *failure) {
	var asked struct{ Permissions []string }
	if err := json.Unmarshal(in.body, &asked); err != nil {
		return nil, refuse(http.StatusBadRequest, "parseError", "Parse Error")
	}
	has := slices.DeleteFunc(asked.Permissions, func(p string) bool { return c.denied[p] })
	if len(has) == 0 {
		return map[string]any{}, nil
	}
	return map[string]any{"permissions": has}, nil
}

// SetLimit sets a quota of the region, and how much of it is used.
func (c *Cloud) SetLimit(metric string, limit, usage float64) {
	c.set(func() { c.limits[metric] = [2]float64{limit, usage} }, nil)
}

// SetArchitecture changes the architecture of the image.
func (c *Cloud) SetArchitecture(of string) { c.set(func() { c.architecture = of }, nil) }
