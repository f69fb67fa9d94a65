// SPDX-License-Identifier: Apache-2.0

package azure

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
)

// A load balancer is a Standard Load Balancer with one frontend, rule, probe and backend pool. One
// PUT makes all of it. The pool holds IP addresses of a virtual network, so no network interface is
// changed. A public one has a public IP address, which is made before and deleted after it. Both
// are named after the token: a PUT that is repeated makes no second one.

// Health checks of the API servers: a target is unhealthy 20 seconds after its last good answer.
// Azure does not verify the certificate.
const (
	checkPath      = "/readyz"
	checkSeconds   = 10
	checkThreshold = 2
)

const (
	// idleMinutes is how long a connection may be silent, the most that Azure takes. Then Azure
	// resets it.
	idleMinutes = 30
	// partsPoll is how long to wait for the public address.
	partsPoll = 5 * time.Second
)

// The names of the parts of a load balancer.
const (
	frontendName = "frontend"
	poolName     = "api-servers"
	probeName    = "readyz"
	ruleName     = "api"
)

// balancers are the load balancers that the driver knows.
type balancers struct{ driverkit.Known[knownBalancer] }

// knownBalancer is what is known of a load balancer beyond Azure's model of it.
type knownBalancer struct {
	at     time.Time       // when it was last asked for or seen
	result string          // path of the health that Azure is preparing; "" if it is not
	up     map[string]bool // the addresses whose health check succeeds
}

// get returns what is known of a load balancer, which is known from now on.
func (b *balancers) get(token string) knownBalancer {
	return b.Change(token, func(is knownBalancer, _ bool) (knownBalancer, bool) {
		is.at = time.Now()
		return is, true
	})
}

// setHealth records the health of a load balancer's targets, or the path where it will be.
func (b *balancers) setHealth(token, result string, up map[string]bool) {
	b.Put(token, knownBalancer{at: time.Now(), result: result, up: up})
}

// listed forgets the load balancers that a listing does not show.
func (b *balancers) listed(found []loadBalancer) {
	b.Listed(func(token string, is knownBalancer) bool {
		return time.Since(is.at) > listLag && !slices.ContainsFunc(found,
			func(lb loadBalancer) bool { return tag(lb.Tags, cloud.TagToken) == token })
	})
}

// balancerName returns the name of a load balancer and of its public address.
func balancerName(token string) string {
	sum := sha256.Sum256([]byte(token))
	return fmt.Sprintf("drover-%x", sum[:12])
}

func balancerTags(req cloud.BalancerRequest) map[string]string {
	return map[string]string{
		cloud.TagOwnership: req.OwnershipID, cloud.TagToken: req.Token,
		cloud.TagMachine: cloud.Clip(req.Namespace+"/"+req.Name, maxTagValue),
	}
}

// isOf reports whether the tags are those of the request's load balancer.
func isOf(tags map[string]string, req cloud.BalancerRequest) bool {
	return tag(tags, cloud.TagToken) == req.Token && tag(tags, cloud.TagOwnership) == req.OwnershipID
}

// EnsureBalancer implements cloud.Balancer. A public load balancer takes two steps, because Azure
// must have made the address before.
func (d *driver) EnsureBalancer(ctx context.Context, req cloud.BalancerRequest) (cloud.Resource, error) {
	d.balancers.get(req.Token) // listings look for it from now on
	lb, err := d.getBalancer(ctx, req)
	switch {
	case err != nil:
	case lb == nil && req.Recorded:
		err = cloud.Errorf(cloud.NotFound, "load balancer %s does not exist any more", balancerName(req.Token))
	case lb == nil, lb.Properties.ProvisioningState == stateFailed && !req.Recorded:
		lb, err = d.makeBalancer(ctx, req, lb)
	default:
		err = d.setTargets(ctx, req, lb)
	}
	if err != nil {
		return cloud.Resource{}, err
	}
	return d.balancer(ctx, lb)
}

