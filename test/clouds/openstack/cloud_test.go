// SPDX-License-Identifier: Apache-2.0

package openstack_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack"
	. "github.com/onsi/gomega"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/conformance"
	driver "github.com/drover-io/drover/cloud/openstack"
)

const keystone = "http://127.0.0.1:25001/v3"

func TestMain(m *testing.M) {
	if resp, err := http.Get(keystone); err != nil {
		fmt.Fprintln(os.Stderr, "no OpenStack runs here: use 'make test-openstack', or start one by hack/openstack/start")
		os.Exit(1)
	} else {
		resp.Body.Close()
	}
	for _, name := range []string{"test-1", "test-2", "test-3"} {
		tenants <- name
	}
	os.Exit(m.Run())
}

// tenants holds the tenants that no test uses at the moment (TENANTS in
// hack/openstack/catalog.py).
var tenants = make(chan string, 3)

// newTenant waits for a tenant that no other test uses, so that the test can count its resources
// and change its quotas.
func newTenant(t *testing.T) *tenant {
	t.Parallel()
	name := <-tenants
	t.Cleanup(func() { tenants <- name })
	return logIn(t, name)
}

// tenant calls OpenStack without the driver.
type tenant struct {
	t        testing.TB
	name     string
	provider *gophercloud.ProviderClient
	compute  *gophercloud.ServiceClient
	network  *gophercloud.ServiceClient
	volume   *gophercloud.ServiceClient
	balancer *gophercloud.ServiceClient
	identity *gophercloud.ServiceClient
	project  string
}

func logIn(t testing.TB, name string) *tenant {
	t.Helper()
	g := NewWithT(t)
	provider, err := openstack.AuthenticatedClient(t.Context(), gophercloud.AuthOptions{
		IdentityEndpoint: keystone, Username: name, Password: name, TenantName: name, DomainID: "default",
		AllowReauth: true, // on a busy computer, a test takes longer than a token lives
	})
	g.Expect(err).NotTo(HaveOccurred())
	who := &tenant{t: t, name: name, provider: provider}
	for client, of := range map[**gophercloud.ServiceClient]func(*gophercloud.ProviderClient,
		gophercloud.EndpointOpts) (*gophercloud.ServiceClient, error){
		&who.compute: openstack.NewComputeV2, &who.network: openstack.NewNetworkV2, &who.volume: openstack.NewBlockStorageV3,
		&who.identity: openstack.NewIdentityV3, &who.balancer: openstack.NewLoadBalancerV2,
	} {
		*client, err = of(provider, gophercloud.EndpointOpts{})
		g.Expect(err).NotTo(HaveOccurred())
	}
	who.compute.Microversion = "2.61"
	var answer struct{ Projects []struct{ ID string } }
	who.do(who.identity, http.MethodGet, "auth/projects", nil, &answer)
	g.Expect(answer.Projects).To(HaveLen(1))
	who.project = answer.Projects[0].ID
	return who
}

// do makes a call that must succeed. headers are pairs of name and value.
func (w *tenant) do(service *gophercloud.ServiceClient, method, path string, body, answer any, headers ...string) {
	w.t.Helper()
	more := map[string]string{}
	for i := 1; i < len(headers); i += 2 {
		more[headers[i-1]] = headers[i]
	}
	_, err := service.Request(withoutEnd(w.t), method, service.ResourceBaseURL()+path, &gophercloud.RequestOpts{
		JSONBody: body, JSONResponse: answer, MoreHeaders: more, OkCodes: []int{200, 201, 202, 204},
	})
	if err != nil {
		w.t.Fatalf("%s %s: %v", method, path, err)
	}
}

