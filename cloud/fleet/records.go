// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/drover-io/drover/cloud"
)

// facts are what an account's cloud and configuration determine for its records.
type facts struct {
	traits        cloud.Traits
	batch         cloud.Batch
	times         Times
	createHorizon time.Duration // how long a create without an answer may still take effect
	idle, active  time.Duration // configured times between the starts of two listings
	findsByID     bool          // the cloud says of an ID that no instance has it
	watches       bool          // a Watcher makes listings unnecessary
	probed        bool          // the credentials lead to the account's place
}

// records are what is known of an account's machines, one record for each. They are plain state:
// they take what was seen, what became of calls and what the time is, and say what is known and
// what to do next. They take no lock, ask no clock and call nothing. inventory guards them.
//
// One complete listing serves all machines. A machine that a listing misses is not gone: only live
// reads can prove that, see presence.
type records struct {
	facts
	random     func() float64
	began      time.Time           // when this process began to delete
	machines   map[string]*machine // by token
	uncompared map[string]*machine // those with sightings, and those not yet compared with anything complete
	size       int64               // of what the cloud reported last, in bytes
	changes    changes
}

// changes are what has changed in the records for those around them, until they have noted it.
type changes struct {
	listings, reads, deletions bool       // the loop must compute its next action again
	shortages                  []shortage // where the cloud accepted a create and then had no capacity
	notify                     []string   // the machines whose controllers must be notified, by token
}

func newRecords(random func() float64, now time.Time) *records {
	return &records{
		random: random, began: now, machines: map[string]*machine{}, uncompared: map[string]*machine{},
	}
}

// machine returns the record of a token, and makes one if there is none.
func (r *records) machine(token string) *machine {
	m := r.machines[token]
	if m == nil {
		m = &machine{ref: cloud.Reference{Token: token}}
		r.machines[token] = m
	}
	return m
}

// track marks a machine as one that a controller has asked for, by this reference.
func (r *records) track(m *machine, ref cloud.Reference) {
	if m.phase == untracked {
		m.phase, m.ref = tracked, ref
		r.changes.listings = true
	}
}

// setReference updates a machine's reference. One with a provider ID proves that it was made.
func (r *records) setReference(m *machine, ref cloud.Reference, now time.Time) {
	m.ref = ref
	if ref.ProviderID == "" {
		return
	}
	m.creation = max(m.creation, recorded)
	if m.phase == confirming || m.phase == nothingCreated {
		m.phase = tracked
	}
	if m.knownSince.IsZero() {
		m.knownSince = now
		r.uncompared[ref.Token] = m
	}
}

// findExisting returns the request's instance if it is known.
func (r *records) findExisting(req cloud.Request, now time.Time) (*cloud.Resource, error) {
	m := r.machines[req.Token]
	if m == nil {
		return nil, nil
	}
	switch m.phase {
	case deleting, deleted:
		return nil, cloud.Errorf(cloud.Conflict, "create machine %s/%s: it is being deleted", req.Namespace, req.Name)
	case gone:
		return nil, cloud.Errorf(cloud.Conflict, "create machine %s/%s: its instance is gone, and is not created again", req.Namespace, req.Name)
	case confirming, nothingCreated: // the create that follows proves more than live reads
		m.phase, m.reported.nothingCreated = tracked, false
	}
	own, err := ownOf(m.resources(), req.Token, req.OwnershipID)
	if err != nil {
		return nil, err
	}
	alive := liveInstances(own)
	if len(alive) > 1 {
		return nil, cloud.Errorf(cloud.Conflict, "create machine %s/%s: instances %s all have its token", req.Namespace, req.Name,
			strings.Join(idsOf(alive), ", "))
	}
	i := slices.IndexFunc(own, func(r cloud.Resource) bool {
		return r.Kind == cloud.KindInstance && (len(alive) == 0 || r.ID == alive[0].ID)
	})
	if i < 0 {
		return nil, nil
	}
	r.markExisting(m, req, now)
	return &own[i], nil
}

// recordCreate records a new instance, and where it was made.
func (r *records) recordCreate(req cloud.Request, created cloud.Resource, in shortage, now time.Time) {
	m := r.machine(req.Token)
	m.madeIn = &in
	r.addSightings(m, []cloud.Resource{created}, now)
	r.markExisting(m, req, now)
	r.changes.listings = true
}

