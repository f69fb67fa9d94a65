// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"slices"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/preflight"
)

// dryRun tries the machine, which can be made, and those that can't. Nothing is made of any.
func (s *suite) dryRun() {
	driver, able := s.driver.(*checked).Driver.(preflight.DryRunner)
	if !able {
		s.omitCredential("dry runs")
		return
	}
	if err := driver.DryRun(s.Context(), s.request(s.token())); err != nil {
		s.Errorf("DryRun of a machine that can be made: %v", err)
	}
	for name, refused := range s.Refused {
		req := s.request(s.token())
		req.Spec, req.FailureDomain = refused.Machine.DeepCopy(), refused.FailureDomain
		err := driver.DryRun(s.Context(), req)
		s.driver.(*checked).error("DryRun", err)
		if code := cloud.CodeOf(err); code != refused.Code && (refused.OfferingToo || code != "") {
			s.Errorf("DryRun of %s: got %v, want %s", name, err, refused.Code)
		}
	}
	s.sleep(s.Cloud.Traits.ReadLag)
	found, err := s.driver.List(s.Context())
	if err != nil {
		s.Fatalf("List: %v", err)
	}
	if i := slices.IndexFunc(found, func(r cloud.Resource) bool { return r.OwnershipID == s.owner }); i >= 0 {
		s.Errorf("a dry run made %+v", found[i])
	}
}
