// SPDX-License-Identifier: Apache-2.0

package ec2stub

import (
	"encoding/json"
	"net/url"
	"slices"
	"strconv"
)

// KeepingImage maps a data volume at keptDevice that outlives its instance, unless the request
// changes that.
const (
	KeepingImage = "ami-0ee9"
	keptDevice   = "/dev/sdb"
	rootDevice   = "/dev/sda1"

	defaultVPC = "vpc-01"
)

// The region's resources. Images differ by architecture and age.
var (
	zones = []string{"us-east-1a", "us-east-1b", "us-east-1c"}

	sizes = map[string]typeItem{
		"t3.small":  {Name: "t3.small", Architecture: "x86_64", CPUs: 2, MemoryMiB: 2048, Interfaces: 3, Addresses: 4},
		"m7g.large": {Name: "m7g.large", Architecture: "arm64", CPUs: 2, MemoryMiB: 8192, Interfaces: 3, Addresses: 10},
		"t2.small":  {Name: "t2.small", Architecture: "x86_64", CPUs: 1, MemoryMiB: 2048, Interfaces: 3, Addresses: 4, Fixed: true},
		"m1.small":  {Name: "m1.small", Architecture: "x86_64", CPUs: 1, MemoryMiB: 1740, Interfaces: 2, Addresses: 4, Plain: true},
		"p4d.24xlarge": {Name: "p4d.24xlarge", Architecture: "x86_64", CPUs: 96, MemoryMiB: 1179648, Interfaces: 60, Addresses: 50, Cards: 3,
			GPUs: []gpuItem{{Name: "A100", Maker: "NVIDIA", Count: 8}}},
	}

	images = map[string]imageItem{
		"ami-0a":     {ID: "ami-0a", Name: "node-1", Architecture: "x86_64", Owner: "099720109477", Made: "2026-01-01T00:00:00.000Z"},
		"ami-0b":     {ID: "ami-0b", Name: "node-2", Architecture: "x86_64", Owner: "099720109477", Made: "2026-02-01T00:00:00.000Z"},
		"ami-0c":     {ID: "ami-0c", Name: "node-2", Architecture: "arm64", Owner: "099720109477", Made: "2026-02-02T00:00:00.000Z"},
		"ami-0d":     {ID: "ami-0d", Name: "other", Architecture: "x86_64", Owner: "099720109477", Made: "2026-03-01T00:00:00.000Z"},
		KeepingImage: {ID: KeepingImage, Name: "keeper", Architecture: "x86_64", Owner: "123456789012", Made: "2026-01-01T00:00:00.000Z"},
	}

	subnets = []subnetItem{
		{ID: "subnet-0a1", Zone: "us-east-1a", VPC: "vpc-01", Free: 100, tags: map[string]string{"role": "nodes"}},
		{ID: "subnet-0a2", Zone: "us-east-1a", VPC: "vpc-01", Free: 4000, tags: map[string]string{"role": "nodes"}},
		{ID: "subnet-0b1", Zone: "us-east-1b", VPC: "vpc-01", Free: 200, tags: map[string]string{"role": "nodes"}},
		{ID: "subnet-0c1", Zone: "us-east-1c", VPC: "vpc-01", Free: 300, tags: map[string]string{"role": "nodes"}},
		{ID: "subnet-0d1", Zone: "us-east-1a", VPC: "vpc-02", Free: 300, tags: map[string]string{"role": "other"}},
	}

	groups = []groupItem{
		{ID: "sg-01", Name: "nodes", VPC: "vpc-01", tags: map[string]string{"role": "nodes"}},
		{ID: "sg-02", Name: "nodes", VPC: "vpc-02", tags: map[string]string{"role": "nodes"}},
	}

	parameters = map[string]string{"/aws/service/node/image": "ami-0b", "/broken": "no image"}
)

