// SPDX-License-Identifier: Apache-2.0

package openstack

import (
	"cmp"
	"context"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
)

const (
	// pageSize is the number of servers or ports requested per page: Nova's default maximum.
	pageSize = 1000
	// maxParallelCalls is the number of parallel calls. With it a full batch of deletes, each of
	// which takes a busy Nova a second, ends within one call's time.
	maxParallelCalls = 10
)

type driver struct {
	account  *infrav1.OpenStackAccount
	sessions *sessions
	pageSize int
	sizes    driverkit.PageSizes

	flavors driverkit.Memo[[]flavor]
	images  driverkit.Memo[glanceImage]
	ids     driverkit.Memo[string]
	faults  driverkit.Memo[string] // of servers in ERROR

	cells          driverkit.Memo[bool]       // whether a cell is down
	deleted        driverkit.Recent[struct{}] // by ID and by token, see recordDeleted
	onePage        atomic.Bool                // whether each part of the last full listing fit on one page
	creating       creations
	balancers      driverkit.Known[struct{}]
	inheritedUntil time.Time // until then a create of another driver may still take effect
	serverReads    *shared[cloud.Resource]
	portReads      *shared[port]
}

func newDriver(cfg cloud.Config) (cloud.Driver, error) {
	if cfg.Account == nil || cfg.Account.Cloud.OpenStack == nil {
		return nil, cloud.Invalid("the account's spec.cloud.openstack is not set")
	}
	account := cfg.Account.Cloud.OpenStack
	login, err := newLogin(account, cfg.Credentials)
	if err != nil {
		return nil, err
	}
	trust, err := connection(account, cfg.Credentials)
	if err != nil {
		return nil, err
	}
	transport, err := cfg.Connect(trust)
	if err != nil {
		return nil, err
	}
	d := &driver{
		account: account, sessions: newSessions(account, login, transport), pageSize: pageSize, inheritedUntil: time.Now().Add(inheritedPending),
		flavors: driverkit.Memo[[]flavor]{TTL: resolvedTTL}, images: driverkit.Memo[glanceImage]{TTL: resolvedTTL},
		ids: driverkit.Memo[string]{TTL: resolvedTTL}, faults: driverkit.Memo[string]{TTL: resolvedTTL},
		cells: driverkit.Memo[bool]{TTL: minPending},
	}
	d.serverReads = newShared(func(ctx context.Context, tokens []string) ([]cloud.Resource, error) {
		return d.servers(ctx, serversOf(tokens), nil)
	})
	d.portReads = newShared(func(ctx context.Context, tokens []string) ([]port, error) {
		return d.ports(ctx, portsOf(tokens), nil)
	})
	return d, nil
}

// forget clears all resolved names.
func (d *driver) forget() {
	d.flavors.Reset()
	d.images.Reset()
	d.ids.Reset()
}

// Probe lists Nova's availability zones. The place is the token's project and the region of Nova's
// endpoint, both from Keystone. Project IDs are unique within a Keystone, whose address is
// immutable; addresses of endpoints may change.
func (d *driver) Probe(ctx context.Context) (cloud.Info, error) {
	op := operation{"ListAvailabilityZones", cloud.ClassRead, compute, http.MethodGet}
	var answer struct {
		Zones *[]struct {
			Name  string `json:"zoneName"`
			State struct {
				Available bool `json:"available"`
			} `json:"zoneState"`
		} `json:"availabilityZoneInfo"`
	}
	if err := d.call(ctx, op, "os-availability-zone", nil, &answer); err != nil {
		return cloud.Info{}, err
	}
	if answer.Zones == nil {
		return cloud.Info{}, unexpectedResponse(op)
	}
	session, err := d.sessions.get(ctx, nil)
	if err != nil {
		return cloud.Info{}, err
	}
	info := cloud.Info{Place: "openstack:" + session.project + ":" + session.region}
	for _, zone := range *answer.Zones {
		if zone.Name != "" && zone.State.Available {
			info.FailureDomains = append(info.FailureDomains, zone.Name)
		}
	}
	slices.Sort(info.FailureDomains)
	return info, nil
}

