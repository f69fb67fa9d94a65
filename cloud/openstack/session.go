// SPDX-License-Identifier: Apache-2.0

package openstack

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/tokens"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
)

// The services, by their type in the catalog.
const (
	compute = "compute"
	network = "network"
	image   = "image"
	volumes = "volumev3" // or "block-storage", its newer type
	// loadBalancers is Octavia. Not every cloud has it.
	loadBalancers = "load-balancer"

	// computeStein is Nova in steinMicroversion.
	computeStein = "compute, of the release Stein"
	// computeUssuri is Nova in ussuriMicroversion.
	computeUssuri = "compute, of the release Ussuri"
)

// session is a token with its catalog. It is immutable: a new token makes a new session.
type session struct {
	services map[string]*gophercloud.ServiceClient
	token    string
	until    time.Time
	project  string // the token's project
	region   string // region of Nova's endpoint in the catalog
}

// sessions caches the account's token.
type sessions struct {
	account *infrav1.OpenStackAccount
	login   login
	client  *http.Client

	lock    chan struct{} // lock for the fields below and for logging in
	current *session
	project string // of the first token
	guard   driverkit.LoginGuard
}

func newSessions(account *infrav1.OpenStackAccount, login login, transport http.RoundTripper) *sessions {
	return &sessions{account: account, login: login, lock: make(chan struct{}, 1), client: driverkit.Client(transport)}
}

// get returns the session. It logs in if there is none, if it expires soon, or if it is the refused
// one. If many callers find it refused, only the first logs in.
func (s *sessions) get(ctx context.Context, refused *session) (*session, error) {
	select {
	case s.lock <- struct{}{}:
		defer func() { <-s.lock }()
	case <-ctx.Done():
		return nil, s.login.redactor().NoResponse("CreateToken", ctx.Err())
	}
	if now := s.current; now != nil && now != refused && time.Until(now.until) > tokenEarly {
		return now, nil
	}
	if err := s.guard.Allow(); err != nil {
		return nil, err
	}
	made, err := s.logIn(ctx)
	s.guard.Done(err)
	if err != nil {
		return nil, err
	}
	s.current = made
	return made, nil
}

func (s *sessions) logIn(ctx context.Context) (*session, error) {
	const op = "CreateToken"
	if err := ctx.Err(); err != nil {
		return nil, s.login.redactor().NoResponse(op, err)
	}
	provider := &gophercloud.ProviderClient{HTTPClient: *s.client}
	provider.UserAgent.Prepend("drover")
	identity := &gophercloud.ServiceClient{ProviderClient: provider, Endpoint: identityURL(s.account.AuthURL)}
	answer := tokens.Create(cloud.WithOperation(ctx, op, cloud.ClassRead), identity, &s.login.options)
	if answer.Err != nil {
		return nil, typed(s.login.redactor(), op, cloud.ClassRead, answer.Err)
	}
	token, err := answer.ExtractToken()
	if err != nil || token.ID == "" {
		return nil, cloud.Errorf(cloud.Unknown, "%s: unexpected response without a token (not Keystone): check spec.cloud.openstack.authURL (%s)",
			op, s.account.AuthURL)
	}
	project, err := answer.ExtractProject()
	switch {
	case err == nil && project != nil && s.project != "" && project.ID != s.project:
		return nil, cloud.Errorf(cloud.Conflict, "%s: the credentials are for project %s now, and were for %s before: restore the credentials, or create a new DroverAccount",
			op, cloud.Clip(project.ID, maxTag), s.project)
	case err != nil || project == nil || project.ID != s.account.ProjectID:
		return nil, cloud.Errorf(cloud.Unauthorized, "%s: the credentials are not for the account's project %s", op, s.account.ProjectID)
	}
	catalog, err := answer.ExtractServiceCatalog()
	if err != nil {
		return nil, cloud.Errorf(cloud.Unknown, "%s: the response has no service catalog", op)
	}
	provider.TokenID = token.ID
	made := &session{services: map[string]*gophercloud.ServiceClient{}, token: token.ID, until: token.ExpiresAt, project: project.ID}
	for service, version := range map[string]string{compute: "", network: "v2.0/", image: "v2/"} {
		address, region, err := s.endpoint(catalog, service)
		if err != nil {
			return nil, err
		}
		if service == compute {
			made.region = region
		}
		client := &gophercloud.ServiceClient{ProviderClient: provider, Type: service, Endpoint: strings.TrimSuffix(address, version) + version}
		made.services[service] = client
	}
	for _, kind := range []string{volumes, "block-storage"} { // not every cloud has Cinder
		if address, _, err := s.endpoint(catalog, kind); err == nil {
			made.services[volumes] = &gophercloud.ServiceClient{ProviderClient: provider, Type: kind, Endpoint: address}
			break
		}
	}
	if address, _, err := s.endpoint(catalog, loadBalancers); err == nil {
		address = strings.TrimSuffix(strings.TrimSuffix(address, "v2.0/"), "v2/") + "v2.0/lbaas/"
		made.services[loadBalancers] = &gophercloud.ServiceClient{ProviderClient: provider, Type: loadBalancers, Endpoint: address}
	}
	for service, version := range map[string]string{computeStein: steinMicroversion, computeUssuri: ussuriMicroversion} {
		newer := *made.services[compute]
		newer.Microversion = version
		made.services[service] = &newer
	}
	made.services[compute].Microversion = microversion
	s.project = project.ID
	return made, nil
}

