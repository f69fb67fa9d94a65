// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"slices"
	"sync"
	"time"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
)

// delete deletes machines in one batch, repeats that while they end and after they are gone, and
// checks that no other machine is deleted.
func (s *suite) delete() {
	var batch []cloud.Resource
	var refs []cloud.Reference
	for _, made := range s.createMany(min(5, s.Cloud.Batch.Delete)) {
		batch = append(batch, made)
		refs = append(refs, s.reference(made))
	}
	survivor := s.ensure(s.request(s.token()))
	s.sleep(s.Cloud.Traits.ReadLag)
	everything, err := s.driver.Describe(s.Context(), refs)
	if err != nil {
		s.Fatalf("Describe: %v", err)
	}
	calls := s.net.count(func() {
		for i, err := range s.driver.Delete(s.Context(), batch) {
			if err != nil {
				s.Errorf("Delete of %s: %v", batch[i].ID, err)
			}
		}
	})
	s.wantCalls("Delete of a batch", calls, s.Calls.Delete)
	for _, err := range s.driver.Delete(s.Context(), batch) {
		if err != nil {
			s.Errorf("Delete of a resource that is being deleted: %v", err)
		}
	}
	s.untilGone(s.Context(), refs)
	for batch := range slices.Chunk(everything, s.Cloud.Batch.Delete) {
		for i, err := range s.driver.Delete(s.Context(), batch) {
			if err != nil {
				s.Errorf("Delete of %s %s, which is gone: %v", batch[i].Kind, batch[i].ID, err)
			}
		}
	}
	// Whatever the read lag: a live read after the end shows no machine again.
	found, err := s.driver.Describe(s.Context(), refs)
	if err != nil {
		s.Errorf("Describe: %v", err)
	}
	for _, r := range found {
		if r.State != cloud.StateTerminated {
			s.Errorf("deleted, but Describe returns %+v", r)
		}
	}
	s.wantOne(survivor.Token, survivor.ID)
	if errs := s.driver.Delete(s.Context(), nil); len(errs) != 0 {
		s.Errorf("Delete without resources: %v", errs)
	}
}

// deleteWithFaults makes each network fault happen to the delete. It must return an error for each
// resource, and do no harm.
func (s *suite) deleteWithFaults() {
	for _, f := range networkFaults() {
		made := s.ensure(s.request(s.token()))
		happened, err := s.during(cloud.ClassDelete, 0, f.do, func(ctx context.Context) error {
			return s.driver.Delete(ctx, []cloud.Resource{made})[0]
		})
		if !happened {
			s.Errorf("%s: Delete made no call of class delete", f.name)
		}
		if code := cloud.CodeOf(err); code != cloud.Unavailable && code != cloud.Unknown {
			s.Errorf("%s: got %v, want Unavailable or Unknown", f.name, err)
		}
		s.untilGone(s.Context(), []cloud.Reference{s.reference(made)})
	}
}

// withoutToken checks that a reference without a token finds nothing, whatever else it says: what
// it found would be deleted. Nor is a balancer deleted without one.
func (s *suite) withoutToken() {
	made := s.ensure(s.request(s.token()))
	s.sleep(s.Cloud.Traits.ReadLag)
	for _, ref := range []cloud.Reference{{}, {OwnershipID: s.owner}, {ProviderID: made.ProviderID},
		{OwnershipID: s.owner, ProviderID: made.ProviderID}} {
		found, err := s.driver.Describe(s.Context(), []cloud.Reference{ref})
		if code := cloud.CodeOf(err); len(found) > 0 || err != nil && code != cloud.InvalidSpec {
			s.Errorf("Describe of %+v: got %+v, %v, want nothing or InvalidSpec", ref, found, err)
		}
	}
	if _, able := s.driver.(*checked).Driver.(cloud.Balancer); able {
		// A cloud that knows balancers by their IDs finds none.
		if err := s.driver.Delete(s.Context(), []cloud.Resource{{Kind: cloud.KindBalancer, ID: made.ID, OwnershipID: s.owner}})[0]; err != nil {
			s.wantCode(err, cloud.InvalidSpec)
		}
	}
	s.wantOne(made.Token, made.ID)
	s.untilGone(s.Context(), []cloud.Reference{s.reference(made)})
}

