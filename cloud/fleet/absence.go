// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/drover-io/drover/cloud"
)

const (
	// minMissingLimit and shareMissing are how many of an account's recorded machines may be
	// missing at once, without a record of their end, and still be taken for gone: the larger of
	// the two. If there are more, a wrong answer is more likely than their end.
	minMissingLimit = 3
	missingShare    = 0.2
	// missingWindow is how long a machine that was taken for gone still counts among those
	// that are missing at once.
	missingWindow = 5 * time.Minute
	// minRepeat is the least time between two answers that an instance does not exist.
	minRepeat = time.Second
)

// MassAbsence reports that more machines are missing at once than the account accepts as gone.
type MassAbsence struct {
	// Missing is how many of the Of recorded machines are missing without a record of their end.
	Missing, Of int
	// Digest identifies the set of missing machines, for Account.Confirm.
	Digest string
}

// absences is the only code that accepts a machine as gone because nothing of it is found, in an
// account whose cloud is no Finder. The inventory's lock guards it.
type absences struct {
	recorded  map[string]struct{}  // tokens of all machines that are known to have been made
	missing   map[string]struct{}  // those that are not found, and whose end nothing records
	accepted  map[string]time.Time // those that were accepted as gone, and when
	confirmed map[string]struct{}  // those that a person has confirmed
	reported  bool                 // as of the last call of flipped
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

// massAbsence returns the current Doubt; nil if there is none.
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

// changed reports whether doubt has begun or ended since its last call.
func (a *absences) changed(now time.Time) bool {
	doubting := a.massAbsence(now) != nil
	was := a.reported
	a.reported = doubting
	return was != doubting
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

// resolveAbsence applies a live read to a machine that is missing, or whose create had no answer. A
// machine is gone when the cloud says that its instance is terminated, or when two reads find
// nothing that are further apart than the cloud's read lag. Of a recorded machine, a Finder has
// then said twice that no instance has its ID.
func (v *inventory) resolveAbsence(m *machine, began time.Time, found []cloud.Resource) {
	own := ownedBy(found, m.ref.OwnershipID)
	switch {
	case len(liveInstances(recordedOf(m.ref, own))) > 0:
		v.markPresent(m)
		v.addSighting(m, own, began)
		return
	case m.phase == settling && len(own) > 0:
		m.phase = tracked // it was made and has ended, as the next create will report
		v.addSighting(m, own, began)
		return
	case hasInstance(own, m.ref):
		v.absences.found(m.ref.Token)
		m.phase = ended
		v.addSighting(m, own, began)
		return
	}
	m.emptySince = earlier(m.emptySince, began)
	idle, _ := v.intervals()
	findsByID := v.account().findsByID()
	switch proofAt := v.proofAt(m, own); {
	case began.Before(proofAt):
		m.due = proofAt
	case m.phase == settling:
		m.phase = settled
	case findsByID && began.Equal(m.emptySince): // the cloud must say it twice
		m.due = began.Add(minRepeat)
	case findsByID:
		m.phase, m.listed, m.sightings = vanished, nil, nil
	case !m.wasSeen:
		m.phase, m.due = neverSeen, time.Now().Add(idle)
	case v.absences.accept(m.ref.Token, time.Now()):
		m.phase, m.listed, m.sightings = vanished, nil, nil
	default:
		m.due = time.Now().Add(idle)
	}
}

// resolveDeletion applies a live read to a machine that is being deleted. It returns when the next
// read that finds nothing is proof.
func (v *inventory) resolveDeletion(m *machine, began time.Time, found []cloud.Resource) (proofAt time.Time, err error) {
	own := ownedBy(found, m.ref.OwnershipID)
	m.noteInstance(own)
	m.remaining = slices.DeleteFunc(slices.Clone(found), func(x cloud.Resource) bool {
		return x.Kind == cloud.KindInstance && x.State == cloud.StateTerminated && find(own, x) >= 0
	})
	if len(m.remaining) > 0 {
		m.emptySince = time.Time{}
		v.absences.found(m.ref.Token)
		return time.Time{}, v.selectTargets(m, found)
	}
	m.remaining = nil
	m.emptySince = earlier(m.emptySince, began)
	if proofAt = v.proofAt(m, own); began.Before(proofAt) {
		return proofAt, nil
	}
	// Only empty reads say that the machine is gone: the instance was recorded, the cloud shows no
	// end of it, and no deletion of it was ever sent.
	unexplained := (m.ref.ProviderID != "" || m.isRecordedBalancer) && !hasInstance(own, m.ref) && !m.wasGone && len(m.accepted) == 0
	findsByID := v.account().findsByID() && !m.isRecordedBalancer
	if unexplained && findsByID && began.Equal(m.emptySince) { // the cloud must say it twice
		return began.Add(minRepeat), nil
	}
	if unexplained && !findsByID && !m.resumed && !v.absences.accept(m.ref.Token, time.Now()) {
		return proofAt, cloud.Errorf(cloud.Conflict, "no resource of the machine is found, but too many machines are missing at once to accept that: check the CloudAccount's conditions")
	}
	m.phase, m.listed, m.sightings = deleted, nil, nil
	return proofAt, nil
}

// proofAt returns the earliest start of a live read that, by finding nothing, proves that nothing
// is there.
func (v *inventory) proofAt(m *machine, own []cloud.Resource) time.Time {
	traits := v.account().cloud.Traits
	made := m.knownSince
	if made.IsZero() {
		made = m.requested
	}
	switch {
	case hasInstance(own, m.ref) && traits.CascadesDelete:
		return m.emptySince // the cloud shows its end, and has deleted all that belonged to it
	case hasInstance(own, m.ref):
		return made.Add(traits.ReadLag) // a dependant may still be hidden
	case m.ref.ProviderID != "" || m.isRecordedBalancer:
		return later(made, m.emptySince).Add(traits.ReadLag)
	case m.refused: // but an earlier step of the create may have left something
		return m.emptySince.Add(traits.ReadLag)
	default:
		// A create without an answer may take effect until its horizon has passed.
		return later(m.requested.Add(v.account().createHorizon()), m.emptySince).Add(traits.ReadLag)
	}
}
