// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"crypto/sha256"
	"encoding/hex"
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
	// Tokens are those of the missing machines, sorted.
	Tokens []string
	// Digest identifies the set of missing machines, for Account.Confirm.
	Digest string
}

// absence is the part of a machine's record that says whether it is taken for gone because nothing
// of it is found, in an account whose cloud is no Finder.
type absence struct {
	unseen    bool      // it is not found, and nothing records its end
	accepted  time.Time // when it was accepted as gone; zero: it was not
	confirmed bool      // a person has confirmed that it is gone
}

// absences is the only code that accepts such a machine as gone.
type absences struct{ *records }

// accept decides whether a machine that live reads do not find is gone.
func (a absences) accept(m *machine, now time.Time) bool {
	m.absence.unseen = true
	if exceeded, _ := a.isLimitExceeded(now); exceeded && !m.absence.confirmed {
		return false
	}
	m.absence.unseen, m.absence.accepted = false, now
	return true
}

// isLimitExceeded reports whether more machines are missing than are accepted as gone at once, and
// of how many that are recorded.
func (a absences) isLimitExceeded(now time.Time) (exceeded bool, of int) {
	missing := 0
	for _, m := range a.machines {
		if m.ref.ProviderID != "" {
			of++
		}
		if !m.absence.confirmed && (m.absence.unseen || now.Sub(m.absence.accepted) < missingWindow) {
			missing++
		}
	}
	return float64(missing) > max(minMissingLimit, missingShare*float64(of)), of
}

// massAbsence returns the mass absence that stands now; nil if there is none.
func (a absences) massAbsence(now time.Time) *MassAbsence {
	missing := a.unconfirmed()
	exceeded, of := a.isLimitExceeded(now)
	if len(missing) == 0 || !exceeded {
		return nil
	}
	slices.Sort(missing)
	return &MassAbsence{Missing: len(missing), Of: max(of, len(missing)), Tokens: missing, Digest: Digest(missing)}
}

// unconfirmed returns the missing machines that nobody has confirmed, by token.
func (a absences) unconfirmed() (tokens []string) {
	for token, m := range a.machines {
		if m.absence.unseen && !m.absence.confirmed {
			tokens = append(tokens, token)
		}
	}
	return tokens
}

// confirm marks the missing machines as confirmed, and reports true, if their digest is this.
func (a absences) confirm(digest string) bool {
	missing := a.unconfirmed()
	if len(missing) == 0 || Digest(missing) != digest {
		return false
	}
	for _, token := range missing {
		a.machines[token].absence.confirmed = true
	}
	return true
}

// Digest identifies a set, whatever its order, so that a person confirms exactly that set.
func Digest(set []string) string {
	sum := sha256.Sum256([]byte(strings.Join(slices.Sorted(slices.Values(set)), "\n")))
	return hex.EncodeToString(sum[:6])
}
