// SPDX-License-Identifier: Apache-2.0

package gcp

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
)

// A load balancer is a global external proxy Network Load Balancer. Its parts are a health check, a
// network endpoint group in each zone of the region, a backend service, a target TCP proxy and a
// forwarding rule, which has the address. A proxy lets a machine of the control plane reach other
// machines through the endpoint. A passthrough load balancer would lead each of its targets to
// itself. All parts have one name, which is made from the token, and the tags in their
// descriptions, because most can't have labels. The health check is made first and deleted last, so
// it tells whether anything is there.

// Health checks of the API servers: a target is unhealthy 20 seconds after its last good answer.
// Google does not verify the certificate.
const (
	checkPath      = "/readyz"
	checkSeconds   = 10
	timeoutSeconds = 5
	checkThreshold = 2
)

const (
	// idleSeconds is how long a connection may be silent. Watches hear something each minute.
	idleSeconds = 600
	// drainSeconds is how long the connections of a former target go on.
	drainSeconds = 30
	// connections are those to one target, beyond which Google prefers others. It needs a figure.
	connections = 10_000
	// partsPoll is how long to wait for a part that another one refers to.
	partsPoll = 5 * time.Second
)

// Google's words for a part that is being made, and one that another part refers to.
const (
	notReady = "resourceNotReady"
	inUse    = "resourceInUseByAnotherResource"
	inUseOp  = "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE"
)

// collection is where parts of one kind are, below the project.
type collection struct{ kind, path string }

var (
	healthChecks    = collection{"HealthCheck", "global/healthChecks"}
	backendServices = collection{"BackendService", "global/backendServices"}
	tcpProxies      = collection{"TargetTcpProxy", "global/targetTcpProxies"}
	forwardingRules = collection{"ForwardingRule", "global/forwardingRules"}
)

// endpointGroups are a zone's network endpoint groups.
func endpointGroups(zone string) collection {
	return collection{"NetworkEndpointGroup", "zones/" + zone + "/networkEndpointGroups"}
}

// stages returns the collections of the parts in the order of their creation. Parts refer to those
// of earlier stages. The first two stages refer to none.
func stages(zones []string) [][]collection {
	var groups []collection
	for _, zone := range zones {
		groups = append(groups, endpointGroups(zone))
	}
	return [][]collection{{healthChecks}, groups, {backendServices}, {tcpProxies}, {forwardingRules}}
}

// balancer is what the driver knows of a load balancer.
type balancer struct {
	token, owner string
	created      time.Time
	address      string // "" if there is no forwarding rule, or it was not read
	port         int32
	zones        []string            // those of its groups; nil: not known
	targets      map[string]endpoint // by address
	changed      time.Time           // when the driver last made it, or changed its targets
	// sent are the paths of the collections whose part was created, or deleted if isDeleting; true
	// if the operation has ended. A process that does not know them begins again.
	sent       map[string]bool
	isDeleting bool
	failures   int       // of creates
	asked      time.Time // when the driver last created a part, if the load balancer is incomplete
}

// endpoint is a target.
type endpoint struct {
	zone, instance string
	port           int32
	healthy        bool
}

// balancers are the load balancers that the driver knows.
type balancers struct{ driverkit.Known[balancer] }

// get returns a copy of what is known.
func (b *balancers) get(token, owner string) balancer {
	is, known := b.Get(token)
	if !known {
		is = balancer{token: token, owner: owner}
	}
	return is.clone()
}

// put records a copy, because the caller goes on with its own.
func (b *balancers) put(is balancer) { b.Put(is.token, is.clone()) }

func (b balancer) clone() balancer {
	b.targets = maps.Clone(b.targets)
	if b.sent = maps.Clone(b.sent); b.sent == nil {
		b.sent = map[string]bool{}
	}
	return b
}

// saw records what a read has shown, and returns what is known now. A read of the time since the
// driver's last change may not show that.
func (b *balancers) saw(seen balancer, readLag time.Duration) balancer {
	before := b.get(seen.token, seen.owner)
	after := before
	after.owner, after.created = seen.owner, seen.created
	isRecent := before.address != "" && time.Since(before.changed) < readLag
	if isRecent {
		for address, is := range after.targets {
			is.healthy = seen.targets[address].healthy
			after.targets[address] = is
		}
	} else {
		after.address, after.port, after.zones, after.targets = seen.address, seen.port, seen.zones, seen.targets
	}
	b.put(after)
	return after
}

