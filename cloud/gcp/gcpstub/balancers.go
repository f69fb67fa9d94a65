// SPDX-License-Identifier: Apache-2.0

package gcpstub

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// part is a resource of a load balancer.
type part struct {
	collection string // its path below the project, such as "global/healthChecks"
	name       string
	id         uint64
	model      map[string]any // as it was sent
	made       time.Time
	ready      time.Time // when its creation ends
	gone       time.Time // when its deletion ends; zero: it is not being deleted
	failed     string    // the code with which its creation fails
	ip         string    // of a forwarding rule
	endpoints  []*endpoint
}

// endpoint is one of a network endpoint group.
type endpoint struct {
	instance, ip string
	port         float64
	from, until  time.Time // when listings begin and cease to show it; zero: it is not being detached
}

// kindOfPart names the kinds of the collections.
var kindOfPart = map[string]string{
	"healthChecks": "healthCheck", "networkEndpointGroups": "networkEndpointGroup", "backendServices": "backendService",
	"targetTcpProxies": "targetTcpProxy", "forwardingRules": "forwardingRule",
}

func (p *part) key() string { return p.collection + "/" + p.name }

// kind returns the last part of the collection's path.
func (p *part) kind() string { return p.collection[strings.LastIndexByte(p.collection, '/')+1:] }

// refers returns the keys of the parts that the part refers to.
func (p *part) refers() (keys []string) {
	add := func(url any) {
		_, key, _ := strings.Cut(fmt.Sprint(url), "/compute/v1/projects/")
		_, key, _ = strings.Cut(key, "/")
		keys = append(keys, key)
	}
	switch p.kind() {
	case "backendServices":
		for _, check := range list(p.model, "healthChecks") {
			add(check)
		}
		for _, raw := range list(p.model, "backends") {
			backend, _ := raw.(map[string]any)
			add(backend["group"])
		}
	case "targetTcpProxies":
		add(p.model["service"])
	case "forwardingRules":
		add(p.model["target"])
	}
	return keys
}

// settleParts removes the parts whose creation has failed, and those whose deletion has ended.
func (c *Cloud) settleParts() {
	now := time.Now()
	maps.DeleteFunc(c.parts, func(_ string, p *part) bool {
		return p.failed != "" && !now.Before(p.ready) || !p.gone.IsZero() && !now.Before(p.gone)
	})
	for _, p := range c.parts {
		p.endpoints = slices.DeleteFunc(p.endpoints, func(e *endpoint) bool {
			i := c.instances[zoneOf(p.collection)+"/"+e.instance]
			return i == nil || !e.until.IsZero() && !now.Before(e.until)
		})
	}
}

// zoneOf returns the zone of a collection; "" if it is global.
func zoneOf(collection string) string {
	zone, ok := strings.CutPrefix(collection, "zones/")
	zone, _, _ = strings.Cut(zone, "/")
	if !ok {
		return ""
	}
	return zone
}

func collectionOf(in call) string {
	if in.zone == "" {
		return "global/" + in.collection
	}
	return "zones/" + in.zone + "/" + in.collection
}

// insertPart is the insert method of all kinds of parts.
func (c *Cloud) insertPart(in call) (any, *failure) {
	request := in.is("requestId")
	if request == "" {
		c.objections = append(c.objections, in.collection+".insert without requestId")
	}
	if old := c.requests[request]; old != nil {
		return old.model(c.base()), nil
	}
	now := time.Now()
	p := &part{collection: collectionOf(in), made: now, ready: now.Add(c.options.Parts), failed: c.birth}
	if err := json.Unmarshal(in.body, &p.model); err != nil {
		return nil, refuse(http.StatusBadRequest, "parseError", "Parse Error")
	}
	p.name = fmt.Sprint(p.model["name"])
	if fail := c.checkPart(p); fail != nil {
		return nil, fail
	}
	p.id = c.number()
	if p.kind() == "forwardingRules" {
		c.balancers++
		p.ip = fmt.Sprintf("198.51.%d.%d", 100+c.balancers/250, c.balancers%250+1)
	}
	c.parts[p.key()] = p
	op := &operation{id: c.number(), kind: "insert", zone: zoneOf(p.collection), collection: in.collection, request: request, target: p.id,
		name:    p.name,
		started: now, ends: p.ready, failed: p.failed}
	c.requests[request] = op
	return op.model(c.base()), nil
}

