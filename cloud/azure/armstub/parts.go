// SPDX-License-Identifier: Apache-2.0

package armstub

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The kinds of parts.
const (
	nicKind     = "networkInterfaces"
	diskKind    = "disks"
	addressKind = "publicIPAddresses"
)

// part is a network interface, a disk or a public address.
type part struct {
	kind, name string
	tags       map[string]any
	made       time.Time
	owner      *machine
	cascades   bool // it is deleted with its machine
	ip         string
	public     *part

	// Only the public address of a load balancer has what follows.

	model    map[string]any // as it was sent
	ready    time.Time      // when its creation ends
	failed   bool           // whether that fails
	balancer *balancer      // that uses it
}

func (p *part) state() string {
	switch {
	case time.Now().Before(p.ready):
		return "Updating"
	case p.failed:
		return "Failed"
	}
	return "Succeeded"
}

var providers = map[string]string{nicKind: "Microsoft.Network", addressKind: "Microsoft.Network", balancerKind: "Microsoft.Network",
	diskKind: "Microsoft.Compute", "virtualMachines": "Microsoft.Compute"}

// idOf returns an ID with the group in capitals, as some services of Azure answer.
func (c *Cloud) idOf(kind, name string) string {
	return "/subscriptions/" + Subscription + "/resourceGroups/" + strings.ToUpper(c.options.Group) + "/providers/" + providers[kind] + "/" +
		kind + "/" + name
}

// inline are the actions that Azure also requires of the caller for the parts in a request, by the
// part.
var inline = map[string][]string{
	"machine": {"Microsoft.Compute/disks/write", "Microsoft.Network/networkInterfaces/write",
		"Microsoft.Network/networkInterfaces/join/action"},
	"address": {"Microsoft.Network/publicIPAddresses/write", "Microsoft.Network/publicIPAddresses/join/action"},
}

// checkParts refuses parts that the caller may not make, and subnets that do not exist, are in
// another location, or may not be joined.
func (c *Cloud) checkParts(model map[string]any) *failure {
	group := "/subscriptions/" + Subscription + "/resourceGroups/" + c.options.Group
	actions := inline["machine"]
	for _, raw := range list(object(object(model, "properties"), "networkProfile"), "networkInterfaceConfigurations") {
		config, _ := raw.(map[string]any)
		for _, raw := range list(object(config, "properties"), "ipConfigurations") {
			ip, _ := raw.(map[string]any)
			subnet := text(object(object(ip, "properties"), "subnet")["id"])
			if subnet != Subnet { // https://github.com/Azure/azure-cli/issues/8569
				return refuse(http.StatusBadRequest, "InvalidResourceReference",
					"Resource %s referenced by resource %s/providers/Microsoft.Network/networkInterfaces/%v was not found. "+
						"Please make sure that the referenced resource exists, and that both resources are in the same region.", subnet, group,
					config["name"])
			}
			if fail := c.forbid(subnet, "Microsoft.Network/virtualNetworks/subnets/join/action", "LinkedAuthorizationFailed"); fail != nil {
				return fail
			}
			if len(object(object(ip, "properties"), "publicIPAddressConfiguration")) > 0 {
				actions = slices.Concat(inline["machine"], inline["address"])
			}
		}
	}
	for _, action := range actions {
		if fail := c.forbid(group, action, "AuthorizationFailed"); fail != nil {
			return fail
		}
	}
	return nil
}