// listed forgets the load balancers that a listing does not show.
func (b *balancers) listed(found []balancer, readLag time.Duration) {
	b.Listed(func(token string, is balancer) bool {
		return time.Since(is.asked) > readLag && time.Since(is.changed) > readLag &&
			!slices.ContainsFunc(found, func(f balancer) bool { return f.token == token })
	})
}

// recheck lets the next attempt ask again how the creates ended. If all have succeeded, it makes
// the parts again, because somebody has deleted one.
func (b *balancer) recheck() {
	before := len(b.sent)
	maps.DeleteFunc(b.sent, func(_ string, ended bool) bool { return !ended })
	if len(b.sent) == before {
		b.failures++
		clear(b.sent)
	}
}

// partName returns the name of all parts of a load balancer.
func partName(token string) string {
	sum := sha256.Sum256([]byte(token))
	return fmt.Sprintf("drover-%x", sum[:12])
}

// ownParts selects the parts of all load balancers of Drover's.
const ownParts = `description : "` + cloud.TagOwnership + `="`

func partFor(req cloud.BalancerRequest) part {
	return part{Name: partName(req.Token), Description: fmt.Sprintf("%s=%s %s=%s DroverCluster %s/%s",
		cloud.TagOwnership, req.OwnershipID, cloud.TagToken, req.Token, req.Namespace, req.Name)}
}

// tag returns a tag in the description.
func (p *part) tag(key string) string {
	for word := range strings.FieldsSeq(p.Description) {
		if value, ok := strings.CutPrefix(word, key+"="); ok {
			return strings.Clone(value) // does not keep the description in memory
		}
	}
	return ""
}

// isUntagged reports whether a part with the token's name has lost its tags, and has no other's.
func (p *part) isUntagged(token string) bool {
	is := p.tag(cloud.TagToken)
	return is == "" || is == token && p.tag(cloud.TagOwnership) == ""
}

func (p *part) isOf(token, owner string) bool {
	return p.Name == partName(token) && p.tag(cloud.TagToken) == token && p.tag(cloud.TagOwnership) == owner
}

// EnsureBalancer implements cloud.Balancer. Parts refer to each other, and Compute Engine takes
// some seconds for each. Until all are there, EnsureBalancer returns Unavailable.
func (d *driver) EnsureBalancer(ctx context.Context, req cloud.BalancerRequest) (cloud.Resource, error) {
	b := d.balancers.get(req.Token, req.OwnershipID)
	if b.owner != req.OwnershipID {
		return cloud.Resource{}, cloud.Errorf(cloud.Conflict, "load balancer %s has the ownership ID %q", partName(req.Token), b.owner)
	}
	d.balancers.put(b) // listings look for it from now on
	err := d.ensureParts(ctx, req, &b)
	if err == nil {
		err = d.setTargets(ctx, req, &b)
	}
	if err != nil { // only a read tells what there is
		b.address, b.targets = "", nil
	}
	d.balancers.put(b)
	if err != nil {
		return cloud.Resource{}, err
	}
	return b.resource(), nil
}

// ensureParts makes or finds the parts, unless they are known.
func (d *driver) ensureParts(ctx context.Context, req cloud.BalancerRequest, b *balancer) error {
	switch {
	case b.address != "":
		return nil
	case !req.Recorded:
		return d.makeBalancer(ctx, req, b)
	}
	found, err := d.findBalancer(ctx, b)
	if err == nil && !found {
		return cloud.Errorf(cloud.NotFound, "forwarding rule %s does not exist any more", partName(req.Token))
	}
	return err
}

// makeBalancer makes the parts, stage by stage.
func (d *driver) makeBalancer(ctx context.Context, req cloud.BalancerRequest, b *balancer) error {
	if req.Spec == nil || req.Spec.GCP == nil {
		return cloud.Invalid("spec.endpoint.loadBalancer.cloud.gcp is not set: it names the network")
	}
	r, err := d.zones.Get(ctx, "", d.readRegion)
	if err != nil {
		return err
	}
	unfinished := &cloud.Error{Code: cloud.Unavailable, RetryAfter: d.partsPoll, Message: "Compute Engine is creating the load balancer"}
	b.asked = time.Now()
	for i, stage := range stages(r.Zones) {
		running := false
		for _, c := range stage {
			if _, sent := b.sent[c.path]; sent {
				continue
			}
			ended, err := d.insertPart(ctx, req, c, r.Zones, b)
			switch {
			case i > 1 && driverkit.RefusedAs(err, notReady, notFound): // what it refers to
				b.recheck()
				return unfinished
			case err != nil:
				b.failures++
				return err
			}
			b.sent[c.path], running = ended, running || !ended
		}
		if running {
			return unfinished
		}
	}
	found, err := d.findBalancer(ctx, b)
	switch {
	case err != nil:
		return err
	case !found:
		b.recheck()
		return unfinished
	}
	b.changed, b.asked = time.Now(), time.Time{}
	return nil
}