// markExisting tracks a machine whose instance is known to exist.
func (r *records) markExisting(m *machine, req cloud.Request, now time.Time) {
	r.track(m, cloud.Reference{Token: req.Token, OwnershipID: req.OwnershipID})
	if m.knownSince.IsZero() {
		m.knownSince = now
	}
	r.update(m, now)
}

// observe returns what is known of a machine, and tracks it. seen means that this or an earlier
// process saw its instance.
func (r *records) observe(ref cloud.Reference, seen bool, now time.Time) Observation {
	m := r.machine(ref.Token)
	r.track(m, ref)
	m.wasSeen = m.wasSeen || seen
	r.setReference(m, ref, now)
	wasStarting := !m.startingSince.IsZero()
	m.reported = r.refresh(m, now)
	if !wasStarting && !m.startingSince.IsZero() {
		r.changes.listings = true
	}
	return m.reported
}

// nodeJoined records that the machine's Node has appeared.
func (r *records) nodeJoined(token string) {
	if m := r.machines[token]; m != nil && !m.startingSince.IsZero() && !m.joined {
		m.joined = true
		r.changes.listings = true
	}
}

// forget drops what a controller has asked for.
func (r *records) forget(token string) {
	delete(r.uncompared, token)
	m := r.machines[token]
	if m == nil {
		return
	}
	delete(r.machines, token)
	if len(m.listed) > 0 { // in a new record: a step under way must not write to it
		r.machine(token).listed = m.listed
	}
	r.changes.listings = true
}

// retry makes all attempts due at once, after a change of credentials.
func (r *records) retry(now time.Time) {
	for _, m := range r.machines {
		m.failures = 0
		if m.started || m.phase < deleting {
			m.due = now
		}
	}
	r.changes.listings, r.changes.reads, r.changes.deletions = true, true, true
}

// markPresent undoes all that followed from a machine's absence.
func (r *records) markPresent(m *machine) {
	m.phase, m.emptySince, m.wasSeen, m.absence = tracked, time.Time{}, true, absence{}
}

// markMissing makes live reads decide what became of a machine.
func (r *records) markMissing(m *machine, now time.Time) {
	m.phase, m.due, m.emptySince, m.untagged = missing, now, time.Time{}, nil
	r.changes.reads = true
}

// isCurrent reports whether the answer of a live read says something of the machine: it was neither
// forgotten meanwhile nor recorded by another ID, by which it must be read again.
func (r *records) isCurrent(t *task) bool {
	return r.machines[t.ref.Token] == t.machine && t.machine.ref == t.ref
}

// addSightings records resources that were seen outside a listing.
func (r *records) addSightings(m *machine, resources []cloud.Resource, at time.Time) {
	for _, x := range resources {
		s := sighting{x, at}
		if i := slices.IndexFunc(m.sightings, func(o sighting) bool { return o.Kind == x.Kind && o.ID == x.ID }); i >= 0 {
			m.sightings[i] = s
		} else {
			m.sightings = append(m.sightings, s)
		}
	}
	r.uncompared[m.ref.Token] = m
}

// refresh derives a machine's state again, and records what follows from it.
func (r *records) refresh(m *machine, now time.Time) Observation {
	o := m.state()
	if o.Instance != nil {
		m.last = o.Instance
		if m.madeIn != nil && lacksCapacity(o.Instance) {
			r.changes.shortages = append(r.changes.shortages, *m.madeIn)
			m.madeIn = nil
		}
	}
	m.updateStart(o, now)
	return o
}

// update refreshes a machine. If it has changed, its controller must be notified.
func (r *records) update(m *machine, now time.Time) {
	o := r.refresh(m, now)
	if m.isObserved() && !(o.Gone && m.reported.Gone) && !reflect.DeepEqual(o, m.reported) {
		m.reported = o
		r.changes.notify = append(r.changes.notify, m.ref.Token)
	}
}

// sizeWith returns how many bytes the records would take with an Update.
func (r *records) sizeWith(u cloud.Update) int64 {
	size := sizeOf(u.Resources)
	if u.All {
		return size
	}
	if m := r.machines[u.Token]; m != nil {
		size -= sizeOf(m.listed)
	}
	return size + r.size
}

// isObserved reports whether a controller needs the state of any machine.
func (r *records) isObserved() bool {
	for _, m := range r.machines {
		if m.isObserved() {
			return true
		}
	}
	return false
}
