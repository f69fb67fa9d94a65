// SPDX-License-Identifier: Apache-2.0

package conformance

import "github.com/drover-io/drover/cloud"

// console reads the console of a running machine, and then that of a deleted one.
func (s *suite) console() {
	driver, able := s.driver.(*checked).Driver.(cloud.Console)
	if !able {
		s.omitCredential("consoles")
		return
	}
	made := s.ensure(s.request(s.token()))
	var err error
	calls := s.net.count(func() { _, err = driver.Console(s.Context(), made) }, cloud.ClassRead)
	if err != nil {
		s.Errorf("Console: %v", err)
	}
	s.wantCalls("Console", calls, s.Calls.Console)
	s.untilGone(s.Context(), []cloud.Reference{s.reference(made)})
	if _, err = driver.Console(s.Context(), made); err != nil {
		s.driver.(*checked).error("Console", err)
	}
}
