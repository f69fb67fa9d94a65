// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"crypto/rand"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drover-io/drover/cloud"
)

// Run tests a cloud's driver. Each subtest uses its own ownership ID and leaves nothing behind, so
// the suite can run in an account that others use. Most subtests run concurrently. Those run alone
// that change what all subtests use, that count it, or that count calls which are repeated until
// something is done. The subtests end with the test that calls Run, not when Run returns.
func Run(t *testing.T, target Target) {
	target.Calls = target.Calls.withDefaults()
	if target.Machines == 0 {
		target.Machines = 250
	}
	if target.Timeout == 0 {
		target.Timeout = time.Minute
	}
	if target.Transport == nil {
		transport := http.DefaultTransport.(*http.Transport).Clone()
		t.Cleanup(transport.CloseIdleConnections)
		target.Transport = transport
	}
	for _, test := range subtests() {
		t.Run(test.name, func(t *testing.T) {
			if !test.alone {
				t.Parallel()
			}
			test.run(newSuite(t, target))
		})
	}
}

// subtest is one test of the suite. The documentation of package cloud names it where it states the
// rule.
type subtest struct {
	name  string
	alone bool
	run   func(*suite)
}

func subtests() []subtest {
	const alone, together = true, false
	return []subtest{
		{"row", alone, (*suite).row},
		{"credentials", alone, (*suite).credentials}, // makes the cloud's first machine, which may cost more than others
		{"create", alone, (*suite).create},
		{"create is idempotent", alone, (*suite).createIsIdempotent},
		{"injected errors", alone, (*suite).injected},
		{"create in progress", alone, (*suite).createInProgress},
		{"accepted without capacity", alone, (*suite).acceptedWithoutCapacity},
		{"permissions that filter", alone, (*suite).permissions},
		{"find", alone, (*suite).find},
		{"list", alone, (*suite).list},
		{"delete", alone, (*suite).delete},
		{"balancer", alone, (*suite).balancer},
		{"balancer after lost response", together, (*suite).balancerAfterLostResponse},
		{"balancer in parallel", together, (*suite).balancerInParallel},
		{"probe", together, (*suite).probe},
		{"place", together, (*suite).place},
		{"turn after deadline", together, (*suite).turnAfterDeadline},
		{"dead connection", together, (*suite).deadConnection},
		{"offering", together, (*suite).offering},
		{"create in failure domain", together, (*suite).createInFailureDomain},
		{"create in parallel", together, (*suite).createInParallel},
		{"create after lost response", together, (*suite).createAfterLostAnswer},
		{"terminated is not recreated", together, (*suite).terminatedIsNotRecreated},
		{"names", together, (*suite).names},
		{"one name", together, (*suite).oneName},
		{"user data", together, (*suite).userData},
		{"rejected requests", together, (*suite).refused},
		{"reads with network faults", together, (*suite).readsWithFaults},
		{"describe", together, (*suite).describe},
		{"without a token", together, (*suite).withoutToken},
		{"console", together, (*suite).console},
		{"dry run", together, (*suite).dryRun},
		{"delete with network faults", together, (*suite).deleteWithFaults},
		{"foreign resources", together, (*suite).foreign},
		{"context", together, (*suite).context},
	}
}

// suite is the state of one subtest.
type suite struct {
	*testing.T
	Target
	net    *network
	driver cloud.Driver
	// owner is the ownership ID of all that this subtest makes.
	owner string
}

func newSuite(t *testing.T, target Target) *suite {
	t.Helper()
	s := &suite{
		T: t, Target: target,
		net:   &network{shared: target.Transport, t: t, calls: map[cloud.Class]int{}},
		owner: "conformance-" + strings.ToLower(rand.Text()),
	}
	s.driver = s.newDriver(target.Credentials)
	t.Cleanup(s.cleanUp)
	return s
}

// newDriver makes a driver whose answers are all checked.
func (s *suite) newDriver(credentials map[string][]byte) cloud.Driver {
	s.Helper()
	c := &checked{t: s.T}
	for _, values := range []map[string][]byte{s.Credentials, s.BadCredentials, credentials} {
		for _, value := range values {
			c.secrets = append(c.secrets, string(value))
		}
	}
	driver, err := s.Cloud.New(cloud.Config{Account: s.Account, Credentials: credentials, Connect: s.net.connect})
	c.error("New", err)
	if err != nil {
		s.Fatalf("New: %v", err)
	}
	c.Driver = driver
	return c
}

// cleanUp deletes all that the subtest made, and checks that nothing is left.
func (s *suite) cleanUp() {
	// The test's own context has ended by now.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.Context()), 2*s.Timeout)
	defer cancel()
	s.net.inject(fault{})()
	s.untilGone(ctx, nil)
	if s.Remaining == nil {
		return
	}
	s.eventually("no resource is left at the endpoint", func() bool { return len(s.Remaining(s.T, s.owner)) == 0 })
}

// untilGone deletes what the references name, or all that the subtest made, until it is gone.
func (s *suite) untilGone(ctx context.Context, refs []cloud.Reference) {
	s.Helper()
	s.sleep(s.Cloud.Traits.ReadLag) // what was just made may not be shown yet
	s.eventually("instances and their dependants are gone", func() bool { return s.deleteStep(ctx, refs) == 0 })
}

