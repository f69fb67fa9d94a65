// SPDX-License-Identifier: Apache-2.0

// Package stack gives tests of whole machines access to the real OpenStack that
// hack/openstack/start has started: a door through which all calls of an account go, records of the
// existing resources, and guests for its servers, because its hypervisor boots nothing. It starts
// no service.
package stack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/simulated/wire"
)

// hack/openstack/catalog.py creates these.
const (
	Region   = "RegionOne"
	User     = "demo"
	Password = "demo"
)

// services are the services behind a door, by their folder in its URL.
var services = map[string]string{
	"identity": "http://127.0.0.1:25001", "image": "http://127.0.0.1:25003",
	"compute": "http://127.0.0.1:25004", "network": "http://127.0.0.1:25005", "volume": "http://127.0.0.1:25010",
	"load-balancer": "http://127.0.0.1:25012",
}

// Cloud is the OpenStack from its tenant's view, not through a door.
type Cloud struct {
	// Project is the ID of the tenant's project.
	Project string

	compute, network, volume, balancer *gophercloud.ServiceClient

	door    *httptest.Server
	looking sync.WaitGroup

	mu     sync.Mutex
	seen   map[string]server // all servers ever seen, by ID
	last   sight
	rested time.Time // until then last is reused
}

// Enter logs in as the tenant and opens a door. Call Leave at the end.
func Enter(ctx context.Context) (*Cloud, error) {
	provider, err := openstack.AuthenticatedClient(ctx, gophercloud.AuthOptions{
		IdentityEndpoint: services["identity"] + "/v3", Username: User, Password: Password, TenantName: User, DomainID: "default",
		AllowReauth: true,
	})
	if err != nil {
		return nil, fmt.Errorf("log in to OpenStack, which hack/openstack/start starts: %w", err)
	}
	c := &Cloud{seen: map[string]server{}}
	if c.compute, err = openstack.NewComputeV2(provider, gophercloud.EndpointOpts{}); err != nil {
		return nil, err
	}
	if c.network, err = openstack.NewNetworkV2(provider, gophercloud.EndpointOpts{}); err != nil {
		return nil, err
	}
	if c.volume, err = openstack.NewBlockStorageV3(provider, gophercloud.EndpointOpts{}); err != nil {
		return nil, err
	}
	if c.balancer, err = openstack.NewLoadBalancerV2(provider, gophercloud.EndpointOpts{}); err != nil {
		return nil, err
	}
	identity, err := openstack.NewIdentityV3(provider, gophercloud.EndpointOpts{})
	if err != nil {
		return nil, err
	}
	c.compute.Microversion = "2.61"
	var answer struct{ Projects []struct{ ID string } }
	if err := get(ctx, identity, "auth/projects", &answer); err != nil || len(answer.Projects) != 1 {
		return nil, errors.Join(err, fmt.Errorf("the tenant %s has %d projects", User, len(answer.Projects)))
	}
	c.Project, c.door = answer.Projects[0].ID, newDoor()
	return c, nil
}

// Leave closes the door, and waits for Power to return. The context of Power must have ended.
func (c *Cloud) Leave() {
	c.door.Close()
	c.looking.Wait()
}

// Door returns the URL of one server for all services: Keystone is in its folder /identity.
func (c *Cloud) Door() string { return c.door.URL }

// newDoor starts a proxy to all services. It also rewrites Keystone's catalog, so that the
// services' URLs there name the host of the request.
func newDoor() *httptest.Server {
	return httptest.NewServer(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			folder, path, _ := strings.Cut(strings.TrimPrefix(r.In.URL.Path, "/"), "/")
			to, err := url.Parse(services[folder])
			if err != nil || to.Host == "" {
				to = &url.URL{Scheme: "http", Host: "127.0.0.1:1"} // where nothing listens
			}
			r.Out.URL.Path, r.Out.URL.RawPath = "/"+path, ""
			r.SetURL(to)
			r.Out.Header.Set(asked, r.In.Host)
		},
		ModifyResponse: func(resp *http.Response) error {
			if resp.Request.Method != http.MethodPost || !strings.HasSuffix(resp.Request.URL.Path, "/auth/tokens") {
				return nil
			}
			raw, err := io.ReadAll(resp.Body)
			if err != nil {
				return err
			}
			for folder, address := range services {
				raw = bytes.ReplaceAll(raw, []byte(address), []byte("http://"+resp.Request.Header.Get(asked)+"/"+folder))
			}
			resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(raw)), int64(len(raw))
			resp.Header.Set("Content-Length", fmt.Sprint(len(raw)))
			return nil
		},
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
		// hang up, without a message of the proxy's own
	})
}

