// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/drover-io/drover/cloud"
)

// createMany makes n machines, 8 at a time, and returns them by token.
func (s *suite) createMany(n int) map[string]cloud.Resource {
	s.Helper()
	var mu sync.Mutex
	all := map[string]cloud.Resource{}
	requests := make(chan cloud.Request)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for req := range requests {
				made, err := s.driver.Ensure(s.Context(), req)
				for tries := 0; tries < 30 && (cloud.CodeOf(err) == cloud.Throttled || cloud.CodeOf(err) == cloud.Unavailable); tries++ {
					s.sleep(max(asError(err).RetryAfter, 100*time.Millisecond))
					made, err = s.driver.Ensure(s.Context(), req)
				}
				if err != nil {
					s.Errorf("Ensure: %v", err)
					continue
				}
				mu.Lock()
				all[req.Token] = made
				mu.Unlock()
			}
		})
	}
	for range n {
		requests <- s.request(s.token())
	}
	close(requests)
	wg.Wait()
	if len(all) != n {
		s.Fatalf("created %d of %d machines", len(all), n)
	}
	return all
}

// ours lists the account, and returns what belongs to this subtest.
func (s *suite) ours() ([]cloud.Resource, error) {
	found, err := s.driver.List(s.Context())
	return slices.DeleteFunc(found, func(r cloud.Resource) bool { return r.OwnershipID != s.owner }), err
}

// list makes many machines. The listing must show every one, and cost no more calls than its pages.
func (s *suite) list() {
	made := s.createMany(s.Machines)
	var found []cloud.Resource
	s.eventually("the listing shows every machine", func() bool {
		var err error
		var total []cloud.Resource
		calls := s.net.count(func() { total, err = s.driver.List(s.Context()) }, cloud.ClassRead)
		if err != nil {
			return false
		}
		s.wantCalls("List", calls, s.Calls.List*(len(total)/s.Calls.Page+1))
		found = slices.DeleteFunc(total, func(r cloud.Resource) bool { return r.OwnershipID != s.owner })
		instances := 0
		for _, r := range found {
			if r.Kind == cloud.KindInstance {
				instances++
			}
		}
		if instances > len(made) {
			s.Fatalf("created %d machines, listed %d", len(made), instances)
		}
		return instances == len(made)
	})
	for _, r := range found {
		if r.Kind == cloud.KindInstance && r.ID != made[r.Token].ID {
			s.Errorf("token %s: created instance %s, but List returned %s", r.Token, made[r.Token].ID, r.ID)
		}
		if _, ok := made[r.Token]; !ok {
			s.Errorf("the suite did not create %s %s", r.Kind, r.ID)
		}
	}
	s.listIsCompleteOrFails()
	s.describeMany(made)
}

// listIsCompleteOrFails makes the first, the middle and the last page fail.
func (s *suite) listIsCompleteOrFails() {
	pages := s.net.count(func() { _, _ = s.driver.List(s.Context()) }, cloud.ClassRead)
	if pages < 2 {
		s.Log("the listing takes one call: no second page to inject a fault into")
	}
	for _, page := range slices.Compact([]int{0, pages / 2, pages - 1}) {
		for _, f := range networkFaults() {
			happened, err := s.during(cloud.ClassRead, page, f.do, func(ctx context.Context) error {
				_, err := s.driver.List(ctx)
				return err
			})
			if happened && err == nil {
				s.Errorf("page %d of %d, %s: no error", page+1, pages, f.name)
			}
		}
	}
}

// describeMany reads as many machines as one call may carry.
func (s *suite) describeMany(made map[string]cloud.Resource) {
	var refs []cloud.Reference
	for _, r := range made {
		if len(refs) < s.Cloud.Batch.Read {
			refs = append(refs, s.reference(r))
		}
	}
	var found []cloud.Resource
	calls := s.net.count(func() {
		var err error
		if found, err = s.driver.Describe(s.Context(), refs); err != nil {
			s.Fatalf("Describe: %v", err)
		}
	})
	s.wantCalls("Describe", calls, s.Calls.Describe*(len(found)/s.Calls.Page+1))
	instances := slices.DeleteFunc(found, func(r cloud.Resource) bool { return r.Kind != cloud.KindInstance })
	if len(instances) != len(refs) {
		s.Errorf("Describe of %d machines returned %d", len(refs), len(instances))
	}
}

// readsWithFaults makes each network fault happen to each read. No read may return an empty answer
// without an error.
func (s *suite) readsWithFaults() {
	made := s.ensure(s.request(s.token()))
	reads := map[string]func(context.Context) error{
		"List": func(ctx context.Context) error { _, err := s.driver.List(ctx); return err },
		"Describe": func(ctx context.Context) error {
			_, err := s.driver.Describe(ctx, []cloud.Reference{s.reference(made)})
			return err
		},
		"Probe":    func(ctx context.Context) error { _, err := s.driver.Probe(ctx); return err },
		"Offering": func(ctx context.Context) error { _, err := s.driver.Offering(ctx, s.Machine); return err },
	}
	if finder, able := s.driver.(*checked).Driver.(cloud.Finder); able {
		reads["Find"] = func(ctx context.Context) error { _, err := finder.Find(ctx, s.reference(made)); return err }
	}
	for name, read := range reads {
		for _, f := range networkFaults() {
			happened, err := s.during(cloud.ClassRead, 0, f.do, read)
			if !happened {
				continue // it made no call
			}
			if code := cloud.CodeOf(err); code != cloud.Unavailable && code != cloud.Unknown {
				s.Errorf("%s, %s: got %v, want Unavailable or Unknown", name, f.name, err)
			}
		}
	}
}

// beforeReadLag reports whether the driver can't yet know that a token is unused, because an
// earlier process may have sent it. It can know when a create can no longer take effect.
func (s *suite) beforeReadLag(err error) bool {
	var e *cloud.Error
	return errors.As(err, &e) && e.Code == cloud.Unavailable && e.RetryAfter > 0 && e.RetryAfter <= s.Cloud.Traits.CreateHorizon
}

// describe finds a machine by token alone and by provider ID, and nothing for an unused token.
func (s *suite) describe() {
	made := s.ensure(s.request(s.token()))
	s.wantOne(made.Token, made.ID)
	for _, refs := range [][]cloud.Reference{
		{s.reference(made)},
		{s.reference(made), {Token: s.token(), OwnershipID: s.owner}},
		{{Token: s.token(), OwnershipID: s.owner}},
	} {
		found, err := s.driver.Describe(s.Context(), refs)
		if refs[len(refs)-1].ProviderID == "" && s.beforeReadLag(err) {
			continue
		}
		if err != nil {
			s.Fatalf("Describe: %v", err)
		}
		for _, r := range found {
			if r.Token != made.Token || len(refs) == 1 && refs[0].ProviderID == "" {
				s.Errorf("Describe returned %s %s of another token, %s", r.Kind, r.ID, r.Token)
			}
		}
	}
	if found, err := s.driver.Describe(s.Context(), nil); err != nil || len(found) > 0 {
		s.Errorf("Describe without references: got %v, %v", found, err)
	}
}