// List reads the servers with Drover's tag, the project's ports whose description has an ownership
// ID, their dependants, and load balancers.
func (d *driver) List(ctx context.Context) ([]cloud.Resource, error) {
	var maxPages int
	servers, err := d.servers(ctx, url.Values{"tags": {markerTag}}, &maxPages)
	if err != nil {
		return nil, err
	}
	ports, err := d.ports(ctx, url.Values{}, &maxPages)
	if err != nil {
		return nil, err
	}
	rest, err := d.dependants(ctx, ports, nil, &maxPages)
	if err != nil {
		return nil, err
	}
	balancers, err := d.listBalancers(ctx, &maxPages)
	if err != nil {
		return nil, err
	}
	d.onePage.Store(maxPages == 1)
	return append(append(servers, rest...), balancers...), nil
}

// Describe reads by token: a server that has the Reference's ProviderID and tags also has its
// token. A server that no listing shows may still exist, see checkAbsent.
func (d *driver) Describe(ctx context.Context, refs []cloud.Reference) (found []cloud.Resource, err error) {
	wanted := map[string]bool{}
	for _, ref := range refs {
		if ref.Token != "" {
			wanted[ref.Token] = true
		}
	}
	found, err = d.readTokens(ctx, slices.Sorted(maps.Keys(wanted)))
	if err != nil {
		return nil, err
	}
	found = filterByTokens(found, func(token string) bool { return wanted[token] })
	found = slices.DeleteFunc(found, func(r cloud.Resource) bool { return r.Kind == cloud.KindBalancer }) // read with their tokens below
	balancers, err := d.balancersByToken(ctx, refs)
	if err != nil {
		return nil, err
	}
	found = append(found, balancers...)
	more, err := d.checkAbsent(ctx, refs, found)
	if err != nil {
		return nil, err
	}
	taken, err := d.takenAddresses(ctx, refs)
	return append(append(found, more...), taken...), err
}

// readTokens returns what carries the tokens, and maybe more. For many tokens it lists everything,
// if each part of the last full listing fit on one page. A longer listing may exceed a call's time,
// and listings by tokens do not. A slow cloud may exceed it with one page, so the full listing has
// half of the time. If that is not enough, readTokens lists by tokens until the next full listing.
func (d *driver) readTokens(ctx context.Context, tokens []string) ([]cloud.Resource, error) {
	if len(tokens) <= maxTokens || !d.onePage.Load() {
		return d.byTokens(ctx, tokens)
	}
	half, cancel := ctx, func() {}
	if end, ok := ctx.Deadline(); ok {
		half, cancel = context.WithTimeout(ctx, time.Until(end)/2)
	}
	defer cancel()
	found, err := d.List(half)
	if err != nil && half.Err() != nil && ctx.Err() == nil {
		d.onePage.Store(false)
		return d.byTokens(ctx, tokens)
	}
	return found, err
}

// byTokens reads what carries the tokens, in the same way as List.
func (d *driver) byTokens(ctx context.Context, tokens []string) (all []cloud.Resource, err error) {
	for some := range slices.Chunk(tokens, maxTokens) {
		servers, err := d.servers(ctx, serversOf(some), nil)
		if err != nil {
			return nil, err
		}
		ports, err := d.ports(ctx, portsOf(some), nil)
		if err != nil {
			return nil, err
		}
		rest, err := d.dependants(ctx, ports, some, nil)
		if err != nil {
			return nil, err
		}
		all = append(append(all, servers...), rest...)
	}
	return all, nil
}

