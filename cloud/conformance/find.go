// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"slices"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/tagging"
)

// find looks for an instance by its ID: while it has its tags, while its tags are gone, while the
// credentials may not see it, and when it is gone. Only the last may be answered with nothing.
func (s *suite) find() {
	driver, able := s.driver.(*checked).Driver.(cloud.Finder)
	if !able {
		return
	}
	look := func(ref cloud.Reference) (*cloud.Resource, error) {
		s.Helper()
		found, err := driver.Find(s.Context(), ref)
		s.driver.(*checked).error("Find", err)
		if err == nil && found != nil && (found.Kind != cloud.KindInstance || found.ID == "") {
			s.Errorf("Find returned %+v, which is no instance", found)
		}
		return found, err
	}
	made := s.ensure(s.request(s.token()))
	ref := s.reference(made)
	isMade := func() bool {
		found, err := look(ref)
		return err == nil && found != nil && found.ID == made.ID && found.Token == made.Token && found.OwnershipID == made.OwnershipID
	}
	s.eventually("Find returns the instance with its tags", isMade)
	if calls := s.net.count(func() { _, _ = look(ref) }); calls > 1 {
		s.Errorf("Find made %d calls", calls)
	}
	s.findUntagged(made, look)
	if s.LosePermissions != nil {
		undo := s.LosePermissions(s.T)
		if found, err := look(ref); err == nil && (found == nil || found.ID != made.ID) {
			s.Errorf("Find without the permission: got %+v, want an error", found)
		}
		undo()
		s.eventually("Find returns the instance again", isMade)
	}
	s.untilGone(s.Context(), []cloud.Reference{ref})
	s.eventually("Find says that the instance is gone", func() bool {
		found, err := look(ref)
		return err == nil && (found == nil || found.State == cloud.StateTerminated)
	})
}

// findUntagged takes the tags off an instance, and puts them back.
func (s *suite) findUntagged(made cloud.Resource, look func(cloud.Reference) (*cloud.Resource, error)) {
	driver, able := s.driver.(*checked).Driver.(tagging.Tagger)
	if !able {
		return
	}
	keys := []string{cloud.TagToken, cloud.TagOwnership}
	id := ""
	s.eventually("Tagged returns the instance", func() bool {
		all, err := driver.Tagged(s.Context(), keys)
		if i := slices.IndexFunc(all, func(i tagging.Instance) bool { return i.Token == made.Token }); i >= 0 {
			id = all[i].ID
		}
		return err == nil && id != ""
	})
	s.eventually("Find returns the instance without tags", func() bool {
		if err := driver.Untag(s.Context(), []string{id}, keys); err != nil {
			return false
		}
		found, err := look(s.reference(made))
		return err == nil && found != nil && found.ID == made.ID && found.Token == "" && found.OwnershipID == ""
	})
	tags := map[string]string{cloud.TagToken: made.Token, cloud.TagOwnership: made.OwnershipID}
	s.eventually("the tags are back", func() bool { return driver.Tag(s.Context(), id, tags, nil) == nil })
	s.wantOne(made.Token, made.ID)
}