// insertPart makes a part, or finds it if an earlier call has made it. The same call, sent again,
// returns its operation as it is by then. So the next one after an error has another ID.
func (d *driver) insertPart(ctx context.Context, req cloud.BalancerRequest, c collection, zones []string,
	b *balancer) (ended bool, err error) {
	id := requestID(cloud.Request{Token: req.Token}, c.path, b.failures)
	ended, err = d.change(ctx, request{
		op: "Create" + c.kind, class: cloud.ClassCreate, method: http.MethodPost, path: c.path, query: url.Values{"requestId": {id}},
		in: d.partBody(req, c, zones),
	})
	if !driverkit.RefusedAs(err, alreadyExists, resourceExists) {
		return ended, err
	}
	found, err := d.getPart(ctx, c, req.Token)
	switch {
	case err != nil:
		return false, err
	case found == nil:
		return false, cloud.Errorf(cloud.Unavailable, "Create%s: %s existed, and is gone now", c.kind, partName(req.Token))
	case !found.isOf(req.Token, req.OwnershipID):
		return false, cloud.Errorf(cloud.Conflict, "Create%s: %s exists and does not belong to this cluster", c.kind, found.Name)
	}
	return true, nil
}

// partBody returns what a part is made from.
func (d *driver) partBody(req cloud.BalancerRequest, c collection, zones []string) any {
	meta, spec := partFor(req), req.Spec.GCP
	switch c {
	case healthChecks:
		return &healthCheck{
			part: meta, Type: "HTTPS", Interval: checkSeconds, Timeout: timeoutSeconds, HealthyThreshold: checkThreshold,
			UnhealthyThreshold: checkThreshold,
			HTTPS:              httpsCheck{Path: checkPath, PortSpecification: "USE_SERVING_PORT"},
		}
	case backendServices:
		service := &backendService{
			part: meta, Scheme: external, Protocol: "TCP", TimeoutSeconds: idleSeconds,
			HealthChecks: []string{d.partURL(healthChecks, meta.Name)}, Draining: &draining{drainSeconds},
		}
		for _, zone := range zones {
			service.Backends = append(service.Backends, backend{Group: d.partURL(endpointGroups(zone), meta.Name), Mode: "CONNECTION",
				MaxPerEndpoint: connections})
		}
		return service
	case tcpProxies:
		return &tcpProxy{part: meta, Service: d.partURL(backendServices, meta.Name)}
	case forwardingRules:
		return &forwardingRule{part: meta, Scheme: external, Protocol: "TCP", PortRange: strconv.Itoa(int(req.Port)),
			Target: d.partURL(tcpProxies, meta.Name)}
	}
	return &endpointGroup{part: meta, Type: "GCE_VM_IP_PORT", DefaultPort: req.Port,
		Network: networkPath(d.account, spec.HostProject, spec.Network)}
}

// external is the load balancing scheme.
const external = "EXTERNAL_MANAGED"

// partURL returns the whole URL of a part. A backend must be named by it.
func (d *driver) partURL(c collection, name string) string {
	return "https://www." + universeOf(d.account) + "/compute/v1/projects/" + d.account.ProjectID + "/" + c.path + "/" + name
}