// dependants returns the ports and what their descriptions announce: floating IPs and volumes. It
// omits a port while these exist, so that the port is deleted last: after any crash, the port still
// leads to the rest. If no port announces any, it makes no call. If tokens are given, it reads only
// the floating IPs of these.
func (d *driver) dependants(ctx context.Context, ports []port, tokens []string, maxPages *int) (all []cloud.Resource, err error) {
	owners := map[string]string{} // by the name of the ports, which their dependants share
	for i := range ports {
		owners[ports[i].Name] = ports[i].ownership()
	}
	addresses, err := d.addresses(ctx, ports, tokens, owners, maxPages)
	if err != nil {
		return nil, err
	}
	disks, err := d.disks(ctx, ports, owners, maxPages)
	if err != nil {
		return nil, err
	}
	all = slices.Concat(addresses, disks)
	holds := map[string]bool{} // tokens
	for _, r := range all {
		holds[r.Token] = true
	}
	for _, p := range ports {
		if !holds[p.token()] || !p.floating() && !p.volumes() {
			all = append(all, p.resource())
		}
	}
	return all, nil
}

// filterByTokens returns the resources whose token is wanted.
func filterByTokens(found []cloud.Resource, wanted func(token string) bool) []cloud.Resource {
	return slices.DeleteFunc(slices.Clone(found), func(r cloud.Resource) bool { return !wanted(r.Token) })
}

// Delete deletes each resource with its own call, maxParallelCalls at a time: Nova and Neutron have
// no batch calls.
func (d *driver) Delete(ctx context.Context, resources []cloud.Resource) []error {
	return driverkit.InParallel(maxParallelCalls, resources, func(r cloud.Resource) error { return d.delete(ctx, r) })
}

func (d *driver) delete(ctx context.Context, r cloud.Resource) (err error) {
	id, isTrunk := strings.CutPrefix(r.ID, trunkID)
	remove := func(name, service, kind string) error {
		return d.call(ctx, operation{name, cloud.ClassDelete, service, http.MethodDelete}, kind+"/"+url.PathEscape(id), nil, nil)
	}
	switch {
	case r.Kind == cloud.KindInstance:
		err = remove("DeleteServer", compute, "servers")
	case r.Kind == cloud.KindBalancer:
		err = d.deleteBalancer(ctx, r)
	case r.Kind == cloud.KindAddress:
		err = remove("DeleteFloatingIP", network, "floatingips")
	case r.Kind == cloud.KindDisk:
		err = remove("DeleteVolume", volumes, "volumes")
	case r.Kind == cloud.KindNIC && isTrunk:
		err = remove("DeleteTrunk", network, "trunks")
	case r.Kind == cloud.KindNIC:
		err = remove("DeletePort", network, "ports")
	default:
		err = cloud.Invalid("delete %s %s: the kind is not supported on OpenStack", r.Kind, r.ID)
	}
	if cloud.CodeOf(err) == cloud.NotFound { // already gone is success
		err = nil
	}
	if err == nil && (r.Kind == cloud.KindInstance || r.Kind == cloud.KindBalancer) {
		d.recordDeleted(r.ID, r.Token)
	}
	return err
}

func serversOf(tokens []string) url.Values {
	tags := make([]string, len(tokens))
	for i, token := range tokens {
		tags[i] = tokenTag(token)
	}
	return url.Values{"tags-any": {strings.Join(tags, ",")}}
}

func portsOf(tokens []string) url.Values { return url.Values{"name": portNames(tokens)} }

func portNames(tokens []string) []string {
	names := make([]string, len(tokens))
	for i, token := range tokens {
		names[i] = portName(token)
	}
	return names
}

// allServers reads all pages of the servers that match the query.
func (d *driver) allServers(ctx context.Context, query url.Values, maxPages *int) ([]server, error) {
	op := operation{"ListServers", cloud.ClassRead, compute, http.MethodGet}
	return pages(ctx, d, op, maxPages, func(ctx context.Context, marker string, limit int) ([]server, bool, error) {
		var page struct {
			Servers *[]server `json:"servers"`
			Links   []link    `json:"servers_links"`
		}
		if err := d.call(ctx, op, "servers/detail?"+pageOf(marker, limit, query).Encode(), nil, &page); err != nil {
			return nil, false, err
		}
		return completePage(op, page.Servers, page.Links)
	}, func(s server) string { return s.ID })
}

