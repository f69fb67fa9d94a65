// SPDX-License-Identifier: Apache-2.0

package armstub

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"
)

const balancerKind = "loadBalancers"

// VirtualNetwork is that of Subnet.
const VirtualNetwork = networks + "vnet"

// balancer is a load balancer.
type balancer struct {
	name   string
	model  map[string]any // as it was sent
	made   time.Time
	ready  time.Time // when its last change ends
	gone   time.Time // when its deletion ends; zero: it is not being deleted
	failed bool      // whether its last change fails
	etag   int
	ip     string // its private address
	public *part
}

// collections are those of a load balancer's parts.
var collections = []string{"frontendIPConfigurations", "backendAddressPools", "loadBalancingRules", "probes"}

// settleBalancers removes load balancers whose deletion has ended. The caller holds the lock.
func (c *Cloud) settleBalancers() {
	maps.DeleteFunc(c.balancers, func(_ string, b *balancer) bool {
		isGone := !b.gone.IsZero() && !time.Now().Before(b.gone)
		if isGone && b.public != nil {
			b.public.balancer = nil
		}
		return isGone
	})
}

func (b *balancer) state() string {
	switch {
	case !b.gone.IsZero():
		return "Deleting"
	case time.Now().Before(b.ready):
		return "Updating"
	case b.failed:
		return "Failed"
	}
	return "Succeeded"
}

func (b *balancer) tag() string { return fmt.Sprintf(`W/"%08d-0000-0000-0000-000000000000"`, b.etag) }

// busy refuses a change while another one is carried out, or for another ETag.
func (b *balancer) busy(in call) *failure {
	switch {
	case b.state() == "Updating", b.state() == "Deleting":
		return refuse(http.StatusConflict, "AnotherOperationInProgress", "Another operation on this or dependent resource is in progress.")
	case in.match != "" && in.match != b.tag():
		return refuse(http.StatusPreconditionFailed, "PreconditionFailed",
			"Precondition failed. Etag provided in if-match header %s does not match etag %s of resource.", in.match, b.tag())
	}
	return nil
}

// change begins a change, which takes the time of Options.Parts.
func (c *Cloud) change(b *balancer) {
	b.etag++
	b.ready, b.failed = time.Now().Add(c.options.Parts), c.birth != ""
}

func (c *Cloud) findBalancer(in call) (*balancer, *failure) {
	c.settleBalancers()
	if b := c.balancers[strings.ToLower(in.name)]; b != nil {
		return b, nil
	}
	return nil, refuse(http.StatusNotFound, "ResourceNotFound",
		"The Resource 'Microsoft.Network/loadBalancers/%s' under resource group '%s' was not found.", in.name, c.options.Group)
}

// putBalancer is "Load Balancers - Create Or Update".
func (c *Cloud) putBalancer(in call) (answer, *failure) {
	c.removeDeleted()
	c.judge("loadBalancer", in.body)
	var model map[string]any
	if json.Unmarshal(in.body, &model) != nil {
		return answer{}, refuse(400, "InvalidRequestFormat", "Cannot parse the request.")
	}
	b, _ := c.findBalancer(in)
	status := http.StatusOK
	if b == nil {
		if in.match != "" {
			return answer{}, refuse(http.StatusPreconditionFailed, "PreconditionFailed", "The resource does not exist.")
		}
		status = http.StatusCreated
		b = &balancer{name: in.name, made: time.Now()}
	} else if fail := b.busy(in); fail != nil {
		return answer{}, fail
	}
	if fail := c.checkBalancer(in, b, model); fail != nil {
		return answer{}, fail
	}
	if status == http.StatusCreated {
		c.balancersMade++
		b.ip = fmt.Sprintf("10.%d.255.%d", c.options.Network, c.balancersMade)
		c.balancers[strings.ToLower(in.name)] = b
	}
	b.model = model
	front := object(list(object(model, "properties"), "frontendIPConfigurations")[0].(map[string]any), "properties")
	if address := text(front["privateIPAddress"]); address != "" {
		b.ip = address
	}
	if id := text(object(front, "publicIPAddress")["id"]); id != "" {
		b.public = c.parts[addressKind][strings.ToLower(id[strings.LastIndexByte(id, '/')+1:])]
		b.public.balancer = b
	}
	c.change(b)
	return answer{status: status, body: c.balancerModel(b), model: "loadBalancer", header: c.progress(in, &operation{of: b})}, nil
}