// left lists the servers, ports, floating IPs, trunks, volumes and load balancers with the
// ownership ID, or all of Drover's for "". A floating IP or a trunk without its port counts for
// every ownership ID, and so does a port of a load balancer.
func (w *tenant) left(ownership string) (found []string) {
	w.t.Helper()
	var servers struct {
		Servers []struct {
			ID, Status string
			Metadata   map[string]string
		}
	}
	w.do(w.compute, http.MethodGet, "servers/detail", nil, &servers)
	for _, s := range servers.Servers {
		if id := s.Metadata[cloud.TagOwnership]; id != "" && (ownership == "" || id == ownership) {
			found = append(found, "server "+s.ID+" "+s.Status)
		}
	}
	var ports struct {
		Ports []struct {
			ID, Name, Description string
			Owner                 string `json:"device_owner"`
		}
	}
	w.do(w.network, http.MethodGet, "ports", nil, &ports)
	owners := map[string]string{} // by port name
	for _, p := range ports.Ports {
		owners[p.Name] = p.Description
		if strings.Contains(p.Description, cloud.TagOwnership+"="+ownership) || ownership == "" && strings.HasPrefix(p.Owner, "compute:") ||
			p.Owner == "Octavia" {
			found = append(found, "port "+p.ID)
		}
	}
	for _, f := range w.floatingIPs() {
		if owner, ok := owners[f.Description]; !ok || strings.Contains(owner, cloud.TagOwnership+"="+ownership) {
			found = append(found, "floating IP "+f.ID+" of "+f.Description)
		}
	}
	var trunks struct{ Trunks []struct{ ID, Name string } }
	w.do(w.network, http.MethodGet, "trunks", nil, &trunks)
	for _, k := range trunks.Trunks {
		if owner, ok := owners[k.Name]; !ok || strings.Contains(owner, cloud.TagOwnership+"="+ownership) {
			found = append(found, "trunk "+k.ID+" of "+k.Name)
		}
	}
	for _, v := range w.volumes() {
		if id := v.Metadata[cloud.TagOwnership]; id != "" && (ownership == "" || id == ownership) {
			found = append(found, "volume "+v.ID+" "+v.Status)
		}
	}
	var balancers struct {
		All []struct {
			ID     string
			Status string `json:"provisioning_status"`
			Tags   []string
		} `json:"loadbalancers"`
	}
	w.do(w.balancer, http.MethodGet, "lbaas/loadbalancers", nil, &balancers)
	for _, b := range balancers.All {
		if ownership == "" && len(b.Tags) > 0 || slices.Contains(b.Tags, cloud.TagOwnership+"="+ownership) {
			found = append(found, "load balancer "+b.ID+" "+b.Status)
		}
	}
	return found
}

type floatingIP struct {
	ID, Description string
	Address         string `json:"floating_ip_address"`
}

// floatingIPs returns all floating IPs of the project.
func (w *tenant) floatingIPs() []floatingIP {
	w.t.Helper()
	var answer struct {
		All []floatingIP `json:"floatingips"`
	}
	w.do(w.network, http.MethodGet, "floatingips", nil, &answer)
	return answer.All
}

type volume struct {
	ID, Status  string
	Size        int
	Type        string `json:"volume_type"`
	Zone        string `json:"availability_zone"`
	Metadata    map[string]string
	Attachments []struct {
		Server string `json:"server_id"`
	}
}

// volumes returns all volumes of the project.
func (w *tenant) volumes() []volume {
	w.t.Helper()
	var answer struct{ Volumes []volume }
	w.do(w.volume, http.MethodGet, "volumes/detail", nil, &answer)
	return answer.Volumes
}

// setQuota changes a project's quota as the cloud's operator, until the test ends or undo is
// called.
func setQuota(t testing.TB, admin *tenant, project, name string, value int) (undo func()) {
	path := "os-quota-sets/" + project
	set := func(value int) {
		admin.do(admin.compute, http.MethodPut, path, map[string]any{"quota_set": map[string]any{name: value, "force": true}}, nil)
	}
	set(value)
	undo = sync.OnceFunc(func() { set(1000) })
	t.Cleanup(undo)
	return undo
}