// servers reads the servers that match the query, and returns Drover's.
func (d *driver) servers(ctx context.Context, query url.Values, maxPages *int) ([]cloud.Resource, error) {
	found, err := d.allServers(ctx, query, maxPages)
	var all []cloud.Resource
	for i := range found {
		s := &found[i]
		if s.Metadata[cloud.TagOwnership] == "" {
			continue
		}
		if s.Status == "ERROR" && s.Fault.Message == "" {
			s.Fault.Message = d.fault(ctx, s.ID)
		}
		all = append(all, d.resource(s))
	}
	return all, err
}

// fault reads a server's fault message: Nova's listings omit it for servers without a host. The
// message is only informative, so a failed read is not an error. The next listing tries again.
func (d *driver) fault(ctx context.Context, id string) string {
	words, _ := d.faults.Get(ctx, id, func(ctx context.Context) (string, error) {
		s, err := d.getServer(ctx, compute, id)
		if err == nil && s.Fault.Message == "" {
			err = cloud.Errorf(cloud.Unknown, "Nova gives no reason for the error of server %s", id)
		}
		return cloud.Clip(s.Fault.Message, maxFault), err
	})
	return words
}

// ports reads the project's ports that match the query, and returns Drover's.
func (d *driver) ports(ctx context.Context, query url.Values, maxPages *int) ([]port, error) {
	found, err := d.allPorts(ctx, query, maxPages)
	return slices.DeleteFunc(found, func(p port) bool { return p.ownership() == "" }), err
}

// allPorts reads all pages of the project's ports that match the query.
func (d *driver) allPorts(ctx context.Context, query url.Values, maxPages *int) ([]port, error) {
	op := operation{"ListPorts", cloud.ClassRead, network, http.MethodGet}
	query.Set("project_id", d.account.ProjectID)
	query["fields"] = []string{"id", "name", "description", "created_at", "trunk_details"}
	return pages(ctx, d, op, maxPages, func(ctx context.Context, marker string, limit int) ([]port, bool, error) {
		var page struct {
			Ports *[]port `json:"ports"`
			Links []link  `json:"ports_links"`
		}
		if err := d.call(ctx, op, "ports?"+pageOf(marker, limit, query).Encode(), nil, &page); err != nil {
			return nil, false, err
		}
		return completePage(op, page.Ports, page.Links)
	}, func(p port) string { return p.ID })
}

// link is a link in an answer.
type link struct {
	Rel string `json:"rel"`
}

// completePage returns a page's items and whether more pages follow, or an error if the answer is
// no page. It does not follow the link, which may lead elsewhere than the catalog.
func completePage[T any](op operation, items *[]T, links []link) ([]T, bool, error) {
	if items == nil {
		return nil, false, unexpectedResponse(op)
	}
	more := slices.ContainsFunc(links, func(l link) bool { return l.Rel == "next" })
	return *items, more && len(*items) > 0, nil
}

// pages reads all pages. It removes duplicates, which occur when items move between pages. It
// raises maxPages to the number of pages; maxPages may be nil.
func pages[T any](ctx context.Context, d *driver, op operation, maxPages *int,
	page func(ctx context.Context, marker string, limit int) (items []T, more bool, err error), id func(T) string) ([]T, error) {
	n, seen := 0, map[string]bool{}
	all, err := driverkit.SizedPages(ctx, op.name, &d.sizes, 1, d.pageSize,
		func(ctx context.Context, marker string, limit int) ([]T, string, error) {
			if n++; marker == "" {
				n = 1
			}
			items, more, err := page(ctx, marker, limit)
			if err != nil || !more {
				return items, "", err
			}
			return items, cmp.Or(id(items[len(items)-1]), marker), nil
		})
	if maxPages != nil {
		*maxPages = max(*maxPages, n)
	}
	return slices.DeleteFunc(all, func(item T) bool {
		twice := seen[id(item)]
		seen[id(item)] = true
		return twice
	}), err
}

// pageOf returns the query parameters of one page of a listing.
func pageOf(marker string, limit int, query url.Values) url.Values {
	all := url.Values{"limit": {strconv.Itoa(limit)}}
	for key, values := range query {
		all[key] = values
	}
	if marker != "" {
		all.Set("marker", marker)
	}
	return all
}
