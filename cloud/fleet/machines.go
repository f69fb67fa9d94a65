// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/drover-io/drover/cloud"
)

// phase is the state of a machine in its account.
type phase int

const (
	// untracked: a listing shows it, and no controller has asked for it.
	untracked phase = iota
	// tracked: a controller is notified of its changes.
	tracked
	// settling: live reads are to prove that a create without an answer made nothing.
	settling
	// settled: they have proved it.
	settled
	// missing: the listing lacks the recorded instance, or shows it terminated. Live reads decide
	// what became of it.
	missing
	// neverSeen: live reads found nothing, and nothing of the machine was ever seen.
	neverSeen
	// ended: the cloud has recorded the instance's end.
	ended
	// vanished: live reads find nothing of it. It becomes tracked again when it is seen again.
	vanished
	// deleting: the machine and all that belongs to it are being deleted.
	deleting
	// deleted: live reads have proved that nothing is left.
	deleted
)

// machine is the record of one machine. The inventory's lock guards it.
type machine struct {
	ref   cloud.Reference
	phase phase

	listed        []cloud.Resource // by the last complete listing, or by a later Update
	sightings     []sighting       // newer than listed
	last          *cloud.Resource  // the instance as last seen
	wasSeen       bool             // this process or an earlier one saw something of it
	knownSince    time.Time        // when this process learned that the instance exists; zero: it has not
	startingSince time.Time        // since when it has been about to change by itself; zero: it is not
	joined        bool             // its Node appeared after the last listing
	// isRecordedBalancer is true for a load balancer that is known to have been made.
	isRecordedBalancer bool
	onNoCapacity       func() // remembers where it was made, for when it fails there; nil: done

	reported        Observation
	untagged        error        // Conflict: the recorded instance exists without the machine's tags
	reportedSettled bool         // the controller was notified that it is settled
	event           *cloud.Event // what the cloud announced of the instance
	eventRecorded   bool         // the controller has recorded the event

	refused    bool      // the cloud has refused each create
	requested  time.Time // when this process was asked to settle the create or to delete the machine
	due        time.Time // when the next live read or deletion step is due
	emptySince time.Time // the first of the latest live reads in a row that found nothing; zero: none

	deletion
}

// deletion is the part of the record that only a deletion uses.
type deletion struct {
	resumed       bool // it was requested before this process began, so it may have been sent already
	wasGone       bool // the instance was gone before the deletion
	started       bool // a step was taken
	accepted      map[string]acceptance
	firstAccepted time.Time // when the cloud first accepted something
	failures      int       // in a row
	err           error
	remaining     []cloud.Resource
	targets       []cloud.Resource // chosen by the last read, and not sent yet
	blocked       error            // why the last read did not choose all
}

// acceptance is the last step of a resource's deletion that the cloud has accepted.
type acceptance struct {
	at   time.Time
	from cloud.State // the state seen before it
}

// sighting is a resource seen outside a listing: by its create or by a live read.
type sighting struct {
	cloud.Resource
	at time.Time
}

// inventory holds one record for each of an account's machines, behind one lock. One complete
// listing serves all of them. A machine that a listing misses is not gone: only live reads can
// prove that.
type inventory struct {
	account          func() *Account
	onMachinesChange func(tokens []string) // called without the lock; must not block
	onHealthChange   func()                // the same
	random           func() float64
	keep             func(size int64) bool // reports whether the account may keep so many bytes
	began            time.Time             // when this process began to delete
	listWakeup       wakeup
	readWakeup       wakeup
	deleteWakeup     wakeup

	mu           sync.Mutex
	machines     map[string]*machine // by token
	recent       map[string]*machine // machines with sightings, and those not yet compared with anything complete
	size         int64               // of what the cloud reported last, in bytes
	absences     absences
	pace         pace
	noReadBefore time.Time // no live read for deletions before this time
	lastEnd      time.Time // when a deleted instance was last seen to have ended
}

func newInventory(account func() *Account, onMachinesChange func([]string), onHealthChange func(), random func() float64) *inventory {
	return &inventory{
		account: account, onMachinesChange: onMachinesChange, onHealthChange: onHealthChange, random: random,
		keep: func(int64) bool { return true }, began: time.Now(), listWakeup: newWakeup(), readWakeup: newWakeup(), deleteWakeup: newWakeup(),
		machines: map[string]*machine{},
		recent:   map[string]*machine{},
		absences: newAbsences(),
		pace:     pace{reportedFresh: true, jitter: 1},
	}
}

// wakeup makes a loop compute its next action again.
type wakeup chan struct{}

