// SPDX-License-Identifier: Apache-2.0

// Package toycloud is the example of docs/adding-a-cloud.md: a complete driver for a cloud that
// has little more than servers with volumes. It passes the conformance suite.
package toycloud

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
	"github.com/drover-io/drover/internal/naming"
)

// Cloud is the row for cloud/registry.
func Cloud() cloud.Cloud {
	return cloud.Cloud{
		Name:  "toy",
		Union: driverkit.Fields[toyAccount, toyMachine]{Account: accountOf, Machine: machineOf},
		New:   newDriver,
		Limits: cloud.Limits{ // from the cloud's documentation
			Create: cloud.Limit{PerSecond: 5, Burst: 10},
			Delete: cloud.Limit{PerSecond: 5, Burst: 20},
			Read:   cloud.Limit{PerSecond: 10, Burst: 50},
		},
		// The toy cloud reads its own writes, and deletes nothing by itself.
		Traits:        cloud.Traits{Named: true},
		Batch:         cloud.Batch{Read: 50, Delete: 50},
		CheckUserData: driverkit.MaxUserData(32 << 10),
		ProviderID:    func(*infrav1.DroverAccountSpec) string { return "toy://{{ v1.instance_id }}" },
	}
}

type driver struct {
	endpoint, key string
	api           driverkit.JSON
}

func newDriver(config cloud.Config) (cloud.Driver, error) {
	account := accountOf(config.Account)
	if account == nil || account.Endpoint == "" {
		return nil, cloud.Errorf(cloud.InvalidSpec, "endpoint is not set")
	}
	key := string(config.Credentials["token"])
	if key == "" || strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, cloud.Errorf(cloud.Unauthorized, "the credentials Secret has no valid key \"token\"")
	}
	transport, err := config.Connect(nil)
	if err != nil {
		return nil, err
	}
	return &driver{endpoint: account.Endpoint, key: key, api: driverkit.JSON{
		Client: driverkit.Client(transport), Secrets: driverkit.NewRedactor(key), Cloud: "the toy cloud", Settings: "the endpoint",
	}}, nil
}

// The types of the toy cloud's API.

type server struct {
	Name     string            `json:"name"`
	Size     string            `json:"size"`
	Image    string            `json:"image"`
	Zone     string            `json:"zone,omitempty"`
	DiskGiB  int32             `json:"diskGiB,omitempty"`
	UserData []byte            `json:"userData,omitempty"`
	Labels   map[string]string `json:"labels"`
	// Only in responses.
	ID      string    `json:"id,omitempty"`    // never used again
	State   string    `json:"state,omitempty"` // building, active, failed, deleting
	IP      string    `json:"ip,omitempty"`
	Created time.Time `json:"created,omitzero"`
}

type volume struct {
	Name   string            `json:"name"`
	Labels map[string]string `json:"labels"`
}

type page struct {
	Servers []server `json:"servers"`
	Volumes []volume `json:"volumes"`
	Next    string   `json:"next"` // "" on the last page
}

type catalog struct {
	Account string            `json:"account"` // the owner of the key
	Zones   []string          `json:"zones"`
	Sizes   map[string][2]int `json:"sizes"` // CPUs and GiB
	Images  map[string]string `json:"images"`
}

type errorBody struct{ Problem string }

// Probe reads the catalog, which needs credentials, costs little, and names their owner.
func (d *driver) Probe(ctx context.Context) (cloud.Info, error) {
	var c catalog
	if err := d.call(ctx, "GetCatalog", cloud.ClassRead, http.MethodGet, "/catalog", nil, &c); err != nil {
		return cloud.Info{}, err
	}
	if c.Account == "" {
		return cloud.Info{}, d.api.Unexpected("GetCatalog", "without an account")
	}
	slices.Sort(c.Zones)
	return cloud.Info{Place: "toy:" + c.Account, FailureDomains: c.Zones}, nil
}

// FailureDomains returns the machine's zone, if it names one.
func (d *driver) FailureDomains(_ context.Context, fields *infrav1.DroverMachineFields) ([]string, error) {
	if m := machineOf(fields); m != nil && m.Zone != "" {
		return []string{m.Zone}, nil
	}
	return nil, nil
}

// Ensure creates the server with its Node's name. Names are unique in the toy cloud, so the same
// create never takes effect twice. They do not outlive the server: only the token says whose it is.
func (d *driver) Ensure(ctx context.Context, req cloud.Request) (cloud.Resource, error) {
	m := machineOf(req.Spec)
	if m == nil {
		return cloud.Resource{}, cloud.Errorf(cloud.InvalidSpec, "the machine's spec has no fields for the toy cloud")
	}
	wanted := server{
		Name: naming.NodeName(req.Name), Size: m.Size, Image: m.Image, Zone: cmp.Or(req.FailureDomain, m.Zone), DiskGiB: m.DiskGiB,
		UserData: req.UserData,
		Labels: map[string]string{
			cloud.TagOwnership: req.OwnershipID, cloud.TagToken: req.Token, cloud.TagMachine: req.Namespace + "/" + req.Name,
		},
	}
	var made server
	err := d.call(ctx, "CreateServer", cloud.ClassCreate, http.MethodPost, "/servers", wanted, &made)
	if cloud.CodeOf(err) == cloud.Conflict { // it exists already: return it, even if it was created differently
		err = d.call(ctx, "GetServer", cloud.ClassRead, http.MethodGet, "/servers/"+wanted.Name, nil, &made)
	}
	if err == nil && (made.Labels[cloud.TagToken] != req.Token || made.Labels[cloud.TagOwnership] != req.OwnershipID) {
		err = cloud.Errorf(cloud.Conflict, "server %s exists and does not belong to this machine", wanted.Name)
	}
	if err != nil {
		return cloud.Resource{}, err
	}
	return instance(made), nil
}

