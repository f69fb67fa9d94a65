// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"context"
	"slices"
	"sort"
	"strings"
	"sync"

	"github.com/drover-io/drover/cloud"
)

// create makes a machine and waits until it runs.
func (s *suite) create() {
	req := s.request(s.token())
	var made cloud.Resource
	s.wantCalls("Ensure", s.net.count(func() { made = s.ensure(req) }), s.Calls.Create)
	s.eventually("the machine runs", func() bool {
		found, err := s.driver.Describe(s.Context(), []cloud.Reference{s.reference(made)})
		i := slices.IndexFunc(found, func(r cloud.Resource) bool { return r.ID == made.ID && r.Kind == cloud.KindInstance })
		if err != nil || i < 0 || found[i].State != cloud.StateRunning {
			return false
		}
		running := found[i]
		if running.ProviderID != made.ProviderID || running.OwnershipID != s.owner || running.Token != req.Token {
			s.Errorf("created as %+v, running as %+v", made, running)
		}
		return len(running.Addresses) > 0
	})
}

// createInFailureDomain makes a machine in each failure domain that its fields allow.
func (s *suite) createInFailureDomain() {
	info, err := s.driver.Probe(s.Context())
	if err != nil {
		s.Fatalf("Probe: %v", err)
	}
	domains := info.FailureDomains
	if placer, able := s.driver.(*checked).Driver.(cloud.Placer); able {
		own, err := placer.FailureDomains(s.Context(), s.Machine)
		if err != nil || slices.Contains(own, "") {
			s.Fatalf("FailureDomains: %q, %v", own, err)
		}
		if len(own) > 0 {
			domains = own
		}
	}
	for _, domain := range domains {
		req := s.request(s.token())
		req.FailureDomain = domain
		if made := s.ensure(req); made.FailureDomain != domain {
			s.Errorf("requested failure domain %q, got %q", domain, made.FailureDomain)
		}
	}
}

// createIsIdempotent repeats a create with the same request, and with a changed one.
func (s *suite) createIsIdempotent() {
	req := s.request(s.token())
	made := s.ensure(req)
	s.wantCalls("Ensure of what exists", s.net.count(func() {
		if again := s.ensure(req); again.ID != made.ID {
			s.Errorf("Ensure returned instance %s, then %s for the same token", made.ID, again.ID)
		}
	}), s.Calls.Again)
	other := s.request(req.Token)
	if other.UserData = []byte("#cloud-config\nhostname: other\n"); s.Cloud.Traits.Named {
		other.Name = req.Name
	} else {
		other.Name = "another-name"
	}
	if again := s.ensure(other); again.ID != made.ID {
		s.Errorf("Ensure returned instance %s, then %s for a changed request with the same token", made.ID, again.ID)
	}
	s.wantOne(req.Token, made.ID)
}

// oneName makes two machines of one name: at the same time, and one after the other. Only where the
// name is the identity, the second one waits until the name is free again. It is then not taken for
// the first one.
func (s *suite) oneName() {
	named := s.Cloud.Traits.Named
	first, second := s.request(s.token()), s.request(s.token())
	second.Name = first.Name
	made := s.ensure(first)
	if named {
		_, err := s.driver.Ensure(s.Context(), second)
		s.wantCode(err, cloud.Conflict)
		if found := s.instances(second.Token); len(found) > 0 {
			s.Errorf("Ensure failed, but created %+v", found)
		}
		s.wantOne(first.Token, made.ID)
	} else if other := s.ensure(second); other.ID == made.ID {
		s.Errorf("two machines of one name have the same instance %s", made.ID)
	}
	s.untilGone(s.Context(), []cloud.Reference{s.reference(made)})
	next := s.ensure(second)
	for _, r := range s.instancesOf(s.reference(made)) {
		if r.Token != first.Token || r.State != cloud.StateTerminated {
			s.Errorf("the first machine is gone, but Describe returns %+v", r)
		}
	}
	if named {
		_, err := s.driver.Ensure(s.Context(), first)
		s.wantCode(err, cloud.Conflict)
	}
	if next.ID != made.ID { // otherwise the cloud can't tell them apart
		if err := s.driver.Delete(s.Context(), []cloud.Resource{made})[0]; err != nil {
			s.Errorf("Delete of the first machine, which is gone: %v", err)
		}
	}
	s.wantOne(second.Token, next.ID)
	if found := s.instances(second.Token); found[0].State != cloud.StatePending && found[0].State != cloud.StateRunning {
		s.Errorf("the second machine was deleted with the first one: %+v", found[0])
	}
}

// acceptedWithoutCapacity makes the endpoint accept a create, and then have no capacity for it. The
// instance that is left says so; if none is left, Ensure does.
func (s *suite) acceptedWithoutCapacity() {
	if s.FailsLater == nil {
		s.omitCredential("creates that are accepted and fail")
		return
	}
	req := s.request(s.token())
	undo := s.FailsLater(s.T)
	made, err := s.driver.Ensure(s.Context(), req)
	var failed cloud.Resource
	s.eventually("the create fails", func() bool {
		if err != nil { // there is no instance, or none yet
			if cloud.CodeOf(err) == cloud.Unavailable {
				made, err = s.driver.Ensure(s.Context(), req)
			}
			return cloud.CodeOf(err) == cloud.NoCapacity
		}
		found, readErr := s.driver.Describe(s.Context(), []cloud.Reference{s.reference(made)})
		i := slices.IndexFunc(found, func(r cloud.Resource) bool { return r.ID == made.ID && r.Kind == cloud.KindInstance })
		if readErr != nil || i < 0 {
			return false
		}
		failed = found[i]
		return failed.State == cloud.StateFailed || failed.State == cloud.StateTerminated
	})
	undo()
	if err != nil {
		s.wantOne(s.ensure(req).Token, "") // nothing was left, so the same machine can still be made
		return
	}
	if failed.Code != cloud.NoCapacity || failed.Reason == "" {
		s.Errorf("failed for lack of capacity, but got code %q and reason %q", failed.Code, failed.Reason)
	}
	if again := s.ensure(req); again.ID != made.ID {
		s.Errorf("Ensure made instance %s beside the failed one, %s", again.ID, made.ID)
	}
	s.untilGone(s.Context(), []cloud.Reference{s.reference(made)})
}

