// SPDX-License-Identifier: Apache-2.0

package armstub

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
)

// What exists beside the account's resource group, in groups of its own.
const (
	networks = "/subscriptions/" + Subscription + "/resourceGroups/net/providers/Microsoft.Network/virtualNetworks/"
	gallery  = "/subscriptions/" + Subscription + "/resourceGroups/images/providers/Microsoft.Compute/galleries/nodes/images/"

	Subnet = networks + "vnet/subnets/nodes"
	// FarSubnet is in another location.
	FarSubnet = networks + "far/subnets/nodes"

	// Image is the resource ID of an image that all sizes can boot but those for Arm.
	Image = gallery + "ubuntu/versions/1.0.0"
	// ArmImage is for Arm, FarImage is only in another location, OldImage is for machines of the
	// first generation, and PaidImage has the plan of Paid.
	ArmImage  = gallery + "arm/versions/1.0.0"
	FarImage  = gallery + "far/versions/1.0.0"
	OldImage  = gallery + "old/versions/1.0.0"
	PaidImage = gallery + "paid/versions/1.0.0"
	// ManagedImage is no gallery's.
	ManagedImage = "/subscriptions/" + Subscription + "/resourceGroups/images/providers/Microsoft.Compute/images/ubuntu"

	// Paid is the publisher, the product and the name of a plan.
	Paid = "paid"
	// Publisher has an image without a plan in the marketplace.
	Publisher = "Canonical"
)

// imageOf returns what is true of an image: its members as in a gallery's definition, and the
// location of a gallery's version. A name in lower case selects it.
func imageOf(name string) (properties map[string]any, location string) {
	of := func(architecture, generation string) map[string]any {
		return map[string]any{
			"osType": "Linux", "osState": "Generalized", "architecture": architecture, "hyperVGeneration": generation,
			"identifier": map[string]any{"publisher": "drover", "offer": "nodes", "sku": name},
		}
	}
	switch name {
	case "ubuntu", "server":
		return of("x64", "V2"), "West Europe"
	case "arm":
		return of("Arm64", "V2"), "West Europe"
	case "far":
		return of("x64", "V2"), "North Europe"
	case "old":
		return of("x64", "V1"), "West Europe"
	case Paid:
		properties = of("x64", "V2")
		properties["purchasePlan"] = map[string]any{"publisher": Paid, "product": Paid, "name": Paid}
		return properties, "West Europe"
	}
	return nil, ""
}

// Grant is one role assignment of the credentials' identity. It is valid for all scopes that begin
// with its own.
type Grant struct {
	Scope               string
	Actions, NotActions []string
}

// Grants replaces the role assignments. At first, everything is granted.
func (c *Cloud) Grants(all ...Grant) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.grants = all
}

// AcceptTerms accepts the terms of Paid, or takes that back.
func (c *Cloud) AcceptTerms(accept bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.accepted = accept
}

// actionOf returns the action of Azure's access control for a call.
func actionOf(method, path string) string {
	at := strings.LastIndex(path, "/providers/")
	if at < 0 {
		return "Microsoft.Resources/subscriptions/locations/read"
	}
	parts := strings.Split(path[at+len("/providers/"):], "/")
	action := parts[0]
	for i := 1; i < len(parts); i += 2 {
		action += "/" + parts[i]
	}
	return action + map[string]string{http.MethodGet: "/read", http.MethodPut: "/write", http.MethodPatch: "/write",
		http.MethodDelete: "/delete", http.MethodPost: "/action"}[method]
}

// Required returns the actions that the caller needed so far.
func (c *Cloud) Required() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(maps.Keys(c.required))
}

// within returns the role assignments that are valid for a scope.
func (c *Cloud) within(scope string) []Grant {
	return slices.DeleteFunc(slices.Clone(c.grants),
		func(g Grant) bool { return !strings.HasPrefix(strings.ToLower(scope), strings.ToLower(g.Scope)) })
}

// forbid returns Azure's refusal of an action that no role assignment has.
func (c *Cloud) forbid(scope, action, code string) *failure {
	c.required[action] = true
	has := func(patterns []string) bool {
		return slices.ContainsFunc(patterns, func(p string) bool {
			return regexp.MustCompile("(?i)^" + strings.ReplaceAll(regexp.QuoteMeta(p), `\*`, ".*") + "$").MatchString(action)
		})
	}
	if slices.ContainsFunc(c.within(scope), func(g Grant) bool { return has(g.Actions) && !has(g.NotActions) }) {
		return nil
	}
	return refuse(http.StatusForbidden, code, "The client '%s' does not have authorization to perform action '%s' over scope '%s' or the scope is invalid.", c.options.Client, action, scope)
}