// List and Describe differ only in the label.
func (d *driver) List(ctx context.Context) ([]cloud.Resource, error) {
	return d.read(ctx, url.Values{"label": {cloud.TagOwnership}})
}

func (d *driver) Describe(ctx context.Context, refs []cloud.Reference) ([]cloud.Resource, error) {
	if len(refs) == 0 {
		return nil, nil
	}
	query := url.Values{"label": {cloud.TagToken}}
	for _, ref := range refs {
		query.Add("value", ref.Token)
	}
	return d.read(ctx, query)
}

// Find reads the server that the provider ID names, whatever its labels say.
func (d *driver) Find(ctx context.Context, ref cloud.Reference) (*cloud.Resource, error) {
	var found server
	err := d.call(ctx, "GetServer", cloud.ClassRead, http.MethodGet, "/servers/"+url.PathEscape(strings.TrimPrefix(ref.ProviderID, "toy://")),
		nil, &found)
	if cloud.CodeOf(err) == cloud.NotFound { // the toy cloud says it of a server only
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	r := instance(found)
	return &r, nil
}

// read fetches all pages of servers and then of volumes. If one page fails, it returns an error and
// no partial result.
func (d *driver) read(ctx context.Context, query url.Values) ([]cloud.Resource, error) {
	var all []cloud.Resource
	for _, kind := range []string{"/servers", "/volumes"} {
		found, err := driverkit.Pages(ctx, "List"+kind, func(ctx context.Context, after string) (found []cloud.Resource, next string, err error) {
			query.Set("after", after)
			var p page
			err = d.call(ctx, "List"+kind, cloud.ClassRead, http.MethodGet, kind+"?"+query.Encode(), nil, &p)
			for _, s := range p.Servers {
				found = append(found, instance(s))
			}
			for _, v := range p.Volumes {
				found = append(found, cloud.Resource{Kind: cloud.KindDisk, ID: v.Name,
					Token: v.Labels[cloud.TagToken], OwnershipID: v.Labels[cloud.TagOwnership]})
			}
			return found, p.Next, err
		})
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}

// Delete makes one call for each resource, because the toy cloud has no batches.
func (d *driver) Delete(ctx context.Context, resources []cloud.Resource) []error {
	errs := make([]error, len(resources))
	for i, r := range resources {
		path := "/servers/"
		if r.Kind == cloud.KindDisk {
			path = "/volumes/"
		}
		err := d.call(ctx, "Delete"+string(r.Kind), cloud.ClassDelete, http.MethodDelete, path+url.PathEscape(r.ID), nil, &struct{}{})
		if cloud.CodeOf(err) != cloud.NotFound { // already gone is success
			errs[i] = err
		}
	}
	return errs
}

func (d *driver) Offering(ctx context.Context, fields *infrav1.DroverMachineFields) (cloud.Offering, error) {
	m := machineOf(fields)
	if m == nil {
		return cloud.Offering{}, cloud.Errorf(cloud.InvalidSpec, "the machine's spec has no fields for the toy cloud")
	}
	var c catalog
	if err := d.call(ctx, "GetCatalog", cloud.ClassRead, http.MethodGet, "/catalog", nil, &c); err != nil {
		return cloud.Offering{}, err
	}
	size, known := c.Sizes[m.Size]
	if arch := c.Images[m.Image]; known && arch != "" {
		return driverkit.Offering(arch, int64(size[0]), int64(size[1])<<30, 0, nil), nil
	}
	return cloud.Offering{}, cloud.Errorf(cloud.InvalidSpec, "size %q or image %q does not exist", m.Size, m.Image)
}

func instance(s server) cloud.Resource {
	states := map[string]cloud.State{
		"building": cloud.StatePending, "active": cloud.StateRunning, "failed": cloud.StateFailed, "deleting": cloud.StateStopping,
	}
	r := cloud.Resource{Kind: cloud.KindInstance, ID: s.ID, Token: s.Labels[cloud.TagToken], OwnershipID: s.Labels[cloud.TagOwnership],
		CreatedAt: s.Created, ProviderID: "toy://" + s.Name, State: states[s.State], FailureDomain: s.Zone}
	if s.State == "failed" { // the only cause that there is
		r.Code, r.Reason = cloud.NoCapacity, "the zone has no room for the server"
	}
	if s.IP != "" {
		r.Addresses = []clusterv1.MachineAddress{{Type: clusterv1.MachineInternalIP, Address: s.IP}}
	}
	return r
}

// call makes one attempt of one operation. Every error that it returns is typed, and quotes only
// messages of the cloud.
func (d *driver) call(ctx context.Context, operation string, class cloud.Class, method, path string, in, out any) error {
	req, err := d.api.NewRequest(ctx, operation, class, method, d.endpoint+path, in)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+d.key)
	return d.api.Do(req, func(a *driverkit.Answer) error {
		if a.Status >= 300 {
			return d.statusError(a)
		}
		return a.Decode(out)
	})
}

// statusError turns a status into an error.
func (d *driver) statusError(a *driverkit.Answer) error {
	codes := map[int]cloud.Code{
		401: cloud.Unauthorized, 403: cloud.QuotaExceeded, 404: cloud.NotFound, 409: cloud.Conflict,
		422: cloud.InvalidSpec, 429: cloud.Throttled, 503: cloud.Unavailable, 507: cloud.NoCapacity,
	}
	code, known := codes[a.Status]
	var body errorBody
	if !known || !a.Holds(&body) {
		return a.Foreign()
	}
	e := cloud.Errorf(code, "%s: %s", a.Operation, d.api.Secrets.Clean(body.Problem, 512))
	e.RetryAfter = driverkit.RetryAfter(code, a.Header)
	return e
}