// getBalancer reads the load balancer with the token's name; nil: there is none.
func (d *driver) getBalancer(ctx context.Context, req cloud.BalancerRequest) (*loadBalancer, error) {
	var lb loadBalancer
	err := d.read(ctx, "GetLoadBalancer", d.balancerPath(req.Token), networkVersion, nil, &lb)
	isDeleting := err == nil && lb.Properties.ProvisioningState == stateDeleting
	switch {
	case driverkit.RefusedAs(err, resourceNotFound, notFound), isDeleting && req.Recorded:
		return nil, nil
	case err != nil:
		return nil, err
	case !isOf(lb.Tags, req):
		return nil, cloud.Errorf(cloud.Conflict, "a load balancer %s exists in resource group %s and does not belong to this cluster",
			balancerName(req.Token), d.account.ResourceGroup)
	case isDeleting:
		return nil, cloud.Errorf(cloud.Conflict, "load balancer %s is being deleted", lb.Name)
	}
	return &lb, nil
}

func (d *driver) balancerPath(token string) string {
	return pathOf(d.account, loadBalancers) + "/" + balancerName(token)
}

// makeBalancer makes a load balancer with its targets. failed is one that Azure failed to make;
// nil: there is none.
func (d *driver) makeBalancer(ctx context.Context, req cloud.BalancerRequest, failed *loadBalancer) (*loadBalancer, error) {
	if req.Spec == nil || req.Spec.Azure == nil {
		return nil, cloud.Invalid("spec.endpoint.loadBalancer.cloud.azure is not set: it names the subnet")
	}
	zones, err := d.zones.Get(ctx, "", d.readZones)
	if err != nil {
		return nil, err
	}
	if req.Spec.Azure.Scheme != infrav1.LoadBalancerInternal {
		if err := d.ensureAddress(ctx, req, zones); err != nil {
			return nil, err
		}
	}
	r := request{
		op: "CreateLoadBalancer", class: cloud.ClassCreate, method: http.MethodPut, path: d.balancerPath(req.Token),
		version: networkVersion, in: d.balancerBody(req, zones), out: &loadBalancer{},
	}
	if failed != nil {
		r.match = failed.ETag
	}
	_, err = d.call(ctx, r)
	return r.out.(*loadBalancer), unavailableIfChanging(err)
}

// ensureAddress makes the public address, or finds it if an earlier call has made it. It returns
// Unavailable until Azure has made it.
func (d *driver) ensureAddress(ctx context.Context, req cloud.BalancerRequest, zones []string) error {
	name := balancerName(req.Token)
	path := pathOf(d.account, publicAddresses) + "/" + name
	var ip publicAddress
	err := d.read(ctx, "GetPublicIPAddress", path, networkVersion, nil, &ip)
	isMissing := driverkit.RefusedAs(err, resourceNotFound, notFound)
	switch {
	case err != nil && !isMissing:
		return err
	case !isMissing && !isOf(ip.Tags, req):
		return cloud.Errorf(cloud.Conflict, "a public IP address %s exists in resource group %s and does not belong to this cluster", name,
			d.account.ResourceGroup)
	case isMissing, ip.Properties.ProvisioningState == stateFailed:
		body := &publicAddress{
			Location: d.account.Location, Tags: balancerTags(req), Zones: zones, SKU: &publicSKU{Name: "Standard", Tier: "Regional"},
			Properties: publicAddressProperties{AllocationMethod: "Static", Version: "IPv4"},
		}
		ip = publicAddress{}
		_, err := d.call(ctx, request{
			op: "CreatePublicIPAddress", class: cloud.ClassCreate, method: http.MethodPut, path: path, version: networkVersion, in: body, out: &ip,
		})
		if err != nil {
			return unavailableIfChanging(err)
		}
	}
	if ip.Properties.ProvisioningState != stateSucceeded || ip.Properties.IPAddress == "" {
		return &cloud.Error{Code: cloud.Unavailable, RetryAfter: partsPoll,
			Message: "Azure is creating the public IP address of the load balancer"}
	}
	d.frontends.Forget(name)
	_, err = d.frontends.Get(ctx, name, func(context.Context) (string, error) { return ip.Properties.IPAddress, nil })
	return err
}