// foreign checks that resources of others are neither listed nor touched.
func (s *suite) foreign() {
	if s.Foreign == nil {
		s.omitCredential("a foreign instance")
		return
	}
	alive := s.Foreign(s.T)
	made := s.ensure(s.request(s.token()))
	found, err := s.ours()
	if err != nil {
		s.Fatalf("List: %v", err)
	}
	for _, r := range found {
		if r.Token != made.Token {
			s.Errorf("List returned %+v, which the suite did not create", r)
		}
	}
	s.untilGone(s.Context(), []cloud.Reference{s.reference(made)})
	if !alive() {
		s.Error("the foreign instance was changed")
	}
}

// context ends the context before and during each method. No call may begin after that, and the
// method must return soon.
func (s *suite) context() {
	made, doomed := s.ensure(s.request(s.token())), s.ensure(s.request(s.token()))
	methods := map[string]func(ctx context.Context) error{
		"Probe":  func(ctx context.Context) error { _, err := s.driver.Probe(ctx); return err },
		"Ensure": func(ctx context.Context) error { _, err := s.driver.Ensure(ctx, s.request(s.token())); return err },
		"List":   func(ctx context.Context) error { _, err := s.driver.List(ctx); return err },
		"Describe": func(ctx context.Context) error {
			_, err := s.driver.Describe(ctx, []cloud.Reference{s.reference(made)})
			return err
		},
		"Delete":   func(ctx context.Context) error { return s.driver.Delete(ctx, []cloud.Resource{doomed})[0] },
		"Offering": func(ctx context.Context) error { _, err := s.driver.Offering(ctx, s.Machine); return err },
	}
	for name, method := range methods {
		ended, cancel := context.WithCancel(s.Context())
		cancel()
		var err error
		if calls := s.net.count(func() { err = method(ended) }); calls != 0 {
			s.Errorf("%s made %d calls after its context had ended", name, calls)
		}
		if err != nil || name != "Offering" { // an Offering may be known without a call
			s.wantCode(err, cloud.Unavailable)
		}
		s.endDuring(name, method)
	}
	s.wantOne(made.Token, made.ID)
	if _, err := s.driver.Offering(s.Context(), &infrav1.DroverMachineFields{}); cloud.CodeOf(err) != cloud.InvalidSpec {
		s.Errorf("Offering without the cloud's fields: got %v, want InvalidSpec", err)
	}
}

// endDuring ends the context while a call hangs, by cancellation and by deadline.
func (s *suite) endDuring(name string, method func(context.Context) error) {
	for _, class := range []cloud.Class{cloud.ClassCreate, cloud.ClassDelete, cloud.ClassRead} {
		for how, begin := range map[string]func(context.Context) (context.Context, context.CancelFunc){
			"canceled": context.WithCancel,
			"deadline": withExpiry,
		} {
			ctx, end := begin(s.Context())
			happened := s.net.inject(fault{class: class, do: hang, giveUp: end})
			done := make(chan error, 1)
			go func() { done <- method(ctx) }()
			var err error
			select {
			case err = <-done:
			case <-time.After(s.Timeout):
				s.Fatalf("%s does not return after its context was %s", name, how)
			}
			end()
			if happened() && cloud.CodeOf(err) != cloud.Unavailable {
				s.Errorf("%s, %s during a call: got %v, want Unavailable", name, how, err)
			}
		}
	}
}

// withExpiry returns a context whose deadline passes when the function is called: a real deadline
// passes between two calls on a slow computer.
func withExpiry(parent context.Context) (context.Context, context.CancelFunc) {
	done := make(chan struct{})
	return expiry{parent, done, time.Now().Add(time.Hour)}, sync.OnceFunc(func() { close(done) })
}

type expiry struct {
	context.Context
	done     chan struct{}
	deadline time.Time
}

func (e expiry) Deadline() (time.Time, bool) { return e.deadline, true }
func (e expiry) Done() <-chan struct{}       { return e.done }

func (e expiry) Err() error {
	select {
	case <-e.done:
		return context.DeadlineExceeded
	default:
		return nil
	}
}