// reads are the kinds of resources that are only read, by the part of their path that tells them.
// The first that a path has is its kind.
var reads = []struct{ part, kind, version string }{
	{"/providers/microsoft.authorization/permissions", "permissions", "2022-04-01"},
	{"/providers/microsoft.marketplaceordering/", "agreements", "2021-01-01"},
	{"/providers/microsoft.network/virtualnetworks/", "virtualNetworks", "2024-05-01"},
	{"/providers/microsoft.compute/galleries/", "galleries", "2023-07-03"},
	{"/providers/microsoft.compute/images/", "images", "2025-04-01"},
	{"/communitygalleries/", "communityGalleries", "2023-07-03"},
	{"/sharedgalleries/", "sharedGalleries", "2023-07-03"},
	{"/artifacttypes/vmimage/", "vmImages", "2025-04-01"},
	{"/providers/microsoft.compute/locations/" + Location + "/usages", "usages", "2025-04-01"},
}

func (in *call) isRead() bool {
	return slices.ContainsFunc(reads, func(r struct{ part, kind, version string }) bool {
		return in.kind == r.kind && in.method == http.MethodGet && in.is("api-version") == r.version
	})
}

// read answers the calls of these kinds. name is the path.
func (c *Cloud) read(in call) (answer, *failure) {
	parts := strings.Split(strings.ToLower(in.name), "/")
	after := func(part string) string { // its last one: a group may have a kind's name
		for i := len(parts) - 2; i >= 0; i-- {
			if parts[i] == part {
				return parts[i+1]
			}
		}
		return ""
	}
	version := after("versions")
	switch in.kind {
	case "permissions":
		value := []any{}
		for _, g := range c.within(in.name) {
			value = append(value, map[string]any{"actions": g.Actions, "notActions": g.NotActions})
		}
		return ok("permissionList", map[string]any{"value": value})
	case "agreements":
		if after("publishers") != Paid {
			return answer{}, refuse(http.StatusBadRequest, "BadRequest", "Unable to find legal terms for this offer.")
		}
		return ok("agreement", map[string]any{"name": Paid,
			"properties": map[string]any{"publisher": Paid, "product": Paid, "plan": Paid, "accepted": c.accepted}})
	case "virtualNetworks":
		location := map[string]string{"vnet": Location, "far": "northeurope"}[after("virtualnetworks")]
		if location == "" {
			break
		}
		subnets := []any{map[string]any{"name": "nodes", "properties": map[string]any{"addressPrefix": "10.0.0.0/8"}}}
		return ok("virtualNetwork", map[string]any{"name": after("virtualnetworks"), "location": location,
			"properties": map[string]any{"subnets": subnets}})
	case "usages":
		value := []any{}
		used := c.used()
		for _, name := range slices.Sorted(maps.Keys(used)) {
			value = append(value, map[string]any{"unit": "Count", "currentValue": used[name], "limit": cmp.Or(c.quotas[name], 25000),
				"name": map[string]any{"value": name, "localizedValue": name}})
		}
		return ok("usageList", map[string]any{"value": value})
	case "vmImages":
		return c.readMarketplace(after("publishers"), after("skus"), version)
	case "images":
		if _, here := imageOf(after("images")); here != "" {
			return ok("image", map[string]any{"name": after("images"), "location": Location, "properties": map[string]any{"hyperVGeneration": "V2"}})
		}
	default:
		properties, location := imageOf(after("images"))
		model := map[string]string{"galleries": "galleryImage", "communityGalleries": "communityGalleryImage",
			"sharedGalleries": "sharedGalleryImage"}[in.kind]
		body := map[string]any{"name": after("images"), "location": Location, "properties": properties}
		if version != "" {
			model += "Version"
			body["properties"] = map[string]any{}
		}
		if version != "" && in.kind == "galleries" {
			body["properties"] = map[string]any{"storageProfile": map[string]any{},
				"publishingProfile": map[string]any{"targetRegions": []any{map[string]any{"name": location, "regionalReplicaCount": 1}}}}
		}
		if properties != nil && (version == "" || version == "1.0.0") {
			return ok(model, body)
		}
	}
	return answer{}, refuse(http.StatusNotFound, "ResourceNotFound", "The Resource '%s' was not found.", in.name)
}

func ok(model string, body any) (answer, *failure) {
	return answer{status: http.StatusOK, body: body, model: model}, nil
}

// readMarketplace lists the versions of an image of the marketplace, or returns one.
func (c *Cloud) readMarketplace(publisher, sku, version string) (answer, *failure) {
	gallery, _ := imageOf(sku)
	resource := map[string]any{"name": "1.0.0", "location": Location}
	switch {
	case gallery == nil || publisher != strings.ToLower(Publisher) && publisher != Paid || version != "" && version != "1.0.0":
		return answer{}, refuse(http.StatusNotFound, "NotFound", "Artifact: VMImage was not found.")
	case version == "":
		return ok("vmImageList", []any{resource})
	}
	properties := map[string]any{"architecture": gallery["architecture"], "hyperVGeneration": gallery["hyperVGeneration"]}
	if plan := gallery["purchasePlan"]; plan != nil {
		properties["plan"] = plan
	}
	resource["properties"] = properties
	return ok("vmImage", resource)
}