// unavailableIfChanging returns the error of a change: what another change of the same resource
// causes is Unavailable, because the next attempt reads what has become of it.
func unavailableIfChanging(err error) error {
	if driverkit.RefusedAs(err, preconditionFailed, anotherOperation) {
		return &cloud.Error{Code: cloud.Unavailable, Message: err.Error(), Err: err}
	}
	return err
}

// balancerBody returns the request that makes the whole load balancer.
func (d *driver) balancerBody(req cloud.BalancerRequest, zones []string) *loadBalancer {
	spec, base := req.Spec.Azure, d.balancerPath(req.Token)
	network, _, _ := strings.Cut(spec.SubnetID, "/subnets/")
	front := balancerPart[frontend]{Name: frontendName}
	if spec.Scheme == infrav1.LoadBalancerInternal {
		front.Zones = zones
		front.Properties = frontend{PrivateIPAllocationMethod: "Dynamic", Subnet: &reference{spec.SubnetID}}
		if spec.Address != "" {
			front.Properties.PrivateIPAllocationMethod, front.Properties.PrivateIPAddress = "Static", spec.Address
		}
	} else {
		front.Properties.PublicIPAddress = &reference{pathOf(d.account, publicAddresses) + "/" + balancerName(req.Token)}
	}
	return &loadBalancer{
		Location: d.account.Location, Tags: balancerTags(req), SKU: &publicSKU{Name: "Standard", Tier: "Regional"},
		Properties: loadBalancerProperties{
			Frontends: []balancerPart[frontend]{front},
			Pools:     []balancerPart[backendPool]{{Name: poolName, Properties: pool(&reference{network}, req.Targets)}},
			Probes: []balancerPart[healthProbe]{{Name: probeName, Properties: healthProbe{
				Protocol: "Https", Port: req.Port, RequestPath: checkPath, IntervalInSeconds: checkSeconds, ProbeThreshold: checkThreshold,
			}}},
			// Without DisableOutboundSNAT, all connections of the targets to the internet would
			// share the ports of the load balancer's address.
			Rules: []balancerPart[balancingRule]{{Name: ruleName, Properties: balancingRule{
				FrontendIPConfiguration: reference{base + "/frontendIPConfigurations/" + frontendName},
				BackendAddressPool:      reference{base + "/backendAddressPools/" + poolName},
				Probe:                   reference{base + "/probes/" + probeName},
				Protocol:                "Tcp", FrontendPort: req.Port, BackendPort: req.Port,
				IdleTimeoutInMinutes: idleMinutes, EnableTCPReset: true, DisableOutboundSNAT: spec.Scheme != infrav1.LoadBalancerInternal,
			}}},
		},
	}
}

func pool(network *reference, targets []string) backendPool {
	p := backendPool{VirtualNetwork: network, Addresses: []balancerPart[backendAddress]{}}
	for _, ip := range targets {
		p.Addresses = append(p.Addresses, balancerPart[backendAddress]{Name: ip, Properties: backendAddress{ip}})
	}
	return p
}

// setTargets changes the pool to the targets of the request. Azure refuses it if somebody has
// changed the pool since it was read, or if the load balancer is gone.
func (d *driver) setTargets(ctx context.Context, req cloud.BalancerRequest, lb *loadBalancer) error {
	i := slices.IndexFunc(lb.Properties.Pools, func(p balancerPart[backendPool]) bool { return p.Name == poolName })
	if i < 0 {
		return cloud.Errorf(cloud.Conflict, "load balancer %s has no backend pool %s any more", lb.Name, poolName)
	}
	is := &lb.Properties.Pools[i]
	if slices.Equal(addressesIn(is), req.Targets) {
		return nil
	}
	network := is.Properties.VirtualNetwork
	if network == nil && req.Spec != nil && req.Spec.Azure != nil {
		id, _, _ := strings.Cut(req.Spec.Azure.SubnetID, "/subnets/")
		network = &reference{id}
	}
	want := balancerPart[backendPool]{Properties: pool(network, req.Targets)}
	_, err := d.call(ctx, request{
		op: "UpdateBackendAddressPool", class: cloud.ClassDelete, method: http.MethodPut, path: d.balancerPath(req.Token) +
			"/backendAddressPools/" + poolName,
		version: networkVersion, match: is.ETag, in: want, out: is,
	})
	if cloud.CodeOf(err) == cloud.NotFound { // it, or the network: a read tells
		return &cloud.Error{Code: cloud.Unavailable, Message: err.Error(), Err: err}
	}
	return unavailableIfChanging(err)
}

