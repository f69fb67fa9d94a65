// SPDX-License-Identifier: Apache-2.0

package openstack

import (
	"cmp"
	"context"
	"errors"
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

// A load balancer of Octavia is made by one call, with its listener, pool, health monitor and
// members. Octavia has no client token, and names need not be unique. So a load balancer is found
// by its tags, and known by its description if somebody took these off. EnsureBalancer makes none
// while an earlier create may still take effect, as Ensure does for servers. A floating IP is made
// after it, and deleted before it.

// Health checks of the API servers: a target is unhealthy 20 seconds after its last good answer.
// Octavia does not verify the certificate.
const (
	checkPath      = "/readyz"
	checkSeconds   = 10
	timeoutSeconds = 5
	checkThreshold = 2
)

// providerOVN is the only provider whose features Drover knows to differ: it has checks by TCP
// only, and one algorithm.
const providerOVN = "ovn"

// balancerPort begins the tag with the port of the listener, which Octavia never changes.
const balancerPort = "drover-port="

// busy is how long to wait while Octavia changes a load balancer: until then it refuses others.
const busy = 5 * time.Second

// loadBalancer has the fields of "List Load Balancers" in Octavia's API reference that the driver
// reads, and its members and floating IP, which other calls return.
type loadBalancer struct {
	ID           string   `json:"id"`
	Description  string   `json:"description"` // the portName
	Address      string   `json:"vip_address"`
	PortID       string   `json:"vip_port_id"` // Neutron's
	Provisioning string   `json:"provisioning_status"`
	CreatedAt    string   `json:"created_at"` // UTC, without a zone
	Tags         []string `json:"tags"`
	Listeners    []named  `json:"listeners"`
	Pools        []named  `json:"pools"`

	members  []member
	floating string // the address of the floating IP
}

type member struct {
	Address      string `json:"address"`
	Port         int32  `json:"protocol_port"`
	Operating    string `json:"operating_status,omitempty"`
	Provisioning string `json:"provisioning_status,omitempty"`
}

func (b *loadBalancer) tag(prefix string) string {
	for _, tag := range b.Tags {
		if value, ok := strings.CutPrefix(tag, prefix); ok {
			return value
		}
	}
	return ""
}

func (b *loadBalancer) token() string { return b.tag(cloud.TagToken + "=") }
func (b *loadBalancer) owner() string { return b.tag(cloud.TagOwnership + "=") }

// hasFloating reports whether the load balancer has or will have a floating IP.
func (b *loadBalancer) hasFloating() bool { return slices.Contains(b.Tags, floatingMarker) }

func (b *loadBalancer) isBusy() bool { return strings.HasPrefix(b.Provisioning, "PENDING_") }

// isGoing reports whether the load balancer is being deleted.
func (b *loadBalancer) isGoing() bool { return b.Provisioning == "PENDING_DELETE" }

// isDeleted reports whether the load balancer is gone: Octavia shows it for a while.
func (b *loadBalancer) isDeleted() bool { return b.Provisioning == "DELETED" }

func (b *loadBalancer) isComplete() bool { return len(b.Listeners) > 0 && len(b.Pools) > 0 }

func (b *loadBalancer) resource() cloud.Resource {
	port, _ := strconv.ParseInt(b.tag(balancerPort), 10, 32)
	created, _ := time.Parse("2006-01-02T15:04:05", b.CreatedAt)
	r := cloud.Resource{
		Kind: cloud.KindBalancer, ID: b.ID, Token: b.token(), OwnershipID: b.owner(), CreatedAt: created, State: cloud.StateRunning,
		Balancer: &cloud.BalancerState{Address: b.Address, Port: int32(port)},
	}
	if b.hasFloating() {
		r.Balancer.Address = b.floating
	}
	switch {
	case b.isGoing():
		r.State, r.Reason = cloud.StatePending, "the load balancer is being deleted"
	case b.Provisioning == "ERROR":
		r.State, r.Reason = cloud.StateFailed, "the load balancer is in ERROR: only the cloud's operator can repair it"
	case b.Provisioning == "PENDING_CREATE":
		r.State = cloud.StatePending
	case !b.isComplete():
		r.State, r.Reason = cloud.StateFailed, "the load balancer has lost its listener or its pool"
	}
	for _, m := range b.members {
		if m.Provisioning != "PENDING_DELETE" {
			r.Balancer.Targets = append(r.Balancer.Targets, cloud.BalancerTarget{Address: m.Address, Healthy: m.Operating == "ONLINE"})
		}
	}
	slices.SortFunc(r.Balancer.Targets, func(a, b cloud.BalancerTarget) int { return strings.Compare(a.Address, b.Address) })
	return r
}

// EnsureBalancer implements cloud.Balancer.
func (d *driver) EnsureBalancer(ctx context.Context, req cloud.BalancerRequest) (cloud.Resource, error) {
	if req.Spec == nil || req.Spec.OpenStack == nil {
		return cloud.Resource{}, cloud.Invalid("spec.endpoint.loadBalancer.cloud.openstack is not set: it names the subnet")
	}
	switch has, err := d.hasOctavia(ctx); {
	case err != nil:
		return cloud.Resource{}, err
	case !has:
		return cloud.Resource{}, cloud.Errorf(cloud.InvalidSpec,
			"the service catalog has no service %s (Octavia), so there are no load balancers: "+
				"use endpoint.virtualIP, or set controlPlaneEndpoint to one that you have", loadBalancers)
	}
	mine, release, err := d.creating.begin(ctx, req.Token)
	if err != nil {
		return cloud.Resource{}, err
	}
	defer release()
	d.balancers.Put(req.Token, struct{}{})
	b, err := d.findBalancer(ctx, req)
	switch {
	case err != nil:
		return cloud.Resource{}, err
	case b == nil && req.Recorded, b != nil && req.Recorded && b.isGoing():
		return cloud.Resource{}, cloud.Errorf(cloud.NotFound, "no load balancer has the tag %s=%s any more", cloud.TagToken, req.Token)
	case b == nil:
		b, err = d.makeBalancer(ctx, req, mine)
	case b.isGoing():
		err = &cloud.Error{Code: cloud.Unavailable, RetryAfter: busy,
			Message: fmt.Sprintf("load balancer %s is being deleted: another one is created after it", b.ID)}
	case !req.Recorded && !b.isBusy() && b.resource().State == cloud.StateFailed: // nobody has its address yet
		err = d.replaceBalancer(ctx, b, mine)
	default:
		err = d.setMembers(ctx, req, b)
	}
	if err == nil {
		err = d.ensureFloating(ctx, req, b, mine)
	}
	if err != nil {
		return cloud.Resource{}, err
	}
	return b.resource(), nil
}

// replaceBalancer deletes a load balancer that Octavia failed to create and can't repair
// (https://github.com/kubernetes/cloud-provider-openstack/issues/2541). A later call creates
// another one.
func (d *driver) replaceBalancer(ctx context.Context, b *loadBalancer, mine *creation) error {
	if left := time.Until(mine.deadline()); left > 0 { // a floating IP may still appear
		return &cloud.Queued{After: left}
	}
	if err := d.removeBalancer(ctx, b.resource()); err != nil {
		return err
	}
	// Without a time to wait, so that the delay grows with each one that fails.
	return cloud.Errorf(cloud.Unavailable, "Octavia failed to create load balancer %s: it is deleted, and another one is created", b.ID)
}

// findBalancer returns the load balancer with the request's token, or nil.
func (d *driver) findBalancer(ctx context.Context, req cloud.BalancerRequest) (*loadBalancer, error) {
	found, err := d.readBalancers(ctx, url.Values{"tags": {cloud.TagToken + "=" + req.Token}}, nil)
	switch {
	case err != nil:
		return nil, err
	case len(found) == 0:
		return nil, d.checkUntagged(ctx, req.Token)
	case len(found) > 1:
		return nil, cloud.Errorf(cloud.Conflict, "load balancers %s and %s both have the token %s", found[0].ID, found[1].ID, req.Token)
	case found[0].owner() != req.OwnershipID:
		return nil, cloud.Errorf(cloud.Conflict, "load balancer %s has the token %s and belongs to another cluster", found[0].ID, req.Token)
	}
	return &found[0], nil
}

// checkUntagged returns Conflict if a load balancer has the token in its description, and not in
// its tags: it is not gone.
func (d *driver) checkUntagged(ctx context.Context, token string) error {
	found, err := d.pagesOfBalancers(ctx, url.Values{"description": {portName(token)}}, nil)
	if err != nil {
		return err
	}
	for i := range found {
		if b := &found[i]; b.Description == portName(token) && (b.token() != token || b.owner() == "") && !b.isDeleted() {
			return cloud.Errorf(cloud.Conflict, "load balancer %s exists without its tags %s=%s and %s: set them again, or delete it", b.ID,
				cloud.TagToken, token, cloud.TagOwnership)
		}
	}
	return nil
}

// makeBalancer makes the load balancer, unless an earlier create may still take effect.
func (d *driver) makeBalancer(ctx context.Context, req cloud.BalancerRequest, mine *creation) (*loadBalancer, error) {
	open := mine.deadline()
	if req.MaybeSent && d.inheritedUntil.After(open) {
		open = d.inheritedUntil
	}
	if left := time.Until(open); left > 0 {
		return nil, &cloud.Error{Code: cloud.Unavailable, RetryAfter: min(left, minPending),
			Message: "waiting to learn whether an earlier create makes the load balancer: its response was lost, or went to an earlier process"}
	}
	body, err := d.balancerBody(ctx, req)
	if err != nil {
		return nil, err
	}
	op := operation{"CreateLoadBalancer", cloud.ClassCreate, loadBalancers, http.MethodPost}
	var answer struct {
		Made loadBalancer `json:"loadbalancer"`
	}
	err = d.call(ctx, op, "loadbalancers", map[string]any{"loadbalancer": body}, &answer)
	if err == nil && answer.Made.ID == "" {
		err = unexpectedResponse(op)
	}
	mine.recordError(err)
	switch cloud.CodeOf(err) {
	case "":
		mine.setPending(consistency)
	case cloud.NotFound, cloud.InvalidSpec: // a subnet, a flavor or a zone; a resolved name may be outdated
		d.forget()
		return nil, &cloud.Error{Code: cloud.InvalidSpec, Message: err.Error()}
	default:
		return nil, err
	}
	b := &answer.Made
	b.Tags, b.members = body.Tags, body.Listeners[0].Pool.Members
	return b, nil
}

// newBalancer is the body of "Create a Load Balancer" in Octavia's API reference, and so are the
// types that follow.
type newBalancer struct {
	Name        string        `json:"name"`
	Description string        `json:"description"`
	SubnetID    string        `json:"vip_subnet_id"`
	Provider    string        `json:"provider,omitempty"`
	FlavorID    string        `json:"flavor_id,omitempty"`
	Zone        string        `json:"availability_zone,omitempty"`
	Tags        []string      `json:"tags"`
	Listeners   []newListener `json:"listeners"`
}

type newListener struct {
	Name     string  `json:"name"`
	Protocol string  `json:"protocol"`
	Port     int32   `json:"protocol_port"`
	Pool     newPool `json:"default_pool"`
}

type newPool struct {
	Name      string     `json:"name"`
	Protocol  string     `json:"protocol"`
	Algorithm string     `json:"lb_algorithm"`
	Monitor   newMonitor `json:"healthmonitor"`
	Members   []member   `json:"members"`
}

type newMonitor struct {
	Name     string `json:"name"`
	Type     string `json:"type"`
	Delay    int    `json:"delay"`
	Timeout  int    `json:"timeout"`
	Up       int    `json:"max_retries"`
	Down     int    `json:"max_retries_down"`
	Method   string `json:"http_method,omitempty"`
	Path     string `json:"url_path,omitempty"`
	Expected string `json:"expected_codes,omitempty"`
}

func (d *driver) balancerBody(ctx context.Context, req cloud.BalancerRequest) (newBalancer, error) {
	const tcp = "TCP"
	spec := req.Spec.OpenStack
	subnet, err := d.subnetID(ctx, spec.Subnet)
	if err != nil {
		return newBalancer{}, err
	}
	name := cloud.Clip(req.Namespace+"/"+req.Name, maxText)
	monitor := newMonitor{Name: name, Type: tcp, Delay: checkSeconds, Timeout: timeoutSeconds, Up: checkThreshold, Down: checkThreshold}
	algorithm := "SOURCE_IP_PORT"
	if spec.Provider != providerOVN {
		algorithm = "ROUND_ROBIN"
		monitor.Type, monitor.Method, monitor.Path, monitor.Expected = "HTTPS", http.MethodGet, checkPath, "200"
	}
	body := newBalancer{
		Name: name, Description: portName(req.Token), SubnetID: subnet,
		Provider: spec.Provider, FlavorID: spec.FlavorID, Zone: spec.AvailabilityZone,
		Tags: []string{
			markerTag, cloud.TagOwnership + "=" + req.OwnershipID, cloud.TagToken + "=" + req.Token, balancerPort + strconv.Itoa(int(req.Port)),
		},
		Listeners: []newListener{{
			Name: name, Protocol: tcp, Port: req.Port,
			Pool: newPool{Name: name, Protocol: tcp, Algorithm: algorithm, Monitor: monitor, Members: membersOf(req)},
		}},
	}
	if spec.FloatingNetwork != "" { // fails on an unknown name before anything is created
		if _, err := d.networkID(ctx, spec.FloatingNetwork); err != nil {
			return newBalancer{}, err
		}
		body.Tags = append(body.Tags, floatingMarker)
	}
	return body, nil
}

func membersOf(req cloud.BalancerRequest) []member {
	members := []member{}
	for _, address := range req.Targets {
		members = append(members, member{Address: address, Port: req.Port})
	}
	return members
}

// setMembers replaces the members by those of the request, if they differ.
func (d *driver) setMembers(ctx context.Context, req cloud.BalancerRequest, b *loadBalancer) error {
	is := b.resource().Balancer.Targets
	if slices.EqualFunc(is, req.Targets, func(t cloud.BalancerTarget, address string) bool { return t.Address == address }) {
		return nil
	}
	switch {
	case b.isBusy():
		return &cloud.Queued{After: busy}
	case !b.isComplete() || b.Provisioning == "ERROR":
		return cloud.Errorf(cloud.Conflict, "load balancer %s can't be changed: %s", b.ID, b.resource().Reason)
	}
	members := membersOf(req)
	err := d.call(ctx, operation{"UpdateMembers", cloud.ClassDelete, loadBalancers, http.MethodPut},
		"pools/"+url.PathEscape(b.Pools[0].ID)+"/members",
		map[string]any{"members": members}, nil)
	if err != nil {
		return ifBusy(err)
	}
	for i := range members {
		for _, before := range b.members {
			if before.Address == members[i].Address {
				members[i].Operating = before.Operating
			}
		}
	}
	b.members = members
	return nil
}

// ifBusy returns *cloud.Queued for a refusal because Octavia changes the load balancer just now.
func ifBusy(err error) error {
	var r refusal
	if errors.As(err, &r) && r.status == http.StatusConflict {
		return &cloud.Queued{After: busy}
	}
	return err
}

// ensureFloating makes the floating IP, if the load balancer is to have one.
func (d *driver) ensureFloating(ctx context.Context, req cloud.BalancerRequest, b *loadBalancer, mine *creation) error {
	if !b.hasFloating() || b.floating != "" || b.PortID == "" || req.Spec.OpenStack.FloatingNetwork == "" {
		return nil
	}
	if req.Recorded { // another one would have another address
		return cloud.Errorf(cloud.Conflict, "no floating IP with the description %s leads to port %s of load balancer %s any more: give it the one of the endpoint again",
			portName(req.Token), b.PortID, b.ID)
	}
	pool, err := d.networkID(ctx, req.Spec.OpenStack.FloatingNetwork)
	if err != nil {
		return err
	}
	made, err := d.createFloatingIP(ctx, req.Token, pool, b.PortID)
	mine.recordError(err)
	b.floating = made.Address
	return err
}

// hasOctavia reports whether the service catalog has load balancers.
func (d *driver) hasOctavia(ctx context.Context) (bool, error) {
	s, err := d.sessions.get(ctx, nil)
	return err == nil && s.services[loadBalancers] != nil, err
}

// listBalancers returns the load balancers of Drover. Once the project was searched for those of
// earlier processes, it makes no call unless one is known.
func (d *driver) listBalancers(ctx context.Context, maxPages *int) ([]cloud.Resource, error) {
	if d.balancers.IsSearched() && d.balancers.IsEmpty() {
		return nil, nil
	}
	all, err := d.balancersOf(ctx, url.Values{"tags": {markerTag}}, false, maxPages)
	if err == nil {
		d.balancers.Listed(nil)
	}
	return all, err
}

// balancersByToken returns the load balancers of those of the references that are no servers. If
// somebody else has deleted one that is known, it returns its floating IPs, which Neutron keeps.
func (d *driver) balancersByToken(ctx context.Context, refs []cloud.Reference) (all []cloud.Resource, err error) {
	var tags []string
	recorded := driverkit.RecordedBalancers(refs)
	lost := map[string]cloud.Reference{} // by the description of its floating IPs
	for _, ref := range refs {
		if ref.Token != "" && ref.ProviderID == "" {
			tags = append(tags, cloud.TagToken+"="+ref.Token)
			if _, known := d.balancers.Get(ref.Token); known || ref.Balancer {
				lost[portName(ref.Token)] = ref
			}
		}
	}
	for some := range slices.Chunk(tags, maxTokens) {
		found, err := d.balancersOf(ctx, url.Values{"tags-any": {strings.Join(some, ",")}}, len(recorded) > 0, nil)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	for _, r := range all {
		delete(lost, portName(r.Token))
	}
	checks := driverkit.InParallel(maxParallelCalls, slices.Collect(maps.Values(lost)), func(ref cloud.Reference) error {
		return d.checkUntagged(ctx, ref.Token)
	})
	if err := cmp.Or(checks...); err != nil {
		return nil, err
	}
	left, err := d.describedAddresses(ctx, lost, func(f floatingIP) bool { return f.PortID == "" })
	if err != nil {
		return nil, err
	}
	for _, ref := range lost {
		if d.creating.pendingFor(ref.Token) <= 0 && !slices.ContainsFunc(left, func(r cloud.Resource) bool { return r.Token == ref.Token }) {
			d.balancers.Forget(ref.Token)
		}
	}
	return append(all, left...), nil
}

// balancersOf reads load balancers. recorded is true if the creation of one was recorded.
func (d *driver) balancersOf(ctx context.Context, query url.Values, recorded bool, maxPages *int) (all []cloud.Resource, err error) {
	if has, err := d.hasOctavia(ctx); err != nil || !has && d.balancers.IsEmpty() && !recorded {
		return nil, err
	}
	found, err := d.readBalancers(ctx, query, maxPages)
	if !tokenRefused(err) {
		err = d.balancers.MayRead(err, recorded)
	}
	for i := range found {
		d.balancers.Put(found[i].token(), struct{}{})
		all = append(all, found[i].resource())
	}
	return all, err
}

// readBalancers reads Drover's load balancers that match the query, with their members and floating
// IPs.
func (d *driver) readBalancers(ctx context.Context, query url.Values, maxPages *int) ([]loadBalancer, error) {
	found, err := d.pagesOfBalancers(ctx, query, maxPages)
	if err != nil {
		return nil, err
	}
	found = slices.DeleteFunc(found, func(b loadBalancer) bool { return b.owner() == "" || b.token() == "" || b.isDeleted() })
	var names []string
	for i := range found {
		b := &found[i]
		if b.hasFloating() {
			names = append(names, portName(b.token()))
		}
		if len(b.Pools) > 0 {
			if b.members, err = d.members(ctx, b.Pools[0].ID); err != nil {
				return nil, err
			}
		}
	}
	if len(names) == 0 {
		return found, nil
	}
	addresses, err := d.floatingIPs(ctx, url.Values{"description": names}, nil)
	for i := range found {
		for _, f := range addresses {
			if f.PortID == found[i].PortID && f.Description == portName(found[i].token()) {
				found[i].floating = f.Address
			}
		}
	}
	return found, err
}

// pagesOfBalancers reads the project's load balancers that match the query.
func (d *driver) pagesOfBalancers(ctx context.Context, query url.Values, maxPages *int) ([]loadBalancer, error) {
	op := operation{"ListLoadBalancers", cloud.ClassRead, loadBalancers, http.MethodGet}
	query.Set("project_id", d.account.ProjectID)
	return pages(ctx, d, op, maxPages, func(ctx context.Context, marker string, limit int) ([]loadBalancer, bool, error) {
		var page struct {
			LoadBalancers *[]loadBalancer `json:"loadbalancers"`
			Links         []link          `json:"loadbalancers_links"`
		}
		if err := d.call(ctx, op, "loadbalancers?"+pageOf(marker, limit, query).Encode(), nil, &page); err != nil {
			return nil, false, err
		}
		return completePage(op, page.LoadBalancers, page.Links)
	}, func(b loadBalancer) string { return b.ID })
}

// members reads a pool's members. A pool that is gone has none.
func (d *driver) members(ctx context.Context, pool string) ([]member, error) {
	op := operation{"ListMembers", cloud.ClassRead, loadBalancers, http.MethodGet}
	var page struct {
		Members *[]member `json:"members"`
	}
	err := d.call(ctx, op, "pools/"+url.PathEscape(pool)+"/members", nil, &page)
	switch {
	case cloud.CodeOf(err) == cloud.NotFound:
		return nil, nil
	case err != nil:
		return nil, err
	case page.Members == nil:
		return nil, unexpectedResponse(op)
	}
	return *page.Members, nil
}

// deleteBalancer deletes the floating IPs, and then the load balancer with all its parts.
func (d *driver) deleteBalancer(ctx context.Context, r cloud.Resource) error {
	if err := driverkit.CheckOwned(r); err != nil {
		return err
	}
	if left := d.creating.pendingFor(r.Token); left > 0 { // a floating IP may still appear
		return &cloud.Queued{After: left}
	}
	return d.removeBalancer(ctx, r)
}

func (d *driver) removeBalancer(ctx context.Context, r cloud.Resource) error {
	addresses, err := d.floatingIPs(ctx, url.Values{"description": {portName(r.Token)}}, nil)
	if err != nil {
		return err
	}
	for _, f := range addresses {
		if err := d.delete(ctx, cloud.Resource{Kind: cloud.KindAddress, ID: f.ID}); err != nil {
			return err
		}
	}
	op := operation{"DeleteLoadBalancer", cloud.ClassDelete, loadBalancers, http.MethodDelete}
	return ifBusy(d.call(ctx, op, "loadbalancers/"+url.PathEscape(r.ID)+"?cascade=true", nil, nil))
}
