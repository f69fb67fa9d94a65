// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"strings"
	"time"
)

const (
	// minMissingLimit and missingShare are how many of an account's recorded machines may be
	// missing at once, without a record of their end, and still be taken for gone: the larger of
	// the two. If there are more, a wrong answer is more likely than their end.
	minMissingLimit = 3
	missingShare    = 0.2
	// missingWindow is how long a machine that was taken for gone still counts among those
	// that are missing at once.
	missingWindow = 5 * time.Minute
)

// MassAbsence reports that more machines are missing at once than the account accepts as gone.
type MassAbsence struct {
	// Missing is how many of the Of recorded machines are missing without a record of their end.
	Missing, Of int
	// Digest identifies the set of missing machines, for Account.Confirm.
	Digest string
}

// absences is the only code that accepts a machine as gone because nothing of it is found, in an
// account whose cloud is no Finder.
type absences struct {
	recorded  map[string]struct{}  // tokens of all machines that are known to have been made
	missing   map[string]struct{}  // those that are not found, and whose end nothing records
	accepted  map[string]time.Time // those that were accepted as gone, and when
	confirmed map[string]struct{}  // those that a person has confirmed
}

func newAbsences() absences {
	return absences{recorded: map[string]struct{}{}, missing: map[string]struct{}{}, accepted: map[string]time.Time{}, confirmed: map[string]struct{}{}}
}

// found drops what was recorded of a machine that is there, or whose end the cloud records.
func (a *absences) found(token string) {
	delete(a.missing, token)
	delete(a.accepted, token)
	delete(a.confirmed, token)
}

func (a *absences) forget(token string) {
	a.found(token)
	delete(a.recorded, token)
}

// accept decides whether a machine that live reads do not find is gone.
func (a *absences) accept(token string, now time.Time) bool {
	a.missing[token] = struct{}{}
	if _, ok := a.confirmed[token]; !ok && a.exceedsLimit(now) {
		return false
	}
	delete(a.missing, token)
	a.accepted[token] = now
	return true
}

// exceedsLimit reports whether more machines are missing than are accepted as gone at once.
func (a *absences) exceedsLimit(now time.Time) bool {
	n := 0
	for token := range a.missing {
		if _, ok := a.confirmed[token]; !ok {
			n++
		}
	}
	for token, at := range a.accepted {
		if _, ok := a.confirmed[token]; !ok && now.Sub(at) < missingWindow {
			n++
		}
	}
	return float64(n) > max(minMissingLimit, missingShare*float64(len(a.recorded)))
}

// massAbsence returns the mass absence that stands now; nil if there is none.
func (a *absences) massAbsence(now time.Time) *MassAbsence {
	missing := a.unconfirmed()
	if len(missing) == 0 || !a.exceedsLimit(now) {
		return nil
	}
	return &MassAbsence{Missing: len(missing), Of: max(len(a.recorded), len(missing)), Digest: Digest(missing)}
}

// unconfirmed returns the missing machines that nobody has confirmed, sorted.
func (a *absences) unconfirmed() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(a.missing)), func(token string) bool {
		_, ok := a.confirmed[token]
		return ok
	})
}

// confirm marks the missing machines as confirmed, and reports true, if their digest is of.
func (a *absences) confirm(digest string) bool {
	missing := a.unconfirmed()
	if len(missing) == 0 || Digest(missing) != digest {
		return false
	}
	for _, token := range missing {
		a.confirmed[token] = struct{}{}
	}
	return true
}

// Digest identifies a set, whatever its order, so that a person confirms exactly that set.
func Digest(set []string) string {
	sum := sha256.Sum256([]byte(strings.Join(slices.Sorted(slices.Values(set)), "\n")))
	return hex.EncodeToString(sum[:6])
}