// addressesIn returns the addresses in a pool, sorted.
func addressesIn(p *balancerPart[backendPool]) (all []string) {
	for _, a := range p.Properties.Addresses {
		all = append(all, a.Properties.IPAddress)
	}
	slices.Sort(all)
	return all
}

// balancer returns a load balancer as a Resource.
func (d *driver) balancer(ctx context.Context, lb *loadBalancer) (cloud.Resource, error) {
	p, state := &lb.Properties, cloud.BalancerState{}
	r := cloud.Resource{
		Kind: cloud.KindBalancer, ID: d.idOf(loadBalancers, lb.Name), Token: tag(lb.Tags, cloud.TagToken),
		OwnershipID: tag(lb.Tags, cloud.TagOwnership),
		Balancer:    &state,
	}
	switch p.ProvisioningState {
	case stateSucceeded:
		r.State = cloud.StateRunning
	case stateFailed:
		r.State, r.Reason = cloud.StateFailed, "Azure failed to create or to change the load balancer"
	default:
		r.State, r.Reason = cloud.StatePending, "the load balancer is in state "+d.api.Secrets.Clean(cmp.Or(p.ProvisioningState, "unknown"), 64)
	}
	for _, front := range p.Frontends {
		address, err := d.frontendAddress(ctx, front.Properties)
		if err != nil {
			return cloud.Resource{}, err
		}
		state.Address = cmp.Or(state.Address, address)
	}
	for _, rule := range p.Rules {
		state.Port = rule.Properties.FrontendPort
	}
	up := d.balancers.get(r.Token).up
	for i := range p.Pools {
		for _, address := range addressesIn(&p.Pools[i]) {
			state.Targets = append(state.Targets, cloud.BalancerTarget{Address: address, Healthy: up[address]})
		}
	}
	return r, nil
}

// frontendAddress returns the address of a frontend; "" if it has none.
func (d *driver) frontendAddress(ctx context.Context, front frontend) (string, error) {
	if front.PublicIPAddress == nil {
		return front.PrivateIPAddress, nil
	}
	name := lastPart(front.PublicIPAddress.ID)
	return d.frontends.Get(ctx, name, func(ctx context.Context) (string, error) {
		var ip publicAddress
		err := d.read(ctx, "GetPublicIPAddress", pathOf(d.account, publicAddresses)+"/"+name, networkVersion, nil, &ip)
		if err == nil && ip.Properties.IPAddress == "" {
			err = cloud.Errorf(cloud.Unavailable, "GetPublicIPAddress: %s has no address yet", name)
		}
		return ip.Properties.IPAddress, err
	})
}

// listBalancers returns the load balancers of Drover, with the health of their targets. Once the
// group was searched for those of earlier processes, it makes no call unless one is known.
func (d *driver) listBalancers(ctx context.Context) ([]cloud.Resource, error) {
	if d.balancers.IsSearched() && d.balancers.IsEmpty() {
		return nil, nil
	}
	found, err := d.allBalancers(ctx, false)
	if err != nil {
		return nil, err
	}
	found = taggedOnes(found)
	d.balancers.listed(found)
	for i := range found {
		if err := d.readHealth(ctx, &found[i]); err != nil {
			return nil, err
		}
	}
	return d.balancerResources(ctx, found)
}

