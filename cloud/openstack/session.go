// SPDX-License-Identifier: Apache-2.0

package openstack

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/tokens"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
)

// The services, by their type in the catalogue.
const (
	compute = "compute"
	network = "network"
	image   = "image"
	volumes = "volumev3" // or "block-storage", its newer type

	// computeStein is Nova in steinMicroversion.
	computeStein = "compute, of the release Stein"
)

// session is a token with what came with it. It never changes: a new token is a new session.
type session struct {
	services map[string]*gophercloud.ServiceClient
	token    string
	until    time.Time
	project  string // that the token is for
	region   string // of Nova's endpoint in the catalogue
}

// sessions keeps the account's one token.
type sessions struct {
	account *infrav1.OpenStackAccount
	login   login
	client  *http.Client

	turn    chan struct{} // has room for whoever may look at what follows, or log in
	current *session
	project string // of the first token
	guard   driverkit.LoginGuard
}

func newSessions(account *infrav1.OpenStackAccount, login login, transport http.RoundTripper) *sessions {
	return &sessions{account: account, login: login, turn: make(chan struct{}, 1), client: driverkit.Client(bounded{transport})}
}

// get returns the session, or logs in where there is none, it nears its end, or it is the one that
// was refused. Of many who find it refused, the first logs in.
func (s *sessions) get(ctx context.Context, refused *session) (*session, error) {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return nil, s.login.redactor().NoAnswer("CreateToken", ctx.Err())
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
		return nil, s.login.redactor().NoAnswer(op, err)
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
		return nil, cloud.Errorf(cloud.Unknown, "%s: the answer holds no token: is %s Keystone's address?", op, s.account.AuthURL)
	}
	project, err := answer.ExtractProject()
	switch {
	case err == nil && project != nil && s.project != "" && project.ID != s.project:
		return nil, cloud.Errorf(cloud.Conflict, "%s: the credentials lead to the project %s now, and led to %s before: restore the credentials, or make a new CloudAccount",
			op, cloud.Clip(project.ID, maxTag), s.project)
	case err != nil || project == nil || project.ID != s.account.ProjectID:
		return nil, cloud.Errorf(cloud.Unauthorized, "%s: the credentials are not for the account's project %s", op, s.account.ProjectID)
	}
	catalogue, err := answer.ExtractServiceCatalog()
	if err != nil {
		return nil, cloud.Errorf(cloud.Unknown, "%s: the answer holds no service catalogue", op)
	}
	provider.TokenID = token.ID
	made := &session{services: map[string]*gophercloud.ServiceClient{}, token: token.ID, until: token.ExpiresAt, project: project.ID}
	for service, version := range map[string]string{compute: "", network: "v2.0/", image: "v2/"} {
		address, region, err := s.endpoint(catalogue, service)
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
		if address, _, err := s.endpoint(catalogue, kind); err == nil {
			made.services[volumes] = &gophercloud.ServiceClient{ProviderClient: provider, Type: kind, Endpoint: address}
			break
		}
	}
	newer := *made.services[compute]
	made.services[computeStein] = &newer
	made.services[compute].Microversion, newer.Microversion = microversion, steinMicroversion
	s.project = project.ID
	return made, nil
}

// endpoint finds the service in the catalogue, in the account's region. Endpoints are not asked for
// their versions.
func (s *sessions) endpoint(catalogue *tokens.ServiceCatalog, service string) (address, region string, err error) {
	kind := cmp.Or(s.account.Interface, "public")
	found := map[string]string{} // by region
	for _, entry := range catalogue.Entries {
		for _, endpoint := range entry.Endpoints {
			if entry.Type == service && endpoint.Interface == kind && (s.account.Region == "" || endpoint.Region == s.account.Region) {
				found[endpoint.Region] = endpoint.URL
			}
		}
	}
	if len(found) != 1 {
		return "", "", cloud.Errorf(cloud.InvalidSpec, "the service catalogue has %d %s endpoints of the service %s in region %q: see spec.openstack.region and interface",
			len(found), kind, service, s.account.Region)
	}
	for in, url := range found {
		address, region = url, in
	}
	if !s.leadsTo(address) {
		return "", "", cloud.Errorf(cloud.InvalidSpec, "the service catalogue's address of the service %s is refused: it must be one of HTTP, by https where authURL is, without user, query and fragment", service)
	}
	return gophercloud.NormalizeURL(address), region, nil
}

// leadsTo reports whether the catalogue may send calls to an address: paths are appended to it, and
// the token goes there.
func (s *sessions) leadsTo(address string) bool {
	to, err := url.Parse(address)
	if err != nil || to.Host == "" || to.User != nil || strings.ContainsAny(address, "?#") {
		return false
	}
	identity, err := url.Parse(s.account.AuthURL)
	return err == nil && (to.Scheme == "https" || to.Scheme == "http" && identity.Scheme != "https")
}

// operation is a call of a service's, for the rate limit and for people.
type operation struct {
	name    string
	class   cloud.Class
	service string
	method  string
}

// call makes a call, and makes it again with a new token where this one was refused: then nothing
// was done.
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
		return secrets.NoAnswer(op.name, err)
	}
	service := s.services[op.service]
	if service == nil {
		return cloud.Errorf(cloud.InvalidSpec, "%s: the service catalogue has no %s", op.name, op.service)
	}
	resp, err := service.Request(cloud.WithOperation(ctx, op.name, op.class), op.method, service.Endpoint+path,
		&gophercloud.RequestOpts{JSONBody: body, JSONResponse: answer, OkCodes: successes})
	switch {
	case err != nil && ctx.Err() != nil:
		err = ctx.Err()
	case err == nil && answer == nil && !marked(resp.Header):
		err = foreign(op) // an answer without content has nothing else by which it is known
	}
	return typed(secrets, op.name, op.class, err)
}

// successes are the statuses of all that is called. Some actions on a server answer 200, which
// gophercloud takes for a POST's failure.
var successes = []int{http.StatusOK, http.StatusCreated, http.StatusAccepted, http.StatusNoContent}

// maxAnswer bounds what is read of an answer, in bytes: a full page of 1,000 servers has some 4
// MiB.
const maxAnswer = 64 << 20

// bounded ends answers that do not end.
type bounded struct{ http.RoundTripper }

func (b bounded) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := b.RoundTripper.RoundTrip(req)
	if err == nil {
		resp.Body = http.MaxBytesReader(nil, resp.Body, maxAnswer)
	}
	return resp, err
}

// tokenRefused tells whether it was the token that was refused, and not the deed.
func tokenRefused(err error) bool {
	var r refusal
	return errors.As(err, &r) && r.status == http.StatusUnauthorized
}