// used returns how much of each quota is in use.
func (c *Cloud) used() map[string]int {
	used := map[string]int{"virtualMachines": len(c.machines), "cores": 0, "lowPriorityCores": 0}
	for _, raw := range catalog() {
		if family, is := raw.(map[string]any)["family"].(string); is {
			used[family] = 0
		}
	}
	for _, m := range c.machines {
		for name, n := range needs(m.model) {
			if name != "virtualMachines" {
				used[name] += n
			}
		}
	}
	return used
}

// needs returns how much of each quota a machine takes.
func needs(model map[string]any) map[string]int {
	p := object(model, "properties")
	size := sizeOf(object(p, "hardwareProfile")["vmSize"])
	cpus := number(size, "vCPUs")
	switch {
	case size == nil:
		return nil
	case p["priority"] == "Spot":
		return map[string]int{"virtualMachines": 1, "lowPriorityCores": cpus}
	}
	return map[string]int{"virtualMachines": 1, "cores": cpus, size["family"].(string): cpus}
}

// SetQuota limits a quota, such as "virtualMachines", "cores" or a family; 0: no limit.
func (c *Cloud) SetQuota(name string, limit int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.quotas[name] = limit
}

// checkQuota refuses a machine that a quota has no room for.
func (c *Cloud) checkQuota(model map[string]any) *failure {
	used := c.used()
	for name, n := range needs(model) {
		if limit := c.quotas[name]; limit > 0 && used[name]+n > limit {
			return refuse(http.StatusConflict, "OperationNotAllowed",
				"Operation could not be completed as it results in exceeding approved %s quota.", name)
		}
	}
	return nil
}

// checkImage refuses an image that does not exist or does not fit.
func (c *Cloud) checkImage(model map[string]any) *failure {
	p := object(model, "properties")
	reference := object(object(p, "storageProfile"), "imageReference")
	var facts, location = map[string]any(nil), ""
	id, _ := reference["id"].(string)
	if rest, inGallery := strings.CutPrefix(id, gallery); inGallery {
		name, version, _ := strings.Cut(rest, "/versions/")
		if facts, location = imageOf(name); version != "" && version != "1.0.0" {
			facts = nil
		}
	} else if id == ManagedImage {
		facts, location = map[string]any{"hyperVGeneration": "V2"}, "West Europe"
	} else if publisher := reference["publisher"]; publisher == Publisher || publisher == Paid {
		if version := text(reference["version"]); version == "latest" || version == "1.0.0" {
			facts, location = imageOf(text(reference["sku"]))
		}
	} else if public := cmp.Or(text(reference["communityGalleryImageId"]), text(reference["sharedGalleryImageId"])); public != "" {
		facts, location = imageOf(strings.Split(strings.ToLower(public)+"/////", "/")[4])
	}
	size := sizeOf(object(p, "hardwareProfile")["vmSize"])
	architecture, _ := facts["architecture"].(string)
	plan, wanted := object(facts, "purchasePlan"), object(model, "plan")
	switch {
	case facts == nil && id == "":
		return refuse(http.StatusNotFound, "PlatformImageNotFound", "The platform image is not available.")
	case facts == nil, location != "West Europe":
		return refuse(http.StatusNotFound, "GalleryImageNotFound", "The gallery image %s is not available in %s region.", id, Location)
	case architecture != "" && architecture != capability(size, "CpuArchitectureType"):
		return refuse(http.StatusBadRequest, "BadRequest",
			"Cannot create a VM of this size because it only supports another CPU Architecture than '%s'.", architecture)
	case !strings.Contains(capability(size, "HyperVGenerations"), facts["hyperVGeneration"].(string)):
		return refuse(http.StatusBadRequest, "BadRequest", "The selected VM size cannot boot Hypervisor Generation '%s'.",
			facts["hyperVGeneration"])
	case len(plan) > 0 && !maps.Equal(plan, wanted), len(plan) == 0 && id == "" && len(wanted) > 0:
		return refuse(http.StatusBadRequest, "VMMarketplaceInvalidInput", "The plan information does not match.")
	case len(plan) > 0 && !c.accepted:
		// https://github.com/MicrosoftDocs/azure-docs/pull/25359
		fail := refuse(http.StatusBadRequest, "MarketplacePurchaseEligibilityFailed",
			"Marketplace purchase eligibilty check returned errors. See inner errors for details. ")
		fail.details = []any{map[string]any{"code": "BadRequest",
			"message": fmt.Sprintf("Offer with PublisherId: %v, OfferId: %v cannot be purchased due to validation errors. See details for more information."+
				`[{"Legal terms have not been accepted for this item on this subscription.":"StoreApi"}]`, wanted["publisher"], wanted["product"])}}
		return fail
	}
	return nil
}

func text(value any) string {
	s, _ := value.(string)
	return s
}