func newWakeup() wakeup { return make(wakeup, 1) }

func (w wakeup) wake() {
	select {
	case w <- struct{}{}:
	default:
	}
}

// machine returns the record of a token, and makes one if there is none. It needs the lock, as all
// methods below do that do not say that they take it.
func (v *inventory) machine(token string) *machine {
	m := v.machines[token]
	if m == nil {
		m = &machine{ref: cloud.Reference{Token: token}}
		v.machines[token] = m
	}
	return m
}

// track marks a machine as one that a controller has asked for, by this reference.
func (v *inventory) track(m *machine, ref cloud.Reference) {
	if m.phase == untracked {
		m.phase, m.ref = tracked, ref
		v.listWakeup.wake()
	}
}

// markMissing makes live reads decide what became of a machine.
func (v *inventory) markMissing(m *machine) {
	m.phase, m.due, m.emptySince, m.untagged = missing, time.Now(), time.Time{}, nil
	v.readWakeup.wake()
}

// findExisting returns the request's instance if it is known. It takes the lock.
func (v *inventory) findExisting(req cloud.Request) (*cloud.Resource, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	m := v.machines[req.Token]
	if m == nil {
		return nil, nil
	}
	switch m.phase {
	case deleting, deleted:
		return nil, cloud.Errorf(cloud.Conflict, "create machine %s/%s: it is being deleted", req.Namespace, req.Name)
	case ended, vanished:
		return nil, cloud.Errorf(cloud.Conflict, "create machine %s/%s: its instance is gone, and is not created again", req.Namespace, req.Name)
	case settling, settled: // the create that follows proves more than live reads
		m.phase, m.reportedSettled = tracked, false
	}
	all := m.resources()
	own := ownedBy(all, req.OwnershipID)
	if len(own) < len(all) {
		return nil, otherOwnerError(req.Token, slices.DeleteFunc(all, func(r cloud.Resource) bool { return r.OwnershipID == req.OwnershipID }))
	}
	alive := liveInstances(own)
	if len(alive) > 1 {
		ids := make([]string, 0, len(alive))
		for _, r := range alive {
			ids = append(ids, r.ID)
		}
		return nil, cloud.Errorf(cloud.Conflict, "create machine %s/%s: instances %s all have its token", req.Namespace, req.Name, strings.Join(ids, ", "))
	}
	i := slices.IndexFunc(own, func(r cloud.Resource) bool {
		return r.Kind == cloud.KindInstance && (len(alive) == 0 || r.ID == alive[0].ID)
	})
	if i < 0 {
		return nil, nil
	}
	v.markExisting(m, req)
	return &own[i], nil
}

// recordCreate records a new instance. It takes the lock.
func (v *inventory) recordCreate(req cloud.Request, r cloud.Resource, onNoCapacity func()) {
	v.mu.Lock()
	defer v.mu.Unlock()
	m := v.machine(req.Token)
	m.onNoCapacity = onNoCapacity
	v.addSighting(m, []cloud.Resource{r}, time.Now())
	v.markExisting(m, req)
	v.listWakeup.wake()
}

// markExisting tracks a machine whose instance is known to exist.
func (v *inventory) markExisting(m *machine, req cloud.Request) {
	v.track(m, cloud.Reference{Token: req.Token, OwnershipID: req.OwnershipID})
	if m.knownSince.IsZero() {
		m.knownSince = time.Now()
	}
	m.update()
}

// observe returns what is known of a machine, and tracks it. seen means that this or an earlier
// process saw its instance. It takes the lock.
func (v *inventory) observe(ref cloud.Reference, seen bool) Observation {
	v.mu.Lock()
	defer v.mu.Unlock()
	m := v.machine(ref.Token)
	v.track(m, ref)
	m.ref, m.wasSeen = ref, m.wasSeen || seen
	if ref.ProviderID != "" {
		v.absences.recorded[ref.Token] = struct{}{}
		if m.phase == settling || m.phase == settled {
			m.phase = tracked
		}
		if m.knownSince.IsZero() {
			m.knownSince = time.Now()
			v.recent[ref.Token] = m
		}
	}
	wasStarting := !m.startingSince.IsZero()
	m.reported, m.reportedSettled = m.refresh(), m.phase == settled
	if !wasStarting && !m.startingSince.IsZero() {
		v.listWakeup.wake()
	}
	return m.reported
}

