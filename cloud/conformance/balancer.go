// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"sync"

	"github.com/drover-io/drover/cloud"
)

// balancerPort is the port of the suite's balancers.
const balancerPort = 6443

// balancer makes a balancer, changes its targets, and deletes it. A deleted one is not made again.
func (s *suite) balancer() {
	driver, able := s.balancerDriver()
	if !able {
		return
	}
	one, two := s.target(), s.target()
	req := s.balancerRequest(one)
	s.wantCalls("EnsureBalancer", s.net.count(func() { s.ensureBalancer(driver, req) }), s.Calls.Balancer)
	made := s.balancerHas(driver, req)
	req.Recorded = true
	for _, targets := range [][]string{{one, two}, {two}, nil, {one}} {
		slices.Sort(targets)
		req.Targets = targets
		s.wantCalls("EnsureBalancer with other targets",
			s.net.count(func() { s.ensureBalancer(driver, req) }, cloud.ClassCreate, cloud.ClassDelete), s.Calls.Targets)
		if now := s.balancerHas(driver, req); now.ID != made.ID || now.Balancer.Address != made.Balancer.Address {
			s.Errorf("other targets made balancer %+v of %+v", now, made)
		}
	}
	s.listed(made)
	ref := cloud.Reference{Token: req.Token, OwnershipID: s.owner}
	s.untilGone(s.Context(), []cloud.Reference{ref})
	_, err := driver.EnsureBalancer(s.Context(), req)
	s.wantCode(err, cloud.NotFound)
	if found, err := s.driver.Describe(s.Context(), []cloud.Reference{ref}); err != nil || len(found) > 0 {
		s.Errorf("a balancer that is gone was made again: %+v, %v", found, err)
	}
	req.Token = s.token()
	_, err = driver.EnsureBalancer(s.Context(), req)
	s.wantCode(err, cloud.NotFound)
}

// balancerAfterLostResponse makes each network fault happen to the create and to a change of the
// targets, and repeats them.
func (s *suite) balancerAfterLostResponse() {
	driver, able := s.balancerDriver()
	if !able {
		return
	}
	target := s.target()
	for _, f := range networkFaults() {
		req := s.balancerRequest(target)
		for _, class := range []cloud.Class{cloud.ClassCreate, cloud.ClassDelete} {
			happened, err := s.during(class, 0, f.do, func(ctx context.Context) error {
				_, err := driver.EnsureBalancer(ctx, req)
				return err
			})
			if !happened {
				s.Errorf("%s: EnsureBalancer made no call of class %s", f.name, class)
			}
			if code := cloud.CodeOf(err); code != cloud.Unavailable && code != cloud.Unknown {
				s.Errorf("%s: got %v; the outcome is unknown, so the code must be Unavailable or Unknown", f.name, err)
			}
			s.balancerHas(driver, req)
			req.Recorded, req.Targets = true, nil
		}
	}
}

// balancerInParallel sends the same request several times at once, as two managers may do.
func (s *suite) balancerInParallel() {
	driver, able := s.balancerDriver()
	if !able {
		return
	}
	req := s.balancerRequest(s.target())
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() { _, _ = driver.EnsureBalancer(s.Context(), req) })
	}
	wg.Wait()
	s.balancerHas(driver, req)
}

func (s *suite) balancerDriver() (cloud.Balancer, bool) {
	driver, able := s.driver.(*checked).Driver.(cloud.Balancer)
	if !able {
		s.Log("the driver makes no balancers")
	}
	return driver, able
}

// target makes a machine and returns its address.
func (s *suite) target() (address string) {
	s.Helper()
	made := s.ensure(s.request(s.token()))
	s.eventually("the machine has an address", func() bool {
		for _, r := range s.instances(made.Token) {
			for _, a := range r.Addresses {
				if a.Type == "InternalIP" {
					address = a.Address
				}
			}
		}
		return address != ""
	})
	return address
}

func (s *suite) balancerRequest(targets ...string) cloud.BalancerRequest {
	token := s.token()
	return cloud.BalancerRequest{
		Token: token, OwnershipID: s.owner, Namespace: "conformance", Name: "b-" + token[:8], Port: balancerPort, Targets: targets,
		Spec: s.Balancer,
	}
}

// ensureBalancer takes one step, which must succeed; or several, while the driver returns
// Unavailable or Queued.
func (s *suite) ensureBalancer(driver cloud.Balancer, req cloud.BalancerRequest) {
	s.Helper()
	var made cloud.Resource
	s.eventually("EnsureBalancer returns the balancer", func() bool {
		var err error
		var queued *cloud.Queued
		made, err = driver.EnsureBalancer(s.Context(), req)
		if err != nil && cloud.CodeOf(err) != cloud.Unavailable && !errors.As(err, &queued) {
			s.Fatalf("EnsureBalancer: %v", err)
		}
		return err == nil
	})
	(&checked{t: s.T}).resource("EnsureBalancer", made)
	if made.Kind != cloud.KindBalancer || made.Token != req.Token || made.OwnershipID != req.OwnershipID {
		s.Fatalf("EnsureBalancer returned %+v, want token %s and ownership ID %s", made, req.Token, req.OwnershipID)
	}
}

// balancerHas repeats the request until a live read shows one running balancer as requested.
func (s *suite) balancerHas(driver cloud.Balancer, req cloud.BalancerRequest) (balancer cloud.Resource) {
	s.Helper()
	s.eventually("the balancer is as requested", func() bool {
		if _, err := driver.EnsureBalancer(s.Context(), req); err != nil {
			return false
		}
		s.sleep(s.Cloud.Traits.ReadLag)
		found, err := s.driver.Describe(s.Context(), []cloud.Reference{{Token: req.Token, OwnershipID: s.owner}})
		found = slices.DeleteFunc(found, func(r cloud.Resource) bool { return r.Kind != cloud.KindBalancer })
		if len(found) > 1 {
			s.Fatalf("several balancers have the token: %+v", found)
		}
		if err != nil || len(found) == 0 {
			return false
		}
		balancer = found[0]
		var targets []string
		for _, t := range balancer.Balancer.Targets {
			targets = append(targets, t.Address)
		}
		return balancer.State == cloud.StateRunning && balancer.Balancer.Address != "" && balancer.Balancer.Port == req.Port &&
			reflect.DeepEqual(targets, slices.Clone(req.Targets))
	})
	return balancer
}

// listed checks that the listing shows the balancer, with its tags.
func (s *suite) listed(want cloud.Resource) {
	s.Helper()
	found, err := s.ours()
	if err != nil {
		s.Fatalf("List: %v", err)
	}
	if !slices.ContainsFunc(found, func(r cloud.Resource) bool {
		return r.Kind == want.Kind && r.ID == want.ID && r.Token == want.Token && reflect.DeepEqual(r.Balancer.Address, want.Balancer.Address)
	}) {
		s.Errorf("List does not return %+v", want)
	}
}