// checkPart refuses what Compute Engine refuses at once.
func (c *Cloud) checkPart(p *part) *failure {
	switch {
	case !resourceName.MatchString(p.name):
		return refuse(400, "invalid", "Invalid value for field 'resource.name': '%s'.", p.name)
	case c.parts[p.key()] != nil:
		return refuse(http.StatusConflict, "alreadyExists", "The resource 'projects/%s/%s' already exists", c.options.Project, p.key())
	case p.kind() == "networkEndpointGroups" && p.model["network"] != "projects/"+c.options.Project+"/global/networks/"+Network:
		return refuse(404, "notFound", "The resource '%v' was not found", p.model["network"])
	}
	for _, raw := range list(p.model, "backends") {
		backend, _ := raw.(map[string]any)
		if group := fmt.Sprint(backend["group"]); !strings.HasPrefix(group, "https://www.") {
			return refuse(400, "invalid", "Invalid value for field 'resource.backends[0].group': '%s'. The URL is malformed.", group)
		}
	}
	for _, key := range p.refers() {
		switch of := c.parts[key]; {
		case of == nil:
			return refuse(404, "notFound", "The resource 'projects/%s/%s' was not found", c.options.Project, key)
		case time.Now().Before(of.ready) || !of.gone.IsZero():
			return refuse(400, "resourceNotReady", "The resource 'projects/%s/%s' is not ready", c.options.Project, key)
		}
	}
	return nil
}

// findPart finds a part by its name.
func (c *Cloud) findPart(in call) (*part, *failure) {
	if p := c.parts[collectionOf(in)+"/"+in.name]; p != nil {
		return p, nil
	}
	return nil, refuse(http.StatusNotFound, "notFound", "The resource 'projects/%s/%s/%s' was not found", c.options.Project, collectionOf(in),
		in.name)
}

// getPart is the get method of all kinds of parts, and the list method of the global ones.
func (c *Cloud) getPart(in call) (any, *failure) {
	if in.name == "" {
		return c.listParts(in)
	}
	p, fail := c.findPart(in)
	if fail != nil {
		return nil, fail
	}
	return c.partAnswer(p), nil
}

// partAnswer returns a part as Google answers.
func (c *Cloud) partAnswer(p *part) map[string]any {
	out := maps.Clone(p.model)
	out["kind"], out["id"], out["creationTimestamp"] = "compute#"+kindOfPart[p.kind()], strconv.FormatUint(p.id, 10), stamp(p.made)
	out["selfLink"] = c.base() + "/" + p.key()
	switch p.kind() {
	case "networkEndpointGroups":
		out["zone"], out["size"] = c.base()+"/zones/"+zoneOf(p.collection), len(p.endpoints)
	case "forwardingRules":
		out["portRange"] = fmt.Sprintf("%v-%v", p.model["portRange"], p.model["portRange"])
		if !time.Now().Before(p.ready) {
			out["IPAddress"], out["networkTier"] = p.ip, "PREMIUM"
		}
	}
	return out
}

func (c *Cloud) listParts(in call) (any, *failure) {
	selected, fail := filter(in.is("filter"))
	if fail != nil {
		return nil, fail
	}
	all := []any{}
	for _, key := range slices.Sorted(maps.Keys(c.parts)) {
		p := c.parts[key]
		if p.collection == collectionOf(in) && time.Since(p.made) >= c.options.Lag && selected(item{model: p.model}) &&
			in.project == c.options.Project {
			all = append(all, c.partAnswer(p))
		}
	}
	return map[string]any{"kind": "compute#" + kindOfPart[in.collection] + "List", "id": "projects/" + c.options.Project + "/" +
		collectionOf(in),
		"items": all, "selfLink": c.base() + "/" + collectionOf(in)}, nil
}