// settleCreate reports whether live reads have proved that a create without an answer made nothing.
// It starts those reads if need be. It takes the lock.
func (v *inventory) settleCreate(ref cloud.Reference) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	m := v.machine(ref.Token)
	v.track(m, ref)
	if m.phase == tracked && len(m.resources()) == 0 {
		m.phase, m.requested, m.emptySince = settling, time.Now(), time.Time{}
		m.due = m.requested.Add(v.account().createHorizon())
		v.readWakeup.wake()
	}
	return m.phase == settled
}

// createRefused records that no create of a machine can still take effect. It takes the lock.
func (v *inventory) createRefused(token string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.machine(token).refused = true
}

// nodeJoined records that the machine's Node has appeared. It takes the lock.
func (v *inventory) nodeJoined(token string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if m := v.machines[token]; m != nil && !m.startingSince.IsZero() && !m.joined {
		m.joined = true
		v.listWakeup.wake()
	}
}

// delete starts the deletion of a machine, or returns its progress. asked is when the deletion was
// requested, of this or an earlier process. It takes the lock.
func (v *inventory) delete(ref cloud.Reference, asked time.Time) Deletion {
	v.mu.Lock()
	defer v.mu.Unlock()
	m := v.machine(ref.Token)
	if m.phase < deleting {
		m.deletion = deletion{resumed: asked.Before(v.began), wasGone: m.isGone(), accepted: map[string]acceptance{}}
		m.phase, m.requested, m.emptySince = deleting, time.Now(), time.Time{}
		v.deleteWakeup.wake()
	}
	if m.started && m.ref.ProviderID == "" && ref.ProviderID != "" {
		m.due = time.Now() // the deletion waited for the provider ID
		v.deleteWakeup.wake()
	}
	m.ref = ref
	if ref.ProviderID != "" {
		v.absences.recorded[ref.Token] = struct{}{}
		if m.knownSince.IsZero() {
			m.knownSince = time.Now()
		}
	}
	return Deletion{Gone: m.phase == deleted, Remaining: slices.Clone(m.remaining), Instance: m.last, Err: m.err}
}

// forget drops what a controller has asked for. It takes the lock.
func (v *inventory) forget(token string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.absences.forget(token)
	delete(v.recent, token)
	m := v.machines[token]
	if m == nil {
		return
	}
	delete(v.machines, token)
	if len(m.listed) > 0 { // in a new record: a step under way must not write to it
		v.machine(token).listed = m.listed
	}
	v.listWakeup.wake()
}

// retry makes all attempts due at once, after a change of credentials. It takes the lock.
func (v *inventory) retry() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.pace.retry()
	v.noReadBefore = time.Time{}
	for _, m := range v.machines {
		m.failures = 0
		if m.started || m.phase < deleting {
			m.due = time.Now()
		}
	}
	v.listWakeup.wake()
	v.readWakeup.wake()
	v.deleteWakeup.wake()
}

// locked holds the lock while do runs, and releases it even if do panics: the account's callers
// need it, as does a loop that starts again.
func (v *inventory) locked(do func()) {
	v.mu.Lock()
	defer v.mu.Unlock()
	do()
}

// confirm accepts that the machines with this digest are gone. It takes the lock.
func (v *inventory) confirm(digest string) bool {
	confirmed := false
	v.locked(func() { confirmed = v.absences.confirm(digest) })
	if confirmed {
		v.retry()
	}
	return confirmed
}

// resources returns the known resources with the token. It takes the lock.
func (v *inventory) resources(token string) []cloud.Resource {
	v.mu.Lock()
	defer v.mu.Unlock()
	if m := v.machines[token]; m != nil {
		return m.resources()
	}
	return nil
}

// state says how current the inventory is. It takes the lock.
func (v *inventory) state() InventoryState {
	v.mu.Lock()
	defer v.mu.Unlock()
	now := time.Now()
	s := InventoryState{LastComplete: v.pace.complete, Err: v.pace.err, Fresh: v.isFresh(now), MassAbsence: v.absences.massAbsence(now)}
	for _, m := range v.machines {
		s.Instances += len(liveInstances(m.listed))
	}
	return s
}

// listing returns the last complete listing and when it began; zero before the first. From then on,
// the account is listed at least this often, even while no machine is observed. It takes the lock.
func (v *inventory) listing(maxInterval time.Duration) (began time.Time, all []cloud.Resource) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.pace.maxInterval != maxInterval {
		v.pace.maxInterval = maxInterval
		v.listWakeup.wake()
	}
	for _, m := range v.machines {
		all = append(all, m.listed...)
	}
	return v.pace.complete, all
}

// isObserved reports whether a controller needs the machine's state. A deletion does its own reads.
func (m *machine) isObserved() bool { return m.phase != untracked && m.phase < deleting }

