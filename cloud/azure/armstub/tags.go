// SPDX-License-Identifier: Apache-2.0

package armstub

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"time"
)

// tagsAction is the action of "Tags - Update At Scope" for a resource of the group.
const tagsAction = "/providers/tags"

// maxTags is how many tags a resource may have.
const maxTags = 50

// changeTags is "Tags - Update At Scope": it merges tags into those of a resource, or deletes those
// with these names and values.
func (c *Cloud) changeTags(in call) (answer, *failure) {
	if in.is("api-version") != "2021-04-01" {
		return answer{}, refuse(http.StatusBadRequest, "InvalidApiVersionParameter", "The api-version '%s' is invalid.", in.is("api-version"))
	}
	c.removeDeleted()
	c.judge("tagsPatch", in.body)
	var patch struct {
		Operation  string
		Properties struct{ Tags map[string]string }
	}
	if err := json.Unmarshal(in.body, &patch); err != nil || in.method != http.MethodPatch {
		return answer{}, refuse(http.StatusBadRequest, "InvalidRequestContent", "The request content was invalid.")
	}
	old, set := c.tagsOf(in)
	if set == nil {
		return answer{}, refuse(http.StatusNotFound, "ResourceNotFound", "The Resource '%s/%s' was not found.", in.kind, in.name)
	}
	tags := maps.Clone(old)
	if tags == nil {
		tags = map[string]any{}
	}
	for key, value := range patch.Properties.Tags {
		same := key
		for has := range tags {
			if strings.EqualFold(has, key) {
				same = has
			}
		}
		switch {
		case patch.Operation == "Merge":
			tags[same] = value
		case patch.Operation != "Delete":
			return answer{}, refuse(http.StatusBadRequest, "InvalidRequestContent", "The operation '%s' is invalid.", patch.Operation)
		case tags[same] == value:
			delete(tags, same)
		}
	}
	if len(tags) > maxTags {
		return answer{}, refuse(http.StatusBadRequest, "InvalidTagCount", "The resource would have %d tags; %d are allowed.", len(tags), maxTags)
	}
	set(tags)
	return ok("tags", map[string]any{
		"id": c.idOf(in.kind, in.name) + "/providers/Microsoft.Resources/tags/default", "name": "default", "type": "Microsoft.Resources/tags",
		"properties": map[string]any{"tags": tags},
	})
}

// tagsOf returns the tags of a resource, and how to set them; nil: there is none.
func (c *Cloud) tagsOf(in call) (map[string]any, func(map[string]any)) {
	if p := c.parts[in.kind][strings.ToLower(in.name)]; p != nil {
		return p.tags, func(tags map[string]any) { p.tags = tags }
	}
	if m := c.machines[strings.ToLower(in.name)]; m != nil && in.kind == "virtualMachines" {
		return object(m.model, "tags"), func(tags map[string]any) { m.model["tags"] = tags }
	}
	if b := c.balancers[strings.ToLower(in.name)]; b != nil && in.kind == "loadBalancers" {
		return object(b.model, "tags"), func(tags map[string]any) { b.model["tags"] = tags }
	}
	return nil, nil
}

// SetKeep sets whether each machine leaves its network interface and disk behind.
func (c *Cloud) SetKeep(keep bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.options.Keep = keep
}

// LaunchWith makes a machine without the driver, as another system does: with a network interface,
// an OS disk, a data disk of its own and one that a CSI driver has attached. The first three have
// its tags. With cascade, Azure deletes them with the machine; otherwise there is a public address,
// too, and the other system would delete all of it.
func (c *Cloud) LaunchWith(name string, tags map[string]string, cascade bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	own := map[string]any{}
	for key, value := range tags {
		own[key] = value
	}
	c.made++
	m := &machine{name: name, made: time.Now(), model: map[string]any{"location": Location, "tags": own, "zones": []any{"1"}}}
	add := func(kind, suffix string, tags map[string]any, cascades bool) *part {
		one := &part{kind: kind, name: name + suffix, tags: maps.Clone(tags), made: m.made, owner: m, cascades: cascades,
			ip: fmt.Sprintf("10.%d.%d.%d", c.options.Network, c.made/250, c.made%250+4)}
		m.parts = append(m.parts, one)
		c.parts[kind][strings.ToLower(one.name)] = one
		return one
	}
	option := map[bool]string{true: "Delete", false: "Detach"}[cascade]
	managed := func(p *part) map[string]any { return map[string]any{"id": c.idOf(diskKind, p.name)} }
	nic := add(nicKind, "-nic", own, cascade)
	if !cascade {
		nic.public = add(addressKind, "-nic-pubip", own, false)
		nic.public.ip = "203.0.113.8"
	}
	m.model["properties"] = map[string]any{
		"hardwareProfile": map[string]any{"vmSize": "Standard_D2s_v5"},
		"storageProfile": map[string]any{
			"imageReference": map[string]any{"id": Image},
			"osDisk": map[string]any{"createOption": "FromImage", "deleteOption": option, "osType": "Linux",
				"managedDisk": managed(add(diskKind, "-os-disk", own, cascade))},
			"dataDisks": []any{
				map[string]any{"lun": 0, "createOption": "Empty", "deleteOption": option,
					"managedDisk": managed(add(diskKind, "-data-disk", own, cascade))},
				map[string]any{"lun": 1, "createOption": "Attach", "deleteOption": "Detach",
					"managedDisk": managed(add(diskKind, "-pvc", map[string]any{"csi": "1"}, false))},
			},
		},
	}
	c.machines[strings.ToLower(name)] = m
}