// deleteStep takes one step of a deletion, as fleet.Account does: first instances, then their
// dependants once they are gone. It returns how many resources are not gone.
func (s *suite) deleteStep(ctx context.Context, refs []cloud.Reference) int {
	s.Helper()
	var found []cloud.Resource
	var err error
	if refs == nil {
		found, err = s.driver.List(ctx)
	} else {
		found, err = s.driver.Describe(ctx, refs)
	}
	if err != nil {
		return 1
	}
	var instances, dependants []cloud.Resource
	for _, r := range found {
		switch {
		case r.OwnershipID != s.owner || r.State == cloud.StateTerminated:
		case r.Kind == cloud.KindInstance:
			instances = append(instances, r)
		default:
			dependants = append(dependants, r)
		}
	}
	now := instances
	if len(instances) == 0 {
		now = dependants
	}
	for batch := range slices.Chunk(now, s.Cloud.Batch.Delete) {
		s.driver.Delete(ctx, batch)
	}
	return len(instances) + len(dependants)
}

// during calls step while a fault happens to one of its calls: of the class, after skip others.
func (s *suite) during(class cloud.Class, skip int, do effect, step func(context.Context) error) (happened bool, err error) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), s.Timeout)
	defer cancel()
	end := s.net.inject(fault{class: class, skip: skip, do: do, giveUp: cancel})
	err = step(ctx)
	return end(), err
}

// token returns a new token for a machine.
func (s *suite) token() string { return strings.ToLower(rand.Text()) }

func (s *suite) request(token string) cloud.Request {
	return cloud.Request{
		Token: token, OwnershipID: s.owner, Namespace: "conformance", Name: "m-" + token[:8],
		UserData: []byte("#cloud-config\n"), Spec: s.Machine.DeepCopy(),
	}
}

func (s *suite) reference(made cloud.Resource) cloud.Reference {
	return cloud.Reference{Token: made.Token, OwnershipID: made.OwnershipID, ProviderID: made.ProviderID}
}

// ensure makes a machine, and retries Throttled, Unavailable and Unknown.
func (s *suite) ensure(req cloud.Request) cloud.Resource {
	s.Helper()
	var made cloud.Resource
	s.eventually("Ensure creates the machine", func() bool {
		var err error
		made, err = s.driver.Ensure(s.Context(), req)
		switch cloud.CodeOf(err) {
		case "":
			return true
		case cloud.Throttled, cloud.Unavailable, cloud.Unknown:
			return false
		default:
			s.Fatalf("Ensure: %v", err)
			return false
		}
	})
	if made.Kind != cloud.KindInstance || made.Token != req.Token || made.OwnershipID != req.OwnershipID {
		s.Fatalf("Ensure returned %+v, want token %s and ownership ID %s", made, req.Token, req.OwnershipID)
	}
	return made
}

// instances returns the live and the terminated instances with the token, by a live read after the
// read lag.
func (s *suite) instances(token string) []cloud.Resource {
	s.Helper()
	return s.instancesOf(cloud.Reference{Token: token, OwnershipID: s.owner})
}

func (s *suite) instancesOf(ref cloud.Reference) []cloud.Resource {
	s.Helper()
	if s.Cloud.Traits.ReadLag > 0 {
		s.sleep(s.Cloud.Traits.ReadLag) // a second instance must not hide behind the lag
	}
	refs := []cloud.Reference{ref}
	found, err := s.driver.Describe(s.Context(), refs)
	if s.beforeReadLag(err) {
		s.sleep(s.Cloud.Traits.CreateHorizon)
		found, err = s.driver.Describe(s.Context(), refs)
	}
	if err != nil {
		s.Fatalf("Describe: %v", err)
	}
	return slices.DeleteFunc(found, func(r cloud.Resource) bool { return r.Kind != cloud.KindInstance })
}

// wantOne checks that there is exactly one instance for the token.
func (s *suite) wantOne(token, id string) {
	s.Helper()
	found := s.instances(token)
	if len(found) != 1 || id != "" && found[0].ID != id {
		s.Errorf("want one instance %s with the token, found %+v", id, found)
	}
}

// wantCode checks that an error has one of the codes.
func (s *suite) wantCode(err error, want ...cloud.Code) {
	s.Helper()
	if !slices.Contains(want, cloud.CodeOf(err)) || err == nil {
		s.Errorf("got %v, want %v", err, want)
	}
}

// wantCalls checks that a step made no more wire calls than promised.
func (s *suite) wantCalls(step string, got, most int) {
	s.Helper()
	if got > most {
		s.Errorf("%s made %d calls, want at most %d; the last ones were %q", step, got, most, s.net.last(got))
	}
}

// eventually waits until ok, for at most the target's Timeout.
func (s *suite) eventually(what string, ok func() bool) {
	s.Helper()
	deadline := time.Now().Add(s.Timeout)
	for wait := 10 * time.Millisecond; !ok(); wait = min(2*wait, 2*time.Second) {
		if time.Now().After(deadline) {
			s.Fatalf("timed out after %s: %s", s.Timeout, what)
		}
		s.sleep(wait)
	}
}

func (s *suite) sleep(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	<-timer.C
}

// omitCredential logs what could not be tested for lack of a hook.
func (s *suite) omitCredential(what string) {
	s.Logf("skipped: %s (the target has no hook for it)", what)
}

func asError(err error) *cloud.Error {
	var e *cloud.Error
	errors.As(err, &e)
	return e
}
