// SPDX-License-Identifier: Apache-2.0

package openstack

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/tokens"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
	"github.com/drover-io/drover/cloud"
)

// The services, by their type in the catalogue.
const (
	compute = "compute"
	network = "network"
	image   = "image"
	volumes = "volumev3" // or "block-storage", its newer type

	// computeTyped is Nova in the microversion that knows the types of volumes.
	computeTyped = "compute, with types of volumes"
)

// session is a token with what came with it. It never changes: a new token is a new session.
type session struct {
	services map[string]*gophercloud.ServiceClient
	token    string
	until    time.Time
}

// sessions keeps the account's one token.
type sessions struct {
	account *infrav1.OpenStackAccount
	login   login
	client  http.Client

	turn    chan struct{} // has room for whoever may look at current, or log in
	current *session
}

func newSessions(account *infrav1.OpenStackAccount, login login, transport http.RoundTripper) *sessions {
	return &sessions{
		account: account, login: login, turn: make(chan struct{}, 1),
		client: http.Client{
			Transport: bounded{transport},
			// A redirect would carry the token to elsewhere.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// get returns the session, or logs in where there is none, it nears its end, or it is the one that was refused. Of many who
// find it refused, the first logs in.
func (s *sessions) get(ctx context.Context, refused *session) (*session, error) {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return nil, s.login.secrets.typed("CreateToken", cloud.ClassRead, ctx.Err())
	}
	if now := s.current; now != nil && now != refused && time.Until(now.until) > tokenEarly {
		return now, nil
	}
	made, err := s.logIn(ctx)
	if err != nil {
		return nil, err
	}
	s.current = made
	return made, nil
}

func (s *sessions) logIn(ctx context.Context) (*session, error) {
	const op = "CreateToken"
	if err := ctx.Err(); err != nil {
		return nil, s.login.secrets.typed(op, cloud.ClassRead, err)
	}
	provider := &gophercloud.ProviderClient{HTTPClient: s.client}
	provider.UserAgent.Prepend("drover")
	identity := &gophercloud.ServiceClient{ProviderClient: provider, Endpoint: identityURL(s.account.AuthURL)}
	answer := tokens.Create(cloud.WithOperation(ctx, op, cloud.ClassRead), identity, &s.login.options)
	if answer.Err != nil {
		return nil, s.login.secrets.typed(op, cloud.ClassRead, answer.Err)
	}
	token, err := answer.ExtractToken()
	if err != nil || token.ID == "" {
		return nil, cloud.Errorf(cloud.Unknown, "%s: the answer holds no token: is %s Keystone's address?", op, s.account.AuthURL)
	}
	if project, err := answer.ExtractProject(); err != nil || project == nil || project.ID != s.account.ProjectID {
		return nil, cloud.Errorf(cloud.Unauthorized, "%s: the credentials are not for the account's project %s", op, s.account.ProjectID)
	}
	catalogue, err := answer.ExtractServiceCatalog()
	if err != nil {
		return nil, cloud.Errorf(cloud.Unknown, "%s: the answer holds no service catalogue", op)
	}
	provider.TokenID = token.ID
	made := &session{services: map[string]*gophercloud.ServiceClient{}, token: token.ID, until: token.ExpiresAt}
	for service, version := range map[string]string{compute: "", network: "v2.0/", image: "v2/"} {
		url, err := s.endpoint(catalogue, service)
		if err != nil {
			return nil, err
		}
		client := &gophercloud.ServiceClient{ProviderClient: provider, Type: service, Endpoint: strings.TrimSuffix(url, version) + version}
		made.services[service] = client
	}
	for _, kind := range []string{volumes, "block-storage"} { // not every cloud has Cinder
		if url, err := s.endpoint(catalogue, kind); err == nil {
			made.services[volumes] = &gophercloud.ServiceClient{ProviderClient: provider, Type: kind, Endpoint: url}
			break
		}
	}
	typed := *made.services[compute]
	made.services[computeTyped] = &typed
	made.services[compute].Microversion, typed.Microversion = microversion, typedMicroversion
	return made, nil
}

// endpoint finds the service in the catalogue, in the account's region. Endpoints are not asked for their versions.
func (s *sessions) endpoint(catalogue *tokens.ServiceCatalog, service string) (string, error) {
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
		return "", cloud.Errorf(cloud.InvalidSpec, "the service catalogue has %d %s endpoints of the service %s in region %q: see spec.openstack.region and interface",
			len(found), kind, service, s.account.Region)
	}
	return gophercloud.NormalizeURL(slices.Collect(maps.Values(found))[0]), nil
}

// operation is a call of a service's, for the rate limit and for people.
type operation struct {
	name    string
	class   cloud.Class
	service string
	method  string
}

// call makes a call, and makes it again with a new token where this one was refused: then nothing was done.
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
	secrets := redactor{append([]string{s.token}, d.sessions.login.secrets.secrets...)}
	if err := ctx.Err(); err != nil {
		return secrets.typed(op.name, op.class, err)
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
	return secrets.typed(op.name, op.class, err)
}

// successes are the statuses of all that is called. Some actions on a server answer 200, which gophercloud takes for a POST's failure.
var successes = []int{http.StatusOK, http.StatusCreated, http.StatusAccepted, http.StatusNoContent}

// maxAnswer bounds what is read of an answer, in bytes: a full page of 1,000 servers has some 4 MiB.
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