// makeParts makes what a machine's request has inline. Disks get the machine's tags.
func (c *Cloud) makeParts(m *machine) {
	p := object(m.model, "properties")
	tags := object(m.model, "tags")
	add := func(kind, name string, tags map[string]any, deleteOption any) *part {
		one := &part{kind: kind, name: name, tags: tags, made: m.made, owner: m, cascades: deleteOption == "Delete",
			ip: fmt.Sprintf("10.%d.%d.%d", c.options.Network, c.made/250, c.made%250+4)}
		m.parts = append(m.parts, one)
		return one
	}
	for _, raw := range list(object(p, "networkProfile"), "networkInterfaceConfigurations") {
		config, _ := raw.(map[string]any)
		properties := object(config, "properties")
		nic := add(nicKind, fmt.Sprint(config["name"]), object(config, "tags"), properties["deleteOption"])
		for _, raw := range list(properties, "ipConfigurations") {
			ip, _ := raw.(map[string]any)
			if public := object(object(ip, "properties"), "publicIPAddressConfiguration"); len(public) > 0 {
				nic.public = add(addressKind, fmt.Sprint(public["name"]), object(public, "tags"), object(public, "properties")["deleteOption"])
				nic.public.ip = "203.0.113.7"
			}
		}
	}
	storage := object(p, "storageProfile")
	add(diskKind, m.name+"_OsDisk_1", tags, object(storage, "osDisk")["deleteOption"])
	for _, raw := range list(storage, "dataDisks") {
		disk, _ := raw.(map[string]any)
		add(diskKind, fmt.Sprintf("%s_DataDisk_%v", m.name, disk["lun"]), tags, disk["deleteOption"])
	}
	for _, one := range m.parts {
		c.parts[one.kind][strings.ToLower(one.name)] = one
	}
}

func (c *Cloud) partOf(p *part) map[string]any {
	out := map[string]any{"id": c.idOf(p.kind, p.name), "name": p.name, "location": Location, "tags": p.tags}
	properties := map[string]any{"provisioningState": p.state()}
	if p.model != nil {
		maps.Copy(properties, object(p.model, "properties"))
		for _, key := range []string{"sku", "zones"} {
			if value, is := p.model[key]; is {
				out[key] = value
			}
		}
	}
	switch {
	case p.kind == diskKind && p.owner != nil:
		out["managedBy"], properties["diskState"] = c.idOf("virtualMachines", p.owner.name), "Attached"
	case p.kind == diskKind:
		properties["diskState"] = "Unattached"
	case p.kind == nicKind:
		if p.owner != nil {
			properties["virtualMachine"] = map[string]any{"id": c.idOf("virtualMachines", p.owner.name)}
		}
		ip := map[string]any{"privateIPAddress": p.ip}
		if p.public != nil {
			ip["publicIPAddress"] = map[string]any{"id": c.idOf(addressKind, p.public.name)}
		}
		properties["ipConfigurations"] = []any{map[string]any{"name": "ipv4", "properties": ip}}
	case p.kind == addressKind:
		if p.state() == "Succeeded" {
			properties["ipAddress"] = p.ip
		}
		if p.balancer != nil {
			properties["ipConfiguration"] = map[string]any{"id": c.idOf(balancerKind, p.balancer.name) + "/frontendIPConfigurations/frontend"}
		}
		if p.owner != nil {
			properties["ipConfiguration"] = map[string]any{"id": c.idOf(nicKind, p.owner.name)}
		}
	}
	if p.kind == diskKind {
		properties["timeCreated"] = p.made.UTC().Truncate(time.Second).Format(time.RFC3339)
		properties["creationData"] = map[string]any{"createOption": "FromImage"}
	}
	out["properties"] = properties
	return out
}

func (c *Cloud) listParts(in call) (answer, *failure) {
	c.removeDeleted()
	all := slices.SortedFunc(maps.Values(c.parts[in.kind]), func(a, b *part) int { return strings.Compare(a.name, b.name) })
	from, to, next := c.pageOf(in, len(all))
	value := []any{}
	for _, p := range all[from:to] {
		value = append(value, c.partOf(p))
	}
	body := map[string]any{"value": value}
	if next != "" {
		body["nextLink"] = next
	}
	return answer{status: http.StatusOK, body: body,
		model: map[string]string{diskKind: "diskList", nicKind: "networkInterfaceList", addressKind: "publicIPAddressList"}[in.kind]}, nil
}

func (c *Cloud) deletePart(in call) (answer, *failure) {
	c.removeDeleted()
	key := strings.ToLower(in.name)
	one := c.parts[in.kind][key]
	switch {
	case one == nil:
		return answer{status: http.StatusNoContent}, nil
	case one.owner != nil:
		return answer{}, refuse(http.StatusConflict, "OperationNotAllowed", "%s is attached to a VM.", in.name)
	case one.balancer != nil:
		return answer{}, refuse(http.StatusBadRequest, "PublicIPAddressCannotBeDeleted",
			"Public IP address %s can not be deleted since it is still allocated.", in.name)
	}
	delete(c.parts[in.kind], key)
	return answer{status: http.StatusAccepted, header: c.progress(in, &operation{part: one})}, nil
}