// createInParallel sends the same request several times at once, as two managers may do.
func (s *suite) createInParallel() {
	req := s.request(s.token())
	ids := make([]string, 8)
	var wg sync.WaitGroup
	for i := range ids {
		wg.Go(func() {
			if made, err := s.driver.Ensure(s.Context(), req); err == nil {
				ids[i] = made.ID
			}
		})
	}
	wg.Wait()
	made := s.ensure(req)
	for _, id := range ids {
		if id != "" && id != made.ID {
			s.Errorf("parallel calls of Ensure created instances %s and %s", id, made.ID)
		}
	}
	s.wantOne(req.Token, made.ID)
}

// createAfterLostAnswer makes each network fault happen to the create, and repeats the create.
func (s *suite) createAfterLostAnswer() {
	for _, f := range networkFaults() {
		req := s.request(s.token())
		happened, err := s.during(cloud.ClassCreate, 0, f.do, func(ctx context.Context) error {
			_, err := s.driver.Ensure(ctx, req)
			return err
		})
		if !happened {
			s.Errorf("%s: Ensure made no call of class create", f.name)
		}
		if code := cloud.CodeOf(err); code != cloud.Unavailable && code != cloud.Unknown {
			s.Errorf("%s: got %v; the outcome is unknown, so the code must be Unavailable or Unknown", f.name, err)
		}
		made := s.ensure(req)
		s.wantOne(req.Token, made.ID)
	}
}

// terminatedIsNotRecreated repeats the create of a terminated instance. Ensure must return that
// instance, and not make a new one.
func (s *suite) terminatedIsNotRecreated() {
	req := s.request(s.token())
	made := s.ensure(req)
	s.untilGone(s.Context(), []cloud.Reference{s.reference(made)})
	found := s.instances(req.Token)
	if len(found) == 0 {
		s.Log("the cloud forgets terminated instances at once: Ensure can't know of them")
		return
	}
	if again := s.ensure(req); again.ID != made.ID || again.State != cloud.StateTerminated {
		s.Errorf("Ensure created terminated instance %s again, as %s (%s)", made.ID, again.ID, again.State)
	}
}

// names makes machines with names as Kubernetes allows them: up to 253 characters, with dots. Every
// cloud must accept them, however it changes them.
func (s *suite) names() {
	long := strings.Repeat("a", 242) + ".example.b"
	seen := map[string]string{}
	for _, name := range []string{"x", "0", "a.b.c", "a-b-c", "UPPER", long, long + "c"} {
		req := s.request(s.token())
		req.Name = name
		made := s.ensure(req)
		if other, ok := seen[made.ID]; ok {
			s.Errorf("names %q and %q lead to the same instance", name, other)
		}
		seen[made.ID] = name
	}
}

// largest returns how many bytes of data the row accepts as user data.
func (s *suite) largest(data []byte) int {
	n := sort.Search(len(data), func(n int) bool { return s.Cloud.CheckUserData(data[:n+1]) != nil })
	if n == 0 || n == len(data) {
		s.Fatalf("CheckUserData accepts %d of %d bytes", n, len(data))
	}
	return n
}

// userData checks that user data may be as large as the row says, and hold any bytes. More must be
// refused before anything is made.
func (s *suite) userData() {
	req := s.request(s.token())
	anything, long := bytes.Repeat([]byte("\x00\xff\n"), 1<<20), bytes.Repeat([]byte("a"), 3<<20)
	req.UserData = anything[:s.largest(anything)]
	s.ensure(req)
	req = s.request(s.token())
	req.UserData = long[:s.largest(long)+1]
	_, err := s.driver.Ensure(s.Context(), req)
	s.wantCode(err, cloud.InvalidSpec)
	if found := s.instances(req.Token); len(found) > 0 {
		s.Errorf("Ensure failed, but created %+v", found)
	}
}

// refused checks that machines which can't be made get their code, and leave nothing behind.
func (s *suite) refused() {
	for name, refused := range s.Refused {
		req := s.request(s.token())
		req.Spec, req.FailureDomain = refused.Machine, refused.FailureDomain
		_, err := s.driver.Ensure(s.Context(), req)
		if cloud.CodeOf(err) != refused.Code || err == nil {
			s.Errorf("%s: got %v, want %s", name, err, refused.Code)
		}
		if found := s.instances(req.Token); len(found) > 0 {
			s.Errorf("%s: Ensure failed, but created %+v", name, found)
		}
	}
}

// injected makes the endpoint itself return errors.
func (s *suite) injected() {
	for _, code := range codes() {
		inject := s.Inject[code]
		if inject == nil {
			continue
		}
		undo := inject(s.T)
		req := s.request(s.token())
		_, err := s.driver.Ensure(s.Context(), req)
		undo()
		if cloud.CodeOf(err) != code || err == nil {
			s.Errorf("%s: got %v", code, err)
		}
		if code == cloud.Throttled && asError(err) != nil && asError(err).RetryAfter < 0 {
			s.Errorf("Throttled with RetryAfter %s", asError(err).RetryAfter)
		}
		s.wantOne(s.ensure(req).Token, "")
	}
	if s.Inject == nil {
		s.omitCredential("injected errors")
	}
}