func account(project string) *infrav1.DroverAccountSpec {
	return &infrav1.DroverAccountSpec{
		CredentialsRef: infrav1.LocalReference{Name: "openstack"},
		Cloud: infrav1.AccountCloud{OpenStack: &infrav1.OpenStackAccount{AuthURL: keystone, ProjectID: project, Region: "RegionOne",
			Interface: "public"}},
	}
}

// clouds returns the data of a Secret for a login at this Keystone.
func clouds(auth map[string]string) map[string][]byte {
	auth["auth_url"] = keystone
	file, err := json.Marshal(map[string]any{"clouds": map[string]any{"cloud": map[string]any{"auth": auth}}})
	if err != nil {
		panic(err)
	}
	return map[string][]byte{"clouds.yaml": file}
}

func password(user, secret string) map[string][]byte {
	return clouds(map[string]string{"username": user, "password": secret, "user_domain_id": "default"})
}

func machine(change func(*infrav1.OpenStackMachine)) *infrav1.DroverMachineFields {
	m := &infrav1.OpenStackMachine{Flavor: "small", Image: infrav1.OpenStackImage{Name: "node-image"},
		Ports: []infrav1.OpenStackPort{{Network: "nodes"}}}
	if change != nil {
		change(m)
	}
	return &infrav1.DroverMachineFields{Cloud: infrav1.MachineCloud{OpenStack: m}}
}

// counted counts calls by name, and can make a call fail before or after it is sent.
type counted struct {
	mu     sync.Mutex
	calls  map[string]int
	before func(op string, req *http.Request) error
	after  func(op string) error
}

func (c *counted) RoundTrip(req *http.Request) (*http.Response, error) {
	op := cloud.OperationOf(req.Context()).Name
	c.mu.Lock()
	if c.calls == nil {
		c.calls = map[string]int{}
	}
	c.calls[op]++
	before, after := c.before, c.after
	c.mu.Unlock()
	if before != nil {
		if err := before(op, req); err != nil {
			return nil, err
		}
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err == nil && after != nil {
		if err = after(op); err != nil {
			resp.Body.Close()
			return nil, err
		}
	}
	return resp, err
}

func (c *counted) total() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, calls := range c.calls {
		n += calls
	}
	return n
}

func (c *counted) count(op string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls[op]
}

func (c *counted) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = nil
}

func connect(t testing.TB, who *tenant, carrier http.RoundTripper) cloud.Driver {
	t.Helper()
	d, err := driver.Cloud().New(cloud.Config{Account: account(who.project), Credentials: password(who.name, who.name),
		Connect: conformance.Through(carrier)})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return d
}

func request(owner, token string, spec *infrav1.DroverMachineFields) cloud.Request {
	return cloud.Request{Token: token, OwnershipID: owner, Namespace: "team-a", Name: "blue-" + token[len(token)-8:],
		UserData: []byte("#cloud-config\n"), Spec: spec}
}

// patience bounds every wait. On a busy computer, a server that normally takes a second may take
// ten minutes.
const patience = 40 * time.Minute

// until polls until ok returns true.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	NewWithT(t).Eventually(ok, patience, time.Second).Should(BeTrue(), what)
}

// image returns the ID of node-image.
func (w *tenant) image() string {
	w.t.Helper()
	g := NewWithT(w.t)
	glance, err := openstack.NewImageV2(w.provider, gophercloud.EndpointOpts{})
	g.Expect(err).NotTo(HaveOccurred())
	var answer struct{ Images []struct{ ID string } }
	w.do(glance, http.MethodGet, "images?name=node-image", nil, &answer)
	g.Expect(answer.Images).To(HaveLen(1))
	return answer.Images[0].ID
}

// withoutEnd returns a context for cleanups, which run after the test's context has ended.
func withoutEnd(t testing.TB) context.Context { return context.WithoutCancel(t.Context()) }