// Left lists what carries the tag.
func (c *Cloud) Left(key, value string) (all []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.removeDeleted()
	for _, m := range c.machines {
		if object(m.model, "tags")[key] == value {
			all = append(all, "virtualMachines/"+m.name)
		}
	}
	for _, b := range c.balancers {
		if object(b.model, "tags")[key] == value {
			all = append(all, balancerKind+"/"+b.name)
		}
	}
	for kind, parts := range c.parts {
		for _, p := range parts {
			if p.tags[key] == value {
				all = append(all, kind+"/"+p.name)
			}
		}
	}
	return all
}

// catalog returns the sizes: a small and a large one, one for Arm, one with accelerators, one for
// the second generation of machines alone, and one without capacity.
func catalog() []any {
	size := func(name, family string, zones []any, capabilities ...string) any {
		all := []any{}
		for i := 0; i < len(capabilities); i += 2 {
			all = append(all, map[string]any{"name": capabilities[i], "value": capabilities[i+1]})
		}
		return map[string]any{
			"resourceType": "virtualMachines", "name": name, "family": family, "locations": []any{Location}, "capabilities": all,
			"locationInfo": []any{map[string]any{"location": Location, "zones": zones}},
			"restrictions": []any{map[string]any{"type": "Zone", "values": []any{Location}, "reasonCode": "NotAvailableForSubscription",
				"restrictionInfo": map[string]any{"locations": []any{Location}, "zones": []any{"4"}}}},
		}
	}
	every := []any{"3", "1", "2", "4"}
	return []any{
		size("Standard_D2s_v5", "standardDSv5Family", every, "vCPUs", "2", "MemoryGB", "8", "CpuArchitectureType", "x64", "HyperVGenerations",
			"V1,V2"),
		size("Standard_D32s_v5", "standardDSv5Family", every, "vCPUs", "32", "MemoryGB", "128", "CpuArchitectureType", "x64", "HyperVGenerations",
			"V1,V2"),
		size("Standard_D2ps_v5", "standardDPSv5Family", every, "vCPUs", "2", "MemoryGB", "8", "CpuArchitectureType", "Arm64",
			"HyperVGenerations", "V2"),
		size("Standard_NC4as_T4_v3", "Standard NCASv3_T4 Family", []any{"1"}, "vCPUs", "4", "MemoryGB", "28", "GPUs", "1", "CpuArchitectureType",
			"x64", "HyperVGenerations", "V1,V2"),
		size("Standard_D2s_v6", "StandardDsv6Family", every, "vCPUs", "2", "MemoryGB", "8", "CpuArchitectureType", "x64",
			"HyperVGenerations", "V2"),
		size("Standard_Scarce", "scarceFamily", every, "vCPUs", "8", "MemoryGB", "3.5", "CpuArchitectureType", "x64", "HyperVGenerations",
			"V1,V2"),
		map[string]any{"resourceType": "disks", "name": "Premium_LRS", "locations": []any{Location}},
	}
}

// sizeOf returns a size of the catalog, or nil.
func sizeOf(name any) map[string]any {
	for _, raw := range catalog() {
		if size := raw.(map[string]any); size["name"] == name {
			return size
		}
	}
	return nil
}

// capability returns what a size is capable of, or "".
func capability(size map[string]any, name string) string {
	for _, raw := range list(size, "capabilities") {
		if one := raw.(map[string]any); one["name"] == name {
			return text(one["value"])
		}
	}
	return ""
}

func number(size map[string]any, name string) int {
	n, _ := strconv.ParseFloat(capability(size, name), 64)
	return int(n)
}

func locations(subscription string) []any {
	of := func(name string, zones ...string) any {
		mappings := []any{}
		for _, z := range zones {
			mappings = append(mappings, map[string]any{"logicalZone": z, "physicalZone": name + "-az" + z})
		}
		return map[string]any{"id": "/subscriptions/" + subscription + "/locations/" + name, "name": name, "availabilityZoneMappings": mappings}
	}
	return []any{of("northeurope", "1", "2", "3"), of(Location, "3", "1", "2")}
}