// balancersOf returns the load balancers with the tokens. recorded is true if the creation of one
// was recorded. One of them without its tags is not gone:
// its name tells whose it is.
func (d *driver) balancersOf(ctx context.Context, tokens map[string]bool, recorded bool) ([]cloud.Resource, error) {
	if len(tokens) == 0 {
		return nil, nil
	}
	found, err := d.allBalancers(ctx, recorded)
	if err != nil {
		return nil, err
	}
	names := map[string]bool{}
	for token := range tokens {
		names[balancerName(token)] = true
	}
	for i := range found {
		if name := strings.ToLower(found[i].Name); names[name] && !found[i].isTagged() {
			return nil, cloud.Errorf(cloud.Conflict, "load balancer %s exists without its tags %s and %s: set them again, or delete it",
				name, cloud.TagToken, cloud.TagOwnership)
		}
	}
	return d.balancerResources(ctx, slices.DeleteFunc(taggedOnes(found), func(lb loadBalancer) bool {
		return !tokens[tag(lb.Tags, cloud.TagToken)]
	}))
}

func (d *driver) balancerResources(ctx context.Context, found []loadBalancer) (all []cloud.Resource, err error) {
	for i := range found {
		r, err := d.balancer(ctx, &found[i])
		if err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, nil
}

// allBalancers lists the load balancers of the resource group.
func (d *driver) allBalancers(ctx context.Context, recorded bool) ([]loadBalancer, error) {
	found, err := pages[loadBalancer](ctx, d, "ListLoadBalancers", pathOf(d.account, loadBalancers), networkVersion, nil)
	return found, d.balancers.MayRead(err, recorded)
}

// taggedOnes returns the load balancers that carry Drover's tags, each once.
func taggedOnes(found []loadBalancer) []loadBalancer {
	seen := map[string]bool{}
	return slices.DeleteFunc(found, func(lb loadBalancer) bool {
		token := tag(lb.Tags, cloud.TagToken)
		drop := !lb.isTagged() || seen[token]
		seen[token] = true
		return drop
	})
}

// isTagged reports whether the load balancer carries the tags that belong to its name.
func (lb *loadBalancer) isTagged() bool {
	return tag(lb.Tags, cloud.TagOwnership) != "" && strings.EqualFold(lb.Name, balancerName(tag(lb.Tags, cloud.TagToken)))
}

// readHealth asks for the health of a load balancer's targets. Azure prepares the answer: if it
// takes longer than until the next call, the next listing reads it. A failure changes nothing,
// unless the permission is missing.
func (d *driver) readHealth(ctx context.Context, lb *loadBalancer) error {
	token := tag(lb.Tags, cloud.TagToken)
	known := d.balancers.get(token)
	if !slices.ContainsFunc(lb.Properties.Pools, func(p balancerPart[backendPool]) bool { return len(p.Properties.Addresses) > 0 }) {
		d.balancers.setHealth(token, "", nil)
		return nil
	}
	result, up, err := known.result, map[string]bool(nil), error(nil)
	if result == "" {
		result, up, err = d.askHealth(ctx, request{
			op: "GetLoadBalancingRuleHealth", method: http.MethodPost, path: d.balancerPath(token) + "/loadBalancingRules/" + ruleName + "/health",
			version: networkVersion,
		})
	}
	if err == nil && up == nil {
		result, up, err = d.askHealth(ctx, request{op: "GetOperationResult", method: http.MethodGet, path: result})
	}
	if up == nil {
		up = known.up
	}
	d.balancers.setHealth(token, result, up)
	if cloud.CodeOf(err) == cloud.Unauthorized {
		return err
	}
	return nil
}

// askHealth returns the healthy addresses or, while Azure prepares them, the path of the result.
func (d *driver) askHealth(ctx context.Context, r request) (result string, up map[string]bool, err error) {
	var health ruleHealth
	var link string
	r.class, r.out, r.result = cloud.ClassRead, &health, &link
	status, err := d.call(ctx, r)
	switch {
	case err != nil:
		return "", nil, err
	case link != "":
		if result, err = d.relative(link); err != nil {
			return "", nil, cloud.Errorf(cloud.Unknown, "%s: %s", r.op, err)
		}
		return result, nil, nil
	case status == http.StatusAccepted:
		return r.path, nil, nil
	}
	up = map[string]bool{}
	for _, a := range health.Addresses {
		up[a.IPAddress] = strings.EqualFold(a.State, "Up")
	}
	return "", up, nil
}