// endpoint returns the service's endpoint from the catalog, in the account's region. It does not
// query endpoints for their versions.
func (s *sessions) endpoint(catalog *tokens.ServiceCatalog, service string) (address, region string, err error) {
	kind := string(cmp.Or(s.account.Interface, infrav1.OpenStackInterfacePublic))
	found := map[string]string{} // by region
	for _, entry := range catalog.Entries {
		for _, endpoint := range entry.Endpoints {
			if entry.Type == service && endpoint.Interface == kind && (s.account.Region == "" || endpoint.Region == s.account.Region) {
				found[endpoint.Region] = endpoint.URL
			}
		}
	}
	if len(found) != 1 {
		return "", "", cloud.Errorf(cloud.InvalidSpec,
			"the service catalog has %d %s endpoints of service %s in region %q, expected one: check spec.cloud.openstack.region and interface",
			len(found), kind, service, s.account.Region)
	}
	for in, url := range found {
		address, region = url, in
	}
	if !s.leadsTo(address) {
		return "", "", cloud.Errorf(cloud.InvalidSpec,
			"the service catalog's URL of service %s is not allowed: it must be HTTP, or HTTPS if authURL is, without user, query and fragment",
			service)
	}
	return gophercloud.NormalizeURL(address), region, nil
}

// leadsTo reports whether the driver accepts an address from the catalog: it appends paths to the
// address and sends the token there.
func (s *sessions) leadsTo(address string) bool {
	to, err := url.Parse(address)
	if err != nil || to.Host == "" || to.User != nil || strings.ContainsAny(address, "?#") {
		return false
	}
	identity, err := url.Parse(s.account.AuthURL)
	return err == nil && (to.Scheme == "https" || to.Scheme == "http" && identity.Scheme != "https")
}

// operation describes a call of a service, for the rate limit and for messages.
type operation struct {
	name    string
	class   cloud.Class
	service string
	method  string
}

// call makes a call. If the token is refused, nothing was done, and call repeats it once with a new
// token.
func (d *driver) call(ctx context.Context, op operation, path string, body, answer any) error {
	session, err := d.sessions.get(ctx, nil)
	if err != nil {
		return err
	}
	err = d.send(ctx, session, op, path, body, answer)
	if cloud.CodeOf(err) != cloud.Unauthorized || !tokenRefused(err) {
		return err
	}
	if session, err = d.sessions.get(ctx, session); err != nil {
		return err
	}
	return d.send(ctx, session, op, path, body, answer)
}

func (d *driver) send(ctx context.Context, s *session, op operation, path string, body, answer any) error {
	secrets := d.sessions.login.redactor(s.token)
	if err := ctx.Err(); err != nil {
		return secrets.NoResponse(op.name, err)
	}
	service := s.services[op.service]
	if service == nil {
		return cloud.Errorf(cloud.InvalidSpec, "%s: the service catalog has no service %s", op.name, op.service)
	}
	opts := &gophercloud.RequestOpts{JSONBody: body, OkCodes: successes}
	read := &reading{into: answer}
	if answer != nil {
		opts.JSONResponse = read
	}
	resp, err := service.Request(cloud.WithOperation(ctx, op.name, op.class), op.method, service.Endpoint+path, opts)
	switch {
	case err == nil && read.err != nil:
		err = cloud.Errorf(cloud.Unknown, "%s: unexpected response that can't be decoded (not OpenStack): check spec.cloud.openstack.authURL",
			op.name)
	case err != nil && ctx.Err() != nil:
		err = ctx.Err()
	case err == nil && answer == nil && !hasMarker(resp.Header):
		err = unexpectedResponse(op) // nothing else identifies an answer without content
	}
	return typed(secrets, op.name, op.class, err)
}

// reading decodes an answer. It keeps the error, which may quote the answer, apart from those of
// the network.
type reading struct {
	into any
	err  error
}

// UnmarshalJSON implements json.Unmarshaler.
func (r *reading) UnmarshalJSON(text []byte) error {
	r.err = json.Unmarshal(text, r.into)
	return nil
}

// successes are the success statuses of all calls. Some actions on a server answer 200, which
// gophercloud treats as a failure of a POST.
var successes = []int{http.StatusOK, http.StatusCreated, http.StatusAccepted, http.StatusNoContent}

// tokenRefused reports whether the token was refused, as opposed to the action.
func tokenRefused(err error) bool {
	var r refusal
	return errors.As(err, &r) && r.status == http.StatusUnauthorized
}