func findSubnet(id string) (subnetItem, *failure) {
	i := slices.IndexFunc(subnets, func(s subnetItem) bool { return s.ID == id })
	if i < 0 {
		return subnetItem{}, refuse("InvalidSubnetID.NotFound", "The subnet ID '%s' does not exist", id)
	}
	return subnets[i], nil
}

func findGroup(id string) *groupItem {
	if i := slices.IndexFunc(groups, func(g groupItem) bool { return g.ID == id }); i >= 0 {
		return &groups[i]
	}
	return nil
}

func (c *Cloud) describeImages(form url.Values) (any, *failure) {
	var all []imageItem
	for _, id := range slices.Sorted(keys(images)) {
		all = append(all, images[id])
	}
	if ids := list(form, "ImageId"); len(ids) > 0 {
		for _, id := range ids {
			if _, ok := images[id]; !ok {
				return nil, refuse("InvalidAMIID.NotFound", "The image id '[%s]' does not exist", id)
			}
		}
		all = slices.DeleteFunc(all, func(i imageItem) bool { return !slices.Contains(ids, i.ID) })
	}
	if owners := list(form, "Owner"); len(owners) > 0 {
		all = slices.DeleteFunc(all, func(i imageItem) bool { return !slices.Contains(owners, i.Owner) })
	}
	all, _, fail := page(c, form, all, func(i imageItem, name string) []string {
		return map[string][]string{"name": {i.Name}, "architecture": {i.Architecture}, "state": {"available"}}[name]
	})
	for n := range all {
		all[n].fill()
	}
	return imagesResponse{Images: all}, fail
}

func (c *Cloud) describeInstanceTypes(form url.Values) (any, *failure) {
	var out typesResponse
	for _, name := range list(form, "InstanceType") {
		size, ok := sizes[name]
		if !ok {
			return nil, refuse("InvalidInstanceType", "The following supplied instance types do not exist: [%s]", name)
		}
		out.Types = append(out.Types, size.answer())
	}
	return out, nil
}

func (c *Cloud) describeSubnets(form url.Values) (any, *failure) {
	all := slices.Clone(subnets)
	if ids := list(form, "SubnetId"); len(ids) > 0 {
		all = nil
		for _, id := range ids {
			subnet, fail := findSubnet(id)
			if fail != nil {
				return nil, fail
			}
			all = append(all, subnet)
		}
	}
	all, _, fail := page(c, form, all, func(s subnetItem, name string) []string {
		if name == "default-for-az" {
			return []string{strconv.FormatBool(s.VPC == defaultVPC && s.ID != "subnet-0a1")}
		}
		return tagValues(s.tags, name)
	})
	return subnetsResponse{Subnets: all}, fail
}

func (c *Cloud) describeSecurityGroups(form url.Values) (any, *failure) {
	all, _, fail := page(c, form, c.allGroups(false), func(g groupItem, name string) []string {
		switch name {
		case "vpc-id":
			return []string{g.VPC}
		case "group-name":
			return []string{g.Name}
		}
		return tagValues(g.tags, name)
	})
	return groupsResponse{Groups: all}, fail
}

func (c *Cloud) describeAvailabilityZones(url.Values) (any, *failure) {
	var out zonesResponse
	for _, zone := range c.zones {
		out.Zones = append(out.Zones, zoneItem{Name: zone, State: "available"})
	}
	return out, nil
}

func parameterName(body []byte) (string, *failure) {
	var in struct{ Name string }
	if err := json.Unmarshal(body, &in); err != nil {
		return "", refuse("SerializationException", "the request is not JSON")
	}
	return in.Name, nil
}

func (c *Cloud) getParameter(form url.Values) (any, *failure) {
	name := form.Get("Name")
	value, ok := parameters[name]
	if !ok {
		return nil, refuse("ParameterNotFound", "Parameter %s not found.", name)
	}
	return map[string]any{"Parameter": map[string]any{"Name": name, "Value": value, "Type": "String"}}, nil
}