var partName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,78}[A-Za-z0-9_])?$`)

// checkBalancer refuses what Azure refuses at once.
func (c *Cloud) checkBalancer(in call, b *balancer, model map[string]any) *failure {
	p := object(model, "properties")
	fronts, pools := list(p, "frontendIPConfigurations"), list(p, "backendAddressPools")
	switch {
	case !partName.MatchString(in.name):
		return refuse(400, "InvalidResourceName", "Resource name %s is invalid.", in.name)
	case model["location"] != Location:
		return refuse(400, "LocationNotAvailableForResourceType", "The provided location '%v' is not available.", model["location"])
	case object(model, "sku")["name"] != "Standard":
		return refuse(400, "InvalidRequestFormat", "The stand-in has Standard load balancers only.")
	case len(fronts) != 1 || len(pools) != 1:
		return refuse(400, "InvalidRequestFormat", "The stand-in has load balancers of one frontend and one pool.")
	}
	if fail := c.checkFrontend(b, fronts[0].(map[string]any)); fail != nil {
		return fail
	}
	if fail := c.checkPool(object(pools[0].(map[string]any), "properties")); fail != nil {
		return fail
	}
	return checkRules(in.path, p)
}

// checkFrontend refuses a subnet or a public address that can't be used.
func (c *Cloud) checkFrontend(b *balancer, front map[string]any) *failure {
	p := object(front, "properties")
	subnet, public := text(object(p, "subnet")["id"]), text(object(p, "publicIPAddress")["id"])
	zones := list(front, "zones")
	switch {
	case (subnet == "") == (public == ""):
		return refuse(400, "FrontendIPConfigurationMustHaveEitherSubnetOrPublicIP",
			"The frontend must refer to a subnet or to a public IP address.")
	case public != "" && len(zones) > 0:
		return refuse(400, "LoadBalancerFrontendIPConfigCannotHaveZoneWhenReferencingPublicIPAddress",
			"The frontend has zones and a public IP address.")
	case subnet != "":
		address, method := text(p["privateIPAddress"]), text(p["privateIPAllocationMethod"])
		if subnet != Subnet {
			return missing(subnet, b.name)
		}
		if (method == "Static") != (address != "") {
			return refuse(400, "PrivateIPAddressRequiredForStaticAllocation", "The allocation method is %s.", method)
		}
		if ip, err := netip.ParseAddr(address); address != "" && (err != nil || !netip.MustParsePrefix("10.0.0.0/8").Contains(ip)) {
			return refuse(400, "PrivateIPAddressNotInSubnet", "Private static IP address %s does not belong to the range of subnet prefix.", address)
		}
		return c.forbid(subnet, "Microsoft.Network/virtualNetworks/subnets/join/action", "LinkedAuthorizationFailed")
	}
	ip := c.parts[addressKind][strings.ToLower(public[strings.LastIndexByte(public, '/')+1:])]
	switch {
	case ip == nil:
		return missing(public, b.name)
	case ip.state() != "Succeeded":
		fail := refuse(http.StatusTooManyRequests, "RetryableError", "A retryable error occurred.")
		fail.details = []any{map[string]any{"code": "ReferencedResourceNotProvisioned",
			"message": "Cannot proceed with operation because resource " + public + " is not in Succeeded state."}}
		return fail
	case ip.owner != nil, ip.balancer != nil && ip.balancer != b:
		return refuse(400, "PublicIPAddressInUse", "Resource %s is referencing public IP address %s that is already allocated.", b.name, public)
	}
	return c.forbid(public, "Microsoft.Network/publicIPAddresses/join/action", "LinkedAuthorizationFailed")
}

// missing is the answer to a reference to what does not exist, from
// https://github.com/fortinetsolutions/Azure-Templates/issues/1.
func missing(id, by string) *failure {
	fail := refuse(400, "InvalidResourceReference",
		"Resource %s referenced by resource %s was not found. Please make sure that the referenced resource exists, and that both resources are in the same region.", id, by)
	fail.details = []any{map[string]any{"code": "NotFound", "message": "Resource " + id + " not found."}}
	return fail
}

// checkPool refuses a pool that has no network, or addresses that can't be in it.
func (c *Cloud) checkPool(p map[string]any) *failure {
	network := text(object(p, "virtualNetwork")["id"])
	seen := map[string]bool{}
	for _, raw := range list(p, "loadBalancerBackendAddresses") {
		one, _ := raw.(map[string]any)
		address, name := text(object(one, "properties")["ipAddress"]), text(one["name"])
		if _, err := netip.ParseAddr(address); err != nil || network == "" || name == "" || seen[name] {
			return refuse(400, "InvalidRequestFormat", "Backend address %q with IP %q is invalid in virtual network %q.", name, address, network)
		}
		seen[name] = true
	}
	if network != "" && network != VirtualNetwork {
		return refuse(404, "NotFound", "Resource %s not found.", network)
	}
	return c.forbid(network, "Microsoft.Network/virtualNetworks/joinLoadBalancer/action", "LinkedAuthorizationFailed")
}

// checkRules refuses rules that refer to parts of other load balancers, and impossible probes.
func checkRules(path string, p map[string]any) *failure {
	for _, raw := range list(p, "loadBalancingRules") {
		rule, _ := raw.(map[string]any)
		rule = object(rule, "properties")
		port, _ := rule["frontendPort"].(float64)
		idle, _ := rule["idleTimeoutInMinutes"].(float64)
		if rule["protocol"] != "Tcp" || port < 1 || port > 65534 || idle < 4 || idle > 30 {
			return refuse(400, "InvalidRequestFormat", "The rule's protocol, port or idle timeout is invalid: %v.", rule)
		}
		for member, collection := range map[string]string{"frontendIPConfiguration": collections[0], "backendAddressPool": collections[1],
			"probe": collections[3]} {
			id := text(object(rule, member)["id"])
			if !slices.ContainsFunc(list(p, collection), func(raw any) bool {
				one, _ := raw.(map[string]any)
				return strings.EqualFold(id, path+"/"+collection+"/"+text(one["name"]))
			}) {
				return missing(id, member)
			}
		}
	}
	for _, raw := range list(p, "probes") {
		probe, _ := raw.(map[string]any)
		probe = object(probe, "properties")
		interval, _ := probe["intervalInSeconds"].(float64)
		threshold, _ := probe["probeThreshold"].(float64)
		if (probe["protocol"] == "Tcp") != (text(probe["requestPath"]) == "") || interval < 5 || threshold < 1 || threshold > 100 {
			return refuse(400, "InvalidRequestFormat", "The probe is invalid: %v.", probe)
		}
	}
	return nil
}

// putPool is "Load Balancer Backend Address Pools - Create Or Update", of the only pool.
func (c *Cloud) putPool(in call) (answer, *failure) {
	c.removeDeleted()
	c.judge("backendAddressPool", in.body)
	b, fail := c.findBalancer(in)
	if fail != nil {
		fail.code = "ParentResourceNotFound"
		return answer{}, fail
	}
	var model map[string]any
	if json.Unmarshal(in.body, &model) != nil {
		return answer{}, refuse(400, "InvalidRequestFormat", "Cannot parse the request.")
	}
	if fail := b.busy(in); fail != nil {
		return answer{}, fail
	}
	pool, fail := b.pool(in)
	if fail != nil {
		return answer{}, fail
	}
	if fail := c.checkPool(object(model, "properties")); fail != nil {
		return answer{}, fail
	}
	pool["properties"] = object(model, "properties")
	c.change(b)
	return answer{status: http.StatusOK, body: c.partModel(b, "backendAddressPools", pool), model: "backendAddressPool",
		header: c.progress(in, &operation{of: b})}, nil
}

func (b *balancer) pool(in call) (map[string]any, *failure) {
	pool := list(object(b.model, "properties"), "backendAddressPools")[0].(map[string]any)
	if !strings.EqualFold(text(pool["name"]), in.part) {
		return nil, refuse(404, "NotFound", "The stand-in makes no second pool.")
	}
	return pool, nil
}

func (c *Cloud) getPool(in call) (answer, *failure) {
	b, fail := c.findBalancer(in)
	if fail != nil {
		return answer{}, fail
	}
	pool, fail := b.pool(in)
	if fail != nil {
		return answer{}, fail
	}
	return ok("backendAddressPool", c.partModel(b, "backendAddressPools", pool))
}

// balancerModel returns a load balancer as Azure answers: each part has its own ID, ETag and state.
func (c *Cloud) balancerModel(b *balancer) map[string]any {
	out := maps.Clone(b.model)
	p := maps.Clone(object(b.model, "properties"))
	for _, collection := range collections {
		all := []any{}
		for _, raw := range list(p, collection) {
			all = append(all, c.partModel(b, collection, raw.(map[string]any)))
		}
		p[collection] = all
	}
	p["provisioningState"], p["resourceGuid"], p["inboundNatRules"] = b.state(), VMID, []any{}
	out["properties"], out["etag"] = p, b.tag()
	out["id"], out["name"], out["type"] = c.idOf(balancerKind, b.name), b.name, "Microsoft.Network/loadBalancers"
	return out
}

func (c *Cloud) partModel(b *balancer, collection string, of map[string]any) map[string]any {
	out, p := maps.Clone(of), maps.Clone(object(of, "properties"))
	id := c.idOf(balancerKind, b.name)
	p["provisioningState"] = b.state()
	switch {
	case collection == "backendAddressPools":
		p["loadBalancingRules"] = []any{map[string]any{"id": id + "/loadBalancingRules/api"}}
	case collection == "frontendIPConfigurations" && b.public == nil:
		p["privateIPAddress"], p["privateIPAddressVersion"] = b.ip, "IPv4"
	case collection == "frontendIPConfigurations":
		p["privateIPAllocationMethod"], p["publicIPAddress"] = "Dynamic", map[string]any{"id": c.idOf(addressKind, b.public.name)}
	}
	out["properties"], out["etag"] = p, b.tag()
	out["id"], out["type"] = id+"/"+collection+"/"+text(of["name"]), "Microsoft.Network/loadBalancers/"+collection
	return out
}

func (c *Cloud) getBalancer(in call) (answer, *failure) {
	b, fail := c.findBalancer(in)
	if fail != nil {
		return answer{}, fail
	}
	return ok("loadBalancer", c.balancerModel(b))
}

func (c *Cloud) listBalancers(in call) (answer, *failure) {
	c.removeDeleted()
	all := slices.SortedFunc(maps.Values(c.balancers), func(a, b *balancer) int { return strings.Compare(a.name, b.name) })
	all = slices.DeleteFunc(all, func(b *balancer) bool { return time.Since(b.made) < c.options.Lag })
	from, to, next := c.pageOf(in, len(all))
	value := []any{}
	for _, b := range all[from:to] {
		value = append(value, c.balancerModel(b))
	}
	body := map[string]any{"value": value}
	if next != "" {
		body["nextLink"] = next
	}
	return ok("loadBalancerList", body)
}

func (c *Cloud) deleteBalancer(in call) (answer, *failure) {
	b, fail := c.findBalancer(in)
	if fail != nil {
		return answer{status: http.StatusNoContent}, nil
	}
	if b.gone.IsZero() {
		if fail := b.busy(in); fail != nil {
			return answer{}, fail
		}
		b.gone = time.Now().Add(c.options.Parts)
	}
	return answer{status: http.StatusAccepted, header: c.progress(in, &operation{of: b, deletes: true})}, nil
}

// askHealth is "Load Balancer Load Balancing Rules - Health", whose answer is elsewhere.
func (c *Cloud) askHealth(in call) (answer, *failure) {
	b, fail := c.findBalancer(in)
	if fail != nil {
		return answer{}, fail
	}
	if in.part != "api" {
		return answer{}, refuse(404, "NotFound", "There is no rule %s.", in.part)
	}
	header := c.progress(in, &operation{of: b, ready: time.Now().Add(c.options.Parts)})
	header["Location"] = strings.Replace(header["Azure-AsyncOperation"], "/operations/", "/operationResults/", 1)
	return answer{status: http.StatusAccepted, header: header}, nil
}

// getResult returns the health of a load balancer's targets. One is up if its machine runs. Azure
// says nothing of addresses without a machine that runs.
func (c *Cloud) getResult(in call) (answer, *failure) {
	c.removeDeleted()
	o := c.operations[in.name]
	if o == nil || o.of == nil {
		return answer{}, refuse(http.StatusNotFound, "NotFound", "The operation does not exist.")
	}
	if time.Now().Before(o.ready) {
		return answer{status: http.StatusAccepted}, nil
	}
	up, all := 0, []any{}
	pool := object(list(object(o.of.model, "properties"), "backendAddressPools")[0].(map[string]any), "properties")
	for _, raw := range list(pool, "loadBalancerBackendAddresses") {
		address := text(object(raw.(map[string]any), "properties")["ipAddress"])
		for _, nic := range c.parts[nicKind] {
			if nic.ip == address && nic.owner != nil && nic.owner.state() == "Succeeded" && (nic.owner.power == "" || nic.owner.power == "running") {
				up++
				all = append(all, map[string]any{"ipAddress": address, "state": "Up", "reason": "Up_Probe_Success"})
			}
		}
	}
	return ok("loadBalancerHealth", map[string]any{"up": up, "down": 0, "loadBalancerBackendAddresses": all})
}

// putAddress is "Public IP Addresses - Create Or Update".
func (c *Cloud) putAddress(in call) (answer, *failure) {
	c.removeDeleted()
	c.judge("publicIPAddress", in.body)
	var model map[string]any
	if json.Unmarshal(in.body, &model) != nil {
		return answer{}, refuse(400, "InvalidRequestFormat", "Cannot parse the request.")
	}
	p := object(model, "properties")
	switch {
	case !partName.MatchString(in.name):
		return answer{}, refuse(400, "InvalidResourceName", "Resource name %s is invalid.", in.name)
	case model["location"] != Location:
		return answer{}, refuse(400, "LocationNotAvailableForResourceType", "The provided location '%v' is not available.", model["location"])
	case object(model, "sku")["name"] == "Standard" && p["publicIPAllocationMethod"] != "Static":
		return answer{}, refuse(400, "StandardSkuPublicIPAddressesMustBeStatic",
			"Standard sku publicIp %s must have AllocationMethod set to Static.", in.name)
	}
	key := strings.ToLower(in.name)
	old := c.parts[addressKind][key]
	if old == nil {
		c.made++
		old = &part{kind: addressKind, name: in.name, made: time.Now(), ip: fmt.Sprintf("198.51.%d.%d", 100+c.made/250, c.made%250+1)}
		old.ready = old.made.Add(c.options.Parts)
		c.parts[addressKind][key] = old
	}
	old.tags, old.model, old.failed = object(model, "tags"), model, c.birth != ""
	return answer{status: http.StatusCreated, body: c.partOf(old), model: "publicIPAddress",
		header: c.progress(in, &operation{part: old})}, nil
}

func (c *Cloud) getAddress(in call) (answer, *failure) {
	c.removeDeleted()
	if p := c.parts[addressKind][strings.ToLower(in.name)]; p != nil {
		return ok("publicIPAddress", c.partOf(p))
	}
	return answer{}, refuse(http.StatusNotFound, "ResourceNotFound", "The Resource 'Microsoft.Network/publicIPAddresses/%s' was not found.",
		in.name)
}

// BalancersMade returns how many load balancers were ever created.
func (c *Cloud) BalancersMade() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.balancersMade
}

// RemoveBalancers deletes all load balancers at once, as another user would.
func (c *Cloud) RemoveBalancers() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, b := range c.balancers {
		b.gone = time.Now()
	}
	c.settleBalancers()
}
