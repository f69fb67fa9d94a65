// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"errors"

	"github.com/drover-io/drover/cloud"
)

// recordAnswer records whether the account hangs: whether a call ended because it, or its latest
// wire call, was not answered in time (late).
func (s *accountState) recordAnswer(err error, late bool) {
	_, queued := errors.AsType[*cloud.Queued](err)
	switch {
	case err != nil && late:
		s.hangs.Store(true)
	case !queued: // else the cloud was not asked
		s.hangs.Store(false)
	}
}

// isTimeout reports whether an error is that of a deadline, of a context or of a connection.
func isTimeout(err error) bool {
	timeout, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](err)
	return ok && timeout.Timeout()
}