// asked is the header in which a door stores its own address.
const asked = "X-Door"

func get(ctx context.Context, service *gophercloud.ServiceClient, path string, answer any) error {
	_, err := service.Request(ctx, http.MethodGet, service.ResourceBaseURL()+path,
		&gophercloud.RequestOpts{JSONResponse: answer, OkCodes: []int{200}})
	return err
}

// server is a server in Nova's API.
type server struct {
	ID, Name, Status string
	Zone             string `json:"OS-EXT-AZ:availability_zone"`
	Metadata         map[string]string
	Addresses        map[string][]struct {
		Address string `json:"addr"`
	}
}

// ip returns the first of its addresses, or "" when it has none.
func (s *server) ip() string {
	for _, name := range slices.Sorted(maps.Keys(s.Addresses)) {
		for _, a := range s.Addresses[name] {
			return a.Address
		}
	}
	return ""
}

// port is a port in Neutron's API.
type port struct {
	ID, Description string
	Device          string `json:"device_id"`
}

// sight holds the servers and ports at one moment.
type sight struct {
	servers map[string]server // by ID
	ports   []port
}

// restTimes limits the load on the services: after a listing they rest for this many times its
// duration.
const restTimes = 2

// look lists servers and ports, and records the servers. A caller soon after another gets the same
// result.
func (c *Cloud) look(ctx context.Context) (sight, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Now().Before(c.rested) {
		return c.last, nil
	}
	began, now := time.Now(), sight{servers: map[string]server{}}
	var compute struct{ Servers []server }
	if err := get(ctx, c.compute, "servers/detail?tags=drover&limit=1000", &compute); err != nil {
		return sight{}, fmt.Errorf("list the servers: %w", err)
	}
	var network struct{ Ports []port }
	if err := get(ctx, c.network, "ports?limit=1000&fields=id&fields=description&fields=device_id", &network); err != nil {
		return sight{}, fmt.Errorf("list the ports: %w", err)
	}
	for _, s := range compute.Servers {
		now.servers[s.ID], c.seen[s.ID] = s, s
	}
	now.ports = network.Ports
	c.last, c.rested = now, time.Now().Add(max(lookEvery, restTimes*time.Since(began)))
	return now, nil
}

// Delete deletes a server behind Drover's back.
func (c *Cloud) Delete(ctx context.Context, id string) error {
	return c.Do(ctx, http.MethodDelete, "compute/servers/"+id, nil, nil)
}

// Do makes a call as the tenant. The path begins with the folder of the service.
func (c *Cloud) Do(ctx context.Context, method, path string, body, answer any) error {
	folder, path, _ := strings.Cut(path, "/")
	service := map[string]*gophercloud.ServiceClient{"compute": c.compute, "network": c.network, "volume": c.volume,
		"load-balancer": c.balancer}[folder]
	_, err := service.Request(ctx, method, service.ResourceBaseURL()+path, &gophercloud.RequestOpts{
		JSONBody: body, JSONResponse: answer, OkCodes: []int{200, 201, 202, 204},
	})
	return err
}

// Entry is one record.
type Entry struct {
	// Namespace of the DroverMachine that it was created for.
	Namespace string
	wire.Resource
}

// Books returns all servers ever seen and the existing ports, from a recent listing.
func (c *Cloud) Books(ctx context.Context) (all []Entry, err error) {
	now, err := c.look(ctx)
	if err != nil {
		return nil, err
	}
	for _, p := range now.ports {
		if of, ok := namespaceIn(p.Description); ok {
			all = append(all, Entry{of, wire.Resource{Kind: wire.NIC, ID: p.ID, AttachedTo: p.Device}})
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, s := range c.seen {
		of, _, _ := strings.Cut(s.Metadata[cloud.TagMachine], "/")
		r := wire.Resource{Kind: wire.Instance, ID: id, Name: s.Name, State: wire.Stopped, StateReason: s.Status, Tags: s.Metadata,
			PrivateIP: s.ip()}
		if _, ok := now.servers[id]; !ok {
			r.State = wire.Terminated
		} else if s.Status == "ACTIVE" {
			r.State = wire.Running
		}
		all = append(all, Entry{of, r})
	}
	return all, nil
}

// namespaceIn reads the DroverMachine's namespace from a port's description.
func namespaceIn(description string) (namespace string, ok bool) {
	for field := range strings.FieldsSeq(description) {
		if machine, found := strings.CutPrefix(field, cloud.TagMachine+"="); found {
			namespace, _, _ = strings.Cut(machine, "/")
			return namespace, true
		}
	}
	return "", false
}
