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
	// fewMissing and shareMissing are how many of an account's recorded machines may be missing at
	// once, without a record of their end, and still be believed to be gone: the larger of the two.
	// If there are more, a wrong answer is more likely than their end.
	fewMissing   = 3
	shareMissing = 0.2
	// missingWindow is how long a machine that was believed to be gone still counts among those
	// that are missing at once.
	missingWindow = 5 * time.Minute
)

// Doubt reports that more machines are missing at once than the account believes to be gone.
type Doubt struct {
	// Missing is how many of the Of recorded machines are missing without a record of their end.
	Missing, Of int
	// Digest identifies the set of missing machines, for Account.Confirm.
	Digest string
}

// absences is an account's only code that believes a machine to be gone because nothing of it is
// found. The inventory's lock guards it.
type absences struct {
	recorded  map[string]struct{}  // tokens of all machines that are known to have been made
	missing   map[string]struct{}  // those that are not found, and whose end nothing records
	believed  map[string]time.Time // those that were believed to be gone, and when
	confirmed map[string]struct{}  // those that a person has confirmed
	doubting  bool                 // as of the last call of flipped
}

func newAbsences() absences {
	return absences{recorded: map[string]struct{}{}, missing: map[string]struct{}{}, believed: map[string]time.Time{}, confirmed: map[string]struct{}{}}
}

// record notes a machine that was made.
func (a *absences) record(token string) {
	a.recorded[token] = struct{}{}
}

// miss notes that nothing of the machine is found.
func (a *absences) miss(token string) {
	a.missing[token] = struct{}{}
}

// found drops what was recorded of a machine that is there, or whose end the cloud records.
func (a *absences) found(token string) {
	delete(a.missing, token)
	delete(a.believed, token)
	delete(a.confirmed, token)
}

func (a *absences) forget(token string) {
	a.found(token)
	delete(a.recorded, token)
}

// believe decides whether a machine that live reads do not find is gone.
func (a *absences) believe(token string, now time.Time) bool {
	a.missing[token] = struct{}{}
	if _, ok := a.confirmed[token]; !ok && a.tooMany(now) {
		return false
	}
	delete(a.missing, token)
	a.believed[token] = now
	return true
}

// tooMany reports whether more machines are missing than are believed to be gone at once.
func (a *absences) tooMany(now time.Time) bool {
	n := 0
	for token := range a.missing {
		if _, ok := a.confirmed[token]; !ok {
			n++
		}
	}
	for token, at := range a.believed {
		if _, ok := a.confirmed[token]; !ok && now.Sub(at) < missingWindow {
			n++
		}
	}
	return float64(n) > max(fewMissing, shareMissing*float64(len(a.recorded)))
}

// doubt returns the current Doubt; nil if there is none.
func (a *absences) doubt(now time.Time) *Doubt {
	open := a.open()
	if len(open) == 0 || !a.tooMany(now) {
		return nil
	}
	return &Doubt{Missing: len(open), Of: max(len(a.recorded), len(open)), Digest: Digest(open)}
}

// open returns the missing machines that nobody has confirmed, sorted.
func (a *absences) open() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(a.missing)), func(token string) bool {
		_, ok := a.confirmed[token]
		return ok
	})
}

// flipped reports whether doubt has begun or ended since its last call.
func (a *absences) flipped(now time.Time) bool {
	doubting := a.doubt(now) != nil
	was := a.doubting
	a.doubting = doubting
	return was != doubting
}

// confirm marks the missing machines as confirmed, and reports true, if their digest is of.
func (a *absences) confirm(of string) bool {
	open := a.open()
	if len(open) == 0 || Digest(open) != of {
		return false
	}
	for _, token := range open {
		a.confirmed[token] = struct{}{}
	}
	return true
}

// Digest identifies a set, whatever its order, so that a person confirms exactly that set.
func Digest(set []string) string {
	sum := sha256.Sum256([]byte(strings.Join(slices.Sorted(slices.Values(set)), "\n")))
	return hex.EncodeToString(sum[:6])
}

// concludeAbsence applies a live read to a machine that is missing, or whose create had no answer.
// A machine is gone when the cloud says that its instance is terminated, or when two reads find
// nothing that are further apart than the cloud's read lag.
func (v *inventory) concludeAbsence(m *machine, began time.Time, found []cloud.Resource) {
	if m.phase != settling && !m.isMissing() {
		return // it was seen, or its deletion began, meanwhile
	}
	own := ownedBy(found, m.ref.OwnershipID)
	switch {
	case len(living(own)) > 0:
		v.reappeared(m)
		v.sight(m, own, began)
		return
	case m.phase == settling && len(own) > 0:
		m.phase = watched // it was made and has ended, as the next create will report
		v.sight(m, own, began)
		return
	case recorded(own, m.ref):
		v.absences.found(m.ref.Token)
		m.phase = ended
		v.sight(m, own, began)
		return
	}
	m.nothing = earlier(m.nothing, began)
	idle, _ := v.intervals()
	switch proven := v.provenAt(m, own); {
	case began.Before(proven):
		m.due = proven
	case m.phase == settling:
		m.phase = settled
	case !m.seen:
		m.phase, m.due = neverSeen, time.Now().Add(idle)
	case v.absences.believe(m.ref.Token, time.Now()):
		m.phase, m.listed, m.sighted = vanished, nil, nil
	default:
		m.due = time.Now().Add(idle)
	}
}

// concludeDeletion applies a live read to a machine that is being deleted.
func (v *inventory) concludeDeletion(t *task, began time.Time, found []cloud.Resource) {
	m := t.machine
	own := ownedBy(found, t.ref.OwnershipID)
	t.see(own)
	m.left = slices.DeleteFunc(slices.Clone(found), func(x cloud.Resource) bool {
		return x.Kind == cloud.KindInstance && x.State == cloud.StateTerminated && find(own, x) >= 0
	})
	if len(m.left) > 0 {
		m.nothing = time.Time{}
		v.absences.found(t.ref.Token)
		v.aim(t, found)
		return
	}
	m.left = nil
	m.nothing = earlier(m.nothing, began)
	if t.proven = v.provenAt(m, own); began.Before(t.proven) {
		return
	}
	// Nothing but silence says that the machine is gone: the instance was recorded, the cloud shows
	// no end of it, and no deletion of it was ever sent.
	silent := m.ref.ProviderID != "" && !recorded(own, m.ref) && !m.before && !m.lost && len(m.accepted) == 0
	if silent && !v.absences.believe(t.ref.Token, time.Now()) {
		t.err = cloud.Errorf(cloud.Conflict, "nothing of the machine is found, and too many others are missing at the same time for that to be believed: see the CloudAccount")
		return
	}
	m.phase, m.listed, m.sighted = deleted, nil, nil
}

// provenAt returns the earliest start of a live read that, by finding nothing, proves that nothing
// is there.
func (v *inventory) provenAt(m *machine, own []cloud.Resource) time.Time {
	traits := v.account().cloud.Traits
	made := m.known
	if made.IsZero() {
		made = m.asked
	}
	switch {
	case recorded(own, m.ref) && traits.CascadesDelete:
		return m.nothing // the cloud shows its end, and has deleted all that belonged to it
	case recorded(own, m.ref):
		return made.Add(traits.ReadLag) // a dependant may still be hidden
	case m.ref.ProviderID != "":
		return later(made, m.nothing).Add(traits.ReadLag)
	default:
		// A create without an answer may take effect until its horizon has passed.
		return later(m.asked.Add(v.account().createHorizon()), m.nothing).Add(traits.ReadLag)
	}
}