// deletePart is the delete method of all kinds of parts.
func (c *Cloud) deletePart(in call) (any, *failure) {
	p, fail := c.findPart(in)
	if fail != nil {
		return nil, fail
	}
	now := time.Now()
	if now.Before(p.ready) || !p.gone.IsZero() {
		return nil, refuse(400, "resourceNotReady", "The resource 'projects/%s/%s' is not ready", c.options.Project, p.key())
	}
	for _, other := range c.parts {
		if slices.Contains(other.refers(), p.key()) {
			return nil, refuse(400, "resourceInUseByAnotherResource", "The %s resource 'projects/%s/%s' is already being used by '%s'",
				kindOfPart[p.kind()], c.options.Project, p.key(), other.key())
		}
	}
	p.gone = now.Add(c.options.Parts)
	op := &operation{id: c.number(), kind: "delete", zone: zoneOf(p.collection), collection: in.collection, target: p.id, name: p.name,
		started: now, ends: p.gone}
	return op.model(c.base()), nil
}

// changeEndpoints attaches or detaches endpoints of a group. It refuses what is already so: Google
// documents no answer for that.
func (c *Cloud) changeEndpoints(in call) (any, *failure) {
	p, fail := c.findPart(in)
	if fail != nil {
		return nil, fail
	}
	var asked struct {
		NetworkEndpoints []struct {
			Instance, IPAddress string
			Port                float64
		}
	}
	if err := json.Unmarshal(in.body, &asked); err != nil {
		return nil, refuse(http.StatusBadRequest, "parseError", "Parse Error")
	}
	now := time.Now()
	ends, attach := now.Add(c.options.Parts), in.action == "/attachNetworkEndpoints"
	for _, one := range asked.NetworkEndpoints {
		at := slices.IndexFunc(p.endpoints, func(e *endpoint) bool {
			return e.instance == one.Instance && e.ip == one.IPAddress && e.port == one.Port && e.until.IsZero()
		})
		i := c.instances[in.zone+"/"+one.Instance]
		switch {
		case attach == (at >= 0):
			return nil, refuse(400, "invalid", "Invalid value for field 'resource.ipAddress': '%s'. The endpoint is attached: %t.", one.IPAddress,
				at >= 0)
		case !attach:
			p.endpoints[at].until = ends
		case i == nil:
			return nil, refuse(404, "notFound", "The resource 'projects/%s/zones/%s/instances/%s' was not found", c.options.Project, in.zone,
				one.Instance)
		case i.ip != one.IPAddress:
			return nil, refuse(400, "invalid", "Invalid value for field 'resource.ipAddress': '%s'. Specified IP address doesn't belong to the instance %s.", one.IPAddress, one.Instance)
		default:
			p.endpoints = append(p.endpoints, &endpoint{instance: one.Instance, ip: one.IPAddress, port: one.Port, from: ends})
		}
	}
	op := &operation{id: c.number(), kind: strings.TrimPrefix(in.action, "/"), zone: in.zone, collection: in.collection, target: p.id,
		name: p.name, started: now, ends: ends}
	return op.model(c.base()), nil
}

// listEndpoints lists the endpoints of a group. One is healthy if its instance runs.
func (c *Cloud) listEndpoints(in call) (any, *failure) {
	p, fail := c.findPart(in)
	if fail != nil {
		return nil, fail
	}
	all := []any{}
	for _, e := range p.endpoints {
		if time.Now().Before(e.from) {
			continue
		}
		health := map[string]any{"healthState": "UNHEALTHY"}
		if c.instances[in.zone+"/"+e.instance].state() == "RUNNING" {
			health["healthState"] = "HEALTHY"
		}
		for _, user := range c.parts {
			if slices.Contains(user.refers(), p.key()) {
				health["backendService"] = map[string]any{"backendService": c.base() + "/" + user.key()}
			}
		}
		all = append(all, map[string]any{
			"networkEndpoint": map[string]any{"instance": c.base() + "/zones/" + in.zone + "/instances/" + e.instance, "ipAddress": e.ip,
				"port": e.port},
			"healths": []any{health},
		})
	}
	return map[string]any{"kind": "compute#networkEndpointGroupsListNetworkEndpoints", "id": "projects/" + c.options.Project + "/" + p.key(),
		"items": all}, nil
}

// BalancersMade returns how many forwarding rules were ever created.
func (c *Cloud) BalancersMade() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.balancers
}

// RemoveBalancers deletes all forwarding rules at once, as another user would.
func (c *Cloud) RemoveBalancers() {
	c.set(func() {
		maps.DeleteFunc(c.parts, func(_ string, p *part) bool { return p.kind() == "forwardingRules" })
	}, nil)
}
