// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
)

// checked is a driver that checks, at each call, what every answer must hold.
type checked struct {
	cloud.Driver
	t       testing.TB
	secrets []string
}

func (c *checked) Probe(ctx context.Context) (cloud.Info, error) {
	c.t.Helper()
	info, err := c.Driver.Probe(ctx)
	c.error("Probe", err)
	return info, err
}

func (c *checked) Ensure(ctx context.Context, req cloud.Request) (cloud.Resource, error) {
	c.t.Helper()
	made, err := c.Driver.Ensure(ctx, req)
	c.error("Ensure", err)
	if err == nil {
		c.resource("Ensure", made)
	}
	return made, err
}

func (c *checked) List(ctx context.Context) ([]cloud.Resource, error) {
	c.t.Helper()
	found, err := c.Driver.List(ctx)
	c.error("List", err)
	c.resources("List", found, err)
	return found, err
}

func (c *checked) Describe(ctx context.Context, refs []cloud.Reference) ([]cloud.Resource, error) {
	c.t.Helper()
	found, err := c.Driver.Describe(ctx, refs)
	c.error("Describe", err)
	c.resources("Describe", found, err)
	for _, r := range found {
		if !slices.ContainsFunc(refs, func(ref cloud.Reference) bool { return ref.Token == r.Token }) {
			c.t.Errorf("Describe returned %s %s, which was not requested", r.Kind, r.ID)
		}
	}
	return found, err
}

func (c *checked) Delete(ctx context.Context, resources []cloud.Resource) []error {
	c.t.Helper()
	errs := c.Driver.Delete(ctx, resources)
	if len(errs) != len(resources) {
		c.t.Fatalf("Delete returned %d errors for %d resources", len(errs), len(resources))
	}
	for _, err := range errs {
		c.error("Delete", err)
	}
	return errs
}

func (c *checked) Offering(ctx context.Context, spec *infrav1.DroverMachineFields) (cloud.Offering, error) {
	c.t.Helper()
	offering, err := c.Driver.Offering(ctx, spec)
	c.error("Offering", err)
	return offering, err
}

// error checks that an error is typed, has a message, and holds no secret.
func (c *checked) error(method string, err error) {
	c.t.Helper()
	if err == nil {
		return
	}
	var e *cloud.Error
	var queued *cloud.Queued
	if !errors.As(err, &e) {
		if errors.As(err, &queued) {
			return
		}
		c.t.Errorf("%s: the error is %T, want *cloud.Error or *cloud.Queued: %v", method, err, err)
		return
	}
	if !slices.Contains(codes(), e.Code) {
		c.t.Errorf("%s: unknown code %q", method, e.Code)
	}
	if strings.TrimSpace(e.Message) == "" {
		c.t.Errorf("%s: %s without a message", method, e.Code)
	}
	if e.RetryAfter != 0 && e.Code != cloud.Throttled && e.Code != cloud.Unavailable && e.Code != cloud.NoCapacity {
		c.t.Errorf("%s: RetryAfter with %s", method, e.Code)
	}
	if strings.Contains(e.Message, "hotel") {
		c.t.Errorf("%s: the message quotes a body that is not the cloud's: %s", method, e.Message)
	}
	// The cause is wrapped, and code that unwraps it may log it.
	for cause := error(e); cause != nil; cause = errors.Unwrap(cause) {
		c.noSecret(method, cause.Error())
	}
}

func (c *checked) noSecret(where, text string) {
	c.t.Helper()
	for _, secret := range c.secrets {
		if strings.Contains(text, secret) {
			c.t.Errorf("%s: a secret is in %q", where, strings.ReplaceAll(text, secret, "[SECRET]"))
		}
	}
}

// resources checks that a listing holds nothing twice, and nothing together with an error.
func (c *checked) resources(method string, found []cloud.Resource, err error) {
	c.t.Helper()
	if err != nil && len(found) > 0 {
		c.t.Errorf("%s: returned %d resources together with an error, want none: a partial result must not look complete", method, len(found))
	}
	seen := map[string]bool{}
	for _, r := range found {
		key := string(r.Kind) + "/" + r.ID
		if seen[key] {
			c.t.Errorf("%s: %s was returned twice", method, key)
		}
		seen[key] = true
		c.resource(method, r)
	}
}

func (c *checked) resource(method string, r cloud.Resource) {
	c.t.Helper()
	if r.ID == "" || r.OwnershipID == "" || r.Token == "" {
		c.t.Errorf("%s: a resource lacks ID, token or ownership ID: %+v", method, r)
	}
	if (r.Kind == cloud.KindBalancer) != (r.Balancer != nil) {
		c.t.Errorf("%s: only a balancer, and each balancer, has a BalancerState: %+v", method, r)
	}
	if r.Kind == cloud.KindBalancer {
		if !slices.Contains([]cloud.State{cloud.StatePending, cloud.StateRunning, cloud.StateFailed}, r.State) || r.ProviderID != "" {
			c.t.Errorf("%s: balancer %s has state %q, provider ID %q", method, r.ID, r.State, r.ProviderID)
		}
		return
	}
	if r.Kind != cloud.KindInstance {
		if r.State != "" || r.ProviderID != "" {
			c.t.Errorf("%s: a dependant has fields of an instance: %+v", method, r)
		}
		return
	}
	if r.ProviderID == "" || len(r.ProviderID) > 512 || !slices.Contains(states(), r.State) {
		c.t.Errorf("%s: instance %s has provider ID %q, state %q", method, r.ID, r.ProviderID, r.State)
	}
}

func codes() []cloud.Code {
	return []cloud.Code{cloud.Throttled, cloud.QuotaExceeded, cloud.NoCapacity, cloud.Unauthorized, cloud.InvalidSpec,
		cloud.NotFound, cloud.Conflict, cloud.Unavailable, cloud.Unknown}
}

func states() []cloud.State {
	return []cloud.State{cloud.StatePending, cloud.StateRunning, cloud.StateStopping, cloud.StateStopped, cloud.StateFailed,
		cloud.StateTerminated}
}