// getPart reads the part with the token's name; nil: there is none.
func (d *driver) getPart(ctx context.Context, c collection, token string) (*part, error) {
	var found part
	err := d.readPart(ctx, c, partName(token), &found)
	switch {
	case driverkit.RefusedAs(err, notFound):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return &found, nil
}

func (d *driver) readPart(ctx context.Context, c collection, name string, out any) error {
	return d.call(ctx, request{op: "Get" + c.kind, class: cloud.ClassRead, method: http.MethodGet, path: c.path + "/" + name, out: out})
}

// findBalancer reads a load balancer that is complete, and reports whether there is one. One that
// has no address yet is not complete.
func (d *driver) findBalancer(ctx context.Context, b *balancer) (found bool, err error) {
	var rule forwardingRule
	err = d.readPart(ctx, forwardingRules, partName(b.token), &rule)
	switch {
	case driverkit.RefusedAs(err, notFound):
		return false, nil
	case err != nil:
		return false, err
	case !rule.isOf(b.token, b.owner) || rule.Address == "":
		return false, nil
	}
	return true, d.readTargets(ctx, &rule, b)
}

// readTargets reads the rest of a load balancer that has a forwarding rule.
func (d *driver) readTargets(ctx context.Context, rule *forwardingRule, b *balancer) error {
	if b.zones == nil {
		var service backendService
		if err := d.readPart(ctx, backendServices, rule.Name, &service); err != nil {
			return unavailableIfNotFound(err)
		}
		for _, backend := range service.Backends { // …/zones/ZONE/networkEndpointGroups/NAME
			if parts := strings.Split(backend.Group, "/"); len(parts) > 3 {
				b.zones = append(b.zones, strings.Clone(parts[len(parts)-3]))
			}
		}
		slices.Sort(b.zones)
	}
	targets := map[string]endpoint{}
	for _, zone := range b.zones {
		found, err := d.endpoints(ctx, zone, rule.Name)
		if err != nil {
			return unavailableIfNotFound(err)
		}
		for _, e := range found {
			if !e.hasState("DRAINING") {
				targets[e.Endpoint.Address] = endpoint{zone, lastPart(e.Endpoint.Instance), e.Endpoint.Port, e.hasState("HEALTHY")}
			}
		}
	}
	first, _, _ := strings.Cut(rule.PortRange, "-")
	port, _ := strconv.ParseInt(first, 10, 32)
	b.address, b.port, b.targets = rule.Address, int32(port), targets
	return nil
}

// unavailableIfNotFound returns the error of a call for a load balancer that exists: NotFound is
// about something else, such as an instance.
func unavailableIfNotFound(err error) error {
	if cloud.CodeOf(err) == cloud.NotFound {
		return &cloud.Error{Code: cloud.Unavailable, Message: err.Error(), Err: err}
	}
	return err
}

// endpoints lists the endpoints of a group, with their health.
func (d *driver) endpoints(ctx context.Context, zone, name string) ([]endpointStatus, error) {
	const op = "ListNetworkEndpoints"
	return driverkit.SizedPages(ctx, op, &d.sizes, 1, pageSize,
		func(ctx context.Context, next string, size int) ([]endpointStatus, string, error) {
			var page listed[endpointStatus]
			err := d.call(ctx, request{
				op: op, class: cloud.ClassRead, method: http.MethodPost, path: endpointGroups(zone).path + "/" + name + "/listNetworkEndpoints",
				query: pageQuery("", next, size), in: map[string]string{"healthStatus": "SHOW"}, out: &page,
			})
			return page.Items, page.NextPageToken, page.check(d, op, err)
		})
}

// hasState reports whether a health check gives the endpoint this state.
func (e *endpointStatus) hasState(state string) bool {
	return slices.Contains(e.Healths, endpointHealth{state})
}

// setTargets changes the targets to those of the request. What can't be added keeps nothing from
// being removed.
func (d *driver) setTargets(ctx context.Context, req cloud.BalancerRequest, b *balancer) error {
	var added []string
	for _, address := range req.Targets {
		if _, ok := b.targets[address]; !ok {
			added = append(added, address)
		}
	}
	attached, failed := d.newEndpoints(ctx, req, added)
	if err := d.changeEndpoints(ctx, "attachNetworkEndpoints", b, attached); failed == nil {
		failed = err
	}
	removed := map[string]endpoint{}
	for address, is := range b.targets {
		if !slices.Contains(req.Targets, address) {
			removed[address] = is
		}
	}
	if err := d.changeEndpoints(ctx, "detachNetworkEndpoints", b, removed); failed == nil {
		failed = err
	}
	for address := range removed {
		delete(b.targets, address)
	}
	maps.Copy(b.targets, attached)
	return failed
}

// newEndpoints finds the instances of a cluster that have the addresses.
func (d *driver) newEndpoints(ctx context.Context, req cloud.BalancerRequest, addresses []string) (map[string]endpoint, error) {
	if len(addresses) == 0 {
		return nil, nil
	}
	all, err := d.instances(ctx, fmt.Sprintf("(labels.%s = %q)", cloud.TagOwnership, req.OwnershipID))
	if err != nil {
		return nil, err
	}
	found := map[string]endpoint{}
	for i := range all {
		for _, nic := range all[i].NetworkInterfaces {
			if slices.Contains(addresses, nic.NetworkIP) {
				found[nic.NetworkIP] = endpoint{zone: lastPart(all[i].Zone), instance: all[i].Name, port: req.Port}
			}
		}
	}
	for _, address := range addresses {
		if _, ok := found[address]; !ok {
			return found, cloud.Errorf(cloud.Unavailable, "no instance of the cluster has the address %s", cloud.Clip(address, 64))
		}
	}
	return found, nil
}

// changeEndpoints attaches or detaches endpoints, with one call for each zone that has some.
func (d *driver) changeEndpoints(ctx context.Context, action string, b *balancer, all map[string]endpoint) error {
	byZone := map[string][]networkEndpoint{}
	for _, address := range slices.Sorted(maps.Keys(all)) {
		is := all[address]
		byZone[is.zone] = append(byZone[is.zone], networkEndpoint{Instance: is.instance, Address: address, Port: is.port})
	}
	for _, zone := range slices.Sorted(maps.Keys(byZone)) {
		_, err := d.change(ctx, request{
			op: strings.ToUpper(action[:1]) + action[1:], class: cloud.ClassDelete, method: http.MethodPost,
			path: endpointGroups(zone).path + "/" + partName(b.token) + "/" + action, in: map[string]any{"networkEndpoints": byZone[zone]},
		})
		if err != nil {
			return unavailableIfNotFound(err)
		}
		b.changed = time.Now()
	}
	return nil
}

// resource returns the load balancer with all its parts as one Resource.
func (b *balancer) resource() cloud.Resource {
	r := cloud.Resource{
		Kind: cloud.KindBalancer, ID: partName(b.token), Token: b.token, OwnershipID: b.owner, CreatedAt: b.created, State: cloud.StateRunning,
		Balancer: &cloud.BalancerState{Address: b.address, Port: b.port, Zones: b.zones},
	}
	if b.address == "" {
		r.State, r.Reason = cloud.StatePending, "there is no forwarding rule with an address, only other parts of the load balancer"
	}
	for _, address := range slices.Sorted(maps.Keys(b.targets)) {
		r.Balancer.Targets = append(r.Balancer.Targets, cloud.BalancerTarget{Address: address, Healthy: b.targets[address].healthy})
	}
	return r
}

// listBalancers returns the load balancers of Drover. Once the project was searched for those of
// earlier processes, it makes no call unless one is known.
func (d *driver) listBalancers(ctx context.Context) ([]cloud.Resource, error) {
	if d.balancers.IsSearched() && d.balancers.IsEmpty() {
		return nil, nil
	}
	found, err := d.readBalancers(ctx, ownParts, nil, false)
	if err != nil {
		return nil, err
	}
	d.balancers.listed(found, d.readLag)
	return balancerResources(found), nil
}

// balancersOf returns the load balancers with the tokens. It reads a few of them by name, and of
// many those whose creation was recorded: they may have lost their tags.
func (d *driver) balancersOf(ctx context.Context, tokens map[string]bool, recorded map[string]string) (all []cloud.Resource, err error) {
	if len(tokens) == 0 {
		return nil, nil
	}
	byName := slices.Sorted(maps.Keys(tokens))
	if len(tokens) > maxTokens {
		found, err := d.readBalancers(ctx, ownParts, tokens, len(recorded) > 0)
		if err != nil {
			return nil, err
		}
		all = balancerResources(found)
		byName = slices.DeleteFunc(byName, func(token string) bool {
			_, is := recorded[token]
			return !is || slices.ContainsFunc(all, func(r cloud.Resource) bool { return r.Token == token })
		})
	}
	for some := range slices.Chunk(byName, maxTokens) {
		var terms []string
		for _, token := range some {
			terms = append(terms, fmt.Sprintf("(name = %q)", partName(token)))
		}
		found, err := d.readBalancers(ctx, strings.Join(terms, " OR "), tokens, len(recorded) > 0)
		if err != nil {
			return nil, err
		}
		all = append(all, balancerResources(found)...)
	}
	return all, nil
}

// untagged is the error for a part of a load balancer without its tags.
func untagged(c collection, name string) error {
	return cloud.Errorf(cloud.Conflict, "%s %s exists without %s and %s in its description: write them again, or delete the load balancer that it belongs to",
		c.kind, name, cloud.TagToken, cloud.TagOwnership)
}

// checkUntagged returns Conflict for a health check that has the name of one of the load balancers,
// and no tags in its description. It is the first part to come and the last to go.
func checkUntagged(checks []part, tokens map[string]bool) error {
	names := map[string]string{}
	for token := range tokens {
		names[partName(token)] = token
	}
	for i := range checks {
		if token, is := names[checks[i].Name]; is && checks[i].isUntagged(token) {
			return untagged(healthChecks, checks[i].Name)
		}
	}
	return nil
}

func balancerResources(found []balancer) (all []cloud.Resource) {
	for i := range found {
		all = append(all, found[i].resource())
	}
	return all
}

// readBalancers reads the load balancers that a filter selects and that have one of the tokens;
// nil: any.
func (d *driver) readBalancers(ctx context.Context, filter string, tokens map[string]bool, recorded bool) (found []balancer, err error) {
	checks, err := listGlobal[part](ctx, d, "ListHealthChecks", healthChecks, filter)
	if err = d.balancers.MayRead(err, recorded); err == nil {
		err = checkUntagged(checks, tokens)
	}
	checks = slices.DeleteFunc(checks, func(p part) bool {
		token, owner := p.tag(cloud.TagToken), p.tag(cloud.TagOwnership)
		return owner == "" || !p.isOf(token, owner) || tokens != nil && !tokens[token]
	})
	if err != nil || len(checks) == 0 {
		return nil, err
	}
	rules, err := listGlobal[forwardingRule](ctx, d, "ListForwardingRules", forwardingRules, filter)
	if err != nil {
		return nil, err
	}
	for _, check := range checks {
		token, owner := check.tag(cloud.TagToken), check.tag(cloud.TagOwnership)
		b := balancer{token: token, owner: owner, zones: d.balancers.get(token, owner).zones}
		if check.CreationTimestamp != nil {
			b.created = *check.CreationTimestamp
		}
		for i := range rules {
			if rules[i].isOf(token, owner) && rules[i].Address != "" {
				if err := d.readTargets(ctx, &rules[i], &b); err != nil {
					return nil, err
				}
			}
		}
		found = append(found, d.balancers.saw(b, d.readLag))
	}
	return found, nil
}

// deleteBalancer deletes the parts, the last one first, until Compute Engine needs time for one.
// Parts that have the name and not the tags are not Drover's.
func (d *driver) deleteBalancer(ctx context.Context, r cloud.Resource) error {
	if err := driverkit.CheckOwned(r); err != nil {
		return err
	}
	b := d.balancers.get(r.Token, r.OwnershipID)
	if left := d.readLag - time.Since(b.asked); left > 0 {
		return &cloud.Queued{After: left} // a part may still appear
	}
	region, err := d.zones.Get(ctx, "", d.readRegion)
	if err != nil {
		return err
	}
	if !b.isDeleting {
		b.isDeleting, b.changed = true, time.Time{}
		clear(b.sent)
	}
	err = d.deleteParts(ctx, &b, region.Zones)
	d.balancers.put(b)
	return err
}

func (d *driver) deleteParts(ctx context.Context, b *balancer, zones []string) error {
	for _, stage := range slices.Backward(stages(zones)) {
		running := false
		for _, c := range stage {
			if _, sent := b.sent[c.path]; sent {
				continue
			}
			ended, err := d.deletePart(ctx, c, b)
			if err != nil {
				clear(b.sent) // the deletion of another part may have failed
			}
			switch {
			case driverkit.RefusedAs(err, notReady, inUse, inUseOp):
				return &cloud.Queued{After: d.partsPoll}
			case err != nil:
				return err
			}
			b.sent[c.path], running = ended, running || !ended
		}
		if running && stage[0] != healthChecks {
			return &cloud.Queued{After: d.partsPoll}
		}
	}
	clear(b.sent) // if reads still show it, the next attempt begins again
	return nil
}

func (d *driver) deletePart(ctx context.Context, c collection, b *balancer) (ended bool, err error) {
	found, err := d.getPart(ctx, c, b.token)
	switch {
	case err != nil || found == nil:
		return err == nil, err
	case found.isUntagged(b.token):
		return false, untagged(c, found.Name)
	case !found.isOf(b.token, b.owner):
		return true, nil
	}
	ended, err = d.change(ctx, request{op: "Delete" + c.kind, class: cloud.ClassDelete, method: http.MethodDelete, path: c.path + "/" +
		found.Name})
	if driverkit.RefusedAs(err, notFound) {
		return true, nil
	}
	return ended, err
}