func (m *machine) isGone() bool { return m.phase == ended || m.phase == vanished }

func (m *machine) isMissing() bool { return m.phase == missing || m.phase == neverSeen }

// isInQuestion reports whether live reads are to decide what became of the machine.
func (m *machine) isInQuestion() bool { return m.phase == settling || m.isMissing() }

// resources returns everything with the machine's token, listed or seen since, by kind and ID.
func (m *machine) resources() []cloud.Resource {
	all := slices.Clone(m.listed)
	for _, s := range m.sightings {
		if i := find(all, s.Resource); i >= 0 {
			all[i] = s.Resource
		} else {
			all = append(all, s.Resource)
		}
	}
	slices.SortFunc(all, func(a, b cloud.Resource) int {
		if a.Kind != b.Kind {
			return strings.Compare(string(a.Kind), string(b.Kind))
		}
		return strings.Compare(a.ID, b.ID)
	})
	return all
}

// own returns the resources that belong to the machine's cluster.
func (m *machine) own() []cloud.Resource { return ownedBy(m.resources(), m.ref.OwnershipID) }

// addSighting records resources that were seen outside a listing.
func (v *inventory) addSighting(m *machine, resources []cloud.Resource, at time.Time) {
	for _, r := range resources {
		s := sighting{r, at}
		if i := slices.IndexFunc(m.sightings, func(o sighting) bool { return o.Kind == r.Kind && o.ID == r.ID }); i >= 0 {
			m.sightings[i] = s
		} else {
			m.sightings = append(m.sightings, s)
		}
	}
	v.recent[m.ref.Token] = m
}

// observation derives the machine's state from its resources.
func (m *machine) observation() Observation {
	gone := m.isGone() || m.wasGone
	o := Observation{Gone: gone, NeverSeen: m.phase == neverSeen}
	if m.isMissing() {
		o.Err = m.untagged
	}
	own := m.own()
	if i := slices.IndexFunc(own, func(r cloud.Resource) bool { return r.Balancer != nil }); i >= 0 {
		balancer := own[i]
		o.Balancer = &balancer
	}
	alive := liveInstances(own)
	recorded := slices.DeleteFunc(recordedOf(m.ref, own), func(r cloud.Resource) bool {
		return r.Kind != cloud.KindInstance || gone && r.State != cloud.StateTerminated
	})
	if len(recorded) == 0 {
		if !gone {
			o.Instance = m.last // until a live read has confirmed that it is not there
		}
		o.Duplicates = idsOf(alive)
		return o
	}
	pick := recorded[0]
	if i := slices.IndexFunc(recorded, func(r cloud.Resource) bool { return r.State != cloud.StateTerminated }); i >= 0 {
		pick = recorded[i]
	}
	m.addEvent(&pick)
	if pick.Code == cloud.NoCapacity && (pick.State == cloud.StateFailed || pick.State == cloud.StateTerminated) {
		pick.Ending, pick.Imminent = true, true // its Machine is replaced
		if m.onNoCapacity != nil {
			m.onNoCapacity()
			m.onNoCapacity = nil
		}
	}
	o.Instance, m.last = &pick, &pick
	if len(alive) > 1 || (len(alive) == 1 && alive[0].ID != pick.ID) {
		o.Duplicates = idsOf(alive)
	}
	return o
}

func idsOf(resources []cloud.Resource) (ids []string) {
	for _, r := range resources {
		ids = append(ids, r.ID)
	}
	return ids
}

// refresh derives the machine's state again, and records whether it is about to change by itself.
func (m *machine) refresh() Observation {
	now := m.observation()
	switch {
	case now.Balancer != nil && isSettled(now.Balancer):
		m.startingSince = time.Time{}
	case now.Balancer != nil && m.startingSince.IsZero():
		m.startingSince = time.Now()
	case now.Instance == nil:
	case now.Gone || (now.Instance.State != cloud.StatePending && now.Instance.State != cloud.StateStopping):
		m.startingSince = time.Time{}
	case m.startingSince.IsZero():
		m.startingSince = time.Now()
	}
	return now
}

// update refreshes a machine, and reports whether its controller must be notified.
func (m *machine) update() bool {
	now, isSettled := m.refresh(), m.phase == settled
	if !m.isObserved() || (now.Gone && m.reported.Gone) || (reflect.DeepEqual(now, m.reported) && isSettled == m.reportedSettled) {
		return false
	}
	m.reported, m.reportedSettled = now, isSettled
	return true
}
